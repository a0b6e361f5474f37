# SPDX-License-Identifier: Apache-2.0
"""If file statistics prove that changes of base tables do not affect the interval, Spark is not started."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.types import StringType

from airflow_mv.common.file_statistics import FileStatistics
from airflow_mv.common.status import status
from airflow_mv.core.freshness.state import State
from airflow_mv.core.refresh import RefreshOptions, plan_refresh
from airflow_mv.core.spec.interval import Span
from airflow_mv.core.spec.reasons import Code, Mode
from tests.core.refresh.intervals.support import SALES, VIEW, Days, days, days_lake, sold


@pytest.fixture
def lake(sqlite_uri: str, warehouse: Path) -> Iterator[Days]:
    """A view by days with two days, refreshed."""
    with days_lake(sqlite_uri, warehouse, "pointed") as made:
        made.sell((1, 10), (2, 20))
        yield made


def mode(lake: Days, sql: str, first: int = 1, after: int = 2) -> Mode:
    """The mode of a refresh of some days of a view after a row of the third day was added."""
    view = lake.view("other", sql, properties={"airflow-mv.interval-column": "day"})
    lake.refresh(view)
    lake.sell((3, 30))
    return plan_refresh(lake.catalog, view, RefreshOptions(interval=days(first, after), statistics=FileStatistics)).mode


def test_an_unaffected_day_is_recorded_without_a_job(lake: Days) -> None:
    """The record then has the newest snapshots for this day, and the next refresh needs no proof."""
    lake.refresh(VIEW)
    lake.sell((3, 30))
    jobs = len(lake.stager.refreshes)

    result = lake.refresh_days(1, 3)

    assert (str(result.mode), result.reasons[-1].code) == ("fast-forward", Code.FILTERED_OUT)
    assert len(lake.stager.refreshes) == jobs
    assert status(lake.catalog, VIEW, interval=days(1, 3)).state == State.FRESH
    assert lake.refresh_days(1, 3).outcome == "fresh"
    assert str(lake.refresh_days(3, 4).mode) == "replace-interval"
    assert lake.stored() == lake.recomputed()


def test_a_daily_backfill_of_a_table_with_daily_appends_computes_each_day_once(lake: Days) -> None:
    """Earlier days are fast-forwarded without Spark, and the record keeps one interval."""
    lake.refresh_days(1, 3)
    for number in range(3, 6):
        lake.sell((number, number))
        modes = [str(lake.refresh_days(day, day + 1).mode) for day in range(1, number + 1)]
        assert modes == ["fast-forward"] * (number - 1) + ["replace-interval"]

    state = lake.storage(VIEW).state
    assert state is not None
    assert len(state.current.intervals) == 1
    assert lake.stored() == lake.recomputed()


def test_a_day_with_added_rows_is_computed(lake: Days) -> None:
    """One row in one file is enough."""
    lake.refresh(VIEW)
    lake.sell((3, 30))
    lake.sell((4, 1), (1, 1))

    assert str(lake.refresh_days(1, 2).mode) == "replace-interval"
    assert lake.stored()[1] == lake.recomputed()[1]


def test_a_day_is_computed_after_rows_were_removed(lake: Days) -> None:
    """Statistics of the remaining files do not describe the removed rows."""
    lake.refresh(VIEW)
    lake.correct((2, 20))

    assert str(lake.refresh_days(1, 2).mode) == "replace-interval"
    assert 1 not in lake.stored()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT day, amount FROM sales.sold",
        "SELECT DISTINCT day FROM sales.sold WHERE amount > 0",
        "SELECT d AS day, n FROM (SELECT day AS d, count(*) AS n FROM sales.sold GROUP BY day HAVING count(*) > 0) s",
        "WITH s AS (SELECT day, region FROM sales.sold) SELECT day, count(*) AS n FROM s GROUP BY day, region",
        "SELECT day, amount FROM sales.sold UNION ALL SELECT day, -amount FROM sales.sold",
        "SELECT a.day, b.amount FROM sales.sold a JOIN sales.sold b ON a.day = b.day AND b.day < DATE'2024-06-03'",
    ],
)
def test_queries_that_return_the_base_table_s_column(lake: Days, sql: str) -> None:
    """The condition is pushed through filters, groups by the column, unions, and inner joins."""
    assert mode(lake, sql) == Mode.FAST_FORWARD
    assert (
        plan_refresh(lake.catalog, "sales.other", RefreshOptions(interval=days(3, 4), statistics=FileStatistics)).mode
        != Mode.FAST_FORWARD
    )


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT day, sum(amount) OVER (ORDER BY day) AS so_far FROM sales.sold",
        "SELECT min(day) AS day, region FROM sales.sold GROUP BY region",
        "SELECT day, count(*) AS n FROM sales.sold GROUP BY ROLLUP (day)",
        "SELECT day, (SELECT max(amount) FROM sales.sold) AS most FROM sales.sold",
        "SELECT CAST(day + INTERVAL 1 MONTH AS DATE) AS day FROM sales.sold",
        "SELECT CASE WHEN amount > 5 THEN day END AS day FROM sales.sold",
        "SELECT a.day, b.amount FROM sales.sold a LEFT JOIN sales.sold b ON a.amount < b.amount",
        "SELECT a.day, b.amount FROM sales.sold a JOIN sales.sold b ON a.amount < b.amount",
        "SELECT DATE'2024-06-01' AS day, count(*) AS n FROM sales.sold",
    ],
)
def test_queries_in_which_rows_of_other_days_may_matter(lake: Days, sql: str) -> None:
    """They are computed, because nothing is proven."""
    assert mode(lake, sql) == Mode.REPLACE_INTERVAL


def test_a_day_is_computed_after_a_change_of_the_schema(lake: Days) -> None:
    """Unchanged files may be read differently."""
    lake.refresh(VIEW)
    with lake.sold.update_schema() as update:
        update.add_column("more", StringType())
    table = lake.sold
    table.append(sold([(3, 1)]).append_column("more", pa.array(["x"])))

    assert str(lake.refresh_days(1, 2).mode) == "replace-interval"


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("us", tz="UTC")])
def test_timestamps_are_compared_to_the_microsecond(lake: Days, kind: pa.DataType) -> None:
    """With and without a time zone."""
    schema = pa.schema([("ts", kind), ("amount", pa.int64())])
    start = datetime(2024, 6, 1, 10, tzinfo=UTC)
    lake.iceberg.create_table("sales.at", schema=schema)
    view = lake.view("hourly", "SELECT ts, amount FROM sales.at", properties={"airflow-mv.interval-column": "ts"})

    def sell(moment: datetime) -> None:
        value = moment if kind.tz else moment.replace(tzinfo=None)
        lake.load("at").append(pa.Table.from_pylist([{"ts": value, "amount": 1}], schema))

    def planned(moment: datetime) -> Mode:
        hour = Span(moment, moment + timedelta(hours=1))
        return plan_refresh(lake.catalog, view, RefreshOptions(interval=hour, statistics=FileStatistics)).mode

    sell(start)
    lake.refresh(view)
    sell(start + timedelta(hours=1, microseconds=-1))
    assert (planned(start), planned(start + timedelta(hours=1))) == (Mode.REPLACE_INTERVAL, Mode.FAST_FORWARD)
    lake.refresh(view)
    sell(start + timedelta(hours=1))
    assert (planned(start), planned(start + timedelta(hours=1))) == (Mode.FAST_FORWARD, Mode.REPLACE_INTERVAL)


def test_a_day_is_computed_after_a_change_of_another_table(lake: Days) -> None:
    """Its rows have no interval column."""
    lake.iceberg.create_table("sales.names", schema=SALES)
    view = lake.view(
        "named",
        "SELECT s.day, n.region FROM sales.sold s JOIN sales.names n ON s.region = n.region",
        properties={"airflow-mv.interval-column": "day"},
    )
    lake.refresh(view)
    lake.sell((3, 1))
    first = plan_refresh(lake.catalog, view, RefreshOptions(interval=days(1, 2), statistics=FileStatistics)).mode
    lake.load("names").append(sold([(9, 1)]))
    then = plan_refresh(lake.catalog, view, RefreshOptions(interval=days(1, 2), statistics=FileStatistics)).mode

    assert (first, then) == (Mode.FAST_FORWARD, Mode.REPLACE_INTERVAL)
