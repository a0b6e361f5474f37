# SPDX-License-Identifier: Apache-2.0
"""Decide which views must be refreshed now, so that no view becomes later than its target lag.

A function of what metadata says. An event that is lost, doubled or merged changes nothing, and neither does a second
scheduler: from the same snapshots it decides the same.

A view waits as long as its target allows: a later refresh reads the changes of more commits at once, and costs hardly
more. It must begin when a refresh that begins with the next decision would end too late. What it reads and is not fresh
is refreshed before it, from the same snapshots.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import heapify, heappop, heappush
from math import ceil, inf
from typing import Any

from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.sql.order import levels

#: The expected seconds of a refresh are multiplied by this: every second refresh takes longer than the median.
SAFETY = 1.5
#: A view is refreshed with a view that must be, if both read a view that is refreshed for that, and no more than this
#: share of its own target is left until it is due.
TOGETHER = 0.25
#: A refresh is planned to end this much before it is due: the time until the next decision, so that one may be lost,
#: but no more than this share of the target.
RESERVE = 0.1


@dataclass(frozen=True, slots=True)
class ViewLag:
    """A view, as far as a decision needs to know it.

    Args:
        target: Its own target lag; ``None``: as the views that read it need it.
        since: Time of the first base commit that it does not contain, through the views that it reads; ``None`` if it
            contains all.
        reads: The views that it reads.
        seconds: How long its refresh is expected to take now.
    """

    view: Identifier
    target: timedelta | None = None
    since: datetime | None = None
    reads: tuple[Identifier, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Run:
    """A view that is refreshed now.

    Args:
        after: The views of the decision that are refreshed before it.
        seconds: How long its refresh is expected to take.
        due: When its rows are to be published, for its own target or that of a view that reads it, with a reserve.
        why: Why now.
    """

    view: Identifier
    after: tuple[Identifier, ...]
    seconds: float
    due: datetime
    why: str


@dataclass(frozen=True, slots=True)
class Risk:
    """A target that cannot be kept, or that may not be.

    Args:
        why: In one sentence.
    """

    view: Identifier
    why: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What is refreshed now.

    Args:
        runs: The views to refresh, each after those that it reads.
        waiting: The other views that are not fresh and have a target, and when each of them is to be published.
        risks: The targets that cannot be kept.
        seconds: How long the refreshes are expected to take.
    """

    runs: tuple[Run, ...] = ()
    waiting: tuple[tuple[Identifier, datetime], ...] = ()
    risks: tuple[Risk, ...] = ()
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "runs": [
                {
                    "view": str(run.view),
                    "after": [str(view) for view in run.after],
                    "seconds": round(run.seconds, 3),
                    "due": run.due.isoformat(),
                    "why": run.why,
                }
                for run in self.runs
            ],
            "waiting": [{"view": str(view), "due": due.isoformat()} for view, due in self.waiting],
            "at_risk": [{"view": str(risk.view), "why": risk.why} for risk in self.risks],
            "seconds": round(self.seconds, 3),
        }


def decide(views: Iterable[ViewLag], now: datetime, *, period: timedelta, slots: int = 1) -> Decision:
    """Return what must be refreshed now.

    Args:
        views: All views of the chains.
        now: The time of the decision. The refreshes read the base tables as they are now.
        period: The time between decisions. One is left out if the refreshes of the one before have not ended.
        slots: How many refreshes run at a time.

    Raises:
        InvalidQueryError: The views depend on each other in a cycle.
    """
    return _Decider(views, now, period.total_seconds(), slots).decision()


class _Decider:
    """Decides; all times are seconds from now."""

    def __init__(self, views: Iterable[ViewLag], now: datetime, period: float, slots: int) -> None:
        self.views = {item.view: item for item in sorted(views, key=lambda item: item.view)}
        self.now, self.period, self.slots = now, period, slots
        self.reads = {view: [name for name in item.reads if name in self.views] for view, item in self.views.items()}
        self.order = {view: at for at, view in enumerate(view for level in levels(self.reads) for view in level)}
        #: What has to be refreshed for a view: what it reads and is not fresh, and itself.
        self.closures: dict[Identifier, frozenset[Identifier]] = {}
        for view in self.order:
            below = frozenset[Identifier]().union(*(self.closures[name] for name in self.reads[view]))
            self.closures[view] = below if self.views[view].since is None else below | {view}
        due = {view: self._due(item) for view, item in self.views.items()}
        #: When the views with a target that are not fresh must be published, the first one before the others.
        self.due = dict(sorted((pair for pair in due.items() if pair[1] < inf), key=self._first))

    def _due(self, item: ViewLag) -> float:
        if item.since is None or item.target is None:
            return inf
        return (item.since + item.target - self.now).total_seconds() - self._reserve(item.target)

    def _reserve(self, target: timedelta) -> float:
        return min(self.period, RESERVE * target.total_seconds())

    def _first(self, pair: tuple[Identifier, float]) -> tuple[float, int]:
        return pair[1], self.order[pair[0]]

    def decision(self) -> Decision:
        must, together, chosen = self._chosen()
        ends, urgency = self._ends(chosen, 0.0), self._urgency(chosen)
        last = max(ends.values(), default=0.0)
        why = {
            **dict.fromkeys(chosen, "a view that reads it is refreshed now"),
            **dict.fromkeys(together, "it is due soon, and reads what is refreshed now"),
            **dict.fromkeys(must, "it would be later than its target if it waited for the next decision"),
        }
        runs = (
            Run(
                view,
                tuple(name for name in self.reads[view] if name in chosen),
                self.views[view].seconds,
                self._time(urgency[view]),
                why[view],
            )
            for view in sorted(chosen, key=self.order.__getitem__)
        )
        waiting = tuple((view, self._time(due)) for view, due in self.due.items() if view not in chosen)
        return Decision(tuple(runs), waiting, tuple(self._risks(ends, last)), last)

    def _time(self, seconds: float) -> datetime:
        return self.now + timedelta(seconds=seconds)

    def _chosen(self) -> tuple[Collection[Identifier], Collection[Identifier], set[Identifier]]:
        """Return the views with a target that cannot wait for the next decision, those with them, and all to refresh.

        Views that are due before one that cannot wait are refreshed before it, so they do not wait either. The next
        decision comes later the more is refreshed now: then others cannot wait for it any more.
        """
        count, due = 0, list(self.due)
        while True:
            chosen = self._with_inputs(due[:count])
            together = self._together(chosen)
            chosen |= self._with_inputs(together)
            end = max(self._ends(chosen, 0.0).values(), default=0.0)
            after = self.period * max(ceil(end / self.period), 1)
            ends = self._ends(self._with_inputs(due[count:]) - chosen, after)
            late = [at for at in range(count, len(due)) if ends.get(due[at], 0.0) > self.due[due[at]]]
            if not late:
                return due[:count], together, chosen
            count = late[-1] + 1

    def _together(self, chosen: Collection[Identifier]) -> set[Identifier]:
        """Return the views that use what is refreshed anyway, and are due soon themselves."""
        found = set()
        for view, due in self.due.items():
            target = self.views[view].target
            shared = not self.closures[view].isdisjoint(chosen)
            if view not in chosen and target is not None and shared and due <= TOGETHER * target.total_seconds():
                found.add(view)
        return found

    def _with_inputs(self, views: Iterable[Identifier]) -> set[Identifier]:
        return {name for view in views for name in self.closures[view]}

    def _ends(self, chosen: Collection[Identifier], start: float) -> dict[Identifier, float]:
        """Return when each refresh is expected to end: of those that can begin, the one that is due first begins."""
        urgency = self._urgency(chosen)
        missing = {view: sum(name in chosen for name in self.reads[view]) for view in chosen}
        readers: dict[Identifier, list[Identifier]] = {}
        for view in chosen:
            for name in self.reads[view]:
                readers.setdefault(name, []).append(view)
        ready = [(urgency[view], self.order[view], view) for view, count in missing.items() if not count]
        heapify(ready)
        running: list[tuple[float, int, Identifier]] = []
        ends, at = dict[Identifier, float](), start
        while ready or running:
            while ready and len(running) < self.slots:
                _, number, view = heappop(ready)
                heappush(running, (at + SAFETY * self.views[view].seconds, number, view))
            at, _, view = heappop(running)
            ends[view] = at
            for reader in readers.get(view, ()):
                missing[reader] -= 1
                if not missing[reader]:
                    heappush(ready, (urgency[reader], self.order[reader], reader))
        return ends

    def _urgency(self, chosen: Collection[Identifier]) -> dict[Identifier, float]:
        """Return when each view is due, for itself or for a view that reads it."""
        found = {view: self.due.get(view, inf) for view in chosen}
        for view in sorted(chosen, key=self.order.__getitem__, reverse=True):
            for name in self.reads[view]:
                if name in found:
                    found[name] = min(found[name], found[view])
        return found

    def _risks(self, ends: Mapping[Identifier, float], last: float) -> Iterator[Risk]:
        line = dict[Identifier, float]()
        for view in self.order:
            item = self.views[view]
            line[view] = item.seconds + max((line[name] for name in self.reads[view]), default=0.0)
            if item.target is None:
                continue
            target, allowed = item.target.total_seconds(), _text(item.target)
            late = ends.get(view, 0.0) - self.due.get(view, inf) - self._reserve(item.target)
            if line[view] > target:
                what = f"it takes {line[view]:.0f} s to refresh it and what it reads, and its target is {allowed}"
                yield Risk(view, what)
            elif late > 0:
                yield Risk(
                    view, f"this refresh is expected to end {late:.0f} s after it is due; its target is {allowed}"
                )
            elif last > target:
                yield Risk(view, f"the refreshes that begin now take {last:.0f} s, and its target is {allowed}")


def _text(target: timedelta) -> str:
    seconds = target.total_seconds()
    return f"{seconds / 60:.10g} minutes" if seconds >= 60 else f"{seconds:.10g} seconds"
