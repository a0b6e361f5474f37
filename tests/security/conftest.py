# SPDX-License-Identifier: Apache-2.0
"""A lake that the command line can open, with a refreshed view; all without Spark."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyiceberg.catalog
import pytest
from pyiceberg.catalog.sql import IcebergNamespaceProperties, IcebergTables
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate
from pyiceberg.utils.config import Config
from sqlalchemy import delete, insert, select, text

from airflow_mv.core.catalog import Layout
from tests.builders import Lake, lake
from tests.cli.support import Ended, call

VIEW = "lake.sales.daily"


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read each file. These tests replace the content of files in place, of which a cache by location knows nothing."""
    monkeypatch.setenv("AIRFLOW_MV_CACHE", "off")


@dataclass
class Shop:
    """A lake with ``sales.orders`` and the refreshed view ``sales.daily``, and its rows in the catalog."""

    lake: Lake
    folder: Path
    view_file: str
    table_file: str
    storage_file: str
    storage_name: tuple[str, ...] | None

    @property
    def document(self) -> dict[str, Any]:
        """The view's original metadata."""
        return dict(json.loads(Path(self.view_file.removeprefix("file://")).read_text()))

    @property
    def storage_document(self) -> dict[str, Any]:
        """The storage table's original metadata."""
        return dict(json.loads(Path(self.storage_file.removeprefix("file://")).read_text()))

    def put(self, data: bytes | Mapping[str, Any], name: str = "bad.metadata.json") -> str:
        """Write a file below the warehouse, and return its location."""
        file = self.folder / "warehouse" / "sales" / "put" / "metadata" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
        return file.as_uri().replace("%7E", "~")

    def point(self, location: object, name: str = "daily", **columns: object) -> None:
        """Change a row directly in the database."""
        values = {"metadata_location": location, **columns}
        settings = ", ".join(f"{key} = :{key}" for key in values)
        with self.lake.iceberg.engine.begin() as connection:
            connection.execute(
                text(f"UPDATE iceberg_tables SET {settings} WHERE table_name = :name"), values | {"name": name}
            )

    def with_view(self, data: bytes | Mapping[str, Any], name: str = "bad.metadata.json") -> None:
        """Point the view at a file with this content."""
        self.point(self.put(data, name))

    def with_storage(self, data: bytes | Mapping[str, Any], name: str = "storage.metadata.json") -> None:
        """Replace the storage table's file by one with this content: in the view, or in its row."""
        if self.storage_name is not None:
            self.point(self.put(data, name), self.storage_row)
            return
        self.with_settings({"storage-table-location": self.put(data, name)})

    def with_settings(self, settings: Mapping[str, Any] | str) -> None:
        """Set the view's record."""
        record = settings if isinstance(settings, str) else json.dumps(settings)
        properties = {**self.document["properties"], "materialized_view_metadata": record}
        self.with_view({**self.document, "properties": properties})

    def with_view_properties(self, properties: Mapping[str, str]) -> None:
        """Set additional view properties."""
        self.with_view({**self.document, "properties": {**self.document["properties"], **properties}})

    def with_storage_properties(self, properties: Mapping[str, str]) -> None:
        """Set additional table properties of the storage table."""
        document = self.storage_document
        self.with_storage({**document, "properties": {**document["properties"], **properties}})

    @property
    def storage_row(self) -> str:
        """The name in the storage table's row (registered layout)."""
        assert self.storage_name is not None
        return self.storage_name[-1]

    def storage_table(self) -> Table:
        """The storage table in the catalog (registered layout)."""
        assert self.storage_name is not None
        return self.lake.iceberg.load_table(self.storage_name)

    def with_storage_snapshot(self, summary: Mapping[str, str]) -> None:
        """Add a snapshot of another writer with this summary to the storage table in the catalog."""
        table = self.storage_table()
        old = table.current_snapshot()
        assert old is not None
        new = old.model_copy(
            update={
                "snapshot_id": old.snapshot_id % 2**60 + 1,
                "parent_snapshot_id": old.snapshot_id,
                "sequence_number": table.metadata.last_sequence_number + 1,
                "summary": Summary(Operation.APPEND, **summary),
            }
        )
        main = SetSnapshotRefUpdate(ref_name="main", type=SnapshotRefType.BRANCH, snapshot_id=new.snapshot_id)
        self.lake.iceberg.commit_table(table, (), (AddSnapshotUpdate(snapshot=new), main))

    def repair(self) -> None:
        """Restore the pointers."""
        self.point(self.view_file)
        self.point(self.table_file, "orders")


def refused_or_works(*commands: str) -> list[str]:
    """Call commands; each prints its document or ends with one clear error. Return the errors."""
    errors = []
    for command in commands:
        ended = call(command, VIEW, "--json")
        if ended.code == 0:
            assert ended.json is not None
        else:
            errors.append(error_of(ended))
    return errors


def error_of(ended: Ended) -> str:
    """Return the one error of a call, after checking that it is short, about the view, and safe for a terminal."""
    assert ended.code in (1, 2), ended.stderr
    message = ended.error
    assert len(message) < 3000, message[:500]
    assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in message), repr(message)
    return message


def configured(**catalogs: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that configure catalogs for pyiceberg."""
    return {
        f"PYICEBERG_CATALOG__{name.upper()}__{key.upper().replace('.', '__').replace('-', '_')}": value
        for name, properties in catalogs.items()
        for key, value in properties.items()
    }


@pytest.fixture(scope="module")
def _built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with _shop(tmp_path_factory.mktemp("shop"), "pointed") as found:
        yield found


@pytest.fixture(scope="module")
def _built_registered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with _shop(tmp_path_factory.mktemp("registered"), "registered") as found:
        yield found


@contextmanager
def _shop(folder: Path, layout: Layout) -> Iterator[Shop]:
    warehouse = folder / "warehouse"
    warehouse.mkdir()
    with lake(f"sqlite:///{folder}/catalog.db", warehouse, layout=layout) as found:
        found.table()
        found.view()
        found.refresh()
        view, storage = found.catalog.load(VIEW).metadata_location, found.storage()
        name = (*storage.name.namespace, storage.name.name) if storage.name else None
        yield Shop(found, folder, view, found.load().metadata_location, storage.location, name)


@pytest.fixture
def shop(_built: Shop, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """A lake that the command line opens under the name ``lake``; each test gets it in its original state."""
    with _found(_built, monkeypatch):
        yield _built


@pytest.fixture
def registered_shop(_built_registered: Shop, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """The same, with the view's storage table in the catalog."""
    with _found(_built_registered, monkeypatch):
        yield _built_registered


@contextmanager
def _found(built: Shop, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("PYICEBERG_CATALOG__")]:
        monkeypatch.delenv(name)
    given = {key: built.lake.iceberg.properties[key] for key in ("uri", "warehouse")}
    for name, value in configured(lake={"type": "sql", **given}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())
    with _rows_kept(built.lake):
        yield
    # No metadata file is ever overwritten, so the rows are the complete state.
    for left in (built.folder / "outside", built.folder / "warehouse" / "sales" / "put"):
        shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _rows_kept(found: Lake) -> Iterator[None]:
    tables = [IcebergTables.__table__, IcebergNamespaceProperties.__table__]
    with found.iceberg.engine.connect() as connection:
        before = [[row._asdict() for row in connection.execute(select(table))] for table in tables]
    yield
    with found.iceberg.engine.begin() as connection:
        for table, rows in zip(tables, before, strict=True):
            connection.execute(delete(table))
            connection.execute(insert(table), rows)
