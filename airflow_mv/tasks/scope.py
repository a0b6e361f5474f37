# SPDX-License-Identifier: Apache-2.0
"""The rows that a DAG run refreshes: the whole view, the view as of a time, or an interval of the view.

========================================  ==========================================  ===========================
run                                       ``interval``                                ``as_of``
========================================  ==========================================  ===========================
any, with ``refresh_interval_start/end``  that interval                               (not set by it)
any, with ``refresh_as_of``               (not set by it)                             that time
partitioned                               the partition                               the partition's end
with a data interval                      the data interval                           its end
with an empty one (``@daily``)            from the schedule's tick before to this one  its end
the same, by hand between two ticks       the schedule's last whole interval          its end
neither (asset-triggered, manual)         refused; the error names what to give       when the run was due to start
========================================  ==========================================  ===========================
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Literal

from airflow_mv.core.spec.interval import Span
from airflow_mv.core.spec.times import next_unit, parse_key, parse_time, shift
from airflow_mv.errors import ConfigurationError
from airflow_mv.foundation.words import not_one_of

ScopeName = Literal["whole", "as_of", "interval"]

_TRUE, _FALSE = frozenset({"true", "1", "yes"}), frozenset({"false", "0", "no", "none", ""})
#: What a template that is not set renders to.
NONE = ("None", "", None)
#: Parameters of a run, by which a manual run or a backfill sets what it refreshes.
FULL_PARAM = "refresh_full"
AS_OF_PARAM = "refresh_as_of"
START_PARAM = "refresh_interval_start"
END_PARAM = "refresh_interval_end"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The facts of a DAG run that decide its scope.

    Args:
        run_after: When the run was due to start.
        data_interval: Start and end, if the run has a data interval.
        partition_date: The start of the partition.
        params: The run's parameters, including those of its conf.
        zone: The DAG's time zone, in which the days of a date column are counted.
        tick: Returns the time of the schedule before (-1) or after (1) a time; ``None`` if there is none.
    """

    run_after: datetime
    data_interval: tuple[datetime, datetime] | None = None
    partition_key: str | None = None
    partition_date: datetime | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    zone: tzinfo = UTC
    tick: Callable[[datetime, int], datetime | None] = lambda moment, direction: None  # noqa: ARG005


@dataclass(frozen=True, slots=True)
class RefreshScope:
    """The rows that a run refreshes.

    Args:
        interval: The rows to refresh; ``None`` for the whole view.
        as_of: The time at which the base tables are read; ``None`` for their current snapshots.
        full: Whether to recompute even if nothing has changed.
        why: Where the scope comes from, for the log.
    """

    interval: Span | None = None
    as_of: datetime | None = None
    full: bool = False
    why: str = "the whole view"


def scope_of(
    facts: RunFacts, wanted: ScopeName, *, column: str | None = None, length: timedelta | None = None
) -> RefreshScope:
    """Return what a run refreshes.

    Args:
        wanted: The task's ``scope``.
        column: The view's interval column; by default the one in the view's properties.
        length: The length of the interval, if the run gives only one end of it.

    Raises:
        ConfigurationError: The run does not give an interval, or a parameter is not valid.
    """
    full = truth(facts.params.get(FULL_PARAM), field=f"the run's conf: {FULL_PARAM}")
    as_of = _moment(facts, AS_OF_PARAM)
    requested = _requested(facts, column)
    if requested is not None:
        return RefreshScope(requested, as_of, full, f"the run's parameters: {requested}")
    if wanted == "interval":
        span, why = _interval(facts, length)
        return RefreshScope(Span(span[0], span[1], column), as_of, full, why)
    if wanted == "as_of" and as_of is None:
        end, why = _end(facts, length)
        return RefreshScope(None, end, full, why)
    return RefreshScope(
        None, as_of, full, "the whole view" if as_of is None else f"the run's parameters: as of {as_of}"
    )


def _interval(facts: RunFacts, length: timedelta | None) -> tuple[tuple[datetime, datetime | None], str]:
    if facts.partition_key is not None or facts.partition_date is not None:
        return _partition(facts, length), f"the run's partition {facts.partition_key or facts.partition_date}"
    if facts.data_interval is None:
        raise ConfigurationError(
            "this run has no data interval and no partition, so the rows to refresh cannot be determined: it was "
            f"triggered manually or by an asset. Set {START_PARAM} and {END_PARAM} in its conf, trigger it with a "
            "logical date, or set scope='whole' for such runs"
        )
    start, end = (moment.astimezone(facts.zone) for moment in facts.data_interval)
    if start < end:
        return (start, end), "the run's data interval"
    moment, end = end, _aligned(facts, end)
    if length is not None:
        limit = "the run's time" if end == moment else "the schedule's time before the run's"
        return (shift(end, -length), end), f"{length} up to {limit}, by interval_length"
    before = facts.tick(end, -1)
    if before is None:
        raise ConfigurationError(
            f"the run's data interval is empty (both ends are {end.isoformat()}) and its schedule has no time "
            "before: set interval_length, or a timetable with data intervals such as CronDataIntervalTimetable"
        )
    if end != moment:
        return (before.astimezone(facts.zone), end), f"the schedule's last whole interval before {moment.isoformat()}"
    return (before.astimezone(facts.zone), end), "from the schedule's previous time to the run's"


def _aligned(facts: RunFacts, moment: datetime) -> datetime:
    """Return the last time of the schedule up to this one: a manual run's default is the time of the click."""
    after = facts.tick(moment, 1)
    before = facts.tick(after, -1) if after is not None else None
    return moment if before is None else before.astimezone(facts.zone)


def _partition(facts: RunFacts, length: timedelta | None) -> tuple[datetime, datetime | None]:
    start, unit = facts.partition_date, ""
    if facts.partition_key is not None:
        with suppress(ValueError):
            read, unit = parse_key(str(facts.partition_key), facts.zone)
            start = start or read
    if start is None:
        raise ConfigurationError(
            f"the run's partition key {facts.partition_key!r} is not a time: write keys like 2024-06-01, or give it "
            f"{START_PARAM} and {END_PARAM} in its conf"
        )
    start = start.astimezone(facts.zone)
    if length is not None:
        return start, shift(start, length)
    if unit:
        return start, next_unit(start, unit)
    end = facts.tick(start, 1)
    # Without any of these the partitioning of the storage table gives the length.
    return start, end.astimezone(facts.zone) if end else None


def _end(facts: RunFacts, length: timedelta | None) -> tuple[datetime, str]:
    if facts.partition_key is not None or facts.partition_date is not None:
        end = _partition(facts, length)[1]
        if end is not None:
            return end, f"as of the end of the run's partition, {end.isoformat()}"
    if facts.data_interval is not None:
        return facts.data_interval[1], f"as of the end of the run's data interval, {facts.data_interval[1].isoformat()}"
    return facts.run_after, f"as of when the run was due to start, {facts.run_after.isoformat()}"


def _requested(facts: RunFacts, column: str | None) -> Span | None:
    start, end = _moment(facts, START_PARAM), _moment(facts, END_PARAM)
    if start is None and end is None:
        return None
    if start is None or end is None:
        raise ConfigurationError(f"the run's conf has only one of {START_PARAM} and {END_PARAM}; give both")
    return Span(start, end, column)


def _moment(facts: RunFacts, name: str) -> datetime | None:
    value = facts.params.get(name)
    if value in (None, ""):
        return None
    try:
        return parse_time(value, facts.zone)
    except ValueError:
        raise ConfigurationError(
            f"the run's conf has {name} = {value!r}, which is not a time; write it like 2024-06-01T00:00:00+00:00"
        ) from None


# ------------------------------------------------------------------------- Values as a template may render them


def moment(value: Any, *, field: str) -> datetime | None:
    """Parse a time from a rendered template; without a zone it is UTC.

    Args:
        value: A time, its text in ISO 8601, or nothing.
        field: For the message.

    Raises:
        ConfigurationError: It is something else.
    """
    if value is None or value == "":
        return None  # not "None", the text of a template that is not set in this kind of run
    try:
        return parse_time(value)
    except ValueError:
        raise ConfigurationError(
            f"{field} is {value!r}, which is not a point in time. Write it like 2013-06-30T00:00:00+00:00, or as a "
            "template that is set in this kind of run: {{ dag_run.run_after }} is, {{ data_interval_end }} may not be"
        ) from None


def truth(value: Any, *, field: str) -> bool:
    """Parse a boolean from a rendered template.

    Args:
        value: A boolean or its text.
        field: For the message.

    Raises:
        ConfigurationError: It is something else.
    """
    text = str(value).strip().lower()
    if text not in _TRUE | _FALSE:
        raise ConfigurationError(f"{field} is {value!r}; it must be true or false")
    return text in _TRUE


def count(value: Any, *, field: str, unit: str) -> int | None:
    """Parse a number from a rendered template.

    Args:
        value: A number, its text, or nothing.
        field: For the message.
        unit: What is counted, for the message.

    Raises:
        ConfigurationError: It is something else.
    """
    text = str(value)
    if value in NONE:
        return None
    if isinstance(value, bool) or not text.isdecimal():
        raise ConfigurationError(f"{field} is {value!r}; it must be a number of {unit}")
    return int(text)


def percentage(value: Any, *, field: str) -> float | None:
    """Parse a percentage from a rendered template.

    Raises:
        ConfigurationError: It is not a number above 0, up to 100.
    """
    if value in NONE:
        return None
    try:
        found = float(str(value))
    except ValueError:
        found = 0.0
    if not 0 < found <= 100:
        raise ConfigurationError(f"{field} is {value!r}; it must be a percentage: more than 0, at most 100")
    return found


def word_of(value: Any, words: Collection[str], *, field: str) -> Any:
    """Parse one of some words, or nothing, from a rendered template.

    Args:
        value: The word.
        words: The allowed words.
        field: For the message.

    Raises:
        ConfigurationError: It is something else.
    """
    if value in NONE or value in words:
        return None if value in NONE else value
    raise not_one_of(value, words, field=field)
