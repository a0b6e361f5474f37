# SPDX-License-Identifier: Apache-2.0
"""Compile a refresh into the script that Spark runs."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_mv.core.script import (
    SESSION_CONFS,
    SNAPSHOT_PROPERTY,
    STORAGE,
    CreateStorageStep,
    Script,
    SqlStep,
    Step,
    TableRead,
    Target,
    register,
    staged,
)
from airflow_mv.core.spec.identifiers import Identifier, StoragePlace, quote, string_literal
from airflow_mv.core.spec.materialized_view import PARTITIONING_PROPERTY, STORAGE_OF_PROPERTY, staging_branch
from airflow_mv.core.spec.properties import (
    SortColumn,
    missing_properties,
    partition_transform,
    possible_properties,
    sort_order_of,
    write_order,
)
from airflow_mv.core.spec.stored import decode_text
from airflow_mv.core.spec.table_metadata import TableMetadata
from airflow_mv.core.spec.view import ViewMetadata
from airflow_mv.core.sql.query import Dependencies, ParsedQuery, PinnedTable, pin_query
from airflow_mv.errors import InvalidMetadataError, InvalidQueryError

_DISTRIBUTION = "write.distribution-mode"
_KEEP_METADATA = "write.metadata.delete-after-commit.enabled"
#: Initial properties of a storage table. Old metadata files are kept, because published versions refer to them.
STORAGE_PROPERTIES = ((_KEEP_METADATA, "false"), ("format-version", "2"))
#: A storage table in the catalog has concurrent writers: the branches of refreshes, and other engines.
REGISTERED_PROPERTIES = (*STORAGE_PROPERTIES, ("commit.retry.num-retries", "10"))
_BYTES_OF_A_PARTITION, _LEAST_PARTITIONS, _SPARKS_PARTITIONS = 16 * 1024 * 1024, 4, 200
_ARGUMENT = re.compile(r"(bucket|truncate)\[(\d+)\]")
_TIMES = {"year": "years", "month": "months", "day": "days", "hour": "hours"}


@dataclass(frozen=True, slots=True)
class PinnedQuery:
    """A query with its base tables at snapshots.

    Args:
        nested: The metadata file of each base table that is in no catalog, by staged name.
    """

    sql: str
    reads: tuple[TableRead, ...]
    nested: Mapping[str, str]


def pinned_tables(
    tables: Collection[Identifier],
    *,
    heads: Mapping[Identifier, int | None],
    places: Mapping[Identifier, StoragePlace],
    unfiltered: Collection[Identifier] = (),
) -> dict[Identifier, PinnedTable]:
    """Return the snapshot of each base table, and the name by which it is read.

    Args:
        tables: The base tables.
        heads: The snapshot to read from each base table; ``None`` for one that was never written.
        places: Where the rows of base tables are read, if not by their names; see
            :class:`airflow_mv.core.freshness.observe.Observation`.
        unfiltered: Base tables into whose scans no filter may be pushed.
    """
    names = place_names(places).sql
    return {item: PinnedTable(item, heads[item], sql=names.get(item), unfiltered=item in unfiltered) for item in tables}


def pin(
    query: ParsedQuery,
    dependencies: Dependencies,
    tables: Mapping[Identifier, PinnedTable],
    places: Mapping[Identifier, StoragePlace],
) -> PinnedQuery:
    """Pin every base table of a query.

    Args:
        dependencies: The tables and views that the query reads.
        tables: From :func:`pinned_tables`.
        places: As for :func:`pinned_tables`.
    """
    text = pin_query(query, tables=tables, views=dependencies.nested)
    reads = tuple(TableRead(item.sql or name.sql(), item.snapshot_id) for name, item in tables.items())
    return PinnedQuery(text, reads, place_names(places).files)


@dataclass(frozen=True, slots=True)
class PlaceNames:
    """How a script names the base tables that are not read by their own names.

    Args:
        sql: The quoted name of each one.
        files: The metadata files that the job registers because their tables are in no catalog, by staged name.
    """

    sql: Mapping[Identifier, str]
    files: Mapping[str, str]


def place_names(places: Mapping[Identifier, StoragePlace]) -> PlaceNames:
    """Return how a script names the base tables that are not read by their own names.

    Args:
        places: As for :func:`pinned_tables`.
    """
    sql: dict[Identifier, str] = {}
    files: dict[str, str] = {}
    for table in sorted(places):
        place = places[table]
        if isinstance(place, Identifier):
            sql[table] = place.sql()
        else:
            name = f"base_{len(files)}"
            sql[table], files[name] = staged(name), place
    return PlaceNames(sql, files)


@dataclass(frozen=True, slots=True)
class PartialRefresh:
    """The steps of a refresh that does not recompute all rows.

    Args:
        steps: The steps that follow the registration of the storage table.
        may_recompute: Whether the job may recompute all rows if it finds that it cannot refresh incrementally.
        bytes_read: Bytes that the steps are expected to read.
        incremental: Whether the job may find the steps impossible for reasons that do not lie in the query.
    """

    steps: tuple[Step, ...]
    may_recompute: bool
    bytes_read: int
    incremental: bool = True

    @property
    def confs(self) -> tuple[tuple[str, str], ...]:
        """Return session settings for this much data. Spark's 200 shuffle partitions cost more than a small change."""
        partitions = min(max(self.bytes_read // _BYTES_OF_A_PARTITION, _LEAST_PARTITIONS), _SPARKS_PARTITIONS)
        return () if partitions == _SPARKS_PARTITIONS else (("spark.sql.shuffle.partitions", str(partitions)),)


def refresh_script(  # noqa: PLR0913 (each is a part of the script)
    *,
    view: str,
    refresh_id: str,
    pinned: PinnedQuery,
    columns: Sequence[tuple[str, str]],
    storage: TableMetadata,
    target: Target,
    replaces: Sequence[str] | None,
    properties: Mapping[str, str],
    order: Sequence[SortColumn] | None,
    summary: Mapping[str, str],
    outcome_location: str,
    work: PartialRefresh | None = None,
) -> Script:
    """Return the script that recomputes the storage table's rows, or does less.

    Args:
        pinned: The view's SQL with every base table pinned.
        columns: Name and Spark type of each of the view's columns, in order.
        target: How the statements name the storage table.
        replaces: The checked and quoted partitioning, if the table's columns and partitioning are also replaced.
        properties: The table properties that the view's owner chose.
        order: The sort order that the view's owner chose; ``None`` for none. A table that is replaced gets it later.
        summary: Additional fields for the summaries of the snapshots that the job writes.
        outcome_location: Where a submitted driver stores its outcome.
        work: The steps that replace the recompute; only if the columns are the same.
    """
    query, nested = pinned.sql, pinned.nested
    steps = [*target.opening, *(register(name, location) for name, location in sorted(nested.items()))]
    if replaces is None:
        if order is not None and order != sort_order_of(storage):
            partitioned = bool(partition_transforms(storage, [name for name, _ in columns]))
            clause = write_order(order, partitioned=partitioned, distributed=_DISTRIBUTION in properties)
            steps.append(SqlStep(f"ALTER TABLE {target.table} {clause}"))
        wanted = {**properties, _KEEP_METADATA: "false"} if target.registers else properties
        if missing := missing_properties(wanted, storage):
            steps.append(SqlStep(f"ALTER TABLE {target.table} SET {_table_properties(missing)}"))
        last = SqlStep(f"INSERT OVERWRITE {target.written}\n{query}", query)
    else:
        names = [name for name, _ in columns]
        last = SqlStep(_replace_table(target.table, storage, renamed(query, names), replaces, properties), query)
    stamps = tuple((f"{SNAPSHOT_PROPERTY}{key}", value) for key, value in summary.items())
    script = Script(
        view,
        refresh_id,
        target.table,
        tuple(steps),
        outcome_location,
        (*SESSION_CONFS, *stamps),
        len(nested),
        branch=staging_branch(refresh_id) if target.branch else None,
        query=query,
        types=tuple(columns),
        reads=pinned.reads,
    )
    return _with_partial(script, last, work)


def _with_partial(script: Script, recompute: Step, work: PartialRefresh | None) -> Script:
    if work is None:
        return replace(script, steps=(*script.steps, recompute))
    fallback = (recompute,) if work.may_recompute else ()
    steps, confs = (*script.steps, *work.steps), (*script.confs, *work.confs)
    return replace(script, steps=steps, confs=confs, incremental=work.incremental, fallback=fallback)


def interval_steps(table: str, *, query: str, columns: Sequence[str], where: str) -> tuple[Step, ...]:
    """Return the steps that replace the rows of an interval.

    Args:
        table: The quoted name by which the refresh writes to the storage table.
        query: A query with the view's columns by position.
        columns: The view's column names, in order.
        where: The condition that exactly the rows of the interval pass.
    """
    rows = f"{renamed(query, columns)}\nWHERE {where}"
    return SqlStep(f"DELETE FROM {table} WHERE {where}", query), SqlStep(f"INSERT INTO {table}\n{rows}")


def all_rows(table: str, snapshot: int | None = None) -> str:
    """Return the query for all rows of a table, at a snapshot or the current ones.

    Args:
        table: Its quoted name.
    """
    return f"SELECT * FROM {table}" if snapshot is None else f"SELECT * FROM {table} VERSION AS OF {snapshot}"


@dataclass(frozen=True, slots=True)
class EmptyStorage:
    """An empty storage table to be made, with the columns of a query.

    Args:
        name: Its name in the catalog; ``None``: it is in no catalog.
        location: Its folder; ``None``: the catalog chooses it.
        columns: Names of the columns, if the view has its own.
        partition_by: Partition fields.
        comments: The comments of columns that have another one than the query's, by column.
        properties: Its initial properties, from :func:`storage_settings`.
    """

    name: Identifier | None
    location: str | None
    columns: Sequence[str] | None
    partition_by: Sequence[str]
    comments: Mapping[str, str]
    properties: tuple[tuple[str, str], ...]


def create_storage(
    *,
    view: Identifier,
    pinned: PinnedQuery,
    token: str,
    new: EmptyStorage,
) -> Script:
    """Return the script that makes an empty storage table with the columns of a query.

    Args:
        pinned: The view's SQL with every base table pinned.
        token: Used in place of a refresh id.
    """
    source = renamed(pinned.sql, new.columns) if new.columns else pinned.sql
    name = new.name.sql() if new.name else staged(STORAGE)
    partition_by = tuple(map(partition_transform, new.partition_by))
    step = CreateStorageStep(name, source, new.location, partition_by, new.properties, tuple(new.comments.items()))
    steps: tuple[Step, ...] = (*(register(name, file) for name, file in sorted(pinned.nested.items())), step)
    return Script(str(view), token, name, steps, None, SESSION_CONFS, len(pinned.nested), reads=pinned.reads)


def storage_settings(table: Identifier | None, *, owner: str) -> tuple[tuple[str, str], ...]:
    """Return the initial properties of a storage table.

    Args:
        table: Its name in the catalog, if it has one.
        owner: The view's namespace and name, for a table in the catalog.
    """
    return (*REGISTERED_PROPERTIES, (STORAGE_OF_PROPERTY, owner)) if table else STORAGE_PROPERTIES


def renamed(query: str, columns: Sequence[str]) -> str:
    """Return the query with its output columns renamed by position."""
    names = ", ".join(quote(column) for column in columns)
    return f"SELECT * FROM (\n{query}\n) AS `__view`({names})"


def partition_transforms(storage: TableMetadata, columns: Sequence[str]) -> list[str]:
    """Return a table's partitioning as Spark writes it, without fields whose columns no longer exist."""
    found = [_transform(*field) for field in storage.partition_fields]
    kept = {quote(column) for column in columns}
    return [text for text, column in found if column in kept]


def partitioning_text(transforms: Sequence[str], storage: TableMetadata) -> str:
    """Return the view property by which the next recomputed rows are partitioned in another way.

    Args:
        transforms: The new partitioning, from :func:`partition_transforms`.
        storage: The storage table. If its partition spec changes in any way, the property no longer has an effect.
    """
    return json.dumps({"by": list(transforms), "instead-of-spec": storage.default_spec_id})


def wanted_partitioning(view: Identifier, metadata: ViewMetadata, storage: TableMetadata) -> list[str]:
    """Return the partitioning that recomputed rows get: the requested one, or else the storage table's.

    Raises:
        InvalidMetadataError: See :func:`requested_partitioning`.
    """
    requested = requested_partitioning(view, metadata, storage)
    return partition_transforms(storage, metadata.schema_.names) if requested is None else requested


def requested_partitioning(view: Identifier, metadata: ViewMetadata, storage: TableMetadata) -> list[str] | None:
    """Return the partitioning that recomputed rows get, if another one than the storage table's was requested.

    Raises:
        InvalidMetadataError: The property with the partitioning is broken.
    """
    text = metadata.properties.get(PARTITIONING_PROPERTY)
    if text is None:
        return None
    source = f"view {view}, property {PARTITIONING_PROPERTY}"
    document = decode_text(text, source=source)
    if document.get("instead-of-spec") != storage.default_spec_id:
        return None
    columns = metadata.schema_.names
    try:
        wanted = [partition_transform(str(item)) for item in document["by"]]
    except (KeyError, TypeError, InvalidQueryError) as error:
        raise InvalidMetadataError(f"{source}: {type(error).__name__}: {error}") from None
    return [item for item in wanted if any(_is_of(item, column) for column in columns)]


def _is_of(transform: str, column: str) -> bool:
    name = quote(column)
    return transform == name or transform.endswith((f"({name})", f", {name})"))


def _transform(transform: str, name: str | None) -> tuple[str, str | None]:
    if name is None:
        return "", None
    column = quote(name)
    if argument := _ARGUMENT.fullmatch(transform):
        return f"{argument[1]}({argument[2]}, {column})", column
    if transform in _TIMES:
        return f"{_TIMES[transform]}({column})", column
    return (column, column) if transform == "identity" else ("", None)


def _replace_table(
    table: str, storage: TableMetadata, query: str, transforms: Sequence[str], properties: Mapping[str, str]
) -> str:
    wanted = {**possible_properties(properties, storage), _KEEP_METADATA: "false"}
    partitioning = f"PARTITIONED BY ({', '.join(transforms)})\n" if transforms else ""
    return (
        f"CREATE OR REPLACE TABLE {table} USING iceberg\n{partitioning}LOCATION {string_literal(storage.location)}\n"
        f"{_table_properties(wanted)}\nAS {query}"
    )


def _table_properties(properties: Mapping[str, str]) -> str:
    pairs = ", ".join(f"{string_literal(key)} = {string_literal(value)}" for key, value in properties.items())
    return f"TBLPROPERTIES ({pairs})"
