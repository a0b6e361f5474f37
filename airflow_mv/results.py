# SPDX-License-Identifier: Apache-2.0
"""The documents that command line, XCom and logs share."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_mv.observe import Observation
from airflow_mv.plan.freshness import State
from airflow_mv.plan.planner import Mode
from airflow_mv.plan.reasons import Reason, fallback
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.interval import Interval
from airflow_mv.staged_checks import CheckResult


@dataclass(frozen=True, slots=True)
class RefreshResult:
    """What a refresh came to; :meth:`to_dict` is the document of command line and XCom.

    Args:
        view: The view.
        outcome: ``refreshed``, ``fresh``, ``already-committed``, ``superseded`` or ``skipped``.
        mode: The mode that ran.
        reasons: Why that mode.
        refresh_id: The refresh that the stored rows are of; ``None`` where there is none.
        storage_table_location: The storage metadata file that the view names now.
        rows_written: Rows that this refresh wrote.
        seconds: Wall-clock time of all steps.
        snapshots: Snapshot by base table that the refresh read; ``-1`` for an empty table.
        interval: The rows that it was for; ``None`` for the whole view.
        lag_seconds: From the first base commit that this refresh brought in to its publication, by the clocks of the
            two who made them; ``None`` where that is not known.
        checks: What came of the checks of the rows that it published.
    """

    view: Identifier
    outcome: str
    mode: Mode
    reasons: tuple[Reason, ...]
    refresh_id: str | None
    storage_table_location: str
    rows_written: int
    seconds: float
    snapshots: tuple[tuple[str, int], ...] = ()
    interval: Interval | None = None
    lag_seconds: float | None = None
    checks: tuple[CheckResult, ...] = ()

    @property
    def published(self) -> bool:
        """Whether it gave the view's readers something new."""
        return self.outcome in ("refreshed", "already-committed")

    @property
    def fallback(self) -> str | None:
        """Why an incremental view was recomputed in full, or left as it is, against expectation; else ``None``."""
        return fallback(self.reasons)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {
            "view": str(self.view),
            "outcome": self.outcome,
            "mode": str(self.mode),
            "reasons": [reason.to_dict() for reason in self.reasons],
            "fallback": self.fallback,
            "refresh_id": self.refresh_id,
            "storage_table_location": self.storage_table_location,
            "rows_written": self.rows_written,
            "seconds": round(self.seconds, 3),
            "base_tables": dict(self.snapshots),
            "interval": self.interval.to_dict() if self.interval else None,
            "lag_seconds": self.lag_seconds,
            "checks": [result.summary() for result in self.checks],
        }


@dataclass(frozen=True, slots=True)
class ViewStatus:
    """The freshness of a view; :meth:`to_dict` is the document of ``airflow-mv status``."""

    observation: Observation

    @property
    def state(self) -> State:
        """The verdict."""
        return self.observation.freshness.state

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Why."""
        return self.observation.freshness.reasons

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document."""
        record = self.observation.record
        return {
            "view": str(self.observation.view.identifier),
            "state": str(self.state),
            "refresh_id": record.refresh_id if record else None,
            "refreshed_at": timestamp(record.refreshed_at_ms) if record else None,
            "version_id": self.observation.view.metadata.current_version_id,
            "base_tables": [change.to_dict() for change in self.observation.freshness.base_tables],
            "reasons": [reason.to_dict() for reason in self.reasons],
            "interval": self.observation.interval.to_dict() if self.observation.interval else None,
            "intervals": [
                {
                    **item.part.interval.to_dict(),
                    "refresh_id": item.part.refresh_id,
                    "refreshed_at": timestamp(item.part.refreshed_at_ms),
                    "fresh": item.is_fresh,
                }
                for item in self.observation.freshness.parts
                if item.part.interval is not None
            ],
        }


def timestamp(milliseconds: int | None) -> str | None:
    """Return ms since the epoch as ISO 8601 in UTC."""
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()
