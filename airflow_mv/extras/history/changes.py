# SPDX-License-Identifier: Apache-2.0
"""Read the rows that were added to a table, and removed from it, between two of its snapshots.

The rows are found as an incremental refresh finds them (:mod:`airflow_mv.core.job.delta`): the history between the
snapshots does not matter, and files that both have are not read.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_mv.common.snapshots import snapshot_of
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.freshness.observe import observe_tables
from airflow_mv.core.refresh.incremental import kept_columns
from airflow_mv.core.refresh.statements import place_names
from airflow_mv.core.script import SESSION_CONFS, STAGING, WEIGHT, DeltaStep, temporary
from airflow_mv.core.spec.identifiers import Identifier, StoragePlace
from airflow_mv.core.spec.table_metadata import TableMetadata, is_ancestor
from airflow_mv.core.spec.times import from_ms
from airflow_mv.errors import (
    BaseTableNotFoundError,
    ConfigurationError,
    IncrementalRefusedError,
    JobError,
    RefreshNotFoundError,
    SnapshotNotFoundError,
    UnsupportedError,
    ViewNotFoundError,
)
from airflow_mv.extras.history.time_travel import TimeTravel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

#: The added column, and its values, as in Iceberg's changelog views.
CHANGE_TYPE, INSERT, DELETE = "_change_type", "INSERT", "DELETE"


@dataclass(frozen=True, slots=True)
class ChangesQuestion:
    """Two snapshots of a table, and the columns in which they are compared.

    Args:
        table: The table, or the materialized view whose stored rows are compared.
        place: Where Spark reads it, if not by its name.
        start: The snapshot before the change: the version of a Delta table.
        end: The snapshot after it.
        columns: The compared columns, by their names at ``end``.
        left_out: Columns at ``end`` that ``start`` does not have, or has with another type.
        on_one_line: Whether ``end`` follows from ``start`` by commits alone. Else the table was rolled back between
            them, or they are of two branches; the change is that of the rows all the same.
    """

    table: Identifier
    place: StoragePlace | None
    start: int
    end: int
    columns: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    on_one_line: bool = True


def question(
    catalog: MaterializedViewCatalog,
    table: str | Identifier,
    start: int | str,
    end: int | str | None = None,
    columns: Sequence[str] = (),
) -> ChangesQuestion:
    """Find two snapshots of a table. Reads metadata only.

    Args:
        table: As for :func:`changes`, like the others.
        start: The snapshot or refresh before the change.
        end: The one after it.

    Raises:
        BaseTableNotFoundError: There is no such table.
        SnapshotNotFoundError, RefreshNotFoundError, UnsupportedError: As for :func:`changes`.
    """
    name = table if isinstance(table, Identifier) else Identifier.parse(table)
    place: StoragePlace | None
    if any(isinstance(item, str) for item in (start, end)):
        metadata, place, start, end = _of_view(catalog, name, start, end)
    else:
        (observed,), places = observe_tables(catalog, [name], None)
        if observed.table is None:
            raise BaseTableNotFoundError(observed.error or f"table {name} cannot be read")
        metadata, place = observed.table, places.get(name)
    first, last = (_snapshot(metadata, name, item) for item in (start, metadata.head if end is None else end))
    wanted, left_out = _columns(metadata, name, (first, last), columns)
    return ChangesQuestion(name, place, first, last, wanted, left_out, is_ancestor(metadata, first, last))


def _of_view(
    catalog: MaterializedViewCatalog, name: Identifier, start: int | str, end: int | str | None
) -> tuple[TableMetadata, StoragePlace, int, int | None]:
    """Return the storage table of a view, and the snapshots with the rows of two refreshes."""
    try:
        view = catalog.load(name)
    except ViewNotFoundError as error:
        refresh = next(item for item in (start, end) if isinstance(item, str))
        raise SnapshotNotFoundError(
            f"table {name} has no snapshot {refresh!r}: a snapshot's id is a number, and only a materialized view has "
            "refreshes"
        ) from error
    storage = catalog.load_storage(view)
    state = storage.state
    if state is None:
        raise RefreshNotFoundError(f"view {name} was never refreshed")

    def snapshot(wanted: int | str) -> int:
        if isinstance(wanted, int):
            return wanted
        found = snapshot_of(storage, TimeTravel(refresh_id=wanted).find(catalog, view, storage, state))
        if found is None:
            raise RefreshNotFoundError(f"view {name}: the rows of refresh {wanted} have expired")
        return found

    return storage.rows_table, storage.place, snapshot(start), None if end is None else snapshot(end)


def _snapshot(table: TableMetadata, name: Identifier, snapshot_id: int | str | None) -> int:
    if snapshot_id is None:
        raise SnapshotNotFoundError(f"table {name} has no snapshot yet")
    found = table.find(int(snapshot_id))
    if found is not None:
        return found.snapshot_id
    oldest = min(table.snapshots, key=lambda item: item.timestamp_ms, default=None)
    has = "it has none" if oldest is None else (
        f"the oldest that can be read is {oldest.snapshot_id} of {from_ms(oldest.timestamp_ms).isoformat()}"
    )  # fmt: skip
    raise SnapshotNotFoundError(f"table {name} has no snapshot {snapshot_id}, or it has expired: {has}")


def _columns(
    table: TableMetadata, name: Identifier, snapshots: tuple[int, int], wanted: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns to compare, and those that are left out.

    Raises:
        ConfigurationError: There is no such column, or it has a name that the result needs.
    """
    old, new = (table.schema_at(item) for item in snapshots)
    names = [str(field["name"]) for field in new["fields"]]
    if unknown := [item for item in wanted if item not in names]:
        raise ConfigurationError(
            f"table {name} has no column {unknown[0]!r} at snapshot {snapshots[1]}; it has {', '.join(names)}"
        )
    same = kept_columns(old, new)
    chosen = tuple(wanted) or tuple(item for item in names if item in same)
    if taken := [item for item in chosen if item in (CHANGE_TYPE, WEIGHT)]:
        raise ConfigurationError(
            f"table {name}: its column {taken[0]} has a name that the result needs: choose the other columns"
        )
    if not chosen:
        raise UnsupportedError(f"table {name}: no column is the same at snapshots {snapshots[0]} and {snapshots[1]}")
    return chosen, () if wanted else tuple(item for item in names if item not in same)


def changed_rows(catalog: MaterializedViewCatalog, spark: SparkSession, wanted: ChangesQuestion) -> DataFrame:
    """Compute the change in Spark.

    Args:
        spark: A session that knows the table's catalog, classic or Connect.
        wanted: From :func:`question`.

    Raises:
        SnapshotNotFoundError, UnsupportedError, JobError: As for :func:`airflow_mv.actions.changes`.
    """
    from airflow_mv.common.stored_rows import spark_errors
    from airflow_mv.core.job.context import JobContext
    from airflow_mv.core.job.delta import net_change
    from airflow_mv.core.job.driver import registered
    from airflow_mv.core.job.foreign import format_of
    from airflow_mv.core.job.session import made_active, temporary_settings

    if wanted.left_out:
        log.warning("%s: skipping columns that are new or have changed: %s", wanted.table, ", ".join(wanted.left_out))
    names = place_names({} if wanted.place is None else {wanted.table: wanted.place})
    with (
        spark_errors(f"reading the change of {wanted.table}"),
        made_active(spark),
        temporary_settings(spark, dict(SESSION_CONFS)),
        registered(spark, catalog.name if wanted.table.path else wanted.table.catalog, names.files) as staging,
        closing(JobContext(spark, staging)) as context,
    ):
        table = names.sql.get(wanted.table, wanted.table.sql()).replace(STAGING, staging)
        if (tables := format_of(table)) is not None:
            tables.require(context, table)
        # Used twice: what is not computed here could no longer be read once the staged files are released.
        step = DeltaStep(temporary("change"), table, wanted.start, wanted.end, wanted.columns, uses=2)
        try:
            frame = net_change(context, step)
        except IncrementalRefusedError as error:
            raise _translated(wanted, error) from None
        log.info("%s: read its change by %s", wanted.table, ", ".join(context.deltas[0].read_by) or "its metadata")
        return _each_copy(frame, wanted.columns)


def _each_copy(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return a row for each copy, with the type of its change."""
    from pyspark.sql import functions as F

    from airflow_mv.core.spec.identifiers import quote

    weight = F.col(quote(WEIGHT))
    kind = F.when(weight > 0, F.lit(INSERT)).otherwise(F.lit(DELETE))
    return frame.select(
        F.explode(F.array_repeat(kind, F.abs(weight))).alias(CHANGE_TYPE), *(F.col(quote(name)) for name in columns)
    )


def _translated(wanted: ChangesQuestion, error: IncrementalRefusedError) -> Exception:
    what = f"table {wanted.table}, the change from {wanted.start} to {wanted.end}: {error}"
    if error.code == "snapshot-missing":
        return SnapshotNotFoundError(what)
    if error.code in ("schema-changed", "column-type"):
        return UnsupportedError(f"{what}. Name the columns to compare")
    return JobError(what)
