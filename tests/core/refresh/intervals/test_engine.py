# SPDX-License-Identifier: Apache-2.0
"""Intervals with real Spark: which files are rewritten, how literals are read, what verify proves."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import StaticTable

from airflow_mv.core.catalog import Layout
from airflow_mv.core.freshness.changes import ends_of_commits
from airflow_mv.core.freshness.state import State
from airflow_mv.core.script import REFRESH_ID_KEY, Outcome, Script
from airflow_mv.core.spec.interval import Span
from airflow_mv.core.spec.table_metadata import ancestors
from airflow_mv.extras.fleet.coverage import Cover, coverage
from airflow_mv.extras.history.rollback import rollback
from airflow_mv.extras.history.time_travel import TimeTravel
from airflow_mv.extras.maintenance.orphans import maintain
from airflow_mv.extras.maintenance.verify import verify
from airflow_mv.extras.read import readable
from tests.builders import LAYOUTS
from tests.cli.support import call
from tests.engine.support import Lake, no_spark

BY_DAY = "SELECT day, sum(amount) AS amount FROM {ns}.sold GROUP BY day"
BOTH: Any = pytest.mark.parametrize("layout", LAYOUTS)


def span(start: str, end: str, column: str | None = None) -> Span:
    """A time range from texts in UTC."""
    first, after = (datetime.fromisoformat(text).replace(tzinfo=UTC) for text in (start, end))
    return Span(first, after, column)


def sold(lake: Lake, *days: int, amount: int = 1) -> None:
    """Append rows for some days of June in one commit."""
    lake.insert("sold", ", ".join(f"('2024-06-{day:02}', {amount})" for day in days))


def files(lake: Lake, name: str = "daily") -> dict[str, set[str]]:
    """The paths of the data files of the stored rows, by partition."""
    storage = lake.catalog.load_storage(lake.view(name))
    found: dict[str, set[str]] = {}
    for task in StaticTable.from_metadata(storage.location).scan(snapshot_id=storage.rows_snapshot).plan_files():
        found.setdefault(str(task.file.partition), set()).add(task.file.file_path)
    return found


def stored(lake: Lake, name: str = "daily") -> list[tuple[Any, ...]]:
    """The stored rows, sorted."""
    storage = lake.catalog.load_storage(lake.view(name))
    table = StaticTable.from_metadata(storage.location).scan(snapshot_id=storage.rows_snapshot).to_arrow()
    return sorted(tuple(str(value) for value in row.values()) for row in table.to_pylist())


@BOTH
def test_files_of_other_partitions_are_not_rewritten(spark_lake: Lake, layout: Layout) -> None:
    """A backfill of a day costs a day."""
    lake = spark_lake
    lake.table("sold", "day date, amount bigint")
    sold(lake, 1, 2, 3, 4)
    properties = {"airflow-mv.interval-column": "day"}
    lake.create("daily", BY_DAY, layout=layout, partition_by=("day",), properties=properties, time_travel=True)
    first = lake.refresh("daily")
    before, head = files(lake), lake.catalog.load_storage(lake.view("daily")).rows_snapshot
    sold(lake, 1, 2, 3, 4, amount=10)

    result = lake.refresh("daily", interval=span("2024-06-02", "2024-06-04"))

    after = files(lake)
    assert {key for key in before if before[key] == after[key]} == {key for key in before if _day(key) in ("01", "04")}
    assert not any(before[key] & after[key] for key in before if _day(key) in ("02", "03"))
    assert (result.rows_written, str(result.mode)) == (2, "replace-interval")
    assert [row[1] for row in stored(lake)] == ["1", "11", "11", "1"]
    assert verify(lake.catalog, lake("daily"), session=lambda: lake.spark).equal
    # Spark has deleted whole files in a commit of its own, whose summary does not name the refresh.
    storage = lake.catalog.load_storage(lake.view("daily"))
    line = [*ancestors(storage.table, storage.rows_snapshot)][::-1]
    assert (line[-2].operation, REFRESH_ID_KEY in line[-2].summary) == ("delete", False)
    assert ends_of_commits(line) >= {head, storage.rows_snapshot}
    assert line[-2].snapshot_id not in ends_of_commits(line)
    # History, time travel, maintenance and rollback work as for full refreshes.
    assert readable(lake.catalog, lake("daily"), TimeTravel(refresh_id=first.refresh_id)).record.intervals == ()
    maintain(lake.catalog, lake("daily"))
    rollback(lake.catalog, lake("daily"), str(first.refresh_id))
    assert [row[1] for row in stored(lake)] == ["1", "1", "1", "1"]
    rollback(lake.catalog, lake("daily"), str(result.refresh_id))
    assert verify(lake.catalog, lake("daily"), session=lambda: lake.spark).equal
    assert lake.refresh("daily", interval=span("2024-06-03", "2024-06-04"), stager=no_spark).outcome == "fresh"


def _day(partition: str) -> str:
    """The day of the month of a partition, which pyiceberg shows as days since 1970."""
    number = int("".join(filter(str.isdigit, partition.partition("[")[2])))
    return f"{number - 19874:02}"


@pytest.mark.parametrize("layout", [pytest.param("pointed", marks=pytest.mark.slow), "registered"])
def test_removed_rows_are_deleted_and_an_interval_without_rows_is_recorded(spark_lake: Lake, layout: Layout) -> None:
    """An empty result is published, and refreshing it again is a no-op."""
    lake = spark_lake
    lake.table("sold", "day date, amount bigint")
    sold(lake, 1, 2)
    lake.create("daily", BY_DAY, layout=layout)
    lake.refresh("daily")
    lake.run("DELETE FROM {ns}.sold WHERE day = DATE'2024-06-02'")
    june = span("2024-06-02", "2024-06-03", "day")

    assert lake.refresh("daily", interval=june).outcome == "refreshed"
    assert [row[0] for row in stored(lake)] == ["2024-06-01"]
    assert lake.refresh("daily", interval=june, stager=no_spark).outcome == "fresh"
    later = span("2024-07-01", "2024-07-02", "day")
    assert lake.refresh("daily", interval=later, full=True).outcome == "refreshed"
    assert verify(lake.catalog, lake("daily"), session=lambda: lake.spark).equal


@pytest.mark.parametrize("layout", ["pointed", pytest.param("registered", marks=pytest.mark.slow)])
def test_an_interval_that_lost_a_race_publishes_the_rows_that_its_job_staged(spark_lake: Lake, layout: Layout) -> None:
    """The second job reads the first one's staged rows, and no base table."""
    lake = spark_lake
    lake.table("sold", "day date, amount bigint")
    sold(lake, 1, 2, 3)
    lake.create("daily", BY_DAY, layout=layout, properties={"airflow-mv.interval-column": "day"})
    others = [lambda: lake.refresh("daily", interval=span("2024-06-01", "2024-06-02"))]

    def interrupted(script: Script) -> Outcome:
        outcome = lake.stager(script)
        while others:
            others.pop()()
        return outcome

    result = lake.refresh("daily", interval=span("2024-06-02", "2024-06-04"), stager=interrupted)

    assert result.outcome == "refreshed"
    assert "sold" not in " ".join(lake.scripts[-1].statements)
    assert [row[0] for row in stored(lake)] == ["2024-06-01", "2024-06-02", "2024-06-03"]
    assert verify(lake.catalog, lake("daily"), session=lambda: lake.spark).equal


@pytest.mark.parametrize("kind", [pytest.param("timestamp", marks=pytest.mark.slow), "timestamptz"])
def test_timestamps_are_compared_to_the_microsecond_in_utc_in_any_session_time_zone(
    spark_lake: Lake, kind: str
) -> None:
    """The last microsecond before the end is included, the end is not."""
    lake = spark_lake
    lake.table("sold", f"ts {kind}, amount bigint")
    zone = "+00" if kind == "timestamptz" else ""
    times = ("2024-06-01 09:59:59.999999", "2024-06-01 10:00:00", "2024-06-01 10:59:59.999999", "2024-06-01 11:00:00")
    lake.insert("sold", ", ".join(f"('{text}{zone}', 1)" for text in times), f"(NULL, 1), ('{times[0]}{zone}', 1)")
    lake.create("daily", "SELECT ts, count(*) AS sales FROM {ns}.sold GROUP BY ts", partition_by=("hours(ts)",))
    lake.spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        lake.refresh("daily", interval=span("2024-06-01T10:00", "2024-06-01T11:00", "ts"))
    finally:
        lake.spark.conf.set("spark.sql.session.timeZone", "UTC")

    assert [row[0].partition("+")[0] for row in stored(lake)] == [times[1], times[2]]
    assert verify(lake.catalog, lake("daily"), session=lambda: lake.spark).equal
    lake.refresh("daily")
    assert len(stored(lake)) == 5


def test_verify_finds_a_row_outside_of_all_intervals(spark_lake: Lake) -> None:
    """A view that was refreshed only by intervals has no other rows."""
    lake = spark_lake
    lake.table("sold", "day date, amount bigint")
    sold(lake, 1, 2)
    lake.create("daily", BY_DAY, layout="registered", properties={"airflow-mv.interval-column": "day"})
    lake.refresh("daily", interval=span("2024-06-01", "2024-06-02"))
    assert verify(lake.catalog, lake("daily"), session=lambda: lake.spark).equal
    sold(lake, 1)

    assert verify(lake.catalog, lake("daily"), session=lambda: lake.spark).equal  # at the recorded snapshots
    assert lake.status("daily").state == State.STALE


def test_the_command_line_plans_refreshes_and_reports_intervals(spark_lake: Lake, tmp_path: Path) -> None:
    """plan lists the rows that a backfill replaces, refresh replaces them, status reports the interval's state."""
    lake = spark_lake
    lake.table("sold", "day date, amount bigint")
    sold(lake, 1, 2, 3)
    lake.create("daily", BY_DAY, layout="pointed")
    view = lake("daily")
    days = ("--interval", "2024-06-01", "2024-06-03")

    column = ("--interval-column", "day")
    refused = call("plan", view, *days)
    planned = call("plan", view, *days, *column)
    document = call("plan", view, *days, *column, "--json").json
    stale = call("status", view, *days, *column, "--check")
    done = call("refresh", view, *days, *column, "--json").json[0]
    fresh = call("status", view, *days, *column, "--check", "--json")
    history = call("history", view)

    assert (refused.code, "these columns are suitable: day" in refused.error) == (1, True)
    assert "replace-interval  day in [2024-06-01T00:00:00+00:00, 2024-06-03T00:00:00+00:00)" in planned.stdout
    assert "DELETE FROM" in planned.stdout
    assert document["interval"] == done["interval"] == fresh.json[0]["interval"]
    assert (stale.code, fresh.code) == (3, 0)
    assert (done["outcome"], done["rows_written"]) == ("refreshed", 2)
    assert fresh.json[0]["intervals"][0]["fresh"] is True
    assert "2024-06-01T00:00:00 to 2024-06-03T00:00:00" in history.stdout
    assert call("status", view, *column).code == 2


def test_days_of_another_zone_are_computed_from_the_files_of_their_hours(
    spark_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Late rows make their days stale, on the longest day too, and Iceberg skips the files of other days."""
    lake = spark_lake
    lake.spark.conf.set("spark.sql.session.timeZone", "UTC")
    lake.run("CREATE TABLE {ns}.events (at timestamp, n int) USING iceberg PARTITIONED BY (days(at))")
    day = "to_date(from_utc_timestamp(at, 'Europe/Berlin'))"
    sql = f"SELECT {day} AS day, count(*) AS n FROM (SELECT at FROM {{ns}}.events WHERE n > 0) e GROUP BY {day}"
    for number in range(20, 31):
        hours = ("22:00:00", "23:30:00") if number > 26 else ("21:00:00", "21:59:59")
        values = ", ".join(f"(TIMESTAMP '2024-10-{number} {hour}', 1)" for hour in ("00:30:00", *hours))
        lake.run(f"INSERT INTO {{ns}}.events VALUES {values}")
    lake.create("local", sql, properties={"airflow-mv.interval-column": "day"})
    lake.refresh("local", interval=span("2024-10-20", "2024-11-01"))
    late = "(TIMESTAMP '2024-10-26 22:00:00', 1), (TIMESTAMP '2024-10-27 22:59:59', 1)"
    for values in (late, "(TIMESTAMP '2024-10-21 22:30:00', 1)"):
        lake.run(f"INSERT INTO {{ns}}.events VALUES {values}")

    found = coverage(lake.catalog, lake("local"))
    stale = [item for item in found.ranges if item.state == Cover.STALE]
    assert [(item.start.day, item.count) for item in stale] == [(22, 1), (27, 1)], found

    for item in stale:
        lake.refresh("local", interval=Span(item.start, item.end))
    hours = "`at` >= TIMESTAMP_NTZ '2024-10-26 22:00:00' AND `at` < TIMESTAMP_NTZ '2024-10-27 23:00:00'"
    assert hours in str(lake.scripts[-1])
    wanted = sorted(tuple(map(str, row)) for row in lake.sql(sql).collect())
    assert stored(lake, "local") == wanted
    assert str(coverage(lake.catalog, lake("local"))) == "12 of 12 days fresh"
    monkeypatch.setattr("airflow_mv.core.catalog.manifest_changes.MAX_MANIFESTS", 1)
    assert str(coverage(lake.catalog, lake("local"))) == "12 of 12 days fresh"  # by the bounds of the partitions
