# SPDX-License-Identifier: Apache-2.0
"""The statements that refresh one interval of a view, and reuse the rows that an earlier attempt staged."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_mv.freshness.observe import Observation
from airflow_mv.refresh.plan import RefreshPlan
from airflow_mv.refresh.statements import PartialRefresh, PinnedQuery, all_rows, interval_steps
from airflow_mv.script import Outcome, TableRead, staged
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.interval import Interval
from airflow_mv.spec.reasons import Mode
from airflow_mv.sql.intervals import condition

#: From this many bytes on, Spark's own number of partitions is used.
ANY_SIZE = 2**40


@dataclass(frozen=True, slots=True)
class Kept:
    """Rows that an earlier round of the same refresh staged and could not publish.

    Args:
        plan: Its plan.
        outcome: The outcome of its job.
    """

    plan: RefreshPlan
    outcome: Outcome


def interval_work(observation: Observation, interval: Interval, query: str, bytes_read: int | None) -> PartialRefresh:
    """Return the steps of a refresh of an interval.

    Args:
        observation: The observation of the view.
        interval: The interval.
        query: The query for its rows, with the view's columns by position.
        bytes_read: The most bytes that the query reads; ``None`` if unknown.
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


def kept_rows(observation: Observation, plan: RefreshPlan, kept: Kept | None) -> PinnedQuery | None:
    """Return a query for the rows that an earlier round staged.

    Only the storage table has changed since then. The rows depend on the base snapshots alone, so they are still right.

    Args:
        observation: The present observation of the interval.
        plan: The plan from it.
        kept: The earlier round.

    Returns:
        ``None`` if that round had other inputs, or its rows are gone.
    """
    if kept is None or not _same_rows(plan, kept.plan):
        return None
    found = observation.storage.staged_rows(kept.plan.refresh_id, kept.outcome.metadata_location)
    if found is None:
        return None
    place, snapshot = found
    if isinstance(place, Identifier):
        return PinnedQuery(all_rows(place.sql(), snapshot), (TableRead(place.sql(), snapshot),), {})
    name = staged("base_0")
    return PinnedQuery(all_rows(name, snapshot), (TableRead(name, snapshot),), {"base_0": place})


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
