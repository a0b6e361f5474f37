# SPDX-License-Identifier: Apache-2.0
"""The rows of the registry's components. The tables' columns, types and comments are derived from these models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from airflow_mv.core.spec.stored import Long, decode_text, describe
from airflow_mv.errors import InvalidMetadataError

#: The most bytes of a refresh's staged file.
MAX_ROW_BYTES = 256 * 1024


class Row(BaseModel):
    """A row. Fields that a newer version has written are ignored."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    @classmethod
    def parse(cls, text: bytes, *, source: str) -> Self:
        """Read a row's JSON.

        Args:
            text: The JSON document.

        Raises:
            InvalidMetadataError: It is not such a row. The message names the file and the field.
        """
        decode_text(text, source=source, limit=MAX_ROW_BYTES)
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise InvalidMetadataError(f"{source}: {describe(error)}") from None

    def cells(self) -> dict[str, Any]:
        """Return the values by column, in the form that Arrow takes."""
        found = {name: getattr(self, name) for name in type(self).model_fields}
        return {key: list(value.items()) if isinstance(value, Mapping) else value for key, value in found.items()}


R = TypeVar("R", bound=Row)
Text = Annotated[str, Field(min_length=1)]


class ViewRow(Row):
    """A materialized view as it was when the registry last checked it."""

    catalog: Text = Field(description="the view's catalog")
    namespace: Text = Field(description="the view's namespace")
    view: Text = Field(description="the view's full name")
    checked_at: datetime = Field(description="when the view was checked")
    view_uuid: str | None = Field(None, description="the view's uuid")
    version_id: Long | None = Field(None, description="the current version of its definition")
    query: str | None = Field(None, description="its query for Spark")
    base_tables: tuple[str, ...] = Field((), description="the tables that the query reads")
    layout: str | None = Field(None, description="pointed, registered or table")
    strategy: str | None = Field(None, description="full or incremental")
    allow_stale_data: bool | None = Field(None, description="whether stale rows may be read")
    time_travel: bool | None = Field(None, description="whether each refresh is kept with its rows")
    owner: str | None = Field(None, description="the view property owner")
    max_staleness_seconds: float | None = Field(None, description="the freshness SLO")
    state: Text = Field(description="the view's freshness; unknown if it could not be read")
    reasons: tuple[str, ...] = Field((), description="the codes of the reasons")
    explanation: str | None = Field(None, description="the reasons as sentences, or the error")
    lag_seconds: float | None = Field(None, description="the lag when it was checked; empty if unknown")
    refresh_id: str | None = Field(None, description="the current refresh")
    refreshed_at: datetime | None = Field(None, description="when it was published")


class RefreshRow(Row):
    """A published refresh.

    The columns up to ``warned_checks``, the durations and the requester are those of the refresh record, so a rebuild
    finds them in the views. Only the process that ran the refresh knows the other ones.
    """

    catalog: Text = Field(description="the view's catalog")
    namespace: Text = Field(description="the view's namespace")
    month: Annotated[str, Field(pattern=r"^\d{4}-\d\d$")] = Field(description="the month of refreshed_at, in UTC")
    view: Text = Field(description="the view's full name")
    view_uuid: Text = Field(description="the view's uuid")
    refresh_id: Text = Field(description="the refresh")
    refreshed_at: datetime = Field(description="when it was published")
    version_id: Long = Field(description="the version of the definition")
    sequence_number: Long | None = Field(None, description="the sequence number of the snapshot with its rows")
    mode: str | None = Field(None, description="the mode that ran")
    reasons: tuple[str, ...] = Field((), description="the codes of the reasons")
    messages: tuple[str, ...] = Field((), description="the reasons as sentences")
    fallback: str | None = Field(None, description="why an incremental view was recomputed in full; else empty")
    base_snapshots: Mapping[str, Long] = Field(
        {}, description="the snapshot of each base table that was read; -1 for an empty one"
    )
    interval_column: str | None = Field(None, description="the column of the refreshed interval; empty for all rows")
    interval_start: datetime | None = Field(None, description="the start of the interval")
    interval_end: datetime | None = Field(None, description="its end, excluded")
    rows_written: Long | None = Field(None, description="rows that the refresh wrote")
    rows_deleted: Long | None = Field(None, description="stored rows that an incremental refresh removed")
    rows_changed: Long | None = Field(None, description="changed rows of base tables that it found")
    rows_read: Long | None = Field(None, description="rows in the files that were read to find the change")
    bytes_read: Long | None = Field(None, description="bytes of these files")
    checks: Long = Field(0, description="the number of checks")
    warned_checks: Long = Field(0, description="checks that did not pass, and only warn")
    outcome: str | None = Field(None, description="refreshed, or already-committed if a retry found it published")
    seconds: float | None = Field(None, description="wall-clock time of plan, job and publication")
    job_seconds: float | None = Field(None, description="wall-clock time of the job's statements")
    executor_seconds: float | None = Field(None, description="run time of Spark's tasks; empty if unknown")
    full_seconds: float | None = Field(None, description="the estimated job time of a full refresh")
    full_bytes: Long | None = Field(None, description="the estimated bytes that a full refresh reads")
    lag_seconds: float | None = Field(None, description="the lag that the refresh ended")
    application_id: str | None = Field(None, description="the Spark application")
    dag_id: str | None = Field(None, description="the DAG that requested it")
    run_id: str | None = Field(None, description="the DAG run")
    task_id: str | None = Field(None, description="the task")
    requested_by: str | None = Field(None, description="the user who triggered the run, or ran the command")
    host: str | None = Field(None, description="the host of the command; empty for a task")

    @model_validator(mode="after")
    def _of_its_month(self) -> Self:
        if self.month != month_of(self.refreshed_at):
            raise ValueError(f"month is {self.month!r}, but refreshed_at is in {month_of(self.refreshed_at)}")
        return self


class TableRow(Row):
    """A base table, one of its partitions (segments), files or row groups, as it was when the registry last read it."""

    catalog: Text = Field(description="the table's catalog")
    namespace: Text = Field(description="the table's namespace")
    table_name: Text = Field(description="the table's full name")
    segment: Text = Field(
        description="GENERAL_INFO for the table, DEFAULT_SEGMENT without partitions, or the partition"
    )
    unit: Text = Field(description="table, segment, file or row-group")
    row_id: Text = Field(description="the table and the segment, the file's path, or that with the row group's number")
    checked_at: datetime = Field(description="when the table was read")
    snapshot_id: Long | None = Field(None, description="the table's current snapshot, or the one that added the file")
    location: str | None = Field(None, description="the table's folder, or the file's path")
    format: str | None = Field(None, description="the format version of a table, or the format of a file")
    content: str | None = Field(
        None, description="of a file: data, position-deletes or equality-deletes; of a table: how much is registered"
    )
    partition_spec_id: Long | None = Field(None, description="the partition spec")
    sort_order_id: Long | None = Field(None, description="the sort order, if there is one")
    data_files: Long | None = Field(None, description="the number of data files")
    delete_files: Long | None = Field(None, description="the number of delete files")
    rows: Long | None = Field(None, description="rows in data files, those that were deleted since included")
    deletes: Long | None = Field(None, description="entries of delete files")
    bytes: Long | None = Field(None, description="bytes of data files")
    delete_bytes: Long | None = Field(None, description="bytes of delete files")
    null_counts: Mapping[str, Long] = Field({}, description="the number of NULLs of each column that has the statistic")
    lower_bounds: Mapping[str, str] = Field({}, description="the lower bound of each column that has one, as text")
    upper_bounds: Mapping[str, str] = Field({}, description="the upper bound of each column that has one, as text")


#: The columns of a refresh that the process that ran it measured. The record has some of them, without the publication.
MEASURED = tuple(RefreshRow.model_fields)[tuple(RefreshRow.model_fields).index("outcome") :]


def month_of(moment: datetime) -> str:
    """Return a time's month in UTC, like ``2026-11``."""
    return moment.astimezone(UTC).strftime("%Y-%m")


@dataclass(frozen=True, slots=True)
class Kind(Generic[R]):
    """A component: one Iceberg table.

    Args:
        model: The model of its rows.
        key: The column that identifies a row.
        partitions: The columns by which the table is partitioned. All rows with one key have the same values.
        moment: A column with a time, which all rows with one key have in common.
    """

    name: str
    model: type[R]
    key: str
    partitions: tuple[str, ...]
    moment: str | None = None


VIEWS = Kind("views", ViewRow, "view", ("catalog", "namespace"))
REFRESHES = Kind("refreshes", RefreshRow, "refresh_id", ("catalog", "namespace", "month"), "refreshed_at")
TABLES = Kind("tables", TableRow, "row_id", ("catalog", "namespace", "table_name", "segment"))
KINDS: tuple[Kind[Any], ...] = (VIEWS, REFRESHES, TABLES)
