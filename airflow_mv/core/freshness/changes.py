# SPDX-License-Identifier: Apache-2.0
"""The change between two snapshots of a table, by its metadata alone.

Source of the summary keys: Iceberg ``format/spec.md``, "Optional Snapshot Summary Fields". All of them are optional: a
number that is absent is unknown, not 0. Where an operation or the totals of two snapshots determine it, it is computed.
A summary may also be wrong, because other writers make it. One that contradicts itself or lacks numbers is replaced
by what the manifests show, before a change is classified: :func:`is_in_doubt`, :func:`as_in_manifests`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice

import msgspec

from airflow_mv.core.script import REFRESH_ID_KEY
from airflow_mv.core.spec.table_metadata import (
    FileChange,
    Snapshot,
    TableMetadata,
    ancestors,
    known_sum,
    known_sums,
    snapshots_between,
)


class Kind(StrEnum):
    """The kind of a change, the most harmless first. A range of snapshots has the worst kind of its commits."""

    UNCHANGED = "unchanged"
    #: Compaction, or commits without rows: the files may differ, the rows are the same.
    REPLACED = "replaced"
    APPENDED = "appended"
    #: Copy-on-write: data files were replaced.
    REWRITTEN = "rewritten"
    POSITION_DELETES = "position-deletes"
    DELETION_VECTORS = "deletion-vectors"
    EQUALITY_DELETES = "equality-deletes"
    #: The old snapshot exists, but it is not an ancestor of the new one.
    ROLLED_BACK = "rolled-back"
    #: The old snapshot has expired.
    EXPIRED = "expired"
    #: Another table has the name.
    RECREATED = "recreated"
    #: The table was not part of the last refresh, or cannot be read.
    UNKNOWN = "unknown"


#: Kinds whose two snapshots both exist, so that their difference can be read.
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
_CHANGES = ("added-", "deleted-", "removed-")
_TOTALS = ("total-",)
_Totals = Mapping[str, int | None]
_ADDED_FILES = "added-data-files"


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a change, and of the table after it. ``None``: unknown.

    Args:
        rows_added: Rows in added data files, without those of compaction, and without those that were only copied if
            the commit says how many these are.
        rows_deleted: Likewise rows of removed data files, and rows deleted by position; rows that equality deletes
            match are unknown.
        bytes_added: Bytes of added files, including compaction: a difference of two snapshots reads them.
        bytes_removed: Bytes of removed files, likewise.
        files_added: Data files added.
        files_removed: Data files removed.
        partitions: Changed partitions, summed over the snapshots.
        bytes_touched: Approximate bytes of data files that stay but have deleted rows: they must be read to find the
            rows.
        total_rows: Rows of the table at the end, including deleted ones that are still in files.
        total_bytes: Bytes of the table's files at the end.
    """

    rows_added: int | None = 0
    rows_deleted: int | None = 0
    bytes_added: int | None = 0
    bytes_removed: int | None = 0
    files_added: int | None = 0
    files_removed: int | None = 0
    partitions: int | None = 0
    bytes_touched: int | None = 0
    total_rows: int | None = 0
    total_bytes: int | None = 0


#: The size of an unknown change.
UNKNOWN_SIZE = Size(*(None for _ in Size.__dataclass_fields__))


@dataclass(frozen=True, slots=True)
class Range:
    """The change between two snapshots.

    Args:
        kind: Their effect on the rows.
        operations: Their number by operation, as ``((operation, count), …)``.
        size: How much they changed.
        only_appends: Whether a scan of the appended files gives the whole change: no other commit changed rows.
        schema_changed: Whether the table's schema differs at the end.
    """

    kind: Kind
    operations: tuple[tuple[str, int], ...] = ()
    size: Size = Size()
    only_appends: bool = False
    schema_changed: bool = False

    @property
    def snapshots(self) -> int:
        """The number of snapshots."""
        return sum(count for _, count in self.operations)


#: For a table whose metadata file was not opened, because it is the recorded one.
UNCHANGED = Range(Kind.UNCHANGED, size=Size(total_rows=None, total_bytes=None))
UNKNOWN = Range(Kind.UNKNOWN, size=UNKNOWN_SIZE)


def between(
    table: TableMetadata,
    old: int | None,
    new: int | None,
    *,
    same_rows: Collection[int] = (),
    old_schema_id: str | None = None,
) -> Range:
    """Classify the change between two snapshots of a table.

    Args:
        old: The snapshot that was read; ``None`` for the table before its first one.
        new: The snapshot to refresh to; ``None`` for a table without snapshots.
        same_rows: Snapshots whose manifests show that they have the rows of their parents.
        old_schema_id: The id of the schema of ``old``, for the case that it has expired. Without it the schema may have
            changed then.
    """
    if old == new:
        return Range(Kind.UNCHANGED, size=_totals(table, new))
    chain = snapshots_between(table, old, new)
    if chain is None:
        return _broken(table, old, new)
    commits = [_Commit(snapshot, _parent(table, snapshot)) for snapshot in chain]
    counts = Counter(snapshot.operation for snapshot in chain)
    kind = max((commit.kind(same_rows) for commit in commits), key=_SEVERITY.index, default=Kind.UNCHANGED)
    return Range(
        kind=kind,
        operations=tuple(sorted(counts.items())),
        size=_sizes(table, new, [item for item in commits if item.snapshot.snapshot_id not in same_rows]),
        only_appends=set(counts) <= {"append", "replace"},
        schema_changed=old is not None and not _same_schema(table, old, new, old_schema_id),
    )


def _same_schema(table: TableMetadata, old: int, new: int | None, old_schema_id: str | None) -> bool:
    if table.find(old) is None:
        return old_schema_id is not None and old_schema_id == str(table.schema_id_at(new))
    return table.schema_at(old) == table.schema_at(new)


#: Summary keys of snapshots that deleted rows without rewriting their files, the worst first.
_DELETES = (
    (Kind.EQUALITY_DELETES, ("added-equality-deletes", "added-equality-delete-files")),
    (Kind.DELETION_VECTORS, ("added-dvs",)),
    (Kind.POSITION_DELETES, ("added-position-deletes", "added-position-delete-files")),
)


def is_in_doubt(snapshot: Snapshot, parent: Snapshot | None) -> bool:
    """Whether a summary alone does not show what a commit has changed: its manifests must be read.

    Neither its operation nor a single number is believed alone. The numbers of files, rows and deletes must be there,
    account for the difference of the totals, and fit each other and the operation. Writers that found nothing to
    delete write a summary without changes, and so do writers that omit the optional numbers.

    Args:
        parent: The snapshot before it; ``None`` for the first one.
    """
    numbers = snapshot.numbers(_CHANGES)
    before = _NONE if parent is None else parent
    # Rewritten manifests are a compaction without numbers, and with the totals of before.
    if None in numbers.values() or not (any(numbers.values()) or snapshot.operation == "replace"):
        return True
    changed = {what: tuple(numbers.get(key) or 0 for key in keys) for what, keys in _NAMES.items()}
    now, then = snapshot.numbers(_TOTALS), None if before is _NONE else before.numbers(_TOTALS)
    if not all(_accounts(now, then, what, *changed[what]) for what in _NAMES):
        return True
    content = (("records", "data-files"), ("position-deletes", "delete-files"), ("equality-deletes", "delete-files"))
    if any(changed[rows][side] and not changed[files][side] for rows, files in content for side in (0, 1)):
        return True
    return not _fits(snapshot.operation, changed, hidden=_hidden(before))


def _hidden(before: Snapshot) -> int | None:
    """Return the most rows that delete files of a snapshot may match; ``None``: unknown."""
    if before is _NONE or before.number("total-delete-files") == 0:
        return 0
    return before.number("total-position-deletes") if before.number("total-equality-deletes") == 0 else None


def _accounts(totals: _Totals, earlier: _Totals | None, what: str, added: int, removed: int) -> bool:
    """Whether two numbers are the difference of a total in two snapshots. Some totals may be absent in both.

    Args:
        earlier: The totals of the snapshot before; ``None``: there is none.
    """
    then = 0 if earlier is None else earlier.get(f"total-{what}")
    now = totals.get(f"total-{what}")
    if now is None and (then is None or earlier is None):
        return what in _MAY_LACK and not (added or removed)
    return None not in (then, now) and (now or 0) - (then or 0) == added - removed


def _fits(operation: str, changed: Mapping[str, Sequence[int]], *, hidden: int | None) -> bool:
    """Whether a commit that added and removed so much may have an operation.

    Args:
        changed: What was added and removed, by the keys of :data:`_NAMES`.
        hidden: The most rows that delete files may match in the snapshot before. A compaction leaves out such rows.
            ``None``: unknown.
    """
    added, removed = ({what: numbers[side] for what, numbers in changed.items()} for side in (0, 1))
    if operation == "append":
        return added["data-files"] > 0 and not any(removed.values()) and not added["delete-files"]
    if operation == "delete":
        return not added["data-files"]
    if operation == "replace":
        fewer = removed["records"] - added["records"]
        deletes = all(added[what] <= removed[what] for what in ("position-deletes", "equality-deletes"))
        return deletes and fewer >= 0 and (hidden is None or fewer <= hidden)
    return True


def as_in_manifests(snapshot: Snapshot, found: FileChange | None) -> Snapshot:
    """Return a commit with what its manifests show in the place of its summary's numbers.

    Its operation stays if it fits. Otherwise it is ``overwrite``, which may have changed any row.

    Args:
        snapshot: A commit whose summary is in doubt.
        found: The files by which it differs from its parent; ``None`` if unknown.
    """
    summary = {key: text for key, text in snapshot.summary.items() if not key.startswith(_CHANGES)}
    if found is None:
        return msgspec.structs.replace(snapshot, summary={**summary, "operation": "overwrite"})
    changed = {what: (found.added.get(what, 0), found.removed.get(what, 0)) for what in _NAMES}
    for what, keys in _NAMES.items():
        summary |= {key: str(number) for key, number in zip(keys, changed[what], strict=True)}
    kinds = ("dvs", "position-delete-files", "equality-delete-files")
    summary |= {f"added-{kind}": str(found.added[kind]) for kind in kinds if kind in found.added}
    fits = _fits(snapshot.operation, changed, hidden=None if found.had_deletes else 0)
    operation = snapshot.operation if fits else "overwrite"
    return msgspec.structs.replace(snapshot, summary={**summary, "operation": operation})


def changes_rows(snapshot: Snapshot, same_rows: Collection[int] = ()) -> bool:
    """Whether a snapshot may have other rows than its parent. A compaction never does.

    Args:
        same_rows: See :func:`between`.
    """
    return snapshot.operation != "replace" and snapshot.snapshot_id not in same_rows


def ends_of_commits(line: Sequence[Snapshot | None]) -> frozenset[int]:
    """Return the ids of the snapshots that may be read: those within a refresh of a materialized view are left out.

    A refresh may delete rows in one commit and insert the new ones in the next. Both become visible at once, so that
    the snapshot between them was never a state of the view. In any other table each snapshot may be read.

    Args:
        line: Snapshots in order of their commits, up to one that may be read; ``None`` for an expired one.
    """
    found, refresh = set(), None
    for snapshot in filter(None, reversed(line)):
        stamp = snapshot.summary.get(REFRESH_ID_KEY)
        # Spark deletes whole files without a stamp. A refresh never ends with that.
        is_within = refresh is not None and (snapshot.operation == "delete" if stamp is None else stamp == refresh)
        if not is_within:
            found.add(snapshot.snapshot_id)
            refresh = stamp
    return frozenset(found)


def copying(table: TableMetadata, old: int | None, new: int | None) -> frozenset[int]:
    """Return the commits that may have copied rows into new files, and whose summaries do not say how many.

    Args:
        old: The snapshot before the first commit; ``None``: from the beginning.
        new: The snapshot of the last one.
    """
    return frozenset(
        snapshot.snapshot_id
        for snapshot in snapshots_between(table, old, new) or ()
        if snapshot.operation == "overwrite" and snapshot.number(_COPIED) is None
    )


#: The suffix of a total's key, and the keys of its added and removed parts.
_NAMES: Mapping[str, tuple[str, str]] = {
    "records": ("added-records", "deleted-records"),
    "data-files": ("added-data-files", "deleted-data-files"),
    "files-size": ("added-files-size", "removed-files-size"),
    "delete-files": ("added-delete-files", "removed-delete-files"),
    "position-deletes": ("added-position-deletes", "removed-position-deletes"),
    "equality-deletes": ("added-equality-deletes", "removed-equality-deletes"),
}
#: Totals that a writer may leave out where there is nothing to count.
_MAY_LACK = ("files-size", "position-deletes", "equality-deletes")
_Moved = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class _Commit:
    """A snapshot and the numbers of its parent: an empty summary for none, ``None`` where they are unknown."""

    snapshot: Snapshot
    parent: Snapshot | None

    def kind(self, same_rows: Collection[int]) -> Kind:
        snapshot = self.snapshot
        if not changes_rows(snapshot, same_rows):
            return Kind.REPLACED
        if snapshot.operation == "append":
            return Kind.APPENDED
        for kind, keys in _DELETES:
            if any(snapshot.number(key) for key in keys):
                return kind
        added, deleted = self.moved("data-files")
        only_added = bool(added) and deleted == 0 and self._change("delete-files") == 0
        return Kind.APPENDED if only_added else Kind.REWRITTEN

    def moved(self, what: str) -> _Moved:
        """Return how much of something the commit added and removed.

        Args:
            what: A key of :data:`_NAMES`.
        """
        added, removed = (self._count(key) for key in _NAMES[what])
        change = self._change(what)
        if change is not None:
            if added is None and removed is not None:
                added = change + removed
            elif added is not None and removed is None:
                removed = added - change
            elif added is None and self.snapshot.number(f"total-{what}") == 0 == change:
                added = removed = 0  # none before and none after
        sound = change is None or None in (added, removed) or (added or 0) - (removed or 0) == change
        # Contradictory numbers are ignored.
        return (added, removed) if sound and min(added or 0, removed or 0) >= 0 else (None, None)

    def rows(self) -> _Moved:
        """Return how many rows the commit added and removed, without copied ones, as far as it says so.

        A deletion vector contains the earlier deletes of its data file, which are counted as removed and as added.
        """
        added, removed = self._rows_of_files()
        deletes, again = self.moved("position-deletes")
        if removed is None or deletes is None:
            return added, None
        return added, max(0, removed + deletes - (again or 0))

    def _rows_of_files(self) -> _Moved:
        added, removed = self.moved("records")
        copied = self.snapshot.number(_COPIED)
        if copied is None or added is None or removed is None or copied > min(added, removed):
            return added, removed
        return added - copied, removed - copied

    def _count(self, key: str) -> int | None:
        if key in self.snapshot.summary:
            return self.snapshot.number(key)
        return 0 if key in _NEVER.get(self.snapshot.operation, ()) else None

    def _change(self, what: str) -> int | None:
        """By how much a total changed."""
        after = self.snapshot.number(f"total-{what}")
        before = self.parent.number(f"total-{what}") if self.parent else None
        if self.parent is not None and self.parent.snapshot_id == _NONE.snapshot_id:
            before = 0
        return None if after is None or before is None else after - before


#: By operation, what its commits never do according to the specification.
_NEVER: Mapping[str, frozenset[str]] = {
    "append": frozenset({removed for _, removed in _NAMES.values()} | {"added-delete-files", "added-position-deletes"}),
    "delete": frozenset({"added-records", "added-data-files"}),
}
#: Spark's name for the rows that a copy-on-write MERGE has copied into new files.
_COPIED = "spark.merge-into.num-target-rows-copied"
#: Number of commits from which the size of a table's files is estimated.
_RECENT = 20
#: Stands for the table before its first snapshot.
_NONE = Snapshot(snapshot_id=-1)


def _parent(table: TableMetadata, snapshot: Snapshot) -> Snapshot | None:
    return _NONE if snapshot.parent_snapshot_id is None else table.find(snapshot.parent_snapshot_id)


def _broken(table: TableMetadata, old: int | None, new: int | None) -> Range:
    """Return a range that is not on the table's line of snapshots."""
    totals = _totals(table, new)
    unknown = replace(UNKNOWN_SIZE, total_rows=totals.total_rows, total_bytes=totals.total_bytes)
    if old is None or table.find(old) is None:
        return Range(Kind.EXPIRED, size=unknown)
    left = snapshots_between(table, new, old)
    if left is None and expired_between(table, old, new):
        size = replace(unknown, bytes_touched=0, **_grown(table.bytes_at(old), totals.total_bytes))
    elif left is None:
        # Two branches of one history: their changes since they diverged are not followed, so all rows may differ.
        size = replace(unknown, bytes_added=totals.total_bytes, bytes_removed=table.bytes_at(old), bytes_touched=0)
    else:
        undone = _sizes(table, old, [_Commit(snapshot, _parent(table, snapshot)) for snapshot in left])
        size = replace(
            undone,
            total_rows=totals.total_rows,
            total_bytes=totals.total_bytes,
            rows_added=undone.rows_deleted,
            rows_deleted=undone.rows_added,
            bytes_added=undone.bytes_removed,
            bytes_removed=undone.bytes_added,
            files_added=undone.files_removed,
            files_removed=undone.files_added,
        )
    return Range(Kind.ROLLED_BACK, size=size, schema_changed=table.schema_at(old) != table.schema_at(new))


def expired_between(table: TableMetadata, old: int, new: int | None) -> bool:
    """Whether a table's snapshots between two retained ones have expired, as far as the snapshots show.

    Args:
        old: A retained snapshot.
        new: A snapshot that is not its descendant, as far as is known.
    """
    first, line = table.find(old), list(ancestors(table, new))
    if first is None or not line:
        return False
    oldest = line[-1]
    # An expiry may leave a child without its parent's id. A replaced table also begins with such a snapshot.
    begins = oldest.parent_snapshot_id is None and oldest.number("total-data-files") == oldest.number(_ADDED_FILES)
    return not begins and (first.sequence_number, first.timestamp_ms) < (oldest.sequence_number, oldest.timestamp_ms)


def _grown(before: int | None, after: int | None) -> dict[str, int | None]:
    """Return the least number of added and removed rows between two states, if only their sizes are known."""
    if before is None or after is None:
        return {"bytes_added": after, "bytes_removed": before}
    return {"bytes_added": max(0, after - before), "bytes_removed": max(0, before - after)}


def _sizes(table: TableMetadata, last: int | None, chain: Sequence[_Commit]) -> Size:
    """Return how much some commits changed, the last of which made a snapshot of the table."""
    moved = [item for item in chain if item.snapshot.operation != "replace"]
    totals = _totals(table, last)

    rows = known_sums([item.rows() for item in moved])
    sizes, files = (known_sums([item.moved(what) for item in chain]) for what in ("files-size", "data-files"))
    return Size(
        rows_added=rows[0],
        rows_deleted=rows[1],
        bytes_added=sizes[0],
        bytes_removed=sizes[1],
        files_added=files[0],
        files_removed=files[1],
        partitions=known_sum([item.snapshot.number("changed-partition-count") for item in moved]),
        bytes_touched=_touched(table, last, moved),
        total_rows=totals.total_rows,
        total_bytes=totals.total_bytes,
    )


def _touched(table: TableMetadata, last: int | None, moved: Sequence[_Commit]) -> int | None:
    """Return approximately how many bytes of data files have deletes.

    Usually a delete file is for one data file. Most rows are in large files, so these have the deletes.
    """
    deletes, total = known_sum([item.moved("delete-files")[0] for item in moved]), table.bytes_at(last)
    if deletes == 0:
        return 0
    if deletes is None or total is None:
        return total
    largest = _largest(list(islice(ancestors(table, last), _RECENT)), deletes)
    return total if largest is None else min(largest, total)


def _largest(line: Sequence[Snapshot], files: int) -> int | None:
    """Return approximately how many bytes so many of a table's data files have, the largest ones.

    ``None``: fewer files are known.

    Args:
        line: The table's last snapshots, the newest one first.
        files: How many.
    """
    added = [(item.number(_ADDED_FILES), item.number("added-files-size")) for item in line[:-1]]
    before = [(item.number("total-data-files"), item.number("total-files-size")) for item in line[-1:]]
    known = [(count, size) for count, size in (*added, *before) if count and size]
    found = 0
    for count, size in sorted(known, key=lambda item: item[1] / item[0], reverse=True):
        taken = min(files, count)
        found, files = found + size * taken // count, files - taken
    return None if files else found


def _totals(table: TableMetadata, snapshot_id: int | None) -> Size:
    return Size(total_rows=table.rows_at(snapshot_id), total_bytes=table.bytes_at(snapshot_id))
