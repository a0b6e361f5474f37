# SPDX-License-Identifier: Apache-2.0
"""Coverage is what a look at each interval on its own says, however many intervals there are."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_mv.common.file_statistics import FileStatistics
from airflow_mv.common.status import status
from airflow_mv.core.define.create import create
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.freshness.observe import observe
from airflow_mv.core.freshness.state import ObservedTable, PartFreshness, State, assess
from airflow_mv.core.refresh import RefreshOptions, plan_refresh
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.interval import Span
from airflow_mv.core.spec.interval_parts import IntervalPart, after, bounds
from airflow_mv.core.spec.materialized_view import RefreshRecord
from airflow_mv.core.spec.reasons import Mode
from airflow_mv.errors import ConfigurationError
from airflow_mv.extras.fleet.coverage import MAX_COVERED, Cover, Units, count, cover, coverage, unit_number, unit_start
from airflow_mv.extras.fleet.known import with_count
from tests.cli.support import call
from tests.core.refresh.intervals.support import SALES, VIEW, Days, days, days_lake, sold
from tests.core.refresh.intervals.test_parts import DAY, base, interval, record
from tests.engine.support import configure, reload_configuration

#: What a refresh of one interval would do, by the state of the interval.
WOULD_DO = {
    Cover.FRESH: Mode.NOOP,
    Cover.UNAFFECTED: Mode.FAST_FORWARD,
    Cover.STALE: Mode.REPLACE_INTERVAL,
    Cover.NEVER_COMPUTED: Mode.REPLACE_INTERVAL,
}
LAST_YEAR = 9999
steps = st.lists(st.tuples(st.integers(-5, 60), st.integers(1, 30), st.integers(1, 4)), max_size=8)


def recorded(refreshed: list[tuple[int, int, int]], *, only: bool) -> RefreshRecord:
    """The record after refreshes of hours (first, number, snapshot)."""
    found = record(-1 if only else 1, [], **({"only-intervals": True} if only else {}))
    more: dict[str, Any] = {"only-intervals": True} if only else {}
    for number, (first, hours, snapshot) in enumerate(refreshed):
        part = IntervalPart(interval(first, first + hours), base(snapshot), f"r{number}", number)
        found = record(-1 if only else 1, after(found, interval(first, first + hours), part), **more)
    return found


@given(steps, st.booleans(), st.sampled_from(["hour", "day", "month"]), st.sets(st.integers(0, 50), max_size=10))
def test_each_interval_has_the_state_that_it_has_alone(
    refreshed: list[tuple[int, int, int]], only: bool, unit: str, touched: set[int]
) -> None:
    """The states are those of one call for each interval. Ranges have no gaps, and neighbours differ."""
    found = recorded(refreshed, only=only)
    head = [ObservedTable(Identifier.parse("lake.s.t"), head=3)]
    first = unit_number(DAY, unit)
    units = Units(unit, first - 2, first + {"hour": 50, "day": 5, "month": 2}[unit])
    affected = [(first + number, first + number + 1) for number in touched]
    whole = assess(found, version_id=1, nested_views=(), observed=head)
    alone = IntervalPart(None, found.base_tables, "r", None)
    parts = whole.parts or (PartFreshness(alone, whole.base_tables),)

    ranges = cover(parts, "ts", units, lambda changes: affected)

    states: list[Cover] = []
    for number in range(units.first, units.after):
        one = assess(
            found, version_id=1, nested_views=(), observed=head, interval=units.interval("ts", number, number + 1)
        )
        computed = one.state == State.STALE and all(item.part.computed for item in one.parts)
        proven = Cover.UNAFFECTED if computed and number - first not in touched else Cover.STALE
        states.append({State.FRESH: Cover.FRESH, State.NEVER_REFRESHED: Cover.NEVER_COMPUTED}.get(one.state, proven))
    assert [state for item in ranges for state in [item.state] * item.count] == states
    assert all(one.state != other.state and one.end == other.start for one, other in itertools.pairwise(ranges))
    assert (ranges[0].start, ranges[-1].end) == (unit_start(units.first, unit), unit_start(units.after, unit))


@given(st.datetimes(timezones=st.just(UTC)), st.sampled_from(["hour", "day", "month", "year"]))
def test_a_time_is_in_the_unit_of_its_number(moment: datetime, unit: str) -> None:
    """Numbers follow each other as the units do."""
    number = unit_number(moment, unit)
    assert unit_start(number, unit) <= moment
    if moment.year < LAST_YEAR:
        assert moment < unit_start(number + 1, unit)


def test_a_century_of_hours_is_a_few_ranges() -> None:
    """The time depends on what is recorded, here 1,000 intervals, and not on the number of hours."""
    parts = [{**bounds(interval(48 * n, 48 * n + 1)), "refresh-id": "r", "base-tables": []} for n in range(1000)]
    found = record(1, parts)
    whole = assess(found, version_id=1, nested_views=(), observed=[ObservedTable(Identifier.parse("lake.s.t"), head=3)])
    first = unit_number(DAY, "hour")
    started = time.process_time()
    ranges = cover(whole.parts, "ts", Units("hour", first - MAX_COVERED // 2, first + MAX_COVERED // 2), lambda _: None)
    assert len(ranges) == 1  # all are stale: at a snapshot that the base table no longer is at
    assert time.process_time() - started < 5


# ---------------------------------------------------------------------------------------- a view
@pytest.fixture
def lake(sqlite_uri: str, warehouse: Path) -> Iterator[Days]:
    """A view by days, never refreshed."""
    with days_lake(sqlite_uri, warehouse, "pointed") as made:
        made.sell((1, 10), (2, 20))
        yield made


def covered(lake: Days, first: int, after: int) -> list[Cover]:
    """The states of some days; each says what a refresh of the day alone would do."""
    span = days(first, after)
    found = coverage(lake.catalog, VIEW, start=span.start, end=span.end)
    states = [state for item in found.ranges for state in [item.state] * item.count]
    for number, state in zip(range(first, after), states, strict=True):
        planned = plan_refresh(
            lake.catalog, VIEW, RefreshOptions(interval=days(number, number + 1), statistics=FileStatistics)
        )
        assert planned.mode == WOULD_DO[state], (number, state)
    return states


def test_a_state_says_what_a_refresh_of_the_interval_would_do(lake: Days) -> None:
    """Through intervals, appends that concern some days, a correction of the base table, and a whole refresh."""
    fresh, unaffected, stale, never = Cover.FRESH, Cover.UNAFFECTED, Cover.STALE, Cover.NEVER_COMPUTED
    assert covered(lake, 1, 4) == [never] * 3
    lake.refresh_days(1, 3)
    assert covered(lake, 0, 5) == [never, fresh, fresh, never, never]
    lake.sell((2, 1), (4, 5))
    assert covered(lake, 0, 5) == [never, unaffected, stale, never, never]
    lake.refresh_days(4, 5)
    assert covered(lake, 1, 5) == [unaffected, stale, never, fresh]
    lake.refresh(VIEW)
    assert covered(lake, 1, 30) == [fresh] * 29
    lake.sell((7, 1), (9, 1))
    lake.sell((20, 1))
    assert covered(lake, 5, 22) == [
        *[unaffected] * 2,
        *[stale] * 3,
        *[unaffected] * 10,
        stale,
        unaffected,
    ]  # fmt: skip (the file of the first commit has days 7 to 9)
    lake.correct((1, 1))
    assert covered(lake, 1, 3) == [stale, stale]


def test_a_daily_backfill_of_daily_appends_stays_fresh(lake: Days) -> None:
    """Each day is at its own snapshot, and no earlier one is stale. Without times it is what was refreshed."""
    for number in range(3, 9):
        lake.sell((number, number))
        lake.refresh_days(number, number + 1)
    found = coverage(lake.catalog, VIEW, now=datetime(2030, 1, 1, tzinfo=UTC))
    assert (str(found), found.unit, len(found.ranges)) == ("6 of 8 days fresh", "day", 3)
    assert found.counts == {Cover.FRESH: 1, Cover.UNAFFECTED: 5, Cover.STALE: 0, Cover.NEVER_COMPUTED: 2}


def test_intervals_that_are_none_of_the_view_are_refused(lake: Days) -> None:
    """Parts of days of a date column, an empty time, and more intervals than anyone can look at."""
    start = days(1, 2).start
    for end, text in [
        (start + timedelta(hours=5), "takes whole days"),
        (start, "empty"),
        (datetime(9999, 1, 1, tzinfo=UTC), f"more than {MAX_COVERED:,} intervals"),
    ]:
        with pytest.raises(ConfigurationError, match=text):
            coverage(lake.catalog, VIEW, start=start, end=end)


def test_rows_of_another_definition_are_stale(lake: Days) -> None:
    """Whatever is recorded of them."""
    lake.refresh_days(1, 3)
    other = Definition("SELECT day, count(*) AS orders, max(amount) AS amount FROM lake.sales.sold GROUP BY day")
    create(lake.catalog, lake.catalog.identify(VIEW), other, stager=lake.stager, replace=True)
    span = days(1, 4)
    found = coverage(lake.catalog, VIEW, start=span.start, end=span.end)
    assert found.counts[Cover.STALE] == 3


def test_the_command_shows_ranges_and_how_many_are_fresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: list[str]
) -> None:
    """As a table, as JSON, and as an exit code. The status of a named view has the number, which the cache keeps."""
    for name, value in configure(tmp_path, "lake").items():
        monkeypatch.setenv(name, value)
    reload_configuration()
    with days_lake(f"sqlite:///{tmp_path}/lake.db", tmp_path / "lake", "pointed") as lake:
        lake.sell((1, 10), (2, 20))
        lake.refresh_days(1, 3)
        lake.sell((2, 1))
    asked = ["status", f"lake.{VIEW}", "--intervals", "--from", "2024-06-01", "--to", "2024-06-06"]

    shown = call(*asked)
    assert (shown.code, shown.stdout.splitlines()) == (
        0,
        [
            "lake.sales.daily  1 of 5 days fresh  by day",
            "from        to (excluded)  days  state",
            "2024-06-01  2024-06-02        1  unaffected",
            "2024-06-02  2024-06-03        1  stale",
            "2024-06-03  2024-06-06        3  never computed",
        ],
    ), shown.stderr
    (document,) = call(*asked, "--json").json
    assert (document["up_to_date"], document["intervals"], document["unit"]) == (1, 5, "day")
    assert document["states"] == {"fresh": 0, "unaffected": 1, "stale": 1, "never-computed": 3}
    assert document["ranges"][1] == {
        "start": "2024-06-02T00:00:00+00:00", "end": "2024-06-03T00:00:00+00:00", "count": 1, "state": "stale",
    }  # fmt: skip
    assert [call(*asked, "--check").code, call(*asked[:-1], "2024-06-02", "--check").code] == [3, 0]
    assert call("status", "--all", "--intervals").code == 2
    plain = ["status", f"lake.{VIEW}"]
    first, why, *_ = call(*plain).stdout.splitlines()
    assert first.startswith("lake.sales.daily  stale  1 of 2 days fresh  refreshed 20")
    assert why == "  of 2 days: 1 stale (INTERVALS)"
    reads.clear()
    assert call(*plain, "--json").json[0]["coverage"] == {"unit": "day", "intervals": 2, "up_to_date": 1}
    assert reads == []
    assert call(*asked, "--interval", "2024-06-01", "2024-06-02").code == 2
    monkeypatch.undo()
    reload_configuration()


# ------------------------------------------------------------------- days that are derived from times
TIMES = pa.schema([("at", pa.timestamp("us", tz="UTC")), ("amount", pa.int64())])
BERLIN = "to_date(from_utc_timestamp(at, 'Europe/Berlin'))"


def berlin(number: int, hour: int = 12) -> datetime:
    """A local time in Berlin, by days from the first of September 2024."""
    return datetime(2024, 9, 1, hour, tzinfo=ZoneInfo("Europe/Berlin")) + timedelta(days=number)


def at_times(lake: Days, *moments: datetime) -> None:
    """Append a row for each time, in one file."""
    lake.load("at").append(pa.Table.from_pylist([{"at": at.astimezone(UTC), "amount": 1} for at in moments], TIMES))


def days_of(first: int, after: int) -> Span:
    """Days from the first of September 2024."""
    return Span(*(datetime(2024, 9, 1, tzinfo=UTC) + timedelta(days=number) for number in (first, after)))


@pytest.fixture
def local(lake: Days) -> str:
    """A view by days of Berlin, over 49 days that include the end of summer time; 36 of them are computed."""
    lake.iceberg.create_table("sales.at", schema=TIMES)
    for number in range(49):
        at_times(lake, berlin(number, 0), berlin(number, 23) + timedelta(minutes=59))
    sql = f"SELECT {BERLIN} AS day, count(*) AS n FROM sales.at GROUP BY {BERLIN}"
    return str(lake.view("local", sql, properties={"airflow-mv.interval-column": "day"}))


@pytest.mark.parametrize("late", [(3, 20), (55, 56)])
def test_late_rows_make_the_days_stale_that_they_belong_to(lake: Days, local: str, late: tuple[int, int]) -> None:
    """Their files have bounds of a time, from which the day of another zone is derived; also on the longest day."""
    lake.refresh(local, options=RefreshOptions(interval=days_of(0, 60)))
    for number in late:
        at_times(lake, *(berlin(number, hour) for hour in (0, 2, 3, 12, 23)))
    found = coverage(lake.catalog, local, start=days_of(0, 60).start, end=days_of(0, 60).end)
    stale = [item for item in found.ranges if item.state == Cover.STALE]
    dates = [item.start.date() + timedelta(days=number) for item in stale for number in range(item.count)]
    assert dates == [berlin(number).date() for number in late]
    assert found.counts == {Cover.FRESH: 0, Cover.UNAFFECTED: 58, Cover.STALE: 2, Cover.NEVER_COMPUTED: 0}


def test_days_that_were_never_computed_count(lake: Days, local: str) -> None:
    """Four of the 49 days that the base table has were computed."""
    lake.refresh(local, options=RefreshOptions(interval=days_of(10, 14)))
    found = coverage(lake.catalog, local)
    assert (str(found), found.counts[Cover.NEVER_COMPUTED]) == ("4 of 49 days fresh", 45)
    assert (found.ranges[0].start, found.ranges[-1].end) == (days_of(0, 49).start, days_of(0, 49).end)
    counted = with_count(status(lake.catalog, local).to_dict(), count(lake.catalog, observe(lake.catalog, local)))
    assert counted["coverage"] == {"unit": "day", "intervals": 49, "up_to_date": 4}
    assert counted["reasons"][0]["message"] == found.behind == "of 49 days: 45 never computed"


def test_days_beyond_the_filters_of_the_query_do_not_count(lake: Days, local: str) -> None:
    """Nor do those of files without a value. A file without bounds makes them unknown: then the recorded ones count."""
    narrow = f"SELECT day, n FROM (SELECT {BERLIN} AS day, amount AS n FROM sales.at) WHERE day >= DATE'2024-10-10'"
    view = lake.view("narrow", narrow, properties={"airflow-mv.interval-column": "day"})
    lake.refresh(view, options=RefreshOptions(interval=days_of(40, 41)))
    assert str(coverage(lake.catalog, view)) == "1 of 10 days fresh"
    lake.load("at").append(pa.Table.from_pylist([{"at": None, "amount": 1}], TIMES))
    assert str(coverage(lake.catalog, view)) == "1 of 10 days fresh"
    with lake.load("at").transaction() as change:
        change.set_properties({"write.metadata.metrics.default": "none"})
    at_times(lake, berlin(70))
    assert str(coverage(lake.catalog, view)) == "0 of 1 day fresh"


def test_days_of_many_files_are_those_of_the_partitions(lake: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    """Manifests of a large table are not opened: their list has the bounds of partitions."""
    lake.iceberg.create_table("sales.dated", schema=SALES)
    with lake.load("dated").update_spec() as spec:
        spec.add_identity("day")
    for numbers in ((3, 5), (9,)):
        lake.load("dated").append(sold([(number, 1) for number in numbers]))
    sql = "SELECT last_day(day) AS day, amount FROM sales.dated WHERE day < DATE'2024-06-09'"
    view = lake.view("dated_days", sql, properties={"airflow-mv.interval-column": "day"})
    monkeypatch.setattr("airflow_mv.core.catalog.manifest_changes.MAX_MANIFESTS", 1)
    assert str(coverage(lake.catalog, view)) == "0 of 1 day fresh"
    (only,) = coverage(lake.catalog, view).ranges
    assert only.start == datetime(2024, 6, 30, tzinfo=UTC)
