# SPDX-License-Identifier: Apache-2.0
"""A Spark session for all tests of this folder, and a separate lake for each test."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession

from airflow_mv.core.refresh.statements import STORAGE_PROPERTIES
from airflow_mv.core.script import STAGING, CreateStorageStep, Outcome, Script, SqlStep, TableRead
from airflow_mv.extras.spark.session import open_session
from airflow_mv.extras.spark.settings import POSTGRESQL, SparkSettings, spark_settings
from tests.core.job.processes import OverConnect

#: The JIT compiles quickly instead of well: on small data the second compiler takes half of a test's time.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
TABLE = f"`{STAGING}`.`staged`.`storage`"
CANARY = "canary-6f1c-password"


@dataclass(frozen=True, slots=True)
class Lake:
    """A catalog in SQLite with ``sales.orders`` of two snapshots: (a, 10), (b, 20); then (b, 5)."""

    name: str
    folder: Path
    properties: dict[str, str]
    first_snapshot: int

    @property
    def settings(self) -> SparkSettings:
        return spark_settings(self.name, self.properties)

    @property
    def storage(self) -> str:
        return f"{self.folder.as_uri()}/warehouse/storage"

    def query(self, pin: int | None = None) -> str:
        version = f" VERSION AS OF {pin}" if pin else ""
        return f"SELECT day, sum(amount) AS amount FROM {self.name}.sales.orders{version} GROUP BY day"

    @property
    def reads(self) -> tuple[TableRead, ...]:
        """The read orders table, with and without a snapshot."""
        name = f"`{self.name}`.`sales`.`orders`"
        return TableRead(name, None), TableRead(name, self.first_snapshot)

    def creation(self, query: str | None = None, **options: Any) -> Script:
        given = {"properties": STORAGE_PROPERTIES, **options}
        step = CreateStorageStep(TABLE, query or self.query(), self.storage, **given)
        return Script(f"{self.name}.sales.daily", "created", TABLE, (step,), reads=self.reads)

    def refresh(self, metadata_location: str, query: str, **options: Any) -> Script:
        register = (
            f"CALL `{STAGING}`.system.register_table(table => 'staged.storage', metadata_file => '{metadata_location}')"
        )
        steps = (SqlStep(register), SqlStep(f"INSERT OVERWRITE {TABLE}\n{query}"))
        return Script(f"{self.name}.sales.daily", str(uuid.uuid4()), TABLE, steps, reads=self.reads, **options)

    def whole(self, query: str | None = None, **options: Any) -> Script:
        """Creation and pinned refresh in one script, which needs one Spark application only."""
        first, *_ = self.creation().steps
        insert = SqlStep(f"INSERT OVERWRITE {TABLE}\n{query or self.query(self.first_snapshot)}")
        return Script(
            f"{self.name}.sales.daily", str(uuid.uuid4()), TABLE, (first, insert), reads=self.reads, **options
        )

    def pointers(self) -> list[tuple[str, str]]:
        """The rows in the catalog's database."""
        with closing(sqlite3.connect(self.folder / "catalog.db")) as database:
            return database.execute("SELECT table_namespace, table_name FROM iceberg_tables").fetchall()


def make_lake(folder: Path, **properties: str) -> Lake:
    """Create a lake without Spark."""
    name = f"lake_{uuid.uuid4().hex[:8]}"  # a session reads the settings of a catalog once
    given = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"{folder.as_uri()}/warehouse"}
    given |= properties
    catalog = SqlCatalog(name, **given)
    try:
        catalog.create_namespace("sales")
        rows = pa.table({"day": ["a", "b"], "amount": pa.array([10, 20], pa.int32())})
        orders = catalog.create_table("sales.orders", schema=rows.schema)
        orders.append(rows)
        first = orders.current_snapshot()
        orders.append(pa.table({"day": ["b"], "amount": pa.array([5], pa.int32())}))
    finally:
        catalog.engine.dispose()
    assert first is not None
    return Lake(name, folder, given, first.snapshot_id)


def rows_of(outcome: Outcome) -> list[tuple[Any, ...]]:
    """Read the staged table from its metadata file, as another engine does."""
    assert outcome.error is None, outcome.error
    assert outcome.metadata_location is not None
    table = StaticTable.from_metadata(outcome.metadata_location).scan().to_arrow()
    return sorted(tuple(row.values()) for row in table.to_pylist())


@pytest.fixture(scope="session")
def session() -> Iterator[SparkSession]:
    """One local session with a secret in its configuration."""
    settings = spark_settings("unused", {"type": "sql", "uri": "sqlite:////nowhere/x.db", "token": CANARY})
    confs = {**settings.session_confs(), "spark.driver.defaultJavaOptions": QUICK_JAVA}
    confs["spark.jars.packages"] += f",{POSTGRESQL}"
    spark = open_session(confs, master="local[2]")
    yield spark
    spark.stop()


@pytest.fixture(scope="session")
def over_connect(connect: str) -> Iterator[OverConnect]:
    """A client of Spark Connect: a process that runs Spark's Java, such as this one, cannot be one."""
    found = OverConnect(connect)
    with found.process:
        yield found


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A lake that is not configured in any session."""
    return make_lake(tmp_path)


@pytest.fixture
def spark(session: SparkSession, lake: Lake) -> SparkSession:
    """The session with the test's lake configured."""
    return open_session(lake.settings.session_confs())
