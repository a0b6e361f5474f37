# SPDX-License-Identifier: Apache-2.0
"""A day of views in chains, whose target lags are kept by decisions, beside a cron of 15 minutes: a simulation.

The clock is simulated; the decisions are those of the package. A refresh takes a fixed time, and some time for each
commit that it reads. A decision is told an estimate of it.
"""

from __future__ import annotations

import argparse
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from random import Random
from typing import Any

from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.extras.lag.decide import ViewLag, decide
from benchmarks import report

START = datetime(2026, 1, 5, tzinfo=UTC)
#: Seconds of a day. A test plays a part of one.
DAY = 24 * 3600.0
CRON = 900.0
#: The target lags, and the share of views that have each. Every second view is ``downstream``.
TARGETS = {900.0: 0.2, 1800.0: 0.3, 3600.0: 0.3, 14400.0: 0.2}
#: What a decision is told of a refresh's seconds differs from them by a factor: e to the power of a normal variable.
NOISE = 0.3


@dataclass(frozen=True)
class SimulatedView:
    """A view: the base tables and views that it reads, and what its refresh takes."""

    name: Identifier
    tables: tuple[int, ...]
    reads: tuple[int, ...]
    target: float | None
    fixed: float
    per_commit: float


@dataclass(frozen=True)
class World:
    """Views in chains over base tables with bursts of commits."""

    views: tuple[SimulatedView, ...]
    commits: tuple[tuple[float, ...], ...]
    seconds: float

    @classmethod
    def drawn(
        cls, random: Random, *, views: int, tables: int, targets: Mapping[float, float] = TARGETS, seconds: float = DAY
    ) -> World:
        """Draw a world."""
        made: list[SimulatedView] = []
        for number in range(views):
            below = random.sample(range(number), min(number, random.choice((0, 1, 1, 2))))
            below = [item for item in below if _depth(made, item) < 5]
            own = random.sample(range(tables), random.choice((1, 2)) if not below else random.choice((0, 0, 1)))
            target = random.choices([*targets], [*targets.values()])[0] if random.random() < 0.5 else None
            name = Identifier("lake", ("sales",), f"v{number}")
            fixed, each = random.uniform(2, 6), random.uniform(0.01, 0.1)
            made.append(SimulatedView(name, tuple(own), tuple(below), target, fixed, each))
        return cls(tuple(made), tuple(tuple(_commits(random, seconds)) for _ in range(tables)), seconds)


def _depth(made: Sequence[SimulatedView], view: int) -> int:
    return 1 + max((_depth(made, item) for item in made[view].reads), default=0)


def _commits(random: Random, seconds: float) -> Iterator[float]:
    """Yield the times of a table's commits: steady ones, and bursts of many within minutes."""
    at, gap = 0.0, random.choice((60.0, 300.0, 900.0, 3600.0, 14400.0))
    while (at := at + random.expovariate(1 / gap)) < seconds:
        yield at
        if random.random() < 0.02:
            burst = at
            for _ in range(random.randint(10, 60)):
                at += random.uniform(1, 10)
                if at < min(burst + 600, seconds):
                    yield at


@dataclass
class Played:
    """What a day costs, and how late the views were."""

    seconds: float = 0.0
    refreshes: int = 0
    runs: int = 0
    decisions: int = 0
    #: The worst lag of each view that has a target, in seconds.
    worst: dict[int, float] = field(default_factory=dict)
    #: Views that were later than their targets, and those of which that was said beforehand.
    late: set[int] = field(default_factory=set)
    warned: set[int] = field(default_factory=set)


class Day:
    """Plays a world. ``contains[view][table]`` is the time up to which a view contains a table's commits."""

    def __init__(self, world: World, *, slots: int) -> None:
        self.world, self.slots, self.played = world, slots, Played()
        self.sources = [self._sources(number) for number in range(len(world.views))]
        self.contains = [dict.fromkeys(tables, 0.0) for tables in self.sources]
        self.random = Random(0)

    def _sources(self, view: int) -> set[int]:
        item = self.world.views[view]
        return set(item.tables).union(*(self._sources(below) for below in item.reads))

    def first_missing(self, view: int, now: float) -> float | None:
        """Return the time of the first commit that a view does not contain at a time."""
        found = []
        for table, until in self.contains[view].items():
            commits = self.world.commits[table]
            at = bisect_right(commits, until)
            if at < len(commits) and commits[at] <= now:
                found.append(commits[at])
        return min(found, default=None)

    def lags(self, now: float) -> list[ViewLag]:
        """Return what a decision is told."""
        told = []
        for number, view in enumerate(self.world.views):
            since = self.first_missing(number, now)
            told.append(
                ViewLag(
                    view.name,
                    None if view.target is None else timedelta(seconds=view.target),
                    None if since is None else START + timedelta(seconds=since),
                    tuple(self.world.views[item].name for item in view.reads),
                    self.expected(number, now) * self.random.lognormvariate(0, NOISE),
                )
            )
        return told

    def refresh(self, runs: Mapping[int, Sequence[int]], urgency: Mapping[int, float], now: float) -> float:
        """Refresh views, each after others, from the base tables as they are now; return when the last one ends."""
        left = {view: set(after) for view, after in runs.items()}
        running: list[tuple[float, int]] = []
        at = now
        while left or running:
            ready = sorted((urgency.get(view, 0.0), view) for view, after in left.items() if not after)
            for _, view in ready[: self.slots - len(running)]:
                del left[view]
                heappush(running, (at + self._seconds(view, now), view))
            at, ended = heappop(running)
            self._publish(ended, now, at)
            for after in left.values():
                after.discard(ended)
        self.played.runs += bool(runs)
        return at

    def expected(self, view: int, now: float) -> float:
        """Return what the refresh of a view takes now."""
        item, commits = self.world.views[view], 0
        for table, until in self.contains[view].items():
            times = self.world.commits[table]
            commits += bisect_right(times, now) - bisect_right(times, until)
        return item.fixed + item.per_commit * commits

    def _seconds(self, view: int, now: float) -> float:
        taken = self.expected(view, now)
        self.played.seconds += taken
        self.played.refreshes += 1
        return taken

    def _publish(self, view: int, now: float, end: float) -> None:
        self._note(view, end)
        self.contains[view] = dict.fromkeys(self.contains[view], now)

    def _note(self, view: int, at: float) -> None:
        """Note how late a view is just before a time."""
        target, since = self.world.views[view].target, self.first_missing(view, at)
        if target is not None and since is not None:
            self.played.worst[view] = max(self.played.worst.get(view, 0.0), at - since)
            if at - since > target:
                self.played.late.add(view)

    def end(self) -> Played:
        """End the day."""
        for view in range(len(self.world.views)):
            self._note(view, self.world.seconds)
        return self.played


def by_targets(world: World, *, slots: int, period: float) -> Played:
    """Play a day with a decision each period."""
    day, now = Day(world, slots=slots), period
    numbers = {view.name: number for number, view in enumerate(world.views)}
    while now < world.seconds:
        found = decide(day.lags(now), START + timedelta(seconds=now), period=timedelta(seconds=period), slots=slots)
        day.played.decisions += 1
        day.played.warned |= {numbers[risk.view] for risk in found.risks}
        runs = {numbers[run.view]: [numbers[name] for name in run.after] for run in found.runs}
        urgency = {numbers[run.view]: (run.due - START).total_seconds() for run in found.runs}
        end = day.refresh(runs, urgency, now)
        now = max(now + period, period * -(-end // period))
    return day.end()


def by_cron(world: World, *, slots: int, every: float = CRON) -> Played:
    """Play a day in which all views that are not fresh are refreshed every 15 minutes, in the order of the chains."""
    day, now = Day(world, slots=slots), every
    while now < world.seconds:
        stale = {number for number in range(len(world.views)) if day.first_missing(number, now) is not None}
        end = day.refresh(
            {view: [item for item in world.views[view].reads if item in stale] for view in stale}, {}, now
        )
        day.played.decisions += 1
        now = max(now + every, every * -(-end // every))
    return day.end()


# ------------------------------------------------------------------------------------ the benchmark


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--views", type=int, default=200, metavar="N", help="views, in chains of up to five")
    parser.add_argument("--tables", type=int, default=50, metavar="M", help="base tables with bursts of commits")
    parser.add_argument("--slots", type=int, default=4, metavar="K", help="refreshes at a time")
    parser.add_argument("--period", type=float, default=60.0, metavar="SECONDS", help="time between two decisions")
    parser.add_argument("--days", type=int, default=3, metavar="D", help="days, each of another world")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Play the days, print the table, return every day."""
    facts, runs = report.machine(), []
    for seed in range(1, options.days + 1):
        world = World.drawn(Random(seed), views=options.views, tables=options.tables)
        started = time.process_time()
        kept = by_targets(world, slots=options.slots, period=options.period)
        seconds = (time.process_time() - started) / max(kept.decisions, 1)
        runs.append(
            {
                "day": seed,
                "targets": _figures(world, kept),
                "cron": _figures(world, by_cron(world, slots=options.slots)),
            }
        )
        runs[-1]["targets"]["decision_ms"] = round(1000 * seconds, 1)
    what = f"{options.views} views in chains over {options.tables} base tables with bursts, {options.slots} at a time"
    tables = report.shown(
        f"Target lags of 15 minutes to 4 hours beside a cron of 15 minutes: {what}", facts, _table(runs)
    )
    return {"benchmark": "lag-day", "machine": facts, "runs": runs, "tables": tables}


def _figures(world: World, played: Played) -> dict[str, Any]:
    shares = [worst / (world.views[view].target or 1.0) for view, worst in played.worst.items()]
    return {
        "spark_seconds": round(played.seconds),
        "refreshes": played.refreshes,
        "runs": played.runs,
        "views_with_target": sum(view.target is not None for view in world.views),
        "late": len(played.late),
        "late_without_warning": len(played.late - played.warned),
        "worst_share_of_target": round(max(shares, default=0.0), 3),
    }


def _table(runs: Sequence[Mapping[str, Any]]) -> str:
    head = ("day", "by", "Spark seconds", "of cron", "refreshes", "late views", "not said before", "worst lag / target")
    rows = []
    for day in runs:
        for by in ("cron", "targets"):
            found = day[by]
            share = found["spark_seconds"] / day["cron"]["spark_seconds"]
            late = f"{found['late']} of {found['views_with_target']}"
            unsaid = str(found["late_without_warning"]) if by == "targets" else "-"
            figures = (f"{found['spark_seconds']:,}", f"{share:.2f}", f"{found['refreshes']:,}", late, unsaid)
            rows.append((str(day["day"]), by, *figures, f"{found['worst_share_of_target']:.2f}"))
    return report.table(head, rows)
