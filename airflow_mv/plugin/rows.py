# SPDX-License-Identifier: Apache-2.0
"""The row that the page shows for a view, from one observation of its metadata."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_mv.catalog import LoadedView, MaterializedViewCatalog
from airflow_mv.errors import CatalogUnavailableError
from airflow_mv.freshness.lag import Lag, lag
from airflow_mv.freshness.observe import Observation, observe_each
from airflow_mv.freshness.state import State
from airflow_mv.freshness.status import timestamp
from airflow_mv.plugin.messages import harmless, said
from airflow_mv.refresh.coverage import column_of
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.materialized_view import RefreshRecord
from airflow_mv.spec.reasons import Code, Reason

#: The state of a view that is listed, but not read yet.
PENDING = "pending"
#: The state of a listed view that is not materialized: it is not shown.
PLAIN = "plain"
#: States by urgency, the most urgent first.
STATES = (
    str(State.UNKNOWN),
    str(State.INVALID),
    str(State.DEFINITION_CHANGED),
    str(State.NEVER_REFRESHED),
    str(State.STALE),
    PENDING,
    str(State.FRESH),
)


@dataclass(frozen=True, slots=True)
class ViewRow:
    """A view's row, as of its last observation.

    Args:
        view: Its name.
        state: Its state, :data:`PENDING` or :data:`PLAIN`.
        reasons: Why, as ``{"code", "message"}``.
        behind: Its lag; ``None`` if it could not be read.
        refresh_id: The recorded refresh.
        refreshed_at: When that was published, ISO 8601.
        mode: Its mode.
        rows_written: Rows that it wrote.
        rows: Rows that the view has; ``None`` if its storage table's metadata does not say.
        last: The reasons, interval and checks of the refresh, see :func:`airflow_mv.plugin.messages.said`.
        strategy: ``full`` or ``incremental``.
        interval_column: The column of its intervals, if it has one.
        tables: Its base tables, each with whether rows of it have changed since.
        pointers: The catalog's pointers that determine the state; ``None`` if they do not determine it completely.
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
    last: Mapping[str, Any] | None = None
    strategy: str | None = None
    interval_column: str | None = None
    tables: tuple[tuple[str, bool], ...] = ()
    pointers: Mapping[Identifier, str] | None = None

    def lag(self, now: datetime) -> dict[str, Any]:
        """Return the lag as of a time: it grows while the row stays the same."""
        since = self.behind.since if self.behind else None
        return {
            "seconds": self.behind.seconds(now) if self.behind else None,
            "since": since.isoformat() if since else None,
            "exact": self.behind.exact if self.behind else False,
        }

    def to_dict(self, now: datetime | None = None) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "view": str(self.view),
            "name": self.view.name,
            "namespace": ".".join((self.view.catalog, *self.view.namespace)),
            "state": self.state,
            "reasons": list(self.reasons),
            "lag": self.lag(now or datetime.now(UTC)),
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


def rows_of(catalog: MaterializedViewCatalog, views: Iterable[Identifier]) -> Iterator[ViewRow]:
    """Return the row of each view. An error of a view is in its row.

    Args:
        catalog: Where they are.
        views: Their names.

    Raises:
        CatalogUnavailableError: The catalog does not answer: the next views would fail, too.
    """
    for result in observe_each(catalog, views, row_of, plain=_plain):
        if isinstance(result.error, CatalogUnavailableError):
            raise result.error
        yield result.value or _unreadable(result.item, str(result.error))


def _plain(view: LoadedView) -> ViewRow:
    return ViewRow(view.identifier, PLAIN, pointers={view.identifier: view.metadata_location})


def row_of(observation: Observation) -> ViewRow:
    """Return the row of an observed view."""
    record = observation.record
    freshness = observation.freshness
    return ViewRow(
        view=observation.view.identifier,
        state=str(freshness.state),
        reasons=tuple(_document(reason) for reason in freshness.reasons),
        behind=lag(observation),
        refresh_id=record.refresh_id if record else None,
        refreshed_at=timestamp(record.refreshed_at_ms) if record else None,
        mode=record.mode if record else None,
        rows_written=record.rows_written if record else None,
        rows=observation.storage.table.rows_at(observation.storage.rows_snapshot) if record else None,
        last=_last(record) if record else None,
        strategy=observation.view.materialized.refresh_strategy,
        interval_column=column_of(observation),
        tables=tuple((change.identifier, change.changed) for change in freshness.base_tables),
        pointers=observation.pointers,
    )


def _last(record: RefreshRecord) -> dict[str, Any]:
    interval = record.interval.interval.to_dict() if record.interval else None
    return said({"reasons": record.reasons, "checks": record.checks, "interval": interval})


def _unreadable(view: Identifier, why: str) -> ViewRow:
    return ViewRow(view, str(State.UNKNOWN), (_document(Reason(Code.VIEW_UNREADABLE, why)),))


def _document(reason: Reason) -> dict[str, str]:
    return {"code": str(reason.code), "message": harmless(reason.message)}
