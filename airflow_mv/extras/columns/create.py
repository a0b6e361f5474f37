# SPDX-License-Identifier: Apache-2.0
"""Make the empty storage table of a query without Spark, where its columns are certain without it."""

from __future__ import annotations

import uuid

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.catalog.locations import join
from airflow_mv.core.define.resolved import ResolvedQuery
from airflow_mv.core.ivm import BaseRelation
from airflow_mv.core.refresh.statements import EmptyStorage
from airflow_mv.core.script import with_row_groups
from airflow_mv.core.spec.properties import partition_field
from airflow_mv.core.spec.reasons import Code, Reason
from airflow_mv.core.spec.table import TableMetadata
from airflow_mv.core.sql.types import columns_of, required_columns
from airflow_mv.extras.columns.certain import certain_output
from airflow_mv.extras.columns.empty_table import EmptyTable, NewColumn


def make_without_spark(catalog: MaterializedViewCatalog, resolved: ResolvedQuery, new: EmptyStorage) -> str | Reason:
    """Make the empty table that Spark would create for a query, and return its metadata file.

    Args:
        catalog: Where the view is, or will be.
        resolved: The query.

    Returns:
        The metadata file; or why only Spark knows the columns. Then nothing was made.

    Raises:
        AlreadyExistsError: The name is taken.
        CatalogUnavailableError: The catalog or the store did not answer.
    """
    table = known_table(resolved, new)
    if isinstance(table, Reason):
        return table
    if new.name is not None:
        return table.create(catalog, new.name, new.location)
    if new.location is None:
        raise ValueError("a table in no catalog has a folder")
    file = join(new.location, f"metadata/00000-{uuid.uuid4()}.metadata.json")
    catalog.files.write(file, table.metadata_file(new.location))
    return file


def known_table(resolved: ResolvedQuery, new: EmptyStorage) -> EmptyTable | Reason:
    """Return the empty table that Spark would create for a query; or why only Spark knows it."""
    for identifier, observed in zip(resolved.dependencies.tables, resolved.tables, strict=True):
        table = resolved.metadata[identifier]
        if not identifier.kind.is_iceberg:
            return Reason(
                Code.UNSUPPORTED_OPERATOR,
                f"only Spark can resolve the column types of the {identifier.kind.data_source} table {identifier}",
            )
        if table.schema_at(observed.head).get("fields") != table.current_schema.get("fields"):
            return Reason(
                Code.SCHEMA_CHANGED, f"the current schema of {identifier} differs from that of its newest snapshot"
            )
    relations = [
        BaseRelation(name, f"t{number}", columns_of(schema), changed=True, not_null=required_columns(schema))
        for number, name in enumerate(resolved.dependencies.tables)
        for schema in [resolved.metadata[name].current_schema]
    ]
    found = certain_output(resolved.query, relations, resolved.dependencies.nested, new.columns)
    if isinstance(found, Reason):
        return found
    inherited = {name: _comments(table) for name, table in resolved.metadata.items()}
    columns = []
    for item, base in found:
        own = inherited[base].get(item.origin[1], "") if base is not None and item.origin is not None else ""
        columns.append(NewColumn(item.name, item.type, new.comments.get(item.name, own)))
    made = EmptyTable(
        columns, list(map(partition_field, new.partition_by)), with_row_groups(new.properties, len(columns))
    )
    if not made.is_possible:
        return Reason(Code.UNSUPPORTED_OPERATOR, "only Spark can validate this partitioning")
    return made


def _comments(table: TableMetadata) -> dict[str, str]:
    return {str(item["name"]): str(item.get("doc") or "") for item in table.current_schema.get("fields", ())}
