# SPDX-License-Identifier: Apache-2.0
"""A folder of views that has not changed: ``apply --plan``, and Airflow's look at a DAG file made of it."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import load_catalog

from airflow_mv.actions import create_view
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.script import Outcome, Script
from airflow_mv.extras.folder.write import write_file
from benchmarks import report
from benchmarks.starts import parse_ms

_TABLES = 20
_COLUMNS = pa.schema([("id", pa.int64()), ("region", pa.string()), ("day", pa.date32()), ("amount", pa.int64())])
_SIZES = (20, 200)
#: A DAG file of as many tasks as a folder gives: a creation and a refresh of each view.
_PLAIN = """
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG
with DAG("plain"):
    for number in range({tasks}):
        SparkSubmitOperator(task_id=f"t{{number}}", application="x.py")
"""
_FOLDER = """
from airflow_mv.dags import materialized_views_dag
materialized_views_dag("folder", {folder!r})
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--repeat", type=int, default=3, metavar="R", help="runs of each measurement")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, print the table, return every run."""
    facts = report.machine()
    found: dict[str, list[float]] = {}
    for size in _SIZES:
        with _views(options.cache.resolve(), size) as (folder, environment):
            file, plain = folder.parent / "folder.py", folder.parent / "plain.py"
            file.write_text(_FOLDER.format(folder=str(folder)))
            plain.write_text(_PLAIN.format(tasks=2 * size))
            for _ in range(options.repeat):
                found.setdefault(f"plan_{size}", []).append(_plan(environment, folder))
                found.setdefault(f"plain_{size}", []).append(parse_ms(environment, plain))
                found.setdefault(f"parse_{size}", []).append(parse_ms(environment, file))
    titles = {
        key: title.format(size=size)
        for size in _SIZES
        for key, title in (
            (f"plan_{size}", "`airflow-mv apply --plan` of {size} views without a change, s"),
            (f"plain_{size}", "a DAG file with two tasks of the Spark provider for each of {size} views, ms"),
            (f"parse_{size}", "a DAG file of the folder with {size} views, ms"),
        )
    }
    print(f"\n{report.about(facts)}\n")
    print(report.table(("", "median (least to most)"), [(titles[key], report.spread(found[key])) for key in titles]))
    return {"benchmark": "folder", "machine": facts, **found}


@contextmanager
def _views(cache: Path, size: int) -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield a folder of views as they are in a catalog, and the environment in which commands find the catalog."""
    home = cache / f"folder-{uuid.uuid4().hex[:8]}"
    home.mkdir(parents=True)
    try:
        settings = {"type": "sql", "uri": f"sqlite:///{home}/lake.db", "warehouse": f"file://{home}/lake"}
        iceberg = load_catalog("lake", **settings)
        iceberg.create_namespace("bench")
        for number in range(_TABLES):
            iceberg.create_table(f"bench.t{number}", schema=_COLUMNS)
        catalog = MaterializedViewCatalog(iceberg)
        for number in range(size):
            made = create_view(catalog, f"bench.v{number}", _definition(number), stager=_no_spark)
            write_file(home / "views", catalog, made)
        own = {f"PYICEBERG_CATALOG__LAKE__{key.upper()}": value for key, value in settings.items()}
        environment = {**os.environ, **own, "AIRFLOW_HOME": str(home / "airflow")}
        yield home / "views", environment
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _definition(number: int) -> Definition:
    """Each tenth view reads the one before it; the others join two tables."""
    sql = (
        f"SELECT t.region, t.day, count(*) AS orders, sum(t.amount) AS amount, max(u.id) AS latest "
        f"FROM lake.bench.t{number % _TABLES} AS t JOIN lake.bench.t{(number + 1) % _TABLES} AS u ON t.id = u.id "
        "WHERE t.amount > 0 GROUP BY t.region, t.day"
    )
    if number % 10 == 9:
        sql = f"SELECT region, sum(amount) AS amount FROM lake.bench.v{number - 1} GROUP BY region"
    return Definition(sql, properties={"owner": "sales", "airflow-mv.max-staleness": "1 hour"})


def _no_spark(script: Script) -> Outcome:
    raise AssertionError(f"Spark is needed: {script.statements}")


def _plan(environment: dict[str, str], folder: Path) -> float:
    program = str(Path(sys.executable).with_name("airflow-mv"))
    command = [program, "apply", str(folder), "--check"]
    started = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode != 0:
        raise RuntimeError(f"the folder differs: {done.stdout}{done.stderr}")
    return seconds
