# SPDX-License-Identifier: Apache-2.0
"""An incremental refresh against a full one of the same view at the same snapshots, in one Spark session."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_mv.catalog import LoadedStorage
from airflow_mv.catalog.pointed import PointedStorage
from airflow_mv.errors import RefreshRefusedError
from airflow_mv.refresh import RefreshOptions, plan_refresh
from airflow_mv.refresh.create import create
from airflow_mv.refresh.definition import Definition
from airflow_mv.refresh.plan import RefreshResult
from airflow_mv.refresh.run import publish, stage
from airflow_mv.refresh.stagers import InProcessStager, stored_rows
from airflow_mv.script import Outcome, Script
from airflow_mv.spec.reasons import Mode
from benchmarks import report
from benchmarks.cells import Cell, Run, Way, page
from benchmarks.changes import VARIANTS, Tables
from benchmarks.steps import TimedCatalog, inside, timed_stager
from benchmarks.tpch import CATALOG, SCRATCH, VIEWS, Warehouse

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyspark.sql import SparkSession

_FILTER = """
SELECT l_orderkey, l_linenumber, l_quantity, l_extendedprice, l_shipdate
FROM lake.tpch.lineitem WHERE l_quantity > 45"""
QUERIES = {"v0": _FILTER, **VIEWS}
_CHANGES: dict[str, Callable[[Tables, SparkSession, float, int], None]] = {
    "append": Tables.append,
    "mixed": Tables.mix,
    "clustered": Tables.cluster,
}
_INCREMENTAL, _FULL = RefreshOptions(on_fallback="fail"), RefreshOptions(full=True)
#: Changes of at most so many percent are measured more than once.
_CHEAP = 1.0
#: The goal's row at a larger scale: what is measured there.
_LARGE_SCALE, _LARGE_PERCENT, _LARGE_VARIANT = 10.0, 0.1, "v2-mor"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scale", type=float, default=1.0, help="TPC-H scale factor (1: 6 million rows of lineitem)")
    parser.add_argument(
        "--percents", type=float, nargs="+", default=[0.1, 10, 0.01, 50, 1], help="sizes of changes, in this order"
    )
    parser.add_argument("--changes", nargs="+", choices=list(_CHANGES), default=["append", "mixed"])
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--views", nargs="+", choices=list(QUERIES), default=list(QUERIES))
    parser.add_argument("--check", action="store_true", help="compare the rows of both ways after each pair")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="runs of each change of at most 1 percent")
    parser.add_argument("--minutes", type=float, metavar="M", help="begin no further change after so many minutes")
    parser.add_argument("--also-ten", action="store_true", help="first the 0.1 %% row of v2-mor at scale factor 10")
    parser.add_argument("--prepare", action="store_true", help="make the data that are made once, and measure nothing")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, print the tables, return every run."""
    facts, clock = report.machine(), Clock(options.minutes)
    cells: list[Cell] = []
    if options.also_ten:
        cells += _at(_large(options), clock)
    cells += _at(options, clock)
    if options.prepare:
        return {"benchmark": "incremental", "machine": facts, "cells": []}
    for scale in dict.fromkeys(cell.scale for cell in cells):
        print(f"\nIncremental against full, TPC-H scale factor {scale:g}, warm session")
        print(f"{report.about(facts)}\n\n{page([cell for cell in cells if cell.scale == scale])}")
    print("\n" + "\n".join(clock.told()))
    return {
        "benchmark": "incremental",
        "machine": facts,
        "seconds": clock.phases,
        "left_out": clock.left_out,
        "cells": [cell.to_dict() for cell in cells],
    }


def _large(options: argparse.Namespace) -> argparse.Namespace:
    wanted = {"scale": _LARGE_SCALE, "percents": [_LARGE_PERCENT], "variants": [_LARGE_VARIANT], "repeat": 1}
    return argparse.Namespace(**{**vars(options), **wanted})


@dataclass
class Clock:
    """How long it took, and whether there is time for more.

    Args:
        minutes: All that there is; ``None`` for any.
    """

    minutes: float | None
    started: float = field(default_factory=time.monotonic)
    phases: dict[str, float] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def phase(self, name: str, since: float) -> None:
        """Count the seconds since a time of the monotonic clock."""
        self.phases[name] = self.phases.get(name, 0.0) + time.monotonic() - since

    def allows(self, what: str) -> bool:
        """Whether to begin something; else it is noted as left out."""
        in_time = self.minutes is None or time.monotonic() - self.started < 60 * self.minutes
        if not in_time:
            self.left_out.append(what)
        return in_time

    def told(self) -> Iterator[str]:
        """Yield what took how long, and what was left out."""
        yield "Took: " + ", ".join(f"{name} {seconds:.0f} s" for name, seconds in self.phases.items())
        if self.left_out:
            yield f"Left out for want of time: {'; '.join(self.left_out)}"


@dataclass(frozen=True, slots=True)
class Lane:
    """The tables of one variant that one sort of change happens to."""

    tables: Tables
    change: str

    def name(self, view: str) -> str:
        """A view's full name."""
        return f"{CATALOG}.{SCRATCH}.{view}_{self.tables.namespace}"

    def __str__(self) -> str:
        return f"{self.tables.variant} {self.change}"


def _at(options: argparse.Namespace, clock: Clock) -> list[Cell]:
    """Measure at one scale factor."""
    warehouse = Warehouse.below(options.cache, options.scale)
    tables = warehouse.open()
    catalog = TimedCatalog(tables)
    stager = InProcessStager(catalog, report=lambda _: None)
    bench = Bench(tables, catalog, stager, options, clock)
    since, scale = time.monotonic(), f"SF {options.scale:g}"
    try:
        warehouse.fill(tables, stager.session)
        clock.phase(f"{scale} data and session", since)
        if options.prepare:
            return []
        warehouse.clear(tables)
        return bench.measure()
    finally:
        stager.close()
        warehouse.clear(tables)


@dataclass
class Bench:
    """One session, and what is measured in it."""

    pointers: SqlCatalog
    catalog: TimedCatalog
    stager: InProcessStager
    options: argparse.Namespace
    clock: Clock
    cells: dict[tuple[str, ...], Cell] = field(default_factory=dict)
    _number: int = 0

    def measure(self) -> list[Cell]:
        """Measure all cells, the most telling sizes first, and the cheap ones again as long as there is time."""
        lanes = list(self._lanes())
        if lanes:
            self._warm_up(lanes[0], self.options.percents[0])
        for turn in range(max(1, self.options.repeat)):
            for percent in (item for item in self.options.percents if turn == 0 or item <= _CHEAP):
                for lane in lanes:
                    if self.clock.allows(f"SF {self.options.scale:g} {lane} {percent:g} % (run {turn + 1})"):
                        self._row(lane, percent)
        return list(self.cells.values())

    def _lanes(self) -> Iterator[Lane]:
        since, scale = time.monotonic(), f"SF {self.options.scale:g}"
        for variant in self.options.variants:
            for change in self.options.changes:
                if self.clock.allows(f"{scale} {variant} {change}"):
                    yield self._lane(variant, change)
        self.clock.phase(f"{scale} copies and views", since)

    def _lane(self, variant: str, change: str) -> Lane:
        lane = Lane(Tables(variant, self.options.scale, change), change)
        self.pointers.create_namespace_if_not_exists(lane.tables.namespace)
        lane.tables.copy(self.stager.session, self.pointers)
        for view in self.options.views:
            name = lane.name(view)
            definition = Definition(lane.tables.sql(QUERIES[view]), refresh_strategy="incremental")
            create(self.catalog, name, definition, stager=self.stager, replace=self.catalog.exists(name))
            self._refreshed(name, RefreshOptions())
        return lane

    def _warm_up(self, lane: Lane, percent: float) -> None:
        """Refresh incrementally once, for the caches and the compiler. A full refresh has filled each view before.

        The first of these was made in a new session and took longer, so it is repeated: plans look at such times.
        Scattered rows are not changed for it, because copy-on-write rewrites all files of a table then.
        """
        change = "append" if lane.change == "append" else "clustered"
        self._change(lane, percent, change)
        self._way(lane.name(self.options.views[0]), _FULL)
        self._change(lane, percent, change)
        since = time.monotonic()
        for view in self.options.views:
            with suppress(RefreshRefusedError):
                self._way(lane.name(view), _INCREMENTAL)
        self.clock.phase(f"SF {self.options.scale:g} warm-up", since)

    def _row(self, lane: Lane, percent: float) -> None:
        """Change a lane's tables once, and refresh its views both ways."""
        self._change(lane, percent)
        since = time.monotonic()
        for view in self.options.views:
            cell = Cell(self.options.scale, lane.tables.variant, lane.change, percent, view)
            cell = self.cells.setdefault((lane.tables.variant, lane.change, f"{percent:g}", view), cell)
            cell.runs.append(self._run(lane.name(view)))
            print(cell, flush=True)
        self.clock.phase(f"SF {self.options.scale:g} refreshes", since)

    def _change(self, lane: Lane, percent: float, change: str | None = None) -> None:
        self._number += 1
        since = time.monotonic()
        _CHANGES[change or lane.change](lane.tables, self.stager.session, percent / 100, self._number)
        self.clock.phase(f"SF {self.options.scale:g} changes", since)

    # ------------------------------------------------------------------------------------ one view

    def _run(self, name: str) -> Run:
        plan = plan_refresh(self.catalog, name)
        bare = {item.mode == "full": item.seconds / item.factor for item in plan.estimates}
        started = time.perf_counter()
        incremental, gave_up, mode = None, None, "full"
        steps: dict[str, float] = {}
        chosen_seconds: float | None = None
        try:
            incremental, result = self._way(name, _INCREMENTAL)
            mode, steps = str(result.mode), dict(self.catalog.steps.seconds)
        except RefreshRefusedError:
            if self._jobs:
                gave_up = time.perf_counter() - started
        if incremental is None and plan.mode != Mode.FULL:
            chosen_seconds = self._way(name, RefreshOptions())[0].seconds  # the job falls back
        before = self.catalog.load_storage(self.catalog.load(name))
        full, _ = self._way(name, _FULL)
        if incremental is not None and self.options.check:
            self._compare(name, before)
        if chosen_seconds is None:
            chosen_seconds = full.seconds if plan.mode == Mode.FULL or incremental is None else incremental.seconds
        return Run(
            mode=mode,
            incremental=incremental,
            gave_up=gave_up,
            full=full,
            chosen=str(plan.mode),
            chosen_seconds=chosen_seconds,
            recorded=_recorded(before) if incremental is not None else None,
            expected=bare.get(False),
            expected_full=bare.get(True),
            steps=steps,
        )

    @property
    def _jobs(self) -> bool:
        """Whether the last refresh came to a job."""
        return any(step.startswith("stage: ") and step != "stage: own" for step in self.catalog.steps.seconds)

    def _way(self, name: str, options: RefreshOptions) -> tuple[Way, RefreshResult]:
        self.catalog.steps.reset()
        read, written = self._store()
        started = time.perf_counter()
        result = self._refreshed(name, options)
        seconds = time.perf_counter() - started
        read_then, written_then = self._store()
        return Way(seconds, read_then - read, written_then - written), result

    def _refreshed(self, name: str, options: RefreshOptions) -> RefreshResult:
        """Refresh as :func:`airflow_mv.refresh.run.refresh` does, by the steps."""
        steps = self.catalog.steps
        with steps.phase("plan"):
            plan = plan_refresh(self.catalog, name, options)
        with steps.phase("stage"), inside(steps):
            outcome = stage(self.catalog, plan, self._timed)
        with steps.phase("publish"):
            result = publish(self.catalog, plan, outcome)
        if result is None:
            raise SystemExit(f"{name}: not refreshed, somebody else works on it")
        return result

    def _timed(self, script: Script) -> Outcome:
        return timed_stager(self.catalog, self.stager.session)(script)

    def _store(self) -> tuple[int, int]:
        """Return the bytes that Spark's process has read since it started, and those that it wrote to file systems.

        Hadoop does not count what Parquet reads by vectors, so the kernel is asked; it counts shuffles, too.
        """
        spark: Any = self.stager.session
        found = spark._jvm.org.apache.hadoop.fs.FileSystem.getAllStatistics()
        process = spark._jvm.java.lang.ProcessHandle.current().pid()
        counts = Path(f"/proc/{process}/io").read_text(encoding="ascii").split()
        return int(counts[1]), sum(item.getBytesWritten() for item in found)

    def _compare(self, name: str, before: LoadedStorage) -> None:
        view = self.catalog.load(name)
        after = self.catalog.load_storage(view)
        one, other = (
            stored_rows(
                self.stager.session,
                view.identifier,
                PointedStorage(storage.location, storage.table, storage.state),
                storage.rows_snapshot,
            )
            for storage in (before, after)
        )
        if one.exceptAll(other).count() or other.exceptAll(one).count():
            raise SystemExit(f"{name}: the two ways left different rows")


def _recorded(storage: LoadedStorage) -> int | None:
    return storage.state.current.bytes_read if storage.state else None
