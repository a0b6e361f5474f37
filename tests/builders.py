# SPDX-License-Identifier: Apache-2.0
"""Short constructors with useful defaults: a lake with base tables and views, and the actions of its users."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    SetSnapshotRefUpdate,
)
from sqlalchemy import select, update

from airflow_mv.common.file_statistics import FileStatistics
from airflow_mv.common.refresh_state import summary_fields
from airflow_mv.core.catalog import STORED_LAYOUTS, Layout, LoadedStorage, LoadedView, MaterializedViewCatalog
from airflow_mv.core.catalog.limits import opening
from airflow_mv.core.define.create import create
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.refresh.choose import RefreshOptions, plan_refresh
from airflow_mv.core.refresh.plan import RefreshPlan, RefreshResult
from airflow_mv.core.refresh.run import refresh, stage
from airflow_mv.core.script import Outcome
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import RefreshRecord
from airflow_mv.core.spec.view import ViewMetadata, new_view, replace_version
from tests.duck import DuckStager, scratch_catalog
from tests.rest.strict import given_properties

#: All layouts, by name.
LAYOUTS = sorted(STORED_LAYOUTS)
ORDERS = pa.schema([("id", pa.int64()), ("region", pa.string()), ("amount", pa.int64())])
FIRST = ((1, "north", 10), (2, "south", 20), (3, "north", 5))
QUERY = "SELECT region, count(*) AS orders, sum(amount) AS amount FROM lake.sales.orders GROUP BY region"


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


def informed(options: RefreshOptions | None = None) -> RefreshOptions:
    """The options with what is added to a refresh that users start."""
    return replace(options or RefreshOptions(), statistics=FileStatistics, summary=summary_fields)


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
        options = informed(arguments.pop("options", None))
        return self.action(self.catalog, [view], stager=self.stager, options=options, **arguments)[0]

    def stage(
        self, view: str | Identifier = "sales.daily", options: RefreshOptions | None = None
    ) -> tuple[RefreshPlan, Outcome]:
        """Plan and stage a refresh. Only its publication is missing."""
        plan = plan_refresh(self.catalog, view, informed(options))
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
        return load_catalog(name, type="rest", uri=uri, **given_properties(uri), **properties)
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


def shift_times(location: str, milliseconds: int) -> None:
    """Shift every time in a metadata file, as if a host with a wrong clock had written it."""
    path = _path(location)
    found = json.loads(path.read_text())
    found["last-updated-ms"] += milliseconds
    for item in (*found["snapshots"], *found["snapshot-log"]):
        item["timestamp-ms"] += milliseconds
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum file
    path.write_text(json.dumps(found))


def _path(location: str) -> Path:
    return Path(urlsplit(location).path)


def _main(snapshot_id: int) -> SetSnapshotRefUpdate:
    return SetSnapshotRefUpdate(ref_name="main", type=SnapshotRefType.BRANCH, snapshot_id=snapshot_id)
