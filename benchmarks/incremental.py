# SPDX-License-Identifier: Apache-2.0
"""An incremental refresh against a full one of the same view at the same snapshots, in one Spark session."""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from airflow_mv.catalog import MaterializedViewCatalog
from airflow_mv.create import Definition, create
from airflow_mv.errors import RefreshRefusedError
from airflow_mv.planning import RefreshOptions, plan_refresh
from airflow_mv.refresh import refresh
from airflow_mv.script import Outcome, Script
from airflow_mv.stagers import InProcessStager
from benchmarks import report
from benchmarks.changes import VARIANTS, Tables
from benchmarks.tpch import CATALOG, SCRATCH, VIEWS, Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILTER = """
SELECT l_orderkey, l_linenumber, l_quantity, l_extendedprice, l_shipdate
FROM lake.tpch.lineitem WHERE l_quantity > 45"""
QUERIES = {"v0": _FILTER, **VIEWS}
_CHANGES: dict[str, Callable[[Tables, SparkSession, float, int], None]] = {"append": Tables.append, "mixed": Tables.mix}


@dataclass(frozen=True, slots=True)
class Cell:
    """One change, one view, refreshed both ways; seconds."""

    variant: str
    change: str
    percent: float
    view: str
    mode: str
    incremental: float | None
    full: float
    chosen: str
    #: What was expected of both ways, in seconds, before what the view's own refreshes have taught.
    expected: float | None = None
    expected_full: float | None = None

    @property
    def ratio(self) -> float | None:
        """Incremental over full."""
        return None if self.incremental is None else self.incremental / self.full


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scale", type=float, default=1.0, help="TPC-H scale factor (1: 6 million rows of lineitem)")
    parser.add_argument("--percents", type=float, nargs="+", default=[0.01, 0.1, 1, 10, 50])
    parser.add_argument("--changes", nargs="+", choices=list(_CHANGES), default=list(_CHANGES))
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--views", nargs="+", choices=list(QUERIES), default=list(QUERIES))
    parser.add_argument("--check", action="store_true", help="compare the rows of both ways after each pair")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, print the table, return every run."""
    warehouse = Warehouse.below(options.cache, options.scale)
    tables = warehouse.open()
    catalog = MaterializedViewCatalog(tables)
    stager = InProcessStager(catalog, report=lambda _: None)
    facts = report.machine()
    cells: list[Cell] = []
    try:
        warehouse.fill(tables, stager.session)
        warehouse.clear(tables)
        for variant in options.variants:
            tables.create_namespace_if_not_exists(Tables(variant, options.scale).namespace)
            cells += _variant(catalog, stager, Tables(variant, options.scale), options)
    finally:
        stager.close()
        warehouse.clear(tables)
    print(f"\nIncremental against full, TPC-H scale factor {options.scale:g}, warm session, one run a cell")
    print(f"{report.about(facts)}\n\n{_table(cells)}\n\n{fit(cells)}")
    return {
        "benchmark": "incremental",
        "scale": options.scale,
        "machine": facts,
        "cells": [{**asdict(cell), "ratio": cell.ratio} for cell in cells],
    }


def _variant(
    catalog: MaterializedViewCatalog, stager: InProcessStager, tables: Tables, options: argparse.Namespace
) -> list[Cell]:
    cells: list[Cell] = []
    numbers = itertools.count(1)
    for change in options.changes:
        tables.copy(stager.session)
        for view in options.views:
            for way in ("incremental", "full"):
                _create(catalog, stager, tables, view, way)
        # The first change is for the caches and the compiler: it is not reported.
        for percent in (options.percents[0], *options.percents):
            number = next(numbers)
            _CHANGES[change](tables, stager.session, percent / 100, number)
            found = [_measure(catalog, stager, tables, change, percent, view, options) for view in options.views]
            cells += found if number > 1 else []
            for cell in found:
                print(_line(cell), flush=True)
    return cells


def _name(tables: Tables, view: str, way: str) -> str:
    return f"{CATALOG}.{SCRATCH}.{view}_{way}_{tables.variant.replace('-', '_')}"


def _create(
    catalog: MaterializedViewCatalog, stager: Callable[[Script], Outcome], tables: Tables, view: str, way: str
) -> None:
    name = _name(tables, view, way)
    strategy = "incremental" if way == "incremental" else "full"
    definition = Definition(tables.sql(QUERIES[view]), refresh_strategy=strategy)
    create(catalog, name, definition, stager=stager, replace=catalog.exists(name))
    refresh(catalog, [name], stager=stager)


def _measure(
    catalog: MaterializedViewCatalog,
    stager: InProcessStager,
    tables: Tables,
    change: str,
    percent: float,
    view: str,
    options: argparse.Namespace,
) -> Cell:
    names = {way: _name(tables, view, way) for way in ("incremental", "full")}
    plan = plan_refresh(catalog, names["incremental"])
    bare = {item.mode == "full": item.seconds / item.factor for item in plan.estimates}
    full, _ = _timed(catalog, stager, names["full"], RefreshOptions())
    try:
        seconds, mode = _timed(catalog, stager, names["incremental"], RefreshOptions(on_fallback="fail"))
    except RefreshRefusedError:
        seconds, mode = None, "full"
        refresh(catalog, [names["incremental"]], stager=stager)
    if options.check:
        _compare(stager.session, catalog, names)
    expected, expected_full = bare.get(False), bare.get(True)
    return Cell(tables.variant, change, percent, view, mode, seconds, full, str(plan.mode), expected, expected_full)


def _timed(
    catalog: MaterializedViewCatalog, stager: InProcessStager, name: str, how: RefreshOptions
) -> tuple[float | None, str]:
    started = time.perf_counter()
    (result,) = refresh(catalog, [name], stager=stager, options=how)
    return time.perf_counter() - started, str(result.mode)


def _compare(spark: SparkSession, catalog: MaterializedViewCatalog, names: dict[str, str]) -> None:
    from airflow_mv.reading import read

    one, other = (read(spark, name, catalog=catalog) for name in names.values())
    if one.exceptAll(other).count() or other.exceptAll(one).count():
        raise SystemExit(f"{names}: the two ways left different rows")


def _table(cells: list[Cell]) -> str:
    head = ["tables", "change", "%", "view", "incremental, s", "full, s", "ratio", "mode", "plan"]
    return report.table([*head, "expected, s", "full expected, s"], [_row(cell) for cell in cells])


def fit(cells: list[Cell]) -> str:
    """Return how far the estimates are off, for each mode: what to multiply the figures of ``plan/cost.py`` by."""
    ratios: dict[str, list[float]] = {}
    for cell in cells:
        if cell.expected_full:
            ratios.setdefault("full", []).append(cell.full / cell.expected_full)
        if cell.expected and cell.incremental:
            ratios.setdefault(cell.mode, []).append(cell.incremental / cell.expected)
    rows = [
        (mode, str(len(found)), f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})")
        for mode, found in sorted(ratios.items())
    ]
    return report.table(["mode", "cells", "measured / expected"], rows)


def _row(cell: Cell) -> tuple[str, ...]:
    seconds = "-" if cell.incremental is None else f"{cell.incremental:.2f}"
    ratio = "-" if cell.ratio is None else f"{cell.ratio:.2f}"
    share = f"{cell.percent:g}"
    expected = ["-" if item is None else f"{item:.2f}" for item in (cell.expected, cell.expected_full)]
    measured = (seconds, f"{cell.full:.2f}", ratio)
    return cell.variant, cell.change, share, cell.view, *measured, cell.mode, cell.chosen, *expected


def _line(cell: Cell) -> str:
    return "  ".join(_row(cell))
