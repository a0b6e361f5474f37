# SPDX-License-Identifier: Apache-2.0
"""Many small refreshes: one Spark application for all of them against one for each."""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

from airflow_mv.actions import create_view as create
from airflow_mv.actions import plan_view
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.publish.layout import read_outcome
from airflow_mv.core.refresh.run import publish, stage
from airflow_mv.core.script import Outcome, Script, script_beside, submitted_script
from airflow_mv.extras.shared_application.folder import ApplicationFolder, new_key, request_of
from airflow_mv.extras.shared_application.job.requests import BEAT_SECONDS, JobAnswer
from airflow_mv.extras.spark.session import InProcessStager, settings_of
from airflow_mv.extras.spark.submit import build_package, collector, jar_confs, main_file, write_properties
from benchmarks import report

_POLL_SECONDS = 0.1
#: A small refresh that takes longer means that the driver hangs.
_LIMIT_SECONDS = 120.0
_LOG_TAIL = 2000


class _Lake:
    """A lake with a base table and views of it, all in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "warehouse").mkdir()
        uri, warehouse = f"sqlite:///{folder}/catalog.db", f"file://{folder}/warehouse"
        self._iceberg = SqlCatalog("lake", uri=uri, warehouse=warehouse)
        self.catalog = MaterializedViewCatalog(self._iceberg)

    def fill(self, views: Sequence[str]) -> None:
        """Create the base table and the views, and refresh each once."""
        self._iceberg.create_namespace("bench")
        self._iceberg.create_table("bench.orders", schema=_orders(0).schema).append(_orders(100_000))
        stager = InProcessStager(self.catalog, report=lambda _: None)
        for number, view in enumerate(views):
            sql = (
                f"SELECT region, sum(amount + {number}) AS amount, count(*) AS n FROM lake.bench.orders GROUP BY region"
            )
            create(self.catalog, view, Definition(sql, refresh_strategy="incremental"), stager=stager)
            plan = plan_view(self.catalog, view)
            publish(self.catalog, plan, stage(self.catalog, plan, stager))
        stager.close()

    def append(self) -> None:
        """Make all views stale."""
        self._iceberg.load_table("bench.orders").append(_orders(100))

    def command(self, folder: Path, *arguments: str) -> list[str]:
        """Return the command of a driver, as the operators build it."""
        import pyspark

        settings = settings_of(self.catalog).on(pyspark.__version__)
        confs = {**settings.confs, **jar_confs({"spark.jars.packages": ",".join(settings.packages)})}
        confs |= {"spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.scheduler.mode": "FAIR"}
        confs["spark.driver.extraJavaOptions"] = " ".join(collector(os.environ))
        program = Path(pyspark.__file__).parent / "bin" / "spark-submit"
        options = ["--master", "local[*]", "--properties-file", str(write_properties(folder, confs, settings.secrets))]
        return [str(program), *options, "--py-files", str(build_package(folder)), str(main_file()), *arguments]


def _orders(rows: int) -> pa.Table:
    regions = pa.array([f"region {number % 50}" for number in range(rows)], pa.string())
    return pa.table({"region": regions, "amount": pa.array(range(rows), pa.int64())})


def _alone(lake: _Lake, view: str) -> float:
    """Refresh a view with an application of its own."""
    with tempfile.TemporaryDirectory() as scratch:

        def submit(script: Script) -> Outcome:
            location = _written(lake, script)
            subprocess.run(
                lake.command(Path(scratch), location, "lake"), check=True, capture_output=True, cwd=scratch, env=_env()
            )
            return _outcome(lake, script)

        return _seconds(lake, view, submit)


@dataclass(frozen=True, slots=True)
class _Application:
    """A shared application that runs."""

    folder: ApplicationFolder
    process: subprocess.Popen[bytes]
    log: Path

    def answer(self, view: str, key: str) -> JobAnswer:
        """Wait for the answer to a request."""
        deadline = time.monotonic() + _LIMIT_SECONDS
        while (answer := self.folder.answer(key)) is None:
            if self.process.poll() is not None or time.monotonic() > deadline:
                tail = self.log.read_text(errors="replace")[-_LOG_TAIL:]
                raise SystemExit(f"{view}: no answer; the driver's exit code is {self.process.poll()}\n{tail}")
            time.sleep(_POLL_SECONDS)
        return answer


@contextmanager
def _application(lake: _Lake) -> Iterator[_Application]:
    """Run a shared application, and do what its task does."""
    folder = ApplicationFolder(lake.catalog, str(lake.catalog.folders.of_application(("bench",))))
    folder.beat()
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT_SECONDS):
            folder.beat()

    beating = threading.Thread(target=beat, daemon=True)
    beating.start()
    with tempfile.TemporaryDirectory() as scratch:
        arguments = ["--extra", "shared_application", folder.folder, "lake", "600"]
        command, log = lake.command(Path(scratch), *arguments), Path(scratch, "log")
        with log.open("wb") as output:
            process = subprocess.Popen(command, cwd=scratch, env=_env(), stdout=output, stderr=output)
        try:
            yield _Application(folder, process, log)
        finally:
            folder.end()
            process.wait()
            ended.set()
            beating.join()


def _shared(lake: _Lake, application: _Application, view: str) -> float:
    """Refresh a view in the application."""

    def ask(script: Script) -> Outcome:
        key = new_key()
        application.folder.ask(key, request_of(lake.catalog, script, _written(lake, script)))
        answer = application.answer(view, key)
        if answer.refusal is not None:
            raise SystemExit(f"{view}: {answer.refusal}")
        return _outcome(lake, script)

    return _seconds(lake, view, ask)


def _seconds(lake: _Lake, view: str, stager: Any) -> float:
    started = time.perf_counter()
    plan = plan_view(lake.catalog, view)
    result = publish(lake.catalog, plan, stage(lake.catalog, plan, stager))
    if result is None or result.outcome != "refreshed":
        raise SystemExit(f"{view}: {result and result.outcome}, a refresh was expected")
    return time.perf_counter() - started


def _written(lake: _Lake, script: Script) -> str:
    location, text = script_beside(str(script.outcome_location)), script.to_json()
    lake.catalog.files.replace_text(location, text)
    return submitted_script(location, text)


def _outcome(lake: _Lake, script: Script) -> Outcome:
    outcome = read_outcome(lake.catalog, script)
    if outcome is None:
        raise SystemExit(f"{script.view}: there is no outcome")
    return outcome


def _env() -> dict[str, str]:
    import pyspark

    return {**os.environ, "SPARK_HOME": str(Path(pyspark.__file__).parent)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--views", type=int, default=20, help="small views of one base table")
    parser.add_argument("--alone", type=int, default=3, help="how many of them are also refreshed alone, in turn")
    parser.add_argument("--tasks", type=int, default=4, help="refreshes that run at the same time in the application")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, and print a Markdown table."""
    facts = report.machine()
    views = [f"lake.bench.v{number}" for number in range(options.views)]
    with tempfile.TemporaryDirectory() as name:
        lake = _Lake(Path(name))
        lake.fill(views)
        lake.append()
        alone = [_alone(lake, view) for view in views[: options.alone]]
        lake.append()
        started = time.perf_counter()
        with _application(lake) as application, ThreadPoolExecutor(options.tasks) as pool:
            first, second = (_shared(lake, application, view) for view in views[:2])
            others = list(pool.map(lambda view: _shared(lake, application, view), views[2:]))
        shared = time.perf_counter() - started
    total = report.median(alone) * options.views
    count = options.views
    rows = [
        (f"{count} applications: {count} times the median of {options.alone}", report.number(total), "", ""),
        ("one application for all, from its start to its end", report.number(shared), "", ""),
        ("times faster", "", f"{total / shared:.1f}", "8"),
        ("one refresh in an application of its own", report.spread(alone), "", ""),
        ("the application's first refresh, with Spark's start", report.number(first), "", ""),
        ("its second refresh, seconds", "", report.number(second), "3"),
        (f"the others, {options.tasks} at a time", report.spread(others), "", ""),
    ]
    title = f"{count} refreshes of small views after an append, without Airflow's own time"
    tables = report.shown(title, facts, report.table(("", "seconds", "measured", "target"), rows))
    return {
        "benchmark": "shared-application",
        "machine": facts,
        "alone": alone,
        "shared": shared,
        "first": first,
        "second": second,
        "others": others,
        "times_faster": total / shared,
        "tables": tables,
    }
