# SPDX-License-Identifier: Apache-2.0
"""Parse and compute times: ISO 8601, milliseconds since the epoch, calendars of time zones, durations."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta, tzinfo

import pendulum

from airflow_mv.errors import ConfigurationError
from airflow_mv.foundation.words import did_you_mean

_LAST_MS = 253_402_300_799_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: The precision of a partition's key gives the length of the partition.
_KEYS = (
    (re.compile(r"\d{4}", re.ASCII), "%Y", "year"),
    (re.compile(r"\d{4}-\d\d", re.ASCII), "%Y-%m", "month"),
    (re.compile(r"\d{4}-\d\d-\d\d", re.ASCII), "%Y-%m-%d", "day"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d", re.ASCII), "%Y-%m-%dT%H", "hour"),
)


_LENGTH = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,6})?)\s*(?P<unit>[a-z]*)", re.ASCII)
_SECONDS = {
    **dict.fromkeys(("", "s", "sec", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86_400),
    **dict.fromkeys(("w", "week", "weeks"), 604_800),
}

#: Milliseconds since the epoch, from 1970-01-02 to 5138. A date or a year has fewer digits.
_MILLISECONDS = re.compile(r"[0-9]{9,14}")


def parse_time(value: object, zone: tzinfo = UTC) -> datetime:
    """Read a point in time.

    Args:
        value: A time, its text in ISO 8601, or milliseconds since the epoch, as Iceberg's ``as-of-timestamp`` has them.
            (pendulum's parser would also take ``now``, and ``12:00`` as of today.)
        zone: The time zone for a time without one.

    Raises:
        ValueError: It is not a point in time.
    """
    if not isinstance(value, datetime) and _MILLISECONDS.fullmatch(text := str(value)):
        return from_ms(int(text))
    read = value if isinstance(value, datetime) else parse_timestamp(str(value))
    return read if read.tzinfo else read.replace(tzinfo=zone)


def parse_timestamp(text: str) -> datetime:
    """Read a timestamp in ISO 8601, with or without a time zone. It is not converted.

    Raises:
        ValueError: It is not valid.
    """
    return datetime.fromisoformat(text)


def parse_date(text: str) -> date:
    """Read a date in ISO 8601.

    Raises:
        ValueError: It is not valid.
    """
    return date.fromisoformat(text)


def parse_key(key: str, zone: tzinfo) -> tuple[datetime, str]:
    """Read the key of a partition: its start and its length, which is a unit, or empty for an exact time.

    Args:
        key: A year, month, day, hour, or a time in ISO 8601.
        zone: The time zone for a time without one.

    Raises:
        ValueError: It is not a time.
    """
    for form, pattern, unit in _KEYS:
        if form.fullmatch(key):
            return datetime.strptime(key.replace(" ", "T"), pattern).replace(tzinfo=zone), unit
    return parse_time(key, zone), ""


def from_ms(milliseconds: int) -> datetime:
    """Return a stored time. A time outside of the years 1970 to 9999 is replaced by the nearest one in range."""
    return _EPOCH + timedelta(milliseconds=min(max(milliseconds, 0), _LAST_MS))


def to_ms(moment: datetime) -> int:
    """Return a time in milliseconds since the epoch; a part of a millisecond is dropped. A float would not be exact."""
    return int(moment.replace(microsecond=0).timestamp()) * 1000 + moment.microsecond // 1000


def is_start_of_day(moment: datetime) -> bool:
    """Whether an aware time is the first moment of a day in its zone.

    That is midnight, or later where the clocks are put forward at midnight.
    """
    if moment.time() == time():
        return True
    try:
        before = moment.astimezone(UTC) - timedelta(microseconds=1)
        return before.astimezone(moment.tzinfo).date() < moment.date()
    except OverflowError:
        return False


def shift(moment: datetime, length: timedelta) -> datetime:
    """Add a length to a time, or subtract it: by the calendar for whole days, by the clock for anything else.

    Whole days from the first moment of a day lead to the first moment of another one.

    Raises:
        ConfigurationError: It is not between the years 1 and 9999.
    """
    if length % timedelta(days=1):
        return _added(moment, seconds=length.days * 86_400 + length.seconds, microseconds=length.microseconds)
    return _by_calendar(moment, days=length.days)


def next_unit(moment: datetime, unit: str) -> datetime:
    """Return the beginning of the next year, month, day or hour.

    Args:
        moment: The start of the unit; for a year or a month any moment in it.

    Raises:
        ConfigurationError: It is after the year 9999.
    """
    if unit == "hour":
        return _added(moment, hours=1)
    if unit in ("month", "year"):
        moment = datetime(moment.year, moment.month if unit == "month" else 1, 1, tzinfo=moment.tzinfo)
    return _by_calendar(moment, **{f"{unit}s": 1})


def _by_calendar(moment: datetime, **units: int) -> datetime:
    if not is_start_of_day(moment):
        return _added(moment, **units)
    day = _added(datetime(moment.year, moment.month, moment.day, tzinfo=UTC), **units)
    midnight = datetime(day.year, day.month, day.day, tzinfo=moment.tzinfo)
    try:
        return midnight.astimezone(UTC).astimezone(moment.tzinfo)  # a midnight that does not exist is moved forward
    except OverflowError:
        raise ConfigurationError(f"{midnight.isoformat()} is not between the years 1 and 9999") from None


def _added(moment: datetime, **units: int) -> datetime:
    # Pendulum's own class would lose the zone if that is Python's UTC.
    plain = datetime.combine(moment.date(), moment.timetz())
    try:
        return pendulum.instance(plain).add(**units)
    except (OverflowError, ValueError):
        amount = ", ".join(f"{count} {unit}" for unit, count in units.items() if count)
        raise ConfigurationError(f"{moment.isoformat()} and {amount} is not between the years 1 and 9999") from None


def duration(value: object, *, what: str) -> timedelta | None:
    """Read a length of time.

    Args:
        value: A ``timedelta``, a number of seconds, a text like ``90``, ``30 m``, ``2 h`` or ``1 day``, or nothing.

    Raises:
        ConfigurationError: It is not a length of time.
    """
    if isinstance(value, timedelta) or value is None or value in ("", "None"):
        found = value if isinstance(value, timedelta) else None
    else:
        found = _read(str(value).strip().lower(), what)
    if found is not None and found < timedelta(0):
        raise ConfigurationError(f"{what} is {value!r}; it must not be negative")
    return found


def _read(text: str, what: str) -> timedelta:
    match = _LENGTH.fullmatch(text)
    if match is None or match["unit"] not in _SECONDS:
        meant = "" if match is None else did_you_mean(match["unit"], _SECONDS.keys() - {""})
        raise ConfigurationError(
            f"{what} is {text!r}, which is not a length of time; write it like 30 m, 2 h or 1 d{meant}"
        )
    try:
        return timedelta(seconds=float(match["number"]) * _SECONDS[match["unit"]])
    except OverflowError:
        raise ConfigurationError(f"{what} is {text!r}, which is too long") from None
