# SPDX-License-Identifier: Apache-2.0
"""Correct times in a storage table that were written by a host with a wrong clock."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

from airflow_mv.core.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog, stored_table
from airflow_mv.core.publish.layout import ChangedMetadata, StorageLayout
from airflow_mv.core.publish.protocol import Effects
from airflow_mv.core.publish.refresh import Attempt
from airflow_mv.core.publish.storage_change import StorageChange
from airflow_mv.core.script import MAX_AHEAD_MS
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import corrected, is_false, latest_ms
from airflow_mv.core.spec.times import from_ms
from airflow_mv.errors import UnsupportedError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClockRepair:
    """The wrong times of a view's storage table.

    Args:
        storage_table_location: The metadata file with these times.
        latest_ms: The latest time in it, milliseconds since the epoch.
        store_ms: The store's clock.
        needed: Whether there is a time to correct: in the future, or earlier than one before it.
        done: Whether this call corrected it.
        correctable: Whether the catalog lets us change the times: behind a REST server only the server can.
    """

    view: Identifier
    storage_table_location: str
    latest_ms: int
    store_ms: int
    needed: bool
    done: bool
    correctable: bool

    @property
    def ahead_seconds(self) -> float:
        """Seconds that the latest time is ahead of the store's clock; 0 if it is not."""
        return max(0, self.latest_ms - self.store_ms) / 1000

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "view": str(self.view),
            "storage_table_location": self.storage_table_location,
            "latest": _text(self.latest_ms),
            "ahead_seconds": self.ahead_seconds,
            "needed": self.needed,
            "done": self.done,
        }


def repair_clock(
    catalog: MaterializedViewCatalog, view: str | Identifier, *, dry_run: bool = False, effects: Effects | None = None
) -> ClockRepair:
    """Correct times of a view's storage table that are ahead of the store's clock: set them to the store's time.

    Only times of snapshots and records change; rows stay as they are. A change that was published at a wrong time
    counts as published now.

    Args:
        dry_run: Only report what would be done.

    Raises:
        UnsupportedError: The storage table is in a REST catalog; only its server can change the times.
        CommitConflictError, CommitStateUnknownError: See :func:`airflow_mv.core.publish.protocol.commit`.
    """
    loaded = catalog.load(view)
    found, _ = _diagnosed(catalog, loaded)
    if dry_run or not found.needed:
        return found
    if not found.correctable:
        raise UnsupportedError(
            f"view {loaded.identifier}: its storage table has timestamps in the future, and only the server of catalog "
            f"{catalog.name!r} can change them. Wait until that time has passed, or drop the view and create it again"
        )
    done = _Times(catalog, loaded.identifier, found.store_ms, effects).publish()
    log.info("Corrected the timestamps of %s, which were up to %.0f s ahead", loaded.identifier, found.ahead_seconds)
    return replace(found, done=done)


def _diagnosed(catalog: MaterializedViewCatalog, view: LoadedView) -> tuple[ClockRepair, dict[str, Any]]:
    storage = catalog.load_storage(view)
    document = stored_table(catalog, view, storage)
    store_ms = catalog.files.now_ms(storage.table.location)
    found = ClockRepair(
        view.identifier,
        storage.location,
        latest_ms(document),
        store_ms,
        needed=is_false(document, store_ms + MAX_AHEAD_MS),
        done=False,
        correctable=catalog.is_sql,
    )
    return found, document


class _Times(StorageChange):
    """Correct the times of a storage table. It has landed if none of them is wrong.

    Args:
        store_ms: The store's clock.
    """

    def __init__(
        self, catalog: MaterializedViewCatalog, view: Identifier, store_ms: int, effects: Effects | None
    ) -> None:
        super().__init__(catalog, view, "the correction of times", effects)
        self._store_ms = store_ms

    def is_needed(self, view: LoadedView, storage: LoadedStorage) -> bool:
        """Whether there is a time to correct."""
        return is_false(stored_table(self._catalog, view, storage), self._store_ms + MAX_AHEAD_MS)

    def changed_metadata(self, _storage: LoadedStorage, document: dict[str, Any], _now_ms: int) -> ChangedMetadata:
        """Return the metadata with corrected times."""
        return ChangedMetadata(corrected(document, self._store_ms))

    def attempt(self, layout: StorageLayout) -> Attempt:
        """Send the metadata file itself: no table commit can change times."""
        return layout.edit(self._catalog, self, self.effects, as_file=True)


def _text(milliseconds: int) -> str:
    return from_ms(milliseconds).isoformat(timespec="seconds")
