# SPDX-License-Identifier: Apache-2.0
"""What happened to a table between two snapshots, from its metadata alone: the kind of change, and its size.

Source of the summary keys: Iceberg ``format/spec.md``, "Optional Snapshot Summary Fields".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from airflow_mv.spec.table import Snapshot, TableMetadata, snapshots_between


class Kind(StrEnum):
    """The kind of a change, the harmless first. A range of snapshots is of its worst kind."""

    UNCHANGED = "unchanged"
    #: Compaction, or commits without rows: perhaps other files, the same rows.
    REPLACED = "replaced"
    APPENDED = "appended"
    #: Copy-on-write: data files were exchanged.
    REWRITTEN = "rewritten"
    POSITION_DELETES = "position-deletes"
    DELETION_VECTORS = "deletion-vectors"
    EQUALITY_DELETES = "equality-deletes"
    #: The old snapshot is there, but it is no ancestor of the new one.
    ROLLED_BACK = "rolled-back"
    #: The old snapshot is gone.
    EXPIRED = "expired"
    #: Another table under the name.
    RECREATED = "recreated"
    #: It was no part of the last refresh, or cannot be read.
    UNKNOWN = "unknown"


#: Kinds whose two snapshots are both there, so that their difference can be read.
DIFFERABLE = frozenset(
    {
        Kind.APPENDED,
        Kind.REWRITTEN,
        Kind.POSITION_DELETES,
        Kind.DELETION_VECTORS,
        Kind.EQUALITY_DELETES,
        Kind.ROLLED_BACK,
    }
)
_SEVERITY = list(Kind)
_SIZES = ("added-files-size", "removed-files-size")


@dataclass(frozen=True, slots=True)
class Size:
    """How much a range of snapshots changed, and how large the table is after it.

    Args:
        rows_added: Rows in added data files, without those of compaction.
        rows_deleted: Rows of removed data files and rows deleted by position; rows that equality
            deletes match are not known.
        bytes_added: Bytes of added files, those of compaction included: a difference of two snapshots reads them.
        bytes_removed: Bytes of removed files, likewise.
        files_added: Data files added.
        files_removed: Data files removed.
        partitions: Partitions touched, added up over the snapshots; 0 where the writer did not say.
        bytes_touched: Bytes of data files that stay but have rows deleted, about: those must be read to know the rows.
        total_rows: Rows of the table at the end, deleted ones that still lie in files included.
        total_bytes: Bytes of the table's files at the end.
    """

    rows_added: int = 0
    rows_deleted: int = 0
    bytes_added: int = 0
    bytes_removed: int = 0
    files_added: int = 0
    files_removed: int = 0
    partitions: int = 0
    bytes_touched: int = 0
    total_rows: int = 0
    total_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Range:
    """The snapshots between two.

    Args:
        kind: What they did to the rows.
        operations: Their number by operation, as ``((operation, count), …)``.
        size: How much they changed.
        only_appends: Whether a scan of the appended files tells the whole change: no other writer touched rows.
        schema_changed: Whether the table's schema is another one at the end.
    """

    kind: Kind
    operations: tuple[tuple[str, int], ...] = ()
    size: Size = Size()
    only_appends: bool = False
    schema_changed: bool = False

    @property
    def snapshots(self) -> int:
        """How many snapshots there are."""
        return sum(count for _, count in self.operations)


UNCHANGED = Range(Kind.UNCHANGED)


def between(table: TableMetadata, old: int | None, new: int | None) -> Range:
    """Classify what happened between two snapshots of a table.

    Args:
        table: Its metadata.
        old: The snapshot that was read; ``None`` for the table before its first one.
        new: The snapshot to get to; ``None`` likewise.
    """
    if old == new:
        return Range(Kind.UNCHANGED, size=_totals(table, new))
    chain = snapshots_between(table, old, new)
    if chain is None:
        return _broken(table, old, new)
    counts = Counter(snapshot.operation for snapshot in chain)
    kind = max((_kind(snapshot) for snapshot in chain), key=_SEVERITY.index, default=Kind.UNCHANGED)
    return Range(
        kind=kind,
        operations=tuple(sorted(counts.items())),
        size=_sizes(chain, _totals(table, new)),
        only_appends=set(counts) <= {"append", "replace"},
        schema_changed=old is not None and _schema_of(table, old) != _schema_of(table, new),
    )


#: What marks a snapshot that deleted rows without rewriting their files, the worst first.
_DELETES = (
    (Kind.EQUALITY_DELETES, ("added-equality-deletes", "added-equality-delete-files")),
    (Kind.DELETION_VECTORS, ("added-dvs",)),
    (Kind.POSITION_DELETES, ("added-position-deletes", "added-position-delete-files")),
)


def _kind(snapshot: Snapshot) -> Kind:
    if snapshot.operation == "replace" or _is_empty(snapshot):
        return Kind.REPLACED
    if snapshot.operation == "append":
        return Kind.APPENDED
    for kind, keys in _DELETES:
        if any(snapshot.count(key) for key in keys):
            return kind
    only_added = "added-data-files" in snapshot.summary and not snapshot.count("deleted-data-files")
    return Kind.APPENDED if only_added else Kind.REWRITTEN


def changes_rows(snapshot: Snapshot) -> bool:
    """Whether a snapshot may have other rows than its parent; compaction has not."""
    return _kind(snapshot) != Kind.REPLACED


def bytes_changed(snapshot: Snapshot) -> int | None:
    """Return the bytes of data and delete files that a commit added and removed; ``None`` where it does not say."""
    sizes = [snapshot.count(key) for key in _SIZES if key in snapshot.summary]
    return sum(sizes) if sizes or _is_empty(snapshot) else None


def _is_empty(snapshot: Snapshot) -> bool:
    """Whether a commit added and removed nothing, and says so: a DELETE without a match."""
    touched = [key for key in snapshot.summary if key.startswith(("added-", "deleted-", "removed-"))]
    return "total-records" in snapshot.summary and not any(snapshot.count(key) for key in touched)


def _broken(table: TableMetadata, old: int | None, new: int | None) -> Range:
    """A range that the table's own line of snapshots does not show."""
    totals = _totals(table, new)
    if old is None or table.find(old) is None:
        return Range(Kind.EXPIRED, size=totals)
    left = snapshots_between(table, new, old)
    if left is None:
        # Two branches of one history: what each did since they parted is not followed, all may have changed.
        size = replace(totals, bytes_added=totals.total_bytes, bytes_removed=table.bytes_at(old))
    else:
        undone = _sizes(left, totals)
        size = replace(
            undone,
            rows_added=undone.rows_deleted,
            rows_deleted=undone.rows_added,
            bytes_added=undone.bytes_removed,
            bytes_removed=undone.bytes_added,
            files_added=undone.files_removed,
            files_removed=undone.files_added,
        )
    return Range(Kind.ROLLED_BACK, size=size, schema_changed=_schema_of(table, old) != _schema_of(table, new))


def _sizes(chain: Sequence[Snapshot], totals: Size) -> Size:
    moved = [item for item in chain if item.operation != "replace"]

    def total(key: str, snapshots: Sequence[Snapshot]) -> int:
        return sum(item.count(key) for item in snapshots)

    return Size(
        rows_added=total("added-records", moved),
        rows_deleted=total("deleted-records", moved) + total("added-position-deletes", moved),
        bytes_added=total("added-files-size", chain),
        bytes_removed=total("removed-files-size", chain),
        files_added=total("added-data-files", chain),
        files_removed=total("deleted-data-files", chain),
        partitions=total("changed-partition-count", moved),
        bytes_touched=_touched(moved, totals),
        total_rows=totals.total_rows,
        total_bytes=totals.total_bytes,
    )


def _touched(moved: Sequence[Snapshot], totals: Size) -> int:
    """Return about how many bytes of data files got deletes: a delete file is for one of them, as a rule."""
    deletes = sum(item.count("added-delete-files") for item in moved)
    files = max((item.count("total-data-files") for item in moved), default=0)
    return 0 if not deletes else totals.total_bytes * min(deletes, max(files, 1)) // max(files, 1)


def _totals(table: TableMetadata, snapshot_id: int | None) -> Size:
    return Size(total_rows=table.rows_at(snapshot_id), total_bytes=table.bytes_at(snapshot_id))


def _schema_of(table: TableMetadata, snapshot_id: int | None) -> int | None:
    snapshot = table.find(snapshot_id) if snapshot_id is not None else None
    return snapshot.schema_id if snapshot is not None else None
