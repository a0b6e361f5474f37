# SPDX-License-Identifier: Apache-2.0
"""Expire old snapshots of a storage table, drop the branches of killed refreshes, and keep base snapshots by tags."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from airflow_mv.core.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog, TableChange
from airflow_mv.core.catalog.tables import WRITABLE_FORMAT
from airflow_mv.core.publish.layout import ChangedMetadata
from airflow_mv.core.publish.protocol import Effects
from airflow_mv.core.publish.refresh import DEFAULT_GRACE
from airflow_mv.core.publish.storage_change import StorageChange
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.interval_parts import parts_of
from airflow_mv.core.spec.materialized_view import (
    DEFINITION_PROPERTY,
    NO_SNAPSHOT,
    RefreshRecord,
    is_staging_branch,
    keeping_tags,
)
from airflow_mv.core.spec.properties import KEEP_PROPERTY, kept_for
from airflow_mv.core.spec.table_metadata import TableMetadata
from airflow_mv.errors import CommitConflictError, MaterializedViewError, UnsupportedError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExpiryResult:
    """Which snapshots and branches of a storage table were dropped.

    Args:
        snapshot_ids: What was dropped, or would be with ``dry_run``.
        kept: Why each other snapshot stays, by its id: ``current``, ``named`` (by a tag or branch) or ``young``.
        dry_run: Whether nothing was changed.
        branches: The branches that refreshes were staged on, by drivers that died (registered layout).
    """

    view: Identifier
    snapshot_ids: tuple[int, ...]
    kept: dict[int, str]
    dry_run: bool
    branches: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether there was anything to drop."""
        return bool(self.snapshot_ids or self.branches)


def expire(
    catalog: MaterializedViewCatalog,
    view: str | Identifier,
    *,
    older_than: timedelta = DEFAULT_GRACE,
    dry_run: bool = False,
    effects: Effects | None = None,
) -> ExpiryResult:
    """Expire the snapshots of a view's storage table that have not been current for some time.

    The current snapshot stays, and so do snapshots that a tag or branch names (those of a recorded history, for
    example), and those of an adopted table from before its adoption. The refresh records stay as they are. No file is
    deleted: the collection of orphan files does that. In the registered layout, branches of staged refreshes are
    dropped first, if no running refresh can use them.

    In the pointed layout, a refresh that was planned before the expiry and is published after it plans again.

    Args:
        older_than: How long a snapshot stays after another one took its place. The store's clock is compared
            with times in the metadata that other hosts wrote. Skew moves the limit; the current rows stay readable.
        dry_run: Only report what would be dropped.
        effects: Clock, sleep and jitter.

    Raises:
        CommitConflictError, CommitStateUnknownError: See :func:`airflow_mv.core.publish.protocol.commit`.
    """
    identifier = catalog.identify(view)
    loaded = catalog.load(identifier)
    storage = catalog.load_storage(loaded)
    limit = catalog.files.now_ms(storage.table.location) - older_than // timedelta(milliseconds=1)
    result = _expired(identifier, storage, limit, loaded.adopted_at, dry_run=dry_run)
    if dry_run or not result:
        return result

    change = _Expiry(catalog, loaded, limit, result, effects)
    if change.publish():
        result = change.result
        log.info("Expired %d snapshots of %s: %s", len(result.snapshot_ids), identifier, result.snapshot_ids)
        log.info("Dropped %d branches of killed refreshes of %s: %s", len(result.branches), identifier, result.branches)
    return result


def count_old(view: LoadedView, storage: LoadedStorage, *, older_than: timedelta) -> int:
    """Return how many snapshots of a storage table may expire, at the time of its last change. It reads nothing.

    Args:
        older_than: As for :func:`expire`.
    """
    limit = storage.table.last_updated_ms - older_than // timedelta(milliseconds=1)
    return len(_expired(view.identifier, storage, limit, view.adopted_at, dry_run=True).snapshot_ids)


class _Expiry(StorageChange):
    """Remove snapshots and branches. It has landed if none of them is left.

    Args:
        limit: What has not been current since then is dropped, milliseconds since the epoch.
        result: What is to be dropped, as of the first read.
        effects: Clock, sleep and jitter.
    """

    def __init__(
        self,
        catalog: MaterializedViewCatalog,
        view: LoadedView,
        limit: int,
        result: ExpiryResult,
        effects: Effects | None,
    ) -> None:
        super().__init__(catalog, view.identifier, "the expiry", effects)
        self._limit, self._adopted_at = limit, view.adopted_at
        #: What was dropped. If an earlier copy has landed, nothing is left to drop.
        self.result = result

    def _found(self, storage: LoadedStorage) -> ExpiryResult:
        return _expired(self._view, storage, self._limit, self._adopted_at, dry_run=False)

    def is_needed(self, _view: LoadedView, storage: LoadedStorage) -> bool:
        """Whether there is something to drop."""
        found = self._found(storage)
        self.result = found or self.result
        return bool(found)

    def changed_metadata(self, storage: LoadedStorage, document: dict[str, Any], _now_ms: int) -> ChangedMetadata:
        """Return the metadata without the snapshots."""
        return ChangedMetadata(without_snapshots(document, set(self._found(storage).snapshot_ids)))

    def table_change(self, storage: LoadedStorage) -> TableChange:
        """Drop them in one commit, if no branch or tag has moved since they were found to be unneeded."""
        found, names = self._found(storage), {name: ref.snapshot_id for name, ref in storage.table.refs.items()}
        return TableChange(
            requires={"main": storage.table.head, **names}, removes=found.branches, drops=found.snapshot_ids
        )


def _dead_branches(storage: LoadedStorage, limit: int) -> list[str]:
    """Return the branches of refreshes that were not published and can no longer be."""
    current = (storage.table.head, storage.tagged)
    return dead_branches(storage.table, current=current, not_current_since_ms=limit)


def _expired(
    view: Identifier, storage: LoadedStorage, limit: int, adopted_at: int | None, *, dry_run: bool
) -> ExpiryResult:
    table, branches = storage.table, _dead_branches(storage, limit)
    if branches:
        # Snapshots that only these branches name may be dropped with them.
        table = msgspec.structs.replace(
            table, refs={key: ref for key, ref in table.refs.items() if key not in branches}
        )
    kept = kept_snapshots(table, not_current_since_ms=limit, adopted_at=adopted_at)
    dropped = tuple(item.snapshot_id for item in table.snapshots if item.snapshot_id not in kept)
    return ExpiryResult(view, dropped, kept, dry_run, tuple(branches))


# -------------------------------- Keep the snapshots of base tables that a view was computed from, by tags with an age
# An incremental refresh needs the snapshot that the stored rows were computed from. If the base table's own
# maintenance has expired it, the refresh is a full one. A view that asks for it puts a tag on these snapshots after
# each refresh, and removes its earlier ones, in one commit to each base table.
#
# The tags have an age, so that a view that is never refreshed again keeps no snapshot for ever. Iceberg counts the
# age of a tag from the time of its snapshot, which may be long before the refresh.


#: The most snapshots of one base table that a view keeps: one for each separately refreshed interval, the newest.
MAX_TAGS = 20
_TRIES = 3


def keep_base_snapshots(catalog: MaterializedViewCatalog, view: str | Identifier | LoadedView) -> None:
    """Tag the recorded snapshots of a view's base tables, if the view asks for it. A failure is a warning.

    A base table is changed only if a tag is missing, is no longer needed, or has less than half of its time left.
    """
    name = view.identifier if isinstance(view, LoadedView) else view
    try:
        loaded = view if isinstance(view, LoadedView) else catalog.load(view)
        keep = kept_for(loaded.metadata.properties, view=str(name))
        record = catalog.load_storage(loaded).record if keep else None
    except MaterializedViewError as error:
        log.warning("Could not keep the base snapshots of %s: %s", name, error)
        return
    if record is not None and keep is not None:
        _tag_each(catalog, loaded, recorded_snapshots(record), keep)


def release_base_snapshots(catalog: MaterializedViewCatalog, view: LoadedView) -> None:
    """Remove the tags of a view that is dropped. A failure is a warning: the tags have an age."""
    if KEEP_PROPERTY not in view.metadata.properties:
        return
    try:
        record = catalog.load_storage(view).record
    except MaterializedViewError as error:
        log.warning(
            "Could not remove the tags of %s in its base tables; they remain until they age out: %s",
            view.identifier,
            error,
        )
        return
    if record is not None:
        _tag_each(catalog, view, dict.fromkeys(recorded_snapshots(record), frozenset()), timedelta(0))


def recorded_snapshots(record: RefreshRecord) -> dict[Identifier, frozenset[int]]:
    """Return the snapshots from which the rows of a refresh were computed, by base table in a catalog."""
    found: dict[Identifier, frozenset[int]] = {}
    for table in (table for part in parts_of(record) for table in part.base_tables):
        name = Identifier.parse(table.identifier)
        name = name.selects_from or name
        if name.path is None and table.snapshot_reference != NO_SNAPSHOT:
            found[name] = found.get(name, frozenset()) | {table.snapshot_reference}
    return found


def _tag_each(
    catalog: MaterializedViewCatalog, view: LoadedView, wanted: dict[Identifier, frozenset[int]], keep: timedelta
) -> None:
    for name, snapshots in wanted.items():
        try:
            _tag(catalog.home_of(name), name, view, snapshots, keep)
        except MaterializedViewError as error:
            log.warning("Could not change the tags of snapshots of %s in %s: %s", view.identifier, name, error)


def _tag(
    home: MaterializedViewCatalog, name: Identifier, view: LoadedView, snapshots: frozenset[int], keep: timedelta
) -> None:
    """Change the tags in one base table. The rows of a materialized view are kept by its own maintenance.

    Raises:
        UnsupportedError: The table's format is newer than what pyiceberg can write.
        CommitConflictError: Other commits came first.
    """
    for _ in range(_TRIES):
        located = home.locate([name]).get(name)
        table = home.table_metadata(name, located) if located is not None and located.kind == "table" else None
        if table is None or DEFINITION_PROPERTY in table.properties:
            return
        change = tags_to_change(table, keeping_tags(view.metadata.view_uuid), snapshots, keep, time.time_ns() // 10**6)
        if change is None:
            return
        _require_writable(home, name, table)
        if home.tables.commit(name, table.table_uuid or "", change) is not None:
            return
    raise CommitConflictError(
        f"table {name}: {_TRIES} commits in a row conflicted with others; the next refresh tries again"
    )


def _require_writable(home: MaterializedViewCatalog, name: Identifier, table: TableMetadata) -> None:
    """Check that a commit to a table of others loses nothing: pyiceberg may lose what a newer format has.

    Raises:
        UnsupportedError: The table's format is newer than what pyiceberg can write.
    """
    if table.format_version > WRITABLE_FORMAT and home.rest is None:
        raise UnsupportedError(
            f"table {name} has format version {table.format_version}, and pyiceberg, which commits to catalog "
            f"{home.name!r}, writes {WRITABLE_FORMAT} at most: keep the table's snapshots longer instead of tags"
        )


def tags_to_change(
    table: TableMetadata, prefix: str, snapshots: Iterable[int], keep: timedelta, now_ms: int
) -> TableChange | None:
    """Return the change of a base table's tags; ``None`` if there is nothing to change.

    Args:
        table: The base table.
        prefix: How the view's tags begin.
        snapshots: The snapshots to keep.
        keep: For how long from now.
        now_ms: The current time, ms since the epoch.
    """
    found = [snapshot for item in snapshots if (snapshot := table.find(item)) is not None]
    newest = sorted(found, key=lambda item: item.timestamp_ms, reverse=True)[:MAX_TAGS]
    times = {f"{prefix}{item.snapshot_id}": item for item in newest}
    kept_ms, half_ms = (int(length / timedelta(milliseconds=1)) for length in (keep, keep / 2))

    def lasts(tag: str) -> bool:
        ref, until_ms = table.refs.get(tag), now_ms - times[tag].timestamp_ms + half_ms
        return ref is not None and (ref.max_ref_age_ms is None or ref.max_ref_age_ms >= until_ms)

    missing = {tag: item for tag, item in times.items() if not lasts(tag)}
    removes = tuple(tag for tag in table.refs if tag.startswith(prefix) and tag not in times)
    if not missing and not removes:
        return None
    return TableChange(
        tags={tag: item.snapshot_id for tag, item in missing.items()},
        ages={tag: max(1, now_ms - item.timestamp_ms + kept_ms) for tag, item in missing.items()},
        removes=removes,
    )


# --------------------------------------------- Decide which snapshots are kept, and drop the others from the metadata
# Pure functions on decoded metadata files, so that unknown fields are kept. Source: Iceberg ``format/spec.md``,
# "Snapshot Retention Policy" and the ``snapshot-log`` of "Table Metadata Fields".


CURRENT = "current"
NAMED = "named"
YOUNG = "young"
ADOPTED = "adopted"
#: Why a snapshot is kept.
REASONS = (CURRENT, NAMED, YOUNG, ADOPTED)


def kept_snapshots(table: TableMetadata, *, not_current_since_ms: int, adopted_at: int | None = None) -> dict[int, str]:
    """Return which snapshots must be kept, and why. All others may be dropped.

    Args:
        not_current_since_ms: Snapshots that were current, or made, later than this are kept. The age of a snapshot
            counts from when another one replaced it, because readers used it until then.
        adopted_at: Snapshots up to this sequence number were not written for the view.

    Returns:
        :data:`CURRENT`, :data:`NAMED` (by a tag or branch), :data:`YOUNG` or :data:`ADOPTED`, by snapshot id.
    """
    ended = _last_current_ms(table)
    named = {ref.snapshot_id for ref in table.refs.values()}
    kept = {}
    for snapshot in table.snapshots:
        identity = snapshot.snapshot_id
        if identity == table.head:
            kept[identity] = CURRENT
        elif identity in named:
            kept[identity] = NAMED
        elif adopted_at is not None and snapshot.sequence_number <= adopted_at:
            kept[identity] = ADOPTED
        elif ended[identity] > not_current_since_ms:
            kept[identity] = YOUNG
    return kept


def dead_branches(table: TableMetadata, *, current: Collection[int | None], not_current_since_ms: int) -> list[str]:
    """Return the staging branches that no running refresh can still use.

    Args:
        current: The snapshots from which a refresh starts its branch now. A branch at one of them may just be starting.
        not_current_since_ms: The age of a branch counts from its last snapshot. If its run has written none, it counts
            from when the snapshot that it started from was replaced: from then on its refresh cannot be published.
    """
    ended = _last_current_ms(table)
    return sorted(
        name
        for name, ref in table.refs.items()
        if ref.type == "branch"
        and is_staging_branch(name)
        and ref.snapshot_id not in current
        and ended.get(ref.snapshot_id, 0) <= not_current_since_ms
    )


def _last_current_ms(table: TableMetadata) -> dict[int, int]:
    """Return when each snapshot was replaced by another one, or else when it was made."""
    ended = {item.snapshot_id: item.timestamp_ms for item in table.snapshots}
    for entry, following in zip(table.snapshot_log, table.snapshot_log[1:], strict=False):
        ended[entry.snapshot_id] = max(ended.get(entry.snapshot_id, 0), following.timestamp_ms)
    return ended


def without_snapshots(document: dict[str, Any], dropped: Collection[int]) -> dict[str, Any]:
    """Return table metadata without some snapshots and all references to them.

    Args:
        document: A decoded metadata file; not changed.
        dropped: Ids of snapshots, none of them current, tagged or branched.
    """
    changed = dict(document)
    for name in ("snapshots", "statistics", "partition-statistics"):
        if name in document:
            changed[name] = [item for item in document[name] if item["snapshot-id"] not in dropped]
    history = document.get("snapshot-log", [])
    gaps = [number for number, entry in enumerate(history) if entry["snapshot-id"] in dropped]
    # A log with a gap would give wrong results for "as of": by the specification the log is cut at the gap.
    return {**changed, "snapshot-log": history[gaps[-1] + 1 :] if gaps else history}
