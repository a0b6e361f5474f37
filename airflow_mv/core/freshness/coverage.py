# SPDX-License-Identifier: Apache-2.0
"""Coverage: which intervals of a view are fresh, stale, or were never computed. Pure functions of metadata.

Intervals are the hours, days, months or years of UTC, as partitions are. Neighbours of the same state are one range, so
the result is as long as the refresh record, and not as the time that it is about.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from typing import Any

from airflow_mv.core.freshness.state import BaseTableChange, PartFreshness
from airflow_mv.core.spec.interval import Interval
from airflow_mv.core.spec.times import unit_number, unit_start


class Cover(StrEnum):
    """The state of one interval."""

    FRESH = "fresh"
    #: Base tables have changed, but the statistics of the added files prove that no row of the interval did.
    UNAFFECTED = "unaffected"
    STALE = "stale"
    NEVER_COMPUTED = "never-computed"


#: The states of rows that equal a recompute.
UP_TO_DATE = frozenset({Cover.FRESH, Cover.UNAFFECTED})


@dataclass(frozen=True, slots=True)
class CoverRange:
    """Neighbouring intervals of the same state.

    Args:
        start: The start of the first one, in UTC.
        end: The end of the last one (excluded).
        count: How many there are.
        state: Their state.
    """

    start: datetime
    end: datetime
    count: int
    state: Cover

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "start": self.start.isoformat(),
            "end": self.end.isoformat(),
            "count": self.count,
            "state": str(self.state),
        }


@dataclass(frozen=True, slots=True)
class Coverage:
    """The states of the intervals of a view within a time.

    Args:
        view: The view's name.
        column: The interval column.
        kind: Its type: ``date``, ``timestamp`` or ``timestamptz``. A date is one of the zone of a run's times.
        unit: ``hour``, ``day``, ``month`` or ``year``: the length of an interval.
        ranges: Without gaps, the first one first.
    """

    view: str
    column: str
    kind: str
    unit: str
    ranges: tuple[CoverRange, ...]

    @property
    def counts(self) -> dict[Cover, int]:
        """How many intervals have each state."""
        return {state: sum(item.count for item in self.ranges if item.state == state) for state in Cover}

    @property
    def total(self) -> int:
        """How many intervals there are."""
        return sum(item.count for item in self.ranges)

    @property
    def up_to_date(self) -> int:
        """How many intervals equal a recompute."""
        return sum(item.count for item in self.ranges if item.state in UP_TO_DATE)

    @property
    def behind(self) -> str:
        """How many intervals are not fresh, and why, as a reason of the view's state; empty if all are."""
        units = f"{self.total:,} {self.unit}{'' if self.total == 1 else 's'}"
        words = {Cover.NEVER_COMPUTED: "never computed", Cover.STALE: "stale"}
        found = [f"{self.counts[state]:,} {word}" for state, word in words.items() if self.counts[state]]
        return f"of {units}: {' and '.join(found)}" if found else ""

    def __str__(self) -> str:
        return f"{self.up_to_date:,} of {self.total:,} {self.unit}{'' if self.total == 1 else 's'} fresh"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document of ``airflow-mv status --intervals``."""
        return {
            "view": self.view,
            "column": self.column,
            "type": self.kind,
            "unit": self.unit,
            "from": self.ranges[0].start.isoformat(),
            "to": self.ranges[-1].end.isoformat(),
            "intervals": self.total,
            "up_to_date": self.up_to_date,
            "behind": self.behind,
            "states": {str(state): count for state, count in self.counts.items()},
            "ranges": [item.to_dict() for item in self.ranges],
        }


@dataclass(frozen=True, slots=True)
class Units:
    """The intervals in question, by their numbers (see :func:`airflow_mv.core.spec.times.unit_number`).

    Args:
        unit: Their length.
        first: The number of the first one.
        after: The number after the last one.
    """

    unit: str
    first: int
    after: int

    def interval(self, column: str, first: int, after: int) -> Interval:
        """Return the interval of a column from one unit to before another one."""
        return Interval(column, unit_start(first, self.unit), unit_start(after, self.unit))


#: Returns the ranges of units (first and after) that the changes of base tables may affect; ``None`` if it may be any.
Affected = Callable[[Sequence[BaseTableChange]], Sequence[tuple[int, int]] | None]


def cover(parts: Sequence[PartFreshness], column: str, units: Units, affected: Affected) -> tuple[CoverRange, ...]:
    """Return the states of intervals.

    Args:
        parts: The freshness of all parts of the stored rows; the one outside of all intervals first.
        column: The interval column.
        units: The intervals.
        affected: Tells which of them a change may affect.
    """
    ranges: dict[int, Sequence[tuple[int, int]] | None] = {}

    def affected_by(part: PartFreshness) -> Sequence[tuple[int, int]] | None:
        if id(part) not in ranges:
            ranges[id(part)] = affected(part.base_tables)
        return ranges[id(part)]

    found = (
        (first, after, state)
        for start, end, here in _pieces(parts, column, units)
        for first, after, state in _states(start, end, here, affected_by)
    )
    return tuple(
        CoverRange(unit_start(first, units.unit), unit_start(after, units.unit), after - first, state)
        for first, after, state in _joined(found)
    )


def _pieces(
    parts: Sequence[PartFreshness], column: str, units: Units
) -> Iterator[tuple[int, int, Sequence[PartFreshness]]]:
    """Cut the units where other parts begin; give each piece the parts that may hold rows of it."""
    rest = [item for item in parts if item.part.interval is None]
    own = sorted(
        ((item.part.interval, item) for item in parts if item.part.interval is not None), key=lambda pair: pair[0].start
    )
    if any(interval.column != column for interval, _ in own):
        yield units.first, units.after, parts  # each of them may hold rows of each interval
        return
    ends = [interval.end for interval, _ in own]
    for first, after in _cuts([interval for interval, _ in own], units):
        piece = units.interval(column, first, after)
        here, until = [], piece.start
        gap = False
        for interval, item in own[bisect_right(ends, piece.start) :]:
            if interval.start >= piece.end:
                break
            here.append(item)
            gap |= interval.start > until
            until = interval.end
        yield first, after, here if here and not gap and until >= piece.end else [*rest, *here]


def _cuts(intervals: Iterable[Interval], units: Units) -> Iterator[tuple[int, int]]:
    """Return the ranges of units that have no start or end of an interval within, or are one unit."""
    cuts = {units.first, units.after}
    for moment in {moment for item in intervals for moment in (item.start, item.end)}:
        number = unit_number(moment, units.unit)
        cuts |= {number, number if unit_start(number, units.unit) == moment else number + 1}
    ordered = sorted(cut for cut in cuts if units.first <= cut <= units.after)
    yield from pairwise(ordered)


def _states(
    start: int,
    end: int,
    parts: Sequence[PartFreshness],
    affected_by: Callable[[PartFreshness], Sequence[tuple[int, int]] | None],
) -> Iterator[tuple[int, int, Cover]]:
    """Return the states of the units of one piece."""
    computed = [item for item in parts if item.part.computed]
    if not computed:
        yield start, end, Cover.NEVER_COMPUTED
        return
    stale = [item for item in computed if not item.is_fresh]
    if not stale and len(computed) == len(parts):
        yield start, end, Cover.FRESH
        return
    ranges = [affected_by(item) for item in stale]
    if len(computed) < len(parts) or any(item is None for item in ranges):
        yield start, end, Cover.STALE
        return
    at = start
    for first, after in sorted(pair for pairs in ranges for pair in pairs or ()):
        if after <= at or first >= end:
            continue
        if first > at:
            yield at, first, Cover.UNAFFECTED
        at, first = min(after, end), max(first, at)
        yield first, at, Cover.STALE
    if at < end:
        yield at, end, Cover.UNAFFECTED


def _joined(found: Iterable[tuple[int, int, Cover]]) -> list[tuple[int, int, Cover]]:
    joined: list[tuple[int, int, Cover]] = []
    for first, after, state in found:
        if joined and joined[-1][2] == state:
            joined[-1] = (joined[-1][0], after, state)
        else:
            joined.append((first, after, state))
    return joined
