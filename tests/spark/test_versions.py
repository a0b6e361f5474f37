# SPDX-License-Identifier: Apache-2.0
"""Which versions of Spark the job accepts, and what it says about others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import StaticTable

from airflow_mv.catalog import MaterializedViewCatalog
from airflow_mv.catalog.spark import SparkSettings
from airflow_mv.job.submit import build_package, main_file, spark_version, write_properties
from airflow_mv.operators.handover import handed_over, write_script
from airflow_mv.publish.layout import read_outcome
from airflow_mv.refresh.create import Definition, create
from airflow_mv.refresh.run import refresh
from airflow_mv.refresh.stagers import settings_of
from airflow_mv.script import Outcome, Script
from airflow_mv.version import unsupported
from tests.engine.support import configure
from tests.spark.processes import command_line

SUPPORTED = (
    "supported are Spark 4.1 with Iceberg 1.12 or newer and Spark 4.0 with Iceberg 1.11 or newer, for Scala 2.13"
)


@pytest.mark.parametrize(
    ("spark", "scala", "iceberg"),
    [
        ("4.1.3", "2.13.17", "1.12.0"),
        ("4.1.3", "2.13.17", "1.13.1"),
        ("4.0.2-amzn-0", "2.13.16", "1.11.0-amzn-0"),
        ("4.0.2", None, None),  # a Connect server
    ],
)
def test_supported_versions_are_accepted(spark: str, scala: str | None, iceberg: str | None) -> None:
    assert unsupported(spark, scala, iceberg) is None


@pytest.mark.parametrize(
    ("spark", "scala", "iceberg", "found"),
    [
        ("3.5.8", "2.13.8", "1.10.2", "Spark 3.5.8 with Iceberg 1.10.2"),
        ("3.5.6-amzn-1", "2.12.18", "1.12.0", "Spark 3.5.6-amzn-1 (Scala 2.12.18) with Iceberg 1.12.0"),
        ("4.0.2", "2.13.16", "1.10.1", "Spark 4.0.2 with Iceberg 1.10.1"),
        ("4.1.3", "2.13.17", "1.11.0", "Spark 4.1.3 with Iceberg 1.11.0"),
        ("4.2.0", None, None, "Spark 4.2.0"),
    ],
)
def test_others_are_refused_with_what_is_supported(
    spark: str, scala: str | None, iceberg: str | None, found: str
) -> None:
    assert unsupported(spark, scala, iceberg) == f"{found} is not supported; {SUPPORTED}"


# ------------------------------------------------------------------------------------ other versions

OLDER = "4.0.2"
VIEWS = {
    "lake.sales.daily": "SELECT day, sum(amount) AS amount, count(*) AS orders FROM lake.sales.orders GROUP BY day",
    "lake.sales.large": "SELECT day, amount FROM lake.sales.orders WHERE amount > 7",
}
LAYOUT = {"lake.sales.daily": "registered", "lake.sales.large": "pointed"}


class OtherSpark:
    """A Spark of another version, whose drivers have PySpark and the job's zip, and nothing else."""

    def __init__(self, folder: Path, pyspark: str) -> None:
        self.folder = folder
        self.packages = folder / "packages"
        install = [sys.executable, "-m", "pip", "install", "-q", "--target", str(self.packages), f"pyspark=={pyspark}"]
        subprocess.run(install, check=True)
        self.python = folder / "python"
        self.python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without this environment's packages
        self.python.chmod(0o755)

    def submit(self, settings: SparkSettings, *arguments: str) -> subprocess.CompletedProcess[str]:
        home = self.packages / "pyspark"
        confs = {**settings.confs, "spark.jars.packages": ",".join(settings.packages), "spark.ui.enabled": "false"}
        properties = write_properties(self.folder, confs, settings.secrets)
        command = [str(home / "bin" / "spark-submit"), "--master", "local[2]", "--properties-file", str(properties)]
        command += ["--py-files", str(build_package(self.folder)), str(main_file()), *arguments]
        own = {"SPARK_HOME": str(home), "PYTHONPATH": str(self.packages), "SPARK_LOCAL_IP": "127.0.0.1"}
        own |= {"PYSPARK_PYTHON": str(self.python), "PYSPARK_DRIVER_PYTHON": str(self.python)}
        return subprocess.run(command, cwd=self.folder, env={**os.environ, **own}, capture_output=True, text=True)


@pytest.fixture
def lake_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A lake with orders, configured for this process and its children."""
    for name, value in configure(tmp_path, "lake").items():
        monkeypatch.setenv(name, value)
    catalog = load_catalog("lake")
    catalog.create_namespace("sales")
    rows = pa.table({"day": ["a", "b", "b"], "amount": pa.array([10, 20, 5], pa.int32())})
    catalog.create_table("sales.orders", schema=rows.schema).append(rows)
    yield tmp_path
    catalog.engine.dispose()  # type: ignore[attr-defined]


def stored(catalog: MaterializedViewCatalog, view: str) -> Counter[str]:
    location = catalog.load_storage(catalog.load(view)).location
    return Counter(map(repr, StaticTable.from_metadata(location).scan().to_arrow().to_pylist()))


def recomputed(view: str) -> Counter[str]:
    with duckdb.connect() as connection:
        connection.register("orders", load_catalog("lake").load_table("sales.orders").scan().to_arrow())
        found = connection.sql(VIEWS[view].replace("lake.sales.", "")).to_arrow_table()
    ints = [field.with_type(pa.int64()) if pa.types.is_decimal(field.type) else field for field in found.schema]
    return Counter(map(repr, found.cast(pa.schema(ints)).to_pylist()))


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_views_are_created_refreshed_and_verified_on_spark_4_0(lake_folder: Path) -> None:
    """The zip runs in a bare driver: creation, full, and three kinds of incremental refresh. Verify runs in process."""
    spark = OtherSpark(lake_folder, OLDER)
    assert spark_version(spark.packages / "pyspark") == OLDER
    catalog, outcomes = MaterializedViewCatalog("lake"), []

    def stager(script: Script) -> Outcome:
        with handed_over(catalog, script) as answered:
            location = write_script(catalog, answered)
            done = spark.submit(settings_of(catalog).on(OLDER), location, "lake")
            outcome = read_outcome(catalog, answered)
        assert outcome is not None, done.stdout[-2000:] + done.stderr[-2000:]
        outcomes.append(outcome)
        return outcome

    for view, sql in VIEWS.items():
        wanted = Definition(sql=sql, layout=LAYOUT[view], refresh_strategy="incremental")
        create(catalog, view, wanted, stager=stager)
    modes = [[result.mode for result in refresh(catalog, list(VIEWS), stager=stager)]]
    orders = load_catalog("lake").load_table("sales.orders")
    orders.append(pa.table({"day": ["b", "c"], "amount": pa.array([7, 8], pa.int32())}))
    modes.append([result.mode for result in refresh(catalog, list(VIEWS), stager=stager)])
    orders.delete("amount = 20")
    modes.append([result.mode for result in refresh(catalog, list(VIEWS), stager=stager)])

    assert modes == [["full", "full"], ["merge", "append"], ["replace-keys", "merge"]]
    assert [outcome.error for outcome in outcomes] == [None] * len(outcomes)
    for view in VIEWS:
        assert stored(catalog, view) == recomputed(view)
    with command_line(PYTHONPATH=str(spark.packages), SPARK_HOME=str(spark.packages / "pyspark")) as call:
        for view in VIEWS:
            verified = call("verify", view)
            assert verified.code == 0, verified


@pytest.mark.slow
def test_spark_3_5_is_refused_in_one_line(lake_folder: Path) -> None:
    """It ignores the setting for a snapshot's summary, and lacks classes that the job imports."""
    spark = OtherSpark(lake_folder, "3.5.8")
    settings = settings_of(MaterializedViewCatalog("lake"))
    runtime = "org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.10.1"
    done = spark.submit(replace(settings, packages=(runtime,)), str(lake_folder / "nothing.json"))
    assert done.returncode == 1
    last = done.stdout.rstrip().splitlines()[-1]
    assert last == f"Spark 3.5.8 (Scala 2.12.18) with Iceberg 1.10.1 is not supported; {SUPPORTED}"
