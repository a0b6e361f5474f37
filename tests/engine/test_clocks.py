# SPDX-License-Identifier: Apache-2.0
"""Wrong clocks with real Spark: future times in a table, and a driver that is ahead of the store."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_mv.core.catalog import stored_layout, stored_table
from airflow_mv.core.job.driver import run
from airflow_mv.core.spec.materialized_view import latest_ms
from airflow_mv.errors import ClockError, FutureTimeError
from airflow_mv.extras.maintenance.clock import repair_clock
from airflow_mv.extras.spark.session import session_stager
from tests.builders import LAYOUTS, shift_times
from tests.engine.support import Lake

DAILY = "SELECT day, sum(amount) AS amount FROM {ns}.orders GROUP BY day"
HOURS = 7_200_000


@pytest.fixture(params=LAYOUTS)
def home(request: pytest.FixtureRequest, lake: Lake) -> Lake:
    lake.table("orders", "day integer, amount bigint", "(1, 10), (1, 20)", "(2, 30)")
    lake.create("daily", DAILY, layout=request.param)
    lake.refresh("daily")
    lake.insert("orders", "(3, 40)")
    return lake


def shift(home: Lake, milliseconds: int) -> None:
    """Shift the times of the storage table, as if a host with a wrong clock had written them."""
    shift_times(home.catalog.load_storage(home.view("daily")).location, milliseconds)


def document(home: Lake) -> dict[str, Any]:
    view = home.view("daily")
    return stored_table(home.catalog, view, home.catalog.load_storage(view))


def test_i15_spark_refuses_future_times_and_the_error_names_the_repair_command(home: Lake) -> None:
    shift(home, HOURS)
    if stored_layout(home.view("daily")).layout == "registered":
        home.sql(f"REFRESH TABLE {home.view('daily').storage_table.sql()}")  # type: ignore[union-attr]
    with pytest.raises((FutureTimeError, ClockError), match="airflow-mv repair") as caught:
        home.refresh("daily")
    assert "[BUG]" not in str(caught.value)
    assert repair_clock(home.catalog, home("daily")).done
    home.refresh("daily")
    place = home.catalog.load_storage(home.view("daily"))
    reader = home.spark.read.format("iceberg")
    found = reader.load(place.location) if place.name is None else reader.table(place.name.sql())
    assert sorted(tuple(row) for row in found.collect()) == [(1, 30), (2, 30), (3, 40)]


def test_i15_a_driver_that_is_ahead_commits_nothing_to_a_table_of_the_catalog(home: Lake) -> None:
    """The session's clock is correct; the store reports a time two hours earlier."""
    if stored_layout(home.view("daily")).layout == "pointed":
        pytest.skip("there the driver's times are corrected before they are visible")
    before = document(home)
    early = latest_ms(before) - HOURS

    def stager(script: Any) -> Any:
        return run(home.spark, script, report=lambda _: None, store_ms=lambda: early)

    session_stager(home.catalog, home.spark)  # configure the session's catalogs first
    with pytest.raises(ClockError, match=r"driver .* is 7\d\d\d s ahead of the store's clock") as caught:
        home.refresh("daily", stager=stager)
    assert caught.value.retryable
    assert document(home) == before
    home.refresh("daily")
    assert home.status("daily").state == "fresh"
