# SPDX-License-Identifier: Apache-2.0
"""Lag and pending changes of views whose intervals were refreshed separately."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_mv.common.status import lag
from airflow_mv.core.freshness.observe import Observation, observe
from airflow_mv.extras.fleet.readiness import Readiness, readiness
from airflow_mv.extras.pending.changes import pending_changes
from tests.core.refresh.intervals.support import VIEW, Days, days, days_lake

HOUR = timedelta(hours=1)


@pytest.fixture
def lake(sqlite_uri: str, warehouse: Path) -> Iterator[Days]:
    """Day 2 was refreshed after a commit that the rest of the view lacks."""
    with days_lake(sqlite_uri, warehouse, "pointed") as made:
        made.sell((1, 10), (2, 20))
        made.refresh(VIEW)
        made.sell((1, 1), (2, 2))
        made.refresh_days(2, 3)
        yield made


def seen(lake: Days, *interval: int) -> Observation:
    return observe(lake.catalog, VIEW, span=days(*interval) if interval else None)


def ready(rows: Observation, max_staleness: timedelta | None = None, *, now: datetime | None = None) -> Readiness:
    return readiness(rows.freshness.state, lag(rows), max_staleness, now=now)


def committed(lake: Days) -> datetime:
    snapshot = lake.sold.current_snapshot()
    assert snapshot is not None
    return datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)


def test_an_interval_has_its_own_lag(lake: Days) -> None:
    """A report about yesterday does not need to wait for earlier days."""
    assert lag(seen(lake, 2, 3)).seconds() == 0
    assert ready(seen(lake, 2, 3)) == Readiness.FRESH
    for rows in (seen(lake, 1, 2), seen(lake, 1, 3), seen(lake)):
        assert (lag(rows).since, lag(rows).exact) == (committed(lake), True)
        assert ready(rows, HOUR) == Readiness.WITHIN_GRACE
        assert ready(rows, HOUR, now=datetime.now(UTC) + 2 * HOUR) == Readiness.STALE


def test_the_lag_of_a_view_is_that_of_its_oldest_rows(lake: Days) -> None:
    """It does not matter in which interval they are."""
    first = committed(lake)
    time.sleep(0.01)
    lake.sell((2, 1))
    assert lag(seen(lake, 2, 3)).since == committed(lake)
    assert lag(seen(lake)).since == first


def test_rows_that_were_never_computed_have_no_grace(sqlite_uri: str, warehouse: Path) -> None:
    """The lag is that of the refreshed intervals; since when the rest is missing is unknown."""
    with days_lake(sqlite_uri, warehouse, "pointed") as lake:
        lake.sell((1, 10), (2, 20))
        lake.refresh_days(2, 3)
        lake.sell((2, 2))
        behind = lag(seen(lake))
        assert (behind.since, behind.exact) == (committed(lake), False)
        assert ready(seen(lake), HOUR) == Readiness.STALE
        assert ready(seen(lake, 2, 3), HOUR) == Readiness.WITHIN_GRACE
        assert ready(seen(lake, 1, 2), HOUR) == Readiness.NEVER


def test_refreshing_intervals_is_not_a_pending_change(lake: Days) -> None:
    """The rest is as stale as before; an event for each interval would start a loop."""
    before = pending_changes(observe(lake.catalog, VIEW))
    assert before is not None
    lake.refresh_days(4, 5)
    after = pending_changes(observe(lake.catalog, VIEW))
    assert after is not None
    assert after.mark == before.mark
