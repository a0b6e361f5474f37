# SPDX-License-Identifier: Apache-2.0
"""Bring a catalog's registry up to date, or make it again: from the staged rows, and from the views themselves."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from airflow_mv.common.each import left_out, while_answered
from airflow_mv.common.status import lag, observe_each
from airflow_mv.core.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog, stored_layout
from airflow_mv.core.catalog.layouts import all_refreshes
from airflow_mv.core.freshness.observe import Observation
from airflow_mv.core.freshness.state import State
from airflow_mv.core.spec.choices import TIME_TRAVEL_PROPERTY
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.properties import MAX_STALENESS_PROPERTY, max_staleness_of
from airflow_mv.core.spec.reasons import Code, Reason
from airflow_mv.core.spec.times import from_ms
from airflow_mv.errors import InvalidMetadataError, MaterializedViewError, StoreUnavailableError
from airflow_mv.extras.registry.base_tables import register_tables
from airflow_mv.extras.registry.expiry import expire_later
from airflow_mv.extras.registry.filters import both, equal, one_of
from airflow_mv.extras.registry.model import MEASURED, RefreshRow, ViewRow
from airflow_mv.extras.registry.registry import Registry, commit_staged, compact_finished_months, require_registry
from airflow_mv.extras.registry.rows import MAX_LENGTH, refresh_row
from airflow_mv.foundation.redaction import shortened

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The result of a sync or a rebuild; :meth:`to_dict` is the document of the command line.

    Args:
        registry: The namespace or folder of the registry.
        refreshes: Refreshes that are new in the table, or were completed.
        views: Views that were checked.
        removed_views: Views that are no longer in the catalog, and were removed from the table.
        tables: Base tables whose rows changed.
        faults: What could not be read, and why: staged files by location, views by name, and tables that may be
            views.
        away: The errors of stores that did not respond.
    """

    registry: str
    refreshes: int = 0
    views: int = 0
    removed_views: int = 0
    tables: int = 0
    faults: dict[str, str] = field(default_factory=dict)
    away: tuple[MaterializedViewError, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document."""
        document = asdict(replace(self, away=()))
        del document["away"]
        return document


@dataclass(frozen=True, slots=True)
class _CatalogRows:
    """All views of a catalog, as they are now."""

    views: list[ViewRow]
    refreshes: list[RefreshRow]
    faults: dict[str, str]
    away: list[MaterializedViewError]
    #: The current snapshot of each base table.
    tables: dict[Identifier, int | None] = field(default_factory=dict)


def sync(catalog: MaterializedViewCatalog) -> SyncResult:
    """Commit the staged refreshes to the registry, and look at all views.

    Args:
        catalog: The catalog whose views are registered.

    Raises:
        ConfigurationError: The catalog has no registry.
        CommitConflictError: Others changed the table each time. Nothing is lost; it is safe to try again.
    """
    registry = require_registry(catalog)
    written, faults = commit_staged(registry)
    compact_finished_months(registry, datetime.now(UTC))
    looked = _look(catalog)
    return _registered(registry, looked, written, faults)


def rebuild(catalog: MaterializedViewCatalog, *, purge: bool = False) -> SyncResult:
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
        registry.purge()
    _, faults = (0, {}) if purge else commit_staged(registry)
    looked = _look(catalog)
    rows = _completed(registry, looked.refreshes)
    written = registry.refreshes.upsert(rows)
    return _registered(registry, looked, written, faults)


def _registered(registry: Registry, looked: _CatalogRows, written: int, faults: dict[str, str]) -> SyncResult:
    """Write the rows of views and base tables; return the result.

    Args:
        written: How many refreshes were written.
        faults: The staged files that could not be read.
    """
    removed = _register(registry, looked)
    registry.views.compact()
    tables = register_tables(registry, looked.tables, looked.faults)
    expire_later(registry.components.values())  # after the last change: an expiry is a commit too
    return SyncResult(
        registry.place, written, len(looked.views), removed, tables, {**faults, **looked.faults}, tuple(looked.away)
    )


def _look(catalog: MaterializedViewCatalog) -> _CatalogRows:
    """Observe all materialized views of a catalog.

    Raises:
        CatalogUnavailableError: The catalog does not respond.
    """
    found, now = _CatalogRows([], [], {}, []), datetime.now(UTC)

    def rows(seen: Observation) -> tuple[ViewRow, list[RefreshRow]]:
        found.tables.update({table.name: table.head for table in seen.tables if table.error is None})
        return _view_row(seen, now), _recorded_rows(seen.view, seen.storage)

    def plain(_: LoadedView) -> None:
        return None

    for result in while_answered(catalog, observe_each(catalog, catalog.list(), rows, plain=plain)):
        if result.error is not None:
            found.faults[str(result.item)] = str(result.error)
            found.views.append(_unreadable_row(result.item, result.error, now))
            found.away.extend([result.error] if _is_away(result.error) else [])
        elif result.value is not None:
            found.views.append(result.value[0])
            found.refreshes.extend(result.value[1])
    found.away.extend(left_out(catalog))
    return found


def _register(registry: Registry, looked: _CatalogRows) -> int:
    """Write the rows of all views, and remove those of views that no longer exist. Return how many these were.

    The row of a table that could not be read stays, and the table is a fault.
    """
    registry.views.upsert(looked.views)
    known = registry.views.read(equal(catalog=registry.catalog.name), ["view"])["view"].to_pylist()
    unread = {str(name): str(error) for name, error in registry.catalog.table_views.unread.items()}
    away = {str(name) for name, error in registry.catalog.table_views.unread.items() if _is_away(error)}
    looked.faults.update({view: why for view, why in unread.items() if view in known or view in away})
    gone = sorted(set(known) - {row.view for row in looked.views} - unread.keys())
    return registry.views.delete(both(equal(catalog=registry.catalog.name), one_of("view", gone))) if gone else 0


def _is_away(error: MaterializedViewError) -> bool:
    return isinstance(error, StoreUnavailableError)


def _completed(registry: Registry, rows: list[RefreshRow]) -> list[RefreshRow]:
    """Return the rows that differ from those in the registry, completed by what only these have."""
    where = equal(catalog=registry.catalog.name)
    known = {row.refresh_id: row for row in registry.refreshes.rows(where)} if rows else {}
    found = []
    for row in rows:
        before = known.get(row.refresh_id)
        new = row.model_copy(update={} if before is None else {name: getattr(before, name) for name in MEASURED})
        if new != before:
            found.append(new)
    return found


def _recorded_rows(view: LoadedView, storage: LoadedStorage) -> list[RefreshRow]:
    """Return the row of each refresh that a view's storage table records, or has in its log."""
    try:
        records = all_refreshes(view, storage)
    except InvalidMetadataError as error:
        log.warning(
            "Could not read the log of past refreshes of %s; its current records go to the registry: %s",
            view.identifier,
            error,
        )
        records = storage.state.refreshes if storage.state else ()
    return [refresh_row(view.identifier, view.metadata.view_uuid, record) for record in records]


def _view_row(seen: Observation, now: datetime) -> ViewRow:
    """Return the row of a view.

    Args:
        now: When it was made.
    """
    view, record = seen.view, seen.record
    properties = view.metadata.properties
    try:
        slo = max_staleness_of(properties.get(MAX_STALENESS_PROPERTY), view=str(view.identifier))
    except MaterializedViewError:
        slo = None
    return ViewRow(
        catalog=view.identifier.catalog,
        namespace=".".join(view.identifier.namespace),
        view=str(view.identifier),
        checked_at=now,
        view_uuid=view.metadata.view_uuid,
        version_id=view.metadata.current_version_id,
        query=seen.query.text,
        base_tables=tuple(sorted(str(table.identifier) for table in seen.tables)),
        layout=stored_layout(view).layout,
        strategy=view.materialized.refresh_strategy,
        allow_stale_data=view.materialized.allow_stale_data,
        time_travel=properties.get(TIME_TRAVEL_PROPERTY, "false").lower() == "true",
        owner=properties.get("owner"),
        max_staleness_seconds=None if slo is None else slo.total_seconds(),
        state=str(seen.freshness.state),
        reasons=tuple(str(reason.code) for reason in seen.freshness.reasons),
        explanation=_sentences(seen.freshness.reasons),
        lag_seconds=lag(seen).seconds(now),
        refresh_id=record.refresh_id if record else None,
        refreshed_at=from_ms(record.refreshed_at_ms) if record and record.refreshed_at_ms is not None else None,
    )


def _unreadable_row(view: Identifier, error: MaterializedViewError, now: datetime) -> ViewRow:
    """Return the row of a view that cannot be read."""
    return ViewRow(
        catalog=view.catalog,
        namespace=".".join(view.namespace),
        view=str(view),
        checked_at=now,
        state=str(State.UNKNOWN),
        reasons=(str(Code.VIEW_UNREADABLE),),
        explanation=shortened(str(error), MAX_LENGTH),
    )


def _sentences(reasons: Sequence[Reason]) -> str | None:
    return "; ".join(shortened(reason.message, MAX_LENGTH) for reason in reasons) or None
