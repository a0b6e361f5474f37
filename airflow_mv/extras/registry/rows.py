# SPDX-License-Identifier: Apache-2.0
"""Make the registry's row of a refresh from its record."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow_mv.common.snapshots import tables_read
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import RefreshRecord
from airflow_mv.core.spec.reasons import Code, Reason, fallback
from airflow_mv.core.spec.times import from_ms
from airflow_mv.extras.registry.model import RefreshRow, month_of
from airflow_mv.foundation.redaction import shortened

#: The most characters of a message.
MAX_LENGTH = 2000


def refresh_row(view: Identifier, view_uuid: str, record: RefreshRecord) -> RefreshRow:
    """Return the row of a refresh, as far as the view records it."""
    refreshed_at = from_ms(record.refreshed_at_ms or 0)
    interval = record.interval.interval if record.interval else None
    why = [Reason(_code(item.get("code", "")), item.get("message", "")) for item in record.reasons]
    return RefreshRow(
        catalog=view.catalog,
        namespace=".".join(view.namespace),
        view=str(view),
        month=month_of(refreshed_at),
        view_uuid=view_uuid,
        refresh_id=record.refresh_id,
        refreshed_at=refreshed_at,
        version_id=record.version_id,
        sequence_number=record.sequence_number,
        mode=record.mode,
        reasons=tuple(item.get("code", "") for item in record.reasons),
        messages=tuple(shortened(reason.message, MAX_LENGTH) for reason in why),
        fallback=_cut(fallback(why)),
        base_snapshots={table.identifier: table.snapshot_reference for table in tables_read(record)},
        interval_column=interval.column if interval else None,
        interval_start=_utc(interval.start) if interval else None,
        interval_end=_utc(interval.end) if interval else None,
        rows_written=record.rows_written,
        rows_deleted=record.rows_deleted,
        rows_changed=record.rows_changed,
        rows_read=record.rows_read,
        bytes_read=record.bytes_read,
        checks=len(record.checks),
        seconds=record.seconds,
        job_seconds=record.job_seconds,
        executor_seconds=record.executor_seconds,
        dag_id=record.requested_by.get("dag-id"),
        run_id=record.requested_by.get("run-id"),
        task_id=record.requested_by.get("task-id"),
        requested_by=record.requested_by.get("user"),
        host=record.requested_by.get("host"),
        warned_checks=sum(check.get("result") != "passed" for check in record.checks),
    )


def _code(text: str) -> Code:
    try:
        return Code(text)
    except ValueError:
        return Code.FRESH  # a code of another version: it marks no fallback


def _cut(text: str | None) -> str | None:
    return None if text is None else shortened(text, MAX_LENGTH)


def _utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
