# SPDX-License-Identifier: Apache-2.0
"""The statements that refresh one interval of a view, and reuse of rows that an earlier attempt staged."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_mv.freshness.observe import Observation
from airflow_mv.refresh.plan import RefreshPlan
from airflow_mv.refresh.statements import PartialRefresh, all_rows, interval_steps
from airflow_mv.script import Outcome, staged
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.interval import Interval
from airflow_mv.spec.reasons import Mode
from airflow_mv.sql.intervals import condition

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
