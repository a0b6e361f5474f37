# SPDX-License-Identifier: Apache-2.0
"""A consistent snapshot set for several refreshes: pins of base tables, as a small JSON document.

A materialized view that the same run refreshes is not pinned: the run reads the rows of its refresh.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from pydantic import ConfigDict, Field

from airflow_mv.common.each import for_each, raise_if_retryable
from airflow_mv.common.status import ReadCache
from airflow_mv.core.catalog import Located, MaterializedViewCatalog
from airflow_mv.core.catalog.layouts import view_with_storage_at
from airflow_mv.core.freshness.observe import load_dependencies, observe, observe_tables, query_of
from airflow_mv.core.freshness.state import ObservedTable, SnapshotSet
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.interval_parts import parts_of
from airflow_mv.core.spec.stored import StoredModel
from airflow_mv.core.spec.table_metadata import TableMetadata
from airflow_mv.core.sql.order import Reads, in_order, levels
from airflow_mv.core.sql.query import parse_query
from airflow_mv.errors import (
    CatalogNotFoundError,
    InvalidMetadataError,
    MetadataFileNotFoundError,
    NotFoundError,
    NotMaterializedError,
    PinError,
    StoreUnavailableError,
)

log = logging.getLogger(__name__)

_AGAIN = "Pin again: clear the task that pins, with those after it"


class _PinDocument(StoredModel):
    """As :class:`StoredModel`, with keys in the style of the other documents of tasks and command line."""

    model_config = ConfigDict(alias_generator=None, extra="ignore")


class Pin(_PinDocument):
    """One base table at one snapshot.

    Args:
        snapshot_id: The snapshot id, as text (it exceeds JavaScript's numbers); ``None`` for a table without snapshots.
        metadata_location: The metadata file in which it was current, for people; ``None`` if chosen by time.
        storage: The storage table's metadata file or name, for a materialized view that the run does not refresh.
    """

    snapshot_id: str | None = None
    metadata_location: str | None = None
    table_uuid: str | None = None
    storage: str | None = None

    @property
    def head(self) -> int | None:
        """The snapshot's id as a number.

        Raises:
            InvalidMetadataError: It is not a number.
        """
        text = self.snapshot_id
        try:
            return None if text is None else int(text)
        except ValueError:
            raise InvalidMetadataError(f"pins: field 'snapshot_id' is {str(text)[:40]!r}, not a number") from None


class RunPins(_PinDocument):
    """The pins of one run: :meth:`document` is the JSON of XCom and command line, :meth:`read` takes it back.

    Args:
        pinned_at: When the base tables were read, ISO 8601.
        as_of: The time whose state was pinned, if it was not the present.
        views: The views that the run refreshes, in order, each with those of them that it reads.
        base_tables: All other tables that they read.
        faults: Views and tables that could not be pinned, and why. Only refreshes that need them fail.
    """

    pinned_at: str
    as_of: str | None = None
    views: dict[str, list[str]]
    base_tables: dict[str, Pin]
    faults: dict[str, str] = Field(default_factory=dict)

    @property
    def reads(self) -> dict[Identifier, tuple[Identifier, ...]]:
        """The views in order, each with the views of the run that it reads."""
        return {
            Identifier.parse(view): tuple(Identifier.parse(name) for name in names)
            for view, names in self.views.items()
        }

    def ready(self, level: int, refreshed: Collection[str]) -> tuple[list[str], dict[str, list[str]]]:
        """Return which views of a level can be refreshed now.

        Args:
            level: From 0.
            refreshed: The views whose refresh by this run has succeeded.

        Returns:
            The views, and the blocked views with the views that they wait for.
        """
        views = self.levels[level] if level < len(self.levels) else []
        missing = {view: [name for name in self.views[view] if name not in refreshed] for view in views}
        return [view for view in views if not missing[view]], {view: names for view, names in missing.items() if names}

    @property
    def levels(self) -> list[list[str]]:
        """The views by level. A view reads views of earlier levels only."""
        return [[str(view) for view in level] for level in levels(self.reads)]


def pin_base_tables(
    catalog: MaterializedViewCatalog,
    views: Iterable[str | Identifier],
    *,
    as_of: datetime | None = None,
    definitions: Mapping[Identifier, str] | None = None,
    order: Reads | None = None,
) -> RunPins:
    """Pin all base tables of some views, reading each once.

    Views and tables that cannot be read are listed in ``faults`` and do not affect the others.

    Args:
        catalog: Where the views are.
        views: The views that the run refreshes.
        as_of: Pin the base tables as of this time, instead of their current snapshots.
        definitions: Queries of views that need not exist yet, or not with this query.
        order: The views that the run refreshes before each view. A view that reads another view of the run which is
            not refreshed before it gets a fault.

    Raises:
        InvalidQueryError: The views depend on each other in a cycle.
        CatalogUnavailableError: The catalog does not respond, or no base table could be read and a store does not.
    """
    wanted = list(dict.fromkeys(catalog.identify(view) for view in views))
    faults: dict[str, str] = {}
    sources: dict[Identifier, tuple[Identifier, ...]] = {}
    for result in for_each(wanted, lambda view: _sources(catalog, view, (definitions or {}).get(view))):
        raise_if_retryable(result.error)
        if result.error is not None:
            faults[str(result.item)] = str(result.error)
        sources[result.item] = result.value or ()
    reads = {view: tuple(table for table in sources[view] if table in sources and table != view) for view in wanted}
    faults |= _misplaced(reads, order)
    tables = dict.fromkeys(table for view in wanted for table in sources[view] if table not in sources)
    pinned_at = datetime.now(UTC)
    away: list[StoreUnavailableError] = []
    pins = _pinned(catalog, [*tables], as_of, faults, away)
    if away and not pins:
        raise away[0]
    return RunPins(
        pinned_at=pinned_at.isoformat(timespec="milliseconds"),
        as_of=as_of.isoformat() if as_of else None,
        views={str(view): [str(name) for name in reads[view]] for view in in_order(reads)},
        base_tables=pins,
        faults=faults,
    )


def restore(catalog: MaterializedViewCatalog, view: str | Identifier, run: RunPins) -> SnapshotSet:
    """Return the pins of a run for one of its views, in the form that a refresh takes.

    Each snapshot is looked up, so that an expired one is reported before Spark starts.

    Raises:
        PinError: A snapshot has expired, a table is another one, or the view reads what was not pinned.
    """
    loaded = catalog.load(view)
    name = loaded.identifier
    if (fault := run.faults.get(str(name))) is not None:
        raise PinError(f"view {name} was left out when the run pinned its base tables: {fault}. {_AGAIN}")
    pins = SnapshotSet(refreshed=set(run.reads))
    tables = load_dependencies(catalog, query_of(loaded, pins), reads=pins).tables
    given = {table: _given(run, name, table) for table in tables if str(table) not in run.views}
    places = _places(catalog, given)
    for table, pin in given.items():
        try:
            pins.tables[table] = _restored(catalog, table, pin, places.get(table))
        except (NotFoundError, NotMaterializedError) as error:
            raise PinError(f"view {name}: {error}. {_AGAIN}") from None
    for table in tables:
        if str(table) in run.views:
            _tell_if_ahead(catalog, name, table, run)
    return pins


def _sources(catalog: MaterializedViewCatalog, view: Identifier, definition: str | None) -> tuple[Identifier, ...]:
    """Return the base tables of a view's query."""
    if definition is None:
        loaded = catalog.load(view)
        _ = loaded.materialized  # a plain view is refused
        return load_dependencies(catalog, query_of(loaded)).tables
    query = parse_query(definition, view=str(view), default_catalog=view.catalog, default_namespace=view.namespace)
    return load_dependencies(catalog, query).tables


def _misplaced(reads: Reads, order: Reads | None) -> dict[str, str]:
    """Return a fault for each view that reads another view of the run which is not refreshed before it."""
    faults = {}
    for view, names in reads.items() if order is not None else ():
        before = all_read(view, order) if order is not None and view in order else set()
        missing = ", ".join(str(name) for name in names if name not in before)
        if missing:
            faults[str(view)] = (
                f"it reads {missing}, which the DAG refreshes without an order to it: name it in after= of this view"
            )
    return faults


def _pinned(
    catalog: MaterializedViewCatalog,
    tables: list[Identifier],
    as_of: datetime | None,
    faults: dict[str, str],
    away: list[StoreUnavailableError],
) -> dict[str, Pin]:
    """Load tables together. If that fails, load them one by one, so that a broken table does not affect the others.

    Args:
        catalog: Where they are.
        tables: Their names.
        as_of: Their state at this time.
        faults: Receives why a table is not pinned.
        away: Receives the errors of stores.
    """
    (result,) = for_each([tuple(tables)], lambda names: observe_tables(catalog, names, None, as_of=as_of))
    raise_if_retryable(result.error)
    if result.value is None:
        if len(tables) == 1:
            faults[str(tables[0])] = str(result.error)
            away += [result.error] if isinstance(result.error, StoreUnavailableError) else []
            return {}
        return {name: pin for table in tables for name, pin in _pinned(catalog, [table], as_of, faults, away).items()}
    observed, storages = result.value
    faults |= {table.identifier: table.error for table in observed if table.error is not None}
    return {
        table.identifier: Pin(
            snapshot_id=None if table.head is None else str(table.head),
            metadata_location=table.metadata_location,
            table_uuid=table.table_uuid,
            storage=str(storages[name]) if name in storages and table.storage is None else None,
        )
        for name, table in zip(tables, observed, strict=True)
        if table.error is None
    }


def _given(run: RunPins, view: Identifier, table: Identifier) -> Pin:
    pin = run.base_tables.get(str(table))
    if pin is None:
        why = run.faults.get(str(table), "the view has another query now, or does not belong to the run")
        raise PinError(f"view {view} reads {table}, which the run has not pinned: {why}. {_AGAIN}")
    return pin


def _places(catalog: MaterializedViewCatalog, tables: Iterable[Identifier]) -> dict[Identifier, Located]:
    try:
        return catalog.locate(tuple(tables))
    except CatalogNotFoundError as error:
        raise PinError(str(error)) from None


def _restored(catalog: MaterializedViewCatalog, name: Identifier, pin: Pin, place: Located | None) -> ObservedTable:
    if place is None:
        raise PinError(f"{name}, which the run has pinned, was dropped")
    if pin.storage is not None:
        return _restored_view(catalog.home_of(name), name, pin, place, pin.storage)
    # The present metadata: an expired snapshot cannot be read, even if the pinned metadata file contains it.
    table = catalog.table_metadata(name, place)
    if pin.table_uuid is not None and table.table_uuid != pin.table_uuid:
        raise PinError(f"{name} was dropped and created again after the run pinned it")
    if pin.head is not None and table.find(pin.head) is None:
        raise PinError(
            f"the run has pinned {name} at snapshot {pin.head}, which has expired since; keep snapshots for longer "
            "than a run and its retries take"
        )
    return replace(_observed(name, pin, place.metadata_location, table), storage=place.place)


def _restored_view(
    home: MaterializedViewCatalog, name: Identifier, pin: Pin, place: Located, stored: str
) -> ObservedTable:
    """Pin a materialized view outside of the run: its rows at that time, even if it was refreshed since."""
    loaded = home.load(name, place)
    try:
        storage = home.load_storage(view_with_storage_at(loaded, stored))
    except MetadataFileNotFoundError:
        raise PinError(f"the rows of {name} that the run has pinned have expired") from None
    if pin.head is not None and storage.table.find(pin.head) is None:
        raise PinError(f"the rows of {name} that the run has pinned have expired")
    return replace(_observed(name, pin, storage.location, storage.rows_table), storage=storage.place, view=name)


def _observed(name: Identifier, pin: Pin, location: str, table: TableMetadata) -> ObservedTable:
    # A recorded location stands for the snapshot that is current in it, and for no other one.
    return ObservedTable.at(name, table, pin.head, location if pin.head == table.head else None)


def _tell_if_ahead(catalog: MaterializedViewCatalog, view: Identifier, below: Identifier, run: RunPins) -> None:
    """Log a warning if another refresh brought a view of the run to later snapshots than the pinned ones.

    Where the run refreshes intervals, the others have their own snapshots: there no rows at the pinned ones are left.
    """
    home = catalog.other(below.catalog)
    record = home.load_storage(home.load(below)).record
    parts = [part for part in parts_of(record) if part.computed] if record else []
    last = max(reversed(parts), key=lambda part: part.refreshed_at_ms or 0, default=None)
    for name, snapshot in last.origin if last else ():
        pin = run.base_tables.get(name)
        if pin is not None and pin.head is not None and all((name, pin.head) not in part.origin for part in parts):
            log.warning(
                "%s reads %s, which another refresh computed from %s at snapshot %s, while this run has pinned %s. The "
                "next run makes them consistent",
                view,
                below,
                name,
                snapshot,
                pin.head,
            )


# ------------------------------------------------------- a view with all materialized views that it reads


def pinned_chain(
    catalog: MaterializedViewCatalog, views: Sequence[Identifier], *, as_of: datetime | None = None
) -> tuple[tuple[Identifier, ...], SnapshotSet]:
    """Find the views that views read, and pin the tables of all of them. Views of other catalogs are read as they are.

    Args:
        catalog: Where the views are.
        views: Their names.
        as_of: Pin the tables as they were then.

    Returns:
        All of these views, each after those that it reads, and the snapshots of all other tables that they read.

    Raises:
        InvalidQueryError: The views read each other in a cycle.
        SnapshotNotFoundError: A table has no snapshot as of the time.
    """
    seen, waiting = ReadCache(), list(reversed(views))
    reads: dict[Identifier, tuple[Identifier, ...]] = {}
    others: list[Identifier] = []
    while waiting:
        view = waiting.pop()
        if view in reads:
            continue
        inputs = [(table, _refreshable(catalog, table, view)) for table in observe(catalog, view, reads=seen).tables]
        reads[view] = tuple(dict.fromkeys(below for _, below in inputs if below is not None))
        others += [table.name for table, below in inputs if below is None]
        waiting += reads[view]
    pins = SnapshotSet()
    observe_tables(catalog, dict.fromkeys(others), None, as_of=as_of, reads=pins)
    return tuple(in_order(reads)), pins


def _refreshable(catalog: MaterializedViewCatalog, table: ObservedTable, reader: Identifier) -> Identifier | None:
    """Return the view whose rows a table has; ``None`` for an ordinary table, and for a view of another catalog."""
    view = table.view
    if view is None or view == reader:
        return None
    if view.catalog != catalog.name:
        log.info("%s reads %s, which is in another catalog and is not refreshed", reader, view)
        return None
    with suppress(NotFoundError, NotMaterializedError):
        storage = catalog.load_storage(catalog.load(view))
        return view if table.identifier in (str(view), str(storage.name)) else None
    return None


def all_read(view: Identifier, reads: Reads) -> set[Identifier]:
    """Return the views of the chain that a view reads, directly or through others.

    Args:
        reads: The views, each with the views of the chain that it reads; without cycles.
    """
    found: set[Identifier] = set()
    waiting = [*reads[view]]
    while waiting:
        item = waiting.pop()
        if item not in found:
            found.add(item)
            waiting += reads[item]
    return found
