# SPDX-License-Identifier: Apache-2.0
"""Make the registry's rows from what a catalog stores: views as they were observed, and refresh records."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from airflow_mv.catalog import LoadedView, stored_layout
from airflow_mv.errors import MaterializedViewError
from airflow_mv.freshness.lag import lag, max_staleness_of
from airflow_mv.freshness.observe import Observation
from airflow_mv.freshness.state import State
from airflow_mv.redaction import shortened
from airflow_mv.registry.model import RefreshRow, ViewRow, month_of
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.materialized_view import TIME_TRAVEL_PROPERTY, RefreshRecord, StorageState
from airflow_mv.spec.reasons import Code, Reason, fallback
from airflow_mv.spec.times import from_ms

#: The most characters of an explanation.
_LONGEST = 2000
_OWNER = "owner"


def refresh_row(view: Identifier, view_uuid: str, record: RefreshRecord) -> RefreshRow:
    """Return the row of a refresh, without what only the process that ran it knows.

    Args:
        view: The view.
        view_uuid: Its uuid.
        record: The refresh record.
    """
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
        messages=tuple(shortened(reason.message, _LONGEST) for reason in why),
        fallback=_cut(fallback(why)),
        base_snapshots=record.snapshots,
        interval_column=interval.column if interval else None,
        interval_start=_utc(interval.start) if interval else None,
        interval_end=_utc(interval.end) if interval else None,
        rows_written=record.rows_written,
        rows_deleted=record.rows_deleted,
        rows_changed=record.rows_changed,
        rows_read=record.rows_read,
        bytes_read=record.bytes_read,
        checks=len(record.checks),
        warned_checks=sum(check.get("result") != "passed" for check in record.checks),
    )


def recorded_rows(view: LoadedView, state: StorageState | None) -> list[RefreshRow]:
    """Return the row of each refresh that a view's storage table records."""
    records = state.refreshes if state else ()
    return [refresh_row(view.identifier, view.metadata.view_uuid, record) for record in records]


def view_row(seen: Observation, now: datetime) -> ViewRow:
    """Return the row of a view.

    Args:
        seen: The observation.
        now: When it was made.
    """
    view, record = seen.view, seen.record
    properties = view.metadata.properties
    try:
        slo = max_staleness_of(properties, view=str(view.identifier))
    except MaterializedViewError:
        slo = None
    return ViewRow(
        catalog=view.identifier.catalog,
        namespace=".".join(view.identifier.namespace),
        view=str(view.identifier),
        looked_at=now,
        view_uuid=view.metadata.view_uuid,
        version_id=view.metadata.current_version_id,
        query=seen.query.text,
        base_tables=tuple(sorted(str(table.identifier) for table in seen.tables)),
        layout=stored_layout(view).name,
        strategy=view.materialized.refresh_strategy,
        allow_stale_data=view.materialized.allow_stale_data,
        time_travel=properties.get(TIME_TRAVEL_PROPERTY, "false").lower() == "true",
        owner=properties.get(_OWNER),
        max_staleness_seconds=None if slo is None else slo.total_seconds(),
        state=str(seen.freshness.state),
        reasons=tuple(str(reason.code) for reason in seen.freshness.reasons),
        explanation=_sentences(seen.freshness.reasons),
        lag_seconds=lag(seen).seconds(now),
        refresh_id=record.refresh_id if record else None,
        refreshed_at=from_ms(record.refreshed_at_ms) if record and record.refreshed_at_ms is not None else None,
    )


def unreadable_row(view: Identifier, error: MaterializedViewError, now: datetime) -> ViewRow:
    """Return the row of a view that cannot be read."""
    return ViewRow(
        catalog=view.catalog,
        namespace=".".join(view.namespace),
        view=str(view),
        looked_at=now,
        state=str(State.UNKNOWN),
        reasons=(str(Code.VIEW_UNREADABLE),),
        explanation=_cut(str(error)),
    )


def _code(text: str) -> Code:
    try:
        return Code(text)
    except ValueError:
        return Code.FRESH  # a code of another version: it marks no fallback


def _sentences(reasons: Sequence[Reason]) -> str | None:
    return _cut("; ".join(reason.message for reason in reasons)) or None


def _cut(text: str | None) -> str | None:
    return None if text is None else shortened(text, _LONGEST)


def _utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
