# SPDX-License-Identifier: Apache-2.0
"""Targets, present and worst lags, and learned seconds, as metadata say them; the command ``lag``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from airflow_mv.core.spec.materialized_view import RefreshRecord
from airflow_mv.core.spec.properties import check_given, target_lag_of
from airflow_mv.errors import ConfigurationError
from airflow_mv.extras.lag.views import _learned, lag_reports
from tests.builders import Lake
from tests.cli.support import call


@pytest.mark.parametrize(
    ("text", "found"),
    [(None, None), ("15 minutes", timedelta(minutes=15)), ("90", timedelta(seconds=90)), ("Downstream", "downstream")],
)
def test_a_target_is_a_length_of_time_or_downstream(text: str | None, found: object) -> None:
    assert target_lag_of(text, view="v") == found


@pytest.mark.parametrize("text", ["0", "soon", "-5 m"])
def test_another_target_is_refused_before_a_view_is_made(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"airflow-mv\.target-lag"):
        check_given({"airflow-mv.target-lag": text}, view="v")


def test_lags_are_those_of_recorded_snapshots_and_commit_times(configured: Lake) -> None:
    """The worst lag is the longest time from a commit to the refresh with it, or to now. The command shows both."""
    lake = configured
    lake.table()
    daily = lake.view(properties={"airflow-mv.target-lag": "15 minutes"})
    total = lake.view("total", "SELECT sum(d.orders) AS n FROM lake.sales.daily d")
    lake.view("north", "SELECT 1 AS one", properties={"airflow-mv.target-lag": "downstream"})
    now = datetime.now(UTC)
    (never,) = (item.get() for item in lag_reports(lake.catalog, [daily], now))
    lake.refresh(daily)
    lake.refresh(total)
    lake.append()
    later = datetime.now(UTC) + timedelta(hours=1)
    low, high = (item.get() for item in lag_reports(lake.catalog, [daily, total], later))
    document = call("lag", "--namespace", "lake.sales", "--json").json
    shown = call("lag", "--namespace", "lake.sales").stdout

    assert (never.state, never.present) == ("never-refreshed", None)
    assert never.for_decision(now).since == now - timedelta(minutes=15)
    assert (low.state, high.state, high.reads) == ("stale", "stale", (daily,))
    assert low.since is not None
    assert low.since == high.since
    assert low.present == low.worst == pytest.approx(3600, abs=60)
    assert low.to_dict()["kept"] is False
    assert {item["view"]: item["target_seconds"] for item in document["views"]}["lake.sales.daily"] == 900
    assert [item["downstream"] for item in document["views"]] == [False, True, False]
    assert [item["view"] for item in document["now"]["waiting"]] == ["lake.sales.daily"]
    assert "0:15:00" in shown
    assert "downstream" in shown
    lake.refresh(daily)
    (fresh,) = (item.get() for item in lag_reports(lake.catalog, [daily], later))
    assert fresh.present == 0
    assert fresh.worst is not None
    assert 0 < fresh.worst < 60


def test_one_slow_refresh_does_not_decide_what_the_next_one_is_expected_to_take() -> None:
    """The median of the last nine that ran a job for this definition."""
    records = [
        RefreshRecord.model_construct(refresh_id="r", version_id=version, base_tables=(), mode=mode, seconds=seconds)
        for version, mode, seconds in [(1, "full", 90.0), (2, "full", 40.0), (2, "merge", 4.0), (2, "merge", 130.0)]
        + [(2, "merge", 5.0)] * 3
        + [(2, "noop", 0.1)] * 9
    ]
    assert _learned(records, 2) == 5.0
    assert _learned(records, 3) == 30.0
