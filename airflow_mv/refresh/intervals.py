# SPDX-License-Identifier: Apache-2.0
"""Refresh one interval of a view: what is asked for, whether it is needed, and the statements that do it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_mv.errors import RefreshRefusedError
from airflow_mv.freshness.observe import Observation
from airflow_mv.freshness.state import State
from airflow_mv.refresh.choose import Choice
from airflow_mv.refresh.plan import RefreshPlan
from airflow_mv.refresh.statements import PartialRefresh, all_rows, interval_steps
from airflow_mv.script import Outcome, staged
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.interval import Interval
from airflow_mv.spec.reasons import Code, Mode, Reason
from airflow_mv.sql.intervals import MAX_INTERVALS, condition

#: Bytes for which Spark's own number of partitions is left alone.
ANY_SIZE = 2**40


@dataclass(frozen=True, slots=True)
class Kept:
    """What an earlier round of the same refresh has staged and could not publish.

    Args:
        plan: Its plan.
        outcome: What its job left.
    """

    plan: RefreshPlan
    outcome: Outcome


def choose_interval(
    observation: Observation,
    interval: Interval,
    *,
    forced: bool,
    same_schema: bool,
    untouched: Callable[[], tuple[Reason, ...] | None],
) -> Choice:
    """Choose what a refresh of an interval does.

    Args:
        observation: A look at the interval.
        interval: It.
        forced: Recompute although nothing may have changed.
        same_schema: Whether the storage table's columns are the view's.
        untouched: Looks for a proof that what changed did not change the interval; asked only where something did.

    Raises:
        RefreshRefusedError: The whole view has to be refreshed first.
    """
    freshness = observation.freshness
    _require_possible(observation, interval, same_schema=same_schema)
    what = Reason(Code.INTERVAL, f"the rows with {interval} are recomputed and replaced, and no others")
    if forced:
        return Choice(Mode.REPLACE_INTERVAL, (Reason(Code.FORCED, "a recomputation was asked for"), what))
    if freshness.state == State.FRESH:
        return Choice(Mode.NOOP, freshness.reasons)
    if (proof := untouched()) is not None:
        return Choice(Mode.FAST_FORWARD, (*freshness.reasons, *proof))
    return Choice(Mode.REPLACE_INTERVAL, (*freshness.reasons, what))


def interval_work(observation: Observation, interval: Interval, query: str, bytes_read: int | None) -> PartialRefresh:
    """Return what the job does for a refresh of an interval.

    Args:
        observation: A look at the view.
        interval: The interval.
        query: The query for its rows, with the view's columns by position.
        bytes_read: Bytes that the query reads at most; ``None`` where nothing is known of it.
    """
    schema = observation.view.metadata.schema_
    steps = interval_steps(
        observation.storage.target.written,
        query=query,
        columns=schema.names,
        where=condition(interval, schema.fields),
    )
    return PartialRefresh(
        steps, may_recompute=False, bytes_read=ANY_SIZE if bytes_read is None else bytes_read, incremental=False
    )


def kept_rows(observation: Observation, plan: RefreshPlan, kept: Kept | None) -> tuple[str, dict[str, str]] | None:
    """Return a query for the interval's rows as an earlier round has staged them, and what it needs registered.

    Only the storage table has moved since then: the rows are a function of the base snapshots, so they stay right.

    Args:
        observation: A look at the interval now.
        plan: The plan from it.
        kept: The earlier round.

    Returns:
        ``None`` where that round was for something else, or its rows are gone.
    """
    if kept is None or not _same_rows(plan, kept.plan):
        return None
    found = observation.storage.staged_rows(kept.plan.refresh_id, kept.outcome.metadata_location)
    if found is None:
        return None
    place, snapshot = found
    if isinstance(place, Identifier):
        return all_rows(place.sql(), snapshot), {}
    return all_rows(staged("base_0"), snapshot), {"base_0": place}


def _same_rows(plan: RefreshPlan, other: RefreshPlan) -> bool:
    return (
        plan.mode == other.mode == Mode.REPLACE_INTERVAL
        and plan.interval == other.interval
        and (plan.view_uuid, plan.version_id) == (other.view_uuid, other.version_id)
        and {(item.identifier, item.snapshot_reference) for item in plan.records}
        == {(item.identifier, item.snapshot_reference) for item in other.records}
        and plan.nested_views == other.nested_views
        and plan.renamed == other.renamed
    )


def _require_possible(observation: Observation, interval: Interval, *, same_schema: bool) -> None:
    """Refuse to put an interval beside rows that it does not fit to."""
    record, view = observation.record, observation.view.identifier
    why = ""
    if observation.freshness.state == State.DEFINITION_CHANGED:
        why = "its stored rows are of another definition: " + "; ".join(
            reason.message for reason in observation.freshness.reasons
        )
    elif not same_schema:
        why = "its storage table has other columns"
    elif record is not None and any(item.column != interval.column for item in record.intervals):
        why = f"intervals of another column, {record.intervals[0].column}, have been refreshed on their own"
    elif record is not None and len(record.intervals) >= MAX_INTERVALS:
        why = f"{len(record.intervals)} intervals are of snapshots of their own, which is as many as a record holds"
    if why:
        raise RefreshRefusedError(
            f"view {view} cannot be refreshed for {interval} alone: {why}. Refresh the whole view first: airflow-mv "
            f"refresh {view}"
        )
