# SPDX-License-Identifier: Apache-2.0
"""The intervals that runs of DAGs refresh: of runs that exist, and of those that a backfill would create.

A run's interval follows from the schedule of the serialized DAG, as in the task itself (:mod:`airflow_mv.tasks.scope`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Any

from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from sqlalchemy.orm import Session

from airflow_mv.core.spec.interval import Interval, Span
from airflow_mv.core.spec.times import duration, is_start_of_day, shift
from airflow_mv.errors import ConfigurationError
from airflow_mv.hooks.dag_run import tick_of, zone_of
from airflow_mv.plugin.manual_run import scopes_in
from airflow_mv.tasks.older_airflow import BEFORE_3_3
from airflow_mv.tasks.scope import END_PARAM, START_PARAM, RunFacts, scope_of

#: The most runs that one backfill from the page creates.
MAX_RUNS = 1000
#: The most dates of a schedule that are looked at for it. A month has 8,928 of every five minutes.
MAX_DATES = 20_000
#: How far before the wanted rows the search for runs begins: the least with which its first run is before them. A run's
#: date lies up to the last one from its rows: a tick, and a zone's offset.
_MARGINS = (timedelta(hours=3), timedelta(days=1), timedelta(days=32))
#: By how much the rows of a later run may begin earlier, where clocks are set back.
_BACK = timedelta(hours=1)


class _TooManyDatesError(Exception):
    """A schedule has more than :data:`MAX_DATES` dates near the wanted rows."""


@dataclass
class Runs:
    """The runs of DAGs, each DAG read once.

    Args:
        session: Of Airflow's database.
    """

    session: Session
    _stored: dict[str, SerializedDagModel | None] = field(default_factory=dict)

    def interval(self, run: DagRun, task_id: str) -> Span | None:
        """Return the interval that a task of a run refreshes; ``None`` for the whole view, or if unknown."""
        stored = self._dag(run.dag_id)
        if stored is None:
            return None
        conf = run.conf if isinstance(run.conf, Mapping) else {}
        tasks = scopes_in(stored.data)
        if tasks.get(task_id, ("whole", None))[0] != "interval" and not {START_PARAM, END_PARAM} & set(conf):
            return None
        interval = (run.data_interval_start, run.data_interval_end)
        known = {"data_interval": interval} if None not in interval else {}
        key, date = getattr(run, "partition_key", None), getattr(run, "partition_date", None)
        facts = {**known, "params": conf, "partition_key": key, "partition_date": date}
        return _span(stored.dag, run.run_after, tasks.get(task_id, ("whole", None))[1], facts)

    def backfill(self, dag_id: str, wanted: Interval, kind: str) -> dict[str, Any]:
        """Return the backfill that refreshes an interval of a view, as Airflow would create it.

        Args:
            dag_id: The DAG. All of its tasks that refresh views refresh intervals.
            kind: The type of the interval column.

        Returns:
            ``from_date`` and ``to_date`` for Airflow's API, the number of ``runs``, and the ``start`` and ``end`` of
            their rows; or why there is none, as ``problem``.
        """
        stored = self._dag(dag_id)
        if stored is None or not getattr(stored.dag.timetable, "periodic", False):
            return {"problem": "This DAG has no schedule with dates, so Airflow cannot backfill it."}
        if {scope for scope, _ in scopes_in(stored.data).values()} <= {"whole", "as_of"}:
            return {"problem": "No task of this DAG refreshes an interval: set its scope to interval."}
        overlapping = ((date, span) for date, span in self._near(stored, wanted, kind) if span.overlaps(wanted))
        try:
            found = list(islice(overlapping, MAX_RUNS + 1))
        except _TooManyDatesError:
            return {"problem": f"These rows take over {MAX_DATES:,} dates of this DAG's schedule: choose fewer rows."}
        if not found:
            return {"problem": "This DAG's schedule has no run for these rows: see its start and end date."}
        if len(found) > MAX_RUNS:
            return {"problem": f"These rows take more than {MAX_RUNS:,} runs: choose fewer rows."}
        return {
            "from_date": min(date for date, _ in found).isoformat(),
            "to_date": max(date for date, _ in found).isoformat(),
            "runs": len(found),
            "start": min(span.start for _, span in found).isoformat(),
            "end": max(span.end for _, span in found).isoformat(),
        }

    def _near(self, stored: SerializedDagModel, wanted: Interval, kind: str) -> Iterator[tuple[datetime, Interval]]:
        """Return the dates of the possible runs whose rows are near the wanted ones, with the rows of each.

        A schedule of minutes has many dates: the search begins shortly before the wanted rows, and ends after them.

        Raises:
            _TooManyDatesError: There are too many dates before the wanted rows, or none of them has rows.
        """
        for margin in _MARGINS:
            dates = self._dates(stored, Interval(wanted.column, shift(wanted.start, -margin), wanted.end), kind)
            first = next(dates, None)
            if first is not None and shift(first[1].end, _BACK) <= wanted.start:
                break
        if first is not None:
            yield first
            yield from takewhile(lambda found: found[1].start < shift(wanted.end, _BACK), dates)

    def _dates(self, stored: SerializedDagModel, among: Interval, kind: str) -> Iterator[tuple[datetime, Interval]]:
        """Return the dates of the possible runs from a time on, with the rows of each."""
        dag: Any = stored.dag
        partitioned = getattr(dag.timetable, "partitioned", False)
        length = next((length for scope, length in scopes_in(stored.data).values() if scope == "interval"), None)
        now = datetime.now(UTC)
        latest = shift(among.end, _MARGINS[-1])
        infos = dag.iter_dagrun_infos_between(among.start, latest if partitioned else min(latest, now))
        for number, info in enumerate(infos):
            if number == MAX_DATES:
                raise _TooManyDatesError
            if not partitioned and (info.data_interval is None or info.data_interval.end >= now):
                continue  # Airflow leaves these out of a backfill
            interval = {} if info.data_interval is None else {"data_interval": tuple(info.data_interval)}
            # Airflow 3.1 has no partitions.
            key, start = getattr(info, "partition_key", None), getattr(info, "partition_date", None)
            facts = {**interval, "partition_key": key, "partition_date": start}
            span = _span(dag, info.run_after, length, facts)
            date = start if partitioned else info.logical_date
            if span is not None and date is not None:
                # Airflow 3.3 reads the dates of partitions on the clocks of the schedule's zone.
                local = partitioned and not BEFORE_3_3
                shown = date.astimezone(zone_of(dag)).replace(tzinfo=UTC) if local else date
                yield shown, rows_of(span, kind)

    def _dag(self, dag_id: str) -> SerializedDagModel | None:
        if dag_id not in self._stored:
            self._stored[dag_id] = SerializedDagModel.get(dag_id, session=self.session)
        return self._stored[dag_id]


def rows_of(span: Span, kind: str) -> Interval:
    """Return the rows of an interval of time: a column of dates has the dates of the zone of its times.

    Args:
        span: The interval of time. One without an end is a partition of the storage table; it is taken for a day.
        kind: The type of the interval column.
    """
    ends = (span.start, span.end or shift(span.start, timedelta(days=1)))
    start, end = (_date(moment) if kind == "date" else moment.astimezone(UTC) for moment in ends)
    return Interval(span.column or "", start, end)


def _date(moment: datetime) -> datetime:
    shown = moment.replace(tzinfo=UTC)
    return datetime(shown.year, shown.month, shown.day, tzinfo=UTC) if is_start_of_day(moment) else shown


def _span(dag: Any, run_after: datetime, length: str | None, facts: Mapping[str, Any]) -> Span | None:
    """Return the interval of a run, as :meth:`RefreshArguments.options` does; ``None`` if it would refuse."""
    found = RunFacts(
        run_after, zone=zone_of(dag), tick=lambda moment, direction: tick_of(dag, moment, direction), **facts
    )
    try:
        return scope_of(found, "interval", length=duration(length, what="interval_length")).interval
    except ConfigurationError:
        return None
