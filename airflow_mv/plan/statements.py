# SPDX-License-Identifier: Apache-2.0
"""Compile a refresh into the script that Spark runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_mv.plan.query import Dependencies, PinnedTable, pin_query, string_literal
from airflow_mv.script import STAGING_CATALOG, STAGING_NAMESPACE, CreateStorageStep, Script, SqlStep, Step
from airflow_mv.spec.identifiers import Identifier, quote
from airflow_mv.spec.table import TableMetadata

#: The staged storage table's name in a script.
STORAGE = "storage"
_KEEP_METADATA = "write.metadata.delete-after-commit.enabled"
#: A storage table's properties from the start. Old metadata files still belong to published versions.
STORAGE_PROPERTIES = ((_KEEP_METADATA, "false"), ("format-version", "2"))
#: A refresh is a function of its snapshots, not of a session: INSERT OVERWRITE replaces the whole table,
#: `${…}` in a quoted name is no variable of Spark's, and time zones are the same wherever the job runs.
_CONFS = (
    ("spark.sql.sources.partitionOverwriteMode", "static"),
    ("spark.sql.variable.substitute", "false"),
    ("spark.sql.session.timeZone", "UTC"),
)
_ARGUMENT = re.compile(r"(bucket|truncate)\[(\d+)\]")
_TIMES = {"year": "years", "month": "months", "day": "days", "hour": "hours"}


def staged(name: str) -> str:
    """Return the quoted Spark name of a table in the staging catalog."""
    return ".".join(quote(part) for part in (STAGING_CATALOG, STAGING_NAMESPACE, name))


def pinned(
    sql: str,
    *,
    default_catalog: str,
    default_namespace: tuple[str, ...],
    dependencies: Dependencies,
    heads: Mapping[Identifier, int | None],
    storages: Mapping[Identifier, str],
    view: str,
) -> tuple[str, dict[str, str]]:
    """Pin every base table of a query, and give those that are materialized views a staged name.

    Args:
        sql: The query.
        default_catalog: The catalog of names with one or two parts.
        default_namespace: The namespace of names with one part.
        dependencies: What the query reads.
        heads: The snapshot to read of each base table; ``None`` for one that was never written.
        storages: Storage metadata file of each base table that is a materialized view.
        view: For messages.

    Returns:
        The pinned query, and the storage metadata file to register by staged name.
    """
    names = {identifier: f"base_{number}" for number, identifier in enumerate(sorted(storages))}
    query = pin_query(
        sql,
        default_catalog=default_catalog,
        default_namespace=default_namespace,
        tables={
            item: PinnedTable(item, heads[item], sql=staged(names[item]) if item in names else None)
            for item in dependencies.tables
        },
        views={item.identifier: item for item in dependencies.views},
        view=view,
    )
    return query, {names[identifier]: location for identifier, location in storages.items()}


def full_refresh(
    *,
    view: str,
    refresh_id: str,
    query: str,
    columns: Sequence[str],
    storage: TableMetadata,
    storage_location: str,
    same_schema: bool,
    nested: Mapping[str, str],
    outcome_location: str,
) -> Script:
    """Return the script that recomputes the storage table's rows.

    Args:
        view: For messages.
        refresh_id: The refresh.
        query: The view's SQL with every base table pinned.
        columns: The view's column names, in order.
        storage: The storage table's metadata.
        storage_location: Its current metadata file.
        same_schema: Whether its columns are the view's; else the table's schema is replaced, too.
        nested: Metadata file of each base table that is itself a materialized view, by staged name.
        outcome_location: Where a submitted driver leaves its outcome.
    """
    table = staged(STORAGE)
    steps: list[Step] = [_register(STORAGE, storage_location)]
    steps += [_register(name, location) for name, location in sorted(nested.items())]
    if same_schema:
        if storage.properties.get(_KEEP_METADATA) != "false":
            steps.append(SqlStep(f"ALTER TABLE {table} SET TBLPROPERTIES ('{_KEEP_METADATA}' = 'false')"))
        steps.append(SqlStep(f"INSERT OVERWRITE {table}\n{query}"))
    else:
        steps.append(SqlStep(_replace_table(table, storage, renamed(query, columns), columns)))
    return Script(view, refresh_id, table, tuple(steps), outcome_location, _CONFS, len(nested))


def create_storage(
    *,
    view: str,
    query: str,
    columns: Sequence[str] | None,
    location: str,
    partition_by: Sequence[str],
    nested: Mapping[str, str],
    token: str,
) -> Script:
    """Return the script that makes an empty storage table with the columns of a query.

    Args:
        view: For messages.
        query: The view's SQL, with full names.
        columns: Names to give the columns, where the view has its own.
        location: The storage table's directory.
        partition_by: Checked and quoted partition transforms.
        nested: Metadata file of each base table that is itself a materialized view, by staged name.
        token: Stands in for a refresh id.
    """
    source = renamed(query, columns) if columns else query
    step = CreateStorageStep(staged(STORAGE), source, location, tuple(partition_by), STORAGE_PROPERTIES)
    steps: tuple[Step, ...] = (*(_register(name, file) for name, file in sorted(nested.items())), step)
    return Script(view, token, staged(STORAGE), steps, None, _CONFS, len(nested))


def renamed(query: str, columns: Sequence[str]) -> str:
    """Return the query with its output columns renamed by position."""
    names = ", ".join(quote(column) for column in columns)
    return f"SELECT * FROM (\n{query}\n) AS `__view`({names})"


def partition_transforms(storage: TableMetadata, columns: Sequence[str]) -> list[str]:
    """Return a table's partitioning as Spark writes it, as far as the columns are still there."""
    names = {field["id"]: str(field["name"]) for field in storage.current_schema.get("fields", []) if "id" in field}
    spec = next((item for item in storage.partition_specs if item.get("spec-id") == storage.default_spec_id), {})
    fields: list[dict[str, Any]] = spec.get("fields", [])
    found = [_transform(str(field.get("transform")), names.get(field.get("source-id", -1))) for field in fields]
    kept = {quote(column) for column in columns}
    return [text for text, column in found if column in kept]


def _transform(transform: str, name: str | None) -> tuple[str, str | None]:
    if name is None:
        return "", None
    column = quote(name)
    if argument := _ARGUMENT.fullmatch(transform):
        return f"{argument[1]}({argument[2]}, {column})", column
    if transform in _TIMES:
        return f"{_TIMES[transform]}({column})", column
    return (column, column) if transform == "identity" else ("", None)


def _replace_table(table: str, storage: TableMetadata, query: str, columns: Sequence[str]) -> str:
    transforms = partition_transforms(storage, columns)
    partitioning = f"PARTITIONED BY ({', '.join(transforms)})\n" if transforms else ""
    return (
        f"CREATE OR REPLACE TABLE {table} USING iceberg\n{partitioning}LOCATION {string_literal(storage.location)}\n"
        f"TBLPROPERTIES ('{_KEEP_METADATA}' = 'false')\nAS {query}"
    )


def _register(name: str, location: str) -> SqlStep:
    table, file = string_literal(f"{STAGING_NAMESPACE}.{name}"), string_literal(location)
    return SqlStep(f"CALL {quote(STAGING_CATALOG)}.system.register_table(table => {table}, metadata_file => {file})")
