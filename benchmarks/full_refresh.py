# SPDX-License-Identifier: Apache-2.0
"""A full refresh against the bare ``CREATE OR REPLACE TABLE … AS SELECT``, in one Spark session."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_mv.actions import create_view as create
from airflow_mv.actions import plan_view
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.refresh import RefreshOptions
from airflow_mv.core.refresh.run import publish, stage
from airflow_mv.core.script import Outcome, Script
from airflow_mv.extras.spark.session import InProcessStager
from benchmarks import report
from benchmarks.steps import TimedCatalog, timed_stager
from benchmarks.tpch import CATALOG, SCRATCH, VIEWS, Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FULL = RefreshOptions(full=True)
#: Pairs of runs before the first one that counts: Java compiles what runs often.
_WARM_UP = 2


@dataclass(slots=True)
class Measured:
    """The runs of one view, seconds. Those with the same number ran one right after the other, ours first in half."""

    rows: int = 0
    first: dict[str, float] = field(default_factory=dict)
    ours: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    steps: list[dict[str, float]] = field(default_factory=list)

    @property
    def overheads(self) -> list[float]:
        """What each refresh took more than its neighbour."""
        return [ours - bare for ours, bare in zip(self.ours, self.bare, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("rows", "first", "ours", "bare", "overheads", "steps")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scale", type=float, default=1.0, help="TPC-H scale factor (1: 6 million rows of lineitem)")
    parser.add_argument("--repeat", type=int, default=7, metavar="N", help="pairs of runs per view")
    parser.add_argument("--views", nargs="+", choices=list(VIEWS), default=list(VIEWS))


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, print the tables, return every run."""
    warehouse = Warehouse.below(options.cache, options.scale)
    tables = warehouse.open()
    catalog = TimedCatalog(tables)
    stager = InProcessStager(catalog, report=_quiet)
    facts = report.machine()
    try:
        warehouse.fill(tables, stager.session)
        warehouse.clear(tables)
        measured = {view: _measure(catalog, stager.session, view, options.repeat) for view in options.views}
    finally:
        stager.close()
        warehouse.clear(tables)
    title = f"Full refresh, TPC-H scale factor {options.scale:g}, {options.repeat} pairs of runs"
    tables = report.shown(title, facts, _totals(measured), _steps(measured))
    return {
        "benchmark": "full-refresh",
        "scale": options.scale,
        "machine": facts,
        "views": {view: item.to_dict() for view, item in measured.items()},
        "tables": tables,
    }


def _measure(catalog: TimedCatalog, spark: SparkSession, view: str, repeat: int) -> Measured:
    name, bare_name = f"{CATALOG}.{SCRATCH}.{view}", f"{CATALOG}.{SCRATCH}.{view}_bare"
    statement = f"CREATE OR REPLACE TABLE {bare_name} USING iceberg AS {VIEWS[view]}"
    stager = timed_stager(catalog, spark)
    create(catalog, name, Definition(VIEWS[view], refresh_strategy="full"), stager=stager)
    measured = Measured()

    def ours() -> float:
        catalog.steps.reset()
        seconds, measured.rows = _refresh(catalog, name, stager)
        return seconds

    def bare() -> float:
        started = time.perf_counter()
        spark.sql(statement).collect()
        return time.perf_counter() - started

    measured.first = {"bare": bare(), "ours": ours()}
    for _ in range(_WARM_UP):
        ours()
        bare()
    for number in range(1, repeat + 1):
        # The second of a pair finds other garbage in the driver's memory than the first one.
        for run, times in ((ours, measured.ours), (bare, measured.bare))[:: 1 if number % 2 else -1]:
            times.append(run())
            if run is ours:
                measured.steps.append(dict(catalog.steps.seconds))
        print(f"{view} {number}/{repeat}: ours {measured.ours[-1]:.2f} s, bare {measured.bare[-1]:.2f} s", flush=True)
    count = spark.table(bare_name).count()
    if count != measured.rows:
        raise SystemExit(f"{view}: the refresh wrote {measured.rows} rows, the bare statement {count}: not comparable")
    return measured


def _refresh(catalog: TimedCatalog, view: str, stager: Callable[[Script], Outcome]) -> tuple[float, int]:
    """Refresh as :func:`airflow_mv.core.refresh.run.refresh` does; return seconds and rows written."""
    started = time.perf_counter()
    with catalog.steps.phase("plan"):
        plan = plan_view(catalog, view, _FULL)
    with catalog.steps.phase("stage"):
        outcome = stage(catalog, plan, stager)
    with catalog.steps.phase("publish"):
        result = publish(catalog, plan, outcome)
    if result is None or result.outcome != "refreshed":
        raise SystemExit(f"{view}: not refreshed, somebody else works on it: {result}")
    return time.perf_counter() - started, result.rows_written


def _totals(measured: dict[str, Measured]) -> str:
    rows = [
        (
            view,
            f"{item.rows:,}",
            report.spread(item.bare),
            report.spread(item.ours),
            report.spread(item.overheads),
            f"{100 * report.median(item.overheads) / report.median(item.bare):z.0f} %",
        )
        for view, item in measured.items()
    ]
    return report.table(["view", "rows", "bare, s", "refresh, s", "overhead of a pair, s", "of bare"], rows)


def _steps(measured: dict[str, Measured]) -> str:
    names = list(dict.fromkeys(name for item in measured.values() for run in item.steps for name in run))
    rows = [(name, *(_milliseconds(item, name) for item in measured.values())) for name in names]
    bare = [report.spread(item.bare, digits=0, scale=1000) for item in measured.values()]
    return report.table(["step, ms", *measured], [*rows, ("(the bare statement)", *bare)])


def _milliseconds(item: Measured, name: str) -> str:
    return report.spread([run.get(name, 0.0) for run in item.steps], digits=0, scale=1000)


def _quiet(_: str) -> None:
    """Progress of the job is told by the benchmark."""
