# SPDX-License-Identifier: Apache-2.0
"""The inputs of a refresh. :func:`load_inputs` reads all of them before a mode is chosen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import Literal, Protocol

from airflow_mv.checks import Check
from airflow_mv.core.catalog import LoadedView, Located, MaterializedViewCatalog
from airflow_mv.core.catalog.layouts import restored
from airflow_mv.core.freshness.observe import Observation, load_dependencies, observe, observe_tables, require_readable
from airflow_mv.core.freshness.state import ObservedTable, SnapshotSet, State
from airflow_mv.core.refresh.candidates import Statistics
from airflow_mv.core.refresh.plan import Estimate, full_cost
from airflow_mv.core.refresh.statements import (
    PinnedQuery,
    partition_transforms,
    pin,
    pinned_tables,
    requested_partitioning,
)
from airflow_mv.core.spec.identifiers import Identifier, StoragePlace
from airflow_mv.core.spec.interval import Span
from airflow_mv.core.spec.interval_parts import parts_in, parts_of
from airflow_mv.core.spec.materialized_view import CATALOG, CATALOG_PREFIX, METADATA_LOCATION, NO_SNAPSHOT, BaseTable
from airflow_mv.core.spec.reasons import Reason
from airflow_mv.core.spec.table_metadata import TableMetadata, known_sum, same_columns
from airflow_mv.core.sql.query import Dependencies, ParsedQuery, PinnedTable, filtered_floats, parse_query, selected
from airflow_mv.core.sql.types import (
    ColumnLists,
    Schemas,
    columns_of,
    expand_stars,
    present_columns,
    rebound_columns,
    refuse_metadata_columns,
)
from airflow_mv.foundation.redaction import is_secret

#: What happens if an incremental view would have to be recomputed in full.
FallbackPolicy = Literal["full", "fail", "skip"]


class Bound(Protocol):
    """A bound of what an incremental refresh reads. As text it is the names of the options that set it."""

    def up_to(self, observation: Observation) -> tuple[Observation, Reason] | None:
        """Return the observation of a stale view with a part of its pending changes, and the reason to report.

        ``None``: the refresh is not bounded.
        """


@dataclass(frozen=True, slots=True)
class RefreshOptions:
    """How to refresh.

    Args:
        as_of: Read the base tables as they were then (an aware time), instead of as they are now.
        full: Recompute all rows even if nothing has changed.
        on_fallback: What to do if an incremental view would have to be recomputed in full. The default is the view's
            property ``airflow-mv.on-fallback``, else ``full``.
        max_full_bytes: The most bytes of base table files that a recompute may read, whatever the view's strategy; the
            first refresh may read any number. The default is the view's property ``airflow-mv.max-full-bytes``, else
            no limit.
        interval: Refresh only the rows of this interval.
        bound: Bounds the new base commits that an incremental refresh reads; the rest is for the next one. See
            :class:`airflow_mv.extras.catch_up.CatchUp`.
        statistics: Gives the statistics of base tables' files; see
            :class:`airflow_mv.common.file_statistics.FileStatistics`. By default none are known.
        summary: Gives more fields for the summary of the new snapshot, such as
            :func:`airflow_mv.common.refresh_state.summary_fields`. Only engines that load the table by name read them.
        checks: Checks of the new rows before they are published, in addition to the view's own checks.
        definition: A digest of the definition, if it is not the view's yet: rows that were staged for another one are
            never reused, although its version would have the same number.
    """

    as_of: datetime | None = None
    full: bool = False
    on_fallback: FallbackPolicy | None = None
    max_full_bytes: int | None = None
    interval: Span | None = None
    checks: tuple[Check, ...] = ()
    bound: Bound | None = None
    summary: Callable[[RefreshInputs], Mapping[str, str]] = lambda _: {}
    statistics: Callable[[MaterializedViewCatalog], Statistics] = lambda _: Statistics()
    definition: str = ""


@dataclass(frozen=True)
class RefreshInputs:
    """All input from which a refresh is decided and compiled. Only statistics of data files are read later, on demand.

    Args:
        observation: The view, its storage table and its base tables; the query gives the view's own columns.
        options: How to refresh.
        tables: The metadata of each base table; empty if the view is fresh and nothing has to be computed.
        started_ms: When the inputs were read.
        statistics: Statistics of data files. Its methods read manifests; nothing is read before they are called.
        same_schema: Whether the storage table has the view's columns, by name and type, and the requested partitioning.
        pinned: Whether the run pinned the base tables' snapshots earlier.
        current: The present metadata of base tables whose given metadata lacks a recorded snapshot.
        newest: The present metadata of base tables that changed after the run pinned them.
        catalogs: What the base tables' catalogs are, by name, as properties of a record. The view's is not among them.
    """

    observation: Observation
    options: RefreshOptions
    tables: Mapping[Identifier, TableMetadata]
    started_ms: int
    statistics: Statistics
    same_schema: bool
    pinned: bool = False
    current: Mapping[Identifier, TableMetadata] = field(default_factory=dict)
    newest: Mapping[Identifier, TableMetadata] = field(default_factory=dict)
    catalogs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @cached_property
    def renamed_columns(self) -> dict[str, tuple[str, ...]]:
        """The columns that were renamed since the snapshot to read, by base table; see :func:`renamed_columns`."""
        return renamed_columns(self.observation.tables, self.tables, self.newest)

    @property
    def full_estimate(self) -> Estimate:
        """The estimated cost of a full refresh, by the size of the base tables."""
        record = self.observation.record
        total = known_sum([self.metadata(table).bytes_at(table.head) for table in self.observation.tables])
        return full_cost(total).corrected(record.factors if record else {})

    def metadata(self, observed: ObservedTable) -> TableMetadata:
        """Return the metadata of a base table."""
        return self.tables[observed.name]

    def pinned_tables(self, *, filtered: bool = False) -> dict[Identifier, PinnedTable]:
        """Return the snapshot that is read from each base table.

        Args:
            filtered: Whether filters may be pushed into the scans of all tables: the query reads no renamed column.
        """
        return tables_at_snapshots(self.observation, self.tables, () if filtered else self.renamed_columns)

    def pinned_query(
        self, *, filtered: bool = False, where: Mapping[Identifier, str] = MappingProxyType({})
    ) -> PinnedQuery:
        """Return the view's query with the base tables pinned to the observed snapshots.

        Args:
            filtered: See :meth:`pinned_tables`.
            where: Conditions in SQL that all rows of some base tables pass that matter.
        """
        observation = self.observation
        tables = self.pinned_tables(filtered=filtered)
        tables |= {name: replace(tables[name], where=text) for name, text in where.items() if name in tables}
        return pin(observation.query, observation.dependencies, tables, observation.places)


def load_inputs(
    catalog: MaterializedViewCatalog,
    view: str | Identifier | LoadedView,
    options: RefreshOptions,
    *,
    pins: SnapshotSet | None = None,
) -> RefreshInputs:
    """Read the inputs of a refresh. Reads metadata only.

    Args:
        view: Its name, or the view as it was loaded.
        options: How to refresh.
        pins: See :func:`airflow_mv.core.freshness.observe.observe`.

    Raises:
        BaseTableNotFoundError: A base table cannot be read.
    """
    observation = observe(catalog, view, as_of=options.as_of, reads=pins, span=options.interval)
    require_readable(observation.view.identifier, observation.tables)
    # A refresh restores the storage table before it runs, see publish.storage_change.
    observation = replace(observation, storage=restored(observation.storage, observation.view))
    tables: Mapping[Identifier, TableMetadata] = {}
    newest: Mapping[Identifier, TableMetadata] = {}
    same_schema = _is_as_defined(observation)
    if options.full or observation.freshness.state != State.FRESH or not same_schema:
        tables = load_tables(catalog, observation.tables)
        observation = with_own_columns(observation, tables)
        newest = {} if pins is None else _newer_tables(catalog, observation.tables)
    in_the_past = options.as_of is not None or pins is not None
    current = _current_tables(catalog, observation) if in_the_past else {}
    others: dict[str, dict[str, str]] = {}
    for table in observation.tables:
        name = table.name.parts[0]
        if table.name.path is None and name != observation.view.identifier.parts[0] and name not in others:
            others[name] = _described(name, catalog.other(name).properties)
    return RefreshInputs(
        observation=observation,
        options=options,
        tables=tables,
        started_ms=time.time_ns() // 1_000_000,
        statistics=options.statistics(catalog),
        same_schema=same_schema,
        pinned=pins is not None,
        current=current,
        newest=newest,
        catalogs=others,
    )


#: What a catalog is, by its properties of these names.
_DESCRIBING = ("type", "uri", "warehouse")


def _described(name: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Return what a catalog is, without secrets. A program that knows it under another name finds it by that."""
    found = {key: _without_user(str(properties[key])) for key in _DESCRIBING if properties.get(key)}
    plain = {f"{CATALOG_PREFIX}{key}": text for key, text in found.items() if not is_secret(key, text)}
    return {CATALOG: name, **plain}


def _without_user(text: str) -> str:
    """Return a URL without its user, its password and its options."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        return text
    rest = rest.partition("?")[0]
    return f"{scheme}://{rest if rest.startswith('/') else rest.rpartition('@')[2]}"


def _is_as_defined(observation: Observation) -> bool:
    """Whether the storage table has the view's columns and the requested partitioning."""
    view, table = observation.view, observation.storage.table
    columns = view.metadata.schema_
    if not same_columns(columns.fields, table):
        return False
    requested = requested_partitioning(view.identifier, view.metadata, table)
    return requested is None or requested == partition_transforms(table, columns.names)


def load_tables(catalog: MaterializedViewCatalog, tables: Sequence[ObservedTable]) -> dict[Identifier, TableMetadata]:
    """Return the metadata of base tables. Freshness does not load the metadata of a table whose pointer has not moved.

    Args:
        catalog: Where the lookup begins.
        tables: The tables, which can be read.
    """
    found = {}
    for observed in tables:
        identifier = observed.name
        place = Located("table", observed.metadata_location or "", place=observed.storage)
        found[identifier] = observed.table or catalog.table_metadata(identifier, place)
    return found


def _current_tables(catalog: MaterializedViewCatalog, observation: Observation) -> dict[Identifier, TableMetadata]:
    """Load the present metadata of base tables whose given metadata, perhaps pinned, predates a recorded snapshot."""
    found = {}
    for observed in observation.tables:
        identifier, table = observed.name, observed.table
        held = recorded_snapshots(observation, observed)
        if table is not None and any(table.find(snapshot) is None for snapshot in held):
            located = catalog.locate([identifier]).get(identifier)
            if located is not None and located.kind == "table":
                found[identifier] = catalog.table_metadata(identifier, located)
    return found


def recorded_snapshots(observation: Observation, observed: ObservedTable) -> list[int]:
    """Return the other snapshots of a base table from which parts of the stored rows were computed."""
    record = observation.record
    if record is None or record.version_id != observation.view.metadata.current_version_id:
        return []
    parts = parts_of(record) if observation.interval is None else parts_in(record, observation.interval)
    tables = [table for part in parts for table in part.base_tables if table.identifier == observed.identifier]
    held = dict.fromkeys(table.snapshot_reference for table in tables)
    return [snapshot for snapshot in held if snapshot not in (NO_SNAPSHOT, observed.head)]


# ------------------------------------------------------------------------------------ the query
def tables_at_snapshots(
    observation: Observation, tables: Mapping[Identifier, TableMetadata], unfiltered: Iterable[str] = ()
) -> dict[Identifier, PinnedTable]:
    """Return the snapshot that a view's query reads from each base table.

    Args:
        tables: The metadata of its base tables, as far as it was read.
        unfiltered: The base tables in which a column was renamed: no filter may be pushed into their scans.
    """
    pinned = pinned_tables(
        observation.dependencies.tables,
        heads={table.name: table.head for table in observation.tables},
        places=observation.places,
        unfiltered=[Identifier.parse(name) for name in unfiltered],
    )
    return {name: _hiding_floats(observation, table, tables.get(name)) for name, table in pinned.items()}


def _hiding_floats(observation: Observation, pinned: PinnedTable, table: TableMetadata | None) -> PinnedTable:
    columns = columns_of(table.schema_at(pinned.snapshot_id)) if table is not None else ()
    floats = filtered_floats(observation.queries, columns)
    if not floats:
        return pinned
    items, unfiltered = selected((name for name, _ in columns), floats)
    return replace(pinned, selected=items, unfiltered=pinned.unfiltered or unfiltered)


def renamed_columns(
    observed: Sequence[ObservedTable],
    tables: Mapping[Identifier, TableMetadata],
    newest: Mapping[Identifier, TableMetadata] = MappingProxyType({}),
) -> dict[str, tuple[str, ...]]:
    """Return the columns whose names meant another column, or none, at the snapshot to read, by base table.

    Iceberg binds a filter to the names that a table has when the job runs, whatever snapshot it reads.

    Args:
        observed: The base tables.
        tables: Their metadata.
        newest: Their present metadata, if their snapshots were pinned before.
    """
    found = {}
    for item in observed:
        identifier = item.name
        table = tables.get(identifier)
        if table is not None and item.head is not None:
            found[item.identifier] = _renamed(table, newest.get(identifier, table), item.head)
    return {name: columns for name, columns in sorted(found.items()) if columns}


def renamed_by_now(
    catalog: MaterializedViewCatalog, records: Sequence[BaseTable], planned: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Return the result of :func:`renamed_columns` for recorded snapshots, from the present metadata in the catalog.

    Args:
        catalog: Where the tables are.
        records: The tables with the snapshots that were read. Expired ones are left out: a job reads all of a
            snapshot, or fails.
        planned: The result for the plan. It is still right for a table whose metadata file has not changed since.
    """
    read = {Identifier.parse(record.identifier): record for record in records}
    files = {name: record.properties.get(METADATA_LOCATION) for name, record in read.items()}
    found = {}
    for name, table in _tables_now(catalog, files).items():
        snapshot = read[name].snapshot_reference
        if table is None:
            found[str(name)] = planned.get(str(name), ())
        elif table.find(snapshot) is not None:
            found[str(name)] = _renamed(table, table, snapshot)
    return {name: columns for name, columns in sorted(found.items()) if columns}


def _newer_tables(
    catalog: MaterializedViewCatalog, observed: Sequence[ObservedTable]
) -> dict[Identifier, TableMetadata]:
    files = {item.name: item.metadata_location for item in observed}
    return {name: table for name, table in _tables_now(catalog, files).items() if table is not None}


def _tables_now(
    catalog: MaterializedViewCatalog, files: Mapping[Identifier, str | None]
) -> dict[Identifier, TableMetadata | None]:
    """Return the present metadata of tables; ``None`` for one that certainly has not changed since it was read."""
    return {
        name: None if at.is_still(files[name]) else catalog.table_metadata(name, at)
        for name, at in catalog.locate([*files]).items()
        if at.kind == "table"
    }


def _renamed(table: TableMetadata, now: TableMetadata, snapshot: int) -> tuple[str, ...]:
    return tuple(sorted(rebound_columns(table.schema_at(snapshot), now.current_schema)))


def with_own_columns(observation: Observation, tables: Mapping[Identifier, TableMetadata]) -> Observation:
    """Return the observation with ``*`` expanded in the query and the nested queries.

    Args:
        tables: The metadata of its base tables.
    """
    schemas = schemas_of(observation.tables, tables)
    dependencies = expanded_dependencies(observation.dependencies, schemas)
    columns = observation.view.metadata.schema_.names
    query = expand_stars(observation.query, columns=columns, views=dependencies.nested, schemas=schemas)
    return replace(observation, query=query, dependencies=dependencies)


def expanded_dependencies(dependencies: Dependencies, schemas: Schemas) -> Dependencies:
    """Return the dependencies of a query, with ``*`` expanded in the nested views' queries.

    Args:
        dependencies: The tables and nested views that the query reads.
        schemas: See :func:`schemas_of`.
    """
    views = dependencies.nested
    expanded = (
        replace(view, query=expand_stars(view.query, columns=view.columns, views=views, schemas=schemas))
        for view in dependencies.views
    )
    return replace(dependencies, views=tuple(expanded))


def schemas_of(observed: Sequence[ObservedTable], tables: Mapping[Identifier, TableMetadata]) -> Schemas:
    """Return all lists of columns that base tables have had: those of their observed snapshot first, then the newest.

    Args:
        tables: Their metadata.
    """
    names = {item.name: item.head for item in observed}
    return {identifier: _columns_had(tables[identifier], head) for identifier, head in names.items()}


def _columns_had(table: TableMetadata, head: int | None) -> ColumnLists:
    present, *earlier = (
        [(str(field["name"]), field.get("id")) for field in schema.get("fields", [])]
        for schema in (table.schema_at(head), *reversed(table.schemas))
    )
    readable = [tuple(name for name, _ in present)]
    others: dict[tuple[str, ...], tuple[str, ...]] = {}
    for fields in earlier:
        readable.append(tuple(name for name, number in fields if (name, number) in present))
        gone = tuple(name for name, number in fields if (name, number) not in present)
        at_their_places = [number for _, number in fields] == [number for _, number in present]
        others.setdefault(tuple(name for name, _ in fields), () if at_their_places else gone)
    return ColumnLists(
        list(dict.fromkeys(readable)), {names: gone for names, gone in others.items() if names not in readable}
    )


# ------------------------- what a query needs to be planned before there is a view of it: its base tables


@dataclass(frozen=True, slots=True)
class ResolvedQuery:
    """A query and its base tables as they are now.

    Args:
        dependencies: What it reads.
        tables: Its base tables, in the order of the dependencies.
        metadata: Their metadata.
        places: Where their rows are read, if not by their names.
    """

    query: ParsedQuery
    dependencies: Dependencies
    tables: tuple[ObservedTable, ...]
    metadata: Mapping[Identifier, TableMetadata]
    places: Mapping[Identifier, StoragePlace]

    @property
    def pinned(self) -> PinnedQuery:
        """The query with every base table at its snapshot."""
        return self.pin(self.query)

    def pin(self, query: ParsedQuery) -> PinnedQuery:
        """Return a query of the same base tables with every one of them at its snapshot."""
        names = self.dependencies.tables
        heads = {name: table.head for name, table in zip(names, self.tables, strict=True)}
        return pin(query, self.dependencies, pinned_tables(names, heads=heads, places=self.places), self.places)


def resolve_query(
    catalog: MaterializedViewCatalog, sql: str, columns: Sequence[str] | None, context: Identifier, *, view: str
) -> ResolvedQuery:
    """Resolve every name of a query, so that Spark and the planner see what a refresh will see.

    Args:
        catalog: Where the lookup begins.
        columns: The view's columns, to which a ``*`` is expanded; ``None``: those that it has now.
        context: A view in whose catalog and namespace short names are resolved.

    Raises:
        InvalidQueryError: The query cannot be read.
        BaseTableNotFoundError: A base table cannot be read.
    """
    query = parse_query(sql, view=view, default_catalog=context.catalog, default_namespace=context.namespace)
    dependencies = load_dependencies(catalog, query)
    tables, places = observe_tables(catalog, dependencies.tables, None)
    require_readable(context, tables)
    metadata = load_tables(catalog, tables)
    schemas = schemas_of(tables, metadata)
    _refuse_metadata_columns(query, dependencies, schemas)
    dependencies = expanded_dependencies(dependencies, schemas)
    if columns is not None:
        query = expand_stars(query, columns=columns, views=dependencies.nested, schemas=schemas)
    return ResolvedQuery(query, dependencies, tables, metadata, places)


def _refuse_metadata_columns(query: ParsedQuery, dependencies: Dependencies, schemas: Schemas) -> None:
    columns = [name for table in schemas.values() for names in table.all for name in names]
    columns += [name for view in dependencies.views for name in view.columns]
    for item in (query, *(view.query for view in dependencies.views)):
        refuse_metadata_columns(item.tree, item.text, item.view, columns)


def columns_given_again(
    catalog: MaterializedViewCatalog, sql: str, columns: Sequence[str], context: Identifier, *, view: str
) -> Sequence[str]:
    """Return the names of a view's columns after its query was given again: a ``*`` stands for the present columns.

    See :func:`resolve_query` for the arguments and errors, and :func:`airflow_mv.core.sql.types.present_columns`.
    """
    if "*" not in sql:
        return columns
    resolved = resolve_query(catalog, sql, None, context, view=view)
    schemas = schemas_of(resolved.tables, resolved.metadata)
    return present_columns(resolved.query, columns=columns, views=resolved.dependencies.nested, schemas=schemas)
