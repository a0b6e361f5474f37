# SPDX-License-Identifier: Apache-2.0
"""Coverage: which intervals of a view are fresh, stale, or were never computed. Reads metadata, and no data.

Intervals are the hours, days, months or years of UTC, as partitions are. Neighbours of the same state are one range, so
the result is as long as the refresh record, and not as the time that it is about.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache
from itertools import pairwise
from typing import Any

from airflow_mv.common.status import Chains, inputs_of
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.freshness.observe import Observation
from airflow_mv.core.freshness.state import BaseTableChange, PartFreshness, State
from airflow_mv.core.ivm import Comparison
from airflow_mv.core.ivm.monotone import Monotone, constant, moment_of
from airflow_mv.core.refresh.inputs import RefreshInputs, RefreshOptions, load_inputs
from airflow_mv.core.refresh.intervals import Filters, analysed, appended_to, interval_filters, only_appends
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.interval import Interval, Span
from airflow_mv.core.spec.interval_parts import IntervalPart
from airflow_mv.core.sql.interval_columns import interval_column, resolve, unit_of
from airflow_mv.core.sql.types import unknown_type
from airflow_mv.errors import ConfigurationError, MaterializedViewError
from airflow_mv.extras.fleet.origins import origins
from airflow_mv.extras.fleet.ranges import AddedFiles, added_files, ranges_of
from airflow_mv.extras.fleet.summaries import column_of

log = logging.getLogger(__name__)

_FIRST = datetime(1, 1, 1, tzinfo=UTC)
_MONTHS = {"month": 1, "year": 12}
_LENGTHS = {"hour": timedelta(hours=1), "day": timedelta(days=1)}

#: Intervals before now that are shown where no interval was refreshed separately.
DEFAULT_INTERVALS = 30
#: The most intervals that are considered: a hundred years of hours.
MAX_COVERED = 1_000_000
#: The most base commits whose files' statistics are read. An interval that needs more of them is stale.
MAX_COMMITS = 200
#: The most tests of one commit's files. What is left then counts as affected.
_MAX_TESTS = 512


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

    def __repr__(self) -> str:
        return f"<intervals of {self.view} by {self.column}: {self}>"

    @property
    def counts(self) -> dict[Cover, int]:
        """The number of intervals in each state."""
        return {state: sum(item.count for item in self.ranges if item.state == state) for state in Cover}

    @property
    def total(self) -> int:
        """The number of intervals."""
        return sum(item.count for item in self.ranges)

    @property
    def up_to_date(self) -> int:
        """The number of intervals that equal a recompute."""
        return sum(item.count for item in self.ranges if item.state in UP_TO_DATE)

    @property
    def behind(self) -> str:
        """The number of intervals that are not fresh, as a reason of the view's state; empty if all are fresh."""
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
    """The intervals in question, by their numbers (see :func:`unit_number`).

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


def coverage(
    catalog: MaterializedViewCatalog,
    view: str | Identifier,
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    column: str | None = None,
    now: datetime | None = None,
) -> Coverage:
    """Return the states of a view's intervals.

    Args:
        start: The first moment; by default that of the first interval that is recorded, or that base tables have rows
            of. If neither is known, it is that of the 30th interval before now.
        end: The first moment after; by default the end of the last such interval. If it is not known of which
            intervals base tables have rows, it is the start of the present one, unless the last recorded interval ended
            more than 30 intervals before.
        column: The interval column; by default the one in the view's property, or of its recorded intervals.
        now: The current time.

    Raises:
        BaseTableNotFoundError: A base table cannot be read.
        ConfigurationError: There is no interval column, or the times are empty, too far apart or no whole days of
            a date column.
    """
    inputs = load_inputs(catalog, view, RefreshOptions(full=True))  # also with the base tables of a fresh view
    observation = inputs.observation
    name, metadata = str(observation.view.identifier), observation.view.metadata
    fields = metadata.schema_.fields
    kind, chosen = interval_column(fields, metadata.properties, column=column or column_of(observation), view=name)
    unit = unit_of(chosen, observation.storage.table) or "day"
    present = None if start and end else _present(inputs, catalog, chosen, unit)
    default = _default(observation, chosen, unit, present, now or datetime.now(UTC))
    requested = Span(start or default.start, end or max(default.end, unit_start(_after(start, unit), unit)), chosen)
    within = resolve(requested, fields, metadata.properties, observation.storage.table, view=name)
    units = Units(unit, unit_number(within.start, unit), _after(within.end, unit, exact=True))
    if units.after - units.first > MAX_COVERED:
        raise ConfigurationError(
            f"view {name}: {within} has more than {MAX_COVERED:,} intervals of a {unit}; request fewer"
        )
    if not _are_its_own(observation) or _has_stale_inputs(catalog, observation):
        whole = units.interval(chosen, units.first, units.after)
        stale = CoverRange(whole.start, whole.end, units.after - units.first, Cover.STALE)
        return Coverage(name, chosen, kind, unit, (stale,))
    ranges = cover(_parts(observation), chosen, units, _affected(catalog, inputs, chosen, units))
    return Coverage(name, chosen, kind, unit, ranges)


def count(catalog: MaterializedViewCatalog, observation: Observation) -> dict[str, Any]:
    """Return how many intervals of a view are fresh.

    Returns:
        ``unit``, ``intervals``, ``up_to_date``, ``behind`` (how many are not, in words), and ``until``: when the
        counted time reaches the next unit, ``None`` if it does not. Empty if the view has no interval column, or its
        intervals are unknown.
    """
    if column_of(observation) is None:
        return {}
    now = datetime.now(UTC)
    try:
        found = coverage(catalog, observation.view.identifier, now=now)
    except MaterializedViewError as error:
        log.warning("Could not count the intervals of %s: %s", observation.view.identifier, error)
        return {}
    today = unit_number(now, found.unit)
    until = unit_start(today + 1, found.unit) if found.ranges[-1].end >= unit_start(today, found.unit) else None
    counted = {
        "unit": found.unit,
        "intervals": found.total,
        "up_to_date": found.up_to_date,
        "behind": found.behind,
    }
    return {**counted, "until": until.isoformat() if until else None}


def _are_its_own(observation: Observation) -> bool:
    """Whether the stored rows are those of refreshes of the present definition."""
    known = (State.FRESH, State.STALE, State.NEVER_REFRESHED)
    return observation.freshness.of_rows in known and (observation.record is None or observation.storage.intact)


def _has_stale_inputs(catalog: MaterializedViewCatalog, observation: Observation) -> bool:
    """Whether the view reads a materialized view that is not fresh: any of its intervals may depend on it."""
    reads_views = any(table.view is not None for table in observation.tables)
    return reads_views and bool(inputs_of(Chains().through(catalog, observation)))


def _after(moment: datetime | None, unit: str, *, exact: bool = False) -> int:
    """Return the number of the unit after a time's; of the time's own if it is its start, and ``exact`` is given."""
    if moment is None:
        return 0
    number = unit_number(moment, unit)
    return number if exact and unit_start(number, unit) == moment else number + 1


def _default(
    observation: Observation, column: str, unit: str, present: tuple[int, int] | None, now: datetime
) -> Interval:
    """Return the time that is shown if none is requested.

    Args:
        column: Its interval column.
        unit: The length of an interval.
        present: From and to before which unit base tables have rows; ``None`` if unknown.
        now: The current time.
    """
    record = observation.record
    today = unit_number(now, unit)
    recorded = [item.interval for item in record.intervals if item.interval.column == column] if record else []
    if not recorded:
        return Units(unit, 0, 0).interval(column, *(present or (today - DEFAULT_INTERVALS, today)))
    first = unit_number(min(item.start for item in recorded), unit)
    after = _after(max(item.end for item in recorded), unit, exact=True)
    if present is not None:
        return Units(unit, 0, 0).interval(column, min(first, present[0]), max(after, present[1]))
    return Units(unit, 0, 0).interval(column, first, max(after, today) if today - after < DEFAULT_INTERVALS else after)


def _present(inputs: RefreshInputs, catalog: MaterializedViewCatalog, column: str, unit: str) -> tuple[int, int] | None:
    """Return from which unit to before which one base tables have rows; ``None`` if unknown, or there are none.

    Args:
        statistics: Of its base tables' files.
        column: The interval column.
        unit: The length of an interval.
    """
    query = analysed(inputs)
    found_in = None if query is None else origins(query, column)
    if query is None or found_in is None:
        return None
    found: list[datetime] = []
    try:
        for table, value in found_in:
            ranges = _ranges(inputs, catalog, table, value.column.name, query.filters.get(table, ()))
            if ranges is None:
                return None
            clipped = (_clipped(value, *ends, query.filters.get(table, ())) for ends in ranges)
            found += [moment_of(end, value.kind) for ends in clipped if ends for end in value.image(*ends)]
    except MaterializedViewError as error:
        log.warning(
            "Could not read which intervals the base tables of %s have: %s", inputs.observation.query.view, error
        )
        return None
    first, after = (unit_number(min(found), unit), unit_number(max(found), unit) + 1) if found else (0, 0)
    return (first, after) if 0 < after - first <= MAX_COVERED else None


def _ranges(
    inputs: RefreshInputs,
    catalog: MaterializedViewCatalog,
    table: Identifier,
    column: str,
    filters: Sequence[Sequence[Comparison]],
) -> list[tuple[int, int]] | None:
    """Return the bounds of a column in the files of a base table; ``None`` if unknown."""
    observed = next(item for item in inputs.observation.tables if item.identifier == str(table))
    metadata, location = inputs.metadata(observed), observed.metadata_location
    if observed.head is None:
        return []
    if location is None or metadata.schema_at(observed.head) != metadata.current_schema or unknown_type(metadata):
        return None
    if not table.kind.is_iceberg:
        return None
    return ranges_of(catalog.home_of(table).files, location, observed.head, column, filters)


def _parts(observation: Observation) -> tuple[PartFreshness, ...]:
    """Return the parts of the stored rows; one part, if no interval was refreshed separately."""
    freshness, record = observation.freshness, observation.record
    if freshness.parts:
        return freshness.parts
    if record is None:
        return (PartFreshness(IntervalPart(None, (), "", None, computed=False), freshness.base_tables),)
    return (PartFreshness(IntervalPart(None, record.base_tables, record.refresh_id, None), freshness.base_tables),)


def _affected(catalog: MaterializedViewCatalog, inputs: RefreshInputs, column: str, units: Units) -> Affected:
    """Return a function for the units that a change may affect. Statistics are read only if it is called."""
    filters = interval_filters(inputs, column) if inputs.observation.freshness.of_rows == State.STALE else None
    if filters is None:
        return lambda changes: None  # noqa: ARG005 (nothing can be proven)
    return _Commits(catalog, inputs, cache(lambda first, after: filters(units.interval(column, first, after))), units)


@dataclass
class _Commits:
    """Which units each base commit may affect. The statistics of a commit's files are read once."""

    catalog: MaterializedViewCatalog
    inputs: RefreshInputs
    filters: Callable[[int, int], Filters]
    units: Units
    _known: dict[tuple[Identifier, int], list[tuple[int, int]]] = field(default_factory=dict)

    def __call__(self, changes: Sequence[BaseTableChange]) -> list[tuple[int, int]] | None:
        found: list[tuple[int, int]] = []
        for change in changes:
            ranges = self._of_change(change) if only_appends(change) else None
            if ranges is None:
                return None
            found += ranges
        return found

    def _of_change(self, change: BaseTableChange) -> list[tuple[int, int]] | None:
        if not change.changed:
            return []
        appended = appended_to(self.inputs, change)
        if appended is None:
            return None
        new = [item for item in appended.snapshots if (appended.table, item) not in self._known]
        if len(self._known) + len(new) > MAX_COMMITS:
            return None
        if new:
            table, location = appended.table, appended.metadata_location
            is_iceberg, files = table.kind.is_iceberg, self.catalog.home_of(table).files
            read = added_files(files, location, new) if is_iceberg else dict.fromkeys(new)
            self._known |= {(appended.table, item): self._of_commit(appended.table, read[item]) for item in new}
        return [pair for item in appended.snapshots for pair in self._known[appended.table, item]]

    def _of_commit(self, table: Identifier, added: AddedFiles | None) -> list[tuple[int, int]]:
        """Halve the units until each half is unaffected or one unit."""
        if added is None:
            return [(self.units.first, self.units.after)]
        found: list[tuple[int, int]] = []
        waiting = deque([(self.units.first, self.units.after)])
        for _ in range(_MAX_TESTS):
            if not waiting:
                return found
            first, after = waiting.popleft()
            if not added.may_match(self.filters(first, after).get(table, [()])):
                continue
            middle = (first + after) // 2
            if middle == first:
                found.append((first, after))
            else:
                waiting += [(first, middle), (middle, after)]
        return [*found, *waiting]


# ------------------------------------------------------------------ the states of intervals: pure functions


#: Returns the ranges of units (first and after) that the changes of base tables may affect; ``None`` if it may be any.
Affected = Callable[[Sequence[BaseTableChange]], Sequence[tuple[int, int]] | None]


def cover(parts: Sequence[PartFreshness], column: str, units: Units, affected: Affected) -> tuple[CoverRange, ...]:
    """Return the states of intervals.

    Args:
        parts: The freshness of all parts of the stored rows; the one outside of all intervals first.
        column: The interval column.
        units: The intervals.
        affected: Returns those that a change may affect.
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


def unit_number(moment: datetime, unit: str) -> int:
    """Return the number of the year, month, day or hour of UTC that a time is in, counted from the year 1.

    Args:
        moment: An aware time.
    """
    utc = moment.astimezone(UTC)
    if unit in _MONTHS:
        return (utc.year * 12 + utc.month - 13) // _MONTHS[unit]
    return (utc - _FIRST) // _LENGTHS[unit]


def unit_start(number: int, unit: str) -> datetime:
    """Return the start of the unit with a number; the inverse of :func:`unit_number`.

    Raises:
        ConfigurationError: It is not between the years 1 and 9999.
    """
    try:
        if unit in _MONTHS:
            year, month = divmod(number * _MONTHS[unit], 12)
            return datetime(year + 1, month + 1, 1, tzinfo=UTC)
        return _FIRST + number * _LENGTHS[unit]
    except (OverflowError, ValueError):
        raise ConfigurationError(f"{unit} {number} is not between the years 1 and 9999") from None


def _clipped(value: Monotone, low: int, high: int, filters: Sequence[Sequence[Comparison]]) -> tuple[int, int] | None:
    """Return the bounds of a function's column in the rows within bounds that pass one of several filters.

    Args:
        value: The function; only its column counts.
        low: The lower bound.
        high: The upper bound.
        filters: Comparisons of columns, which all hold in a row that passes.

    Returns:
        ``None`` if no row passes.
    """
    own = Monotone(value.column, value.source)
    found: list[int] = []
    for comparisons in filters or [()]:
        first, last = low, high
        for item in comparisons:
            limit = constant(own.source, item.value, item.kind) if item.column == own.column.name else None
            least, after = (None, None) if limit is None else own.preimage(item.operator, limit)
            first = first if least is None else max(first, least)
            last = last if after is None else min(last, after - 1)
        found += [first, last] if first <= last else []
    return (min(found), max(found)) if found else None
