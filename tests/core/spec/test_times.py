# SPDX-License-Identifier: Apache-2.0
"""Times: text formats, the calendar of a time zone, and values out of range."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

import pendulum
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_mv.core.spec.times import (
    from_ms,
    is_start_of_day,
    next_unit,
    parse_date,
    parse_key,
    parse_time,
    parse_timestamp,
    shift,
    to_ms,
)
from airflow_mv.errors import ConfigurationError

BERLIN = ZoneInfo("Europe/Berlin")
PACKAGE = Path(__file__).parents[3] / "airflow_mv"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2013-06-30", datetime(2013, 6, 30, tzinfo=BERLIN)),
        ("2013-06-30 12", datetime(2013, 6, 30, 12, tzinfo=BERLIN)),
        ("20130630T0102", datetime(2013, 6, 30, 1, 2, tzinfo=BERLIN)),
        ("2013-W26-7", datetime(2013, 6, 30, tzinfo=BERLIN)),
        ("2013-06-30T00:00:00Z", datetime(2013, 6, 30, tzinfo=UTC)),
        ("2013-06-30T00:00:00.123456+05:30", datetime(2013, 6, 29, 18, 30, 0, 123456, tzinfo=UTC)),
        ("2013-06-30T00:00:00,5-0200", datetime(2013, 6, 30, 2, 0, 0, 500000, tzinfo=UTC)),
        ("1795813216300", datetime(2026, 11, 27, 21, 0, 16, 300000, tzinfo=UTC)),  # as Iceberg's as-of-timestamp
    ],
)
def test_iso_8601_without_an_offset_is_read_in_the_given_zone(text: str, expected: datetime) -> None:
    assert parse_time(text, BERLIN) == expected
    assert parse_time(expected) is expected


@pytest.mark.parametrize("text", ["now", "12:00", "2013", "P1D", "2013-06-30/P1D", "2013-13-01", "", "10000-01-01"])
def test_text_that_is_not_one_point_in_time_is_refused(text: str) -> None:
    """pendulum's parser accepts `now`, and `12:00` as a time of today: each day another interval would be refreshed."""
    with pytest.raises(ValueError, match=r".+"):
        parse_time(text)


def test_the_literal_of_a_timestamp_or_date_is_not_changed() -> None:
    """A literal without a zone is not in UTC."""
    assert parse_timestamp("2013-06-30 01:02:03").tzinfo is None
    assert parse_date("2013-06-30") == date(2013, 6, 30)


def test_the_unit_of_a_partition_key_follows_from_its_precision() -> None:
    found = [parse_key(key, BERLIN) for key in ("2024", "2024-06", "2024-06-01", "2024-06-01 07", "2024-06-01T07:15Z")]
    assert [unit for _, unit in found] == ["year", "month", "day", "hour", ""]
    assert [moment.utcoffset() for moment, _ in found][:2] == [timedelta(hours=1), timedelta(hours=2)]
    assert found[4][0] == datetime(2024, 6, 1, 7, 15, tzinfo=UTC)
    with pytest.raises(ValueError, match="unconverted"):
        parse_key("2024-13", BERLIN)


@pytest.mark.parametrize("zone", [BERLIN, pendulum.timezone("Europe/Berlin")])
def test_a_day_has_23_or_25_hours_when_clocks_change(zone: ZoneInfo) -> None:
    """Whole days follow the calendar, hours follow the clock, for both implementations of time zones."""
    for day, hours in ((datetime(2024, 3, 31, tzinfo=zone), 23), (datetime(2024, 10, 27, tzinfo=zone), 25)):
        for moment in (day, pendulum.instance(day)):
            assert shift(moment, timedelta(days=1)) - moment.astimezone(UTC) == timedelta(hours=hours)
            assert next_unit(moment, "day") - moment.astimezone(UTC) == timedelta(hours=hours)
            assert shift(moment, timedelta(hours=26)) - moment.astimezone(UTC) == timedelta(hours=26)
            assert next_unit(moment, "hour") - moment.astimezone(UTC) == timedelta(hours=1)


@pytest.mark.parametrize(
    ("name", "before", "hours"),
    [
        ("America/Santiago", date(2024, 9, 7), (24, 23)),
        ("Africa/Cairo", date(2024, 4, 25), (24, 23)),
        ("America/Havana", date(2024, 11, 2), (24, 25)),  # the first hour of the second day occurs twice
        ("America/Asuncion", date(2017, 9, 30), (24, 23)),
    ],
)
@pytest.mark.parametrize("zone_of", [ZoneInfo, pendulum.timezone])
def test_a_day_without_a_midnight_begins_at_its_first_moment(
    zone_of: Callable[[str], tzinfo], name: str, before: date, hours: tuple[int, int]
) -> None:
    zone = zone_of(name)
    moment = datetime(before.year, before.month, before.day, tzinfo=zone)
    for length in hours:
        after = shift(moment, timedelta(days=1))
        assert is_start_of_day(after)
        assert not is_start_of_day(after + timedelta(minutes=30))
        assert after.astimezone(UTC) - moment.astimezone(UTC) == timedelta(hours=length)
        assert (shift(after, timedelta(days=-1)), next_unit(moment, "day")) == (moment, after)
        moment = after
    if name == "America/Asuncion":
        assert next_unit(datetime(2017, 10, 5, 7, tzinfo=zone), "month") == datetime(2017, 11, 1, tzinfo=zone)


def test_a_time_of_airflow_keeps_its_zone() -> None:
    """Pendulum's own addition loses Python's UTC."""
    moment = pendulum.datetime(2024, 6, 1).astimezone(UTC)
    assert shift(moment, timedelta(hours=1)).isoformat() == "2024-06-01T01:00:00+00:00"


def test_a_time_that_the_clock_change_skips_is_moved_forward() -> None:
    """2:30 did not exist on that day."""
    assert (
        shift(datetime(2024, 3, 30, 2, 30, tzinfo=BERLIN), timedelta(days=1)).isoformat() == "2024-03-31T03:30:00+02:00"
    )


def test_the_next_unit_of_the_calendar() -> None:
    assert next_unit(datetime(2024, 12, 1, tzinfo=UTC), "month") == datetime(2025, 1, 1, tzinfo=UTC)
    assert next_unit(datetime(2024, 2, 29, 5, tzinfo=UTC), "year") == datetime(2025, 1, 1, tzinfo=UTC)
    assert next_unit(datetime(2024, 2, 28, tzinfo=UTC), "day") == datetime(2024, 2, 29, tzinfo=UTC)
    assert next_unit(datetime(2024, 2, 28, 23, tzinfo=UTC), "hour") == datetime(2024, 2, 29, tzinfo=UTC)


@given(
    st.integers(-(2**51), 2**51),
    st.timedeltas(timedelta(days=-400), timedelta(days=400)),
    st.integers(-14 * 60, 14 * 60),
)
def test_in_a_zone_without_clock_changes_the_result_is_plain_arithmetic(
    micros: int, length: timedelta, minutes: int
) -> None:
    """The result equals the standard library's to the microsecond."""
    aware = datetime(1970, 1, 1, tzinfo=timezone(timedelta(minutes=minutes))) + timedelta(microseconds=micros)
    assert shift(aware, length) == aware + length


@pytest.mark.parametrize("length", [timedelta(days=1), timedelta(microseconds=1), timedelta(days=9_000_000)])
def test_a_time_outside_the_calendar_raises_our_error(length: timedelta) -> None:
    last = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    with pytest.raises(ConfigurationError, match="is not between the years 1 and 9999"):
        shift(last, length)
    with pytest.raises(ConfigurationError, match="is not between the years 1 and 9999"):
        next_unit(last, "year")


def test_stored_milliseconds_out_of_range_become_the_nearest_valid_time() -> None:
    """Metadata is untrusted: a status must not fail because of a time."""
    assert from_ms(1372550400123).isoformat() == "2013-06-30T00:00:00.123000+00:00"
    assert from_ms(-(10**30)) == datetime(1970, 1, 1, tzinfo=UTC)
    assert from_ms(10**30) == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


@given(st.integers(0, 253_402_300_799_000), st.integers(0, 999))
def test_a_stored_time_comes_back_as_the_same_millisecond(milliseconds: int, microseconds: int) -> None:
    """Else a reader who gives the time of a commit would get the snapshot before it."""
    moment = from_ms(milliseconds) + timedelta(microseconds=microseconds)
    assert to_ms(moment) == milliseconds
    assert to_ms(pendulum.instance(moment).in_timezone("America/Santiago")) == milliseconds


def test_no_other_module_parses_times() -> None:
    """`job/` is excluded, because the Spark driver has no pendulum."""
    parses = re.compile(r"fromisoformat|strptime|fromtimestamp")
    found = [path for path in PACKAGE.rglob("*.py") if parses.search(path.read_text(encoding="utf-8"))]
    assert [path.relative_to(PACKAGE).as_posix() for path in found if "job" not in path.parts] == ["core/spec/times.py"]
