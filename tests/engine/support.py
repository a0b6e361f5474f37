# SPDX-License-Identifier: Apache-2.0
"""Real Spark and real catalogs: helpers for the tests of the engine and the command line."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow
import pyiceberg.catalog
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import StaticTable
from pyiceberg.utils.config import Config
from pyspark.sql import DataFrame, SparkSession

from airflow_mv.actions import create_view as create
from airflow_mv.actions import refresh_views
from airflow_mv.common.file_statistics import FileStatistics
from airflow_mv.common.refresh_state import summary_fields
from airflow_mv.common.status import ViewStatus, status
from airflow_mv.core.catalog import LoadedView, MaterializedViewCatalog
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.refresh import RefreshOptions, SnapshotSet
from airflow_mv.core.refresh.plan import RefreshPlan, RefreshResult
from airflow_mv.core.script import Outcome, Script
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import PROPERTY
from airflow_mv.extras.history.time_travel import TimeTravel
from airflow_mv.extras.read import readable
from airflow_mv.extras.spark.session import open_session, session_stager, settings_of
from airflow_mv.extras.spark.settings import ICEBERG_VERSION, POSTGRESQL
from tests.core.job.changing import QUICK
from tests.duck import duck

#: The JIT compiles quickly instead of well: on small data the second compiler takes half of a test's time.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: The variable with another Spark master for the tests' session.
MASTER = "AIRFLOW_MV_TEST_MASTER"
#: The catalogs' names; the views are in the first one.
LAKE, OTHER = "lake", "elsewhere"


def as_arrow(columns: str | pyarrow.Schema, rows: str | None = None) -> pyarrow.Table:
    """Create an Arrow table from columns and ``VALUES`` in DuckDB's syntax."""
    with duck() as connection:
        if isinstance(columns, str):
            connection.execute(f"CREATE TEMP TABLE made ({columns})")
        else:
            connection.register("empty", columns.empty_table())
            connection.execute("CREATE TEMP TABLE made AS FROM empty")
        if rows:
            connection.execute(f"INSERT INTO made VALUES {rows}")
        return connection.sql("FROM made").to_arrow_table()


def no_spark(script: Script) -> Outcome:
    """A stager for tests that must not start a job."""
    raise AssertionError(f"a Spark job was started: {script.statements}")


def configure(folder: Path, *names: str) -> dict[str, str]:
    """Configure SQLite catalogs below a folder for pyiceberg in this process; return the variables."""
    variables = {}
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
        prefix = f"PYICEBERG_CATALOG__{name.upper()}__"
        variables |= {
            f"{prefix}TYPE": "sql",
            f"{prefix}URI": f"sqlite:///{folder}/{name}.db",
            f"{prefix}WAREHOUSE": f"file://{folder}/{name}",
        }
    os.environ.update(variables)
    reload_configuration()
    return variables


def reload_configuration() -> None:
    """Reload pyiceberg's configuration, which it reads only at import."""
    pyiceberg.catalog._ENV_CONFIG = Config()  # type: ignore[attr-defined]


def without_catalogs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the catalogs that the tests with Spark have configured for this process."""
    for name in [name for name in os.environ if name.startswith("PYICEBERG_CATALOG__")]:
        monkeypatch.delenv(name)


def open_spark(catalog: MaterializedViewCatalog) -> SparkSession:
    """The only session of this process, with settings for small data."""
    settings = settings_of(catalog)
    # Tests of other folders use this session, too, so it has every driver from the start.
    confs = {**settings.session_confs(), "spark.driver.defaultJavaOptions": QUICK_JAVA}
    confs["spark.jars.packages"] += f",{POSTGRESQL},org.apache.iceberg:iceberg-aws-bundle:{ICEBERG_VERSION}"
    confs |= {f"spark.sql.catalog.{name}.jdbc.synchronous": "OFF" for name in (LAKE, OTHER)}
    spark = open_session(confs, master=os.environ.get(MASTER, "local[2]"), report=lambda _: None)
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    for key, value in QUICK.items():
        spark.conf.set(key, value)
    return spark


@dataclass(frozen=True)
class Lake:
    """A namespace for one test, in the lake that all tests share."""

    spark: SparkSession
    catalog: MaterializedViewCatalog
    namespace: str
    scripts: list[Script] = field(default_factory=list)

    def __call__(self, name: str) -> str:
        """Return a full name."""
        return f"{self.catalog.name}.{self.namespace}.{name}"

    @property
    def files(self) -> Catalog:
        """The same catalog, opened with pyiceberg alone."""
        return load_catalog(self.catalog.name)

    def stager(self, script: Script) -> Outcome:
        """Run a script in the session, and record it."""
        self.scripts.append(script)
        return session_stager(self.catalog, self.spark, report=lambda _: None)(script)

    def sql(self, text: str) -> DataFrame:
        """Run a statement; ``{ns}`` is replaced by the namespace."""
        return self.spark.sql(text.replace("{ns}", f"{self.catalog.name}.{self.namespace}"))

    def run(self, *statements: str) -> None:
        """Run statements and ignore their results."""
        for statement in statements:
            self.sql(statement).collect()

    def table(self, name: str, columns: str, *rows: str, partitioned_by: str | None = None) -> str:
        """Create a table without Spark, which is faster, and insert rows; columns and rows are in DuckDB's syntax."""
        schema = as_arrow(columns).schema
        table = self.files.create_table((self.namespace, name), schema=schema)
        if partitioned_by:
            with table.update_spec() as spec:
                spec.add_identity(partitioned_by)
        self.insert(name, *rows)
        return self(name)

    def insert(self, name: str, *rows: str) -> None:
        """Insert rows, with one commit for each text."""
        for text in rows:
            table = self.files.load_table((self.namespace, name))
            table.append(as_arrow(table.schema().as_arrow(), text))

    def create(self, name: str, sql: str | None, *, replace: bool = False, **definition: Any) -> LoadedView:
        """Create a materialized view. Without a strategy a new one's refreshes are full."""
        text = sql.replace("{ns}", f"{self.catalog.name}.{self.namespace}") if sql else None
        given = definition if replace else {"refresh_strategy": "full", **definition}
        wanted = Definition(sql=text, **given)
        return create(self.catalog, self(name), wanted, stager=self.stager, replace=replace)

    def refresh(
        self,
        *names: str,
        stager: Callable[[Script], Outcome] | None = None,
        on_plan: Callable[[RefreshPlan], None] | None = None,
        pins: SnapshotSet | None = None,
        **options: Any,
    ) -> RefreshResult:
        """Refresh views; return the last one's result."""
        wanted = RefreshOptions(**{"statistics": FileStatistics, "summary": summary_fields, **options})
        views = [self(name) for name in names]
        return refresh_views(
            self.catalog, views, stager=stager or self.stager, options=wanted, on_plan=on_plan, pins=pins
        )[-1]

    def status(self, name: str) -> ViewStatus:
        """Return the status of a view."""
        return status(self.catalog, self(name))

    def codes(self, name: str) -> list[str]:
        """The codes of a view's reasons."""
        return [str(reason.code) for reason in self.status(name).reasons]

    def view(self, name: str) -> LoadedView:
        """Load a view."""
        return self.catalog.load(self(name))

    def settings(self, name: str) -> dict[str, Any]:
        """The view's record as stored."""
        return json.loads(self.view(name).metadata.properties[PROPERTY])

    def stored(self, name: str, **which: Any) -> pyarrow.Table:
        """The stored rows, stale or not, read by pyiceberg."""
        view = self.view(name)
        found = readable(self.catalog, self(name), TimeTravel(**which)) if which else None
        storage = found.storage if found else self.catalog.load_storage(view)
        table = StaticTable.from_metadata(storage.location)
        return table.scan(snapshot_id=found.snapshot_id if found else None).to_arrow()

    def rows(self, name: str, **which: Any) -> list[tuple[Any, ...]]:
        """The stored rows as sorted tuples."""
        return sorted((tuple(row.values()) for row in self.stored(name, **which).to_pylist()), key=repr)

    def stored_files(self, name: str) -> list[Path]:
        """The data files of the stored rows."""
        table = StaticTable.from_metadata(self.catalog.load_storage(self.view(name)).location)
        return [Path(task.file.file_path.removeprefix("file:")) for task in table.scan().plan_files()]

    def snapshot(self, name: str) -> int:
        """A base table's current snapshot."""
        found = self.files.load_table((self.namespace, name)).metadata.current_snapshot_id
        assert found is not None
        return found


def recomputed(lake: Lake, view: str, sql: str) -> Counter[str]:
    """Return DuckDB's result for the base tables at the snapshots that the view's refresh recorded.

    Args:
        lake: The lake with the view.
        view: Its name.
        sql: The query in DuckDB's syntax, with the tables' last names.
    """
    state = lake.catalog.load_storage(lake.view(view)).state
    assert state is not None
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for table in state.current.base_tables:
            identifier = Identifier.parse(table.identifier)
            source = load_catalog(identifier.catalog).load_table((*identifier.namespace, identifier.name))
            number = table.snapshot_reference
            arrow = source.scan(snapshot_id=None if number == -1 else number).to_arrow()
            connection.register(identifier.name, arrow)
        return multiset(connection.sql(sql).to_arrow_table())


def multiset(table: pyarrow.Table) -> Counter[str]:
    """The number of occurrences of each row; values are text, so that equal numbers of two types are equal."""
    return Counter(repr([_plain(value) for value in row.values()]) for row in table.to_pylist())


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return f"{value:.9g}"
    return str(value) if value is not None else None


def texts(frame: DataFrame | Iterable[Any]) -> list[str]:
    """The first column of each row."""
    rows = frame.collect() if isinstance(frame, DataFrame) else frame
    return [str(row[0]) for row in rows]
