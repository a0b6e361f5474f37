# SPDX-License-Identifier: Apache-2.0
"""Which versions of Spark the job accepts, and what it says about others."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import StaticTable

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.define.create import create
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.job.driver import reason
from airflow_mv.core.job.versions import require_supported
from airflow_mv.core.publish.layout import read_outcome
from airflow_mv.core.refresh.run import refresh
from airflow_mv.core.script import Outcome, Script
from airflow_mv.errors import UnsupportedError
from airflow_mv.extras.spark.session import settings_of
from airflow_mv.extras.spark.settings import SparkSettings
from airflow_mv.extras.spark.submit import build_package, main_file, spark_versions, write_properties
from airflow_mv.operators.submission_files import handed_over, write_script
from airflow_mv.version import minor, unsupported
from tests.core.job.processes import command_line
from tests.engine.support import configure

SUPPORTED = (
    "supported are Spark 4.1 (Scala 2.13), 4.0 (Scala 2.13), 3.5 (Scala 2.12 or 2.13) with Iceberg 1.10 or newer"
)


@pytest.mark.parametrize(
    ("spark", "scala", "iceberg"),
    [
        ("4.1.3", "2.13.17", "1.12.0"),
        ("4.1.3", "2.13.17", "1.13.1"),
        ("4.1.1", "2.13.17", "1.11.0"),  # Glue 6.0
        ("4.0.2-amzn-0", "2.13.16", "1.10.1-amzn-0"),  # EMR 8
        ("4.0.2", None, None),  # a Connect server
        ("3.5.6-amzn-1", "2.12.18", "1.10.0-amzn-0"),  # EMR 7
        ("3.5.8", "2.13.8", "1.11.0"),
    ],
)
def test_supported_versions_are_accepted(spark: str, scala: str | None, iceberg: str | None) -> None:
    assert unsupported(spark, scala, iceberg) is None


@pytest.mark.parametrize(
    ("spark", "scala", "iceberg", "found"),
    [
        ("3.5.2", "2.12.18", "1.6.1", "Spark 3.5.2 with Iceberg 1.6.1"),
        ("3.4.4", "2.12.17", "1.10.1", "Spark 3.4.4 (Scala 2.12.17) with Iceberg 1.10.1"),
        ("4.0.2", "2.12.18", "1.10.1", "Spark 4.0.2 (Scala 2.12.18) with Iceberg 1.10.1"),
        ("4.0.2", "2.13.16", "1.9.2", "Spark 4.0.2 with Iceberg 1.9.2"),
        ("4.2.0", None, None, "Spark 4.2.0"),
    ],
)
def test_others_are_refused_with_what_is_supported(
    spark: str, scala: str | None, iceberg: str | None, found: str
) -> None:
    assert unsupported(spark, scala, iceberg) == f"{found} is not supported; {SUPPORTED}"


@pytest.mark.parametrize("version", ["4.0.2", "3.5.8"])
def test_spark_connect_on_an_older_spark_is_refused_in_one_line(version: str) -> None:
    """Before anything is read or written; the server's version is the only one that a client knows."""
    server = SimpleNamespace(version=version)
    refusal = f"^Spark Connect on Spark {re.escape(version)} is not supported, only on Spark 4\\.1$"
    with pytest.raises(UnsupportedError, match=refusal):
        require_supported(server)
    server.version = "4.1.3"
    require_supported(server)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[DIVIDE_BY_ZERO] Division by zero.\n== SQL(line 1, position 8) ==\nSELECT 1/k FROM t\n       ^^^\n", "zero."),
        ("[UNRESOLVED_COLUMN] There is no `k`.; line 1 pos 8;\n'Project ['k]\n+- OneRowRelation", "There is no `k`."),
        ("[PARSE_SYNTAX_ERROR] Syntax error at 'k'.(line 1, pos 8)\n\n== SQL ==\nSELECT 1/k", "Syntax error at 'k'."),
    ],
)
def test_an_error_of_spark_3_5_is_reported_with_its_place_and_without_its_plan(text: str, said: str) -> None:
    """It has no SQLSTATE in its text."""
    found = reason(Exception(text), "SELECT 1/k FROM t")
    assert re.fullmatch(rf"\[[A-Z_]+\] .*{re.escape(said)} In the SQL, line 1: SELECT 1/k FROM t", found), found


# ------------------------------------------------------------------------------------ other versions

VIEWS = {
    "lake.sales.daily": "SELECT day, sum(amount) AS amount, count(*) AS orders FROM lake.sales.orders GROUP BY day",
    "lake.sales.large": "SELECT day, amount FROM lake.sales.orders WHERE amount > 7",
}
_RUN_STATEMENTS = "from pyspark.sql import SparkSession\nspark = SparkSession.builder.getOrCreate()"
LAYOUT = {"lake.sales.daily": "registered", "lake.sales.large": "pointed"}
ALWAYS = {"airflow-mv.incremental-up-to": "1000000"}  # a full refresh of a few rows is cheaper


#: What Spark's own archive has, as far as a job needs it. With Spark 3.5, PySpark from PyPI is only for Scala 2.12.
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>spark</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.spark</groupId><artifactId>spark-sql_{scala}</artifactId><version>{spark}</version>
    </dependency>
    <dependency><groupId>org.apache.derby</groupId><artifactId>derby</artifactId><version>10.14.2.0</version></dependency>
  </dependencies>
</project>"""


def replace_jars(home: Path, spark: str, scala: str) -> None:
    """Let a Spark have the jars for another Scala."""
    shutil.rmtree(home / "jars")
    (home / "pom.xml").write_text(_POM.format(spark=spark, scala=scala))
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={home / 'jars'}"]
    subprocess.run(["mvn", "--quiet", "--batch-mode", *goal], cwd=home, check=True)


class OtherSpark:
    """A Spark of another version, whose drivers have PySpark and the job's zip, and nothing else."""

    def __init__(self, folder: Path, pyspark: str, scala: str | None = None) -> None:
        self.folder = folder
        self.packages = folder / "packages"
        install = [sys.executable, "-m", "pip", "install", "-q", "--target", str(self.packages), f"pyspark=={pyspark}"]
        subprocess.run(install, check=True)
        #: Whether the jars are not those of Spark's archive. Hive's are missing then, with which Iceberg reads by path.
        self.assembled = scala is not None and spark_versions(self.packages / "pyspark") != (pyspark, scala)
        if self.assembled and scala is not None:
            replace_jars(self.packages / "pyspark", pyspark, scala)
        self.python = folder / "python"
        self.python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without this environment's packages
        self.python.chmod(0o755)

    def submit(
        self, settings: SparkSettings, *arguments: str, main: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Submit the job, or another program."""
        home = self.packages / "pyspark"
        confs = {**settings.confs, "spark.jars.packages": ",".join(settings.packages), "spark.ui.enabled": "false"}
        properties = write_properties(self.folder, confs, settings.secrets)
        command = [str(home / "bin" / "spark-submit"), "--master", "local[2]", "--properties-file", str(properties)]
        command += ["--py-files", str(build_package(self.folder)), str(main or main_file()), *arguments]
        own = {"SPARK_HOME": str(home), "PYTHONPATH": str(self.packages), "SPARK_LOCAL_IP": "127.0.0.1"}
        own |= {"PYSPARK_PYTHON": str(self.python), "PYSPARK_DRIVER_PYTHON": str(self.python)}
        return subprocess.run(command, cwd=self.folder, env={**os.environ, **own}, capture_output=True, text=True)


@pytest.fixture
def lake_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty lake, configured for this process and its children."""
    for name, value in configure(tmp_path, "lake").items():
        monkeypatch.setenv(name, value)
    catalog = load_catalog("lake")
    catalog.create_namespace("sales")
    yield tmp_path
    catalog.engine.dispose()  # type: ignore[attr-defined]


class Orders:
    """The base table, written by the other Spark, and the same statements in DuckDB.

    Args:
        spark: The other Spark.
        settings: The lake's settings for it.
        kind: The table's format version, and how it deletes rows.
    """

    def __init__(self, spark: OtherSpark, settings: SparkSettings, kind: str) -> None:
        self._spark, self._settings = spark, settings
        version, _, mode = kind.removeprefix("v").partition("-")
        self._duckdb = duckdb.connect()
        self._duckdb.execute("ATTACH ':memory:' AS lake; CREATE SCHEMA lake.sales")
        self._duckdb.execute("CREATE TABLE lake.sales.orders (day varchar, amount int)")
        modes = ", ".join(f"'write.{verb}.mode' = '{mode}'" for verb in ("delete", "update", "merge"))
        self.run(
            f"CREATE TABLE lake.sales.orders (day string, amount int) TBLPROPERTIES ('format-version' = '{version}', "
            f"'write.distribution-mode' = 'none', {modes})",
            in_duckdb=False,
        )

    def run(self, *statements: str, in_duckdb: bool = True) -> None:
        """Run statements in both."""
        main = self._spark.folder / "statements.py"
        main.write_text(f"{_RUN_STATEMENTS}\nfor statement in {statements!r}:\n    spark.sql(statement)\n")
        done = self._spark.submit(self._settings, main=main)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        for statement in statements if in_duckdb else ():
            self._duckdb.execute(statement)

    def recomputed(self, view: str) -> Counter[str]:
        found = self._duckdb.sql(VIEWS[view]).to_arrow_table()
        ints = [field.with_type(pa.int64()) if pa.types.is_decimal(field.type) else field for field in found.schema]
        return Counter(map(repr, found.cast(pa.schema(ints)).to_pylist()))


def stored(catalog: MaterializedViewCatalog, view: str) -> Counter[str]:
    location = catalog.load_storage(catalog.load(view)).location
    return Counter(map(repr, StaticTable.from_metadata(location).scan().to_arrow().to_pylist()))


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("kind", "pyspark", "scala", "iceberg"),
    [
        ("v2-merge-on-read", "3.5.8", "2.12", "1.10.1"),
        ("v3-merge-on-read", "3.5.8", "2.12", "1.12.0"),
        ("v2-merge-on-read", "3.5.8", "2.13", "1.10.1"),
        ("v2-merge-on-read", "4.0.2", "2.13", "1.10.1"),
        ("v3-merge-on-read", "4.0.2", "2.13", "1.11.0"),
    ],
)
def test_views_are_created_refreshed_and_verified_on_an_older_spark(
    lake_folder: Path, kind: str, pyspark: str, scala: str, iceberg: str
) -> None:
    """The zip runs in a bare driver: creation, full, and incremental refreshes. Verify runs in process.

    Deletes by position and deletion vectors are read, and rows that were rewritten with other row ids.
    """
    if scala == "2.13" and pyspark.startswith("3.5.") and shutil.which("mvn") is None:
        pytest.skip("Maven is not installed: Spark's jars for this Scala come from Maven Central")
    spark = OtherSpark(lake_folder, pyspark, scala)
    assert spark_versions(spark.packages / "pyspark") == (pyspark, scala)
    catalog, outcomes = MaterializedViewCatalog("lake"), []
    settings = settings_of(catalog).on(pyspark, scala)
    runtime = f"org.apache.iceberg:iceberg-spark-runtime-{minor(pyspark)}_{scala}:{iceberg}"
    settings = replace(settings, packages=(runtime, *settings.packages[1:]))
    orders = Orders(spark, settings, kind)
    orders.run("INSERT INTO lake.sales.orders VALUES ('a', 10), ('b', 20), ('b', 5)")

    def stager(script: Script) -> Outcome:
        with handed_over(catalog, script) as answered:
            location = write_script(catalog, answered)
            done = spark.submit(settings, location, "lake")
            outcome = read_outcome(catalog, answered)
        assert outcome is not None, done.stdout[-2000:] + done.stderr[-2000:]
        outcomes.append(outcome)
        return outcome

    def refreshed() -> list[str]:
        results = refresh(catalog, list(VIEWS), stager=stager)
        for view in VIEWS:
            assert stored(catalog, view) == orders.recomputed(view)
        return [str(result.mode) for result in results]

    for view, sql in VIEWS.items():
        definition = Definition(sql=sql, layout=LAYOUT[view], refresh_strategy="incremental", properties=ALWAYS)
        create(catalog, view, definition, stager=stager)
    modes = [refreshed()]
    orders.run("INSERT INTO lake.sales.orders VALUES ('b', 7), ('c', 8)")
    modes.append(refreshed())
    orders.run(
        "DELETE FROM lake.sales.orders WHERE amount = 20",
        "UPDATE lake.sales.orders SET amount = amount + 1 WHERE day = 'b'",
        "INSERT INTO lake.sales.orders VALUES ('a', 9)",
    )
    modes.append(refreshed())

    assert modes == [["full", "full"], ["merge", "append"], ["merge", "merge"]]
    assert [outcome.error for outcome in outcomes] == [None] * len(outcomes)
    with command_line(PYTHONPATH=str(spark.packages), SPARK_HOME=str(spark.packages / "pyspark")) as call:
        for view in [view for view in VIEWS if not spark.assembled or LAYOUT[view] == "registered"]:
            verified = call("verify", view)
            assert verified.code == 0, verified


@pytest.mark.slow
def test_spark_3_4_is_refused_in_one_line(lake_folder: Path) -> None:
    """It lacks names that the job imports: its versions are looked at first."""
    spark = OtherSpark(lake_folder, "3.4.4")
    settings = settings_of(MaterializedViewCatalog("lake"))
    runtime = "org.apache.iceberg:iceberg-spark-runtime-3.4_2.12:1.10.1"
    done = spark.submit(replace(settings, packages=(runtime,)), str(lake_folder / "nothing.json"))
    assert done.returncode == 1
    last = done.stdout.rstrip().splitlines()[-1]
    assert last == f"Spark 3.4.4 (Scala 2.12.17) with Iceberg 1.10.1 is not supported; {SUPPORTED}"
