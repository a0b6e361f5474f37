# SPDX-License-Identifier: Apache-2.0
"""After 0.1 % appended: a read of the fresh rows beside one of the stored rows, and beside the query."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from airflow_mv.actions import create_view, read_fresh, refresh_views
from airflow_mv.common.stored_rows import stored_rows
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.extras.spark.session import InProcessStager
from benchmarks import report
from benchmarks.changes import Tables
from benchmarks.tpch import CATALOG, VIEWS, Warehouse

#: The targets: times the stored read, and share of the query.
MOST_OF_STORED, MOST_OF_QUERY = 2.0, 0.2
_KINDS = ("stored", "fresh", "query")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scale", type=float, default=10.0, help="TPC-H scale factor (1: 6 million rows of lineitem)")
    parser.add_argument("--percent", type=float, default=0.1, help="size of the change")
    parser.add_argument("--repeat", type=int, default=5, metavar="R", help="reads of each kind, after one more")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, print the table, return every run."""
    facts = report.machine()
    warehouse = Warehouse.below(options.cache, options.scale)
    pointers = warehouse.open()
    catalog = MaterializedViewCatalog(pointers)
    stager = InProcessStager(catalog, report=lambda _: None)
    try:
        warehouse.clear(pointers)
        warehouse.fill(pointers, stager.session)
        tables = Tables("v2-mor", options.scale, "fresh reads")
        pointers.create_namespace_if_not_exists(tables.namespace)
        tables.copy(stager.session, pointers)
        names = {view: Identifier.parse(f"{CATALOG}.{tables.namespace}.{view}") for view in VIEWS}
        for view, name in names.items():
            create_view(catalog, name, Definition(tables.sql(VIEWS[view])), stager=stager)
            refresh_views(catalog, [name], stager=stager)
        tables.append(stager.session, options.percent / 100, 1)
        runs = {
            view: _measure(catalog, stager.session, name, tables.sql(VIEWS[view]), options.repeat)
            for view, name in names.items()
        }
    finally:
        stager.close()
    title = f"Reads of all rows, TPC-H scale factor {options.scale:g}, {options.percent:g} % appended, warm session"
    shown = report.shown(title, facts, _table(runs))
    return {"benchmark": "fresh-reads", "machine": facts, "scale": options.scale, "runs": runs, "tables": shown}


def _measure(
    catalog: MaterializedViewCatalog, spark: SparkSession, view: Identifier, sql: str, repeat: int
) -> dict[str, Any]:
    modes: list[str] = []

    def stored() -> DataFrame:
        storage = catalog.load_storage(catalog.load(view))
        return stored_rows(spark, view, storage, storage.rows_snapshot)

    def fresh() -> DataFrame:
        found = read_fresh(catalog, lambda: spark, view)
        modes.append(str(found.mode))
        return found.frame

    reads: dict[str, Callable[[], DataFrame]] = {"stored": stored, "fresh": fresh, "query": lambda: spark.sql(sql)}
    seconds: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    for _ in range(repeat + 1):
        for kind in _KINDS:  # in turn, so that other work of the machine meets all of them
            began = time.perf_counter()
            reads[kind]().write.format("noop").mode("overwrite").save()
            seconds[kind].append(time.perf_counter() - began)
    return {"mode": modes[-1], **{kind: found[1:] for kind, found in seconds.items()}}


def _table(runs: dict[str, dict[str, Any]]) -> str:
    return report.table(
        ["view", "mode", *(f"{kind}, s" for kind in _KINDS), "fresh / stored", "fresh / query"], _rows(runs)
    )


def _rows(runs: dict[str, dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for view, found in runs.items():
        middle = {kind: report.median(found[kind]) for kind in _KINDS}
        ratios = (middle["fresh"] / middle[kind] for kind in ("stored", "query"))
        yield (view, found["mode"], *(report.spread(found[kind]) for kind in _KINDS), *map(report.number, ratios))
