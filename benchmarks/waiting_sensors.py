# SPDX-License-Identifier: Apache-2.0
"""Sensors that wait in one triggerer: its CPU time, the delay of its event loop, queries and files, by period."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import shutil
import time
import uuid
from collections.abc import Coroutine
from dataclasses import asdict, dataclass
from typing import Any

import psutil
from sqlalchemy import Engine, event

from airflow_mv.core.catalog.files import MetadataFiles
from airflow_mv.hooks import MaterializedViewHook
from airflow_mv.triggers.freshness import MaterializedViewFreshTrigger, judge
from airflow_mv.triggers.views import FreshnessRequest, read_view
from benchmarks import report
from benchmarks.many_views import Many

#: How often the event loop is asked whether it is late, in seconds.
_TICK = 0.02


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--views", type=int, default=5_000, metavar="N", help="views; one sensor waits for each")
    parser.add_argument("--tables", type=int, default=2_000, metavar="M", help="base tables; a view reads three")
    parser.add_argument("--snapshots", type=int, default=10, help="of each base table")
    parser.add_argument("--period", type=float, default=60.0, metavar="S", help="seconds between a sensor's polls")
    parser.add_argument("--sample", type=int, default=500, help="views that are read one by one, for comparison")
    parser.add_argument("--uri", help="the catalog's database; by default a new SQLite file")


@dataclass(frozen=True)
class Cost:
    """What a period has cost.

    Args:
        seconds: Of CPU time.
        delay_ms: The 99th percentile of the event loop's delay.
        queries: To the catalog's database.
        files: Metadata files that were read.
        memory_mib: Of the process, at the end.
    """

    seconds: float
    delay_ms: float
    queries: int
    files: int
    memory_mib: int


class _Meter:
    """Counts queries and files of this process from now on."""

    def __init__(self) -> None:
        self.queries = self.files = 0
        event.listen(Engine, "before_cursor_execute", self._query)
        inner = MetadataFiles.read

        def read(files: MetadataFiles, location: str, *, what: str) -> bytes:
            self.files += 1
            return inner(files, location, what=what)

        MetadataFiles.read = read  # type: ignore[method-assign]

    def _query(self, *_: object) -> None:
        self.queries += 1

    async def during(self, work: Coroutine[Any, Any, None]) -> Cost:
        """Return the cost of some work."""
        self.queries = self.files = 0
        started, running, delays = time.process_time(), asyncio.create_task(work), [0.0]
        while not running.done():
            asked = time.perf_counter()
            await asyncio.sleep(_TICK)
            delays.append(time.perf_counter() - asked - _TICK)
        await running
        gc.collect()
        memory = psutil.Process().memory_info().rss // 2**20
        late = sorted(delays)[int(len(delays) * 0.99)] * 1000
        return Cost(round(time.process_time() - started, 2), round(late, 1), self.queries, self.files, memory)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, print the table, return every figure."""
    facts = report.machine()
    folder = options.cache.resolve() / f"waiting-{uuid.uuid4().hex[:8]}"
    try:
        many = Many.make(folder, options)
        extra = {"type": "sql", "uri": many.uri, "warehouse": str(folder), "catalog_name": "lake"}
        os.environ["AIRFLOW_CONN_ICEBERG_DEFAULT"] = json.dumps({"conn_type": "iceberg", "extra": extra})
        many.move(options.tables)  # every view is stale, so every sensor waits
        costs = asyncio.run(_measure(many, options))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    title = (
        f"{options.views:,} sensors in one process, each for a view over 3 of {options.tables:,} base tables, "
        f"{many.kind}, a poll every {options.period:g} s"
    )
    head = ("", "CPU, s", "loop delay p99, ms", "queries", "files", "memory, MiB")
    rows = [(name, *(f"{value:,}" for value in asdict(cost).values())) for name, cost in costs.items()]
    tables = report.shown(title, facts, report.table(head, rows))
    return {
        "benchmark": "waiting-sensors",
        "machine": facts,
        "runs": {name: asdict(cost) for name, cost in costs.items()},
        "tables": tables,
    }


async def _measure(many: Many, options: argparse.Namespace) -> dict[str, Cost]:
    meter = _Meter()
    views = [f"lake.bench.v{number}" for number in range(options.views)]
    triggers = [MaterializedViewFreshTrigger(view=view, poke_interval=options.period) for view in views]
    costs = {
        f"{options.sample} views, one by one": await meter.during(
            asyncio.to_thread(_one_by_one, views[: options.sample])
        )
    }
    costs["first period"] = await meter.during(_period(triggers))
    await asyncio.sleep(options.period)
    costs["a period in which nothing moves"] = await meter.during(_period(triggers))
    await asyncio.sleep(options.period)
    moved = max(1, options.tables // 100)
    many.move(moved)
    costs[f"a period in which {moved} tables move"] = await meter.during(_period(triggers))
    return costs


def _one_by_one(views: list[str]) -> None:
    hook = MaterializedViewHook()
    for view in views:
        judge(read_view(hook, FreshnessRequest(view)), states=("fresh",), max_staleness_seconds=None)
    hook.close()


async def _period(triggers: list[MaterializedViewFreshTrigger]) -> None:
    """Poll once by each trigger, in a random order, as those that were started at different times do."""

    async def polled(trigger: MaterializedViewFreshTrigger, share: float) -> None:
        await asyncio.sleep(share * trigger.poke_interval)
        assert not (await trigger.poll()).ready

    await asyncio.gather(*(polled(item, place * 0.618 % 1) for place, item in enumerate(triggers)))
