# SPDX-License-Identifier: Apache-2.0
"""Expire old snapshots of a storage table, and drop the branches of killed refreshes."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from airflow_mv.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog, TableChange
from airflow_mv.publish.layout import ChangedMetadata
from airflow_mv.publish.protocol import Effects
from airflow_mv.publish.refresh import DEFAULT_GRACE
from airflow_mv.publish.storage_change import StorageChange
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.snapshots import kept_snapshots, without_snapshots

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Expired:
    """Which snapshots and branches of a storage table were dropped.

    Args:
        view: The view.
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
) -> Expired:
    """Expire the snapshots of a view's storage table that have not been current for some time.

    The current snapshot stays, and so do snapshots that a tag or branch names (those of a recorded history, for
    example), and those of an adopted table from before its adoption. The refresh records stay as they are. No file is
    deleted: the collection of orphan files does that. In the registered layout, branches of staged refreshes are
    dropped first, if no running refresh can use them.

    In the pointed layout, a refresh that was planned before the expiry and is published after it plans again.

    Args:
        catalog: Where the view is.
        view: The view.
        older_than: How long a snapshot stays after another one took its place. The store's clock is compared
            with times in the metadata that other hosts wrote. Skew moves the limit; the current rows stay readable.
        dry_run: Only report what would be dropped.
        effects: Clock, sleep and jitter.

    Raises:
        CommitConflictError, CommitStateUnknownError: See :func:`airflow_mv.publish.protocol.commit`.
    """
    identifier = catalog.identify(view)
    loaded = catalog.load(identifier)
    storage = catalog.load_storage(loaded)
    limit = catalog.files.now_ms(storage.clock_folder(loaded)) - older_than // timedelta(milliseconds=1)
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
        view: The view.
        storage: Its storage table.
        older_than: As for :func:`expire`.
    """
    limit = storage.table.last_updated_ms - older_than // timedelta(milliseconds=1)
    return len(_expired(view.identifier, storage, limit, view.adopted_at, dry_run=True).snapshot_ids)


class _Expiry(StorageChange):
    """Remove snapshots and branches. It has landed if none of them is left.

    Args:
        catalog: Where the view is.
        view: The view.
        limit: What has not been current since then is dropped, milliseconds since the epoch.
        result: What is to be dropped, as of the first read.
        effects: Clock, sleep and jitter.
    """

    def __init__(
        self,
        catalog: MaterializedViewCatalog,
        view: LoadedView,
        limit: int,
        result: Expired,
        effects: Effects | None,
    ) -> None:
        super().__init__(catalog, view.identifier, "the expiry", effects)
        self._limit, self._adopted_at = limit, view.adopted_at
        #: What was dropped. If an earlier copy has landed, nothing is left to drop.
        self.result = result

    def _found(self, storage: LoadedStorage) -> Expired:
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


def _expired(view: Identifier, storage: LoadedStorage, limit: int, adopted_at: int | None, *, dry_run: bool) -> Expired:
    table, branches = storage.table, storage.dead_branches(limit)
    if branches:
        # Snapshots that only these branches name may be dropped with them.
        table = msgspec.structs.replace(
            table, refs={key: ref for key, ref in table.refs.items() if key not in branches}
        )
    kept = kept_snapshots(table, not_current_since_ms=limit, adopted_at=adopted_at)
    dropped = tuple(item.snapshot_id for item in table.snapshots if item.snapshot_id not in kept)
    return Expired(view, dropped, kept, dry_run, tuple(branches))
