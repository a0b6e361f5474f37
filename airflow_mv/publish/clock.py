# SPDX-License-Identifier: Apache-2.0
"""Correct the times that a host with a wrong clock has put into a storage table, and explain what they break."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import Any

from airflow_mv.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog, TableChange
from airflow_mv.catalog.files import discard
from airflow_mv.errors import (
    ClockError,
    CommitConflictError,
    CommitStateUnknownError,
    FutureTimeError,
    MaterializedViewError,
    UnsupportedError,
)
from airflow_mv.publish.amend import ChangedMetadata, StorageChange, commit_change
from airflow_mv.publish.pointed import write_next
from airflow_mv.publish.protocol import Effects
from airflow_mv.spec.clock import corrected, is_false, latest_ms
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.times import from_ms

log = logging.getLogger(__name__)

_TRIES = 5
#: What Java Iceberg says of times that go back by more than a minute.
_JAVA = re.compile(
    r"Expected sorted (snapshot|previous metadata) log entries|Invalid (update|snapshot) timestamp", re.ASCII
)


@dataclass(frozen=True, slots=True)
class ClockRepair:
    """What is, or was, wrong with the times of a view's storage table.

    Args:
        view: The view.
        storage_table_location: The metadata file with these times.
        latest_ms: The latest time in it, milliseconds since the epoch.
        store_ms: The store's clock.
        needed: Whether there is a time to correct: in the future, or earlier than one before it.
        done: Whether it was corrected now.
    """

    view: Identifier
    storage_table_location: str
    latest_ms: int
    store_ms: int
    needed: bool
    done: bool

    @property
    def ahead_seconds(self) -> float:
        """How far the latest time is ahead of the store's clock; 0 where it is not."""
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
    """Bring the times of a view's storage table down to the store's clock, where they are ahead of it.

    Rows, snapshots and records stay as they are, but for their times. What was published at a false time counts as
    published now.

    Args:
        catalog: Where the view is.
        view: The view.
        dry_run: Only say what would be done.
        effects: Clock, sleep and jitter.

    Raises:
        UnsupportedError: The storage table is in a REST catalog, whose server alone can change its times.
        CommitConflictError, CommitStateUnknownError: See :func:`airflow_mv.publish.amend.commit_change`.
    """
    loaded = catalog.load(view)
    found, _ = _look(catalog, loaded)
    if dry_run or not found.needed:
        return found
    storage = catalog.load_storage(loaded)
    if storage.name is None:
        done = commit_change(catalog, loaded.identifier, _change(found.store_ms), effects=effects)
    else:
        done = _repair_registered(catalog, loaded, effects or Effects())
    log.info("The times of %s were up to %.0f s ahead; they are corrected", loaded.identifier, found.ahead_seconds)
    return ClockRepair(
        found.view, found.storage_table_location, found.latest_ms, found.store_ms, needed=True, done=done
    )


def _look(catalog: MaterializedViewCatalog, view: LoadedView) -> tuple[ClockRepair, dict[str, Any]]:
    storage = catalog.load_storage(view)
    document = catalog.stored_table(view, storage)
    store_ms = catalog.files.now_ms(_folder(view, storage))
    needed = is_false(document, store_ms)
    return (
        ClockRepair(view.identifier, storage.location, latest_ms(document), store_ms, needed=needed, done=False),
        document,
    )


def _folder(view: LoadedView, storage: LoadedStorage) -> str:
    return view.metadata.location if storage.name is None else storage.table.location


def _change(store_ms: int) -> StorageChange:
    def pointed(_: LoadedView, __: LoadedStorage, document: dict[str, Any], ___: int) -> ChangedMetadata | None:
        return ChangedMetadata(corrected(document, store_ms)) if is_false(document, store_ms) else None

    def registered(view: LoadedView, _: LoadedStorage) -> TableChange | None:
        raise CommitConflictError(f"view {view.identifier} got another layout meanwhile; run it again")

    return StorageChange(pointed, registered)


def _repair_registered(catalog: MaterializedViewCatalog, view: LoadedView, effects: Effects) -> bool:
    """Write the table's metadata anew and have its row name that file: no commit can change these times."""
    if catalog.properties.get("type") == "rest" or not catalog.locates_at_once:
        raise UnsupportedError(
            f"view {view.identifier}: its storage table {view.storage_table} has times in the future, and only the "
            f"server of catalog {catalog.name!r} can change them. Wait until that time has passed, or drop the view "
            "and create it again"
        )
    for number in range(1, _TRIES + 1):
        loaded = catalog.load(view.identifier)
        storage = catalog.load_storage(loaded)
        found, document = _look(catalog, loaded)
        if not found.needed or storage.name is None:
            return True
        location = write_next(
            catalog,
            storage.table.location,
            corrected(document, found.store_ms),
            previous_location=storage.location,
            updates={},
            tags={},
            now_ms=min(effects.now_ms(), found.store_ms),
        )
        try:
            if catalog.swap_table(storage.name, storage.location, location):
                return True
            discard(catalog.files, location)
        except CommitStateUnknownError as error:
            log.warning("Try %d of %d to correct the times of %s: %s", number, _TRIES, view.identifier, error)
            if number == _TRIES:
                raise
        effects.wait(number)
    raise CommitConflictError(f"view {view.identifier} kept changing while its times were corrected; run it again")


def is_about_clocks(reason: str) -> bool:
    """Whether a job's error is that of Java Iceberg about times that go back."""
    return _JAVA.search(reason) is not None


def clock_error(catalog: MaterializedViewCatalog, view: Identifier, reason: str) -> MaterializedViewError:
    """Return the error for a job that failed because of a clock: the view's stored times, or the driver's clock.

    Args:
        catalog: Where the view is.
        view: The view.
        reason: What the job said.
    """
    if not is_about_clocks(reason):
        return ClockError(reason if str(view) in reason else f"view {view}: {reason}")
    found, _ = _look(catalog, catalog.load(view))
    if found.needed:
        return FutureTimeError(
            f"view {view}: its storage table holds times up to {found.ahead_seconds:.0f} s ahead of the store's clock "
            f"(the latest is {_text(found.latest_ms)}): a host with a wrong clock has changed it. Nothing was "
            f"published. Correct them with `airflow-mv repair {view}`"
        )
    return ClockError(
        f"view {view}: Spark found times that go back ({reason}): the clock of its driver is behind that of the host "
        "that has changed the storage table, or one of the query's tables, last. Nothing was published. Set it right, "
        "then run the refresh again"
    )


def _text(milliseconds: int) -> str:
    return from_ms(milliseconds).isoformat(timespec="seconds")
