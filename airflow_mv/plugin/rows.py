# SPDX-License-Identifier: Apache-2.0
"""The row that the page shows for a view, from the summary of its metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from airflow_mv.common.each import ItemResult
from airflow_mv.core.freshness.state import Lag, State
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.properties import max_staleness_of
from airflow_mv.core.spec.reasons import Code, Reason
from airflow_mv.errors import ConfigurationError
from airflow_mv.extras.fleet.alerts import is_late
from airflow_mv.extras.fleet.known import Pointer
from airflow_mv.extras.fleet.summary import Summary, by_name
from airflow_mv.plugin.messages import harmless, said

#: The state of a view that is listed, but not read yet.
PENDING = "pending"
#: The state of a view that does not exist, because the run that should have created it has failed.
NOT_CREATED = "not-created"
#: The state of a listed view that is not materialized: it is not shown.
PLAIN = "plain"
#: States by urgency, the most urgent first.
STATES = (
    NOT_CREATED,
    str(State.UNKNOWN),
    str(State.INVALID),
    str(State.DEFINITION_CHANGED),
    str(State.NEVER_REFRESHED),
    str(State.STALE),
    PENDING,
    str(State.FRESH),
)


@dataclass(frozen=True)
class ViewRow:
    """A view's row, as of its last observation.

    Args:
        state: Its state, :data:`PENDING` or :data:`PLAIN`.
        reasons: Why, as ``{"code", "message"}``.
        behind: Its lag; ``None`` if it could not be read.
        refresh_id: The recorded refresh.
        refreshed_at: When that was published, ISO 8601.
        rows_written: Rows that it wrote.
        rows: Rows that the view has; ``None`` if its storage table's metadata does not say.
        recorded: The recorded refresh, see :class:`airflow_mv.extras.fleet.summary.Summary`. Its texts may hold
            secrets.
        strategy: ``full`` or ``incremental``.
        interval_column: The column of its intervals, if it has one.
        tables: Its base tables, each with whether rows of it have changed since.
        max_staleness: The freshness SLO, as the view's property has it.
        late_after: The freshness SLO; ``None`` if there is none, or its text is no length of time.
        summary: The summary that the row was made from. It decides whether the view breaches the SLO.
        pointed: The catalog's pointers that determine the state; ``None`` if they do not determine it completely.
    """

    view: Identifier
    state: str
    reasons: tuple[dict[str, str], ...] = ()
    behind: Lag | None = None
    refresh_id: str | None = None
    refreshed_at: str | None = None
    mode: str | None = None
    rows_written: int | None = None
    rows: int | None = None
    recorded: Mapping[str, Any] | None = None
    strategy: str | None = None
    interval_column: str | None = None
    tables: tuple[tuple[str, bool], ...] = ()
    max_staleness: str | None = None
    late_after: timedelta | None = None
    summary: Summary | None = None
    pointed: Sequence[Pointer] | None = None

    @cached_property
    def pointers(self) -> Mapping[Identifier, str] | None:
        """The pointers by name. The first look of a process does not need them."""
        return None if self.pointed is None else by_name(self.pointed)

    @cached_property
    def last(self) -> Mapping[str, Any] | None:
        """The reasons, interval and checks of the refresh. Few of the rows of a catalog are shown at a time."""
        return said(self.recorded) if self.recorded else None

    def lag(self, now: datetime) -> dict[str, Any]:
        """Return the lag as of a time: it grows while the row stays the same."""
        since = self.behind.since if self.behind else None
        return {
            "seconds": self.behind.seconds(now) if self.behind else None,
            "since": since.isoformat() if since else None,
            "exact": self.behind.exact if self.behind else False,
        }

    def is_late(self, now: datetime) -> bool:
        """Whether the view breaches its freshness SLO, as alerts have it."""
        return self.summary is not None and self.late_after is not None and is_late(self.summary, self.late_after, now)

    def to_dict(self, now: datetime | None = None) -> dict[str, Any]:
        """Return the JSON form."""
        now = now or datetime.now(UTC)
        return {
            "view": str(self.view),
            "name": self.view.name,
            "namespace": ".".join((self.view.catalog, *self.view.namespace)),
            "state": self.state,
            "reasons": list(self.reasons),
            "lag": self.lag(now),
            "max_staleness": self.max_staleness,
            "late": self.is_late(now),
            "refresh_id": self.refresh_id,
            "refreshed_at": self.refreshed_at,
            "mode": self.mode,
            "rows_written": self.rows_written,
            "rows": self.rows,
            "last": self.last,
            "strategy": self.strategy,
            "tables": len(self.tables),
            "changed_tables": sum(changed for _, changed in self.tables),
        }


def row_of_result(result: ItemResult[Identifier, Summary]) -> ViewRow:
    """Return the row of a view that was looked at. An error of a view is in its row."""
    if result.value is None:
        unreadable = Reason(Code.VIEW_UNREADABLE, str(result.error)).to_dict()
        return ViewRow(result.item, str(State.UNKNOWN), (_harmless(unreadable),))
    if result.value.status is None:
        return ViewRow(result.item, PLAIN, pointed=result.value.pointers)
    return row_of(result.value)


def row_of(summary: Summary) -> ViewRow:
    """Return the row of a materialized view."""
    document, recorded = summary.document, summary.recorded or {}
    return ViewRow(
        view=summary.view,
        state=document["state"],
        reasons=tuple(_harmless(reason) for reason in document["reasons"]),
        behind=summary.lag,
        refresh_id=document["refresh_id"],
        refreshed_at=document["refreshed_at"],
        mode=recorded.get("mode"),
        rows_written=recorded.get("rows_written"),
        rows=recorded.get("rows"),
        recorded=summary.recorded,
        strategy=summary.strategy,
        interval_column=summary.interval_column,
        tables=tuple((change["identifier"], change["changed"]) for change in document["base_tables"]),
        max_staleness=summary.max_staleness,
        late_after=allowed(summary.max_staleness, summary.view),
        summary=summary,
        pointed=summary.pointers,
    )


def allowed(max_staleness: str | None, view: Identifier) -> timedelta | None:
    """Return a freshness SLO; ``None`` if there is none, or the text of the property is no length of time."""
    try:
        return max_staleness_of(max_staleness, view=str(view))
    except ConfigurationError:
        return None


def _harmless(reason: Mapping[str, Any]) -> dict[str, str]:
    return {"code": reason["code"], "message": harmless(reason["message"])}
