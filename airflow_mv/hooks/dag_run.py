# SPDX-License-Identifier: Apache-2.0
"""The facts of a DAG run that :mod:`airflow_mv.tasks.scope` needs: data interval, partition, params, schedule."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from airflow.sdk import Context, Param

from airflow_mv.hooks.airflow_compat import timetable_field
from airflow_mv.tasks.scope import AS_OF_PARAM, END_PARAM, FULL_PARAM, START_PARAM, RunFacts

if TYPE_CHECKING:
    from airflow.sdk import DAG


def refresh_params() -> dict[str, Param]:
    """Return the DAG params that select what a manual run or a backfill refreshes. The UI shows them as a form."""
    when: dict[str, Any] = {"default": None, "type": ["null", "string"], "format": "date-time"}
    return {
        FULL_PARAM: Param(
            False,  # noqa: FBT003 (the default value)
            type="boolean",
            title="Force a recompute",
            description="Recompute even if nothing has changed.",
        ),
        AS_OF_PARAM: Param(
            **when, title="As of", description="Read the base tables as of this time; empty: as they are now."
        ),
        START_PARAM: Param(
            **when, title="Interval start", description="Refresh only rows from here on; empty: the run's interval."
        ),
        END_PARAM: Param(**when, title="Interval end", description="The end of these rows, excluded."),
    }


def run_facts(context: Context) -> RunFacts:
    """Return the facts of a task's run."""
    run, dag = context["dag_run"], context.get("dag")
    start, end = run.data_interval_start, run.data_interval_end
    return RunFacts(
        run_after=run.run_after,
        data_interval=(start, end) if start is not None and end is not None else None,
        partition_key=context.get("partition_key"),
        partition_date=context.get("partition_date"),
        params={**dict(context.get("params") or {}), **(run.conf or {})},
        zone=zone_of(dag),
        tick=lambda moment, direction: tick_of(dag, moment, direction),
    )


def zone_of(dag: DAG | None) -> Any:
    """Return the schedule's time zone, else the DAG's. A serialized DAG has the same fields."""
    if dag is None:
        return UTC
    named = (timetable_field(timetable, "timezone") for timetable in _timetables(dag))
    zone = next(filter(None, named), None) or dag.timezone or UTC
    return ZoneInfo(zone) if isinstance(zone, str) else zone


def tick_of(dag: DAG | None, moment: datetime, direction: int) -> datetime | None:
    """Return the time of a cron schedule before (-1) or after (1) a time; of several crons, the nearest.

    Args:
        dag: The DAG; a serialized one has the same fields.
        moment: The time.

    Returns:
        ``None`` if the schedule has no times.
    """
    from croniter import croniter  # type: ignore[import-untyped]

    if dag is None:
        return None
    found: list[datetime] = []
    for timetable in _timetables(dag):
        expression = timetable_field(timetable, "expression")
        if not isinstance(expression, str):
            return None
        ticks = croniter(expression, moment.astimezone(zone_of(dag)))
        found.append(ticks.get_prev(datetime) if direction < 0 else ticks.get_next(datetime))
    return max(found) if direction < 0 else min(found)


def _timetables(dag: DAG) -> Sequence[Any]:
    """Return the timetables with a DAG's times: those inside a timetable with assets, or with several crons."""
    timetable = timetable_field(dag.timetable, "timetable") or dag.timetable
    return timetable_field(timetable, "timetables") or [timetable]
