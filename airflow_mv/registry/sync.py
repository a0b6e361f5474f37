# SPDX-License-Identifier: Apache-2.0
"""Bring the registry up to date: from the spool, and from the views themselves."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from airflow_mv.catalog import LoadedView, MaterializedViewCatalog
from airflow_mv.errors import CatalogUnavailableError, CommitConflictError, MaterializedViewError
from airflow_mv.freshness.observe import Observation, observe_each
from airflow_mv.registry.filters import both, equal, one_of
from airflow_mv.registry.model import MEASURED, REFRESHES, RefreshRow, ViewRow
from airflow_mv.registry.registry import Registry, require_registry
from airflow_mv.registry.rows import recorded_rows, unreadable_row, view_row

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Synced:
    """What a sync or a rebuild has written; :meth:`to_dict` is the document of the command line.

    Args:
        registry: The namespace or folder of the registry.
        refreshes: Refreshes that are new in the table, or were completed.
        views: Views that were looked at.
        removed_views: Views that are no longer in the catalog, and were removed from the table.
        faults: What could not be read, and why: files of the spool by location, views by name.
    """

    registry: str
    refreshes: int = 0
    views: int = 0
    removed_views: int = 0
    faults: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Looked:
    """All views of a catalog, as they are now."""

    views: list[ViewRow]
    refreshes: list[RefreshRow]
    faults: dict[str, str]


def sync(catalog: MaterializedViewCatalog) -> Synced:
    """Bring the refreshes in the spool into the registry by one commit, and look at all views.

    Args:
        catalog: The catalog whose views are registered.

    Raises:
        ConfigurationError: The catalog has no registry.
        CommitConflictError: Others changed the table each time. Nothing is lost; it is safe to try again.
    """
    registry = require_registry(catalog)
    written, faults = bring_in(registry)
    looked = _look(catalog)
    removed = _register(registry, looked.views)
    return Synced(registry.place, written, len(looked.views), removed, {**faults, **looked.faults})


def bring_in(registry: Registry) -> tuple[int, dict[str, str]]:
    """Bring the refreshes in the spool into the table by one commit, then delete their files.

    Returns:
        How many refreshes were written, and why files of the spool could not be read, by location.

    Raises:
        CommitConflictError: Others changed the table each time.
    """
    found = registry.spooled()
    # Of two tries of one refresh, the one that ran it is the better witness.
    rows = sorted(found.rows.values(), key=lambda row: row.outcome == "refreshed")
    written = registry.refreshes.overwrite(rows)
    registry.forget(found.rows)
    for location, why in found.faults.items():
        log.warning("The registry leaves %s as it is: %s", location, why)
    return written, found.faults


def rebuild(catalog: MaterializedViewCatalog, *, purge: bool = False) -> Synced:
    """Make the registry again from the views and their refresh records.

    What the views do not record stays: refreshes whose records were dropped, and what only the process that ran a
    refresh knew, such as its duration.

    Args:
        catalog: The catalog whose views are registered.
        purge: Delete all rows first, so that only what the views record remains.

    Raises:
        ConfigurationError: The catalog has no registry.
        CommitConflictError: Others changed a table each time. It is safe to try again.
    """
    registry = require_registry(catalog)
    if purge:
        registry.refreshes.delete(equal(catalog=catalog.name))
        registry.views.delete(equal(catalog=catalog.name))
    _, faults = (0, {}) if purge else bring_in(registry)
    looked = _look(catalog)
    rows = _completed(registry, looked.refreshes)
    written = registry.refreshes.overwrite(rows)
    removed = _register(registry, looked.views)
    return Synced(registry.place, written, len(looked.views), removed, {**faults, **looked.faults})


def _look(catalog: MaterializedViewCatalog) -> _Looked:
    """Observe all materialized views of a catalog.

    Raises:
        CatalogUnavailableError: The catalog does not answer.
    """
    found, now = _Looked([], [], {}), datetime.now(UTC)

    def rows(seen: Observation) -> tuple[ViewRow, list[RefreshRow]]:
        return view_row(seen, now), recorded_rows(seen.view, seen.storage.state)

    def plain(_: LoadedView) -> None:
        return None

    for result in observe_each(catalog, catalog.list(), rows, plain=plain):
        if isinstance(result.error, CatalogUnavailableError):
            raise result.error
        if result.error is not None:
            found.faults[str(result.item)] = str(result.error)
            found.views.append(unreadable_row(result.item, result.error, now))
        elif result.value is not None:
            found.views.append(result.value[0])
            found.refreshes.extend(result.value[1])
    return found


def _register(registry: Registry, views: Iterable[ViewRow]) -> int:
    """Write the rows of all views, and remove those of views that do not exist any more. Return how many these were."""
    rows = list(views)
    registry.views.overwrite(rows)
    known = registry.views.read(equal(catalog=registry.catalog.name), ["view"])["view"].to_pylist()
    gone = sorted(set(known) - {row.view for row in rows})
    return registry.views.delete(both(equal(catalog=registry.catalog.name), one_of("view", gone))) if gone else 0


def _completed(registry: Registry, rows: list[RefreshRow]) -> list[RefreshRow]:
    """Return the rows that differ from those in the registry, completed by what only these have."""
    where = equal(catalog=registry.catalog.name)
    known = {_key(row): row for row in registry.refreshes.rows(where)} if rows else {}
    found = []
    for row in rows:
        before = known.get(_key(row))
        measured = {} if before is None else {name: getattr(before, name) for name in MEASURED}
        new = row.model_copy(update=measured)
        if new != before:
            found.append(new)
    return found


def _key(row: RefreshRow) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in REFRESHES.keys)


def leave(registry: Registry, row: RefreshRow) -> None:
    """Leave the row of a refresh, and bring in what has been left if there is enough of it.

    Args:
        registry: The registry.
        row: The row.

    Raises:
        MaterializedViewError: The row could not be left.
    """
    registry.leave(row)
    after = registry.settings.sync_after
    if after and registry.count_spooled() >= after:
        try:
            bring_in(registry)
        except CommitConflictError as error:
            log.info("Another process changes the registry; the refreshes stay in the spool: %s", error)
        except MaterializedViewError as error:
            log.warning("The refreshes stay in the registry's spool: %s", error)
