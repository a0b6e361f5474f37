# SPDX-License-Identifier: Apache-2.0
"""A view's query as it is run: base tables at snapshots, and the view's own columns where ``*`` would give more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from airflow_mv.catalog import Located, MaterializedViewCatalog
from airflow_mv.freshness.observe import Observation
from airflow_mv.freshness.state import ObservedTable
from airflow_mv.refresh.statements import pinned
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.materialized_view import BaseTable
from airflow_mv.spec.table import TableMetadata
from airflow_mv.sql.query import Dependencies, ParsedQuery
from airflow_mv.sql.star_expansion import Schemas, expand_stars
from airflow_mv.sql.types import rebound_columns


def pinned_query(
    catalog: MaterializedViewCatalog, observation: Observation, query: ParsedQuery, *, filtered: bool = False
) -> tuple[str, dict[str, str]]:
    """Return a query with base tables at the snapshots that were observed, see :func:`~.statements.pinned`.

    Args:
        catalog: Where the view is.
        observation: A look at a view.
        query: The view's query, or another one of the same names.
        filtered: Whether filters may reach the scans of all tables: the query reads no column that was renamed since.
    """
    return pinned(
        query,
        dependencies=observation.dependencies,
        heads={Identifier.parse(table.identifier): table.head for table in observation.tables},
        storages=observation.nested_storages,
        unfiltered=() if filtered else [Identifier.parse(name) for name in renamed_columns(catalog, observation)],
    )


def with_newest(catalog: MaterializedViewCatalog, observation: Observation) -> Observation:
    """Return a look at a view that knows its base tables as they are now, not only as they were pinned."""
    found = _tables_now(catalog, [Identifier.parse(table.identifier) for table in observation.tables])
    return replace(observation, newest=found)


def renamed_columns(catalog: MaterializedViewCatalog, observation: Observation) -> dict[str, tuple[str, ...]]:
    """Return by base table the columns whose names meant another column, or none, at the snapshot to read.

    Iceberg binds a filter to the names that a table has when the job runs, whatever snapshot it reads.

    Args:
        catalog: Where the view is.
        observation: A look at it.
    """
    found = {}
    for observed in observation.tables:
        if observed.head is not None:
            table = metadata_of(catalog, observed, observation.opened)
            found[observed.identifier] = _renamed(
                table, observation.newest.get(observed.identifier, table), observed.head
            )
    return {name: columns for name, columns in sorted(found.items()) if columns}


def renamed_by_now(catalog: MaterializedViewCatalog, records: Sequence[BaseTable]) -> dict[str, tuple[str, ...]]:
    """Return what :func:`renamed_columns` would return for recorded snapshots, from the catalog as it is now.

    Args:
        catalog: Where the tables are.
        records: The tables with the snapshots that were read. One that has expired since is left out: a job reads all
            of a snapshot, or fails.
    """
    read = {record.identifier: record.snapshot_reference for record in records}
    found = {}
    for name, table in _tables_now(catalog, [Identifier.parse(name) for name in read]).items():
        if table.find(read[name]) is not None:
            found[name] = _renamed(table, table, read[name])
    return {name: columns for name, columns in sorted(found.items()) if columns}


def _tables_now(catalog: MaterializedViewCatalog, wanted: Sequence[Identifier]) -> dict[str, TableMetadata]:
    places = catalog.locate(wanted)
    return {str(name): catalog.table_metadata(name, at) for name, at in places.items() if at.kind == "table"}


def _renamed(table: TableMetadata, now: TableMetadata, snapshot: int) -> tuple[str, ...]:
    return tuple(sorted(rebound_columns(table.schema_at(snapshot), now.current_schema)))


def with_own_columns(catalog: MaterializedViewCatalog, observation: Observation) -> Observation:
    """Return a look at a view whose query, and the nested ones, give the views' own columns.

    Args:
        catalog: Where the view is.
        observation: The look; base tables are opened only where a ``*`` stands for their columns.
    """
    query, dependencies = observation.query, observation.dependencies
    if not any("*" in item.text for item in (query, *(view.query for view in dependencies.views))):
        return observation
    schemas = schemas_of(catalog, observation.tables, observation.opened)
    dependencies = expanded_dependencies(dependencies, schemas)
    columns = observation.view.metadata.schema_.names
    query = expand_stars(query, columns=columns, views=dependencies.nested, schemas=schemas)
    return replace(observation, query=query, dependencies=dependencies)


def expanded_dependencies(dependencies: Dependencies, schemas: Schemas) -> Dependencies:
    """Return what a query reads, with the nested views' queries giving the nested views' own columns.

    Args:
        dependencies: What the query reads.
        schemas: See :func:`schemas_of`.
    """
    views = dependencies.nested
    expanded = (
        replace(view, query=expand_stars(view.query, columns=view.columns, views=views, schemas=schemas))
        for view in dependencies.views
    )
    return replace(dependencies, views=tuple(expanded))


def schemas_of(
    catalog: MaterializedViewCatalog, tables: Sequence[ObservedTable], opened: dict[str, TableMetadata] | None = None
) -> Schemas:
    """Return the columns that base tables have had: those at their snapshot first, then the newest.

    Args:
        catalog: Where the tables are.
        tables: The tables.
        opened: See :func:`metadata_of`.
    """
    known = {} if opened is None else opened
    return {
        Identifier.parse(observed.identifier): _columns_had(metadata_of(catalog, observed, known), observed.head)
        for observed in tables
    }


def _columns_had(table: TableMetadata, head: int | None) -> Sequence[tuple[str, ...]]:
    present = table.schema_at(head)
    there = {(field["name"], field.get("id")) for field in present.get("fields", [])}
    found = [
        tuple(str(field["name"]) for field in schema.get("fields", []) if (field["name"], field.get("id")) in there)
        for schema in (present, *reversed(table.schemas))
    ]
    return list(dict.fromkeys(found))


def metadata_of(
    catalog: MaterializedViewCatalog, observed: ObservedTable, opened: dict[str, TableMetadata]
) -> TableMetadata:
    """Return a base table's metadata; freshness opens no file of a table whose pointer has not moved.

    Args:
        catalog: Where it is.
        observed: The table, which can be read.
        opened: Files that were opened before, by location; it gets those that are opened now.
    """
    if observed.table is not None:
        return observed.table
    location = observed.metadata_location or ""
    if location not in opened:
        opened[location] = catalog.table_metadata(Identifier.parse(observed.identifier), Located("table", location))
    return opened[location]
