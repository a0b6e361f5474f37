# SPDX-License-Identifier: Apache-2.0
"""Refreshing an interval replaces its rows and no others, and the record says which rows are of which snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, cast

import pytest

from airflow_mv.checks import row_count_change
from airflow_mv.common.status import status
from airflow_mv.core.catalog import Layout
from airflow_mv.core.define.create import create
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.freshness.state import State
from airflow_mv.core.refresh import RefreshOptions, plan_refresh
from airflow_mv.core.spec.interval import Span
from airflow_mv.core.spec.materialized_view import RefreshRecord
from airflow_mv.core.spec.reasons import Code
from airflow_mv.errors import ConfigurationError, RefreshRefusedError
from airflow_mv.extras.describe import history
from tests.builders import LAYOUTS
from tests.core.refresh.intervals.support import BY_DAY, VIEW, Days, days, days_lake


@pytest.fixture
def lake(request: pytest.FixtureRequest, sqlite_uri: str, warehouse: Path) -> Iterator[Days]:
    """A view by days."""
    with days_lake(sqlite_uri, warehouse, cast("Layout", getattr(request, "param", "pointed"))) as made:
        yield made


#: The layout matters for staging and publishing; the records are the same in both.
BOTH: Any = pytest.mark.parametrize("lake", LAYOUTS, indirect=True)


def record(lake: Days) -> RefreshRecord:
    """The current refresh record."""
    state = lake.storage(VIEW).state
    assert state is not None
    return state.current


def intervals(lake: Days) -> list[tuple[str, int]]:
    """The recorded intervals and their base snapshots."""
    return [(str(item.interval), item.base_tables[0].snapshot_reference) for item in record(lake).intervals]


@BOTH
def test_the_rows_of_the_interval_are_replaced_and_no_others(lake: Days) -> None:
    """If the base table has changed for other days, they keep their old rows, and the view is stale."""
    lake.sell((1, 10), (2, 20), (3, 30), (0, 99))
    lake.refresh(VIEW)
    lake.sell((1, 1), (2, 2), (3, 3), (0, 4))

    result = lake.refresh_days(2, 3)

    assert (result.outcome, str(result.mode), result.rows_written) == ("refreshed", "replace-interval", 1)
    assert lake.stored() == {1: (1, 10), 2: (2, 22), 3: (1, 30), 0: (1, 99)}
    assert status(lake.catalog, VIEW).state == State.STALE


def test_the_record_keeps_the_full_refresh_and_adds_the_interval(lake: Days) -> None:
    """A partial refresh never claims to be a complete one."""
    first = lake.sell((1, 10), (2, 20))
    lake.refresh(VIEW)
    second = lake.sell((2, 2))

    result = lake.refresh_days(2, 3)

    found = record(lake)
    assert found.snapshots == {"lake.sales.sold": first}
    assert intervals(lake) == [("day in [2024-06-02, 2024-06-03)", second)]
    assert found.intervals[0].refresh_id == found.refresh_id == result.refresh_id
    assert found.interval is not None
    assert str(found.interval.interval) == "day in [2024-06-02, 2024-06-03)"
    assert history(lake.catalog, VIEW)[-1]["interval"] == {
        "column": "day",
        "start": "2024-06-02T00:00:00+00:00",
        "end": "2024-06-03T00:00:00+00:00",
    }


def test_the_history_has_the_snapshots_that_each_refresh_of_an_interval_read(lake: Days) -> None:
    """Also when later refreshes have replaced the rows, and only the log has the refresh."""
    snapshots = [lake.sell((1, 10), (2, 20))]
    lake.refresh(VIEW)
    for day in (1, 2, 1, 1):
        snapshots.append(lake.sell((day, 1)))
        lake.refresh_days(day, day + 1)

    found = history(lake.catalog, VIEW)
    read = [[(table["identifier"], table["snapshot_reference"]) for table in item["base_tables"]] for item in found]
    assert read == [[("lake.sales.sold", str(snapshot))] for snapshot in snapshots]
    assert [item["interval"] is None for item in found] == [True, False, False, False, False]


def test_the_result_for_a_fresh_interval_is_about_the_refresh_of_its_rows(lake: Days) -> None:
    """The current record may be that of another interval, and its base snapshots those of the last whole refresh."""
    first = lake.sell((1, 10), (2, 20), (3, 30))
    whole = lake.refresh(VIEW)
    second = lake.sell((1, 1), (2, 2))
    one = lake.refresh_days(1, 2)
    third = lake.sell((2, 3))
    two = lake.refresh_days(2, 3)

    for day, computed, snapshot in ((1, one, second), (2, two, third)):
        lake.roll_back(snapshot, "sold")
        found = lake.refresh_days(day, day + 1)
        assert (found.outcome, found.refresh_id) == ("fresh", computed.refresh_id)
        assert dict(found.snapshots) == {"lake.sales.sold": snapshot}
    lake.roll_back(first, "sold")
    found = lake.refresh_days(3, 4)
    assert (found.outcome, found.refresh_id) == ("fresh", whole.refresh_id)
    assert dict(found.snapshots) == {"lake.sales.sold": first}


@pytest.mark.parametrize("lake", ["table"], indirect=True)
def test_an_interval_is_not_refreshed_beside_rows_that_no_refresh_has_written(lake: Days) -> None:
    """They would look like rows of the view: somebody wrote them, or the table was adopted with them."""
    lake.sell((1, 10))
    table = lake.load("daily")
    table.append(table.scan().to_arrow().from_pylist([{"orders": 7}], schema=table.schema().as_arrow()))
    with pytest.raises(RefreshRefusedError, match="rows that no refresh has written"):
        lake.refresh_days(1, 2)
    lake.refresh(VIEW)
    assert lake.stored() == {1: (1, 10)}


@BOTH
def test_an_interval_of_a_view_that_was_never_refreshed_leaves_the_rest_uncomputed(lake: Days) -> None:
    """The rest has no snapshot, so a reader that follows the format's rules finds the view stale."""
    lake.sell((1, 10), (2, 20))

    lake.refresh_days(2, 3)

    assert lake.stored() == {2: (1, 20)}
    assert record(lake).snapshots == {"lake.sales.sold": -1}
    found = status(lake.catalog, VIEW)
    assert (found.state, found.reasons[0].code) == (State.STALE, Code.INTERVALS)


def test_an_interval_does_not_make_a_view_of_empty_tables_fresh(lake: Days) -> None:
    """The record has snapshot -1 for rows that were never computed, which must not match an empty base table."""
    lake.refresh_days(2, 3)

    assert status(lake.catalog, VIEW).state == State.STALE
    assert lake.refresh(VIEW).outcome == "refreshed"
    assert status(lake.catalog, VIEW).state == State.FRESH


@BOTH
def test_refreshing_the_same_interval_again_is_a_no_op_without_a_job(lake: Days) -> None:
    """This holds for each interval, and for every part of it."""
    lake.sell((1, 10), (2, 20), (3, 30))
    lake.refresh_days(1, 4)
    jobs = len(lake.stager.refreshes)

    for first, after in ((1, 4), (2, 3), (1, 2)):
        assert lake.refresh_days(first, after).outcome == "fresh"

    assert len(lake.stager.refreshes) == jobs


def test_refreshing_an_interval_of_a_fresh_view_is_a_no_op(lake: Days) -> None:
    """All its intervals are fresh."""
    lake.sell((1, 10), (2, 20))
    lake.refresh(VIEW)

    assert lake.refresh_days(1, 2).outcome == "fresh"


def test_a_compaction_makes_no_interval_stale(lake: Days) -> None:
    """A snapshot that only rewrites files has the same rows."""
    lake.sell((1, 10), (2, 20))
    lake.refresh_days(1, 3)
    lake.compact("sold")

    assert lake.refresh_days(1, 3).outcome == "fresh"
    assert lake.refresh_days(1, 4).outcome == "refreshed"  # day 3 was never computed


@BOTH
def test_a_new_interval_shortens_those_that_it_overlaps(lake: Days) -> None:
    """Each row is of exactly one consistent snapshot set."""
    one = lake.sell((1, 1), (2, 1), (3, 1), (4, 1), (5, 1))
    lake.refresh_days(1, 6)
    two = lake.sell((1, 1), (2, 1), (3, 1), (4, 1), (5, 1))
    lake.refresh_days(3, 4)

    assert intervals(lake) == [
        ("day in [2024-06-01, 2024-06-03)", one),
        ("day in [2024-06-03, 2024-06-04)", two),
        ("day in [2024-06-04, 2024-06-06)", one),
    ]
    assert lake.stored() == {1: (1, 1), 2: (1, 1), 3: (2, 2), 4: (1, 1), 5: (1, 1)}


def test_adjacent_intervals_with_the_same_snapshots_are_merged(lake: Days) -> None:
    """A backfill of thirty days leaves one entry, in any order of its runs."""
    head = lake.sell(*((n, n) for n in range(1, 8)))

    for n in (3, 1, 7, 2, 5, 4, 6):
        lake.refresh_days(n, n + 1)

    assert intervals(lake) == [("day in [2024-06-01, 2024-06-08)", head)]
    assert lake.stored() == lake.recomputed()


@BOTH
def test_a_full_refresh_removes_all_intervals(lake: Days) -> None:
    """All rows are of one consistent snapshot set again."""
    lake.sell((1, 10), (2, 20))
    lake.refresh_days(2, 3)

    lake.refresh(VIEW)

    assert record(lake).intervals == ()
    assert not record(lake).only_intervals
    assert status(lake.catalog, VIEW).state == State.FRESH
    assert lake.stored() == lake.recomputed()


@BOTH
def test_an_interval_at_the_snapshots_of_the_full_refresh_needs_no_entry(lake: Days) -> None:
    """Forced, while nothing has moved: the rows are the same."""
    lake.sell((1, 10), (2, 20))
    lake.refresh(VIEW)

    result = lake.refresh_days(1, 2, full=True)

    assert (result.outcome, str(result.mode)) == ("refreshed", "replace-interval")
    assert record(lake).intervals == ()
    assert status(lake.catalog, VIEW).state == State.FRESH


@BOTH
def test_a_view_is_stale_if_an_interval_has_rows_that_were_rolled_back(lake: Days) -> None:
    """The full refresh is at the current snapshot again, the interval is at the one that was rolled back."""
    first = lake.sell((1, 10), (2, 20))
    lake.refresh(VIEW)
    lake.sell((2, 2))
    lake.refresh_days(2, 3)
    lake.roll_back(first, "sold")

    found = status(lake.catalog, VIEW)

    assert (found.state, found.reasons[0].code) == (State.STALE, Code.ROLLED_BACK)
    assert lake.refresh_days(1, 2).outcome == "fresh"
    assert lake.refresh_days(2, 3).outcome == "refreshed"
    assert status(lake.catalog, VIEW).state == State.FRESH
    assert lake.stored() == lake.recomputed()


@BOTH
def test_a_view_whose_parts_differ_only_by_compactions_is_fast_forwarded(lake: Days) -> None:
    """The fast-forward of the whole view records one consistent snapshot set for all rows."""
    lake.sell((1, 10), (2, 20))
    lake.refresh(VIEW)
    lake.compact("sold")
    lake.refresh_days(2, 3, full=True)
    assert len(record(lake).intervals) == 1

    assert str(lake.refresh(VIEW).mode) == "fast-forward"
    assert record(lake).intervals == ()
    assert lake.refresh(VIEW).outcome == "fresh"


def test_a_column_that_was_renamed_after_an_interval_was_computed_makes_the_view_invalid(lake: Days) -> None:
    """Also if no whole refresh was recorded."""
    lake.sell((1, 10), (2, 20))
    lake.refresh_days(1, 2)
    with lake.sold.update_schema() as update:
        update.rename_column("amount", "price")

    found = status(lake.catalog, VIEW)
    assert (found.state, found.reasons[0].code) == (State.INVALID, Code.COLUMN_RENAMED)


def test_freshness_can_be_reported_for_an_interval(lake: Days) -> None:
    """A fresh one, a stale one, and one that was never computed."""
    lake.sell((1, 10), (2, 20))
    lake.refresh_days(1, 2)
    lake.refresh_days(2, 3)
    lake.correct((1, 10), (2, 21))
    lake.refresh_days(2, 3)

    states = [status(lake.catalog, VIEW, interval=days(n, n + 1)).state for n in (1, 2, 3)]

    assert states == [State.STALE, State.FRESH, State.NEVER_REFRESHED]
    assert status(lake.catalog, VIEW, interval=days(1, 3)).state == State.STALE


def test_as_of_reads_earlier_base_snapshots_and_does_not_go_back(lake: Days) -> None:
    """Backfilling an older state of an interval that is already newer does nothing."""
    first = lake.sell((1, 10))
    then = moment_of(lake, first)
    second = lake.sell((1, 1), (2, 5))
    lake.refresh_days(1, 2, as_of=then)
    assert intervals(lake) == [("day in [2024-06-01, 2024-06-02)", first)]
    lake.refresh_days(1, 3)
    assert intervals(lake) == [("day in [2024-06-01, 2024-06-03)", second)]

    result = lake.refresh_days(1, 2, as_of=then)

    assert (result.outcome, result.reasons[0].code) == ("fresh", Code.ALREADY_NEWER)
    late = f"the stored rows were computed from lake.sales.sold at {second}, later than {first}"
    assert [reason.message for reason in result.reasons] == [late]
    (why,) = lake.refresh(VIEW, options=RefreshOptions(as_of=then)).reasons
    waiting = f"{late}; older rows keep their contents until a refresh reads later snapshots"
    assert (why.code, why.message) == (Code.ALREADY_NEWER, waiting)


def test_an_incremental_refresh_is_refused_while_intervals_are_recorded(sqlite_uri: str, warehouse: Path) -> None:
    """The rows are of several snapshots, so no single change leads to the new rows. The policy decides."""
    with days_lake(sqlite_uri, warehouse, "pointed", refresh_strategy="incremental") as lake:
        lake.sell((1, 10), (2, 20))
        lake.refresh(VIEW)
        lake.sell((2, 2))
        lake.refresh_days(2, 3)
        lake.sell((3, 3))

        with pytest.raises(RefreshRefusedError, match="different base snapshots"):
            lake.refresh(VIEW, options=RefreshOptions(on_fallback="fail"))
        plan = plan_refresh(lake.catalog, VIEW)

        assert (str(plan.mode), Code.INTERVALS in [reason.code for reason in plan.reasons]) == ("full", True)
        lake.refresh(VIEW)
        lake.sell((3, 3))
        assert Code.INTERVALS not in [reason.code for reason in plan_refresh(lake.catalog, VIEW).reasons]


def test_an_interval_of_another_definition_is_refused(lake: Days) -> None:
    """Its rows would be mixed with those of another query."""
    lake.sell((1, 10))
    lake.refresh(VIEW)
    other = Definition(BY_DAY.replace("count(*)", "count(amount)"), layout=lake.layout)
    create(lake.catalog, lake.catalog.identify(VIEW), other, stager=lake.stager, replace=True)

    with pytest.raises(RefreshRefusedError, match="Refresh the whole view first"):
        lake.refresh("sales.daily", options=RefreshOptions(interval=replace(days(1, 2), column="day")))


def test_intervals_of_two_columns_are_not_combined(lake: Days) -> None:
    """A row could be in one interval of each, and be of neither's snapshots alone."""
    sql = "SELECT day, max(day) AS latest, count(*) AS orders FROM lake.sales.sold GROUP BY day"
    lake.view("both", sql)
    lake.sell((1, 10), (2, 20))
    lake.refresh("sales.both", options=RefreshOptions(interval=with_column("day")))

    with pytest.raises(RefreshRefusedError, match="intervals of another column, day"):
        lake.refresh("sales.both", options=RefreshOptions(interval=with_column("latest")))


@pytest.mark.parametrize(
    ("start", "end", "column", "message"),
    [
        ("2024-06-01", "2024-06-02", "orders", "is of type long; .*these columns are suitable: day"),
        ("2024-06-01", "2024-06-02", "hour", "is not a column of it; .*these columns are suitable: day"),
        ("2024-06-02", "2024-06-02", None, "it is empty"),
        ("2024-06-03", "2024-06-02", None, "it is empty"),
        ("2024-06-01T06:00", "2024-06-02", None, "takes whole days, and 2024-06-01T06:00:00.00:00 is within one"),
    ],
)
def test_an_invalid_interval_is_refused(lake: Days, start: str, end: str, column: str | None, message: str) -> None:
    """The message says what is valid."""
    first, after = (datetime.fromisoformat(text).replace(tzinfo=UTC) for text in (start, end))

    with pytest.raises(ConfigurationError, match=message):
        plan_refresh(lake.catalog, VIEW, RefreshOptions(interval=Span(first, after, column)))


def test_without_an_interval_column_the_view_must_name_one(lake: Days) -> None:
    """The message lists the suitable columns, and names the property."""
    lake.view("plain", BY_DAY)

    with pytest.raises(ConfigurationError, match=r"airflow-mv.interval-column; these columns are suitable: day"):
        lake.refresh("sales.plain", options=RefreshOptions(interval=days(1, 2)))


def test_a_number_of_rows_is_compared_only_if_all_of_the_rows_were_computed_before(lake: Days) -> None:
    """After the backfill of one day the view has the rows of one day, and a month those of one day of it."""

    def compares(interval: Span | None) -> bool:
        plan = plan_refresh(
            lake.catalog, VIEW, RefreshOptions(interval=interval, checks=(row_count_change(at_most_up=1.0),))
        )
        assert plan.script is not None
        assert plan.script.checks is not None
        (check,) = plan.script.checks.checks
        return "no earlier rows" not in check.observed

    lake.sell((1, 10), (2, 20), (3, 30))
    lake.refresh_days(2, 3)
    lake.sell((1, 1), (2, 2), (3, 3))
    assert [compares(rows) for rows in (None, days(1, 4), days(2, 3), days(3, 4))] == [False, False, True, False]
    lake.refresh(VIEW)
    lake.sell((1, 1), (2, 2), (3, 3))
    lake.refresh_days(2, 3)
    lake.sell((1, 1), (2, 2), (3, 3))
    assert all(compares(rows) for rows in (None, days(1, 4), days(2, 3), days(3, 4)))


def test_a_day_is_a_day_of_the_given_time_zone(lake: Days) -> None:
    """Midnight to midnight in Berlin is one day of a DAG in that zone, and the date column has that date."""
    berlin = timezone(timedelta(hours=2))
    span = Span(datetime(2024, 6, 2, tzinfo=berlin), datetime(2024, 6, 3, tzinfo=berlin))

    plan = plan_refresh(lake.catalog, VIEW, RefreshOptions(interval=span))

    assert str(plan.interval) == "day in [2024-06-02, 2024-06-03)"


def with_column(column: str) -> Span:
    """The first day as an interval of a column."""
    return replace(days(1, 2), column=column)


def moment_of(lake: Days, snapshot_id: int) -> datetime:
    """When a snapshot of the base table became current."""
    entry = next(item for item in lake.sold.metadata.snapshot_log if item.snapshot_id == snapshot_id)
    return datetime.fromtimestamp(entry.timestamp_ms / 1000, UTC)
