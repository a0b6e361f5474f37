# SPDX-License-Identifier: Apache-2.0
"""Prove that nothing has changed for an interval: by the statistics of the files that came, no row of it came.

This is what makes a daily backfill cheap: the base table gets a day a day, and the days before need no Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_mv.catalog import MaterializedViewCatalog
from airflow_mv.catalog.statistics import added_rows_may_match
from airflow_mv.freshness.observe import Observation
from airflow_mv.freshness.state import BaseTableChange, State
from airflow_mv.ivm import BaseRelation, Comparison, IncrementalQuery
from airflow_mv.refresh.view_sql import metadata_of
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.interval import Interval
from airflow_mv.spec.reasons import Code, Reason
from airflow_mv.spec.table import snapshots_between
from airflow_mv.sql.intervals import kind_of, literal_text
from airflow_mv.sql.types import columns_of

_Filters = Mapping[Identifier, Sequence[tuple[Comparison, ...]]]


def is_unaffected(
    catalog: MaterializedViewCatalog, observation: Observation, interval: Interval
) -> tuple[Reason, ...] | None:
    """Say why an interval has the rows that it would have now, although base tables have changed.

    Args:
        catalog: Where the view is.
        observation: A look at the interval.
        interval: It.

    Returns:
        ``None`` where that is not sure.
    """
    freshness = observation.freshness
    if freshness.state != State.STALE or not observation.storage.intact:
        return None
    if any(not item.part.computed for item in freshness.parts):
        return None
    looks = [item.base_tables for item in freshness.parts] or [freshness.base_tables]
    changes = [change for look in looks for change in look if change.moved]
    # Rows that nobody touched read otherwise by another schema.
    if any(change.range.schema_changed or (change.changed and not change.range.only_appends) for change in changes):
        return None
    filters = _filters(catalog, observation, interval)
    changed = [change for change in changes if change.changed]
    if filters is None or any(_may_touch(catalog, observation, filters, change) for change in changed):
        return None
    names = ", ".join(sorted({change.identifier for change in changed}))
    told = Reason(Code.FILTERED_OUT, f"by its files' statistics no row that came to {names} has {interval}")
    return (told,)


def _filters(catalog: MaterializedViewCatalog, observation: Observation, interval: Interval) -> _Filters | None:
    """Return what a row of each base table must be like to matter to the interval."""
    view = observation.view
    relations = []
    for number, observed in enumerate(observation.tables):
        table = metadata_of(catalog, observed, observation.opened)
        columns = columns_of(table.schema_at(observed.head))
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


def _may_touch(
    catalog: MaterializedViewCatalog, observation: Observation, filters: _Filters, change: BaseTableChange
) -> bool:
    observed = next(item for item in observation.tables if item.identifier == change.identifier)
    identifier = Identifier.parse(observed.identifier)
    between = snapshots_between(observed.table, change.recorded, observed.head) if observed.table else None
    if between is None or observed.metadata_location is None or observed.table is None:
        return True
    # The statistics are asked by the names of the table's current columns.
    if observed.table.schema_at(observed.head) != observed.table.current_schema:
        return True
    appended = {snapshot.snapshot_id for snapshot in between if snapshot.operation == "append"}
    wanted = filters.get(identifier, [()])
    files = catalog.other(identifier.catalog).files
    return bool(appended) and added_rows_may_match(files, observed.metadata_location, appended, wanted)
