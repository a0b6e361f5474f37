# SPDX-License-Identifier: Apache-2.0
"""A lake that the command line finds, with a refreshed view: all without Spark."""

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
from pyiceberg.utils.config import Config
from sqlalchemy import delete, insert, select, text

from tests.builders import Lake, lake
from tests.cli.support import Ended, call

VIEW = "lake.sales.daily"


@dataclass
class Shop:
    """A lake with ``sales.orders`` and the refreshed view ``sales.daily``, and its rows in the catalog."""

    lake: Lake
    folder: Path
    view_file: str
    table_file: str

    @property
    def document(self) -> dict[str, Any]:
        """The view's metadata as it was."""
        return dict(json.loads(Path(self.view_file.removeprefix("file://")).read_text()))

    @property
    def storage_document(self) -> dict[str, Any]:
        """The storage table's metadata as it was."""
        settings = json.loads(self.document["properties"]["materialized_view_metadata"])
        return dict(json.loads(Path(settings["storage-table-location"].removeprefix("file://")).read_text()))

    def put(self, data: bytes | Mapping[str, Any], name: str = "bad.metadata.json") -> str:
        """Write a file below the warehouse; its location."""
        file = self.folder / "warehouse" / "sales" / "put" / "metadata" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
        return file.as_uri().replace("%7E", "~")

    def point(self, location: object, name: str = "daily", **columns: object) -> None:
        """Change a row behind everyone's back."""
        values = {"metadata_location": location, **columns}
        settings = ", ".join(f"{key} = :{key}" for key in values)
        with self.lake.iceberg.engine.begin() as connection:
            connection.execute(
                text(f"UPDATE iceberg_tables SET {settings} WHERE table_name = :name"), values | {"name": name}
            )

    def with_view(self, data: bytes | Mapping[str, Any], name: str = "bad.metadata.json") -> None:
        """Let the view's pointer lead to this content."""
        self.point(self.put(data, name))

    def with_storage(self, data: bytes | Mapping[str, Any], name: str = "storage.metadata.json") -> None:
        """Let the view name a storage table file with this content."""
        self.with_settings({"storage-table-location": self.put(data, name)})

    def with_settings(self, settings: Mapping[str, Any] | str) -> None:
        """Let the view have this record."""
        record = settings if isinstance(settings, str) else json.dumps(settings)
        properties = {**self.document["properties"], "materialized_view_metadata": record}
        self.with_view({**self.document, "properties": properties})

    def mend(self) -> None:
        """Put the pointers back."""
        self.point(self.view_file)
        self.point(self.table_file, "orders")


def refused_or_works(*commands: str) -> list[str]:
    """Call commands; each gives its document or ends with one clear error. The errors."""
    errors = []
    for command in commands:
        ended = call(command, VIEW, "--json")
        if ended.code == 0:
            assert ended.json is not None
        else:
            errors.append(error_of(ended))
    return errors


def error_of(ended: Ended) -> str:
    """The one error of a call, checked: short, about the view, and nothing raw for the terminal."""
    assert ended.code in (1, 2), ended.stderr
    message = ended.error
    assert len(message) < 3000, message[:500]
    assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in message), repr(message)
    return message


def configured(**catalogs: Mapping[str, str]) -> dict[str, str]:
    """The variables that configure catalogs for pyiceberg."""
    return {
        f"PYICEBERG_CATALOG__{name.upper()}__{key.upper().replace('.', '__').replace('-', '_')}": value
        for name, properties in catalogs.items()
        for key, value in properties.items()
    }


@pytest.fixture(scope="module")
def _built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("shop")
    warehouse = folder / "warehouse"
    warehouse.mkdir()
    with lake(f"sqlite:///{folder}/catalog.db", warehouse) as found:
        found.table()
        found.view()
        found.refresh()
        view = found.catalog.load(VIEW).metadata_location
        yield Shop(found, folder, view, found.load().metadata_location)


@pytest.fixture
def shop(_built: Shop, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """A lake that the command line finds under the name ``lake``; each test finds it as it was built."""
    for name in [name for name in os.environ if name.startswith("PYICEBERG_CATALOG__")]:
        monkeypatch.delenv(name)
    given = {key: _built.lake.iceberg.properties[key] for key in ("uri", "warehouse")}
    for name, value in configured(lake={"type": "sql", **given}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())
    with _rows_kept(_built.lake):
        yield _built
    # No metadata file is ever written twice, so the rows are the state.
    for left in (_built.folder / "outside", _built.folder / "warehouse" / "sales" / "put"):
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
