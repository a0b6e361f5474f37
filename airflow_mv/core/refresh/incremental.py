# SPDX-License-Identifier: Apache-2.0
"""Find the incremental refreshes that the algebra allows for a stale view, from the metadata in the catalog."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_mv.core.catalog.layouts import LoadedStorage
from airflow_mv.core.freshness.changes import DIFFERABLE, UNKNOWN, Kind, Range, copying
from airflow_mv.core.freshness.observe import Observation
from airflow_mv.core.freshness.state import BaseTableChange, ObservedTable
from airflow_mv.core.refresh.candidates import (
    AppendedFiles,
    BaseTableInput,
    Candidate,
    IncrementalInput,
    SnapshotFiles,
    StorageInput,
    base_costs,
    candidate,
)
from airflow_mv.core.refresh.inputs import RefreshInputs
from airflow_mv.core.refresh.plan import SMALL_STORAGE, Estimate, StoredCost, full_cost
from airflow_mv.core.refresh.statements import place_names
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import RefreshRecord
from airflow_mv.core.spec.reasons import Code, Mode, Reason
from airflow_mv.core.spec.table_metadata import TableMetadata, known_sum, snapshots_between
from airflow_mv.core.sql.query import filtered_floats
from airflow_mv.core.sql.types import (
    Accesses,
    columns_of,
    is_same_for,
    rebound_columns,
    required_columns,
    unknown_type,
    uses_in,
)

#: Why all rows are recomputed, also those of a fresh view.
OTHER_STORAGE = Reason(
    Code.SCHEMA_CHANGED, "the columns or the partitioning of the storage table differ from the view's"
)
#: Stands for an unknown number of files.
_MANY_FILES = 1_000_000
#: What the queries of a view read of a column of one base table.
Uses = Callable[[str], frozenset[Accesses]]
_MODES = (Mode.APPEND, Mode.MERGE, Mode.REPLACE_KEYS)


@dataclass(frozen=True, slots=True)
class Alternatives:
    """The two alternatives for an incremental view.

    Args:
        incremental: The cheapest incremental refresh, or the reasons why there is none.
        full: The estimated cost of a full refresh.
    """

    incremental: Candidate | tuple[Reason, ...]
    full: Estimate


def alternatives(inputs: RefreshInputs) -> Alternatives:
    """Return the cheapest incremental refresh, or why there is none, and the estimate of a full refresh.

    Args:
        inputs: A stale view.
    """
    observation = inputs.observation
    record = observation.record
    bases = tuple(_base(inputs, table, record) for table in observation.tables)
    total = known_sum([base.total_bytes for base in bases])
    changed = known_sum([cost.changed_rows for cost in base_costs(bases)])
    full = full_cost(total, rows_changed=changed).corrected(record.factors if record else {})
    if record is None or not inputs.same_schema:
        return Alternatives((OTHER_STORAGE,), full)
    if not observation.storage.intact:
        return Alternatives(observation.freshness.reasons, full)
    if record.intervals or record.only_intervals:
        text = "its intervals were refreshed from different base snapshots; only a full refresh aligns them"
        return Alternatives((Reason(Code.INTERVALS, text),), full)
    loaded = observation.view
    given = IncrementalInput(
        view=str(loaded.identifier),
        query=observation.query,
        views=observation.dependencies.nested,
        output=columns_of({"fields": loaded.metadata.schema_.fields}),
        # No incremental refresh is possible if a column name in the query now means a different column.
        pinned=inputs.pinned_query(filtered=True).sql,
        bases=bases,
        stored=_stored(observation.storage),
    )
    found = candidate(given, inputs.statistics)
    if isinstance(found, Candidate) and found.mode in _MODES:
        found = replace(found, estimate=found.estimate.corrected(record.factors))
    return Alternatives(found, full)


def _stored(storage: LoadedStorage) -> StorageInput:
    table = storage.table
    size, rows = table.bytes_at(storage.rows_snapshot), table.rows_at(storage.rows_snapshot)
    return StorageInput(
        table=storage.target.written,
        columns=table.column_names,
        # A refresh writes both. If they are missing after another writer's commit, the table is not assumed small.
        cost=StoredCost(SMALL_STORAGE + 1 if size is None else size, rows or 0),
    )


def _base(inputs: RefreshInputs, observed: ObservedTable, record: RefreshRecord | None) -> BaseTableInput:
    observation, table = inputs.observation, inputs.metadata(observed)
    identifier = observed.name
    change = next(item for item in observation.freshness.base_tables if item.identifier == observed.identifier)
    recorded, target = table.schema_at(change.recorded), table.schema_at(observed.head)
    # The job binds names to the columns that the table has when it runs. A pinned table may have other ones since.
    present = inputs.newest.get(identifier, table).current_schema
    is_current = _fields(target) == _fields(present)
    uses = _uses(observation, identifier)
    kept = kept_columns(recorded, target, uses) - _rebound(table, (change.recorded, observed.head), present, uses)
    return BaseTableInput(
        identifier=identifier,
        sql=place_names(observation.places).sql.get(identifier, identifier.sql()),
        columns=columns_of(target),
        recorded=change.recorded,
        target=observed.head,
        range=_range(change, table) if record is not None else UNKNOWN,
        total_bytes=table.bytes_at(observed.head),
        kept=kept,
        partial=kept - kept_columns(recorded, target),
        before=columns_of(recorded),
        not_null=required_columns(recorded) & required_columns(target),
        schema_is_current=is_current,
        appended=appended_files(observed, table, change) if is_current and change.range.only_appends else None,
        files=_files(observed, table, change.recorded, kept),
        has_row_ids=table.has_row_ids,
        rows_copied=_rows_copied(inputs, observed, change),
        merge_on_read_files=_merge_on_read_files(table, (change.recorded, observed.head), observed.corrected),
        floats=filtered_floats(observation.queries, columns_of(target)),
    )


def _rows_copied(inputs: RefreshInputs, observed: ObservedTable, change: BaseTableChange) -> int | None:
    """Return how many rows of a base table were only copied into new files; ``None`` if unknown.

    Summaries count them as added and as removed, so a change of few rows looks like a change of all rows.
    """
    table, location = inputs.metadata(observed), observed.metadata_location
    if not table.has_row_ids or change.range.kind != Kind.REWRITTEN or location is None or unknown_type(table):
        return None
    commits = copying(table, change.recorded, observed.head)
    return inputs.statistics.rows_copied(observed.name, location, commits) if commits else 0


def _merge_on_read_files(
    table: TableMetadata, snapshots: tuple[int | None, int | None], corrected: Collection[int] = ()
) -> int | None:
    """Return the number of data and delete files of two snapshots; ``None`` if unknown, or without deletes.

    Iceberg's changelog, which has the changes of a table without delete files, skips commits by their stored
    operations. So it is not used where one of these was wrong: the table counts as one with deletes, and with many
    files.
    """
    counts = [table.files_at(snapshot) for snapshot in snapshots]
    found = known_sum([number for pair in counts for number in pair]) if any(deletes for _, deletes in counts) else None
    if found is None and any(item.snapshot_id in corrected for item in snapshots_between(table, *snapshots) or ()):
        return _MANY_FILES
    return found


def _files(
    observed: ObservedTable, table: TableMetadata, recorded: int | None, kept: Iterable[str]
) -> SnapshotFiles | None:
    """Return the data files of the two snapshots of a base table; ``None`` if their statistics cannot be read."""
    if observed.metadata_location is None or unknown_type(table) is not None:
        return None
    snapshots = frozenset(item for item in (recorded, observed.head) if item is not None)
    ids = {str(field["name"]): field["id"] for field in _fields(table.schema_at(observed.head))}
    same = {name: ids[name] for name in kept}
    return SnapshotFiles(observed.name, observed.metadata_location, snapshots, same)


def appended_files(observed: ObservedTable, table: TableMetadata, change: BaseTableChange) -> AppendedFiles | None:
    """Return the commits that appended rows since the recorded snapshot; ``None`` if they are unknown.

    Args:
        observed: The base table.
        change: Its change, which consists of appends only.
    """
    location = observed.metadata_location
    between = snapshots_between(table, change.recorded, observed.head)
    if location is None or between is None or unknown_type(table) is not None:
        return None
    appended = frozenset(snapshot.snapshot_id for snapshot in between if snapshot.operation == "append")
    return AppendedFiles(observed.name, location, appended)


def _range(change: BaseTableChange, table: TableMetadata) -> Range:
    """Return the change. Its kind is ``EXPIRED`` if the recorded snapshot has just left the table."""
    gone = change.recorded is not None and table.find(change.recorded) is None
    if gone and change.range.kind in DIFFERABLE:
        return replace(change.range, kind=Kind.EXPIRED)
    return change.range


def _uses(observation: Observation, table: Identifier) -> Uses:
    """Return the function of a column that gives what the view's query, and those of nested views, read of it."""
    queries = [(observation.query, observation.view.metadata.schema_.names)]
    queries += [(view.query, view.columns) for view in observation.dependencies.views]
    return lambda column: uses_in(queries, table, column)


def _rebound(
    table: TableMetadata, snapshots: Iterable[int | None], present: Mapping[str, Any], uses: Uses
) -> frozenset[str]:
    """Return the columns that a scan of one of these snapshots would filter by another column's statistics.

    Args:
        present: The table's present schema.
        uses: What is read of a column.
    """
    found: frozenset[str] = frozenset()
    for schema in (table.schema_at(snapshot) for snapshot in snapshots if snapshot is not None):
        found |= rebound_columns(schema, present) - kept_columns(schema, present, uses)
    return found


def kept_columns(old: Mapping[str, Any], new: Mapping[str, Any], uses: Uses | None = None) -> frozenset[str]:
    """Return the columns that are the same in two schemas: name, field id and type.

    Args:
        old: A stored schema.
        new: Another one of the table.
        uses: What is read of a column. Only these of its nested fields have to be the same. By default all of it.
    """
    before = {str(field["name"]): field for field in _fields(old)}
    after = {str(field["name"]): field for field in _fields(new)}
    return frozenset(name for name in before.keys() & after.keys() if _is_kept(before[name], after[name], uses))


def _is_kept(then: Mapping[str, Any], now: Mapping[str, Any], uses: Uses | None) -> bool:
    if _identity(then) == _identity(now):
        return True
    found = uses(str(now["name"])) if uses is not None else frozenset()
    return bool(found) and is_same_for(then, now, found)


def _fields(schema: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    fields: Sequence[Mapping[str, Any]] = schema.get("fields", ())
    return fields


def _identity(field: Mapping[str, Any]) -> tuple[Any, Any]:
    return field.get("id"), field["type"]
