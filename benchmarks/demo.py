# SPDX-License-Identifier: Apache-2.0
"""``make demo`` in a fresh clone, with all set-up, and once more. What package caches hold is not fetched again."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

from benchmarks import report

_ROOT = Path(__file__).parents[1]
_SECONDS = re.compile(r"(\d+) s in all")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, print the table, return the seconds."""
    facts = report.machine()
    folder = options.cache.resolve() / f"demo-{uuid.uuid4().hex[:8]}"
    try:
        subprocess.run(["git", "clone", "-q", str(_ROOT), str(folder)], check=True)
        first, demo = _demo(folder)
        second, _ = _demo(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rows = [
        ("`make demo` in a fresh clone", first, 150),
        ("the demo itself", demo, 45),
        ("a second `make demo`", second, 10),
    ]
    print(f"\n{report.about(facts)}\n")
    print(report.table(("", "s", "target"), [(title, f"{seconds:.0f}", f"{most}") for title, seconds, most in rows]))
    return {"benchmark": "demo", "machine": facts, "first": first, "demo": demo, "second": second}


def _demo(folder: Path) -> tuple[float, float]:
    """Run it; return the seconds in all, and those of the demo by its own words."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "SPARK", "VIRTUAL_ENV"))}
    started = time.perf_counter()
    done = subprocess.run(["make", "demo"], cwd=folder, env=kept, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    told = _SECONDS.findall(done.stdout)
    if done.returncode or not told:
        raise SystemExit(f"make demo ended with {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
    return seconds, float(told[-1])
