# SPDX-License-Identifier: Apache-2.0
"""How much memory commands and drivers need, also for a table that is larger than the driver's heap."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

from airflow_mv.actions import create_view as create
from airflow_mv.actions import plan_view
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.publish.layout import read_outcome
from airflow_mv.core.refresh.run import publish, stage
from airflow_mv.core.script import Outcome, Script, script_beside, submitted_script
from airflow_mv.extras.spark.session import InProcessStager, settings_of
from airflow_mv.extras.spark.submit import build_package, jar_confs, main_file, write_properties
from benchmarks import report

#: Rows of the large table that are made at a time.
_CHUNK = 4_000_000
_POLL_SECONDS = 0.1
_START_SECONDS = 60
_LOCAL = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
#: A filter that keeps most of the rows, and an aggregate with many groups.
VIEWS = {
    "most_rows": "SELECT k, a, b, c FROM lake.bench.large WHERE a < 0.8",
    "groups": "SELECT k, count(*) AS n, sum(k) AS total, max(a) AS most FROM lake.bench.large GROUP BY k",
}


@dataclass(slots=True)
class Peak:
    """The most memory that a process and those that it has started have used, MiB of resident memory by program."""

    java: float = 0.0
    python: float = 0.0

    def watch(self, process: subprocess.Popen[bytes]) -> int:
        """Look until the process has ended, and return its exit code."""
        while process.poll() is None:
            try:
                root = psutil.Process(process.pid)
                for item in (root, *root.children(recursive=True)):
                    self._note(item.pid, item.name())
            except (psutil.Error, OSError):  # it may end at any time
                pass
            time.sleep(_POLL_SECONDS)
        return int(process.returncode)

    def _note(self, pid: int, name: str) -> None:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
        peak = int(found[1]) / 1024 if found else 0.0
        if name == "java":
            self.java = max(self.java, peak)
        elif name.startswith(("python", "airflow-mv")):
            self.python = max(self.python, peak)


class _Lake:
    """A lake in a folder: a large table, a small one, and views of both."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "warehouse").mkdir()
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}/warehouse",
        }
        self._iceberg = SqlCatalog("lake", **self.properties)
        self.catalog = MaterializedViewCatalog(self._iceberg)

    def fill(self, mebibytes: int) -> None:
        """Make the tables, and the views without rows."""
        self._iceberg.create_namespace("bench")
        self._iceberg.create_table("bench.large", schema=_rows(0, 0).schema)
        self._iceberg.create_table("bench.small", schema=_rows(0, 0).schema)
        self.append("small", 10_000)
        while self.size() < mebibytes:
            self.append("large", _CHUNK)
        stager = InProcessStager(self.catalog, report=lambda _: None)
        small = {"of_small": VIEWS["groups"].replace("large", "small")}
        for name, sql in {**VIEWS, **small}.items():
            create(self.catalog, f"lake.bench.{name}", Definition(sql), stager=stager)
        stager.close()

    def append(self, table: str, rows: int) -> None:
        """Append rows."""
        self._iceberg.load_table(f"bench.{table}").append(_rows(rows, int(time.time_ns()) % 2**32))

    def size(self, table: str = "large") -> float:
        """Return the MiB of a table's data files."""
        snapshot = self._iceberg.load_table(f"bench.{table}").current_snapshot()
        summary = snapshot.summary if snapshot else None
        return int(summary["total-files-size"] or 0) / 2**20 if summary else 0.0


def _rows(number: int, seed: int) -> pa.Table:
    """Return rows that do not compress: half a million keys, and three random numbers each."""
    random = np.random.default_rng(seed)
    numbers = {name: pa.array(random.random(number)) for name in ("a", "b", "c")}
    return pa.table({"k": pa.array(random.integers(0, 500_000, number)), **numbers})


# ------------------------------------------------------------------------------------- the cluster


@contextmanager
def _cluster(memory: str) -> Iterator[str]:
    """Run a standalone cluster of two workers with a core each, and yield its master."""
    bound = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        master = ["org.apache.spark.deploy.master.Master", *bound]
        found = stack.enter_context(_serving(master, folder / "master.log", r"Starting Spark master at (\S+)"))
        for number in (1, 2):
            worker = ["org.apache.spark.deploy.worker.Worker", *bound, "--cores", "1", "--memory", memory]
            worker += ["--work-dir", str(folder / f"worker-{number}"), found[1]]
            log = folder / f"worker-{number}.log"
            stack.enter_context(_serving(worker, log, "Successfully registered with master"))
        yield found[1]


@contextmanager
def _serving(command: Sequence[str], log: Path, pattern: str) -> Iterator[re.Match[str]]:
    """Run a process of Spark, and yield the match of the line that says that it is ready."""
    with log.open("wb") as output:
        program = [str(_spark_home() / "bin" / "spark-class"), *command]
        process = subprocess.Popen(program, stdout=output, stderr=subprocess.STDOUT, env=_env())
    try:
        deadline = time.monotonic() + _START_SECONDS
        while (found := re.search(pattern, log.read_text(errors="replace"))) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{command[0]} did not start: {log.read_text(errors='replace')[-500:]}")
            time.sleep(_POLL_SECONDS)
        yield found
    finally:
        process.terminate()
        process.wait()


def _submitting(lake: _Lake, master: str, options: argparse.Namespace, peak: Peak) -> Callable[[Script], Outcome]:
    """Return a stager that runs a script by spark-submit, as the operators do, and notes the driver's memory."""
    confs = {"spark.ui.enabled": "false", "spark.log.level": "ERROR", **_LOCAL}
    confs |= {"spark.driver.memory": options.driver_memory, "spark.executor.memory": options.executor_memory}

    def submit(script: Script) -> Outcome:
        location, text = script_beside(str(script.outcome_location)), script.to_json()
        lake.catalog.files.replace_text(location, text)
        settings = settings_of(lake.catalog)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            jars = jar_confs({"spark.jars.packages": ",".join(settings.packages)})
            file = write_properties(folder, {**settings.confs, **jars, **confs}, settings.secrets)
            command = [str(_spark_home() / "bin" / "spark-submit"), "--master", master, "--properties-file", str(file)]
            command += ["--py-files", str(build_package(folder)), str(main_file())]
            command += [submitted_script(location, text), "lake"]
            log = (folder / "driver.log").open("wb")
            code = peak.watch(subprocess.Popen(command, cwd=name, env=_env(), stdout=log, stderr=log))
            output = (folder / "driver.log").read_text(errors="replace")
        outcome = read_outcome(lake.catalog, script)
        if code or outcome is None or outcome.error is not None:
            raise SystemExit(f"{script.view}: {outcome and outcome.error} {output[-1000:]}")
        return outcome

    return submit


def _refresh(lake: _Lake, name: str, master: str, options: argparse.Namespace) -> tuple[str, ...]:
    """Refresh a view in the cluster; return the row of the table."""
    started, peak = time.perf_counter(), Peak()
    plan = plan_view(lake.catalog, f"lake.bench.{name}")
    stager = _submitting(lake, master, options, peak)
    result = publish(lake.catalog, plan, stage(lake.catalog, plan, stager))
    if result is None or result.outcome != "refreshed":
        raise SystemExit(f"{name}: {result and result.outcome}, a refresh was expected")
    seconds = time.perf_counter() - started
    return (
        name,
        str(result.mode),
        f"{result.rows_written:,}",
        report.number(seconds),
        f"{peak.java:.0f}",
        f"{peak.python:.0f}",
    )


# ------------------------------------------------------------------------------------ the commands


def _command(lake: _Lake, *arguments: str) -> tuple[str, ...]:
    """Run a command of ``airflow-mv``; return the row of the table."""
    variables = {f"PYICEBERG_CATALOG__LAKE__{key.upper()}": value for key, value in lake.properties.items()}
    program = Path(sys.executable).with_name("airflow-mv")
    peak, started = Peak(), time.perf_counter()
    with tempfile.TemporaryDirectory() as cache, Path(os.devnull).open("wb") as nothing:
        environment = {**_env(), **variables, "XDG_CACHE_HOME": cache}
        process = subprocess.Popen([str(program), *arguments], stdout=nothing, stderr=nothing, env=environment)
        if peak.watch(process):
            raise SystemExit(f"airflow-mv {' '.join(arguments)} has failed")
    return (
        f"`airflow-mv {' '.join(arguments)}`",
        report.number(time.perf_counter() - started),
        f"{peak.java:.0f}" if peak.java else "-",
        f"{peak.python:.0f}",
    )


def _spark_home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def _env() -> dict[str, str]:
    return {**os.environ, "SPARK_HOME": str(_spark_home()), "SPARK_LOCAL_IP": "127.0.0.1"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--mebibytes", type=int, default=1024, help="least size of the large table's data files")
    parser.add_argument("--driver-memory", default="512m", help="heap of the driver in the cluster")
    parser.add_argument("--executor-memory", default="1g", help="heap of each of the two executors")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, and print Markdown tables."""
    facts = report.machine()
    with tempfile.TemporaryDirectory() as name:
        lake = _Lake(Path(name))
        lake.fill(options.mebibytes)
        size = lake.size()
        commands = [_command(lake, "refresh", "lake.bench.of_small"), _command(lake, "--help")]
        with _cluster(options.executor_memory) as master:
            cluster = [_refresh(lake, view, master, options) for view in VIEWS]
            lake.append("large", _CHUNK // 100)
            cluster += [_refresh(lake, view, master, options) for view in VIEWS]
        looks = (("status", "--all", "lake"), ("plan", "lake.bench.groups"))
        reads = (("read", "lake.bench.groups", "--json"), ("read", "lake.bench.most_rows", "--limit", "1000", "--json"))
        commands += [_command(lake, *arguments) for arguments in (*looks, *reads)]
    title = (
        f"A table of {size:,.0f} MiB, a driver with a heap of {options.driver_memory}, in a standalone cluster of two "
        f"workers, each with a core and an executor of {options.executor_memory}"
    )
    tables = report.shown(
        title,
        facts,
        report.table(
            ("refresh of", "mode", "rows written", "seconds", "driver's JVM, MiB", "its Python, MiB"), cluster
        ),
        report.table(("command", "seconds", "JVM, MiB", "Python, MiB"), commands),
    )
    figures = {"mebibytes": size, "cluster": cluster, "commands": commands}
    return {"benchmark": "memory", "machine": facts, **figures, "tables": tables}
