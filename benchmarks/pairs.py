# SPDX-License-Identifier: Apache-2.0
"""What an older Spark or Iceberg costs: the same incremental and full refreshes with each pair, one after another."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import report

#: PySpark and Iceberg, the newest last; what managed Spark ships, and what the package is tested with.
PAIRS = ("3.5.8 1.10.1", "3.5.8 1.12.0", "4.0.2 1.10.1", "4.0.2 1.11.0", "4.1.3 1.11.0", "4.1.3 1.12.0")
_WAYS, _UNITS = ("incremental", "full"), ("seconds", "cpu")
_ROOT = Path(__file__).parents[1]
_PROGRAM = "import sys, tests.pairs\nfrom benchmarks.__main__ import main\nmain(sys.argv[1:])"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--pairs", nargs="+", default=list(PAIRS), metavar="'SPARK ICEBERG'")
    parser.add_argument("--scale", type=float, default=0.1, help="TPC-H scale factor")
    parser.add_argument("--percent", type=float, default=0.1, help="size of each change")
    parser.add_argument("--variants", nargs="+", default=["v2-mor", "v3-mor", "v3-cow"])
    parser.add_argument("--views", nargs="+", default=["v0", "v1"])
    parser.add_argument("--repeat", type=int, default=3, metavar="R", help="runs of each measurement")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, print the table, return every run."""
    facts, found = report.machine(), {}
    for pair in options.pairs:
        with tempfile.TemporaryDirectory() as folder:
            found[pair] = _measured(options, *pair.split(), Path(folder))
    newest = found[options.pairs[-1]]
    rows = [
        [pair, name, cell["modes"], *(report.number(cell[way][unit]) for way in _WAYS for unit in _UNITS),
         *(report.number(cell[way]["cpu"] / newest[name][way]["cpu"]) for way in _WAYS)]
        for pair, cells in found.items()
        for name, cell in cells.items()
    ]  # fmt: skip
    head = ["Spark, Iceberg", "change, view", "mode", *(f"{way}, {unit}" for way in _WAYS for unit in ("s", "CPU s"))]
    head += [f"{way}: times the CPU of the newest pair" for way in _WAYS]
    title = f"Pairs of Spark and Iceberg, TPC-H scale factor {options.scale:g}, medians of {options.repeat}"
    tables = report.shown(title, facts, report.table(head, rows))
    return {"benchmark": "pairs", "machine": facts, "pairs": found, "tables": tables}


def _measured(options: argparse.Namespace, spark: str, iceberg: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Measure one pair in a process of its own, in which its PySpark is found first."""
    install = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--python", sys.executable]
    if spark != version("pyspark"):
        subprocess.run([*install, "--target", str(folder / "packages"), f"pyspark=={spark}"], check=True)
    out = folder / "out.json"
    command = [sys.executable, "-c", _PROGRAM, "incremental", "--scale", str(options.scale), "--out", str(out)]
    command += ["--cache", str(folder / "cache"), "--repeat", str(options.repeat), "--changes", "mixed", "--check"]
    command += ["--percents", str(options.percent), "--variants", *options.variants, "--views", *options.views]
    path = os.pathsep.join([str(folder / "packages"), str(_ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "AIRFLOW_MV_TEST_ICEBERG": iceberg}
    subprocess.run(command, cwd=_ROOT, env=environment, check=True, stdout=sys.stderr)
    cells = json.loads(out.read_text())["cells"]
    return {f"{cell['variant']} {cell['view']}": _summed(cell["runs"]) for cell in cells}


def _summed(runs: list[dict[str, Any]]) -> dict[str, Any]:
    known = {way: [run[way] for run in runs if run[way]] or [dict.fromkeys(_UNITS, float("nan"))] for way in _WAYS}
    medians = {
        way: {unit: report.median(one[unit] for one in found) for unit in _UNITS} for way, found in known.items()
    }
    return {"modes": ", ".join(sorted({run["mode"] for run in runs})), **medians, "runs": runs}
