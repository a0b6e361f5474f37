# SPDX-License-Identifier: Apache-2.0
"""Prove that an interval is unaffected: the statistics of the added files exclude its rows.

This makes a daily backfill cheap: each day adds rows of one day, and the earlier days need no Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_mv.freshness.state import BaseTableChange, State
from airflow_mv.ivm import BaseRelation, Comparison, IncrementalQuery
from airflow_mv.refresh.incremental import appended_files
from airflow_mv.refresh.inputs import RefreshInputs
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.interval import Interval
from airflow_mv.spec.reasons import Code, Reason
from airflow_mv.sql.intervals import kind_of, literal_text
from airflow_mv.sql.types import columns_of

_Filters = Mapping[Identifier, Sequence[tuple[Comparison, ...]]]


def is_unaffected(inputs: RefreshInputs, interval: Interval) -> tuple[Reason, ...] | None:
    """Return the reason why an interval is unaffected although base tables have changed.

    Args:
        inputs: The view, whose freshness is that of the interval.
        interval: The interval.

    Returns:
        ``None`` if this cannot be proven.
    """
    observation = inputs.observation
    freshness = observation.freshness
    if freshness.state != State.STALE or not observation.storage.intact:
        return None
    if any(not item.part.computed for item in freshness.parts):
        return None
    looks = [item.base_tables for item in freshness.parts] or [freshness.base_tables]
    changes = [change for look in looks for change in look if change.moved]
    # With another schema even unchanged rows may be read differently.
    if any(change.range.schema_changed or (change.changed and not change.range.only_appends) for change in changes):
        return None
    filters = _filters(inputs, interval)
    changed = [change for change in changes if change.changed]
    if filters is None or any(_may_touch(inputs, filters, change) for change in changed):
        return None
    names = ", ".join(sorted({change.identifier for change in changed}))
    told = Reason(Code.FILTERED_OUT, f"by its files' statistics no row added to {names} has {interval}")
    return (told,)


def _filters(inputs: RefreshInputs, interval: Interval) -> _Filters | None:
    """Return the conditions that a row of each base table must pass to affect the interval."""
    observation = inputs.observation
    view = observation.view
    relations = []
    for number, observed in enumerate(observation.tables):
        columns = columns_of(inputs.metadata(observed).schema_at(observed.head))
        relations.append(BaseRelation(Identifier.parse(observed.identifier), f"t{number}", columns, changed=True))
    fields = view.metadata.schema_.fields
    query = IncrementalQuery.analyse(
        observation.query,
        relations,
        output=columns_of({"fields": fields}),
        views=observation.dependencies.nested,
    )
    if isinstance(query, Reason):
        return None
    kind = kind_of(interval.column, fields)
    start, end = (
        literal_text(moment, "date" if kind == "date" else "timestamp") for moment in (interval.start, interval.end)
    )
    return query.filters_within(interval.column, start, end, kind)


def _may_touch(inputs: RefreshInputs, filters: _Filters, change: BaseTableChange) -> bool:
    observed = next(item for item in inputs.observation.tables if item.identifier == change.identifier)
    table = inputs.metadata(observed)
    # Statistics are looked up by the names of the table's current columns.
    if table.schema_at(observed.head) != table.current_schema:
        return True
    appended = appended_files(observed, table, change)
    wanted = filters.get(Identifier.parse(observed.identifier), [()])
    return appended is None or appended.may_match(inputs.statistics, wanted)
