# SPDX-License-Identifier: Apache-2.0
"""Make the empty storage table of a query without Spark, where its columns are certain without it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from airflow_mv.catalog import MaterializedViewCatalog
from airflow_mv.catalog.empty_table import EmptyTable, NewColumn
from airflow_mv.catalog.files import join
from airflow_mv.ivm import certain_output
from airflow_mv.refresh.candidates import relations_of
from airflow_mv.refresh.resolved import ResolvedQuery
from airflow_mv.script import with_row_groups
from airflow_mv.spec.identifiers import DELTA_BY_PATH, Identifier
from airflow_mv.spec.partitioning import partition_field
from airflow_mv.spec.reasons import Code, Reason
from airflow_mv.spec.table import TableMetadata


def known_table(
    resolved: ResolvedQuery,
    columns: Sequence[str] | None,
    *,
    partition_by: Sequence[str],
    comments: Mapping[str, str],
    properties: Sequence[tuple[str, str]],
) -> EmptyTable | Reason:
    """Return the empty table that Spark would create for a query; or why only Spark knows it.

    Args:
        resolved: The query.
        columns: Names of the columns, if the view has its own.
        partition_by: Partition fields.
        comments: The comments of columns that have another one than the query's, by column.
        properties: The table's properties.
    """
    for identifier, observed in zip(resolved.dependencies.tables, resolved.tables, strict=True):
        table = resolved.metadata[identifier]
        if identifier.kind == DELTA_BY_PATH:
            return Reason(Code.UNSUPPORTED_OPERATOR, f"only Spark knows the types of the Delta table {identifier}")
        if table.schema_at(observed.head).get("fields") != table.current_schema.get("fields"):
            return Reason(Code.SCHEMA_CHANGED, f"{identifier} has other columns than its newest snapshot")
    found = certain_output(resolved.query, relations_of(resolved.bases), resolved.dependencies.nested, columns)
    if isinstance(found, Reason):
        return found
    inherited = {name: _comments(table) for name, table in resolved.metadata.items()}
    new = []
    for item, base in found:
        own = inherited[base].get(item.origin[1], "") if base is not None and item.origin is not None else ""
        new.append(NewColumn(item.name, item.type, comments.get(item.name, own)))
    made = EmptyTable(new, [partition_field(text) for text in partition_by], with_row_groups(properties, len(new)))
    if not made.is_possible:
        return Reason(Code.UNSUPPORTED_OPERATOR, "only Spark knows whether this partitioning is possible")
    return made


def _comments(table: TableMetadata) -> dict[str, str]:
    return {str(item["name"]): str(item.get("doc") or "") for item in table.current_schema.get("fields", ())}


def write_table(
    catalog: MaterializedViewCatalog, name: Identifier | None, location: str | None, table: EmptyTable
) -> str:
    """Make an empty table, and return its metadata file.

    Args:
        catalog: Where the view is, or will be.
        name: Its name in the catalog; ``None``: it is in no catalog.
        location: Its folder; ``None``: the catalog chooses it.
        table: The table.

    Raises:
        AlreadyExistsError: The name is taken.
        CatalogUnavailableError: The catalog or the store did not answer.
    """
    if name is not None:
        return catalog.tables.create_empty(name, location, table)
    if location is None:
        raise ValueError("a table in no catalog has a folder")
    file = join(location, f"metadata/00000-{uuid.uuid4()}.metadata.json")
    catalog.files.write(file, table.metadata_file(location))
    return file
