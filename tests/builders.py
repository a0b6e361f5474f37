# SPDX-License-Identifier: Apache-2.0
"""Short constructors with good defaults: a lake with base tables, views, and refreshes staged without Spark."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import sqlglot
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate
from sqlalchemy import select

from airflow_mv.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog
from airflow_mv.create import Definition, create
from airflow_mv.refresh import refresh
from airflow_mv.results import RefreshResult
from airflow_mv.script import STAGING_CATALOG, CreateStorageStep, Outcome, Script
from airflow_mv.spec.identifiers import Identifier, split
from airflow_mv.spec.view import new_view, replace_version

ORDERS = pa.schema([("id", pa.int64()), ("region", pa.string()), ("amount", pa.int64())])
FIRST = ((1, "north", 10), (2, "south", 20), (3, "north", 5))
QUERY = "SELECT region, count(*) AS orders, sum(amount) AS amount FROM lake.sales.orders GROUP BY region"

_REGISTER = re.compile(r"CALL .*register_table\(table => '([^']+)', metadata_file => '([^']+)'\)", re.DOTALL)
_WRITE = re.compile(r"(?:INSERT OVERWRITE (?P<insert>\S+)\n|CREATE OR REPLACE TABLE .*?\nAS )(?P<query>.*)", re.DOTALL)
_PINNED = re.compile(r"((?:`(?:[^`]|``)+`\.){2,}`(?:[^`]|``)+`)(?:\s+(?:FOR\s+)?VERSION AS OF (\d+))?")


def orders(rows: Iterable[tuple[int, str, int]]) -> pa.Table:
    """Rows of the usual base table: ``(id, region, amount)``."""
    return pa.Table.from_pylist([dict(zip(ORDERS.names, row, strict=True)) for row in rows], schema=ORDERS)


@dataclass
class Lake:
    """A SQL catalog with base tables, and what a user does to them."""

    iceberg: SqlCatalog
    catalog: MaterializedViewCatalog
    stager: DuckStager

    def table(self, name: str = "orders", *, rows: Sequence[tuple[int, str, int]] | None = FIRST) -> Table:
        """A base table ``sales.<name>``; ``rows=None`` leaves it without any snapshot."""
        table = self.iceberg.create_table(f"sales.{name}", schema=ORDERS)
        if rows is not None:
            table.append(orders(rows))
        return table

    def load(self, name: str = "orders") -> Table:
        """The base table as it is now."""
        return self.iceberg.load_table(f"sales.{name}")

    def head(self, name: str = "orders") -> int:
        """The snapshot id that the base table is at."""
        snapshot = self.load(name).current_snapshot()
        assert snapshot is not None
        return snapshot.snapshot_id

    def append(self, *rows: tuple[int, str, int], name: str = "orders") -> int:
        """Append rows; the new snapshot's id."""
        self.load(name).append(orders(rows or ((9, "east", 7),)))
        return self.head(name)

    def compact(self, name: str = "orders") -> int:
        """Add a snapshot of the operation ``replace`` with the same rows; its id."""
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
        """Forget a snapshot."""
        self.load(name).maintenance.expire_snapshots().by_id(snapshot_id).commit()

    def view(self, name: str = "daily", sql: str = QUERY, **definition: Any) -> Identifier:
        """A materialized view, never refreshed."""
        return create(self.catalog, f"sales.{name}", Definition(sql, **definition), stager=self.stager).identifier

    def plain_view(self, name: str, sql: str, columns: Sequence[str] = ORDERS.names) -> LoadedView:
        """Someone's ``CREATE OR REPLACE VIEW sales.<name>``: a view that is not materialized."""
        view = self.catalog.identify(f"sales.{name}")
        fields = [
            {"id": number, "name": column, "required": False, "type": "string" if column == "region" else "long"}
            for number, column in enumerate(columns)
        ]
        definition: dict[str, Any] = {
            "schema": {"type": "struct", "fields": fields},
            "sql": sql,
            "default_catalog": view.catalog,
            "default_namespace": view.namespace,
            "summary": {"engine-name": "someone"},
            "now_ms": time.time_ns() // 1_000_000,
        }
        if self.catalog.exists(view):
            loaded = self.catalog.load(view)
            assert self.catalog.replace(loaded, replace_version(loaded.metadata, **definition))
            return self.catalog.load(view)
        location = self.catalog.new_location(view)
        metadata = new_view(view_uuid=str(uuid.uuid4()), location=location, properties={}, **definition)
        return self.catalog.create(view, metadata)

    def refresh(self, view: str | Identifier = "sales.daily", **arguments: Any) -> RefreshResult:
        """Refresh one view, from plan to publication."""
        return refresh(self.catalog, [view], stager=self.stager, **arguments)[0]

    def storage(self, view: str | Identifier = "sales.daily") -> LoadedStorage:
        """What the view's pointer leads to now."""
        return self.catalog.load_storage(self.catalog.load(view))

    def read(self, view: str | Identifier = "sales.daily") -> list[dict[str, Any]]:
        """The stored rows, by an independent reader."""
        scratch = scratch_catalog()
        try:
            table = scratch.register_table("staged.reading", self.storage(view).location)
            rows = table.scan().to_arrow().to_pylist()
        finally:
            scratch.engine.dispose()
        return sorted(rows, key=str)

    def rows_of_catalog(self) -> list[tuple[Any, ...]]:
        """Every row of ``iceberg_tables``, whole."""
        with self.iceberg.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(select(IcebergTables.__table__)).fetchall()]


@contextmanager
def lake(uri: str, warehouse: Path, name: str = "lake", **properties: str) -> Iterator[Lake]:
    """A lake in a new database, with the namespace ``sales``."""
    iceberg = SqlCatalog(name, uri=uri, warehouse=f"file://{warehouse}", **properties)
    iceberg.create_namespace_if_not_exists("sales")
    catalog = MaterializedViewCatalog(iceberg)
    try:
        yield Lake(iceberg, catalog, DuckStager(catalog, iceberg))
    finally:
        iceberg.engine.dispose()


def metadata_files(location: str) -> list[str]:
    """The names of the metadata files below a table's or view's location."""
    return sorted(path.name for path in (_path(location) / "metadata").glob("*.metadata.json"))


def exists(location: str) -> bool:
    """Whether the file at a location is there."""
    return _path(location).exists()


def scratch_catalog() -> SqlCatalog:
    """A throw-away catalog in memory, with the namespace ``staged``."""
    catalog = SqlCatalog("scratch", uri="sqlite://", warehouse="file:///nowhere", init_catalog_tables="true")
    catalog.create_namespace("staged")
    return catalog


def _path(location: str) -> Path:
    return Path(location.removeprefix("file://"))


def _main(snapshot_id: int) -> SetSnapshotRefUpdate:
    return SetSnapshotRefUpdate(ref_name="main", type=SnapshotRefType.BRANCH, snapshot_id=snapshot_id)


@dataclass
class DuckStager:
    """Does what the Spark job does, with pyiceberg and DuckDB: the same steps leave the same kind of files.

    Args:
        catalog: For nothing but its name.
        iceberg: Where the base tables are.
        calls: Every script that was run; creations included.
    """

    catalog: MaterializedViewCatalog
    iceberg: SqlCatalog
    calls: list[Script] = field(default_factory=list)

    @property
    def refreshes(self) -> list[Script]:
        """The scripts that were refreshes."""
        return [script for script in self.calls if not isinstance(script.steps[-1], CreateStorageStep)]

    def __call__(self, script: Script) -> Outcome:
        """Run a script."""
        self.calls.append(script)
        scratch = scratch_catalog()
        try:
            rows = 0
            for step in script.steps:
                if isinstance(step, CreateStorageStep):
                    self._create(scratch, step)
                else:
                    rows += self._run(scratch, script, step.sql)
            return Outcome(script.refresh_id, scratch.load_table("staged.storage").metadata_location, rows)
        except duckdb.Error as error:
            return Outcome(script.refresh_id, None, error=str(error), query_error=True)
        finally:
            scratch.engine.dispose()

    def _create(self, scratch: SqlCatalog, step: CreateStorageStep) -> None:
        schema = self._query(scratch, step.query).schema
        scratch.create_table("staged.storage", schema=schema, location=step.location, properties=dict(step.properties))

    def _run(self, scratch: SqlCatalog, script: Script, sql: str) -> int:
        if register := _REGISTER.fullmatch(sql):
            scratch.register_table(register[1], register[2])
            return 0
        if sql.startswith("ALTER TABLE"):
            return 0
        write = _WRITE.fullmatch(sql)
        assert write, sql
        rows = self._query(scratch, write["query"])
        table = scratch.load_table("staged.storage")
        if write["insert"] is None:
            table = _reshaped(table, rows.schema)
        overwrite(table, rows, script.refresh_id)
        return rows.num_rows

    def _query(self, scratch: SqlCatalog, sql: str) -> pa.Table:
        with duckdb.connect() as session:

            def bind(match: re.Match[str]) -> str:
                name = f"pinned_{uuid.uuid4().hex}"
                session.register(name, self._scan(scratch, match[1], match[2]))
                return name

            # A table without any snapshot is pinned as a sample of no rows.
            text = _PINNED.sub(bind, sql.replace("TABLESAMPLE (0 ROWS)", ""))
            return _storable(session.sql(sqlglot.transpile(text, read="spark", write="duckdb")[0]).to_arrow_table())

    def _scan(self, scratch: SqlCatalog, name: str, snapshot_id: str | None) -> pa.Table:
        catalog, *rest = split(name)
        table = (scratch if catalog == STAGING_CATALOG else self.iceberg).load_table(tuple(rest))
        return table.scan(snapshot_id=int(snapshot_id) if snapshot_id else None).to_arrow()


def overwrite(table: Table, rows: pa.Table, refresh_id: str) -> None:
    """Replace a table's rows, with a snapshot that carries the refresh id."""
    stamp = {"airflow-mv.refresh-id": refresh_id}
    if table.scan().count() == 0:
        table.append(rows, snapshot_properties=stamp)
    else:
        table.overwrite(rows, snapshot_properties=stamp)


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
