# SPDX-License-Identifier: Apache-2.0
"""An incremental refresh against a full one of the same view at the same snapshots, in one Spark session."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_mv.actions import create_view as create
from airflow_mv.actions import plan_view
from airflow_mv.common.stored_rows import stored_rows
from airflow_mv.core.catalog import LoadedStorage
from airflow_mv.core.catalog.layouts import PointedStorage
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.refresh import RefreshOptions
from airflow_mv.core.refresh.plan import RefreshResult
from airflow_mv.core.refresh.run import publish, stage
from airflow_mv.core.script import Outcome, Script
from airflow_mv.core.spec.reasons import Mode
from airflow_mv.errors import RefreshRefusedError
from airflow_mv.extras.spark.session import InProcessStager
from benchmarks import report
from benchmarks.cells import Cell, Run, Way, bound, falling_back, fit, steps, table
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
    parser.add_argument(
        "--sequence",
        type=Change.parsed,
        nargs="+",
        metavar="VARIANT:CHANGE:PERCENT",
        help="in place of all sizes of all changes of all variants: these, one after another",
    )
    parser.add_argument("--prepare", action="store_true", help="make the data that are made once, and measure nothing")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, print the tables, return every run."""
    facts, clock = report.machine(), Clock(options.minutes)
    cells = _at(options, clock)
    if options.prepare:
        return {"benchmark": "incremental", "machine": facts, "cells": []}
    title = f"Incremental against full, TPC-H scale factor {options.scale:g}, warm session"
    tables = report.shown(title, facts, table(cells), bound(cells), falling_back(cells))
    print(f"\n{steps(cells)}\n\n{fit(cells)}\n\n" + "\n".join(clock.told()))
    return {
        "benchmark": "incremental",
        "machine": facts,
        "seconds": clock.phases,
        "left_out": clock.left_out,
        "cells": [cell.to_dict() for cell in cells],
        "tables": tables,
    }


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the tables.

    Args:
        variant: How rows are deleted, one of :data:`VARIANTS`.
        sort: One of ``append``, ``mixed`` and ``clustered``.
        percent: Of the orders.
    """

    variant: str
    sort: str
    percent: float

    @classmethod
    def parsed(cls, text: str) -> Change:
        """Return the change that ``VARIANT:CHANGE:PERCENT`` means.

        Raises:
            ValueError: The text has another form, or names what there is not.
        """
        variant, sort, percent = text.split(":")
        if variant not in VARIANTS or sort not in _CHANGES:
            raise ValueError(text)
        return cls(variant, sort, float(percent))

    @property
    def format_version(self) -> str:
        """Of the tables."""
        return VARIANTS[self.variant]["format-version"]

    def __str__(self) -> str:
        return f"{self.variant} {self.sort} {self.percent:g} %"


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


def _at(options: argparse.Namespace, clock: Clock) -> list[Cell]:
    """Measure at one scale factor."""
    warehouse = Warehouse.below(options.cache, options.scale)
    tables = warehouse.open()
    catalog = TimedCatalog(tables)
    stager = InProcessStager(catalog, report=lambda _: None)
    bench = Bench(tables, catalog, stager, options, clock)
    since = time.monotonic()
    try:
        warehouse.fill(tables, stager.session)
        clock.phase("data and session", since)
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
    cells: dict[tuple[Change, str], Cell] = field(default_factory=dict)
    _number: int = 0

    def measure(self) -> list[Cell]:
        """Measure all cells."""
        if self.options.sequence:
            self._in_sequence(self.options.sequence)
        else:
            self._each_by_itself()
        return list(self.cells.values())

    def _in_sequence(self, changes: Sequence[Change]) -> None:
        """Make the changes one after another. Those of one format version happen to the same tables and views.

        At a large scale most of the time goes to full refreshes. So one of each view is measured only after the first
        change of a format version, and counts for the later ones, too.
        """
        for version in dict.fromkeys(change.format_version for change in changes):
            own = [change for change in changes if change.format_version == version]
            if not self.clock.allows(f"format version {version}"):
                continue
            tables = self._made(own[0].variant, f"v{version} sequence")
            self._warm_up(tables, own[0])
            full: dict[str, Way] = {}
            for change in own:
                if self.clock.allows(str(change)):
                    tables = tables.as_variant(self.stager.session, change.variant)
                    self._row(tables, change, full)

    def _each_by_itself(self) -> None:
        """Measure all sizes, the most telling ones first, and the cheap ones again as long as there is time.

        Each sort of change of each variant has tables of its own.
        """
        sorts = [(variant, sort) for variant in self.options.variants for sort in self.options.changes]
        made = {
            sort: self._made(sort[0], f"{sort[0]} {sort[1]}") for sort in sorts if self.clock.allows(" ".join(sort))
        }
        if made:
            sort, tables = next(iter(made.items()))
            self._warm_up(tables, Change(*sort, self.options.percents[0]))
        for turn in range(max(1, self.options.repeat)):
            for percent in (item for item in self.options.percents if turn == 0 or item <= _CHEAP):
                for sort, tables in made.items():
                    change = Change(*sort, percent)
                    if self.clock.allows(f"{change} (run {turn + 1})"):
                        self._row(tables, change, {})

    def _made(self, variant: str, purpose: str) -> Tables:
        """Copy the tables, and build the views of them."""
        since = time.monotonic()
        tables = Tables(variant, self.options.scale, purpose)
        self.pointers.create_namespace_if_not_exists(tables.namespace)
        tables.copy(self.stager.session, self.pointers)
        for view in self.options.views:
            name = _view_name(tables, view)
            definition = Definition(tables.sql(QUERIES[view]), refresh_strategy="incremental")
            create(self.catalog, name, definition, stager=self.stager, replace=self.catalog.exists(name))
            self._refreshed(name, RefreshOptions())
        self.clock.phase("copies and views", since)
        return tables

    def _warm_up(self, tables: Tables, first: Change) -> None:
        """Refresh incrementally once, for the caches and the compiler. A full refresh has filled each view before.

        The first of these was made in a new session and took longer, so it is repeated: plans look at such times.
        """
        change = replace(first, sort="append" if first.sort == "append" else "clustered")
        self._change(tables, change)
        self._way(_view_name(tables, self.options.views[0]), _FULL)
        self._change(tables, change)
        since = time.monotonic()
        for view in self.options.views:
            with suppress(RefreshRefusedError):
                self._way(_view_name(tables, view), _INCREMENTAL)
        self.clock.phase("warm-up", since)

    def _row(self, tables: Tables, change: Change, full: dict[str, Way]) -> None:
        """Change the tables once, and refresh their views both ways.

        Args:
            tables: Which.
            change: What happens to them.
            full: Full refreshes of views that need not be measured again; gets those that were.
        """
        self._change(tables, change)
        since = time.monotonic()
        for view in self.options.views:
            cell = Cell(self.options.scale, change.variant, change.sort, change.percent, view)
            cell = self.cells.setdefault((change, view), cell)
            cell.runs.append(self._run(_view_name(tables, view), full.get(view)))
            full[view] = cell.runs[-1].full
            print(cell, flush=True)
        self.clock.phase("refreshes", since)

    def _change(self, tables: Tables, change: Change) -> None:
        self._number += 1
        since = time.monotonic()
        _CHANGES[change.sort](tables, self.stager.session, change.percent / 100, self._number)
        self.clock.phase("changes", since)

    # ------------------------------------------------------------------------------------ one view

    def _run(self, name: str, full: Way | None) -> Run:
        plan = plan_view(self.catalog, name)
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
        if full is None or incremental is None or self.options.check:
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
        read, written, cpu = self._used()
        started = time.perf_counter()
        result = self._refreshed(name, options)
        seconds = time.perf_counter() - started
        read_then, written_then, cpu_then = self._used()
        return Way(seconds, read_then - read, written_then - written, cpu_then - cpu), result

    def _refreshed(self, name: str, options: RefreshOptions) -> RefreshResult:
        """Refresh as :func:`airflow_mv.core.refresh.run.refresh` does, by the steps."""
        steps = self.catalog.steps
        with steps.phase("plan"):
            plan = plan_view(self.catalog, name, options)
        with steps.phase("stage"), inside(steps):
            outcome = stage(self.catalog, plan, self._timed)
        with steps.phase("publish"):
            result = publish(self.catalog, plan, outcome)
        if result is None:
            raise SystemExit(f"{name}: not refreshed, somebody else works on it")
        return result

    def _timed(self, script: Script) -> Outcome:
        return timed_stager(self.catalog, self.stager.session)(script)

    def _used(self) -> tuple[int, int, float]:
        """Return the bytes that Spark's process has read and written to file systems, and the CPU seconds of both.

        Hadoop does not count what Parquet reads by vectors, so the kernel is asked; it counts shuffles, too.
        """
        spark: Any = self.stager.session
        found = spark._jvm.org.apache.hadoop.fs.FileSystem.getAllStatistics()
        process = Path(f"/proc/{spark._jvm.java.lang.ProcessHandle.current().pid()}")
        read = int((process / "io").read_text(encoding="ascii").split()[1])
        times = (process / "stat").read_text(encoding="ascii").rpartition(")")[2].split()[11:13]  # user, system
        cpu = sum(map(int, times)) / os.sysconf("SC_CLK_TCK") + time.process_time()
        return read, sum(item.getBytesWritten() for item in found), cpu

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


def _view_name(tables: Tables, view: str) -> str:
    return f"{CATALOG}.{SCRATCH}.{view}_{tables.namespace}"


def _recorded(storage: LoadedStorage) -> int | None:
    return storage.state.current.bytes_read if storage.state else None
