# SPDX-License-Identifier: Apache-2.0
"""Read what a query needs to be planned before there is a view of it: its base tables as they are now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.freshness.observe import load_dependencies, observe_tables, require_readable
from airflow_mv.core.freshness.state import ObservedTable
from airflow_mv.core.refresh.inputs import expanded_dependencies, load_tables, schemas_of
from airflow_mv.core.refresh.statements import PinnedQuery, pin, pinned_tables
from airflow_mv.core.spec.identifiers import Identifier, StoragePlace
from airflow_mv.core.spec.table import TableMetadata
from airflow_mv.core.sql.query import Dependencies, ParsedQuery, parse_query
from airflow_mv.core.sql.types import (
    Schemas,
    expand_stars,
    present_columns,
    refuse_metadata_columns,
)


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
