# SPDX-License-Identifier: Apache-2.0
"""Drift: columns of base tables that were dropped, renamed or retyped since the rows of a view were computed.

Of a column with nested fields only the fields that a query reads matter, as far as its text shows.

A change of a schema makes no snapshot, and earlier snapshots are still read with their own columns. So a view may be
up to date with all snapshots, although its query does not fit the tables any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from airflow_mv.errors import ConfigurationError
from airflow_mv.freshness.state import ObservedTable
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.interval_parts import parts_of
from airflow_mv.spec.materialized_view import TABLE_UUID, BaseTable, RefreshRecord
from airflow_mv.spec.reasons import Code, Reason
from airflow_mv.spec.table import TableMetadata, is_branch
from airflow_mv.sql.column_names import uses_in
from airflow_mv.sql.query import Dependencies, ParsedQuery
from airflow_mv.sql.types import Accesses, is_same_for, rebound_columns, spark_type

#: View property: what a changed column of a base table leads to.
ON_SCHEMA_CHANGE_PROPERTY = "airflow-mv.on-schema-change"

#: ``ignore-unused``: columns that the query does not name do not matter. ``rebuild``: the same, and a refresh has Spark
#: analyse the query again. ``fail``: every changed column matters, and a refresh is refused.
OnSchemaChange = Literal["fail", "rebuild", "ignore-unused"]
_POLICIES = ("fail", "rebuild", "ignore-unused")


def on_schema_change(properties: Mapping[str, str], *, view: str) -> OnSchemaChange:
    """Return a view's policy for changed columns of base tables.

    Args:
        properties: The view's.
        view: For the message.

    Raises:
        ConfigurationError: The property has another value.
    """
    text = properties.get(ON_SCHEMA_CHANGE_PROPERTY, "ignore-unused")
    if text not in _POLICIES:
        raise ConfigurationError(
            f"view {view}, property {ON_SCHEMA_CHANGE_PROPERTY}: {text!r} is not one of: {', '.join(_POLICIES)}"
        )
    return cast("OnSchemaChange", text)


def drift(
    record: RefreshRecord,
    observed: Iterable[ObservedTable],
    *,
    query: ParsedQuery,
    dependencies: Dependencies,
    columns: tuple[str, ...],
    policy: OnSchemaChange,
) -> tuple[Reason, ...]:
    """Return the changed columns that matter to a view, as reasons.

    A table whose metadata file was not opened has not changed.

    Args:
        record: The refresh that computed the rows.
        observed: The base tables as they are now.
        query: The view's query.
        dependencies: Its base tables and nested views.
        columns: The view's columns.
        policy: Which columns matter.
    """
    recorded: dict[str, dict[int, BaseTable]] = {}
    for base in (base for part in parts_of(record) if part.computed for base in part.base_tables):
        recorded.setdefault(base.identifier, {})[base.snapshot_reference] = base
    queries = ((query, columns), *((view.query, view.columns) for view in dependencies.views))
    found: list[Reason] = []
    for item in observed:
        name, table = Identifier.parse(item.identifier), item.table
        selector = name.selector if item.storage is not None else None
        if table is None or (selector is not None and not is_branch(table, selector)):
            continue  # a tag or a fixed snapshot keeps its columns
        for known in recorded.get(item.identifier, {}).values():
            uuid = known.properties.get(TABLE_UUID)
            if table.find(known.snapshot_reference) is None or (uuid and item.table_uuid and uuid != item.table_uuid):
                continue  # another table: its rows are recomputed anyway
            found += (
                change.reason
                for change in changed_columns(item.identifier, table, known.snapshot_reference)
                if policy == "fail" or change.matters(uses_in(queries, name, change.column))
            )
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class ChangedColumn:
    """A column that a snapshot was read with and that the table has not any more, or not with all of its fields.

    Args:
        then: The stored field in the snapshot's schema.
        now: The stored field with the same id and name in the table's current schema; ``None`` if there is none.
        reason: How it changed.
    """

    then: Mapping[str, Any]
    now: Mapping[str, Any] | None
    reason: Reason

    @property
    def column(self) -> str:
        """Its name."""
        return str(self.then["name"])

    def matters(self, uses: Collection[Accesses]) -> bool:
        """Whether it has changed for queries that read these parts of it."""
        return bool(uses) and (self.now is None or not is_same_for(self.then, self.now, uses))


def changed_columns(name: str, table: TableMetadata, snapshot_id: int | None) -> Iterator[ChangedColumn]:
    """Yield each column that a snapshot was read with and that the table has not any more, with a reason.

    Args:
        name: The table's name, for the reason.
        table: The table.
        snapshot_id: The snapshot.
    """
    then, now = table.schema_at(snapshot_id), table.current_schema
    if then == now:
        return
    rebound = rebound_columns(then, now)
    current: dict[object, Mapping[str, Any]] = {field.get("id"): field for field in now.get("fields", ())}
    for field in then.get("fields", ()):
        column, successor = str(field["name"]), current.get(field.get("id"))
        if successor is None:
            yield ChangedColumn(field, None, Reason(Code.COLUMN_DROPPED, f"{name}: the column {column} was dropped"))
        elif successor["name"] != column:
            text = f"{name}: the column {column} was renamed to {successor['name']}"
            yield ChangedColumn(field, None, Reason(Code.COLUMN_RENAMED, text))
        elif (kinds := (spark_type(field["type"]), spark_type(successor["type"])))[0] != kinds[1]:
            text = f"{name}: the type of the column {column} changed from {kinds[0]} to {kinds[1]}"
            yield ChangedColumn(field, successor, Reason(Code.COLUMN_RETYPED, text))
        elif column in rebound:
            text = f"{name}: a field inside of the column {column} is another field now"
            yield ChangedColumn(field, successor, Reason(Code.COLUMN_RETYPED, text))
