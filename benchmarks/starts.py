# SPDX-License-Identifier: Apache-2.0
"""What users wait for before anything happens: commands, their imports, and Airflow's look at a DAG file."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.freshness import Lake

_EXAMPLES = Path(__file__).parents[1] / "dags_examples"
_FILES = ("refresh_daily.py", "namespace.py")
#: What a DAG file imports that submits its own Spark job.
_PLAIN = "from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator\n"
#: Runs a DAG file, and prints its milliseconds. What the process has imported that looks for DAGs is imported before.
_PARSE = """
import importlib.util, sys, time
import airflow.dag_processing.processor
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
started = time.perf_counter()
spec = importlib.util.spec_from_file_location("dag_file", sys.argv[1])
spec.loader.exec_module(importlib.util.module_from_spec(spec))
print(1000 * (time.perf_counter() - started))
"""
#: Runs of these, of which each imports all of Airflow.
_PARSES = 3
_IMPORT = re.compile(r"^import time:\s+(\d+) \|", re.MULTILINE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--repeat", type=int, default=5, metavar="R", help="runs of each measurement")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, print the table, return every run."""
    facts = report.machine()
    folder = options.cache.resolve() / f"starts-{uuid.uuid4().hex[:8]}"
    found: dict[str, list[float]] = {}
    try:
        lake = Lake.make(folder, argparse.Namespace(tables=3, number=1), 10)
        environment = _environment(lake, folder)
        _command(environment, "status", "--all", "lake")  # fills the cache
        for _ in range(options.repeat):
            found.setdefault("help", []).append(_command(environment, "--help"))
            found.setdefault("status", []).append(_command(environment, "status", lake.views[0]))
            found.setdefault("imports", []).append(_imports(environment))
        (folder / "plain.py").write_text(_PLAIN)
        for _ in range(min(options.repeat, _PARSES)):
            found.setdefault("plain_ms", []).append(parse_ms(environment, folder / "plain.py"))
            found.setdefault("parse_ms", []).append(max(parse_ms(environment, _EXAMPLES / name) for name in _FILES))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    titles = {
        "help": "`airflow-mv --help`, s",
        "status": "`airflow-mv status VIEW`, s",
        "imports": "imports of `airflow-mv status --all`, s",
        "plain_ms": "a DAG file with the Spark provider's operator, over Airflow's own import, ms",
        "parse_ms": f"the slowest of {len(_FILES)} DAG files, over Airflow's own import, ms",
    }
    print(f"\n{report.about(facts)}\n")
    print(report.table(("", "median (least to most)"), [(titles[key], report.spread(found[key])) for key in titles]))
    return {"benchmark": "starts", "machine": facts, **found}


def _environment(lake: Lake, folder: Path) -> dict[str, str]:
    own = {f"PYICEBERG_CATALOG__LAKE__{key.upper()}": value for key, value in lake.properties.items()}
    return {**os.environ, **own, "AIRFLOW_MV_CACHE": str(folder / "cache"), "AIRFLOW_HOME": str(folder / "airflow")}


def _command(environment: Mapping[str, str], *words: str) -> float:
    """Return the seconds of a command."""
    program = str(Path(sys.executable).with_name("airflow-mv"))
    started = time.perf_counter()
    subprocess.run([program, *words], check=True, capture_output=True, env=environment)
    return time.perf_counter() - started


def _imports(environment: Mapping[str, str]) -> float:
    """Return the seconds that a command's imports take, as Python counts them."""
    code = "import json, sys; from airflow_mv.cli.main import main; main(json.loads(sys.argv[1]))"
    words = json.dumps(["status", "--all", "lake", "--json"])
    command = [sys.executable, "-X", "importtime", "-c", code, words]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return sum(map(int, _IMPORT.findall(done.stderr))) / 1e6


def parse_ms(environment: Mapping[str, str], file: Path) -> float:
    """Return the milliseconds of a DAG file."""
    command = [sys.executable, "-c", _PARSE, str(file)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return float(done.stdout.strip().splitlines()[-1])
