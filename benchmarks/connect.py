# SPDX-License-Identifier: Apache-2.0
"""The same incremental refresh in a classic session and over Spark Connect: the seconds of its job, unpublished."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog

from airflow_mv.actions import create_view as create
from airflow_mv.actions import plan_view
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.refresh import RefreshOptions
from airflow_mv.core.refresh.run import publish, stage
from airflow_mv.extras.spark.session import InProcessStager, settings_of
from airflow_mv.extras.spark.submit import collector, jar_confs, write_properties
from benchmarks import report

#: Each table with the way that Spark writes deletes to it, and the change that is made to it.
CASES = {
    "appended": ("copy-on-write", "INSERT INTO {t} SELECT * FROM {t} WHERE id < {some}"),
    "copied": ("copy-on-write", "UPDATE {t} SET amount = amount + 1 WHERE id < {some}"),
    "marked": ("merge-on-read", "DELETE FROM {t} WHERE id < {some}"),
}
_TITLES = {
    "appended": "0.1 % appended",
    "copied": "0.1 % updated in one file, copy-on-write",
    "marked": "0.1 % deleted in one file, merge-on-read",
}
_FILES, _START_SECONDS = 24, 120.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=6_000_000, metavar="N", help="rows of each base table")
    parser.add_argument("--repeat", type=int, default=5, metavar="R", help="runs of each measurement, after one more")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, print the table, return every run."""
    facts = report.machine()
    folder = options.cache.resolve() / f"connect-{uuid.uuid4().hex[:8]}"
    folder.mkdir(parents=True)
    try:
        _child("make", folder, str(options.rows))
        runs = {"classic": _child("stage", folder, str(options.repeat))}
        with _server(folder) as remote:
            runs["connect"] = _child("stage", folder, str(options.repeat), remote)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    title = f"{options.rows:,} rows in {_FILES} files, {options.repeat} runs"
    tables = report.shown(title, facts, _table(runs))
    return {"benchmark": "connect", "machine": facts, "runs": runs, "tables": tables}


def _table(runs: dict[str, dict[str, Any]]) -> str:
    rows = []
    for case, title in _TITLES.items():
        classic, connect = (runs[kind][case] for kind in ("classic", "connect"))
        ratio = report.median(connect["seconds"]) / report.median(classic["seconds"])
        methods = f"{classic['read_by']}, {connect['read_by']}"
        rows.append(
            (title, methods, report.spread(classic["seconds"]), report.spread(connect["seconds"]), f"{ratio:.2f}")
        )
    return report.table(["change", "read by", "classic, s", "Connect, s", "ratio"], rows)


# -- the processes ---------------------------------------------------------------------------------


def _child(*arguments: object) -> dict[str, Any]:
    """Run a part in a process of its own: one cannot have a classic session and a client of Spark Connect."""
    command = [sys.executable, "-m", "benchmarks.connect", *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _catalog(folder: Path) -> MaterializedViewCatalog:
    return MaterializedViewCatalog(
        SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
    )


def make(folder: Path, rows: str) -> dict[str, Any]:
    """Make the tables and their views, and change the tables."""
    catalog = _catalog(folder)
    catalog.iceberg.create_namespace("bench")
    stager = InProcessStager(catalog, report=lambda _: None)
    spark = stager.session
    for case, (mode, change) in CASES.items():
        table = f"lake.bench.{case}"
        modes = ", ".join(f"'write.{operation}.mode' = '{mode}'" for operation in ("delete", "update", "merge"))
        spark.sql(
            f"CREATE TABLE {table} USING iceberg TBLPROPERTIES ({modes}) AS SELECT id, id % 5000 AS region, "
            f"cast(id % 997 AS decimal(12, 2)) AS amount, md5(cast(id AS string)) AS note "
            f"FROM range(0, {rows}, 1, {_FILES})"
        )
        sql = f"SELECT region, sum(amount) AS amount, count(*) AS n FROM {table} GROUP BY region"
        view = f"lake.bench.{case}_by_region"
        create(catalog, view, Definition(sql, refresh_strategy="incremental"), stager=stager)
        plan = plan_view(catalog, view)
        publish(catalog, plan, stage(catalog, plan, stager))
        spark.sql(change.format(t=table, some=int(rows) // 1000))
    stager.close()
    return {}


def staged(folder: Path, repeat: str, remote: str | None = None) -> dict[str, Any]:
    """Run the job of each view's refresh several times, and return its seconds."""
    catalog = _catalog(folder)
    stager, found = InProcessStager(catalog, remote=remote, report=lambda _: None), {}
    for case in CASES:
        plan = plan_view(catalog, f"lake.bench.{case}_by_region", RefreshOptions(on_fallback="fail"))
        if plan.script is None:
            raise SystemExit(f"{plan.view} is fresh")
        outcomes = [stager(plan.script) for _ in range(int(repeat) + 1)]
        if (last := outcomes[-1]).fallback is not None:
            raise SystemExit(f"{plan.view} was recomputed: {last.fallback_reason}")
        methods = sorted({method for delta in last.deltas for method in delta.read_by})
        seconds = [sum(outcome.step_seconds) for outcome in outcomes[1:]]
        found[case] = {"mode": str(plan.mode), "read_by": " ".join(methods), "seconds": seconds}
    stager.close()
    return found


@contextmanager
def _server(folder: Path) -> Iterator[str]:
    """Run a Spark Connect server, and yield its URL."""
    import pyspark

    confs = settings_of(_catalog(folder)).on(pyspark.__version__).session_confs()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own = {"spark.sql.extensions": confs["spark.sql.extensions"], **jar_confs(confs), "spark.ui.enabled": "false"}
    own |= {"spark.connect.grpc.binding.port": str(port), "spark.connect.grpc.binding.address": "127.0.0.1"}
    own["spark.driver.extraJavaOptions"] = " ".join(collector(os.environ))  # as in the classic session
    program = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [str(program), "--master", "local[*]", "--properties-file", str(write_properties(folder, own))]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ) as process:
        try:
            _wait_for(port)
            yield f"sc://127.0.0.1:{port}"
        finally:
            process.terminate()


def _wait_for(port: int) -> None:
    until = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


if __name__ == "__main__":
    part, path, *rest = sys.argv[1:]
    print(json.dumps({"make": make, "stage": staged}[part](Path(path), *rest)))
