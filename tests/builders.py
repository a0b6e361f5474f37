# SPDX-License-Identifier: Apache-2.0
"""Short constructors with useful defaults: a lake with base tables, views, and refreshes staged without Spark."""

from __future__ import annotations

import atexit
import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import duckdb
import pyarrow as pa
import pytest
import sqlglot
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    SetSnapshotRefUpdate,
)
from sqlalchemy import delete, select, update

from airflow_mv.core.catalog import STORED_LAYOUTS, Layout, LoadedStorage, LoadedView, MaterializedViewCatalog
from airflow_mv.core.catalog.limits import opening
from airflow_mv.core.define.create import create
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.refresh.choose import RefreshOptions, plan_refresh
from airflow_mv.core.refresh.plan import RefreshPlan, RefreshResult
from airflow_mv.core.refresh.run import refresh, stage
from airflow_mv.core.script import (
    COMPLETE_KEY,
    REFRESH_ID_KEY,
    STAGING_CATALOG,
    CheckResult,
    CreateStorageStep,
    Outcome,
    RewriteStep,
    Script,
    SqlStep,
    StagedChecks,
)
from airflow_mv.core.spec.identifiers import Identifier, split
from airflow_mv.core.spec.materialized_view import RefreshRecord
from airflow_mv.core.spec.view import ViewMetadata, new_view, replace_version
from tests.branches import create_branch, overwrite_branch, replace_files

#: All layouts, by name.
LAYOUTS = sorted(STORED_LAYOUTS)
ORDERS = pa.schema([("id", pa.int64()), ("region", pa.string()), ("amount", pa.int64())])
FIRST = ((1, "north", 10), (2, "south", 20), (3, "north", 5))
QUERY = "SELECT region, count(*) AS orders, sum(amount) AS amount FROM lake.sales.orders GROUP BY region"

_REGISTER = re.compile(r"CALL .*register_table\(table => '([^']+)', metadata_file => '([^']+)'\)", re.DOTALL)
_BRANCH = re.compile(r"ALTER TABLE (?P<table>.+) CREATE BRANCH `(?P<branch>\w+)`(?: AS OF VERSION (?P<start>\d+))?")
_WRITE = re.compile(
    r"(?:INSERT OVERWRITE (?P<insert>[^\n]+)\n|CREATE OR REPLACE TABLE .*?\nAS )(?P<query>.*)", re.DOTALL
)
_PINNED = re.compile(r"(`delta`\.`[^`]+`|(?:`(?:[^`]|``)+`\.){2,}`(?:[^`]|``)+`)(?:\s+(?:FOR\s+)?VERSION AS OF (\d+))?")


def orders(rows: Iterable[tuple[int, str, int]]) -> pa.Table:
    """Rows of the default base table: ``(id, region, amount)``."""
    return pa.Table.from_pylist([dict(zip(ORDERS.names, row, strict=True)) for row in rows], schema=ORDERS)


def without_properties(view: ViewMetadata, *keys: str) -> ViewMetadata:
    """Return a view's metadata after another program removed properties."""
    document = view.document()
    document["properties"] = {key: value for key, value in view.properties.items() if key not in keys}
    return ViewMetadata.read(document, source="without properties")


@dataclass(frozen=True, slots=True)
class State:
    """A view and its storage table, as published together."""

    view: LoadedView
    storage: LoadedStorage

    @property
    def record(self) -> RefreshRecord | None:
        """The current refresh."""
        return self.storage.record


@dataclass
class Lake:
    """A catalog with base tables, and the actions of its users."""

    iceberg: Catalog
    catalog: MaterializedViewCatalog
    stager: DuckStager
    layout: Layout = "pointed"
    #: How views are refreshed: as the core does. Tests of extras take `airflow_mv.actions.refresh_views`.
    action: Callable[..., list[RefreshResult]] = refresh

    def table(self, name: str = "orders", *, rows: Sequence[tuple[int, str, int]] | None = FIRST) -> Table:
        """Create a base table ``sales.<name>``; with ``rows=None`` it has no snapshot."""
        table = self.iceberg.create_table(f"sales.{name}", schema=ORDERS)
        if rows is not None:
            table.append(orders(rows))
        return table

    def load(self, name: str = "orders") -> Table:
        """The current state of the base table."""
        return self.iceberg.load_table(f"sales.{name}")

    def head(self, name: str = "orders") -> int:
        """The base table's current snapshot id."""
        snapshot = self.load(name).current_snapshot()
        assert snapshot is not None
        return snapshot.snapshot_id

    def append(self, *rows: tuple[int, str, int], name: str = "orders") -> int:
        """Append rows, and return the new snapshot's id."""
        self.load(name).append(orders(rows or ((9, "east", 7),)))
        return self.head(name)

    def compact(self, name: str = "orders") -> int:
        """Add a snapshot with the operation ``replace`` and the same rows, and return its id."""
        table = self.load(name)
        old = table.current_snapshot()
        assert old is not None
        new = Snapshot(
            snapshot_id=old.snapshot_id % 2**60 + 1,
            parent_snapshot_id=old.snapshot_id,
            sequence_number=table.metadata.last_sequence_number + 1,
            timestamp_ms=max(time.time_ns() // 1_000_000, old.timestamp_ms + 1),
            manifest_list=old.manifest_list,
            summary=Summary(Operation.REPLACE),
            schema_id=old.schema_id,
        )
        self.iceberg.commit_table(table, (), (AddSnapshotUpdate(snapshot=new), _main(new.snapshot_id)))
        return new.snapshot_id

    def roll_back(self, snapshot_id: int, name: str = "orders") -> None:
        """Make an older snapshot current again."""
        self.iceberg.commit_table(self.load(name), (), (_main(snapshot_id),))

    def expire(self, snapshot_id: int, name: str = "orders") -> None:
        """Expire a snapshot."""
        self.load(name).maintenance.expire_snapshots().by_id(snapshot_id).commit()

    def views_of_another_catalog(self, folder: Path, count: int) -> None:
        """Create views ``far0``, ``far1``, … that read a table of another catalog, ``west``."""
        with lake(f"sqlite:///{folder}/west.db", folder / "west", "west") as west:
            west.table()
            self.catalog.openers = {"west": lambda: west.catalog}
            for number in range(count):
                self.view(f"far{number}", "SELECT id FROM west.sales.orders")

    def view(self, name: str = "daily", sql: str | None = QUERY, **definition: Any) -> Identifier:
        """Create a materialized view that was never refreshed; a full one, unless its strategy is named."""
        wanted = Definition(sql, **{"layout": self.layout, "refresh_strategy": "full", **definition})
        return create(self.catalog, f"sales.{name}", wanted, stager=self.stager).identifier

    def plain_view(
        self,
        name: str,
        sql: str | Mapping[str, str],
        columns: Sequence[str] = ORDERS.names,
        *,
        namespace: str = "sales",
        comments: Mapping[str, str] | None = None,
    ) -> LoadedView:
        """Create or replace the view ``sales.<name>``, which is not materialized. Without views the test is skipped.

        Args:
            name: The view.
            sql: Its query, or its query in each dialect.
            columns: Its columns.
            namespace: The namespace of the query's short names.
            comments: Comments of columns.
        """
        if self.catalog.view_support.lacking:
            pytest.skip("the catalog has no views")
        view = self.catalog.identify(f"sales.{name}")
        fields = [
            {"id": number, "name": column, "required": False, "type": "string" if column == "region" else "long"}
            | ({"doc": comments[column]} if comments and column in comments else {})
            for number, column in enumerate(columns)
        ]
        definition: dict[str, Any] = {
            "schema": {"type": "struct", "fields": fields},
            "sql": sql,
            "default_catalog": view.catalog,
            "default_namespace": (namespace,),
            "summary": {"engine-name": "other"},
            "now_ms": time.time_ns() // 1_000_000,
        }
        if self.catalog.exists(view):
            loaded = self.catalog.load(view)
            assert self.catalog.replace(loaded, replace_version(loaded.metadata, **definition))
            return self.catalog.load(view)
        location = self.catalog.folders.new(view)
        metadata = new_view(view_uuid=str(uuid.uuid4()), location=location, properties={}, **definition)
        return self.catalog.create(view, metadata)

    def refresh(self, view: str | Identifier = "sales.daily", **arguments: Any) -> RefreshResult:
        """Refresh one view, from plan to publication."""
        return self.action(self.catalog, [view], stager=self.stager, **arguments)[0]

    def stage(
        self, view: str | Identifier = "sales.daily", options: RefreshOptions | None = None
    ) -> tuple[RefreshPlan, Outcome]:
        """Plan and stage a refresh. Only its publication is missing."""
        plan = plan_refresh(self.catalog, view, options)
        outcome = stage(self.catalog, plan, self.stager)
        assert outcome is not None
        return plan, outcome

    def storage(self, view: str | Identifier = "sales.daily") -> LoadedStorage:
        """The current storage table of the view."""
        return self.catalog.load_storage(self.catalog.load(view))

    def drop(self, view: str | Identifier = "sales.daily") -> None:
        """Drop a materialized view."""
        from airflow_mv.extras.maintenance.drop import drop  # the other builders need the core alone

        drop(self.catalog, view)

    def read(self, view: str | Identifier = "sales.daily") -> list[dict[str, Any]]:
        """The stored rows, by an independent reader: in the registered layout by the storage table's name."""
        storage = self.storage(view)
        if storage.name is not None:
            named = self.iceberg.load_table((*storage.name.namespace, storage.name.name))
            return sorted(named.scan().to_arrow().to_pylist(), key=str)
        with scratch_catalog(self.iceberg) as scratch:
            table = scratch.register_table("staged.reading", storage.location)
            rows = table.scan().to_arrow().to_pylist()
        return sorted(rows, key=str)

    def rows_of_catalog(self) -> list[tuple[Any, ...]]:
        """Every row of ``iceberg_tables`` with all columns."""
        assert isinstance(self.iceberg, SqlCatalog)
        with self.iceberg.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(select(IcebergTables.__table__)).fetchall()]


@contextmanager
def lake(
    uri: str, warehouse: Path, name: str = "lake", *, layout: Layout | None = None, **properties: str
) -> Iterator[Lake]:
    """A lake in a new database, in Glue, or behind a REST server's address, with the namespace ``sales``."""
    iceberg = open_catalog(uri, warehouse, name, **properties)
    # A Hive Metastore would put it into a warehouse of its own.
    place = {"location": f"file://{warehouse}/sales"} if uri.startswith("thrift:") else {}
    iceberg.create_namespace_if_not_exists("sales", place)
    catalog = MaterializedViewCatalog(iceberg)
    try:
        yield Lake(iceberg, catalog, DuckStager(catalog, iceberg), layout or catalog.layouts[0])
    finally:
        close(iceberg)


def open_catalog(uri: str, warehouse: Path, name: str = "lake", **properties: str) -> Catalog:
    """Open pyiceberg's catalog at an address; the caller closes it."""
    if uri.startswith("glue+"):
        access = {"glue.endpoint": uri.removeprefix("glue+"), "client.region": "us-east-1"}
        keys = {"client.access-key-id": "testing", "client.secret-access-key": "testing"}
        with opening():
            return load_catalog(name, type="glue", warehouse=f"file://{warehouse}", **access, **keys, **properties)
    if uri.startswith("thrift:"):
        return load_catalog(name, type="hive", uri=uri, warehouse=f"file://{warehouse}", **properties)
    if uri.startswith("http"):
        return load_catalog(name, type="rest", uri=uri, **properties)
    return SqlCatalog(name, uri=uri, warehouse=f"file://{warehouse}", **properties)


def close(iceberg: Catalog) -> None:
    """Close a catalog's connections."""
    if isinstance(iceberg, SqlCatalog):
        iceberg.engine.dispose()
    else:
        iceberg.close()


def rewritten(iceberg: Catalog, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Give a table of a SQL catalog another metadata file: the current one with changes of another writer.

    Args:
        iceberg: The catalog.
        name: The table.
        change: Changes the decoded file.
    """
    assert isinstance(iceberg, SqlCatalog)
    table = iceberg.load_table(name)
    old = _path(table.metadata_location)
    document = json.loads(old.read_text())
    change(document)
    new = old.with_name(f"{old.name.partition('-')[0]}-{uuid.uuid4()}.metadata.json")
    new.write_text(json.dumps(document))
    namespace, _, last = name.rpartition(".")
    found = (IcebergTables.table_namespace == namespace) & (IcebergTables.table_name == last)
    with iceberg.engine.begin() as connection:
        connection.execute(update(IcebergTables).where(found).values(metadata_location=f"file://{new}"))


def empty_commit(iceberg: Catalog, name: str) -> None:
    """Commit as engines do for a DELETE without a match: a new manifest list with the same manifests."""
    table = iceberg.load_table(name)
    old = table.current_snapshot()
    assert old is not None
    totals = {key: value for key, value in (old.summary or {}).additional_properties.items() if key[:6] == "total-"}  # type: ignore[union-attr]
    listed = _path(old.manifest_list)
    copy = listed.with_name(f"snap-{uuid.uuid4()}.avro")
    copy.write_bytes(listed.read_bytes())
    new = Snapshot(
        snapshot_id=uuid.uuid4().int % 2**60,
        parent_snapshot_id=old.snapshot_id,
        sequence_number=table.metadata.last_sequence_number + 1,
        timestamp_ms=max(time.time_ns() // 1_000_000, old.timestamp_ms + 1),
        manifest_list=f"file://{copy}",
        summary=Summary(Operation.DELETE, **totals),
        schema_id=old.schema_id,
    )
    iceberg.commit_table(table, (), (AddSnapshotUpdate(snapshot=new), _main(new.snapshot_id)))


def metadata_files(location: str) -> list[str]:
    """The names of the metadata files below a table's or view's location."""
    return sorted(path.name for path in (_path(location) / "metadata").glob("*.metadata.json"))


def exists(location: str) -> bool:
    """Whether the file at a location exists."""
    return _path(location).exists()


@cache
def _database() -> duckdb.DuckDBPyConnection:
    database = duckdb.connect(config={"threads": 1})
    atexit.register(_forget, database)
    return database


def _forget(database: duckdb.DuckDBPyConnection) -> None:
    database.close()
    _database.cache_clear()


def duck() -> duckdb.DuckDBPyConnection:
    """A cursor of this process's DuckDB, with its own registered tables: starting DuckDB takes longer than a query."""
    return _database().cursor()


_WORK = re.compile(r"CREATE OR REPLACE TEMPORARY VIEW|INSERT INTO")
_NO_STEPS = "only Spark can refresh from changes"


class _Idle(threading.local):
    """This thread's unused scratch catalogs, by their access to stores; SQLite in memory is a thread's own."""

    def __init__(self) -> None:
        self.catalogs: dict[tuple[tuple[str, str], ...], list[SqlCatalog]] = {}


_idle = _Idle()


@contextmanager
def scratch_catalog(like: Catalog | None = None) -> Iterator[SqlCatalog]:
    """Lend an empty catalog in memory, with the namespace ``staged``; it reaches the stores of another catalog.

    A catalog is used again by the next block: creating its engine and tables takes longer than a refresh.
    """
    access = {key: value for key, value in (like.properties if like else {}).items() if key.startswith("s3.")}
    idle = _idle.catalogs.setdefault(tuple(sorted(access.items())), [])
    if idle:
        catalog = idle.pop()
    else:
        nowhere = {"uri": "sqlite://", "warehouse": "file:///nowhere", "init_catalog_tables": "true"}
        catalog = SqlCatalog("scratch", **nowhere, **access)
        catalog.create_namespace("staged")
    try:
        yield catalog
    finally:
        with catalog.engine.begin() as connection:
            connection.execute(delete(IcebergTables))
        idle.append(catalog)


def _path(location: str) -> Path:
    return Path(urlsplit(location).path)


def _main(snapshot_id: int) -> SetSnapshotRefUpdate:
    return SetSnapshotRefUpdate(ref_name="main", type=SnapshotRefType.BRANCH, snapshot_id=snapshot_id)


def _before_work(script: Script) -> list[SqlStep]:
    """The steps that register the storage table, before the incremental steps."""
    return [step for step in script.steps if isinstance(step, SqlStep) and not _WORK.match(step.sql)]


@dataclass
class DuckStager:
    """Executes scripts as the Spark job does, with pyiceberg and DuckDB: equal steps write the same kind of snapshots.

    It supports no incremental step: it recomputes instead, as the job does when a step is impossible.

    Args:
        catalog: Used for its name only.
        iceberg: The catalog of the base tables.
        calls: Every script that was executed, including creations.
    """

    catalog: MaterializedViewCatalog
    iceberg: Catalog
    calls: list[Script] = field(default_factory=list)

    @property
    def refreshes(self) -> list[Script]:
        """The scripts that were refreshes."""
        return [script for script in self.calls if not isinstance(script.steps[-1], CreateStorageStep | RewriteStep)]

    def __call__(self, script: Script) -> Outcome:
        """Execute a script, on its own branch if the storage table is in the catalog."""
        self.calls.append(script)
        if script.branch is not None:
            own = f"{script.branch}_{uuid.uuid4().hex[:8]}"
            script = replace(script, branch=own)
        script = script.bound(STAGING_CATALOG, script.branch)
        with scratch_catalog(self.iceberg) as scratch:
            try:
                return self._stage(scratch, script)
            except duckdb.Error as error:
                return Outcome(script.refresh_id, None, error=str(error), query_error=True)

    def _stage(self, scratch: SqlCatalog, script: Script) -> Outcome:
        if script.incremental and not script.fallback:
            return Outcome(script.refresh_id, None, error=_NO_STEPS, mode="none", fallback="no-spark",
                           fallback_reason=_NO_STEPS)  # fmt: skip
        rows = 0
        for step in (*_before_work(script), *script.fallback) if script.incremental else script.steps:
            if isinstance(step, CreateStorageStep):
                self._create(scratch, step)
            elif isinstance(step, RewriteStep):
                replace_files(self._table(scratch, step.table), step.branch or "main")
            else:
                rows += self._run(scratch, script, step.sql)
        location = self._table(scratch, script.table).metadata_location
        refused = {"fallback": "no-spark", "fallback_reason": _NO_STEPS} if script.incremental else {}
        checked = self._checked(scratch, script.checks) if script.checks else {}
        return Outcome(
            script.refresh_id, location, rows, executor_seconds=0.5, branch=script.branch, **refused, **checked
        )

    def _checked(self, scratch: SqlCatalog, checks: StagedChecks) -> dict[str, Any]:
        """Compute the checks as the job does, in one aggregation over the staged rows; functions are not supported."""
        (row,) = self._query(scratch, checks.statement(checks.checks)).to_pylist()
        values = list(row.values())
        results = [
            CheckResult(check.name, check.severity, values[2 * number + 1] is True, check.expected, values[2 * number])
            for number, check in enumerate(checks.checks)
        ]
        return {"checks": tuple(results), "checks_digest": checks.digest}

    def _create(self, scratch: SqlCatalog, step: CreateStorageStep) -> None:
        schema, comments = self._query(scratch, step.query).schema, dict(step.comments)
        schema = pa.schema(
            [item.with_metadata({"doc": text}) if (text := comments.get(item.name)) else item for item in schema]
        )
        catalog, *rest = split(step.table)
        home = scratch if catalog == STAGING_CATALOG else self.iceberg
        table = home.create_table(tuple(rest), schema=schema, location=step.location, properties=dict(step.properties))
        columns = [transform.strip("`") for transform in step.partition_by]
        if columns and set(columns) <= set(schema.names):
            with table.update_spec() as spec:
                for column in columns:
                    spec.add_identity(column)

    def _run(self, scratch: SqlCatalog, script: Script, sql: str) -> int:
        if register := _REGISTER.fullmatch(sql):
            scratch.register_table(register[1], register[2])
            return 0
        if branch := _BRANCH.fullmatch(sql):
            table = self._table(scratch, branch["table"])
            create_branch(table, branch["branch"], int(branch["start"]) if branch["start"] else None)
            return 0
        if sql.startswith("ALTER TABLE"):
            return 0
        write = _WRITE.fullmatch(sql)
        assert write, sql
        rows = self._query(scratch, write["query"])
        table = self._table(scratch, script.table)
        if write["insert"] is not None:
            rows = _as_stored(rows, table)
        if script.branch is not None:
            stamps = {
                key.partition("snapshot-property.")[2]: value for key, value in script.confs if "property." in key
            }
            overwrite_branch(table, script.branch, rows, {**stamps, **_stamp(script.refresh_id), COMPLETE_KEY: "true"})
            return rows.num_rows
        if write["insert"] is None:
            table = _reshaped(table, rows.schema)
        overwrite(table, rows, script.refresh_id)
        return rows.num_rows

    def _table(self, scratch: SqlCatalog, name: str) -> Table:
        catalog, *rest = split(name)
        return (scratch if catalog == STAGING_CATALOG else self.iceberg).load_table(tuple(rest))

    def _query(self, scratch: SqlCatalog, sql: str) -> pa.Table:
        with duck() as session:

            def bind(match: re.Match[str]) -> str:
                name = f"pinned_{uuid.uuid4().hex}"
                session.register(name, self._scan(scratch, match[1], match[2]))
                return name

            # A table without a snapshot is pinned as a sample of no rows.
            text = _PINNED.sub(bind, sql.replace("TABLESAMPLE (0 ROWS)", ""))
            return _storable(session.sql(sqlglot.transpile(text, read="spark", write="duckdb")[0]).to_arrow_table())

    def _scan(self, scratch: SqlCatalog, name: str, snapshot_id: str | None) -> pa.Table:
        if name.startswith("`delta`."):
            from deltalake import DeltaTable

            from airflow_mv.extras.delta.tables import storage_options

            access = storage_options(self.catalog.properties)
            return DeltaTable(split(name)[1], int(snapshot_id or 0), storage_options=access).to_pyarrow_table()
        own, _, branch = name.partition(".`branch_airflow_mv_")  # a staged branch
        table = self._table(scratch, own)
        if branch:
            return table.scan().use_ref(f"airflow_mv_{branch.strip(chr(96))}").to_arrow()
        return table.scan(snapshot_id=int(snapshot_id) if snapshot_id else None).to_arrow()


def overwrite(table: Table, rows: pa.Table, refresh_id: str) -> None:
    """Replace a table's rows with a snapshot whose summary has the refresh id."""
    stamp = _stamp(refresh_id)
    if table.scan().count() == 0:
        table.append(rows, snapshot_properties=stamp)
    else:
        table.overwrite(rows, snapshot_properties=stamp)


def _stamp(refresh_id: str) -> dict[str, str]:
    return {REFRESH_ID_KEY: refresh_id}


def _as_stored(rows: pa.Table, table: Table) -> pa.Table:
    """As INSERT does: columns are matched by position, and get the table's types, which are Spark's."""
    stored = table.schema().as_arrow()
    return rows.rename_columns(stored.names).cast(pa.schema([item.remove_metadata() for item in stored]))


def _storable(rows: pa.Table) -> pa.Table:
    """DuckDB's sums are 128 bits wide; Spark's are longs."""
    fields = [pa.field(item.name, pa.int64() if _is_wide(item.type) else item.type) for item in rows.schema]
    return rows.cast(pa.schema(fields))


def _is_wide(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind) and kind.scale == 0)


def _reshaped(table: Table, schema: pa.Schema) -> Table:
    with table.update_schema(allow_incompatible_changes=True) as update:
        for name in set(table.schema().column_names) - set(schema.names):
            update.delete_column(name)
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.union_by_name(schema)
    return table
