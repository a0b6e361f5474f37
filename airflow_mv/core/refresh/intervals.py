# SPDX-License-Identifier: Apache-2.0
"""Refresh one interval of a view: prove that it is unaffected, or compile its statements.

The statistics of the added files may exclude the rows of an interval. This makes a daily backfill cheap: each day adds
rows of one day, and the earlier days need no Spark. Rows that an earlier attempt staged are reused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from airflow_mv.core.freshness.observe import Observation
from airflow_mv.core.freshness.state import BaseTableChange, State
from airflow_mv.core.ivm import BaseRelation, Comparison, IncrementalQuery
from airflow_mv.core.refresh.candidates import AppendedFiles
from airflow_mv.core.refresh.incremental import appended_files
from airflow_mv.core.refresh.inputs import RefreshInputs
from airflow_mv.core.refresh.plan import RefreshPlan
from airflow_mv.core.refresh.statements import PartialRefresh, PinnedQuery, all_rows, interval_steps, place_names
from airflow_mv.core.script import Outcome, TableRead
from airflow_mv.core.spec.identifiers import Identifier, quote
from airflow_mv.core.spec.interval import Interval
from airflow_mv.core.spec.reasons import Code, Mode, Reason
from airflow_mv.core.sql.interval_columns import condition, kind_of, literal_text
from airflow_mv.core.sql.types import columns_of

_WRITTEN = re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d(\.\d{1,6})?)?", re.ASCII)
_KEYWORDS = {"date": "DATE", "timestamp": "TIMESTAMP_NTZ"}
#: From this many bytes on, Spark's own number of partitions is used.
ANY_SIZE = 2**40
#: Conditions by base table. A row matters only if it passes one of them.
Filters = Mapping[Identifier, Sequence[tuple[Comparison, ...]]]


@dataclass(frozen=True, slots=True)
class EarlierRound:
    """Rows that an earlier round of the same refresh staged and could not publish."""

    plan: RefreshPlan
    outcome: Outcome


def interval_work(observation: Observation, interval: Interval, query: str, bytes_read: int | None) -> PartialRefresh:
    """Return the steps of a refresh of an interval.

    Args:
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


def rows_of_earlier_round(
    observation: Observation, plan: RefreshPlan, earlier: EarlierRound | None
) -> PinnedQuery | None:
    """Return a query for the rows that an earlier round staged.

    Only the storage table has changed since then. The rows depend on the base snapshots alone, so they are still right.

    Args:
        observation: The present observation of the interval.
        plan: The plan from it.

    Returns:
        ``None`` if that round had other inputs, or its rows no longer exist.
    """
    if earlier is None or not _same_rows(plan, earlier.plan):
        return None
    found = observation.storage.staged_rows(earlier.plan.refresh_id, earlier.outcome.metadata_location)
    if found is None:
        return None
    place, snapshot = found
    names = place_names({plan.view: place})
    name = names.sql[plan.view]
    return PinnedQuery(all_rows(name, snapshot), (TableRead(name, snapshot),), names.files)


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


def is_unaffected(inputs: RefreshInputs, interval: Interval) -> tuple[Reason, ...] | None:
    """Return the reason why an interval is unaffected although base tables have changed.

    Args:
        inputs: The view, whose freshness is that of the interval.

    Returns:
        ``None`` if this cannot be proven.
    """
    observation = inputs.observation
    freshness = observation.freshness
    if freshness.of_rows != State.STALE or not observation.storage.intact:
        return None
    if any(not item.part.computed for item in freshness.parts):
        return None
    looks = [item.base_tables for item in freshness.parts] or [freshness.base_tables]
    changes = [change for look in looks for change in look if change.moved]
    if not all(only_appends(change) for change in changes):
        return None
    filters = interval_filters(inputs, interval.column)
    changed = [change for change in changes if change.changed]
    if filters is None or any(_may_touch(inputs, filters(interval), change) for change in changed):
        return None
    names = ", ".join(sorted({change.identifier for change in changed}))
    return (Reason(Code.FILTERED_OUT, f"according to the file statistics, no row added to {names} is in {interval}"),)


def analysed(inputs: RefreshInputs) -> IncrementalQuery | None:
    """Return the view's query at the present snapshots; ``None`` if it is not one that is analysed."""
    observation = inputs.observation
    relations = []
    for number, observed in enumerate(observation.tables):
        columns = columns_of(inputs.metadata(observed).schema_at(observed.head))
        relations.append(BaseRelation(observed.name, f"t{number}", columns, changed=True))
    query = IncrementalQuery.analyse(
        observation.query,
        relations,
        output=columns_of({"fields": observation.view.metadata.schema_.fields}),
        views=observation.dependencies.nested,
    )
    return None if isinstance(query, Reason) else query


def interval_filters(inputs: RefreshInputs, column: str) -> Callable[[Interval], Filters] | None:
    """Return the conditions that a row of each base table must pass to affect an interval, as a function of it.

    Args:
        column: The interval column.

    Returns:
        ``None`` if the query is not one that is analysed.
    """
    query = analysed(inputs)
    if query is None:
        return None
    kind = kind_of(column, inputs.observation.view.metadata.schema_.fields)
    literal = "date" if kind == "date" else "timestamp"

    def filters(interval: Interval) -> Filters:
        start, end = (literal_text(moment, literal) for moment in (interval.start, interval.end))
        return query.filters_within(column, start, end, kind)

    return filters


def conditions_within(inputs: RefreshInputs, interval: Interval) -> dict[Identifier, str]:
    """Return conditions on times of base tables that all rows pass on which an interval depends, as SQL.

    The condition on the view's column, which Spark evaluates, may be on a function of these times: Iceberg skips no
    files by such a condition.
    """
    filters = interval_filters(inputs, interval.column)
    found = {} if filters is None else {table: list(map(_as_sql, each)) for table, each in filters(interval).items()}
    return {table: " OR ".join(dict.fromkeys(texts)) for table, texts in found.items() if texts and all(texts)}


def _as_sql(comparisons: Sequence[Comparison]) -> str:
    """Return those of the comparisons that are with a date, or with a time without a zone; empty for none."""
    texts = [
        f"{quote(item.column)} {item.operator} {_KEYWORDS[item.kind]} '{item.value}'"
        for item in comparisons
        if item.kind in _KEYWORDS and _WRITTEN.fullmatch(item.value) and not item.only_calendar
    ]
    return f"({' AND '.join(texts)})" if texts else ""


def appended_to(inputs: RefreshInputs, change: BaseTableChange) -> AppendedFiles | None:
    """Return the commits that appended rows to a base table, if their statistics can be looked up by column name.

    Args:
        change: The table's change, which consists of appends only.
    """
    observed = next(item for item in inputs.observation.tables if item.identifier == change.identifier)
    table = inputs.metadata(observed)
    # Statistics are looked up by the names of the table's current columns.
    if table.schema_at(observed.head) != table.current_schema:
        return None
    return appended_files(observed, table, change)


def only_appends(change: BaseTableChange) -> bool:
    """Whether a change of a base table only added rows, or changed none.

    With another schema even unchanged rows may be read differently.
    """
    return not change.range.schema_changed and (not change.changed or change.range.only_appends)


def _may_touch(inputs: RefreshInputs, filters: Filters, change: BaseTableChange) -> bool:
    appended = appended_to(inputs, change)
    wanted = filters.get(Identifier.parse(change.identifier), [()])
    return appended is None or appended.may_match(inputs.statistics, wanted)
