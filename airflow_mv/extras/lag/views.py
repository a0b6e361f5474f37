# SPDX-License-Identifier: Apache-2.0
"""Read from metadata what a decision needs: targets, chains, present and worst lag, and learned seconds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Literal

from airflow_mv.common.each import ItemResult
from airflow_mv.common.status import lag, observe_each
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.catalog.layouts import readable_refreshes
from airflow_mv.core.freshness.observe import Observation
from airflow_mv.core.freshness.state import State
from airflow_mv.core.refresh.inputs import load_tables
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import RefreshRecord
from airflow_mv.core.spec.properties import DOWNSTREAM, TARGET_LAG_PROPERTY, target_lag_of
from airflow_mv.core.spec.table_metadata import TableMetadata, snapshots_between
from airflow_mv.core.spec.times import from_ms
from airflow_mv.extras.lag.decide import ViewLag

#: The period of which the worst lag is reported.
WORST_OF = timedelta(days=7)
#: The number of refreshes whose median is the expected time of the next one, and the time without any.
_LEARNED, _UNKNOWN_SECONDS = 9, 30.0
#: Modes of refreshes that ran no job.
_WITHOUT_JOB = frozenset({"noop", "fast-forward"})


@dataclass(frozen=True, slots=True)
class LagReport:
    """The lag of a view.

    Args:
        target: Its target lag, ``downstream``, or ``None`` without one.
        present: Its lag now, in seconds; ``None``: unknown.
        worst: The most seconds that it was late in the last seven days, now included, as far as refreshes and
            snapshots are recorded; ``None``: unknown.
        since: Time of the first base commit that it does not contain.
        reads: The materialized views that it reads.
        seconds: How long a refresh is expected to take: the median of its last ones.
    """

    view: Identifier
    target: timedelta | Literal["downstream"] | None
    state: State
    present: float | None
    worst: float | None
    since: datetime | None
    reads: tuple[Identifier, ...]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return an item of the document of ``airflow-mv lag --json``."""
        target = self.target.total_seconds() if isinstance(self.target, timedelta) else self.target
        kept = self.worst is None or not isinstance(self.target, timedelta) or self.worst <= self.target.total_seconds()
        return {
            "view": str(self.view),
            "target_seconds": target if target != DOWNSTREAM else None,
            "downstream": target == DOWNSTREAM,
            "state": str(self.state),
            "lag_seconds": self.present,
            "worst_seconds": self.worst,
            "kept": kept,
            "expected_seconds": round(self.seconds, 3),
        }

    def for_decision(self, now: datetime) -> ViewLag:
        """Return what a decision needs. A view whose lag is unknown is due at once: it lacks rows of its definition."""
        target = self.target if isinstance(self.target, timedelta) else None
        since = self.since
        if since is None and self.state != State.FRESH:
            since = now - (target or timedelta(0))
        return ViewLag(self.view, target, since, self.reads, self.seconds)


def lag_reports(
    catalog: MaterializedViewCatalog, views: Sequence[Identifier], now: datetime
) -> Iterator[ItemResult[Identifier, LagReport]]:
    """Report the lag of views, with an error for each that cannot be read. Reads metadata only.

    Args:
        views: Their names.
        now: The current time.
    """
    return observe_each(catalog, views, lambda seen: _report(catalog, seen, now))


def _report(catalog: MaterializedViewCatalog, seen: Observation, now: datetime) -> LagReport:
    view, behind = seen.view, lag(seen)
    target = target_lag_of(view.metadata.properties.get(TARGET_LAG_PROPERTY), view=str(view.identifier))
    records = [item for item in readable_refreshes(view, seen.storage) if item.refreshed_at_ms is not None]
    present = behind.seconds(now)
    past = _past_lags(records, load_tables(catalog, seen.tables), now - WORST_OF)
    return LagReport(
        view.identifier,
        target,
        behind.state,
        present,
        max([*past, *([] if present is None else [present])], default=None),
        behind.since,
        tuple(dict.fromkeys(table.view for table in seen.tables if table.view not in (None, view.identifier))),
        _learned(records, view.metadata.current_version_id),
    )


def _learned(records: Iterable[RefreshRecord], version_id: int) -> float:
    """Return the median of the last refreshes of a definition. A single slow one does not decide."""
    known = [
        record.seconds
        for record in records
        if record.seconds is not None and record.version_id == version_id and record.mode not in _WITHOUT_JOB
    ]
    return statistics.median(known[-_LEARNED:]) if known else _UNKNOWN_SECONDS


def _past_lags(
    records: Sequence[RefreshRecord], tables: Mapping[Identifier, TableMetadata], start: datetime
) -> Iterator[float]:
    """Yield how late a view was just before each of its refreshes since a time.

    A base table's snapshots that have expired, and rows of intervals, are left out.
    """
    by_name = {str(name): table for name, table in tables.items()}
    for before, record in pairwise(records):
        published = from_ms(record.refreshed_at_ms or 0)
        if published < start or record.interval is not None or before.version_id != record.version_id:
            continue
        for name, snapshot in record.snapshots.items():
            old, table = before.snapshots.get(name), by_name.get(name)
            if table is None or old is None or -1 in (old, snapshot):
                continue
            missing = snapshots_between(table, old, snapshot)
            if missing:
                first = min(item.timestamp_ms for item in missing)
                yield max(0.0, round((published - from_ms(first)).total_seconds(), 3))
