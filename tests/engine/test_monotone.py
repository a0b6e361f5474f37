# SPDX-License-Identifier: Apache-2.0
"""Spark's own value of an expression lies within the mapped bounds, also around changes of clocks."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from airflow_mv.core.ivm.monotone import Monotone, monotone, value_of
from airflow_mv.core.sql.dialect import AsWritten, AsWrittenParser, tokenized
from tests.engine.support import Lake

#: Zones with summer time on each side of the equator, of half an hour, at midnight, and of a skipped or repeated day.
ZONES = (
    "Europe/Berlin", "America/New_York", "America/Sao_Paulo", "Australia/Lord_Howe", "Pacific/Apia",
    "Pacific/Kwajalein", "Africa/Casablanca", "Asia/Kathmandu", "America/St_Johns", "Africa/Monrovia", "+05:30", "UTC",
)  # fmt: skip
UNITS = ("year", "QUARTER", "mon", "WEEK", "DD", "hour", "minute", "SECOND", "millisecond", "microsecond")
EXPRESSIONS = (
    *("to_date({x})", "date({x})", "CAST({x} AS DATE)", "{x}::date", "CAST(CAST({x} AS DATE) AS TIMESTAMP)"),
    *("to_timestamp({x})", "CAST({x} AS TIMESTAMP_NTZ)", "last_day({x})", "year({x})", "unix_date(to_date({x}))"),
    *(f"date_trunc('{unit}', {{x}})" for unit in UNITS),
    *(f"trunc({{x}}, '{unit}')" for unit in ("yyyy", "quarter", "MM", "week")),
    *("date_add({x}, 3)", "date_sub({x}, 40)", "date_add({x}, -1)", "CAST({x} AS DATE) + INTERVAL 1 DAY"),
    *("{t} + INTERVAL 1 DAY", "{t} - INTERVAL '36' HOUR", "{t} - INTERVAL 1 MICROSECOND"),
    *("unix_seconds(ts)", "unix_millis(ts)", "unix_micros(ts)"),
    *(f"date_format({{x}}, '{form}')" for form in ("yyyy", "yyyy-MM", "yyyyMMdd", "yyyy/MM/dd HH:mm", "yyyy-MM-01")),
    "to_date(date_format({x}, 'yyyy-MM-dd'))",
    "CAST(date_format({x}, 'yyyy-MM') AS DATE)",
    "to_date(date_format({x}, 'yyyyMM'), 'yyyyMM')",
    "CAST(date_format({x}, 'yyyy-MM-dd HH:00:00') AS TIMESTAMP)",
)
ZONED = (
    *("from_utc_timestamp({t}, '{z}')", "to_utc_timestamp({t}, '{z}')", "convert_timezone('{z}', {t})"),
    *("convert_timezone('{z}', 'Asia/Tokyo', {t})", "convert_timezone('America/New_York', '{z}', {t})"),
    "to_date(from_utc_timestamp({t}, '{z}'))",
    "date_trunc('week', from_utc_timestamp(to_utc_timestamp({t}, 'Europe/Berlin'), '{z}'))",
    "to_date(date_format(from_utc_timestamp({t} - INTERVAL 6 HOURS, '{z}'), 'yyyy-MM-01'))",
)
WINDOWS = (
    "window(ts, '1 hour').start",
    "window(ntz, '7 days').end",
    "window(ts, '1 day', '1 day', '90 minutes').start",
    "window(ts, '36 hours').start",
    "window(from_utc_timestamp(ts, 'Europe/Berlin'), '1 day').start",
    "window(to_utc_timestamp(ntz, 'Australia/Lord_Howe'), '30 minutes').end",
)
NUMBERS = ("to_date(timestamp_seconds(n))", "timestamp_millis(n)", "timestamp_micros(n)", "date_from_unix_date(d)")
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
SCHEMA = pa.schema(
    [
        ("ts", pa.timestamp("us", "UTC")),
        ("ntz", pa.timestamp("us")),
        ("day", pa.date32()),
        ("n", pa.int64()),
        ("d", pa.int32()),
    ]
)
TYPES = {"ts": "timestamp", "ntz": "timestamp_ntz", "day": "date", "n": "bigint", "d": "int"}


def parsed(text: str) -> Monotone | None:
    sql = f"SELECT {text} FROM t"
    (tree,) = AsWrittenParser(dialect=AsWritten()).parse(tokenized(sql), sql)
    assert tree is not None
    return monotone(tree.expressions[0], lambda column: TYPES[column.name])


def changes(zone: str) -> Iterator[datetime]:
    """The hours in which a zone changes its offset, as local times and in UTC."""
    place = ZoneInfo(zone)
    start = datetime(1965, 1, 1, tzinfo=UTC)
    for hour in range(24 * 365 * 65):
        if hour % 24 == 0:
            before = (start + timedelta(hours=hour)).astimezone(place).utcoffset()
            if before == (start + timedelta(hours=hour + 24)).astimezone(place).utcoffset():
                continue
            for at in (start + timedelta(hours=hour + part) for part in range(24)):
                yield at
                yield at.astimezone(place).replace(tzinfo=UTC)


def moments(chance: random.Random, count: int) -> list[datetime]:
    """Times near changes of clocks (so many of each zone), near the ends of days, months and years, and anywhere."""
    near = [at for zone in ZONES[:-2] for at in chance.choices([*changes(zone)], k=count)]
    found = [at + timedelta(microseconds=chance.choice((-1, 0, 1, chance.randrange(-(10**10), 10**10)))) for at in near]
    for _ in range(4 * count):
        start = datetime(chance.randrange(1902, 2100), chance.randrange(1, 13), 1, tzinfo=UTC)
        found.append(start + timedelta(microseconds=chance.choice((-1, 0, 1))))
        found.append(start + timedelta(seconds=chance.randrange(86400 * 31), microseconds=chance.randrange(10**6)))
    ends = [datetime(3, 1, 1, tzinfo=UTC), datetime(9997, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)]
    return found + ends


def numbers(column: Any) -> list[Any]:
    """The values of a column of Arrow as the module counts them."""
    if pa.types.is_timestamp(column.type):
        return list(column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist())
    return list((column.cast(pa.int32()) if pa.types.is_date(column.type) else column).to_pylist())


@pytest.mark.parametrize(("seed", "count"), [(0, 20), pytest.param(1, 60, marks=pytest.mark.slow)])
def test_values_lie_within_the_mapped_bounds(lake: Lake, seed: int, count: int) -> None:
    """For each expression: the value of each time, of each range of times, and conditions mapped back."""
    chance = random.Random(seed)
    rows = [
        {"ts": at, "ntz": at.replace(tzinfo=None), "day": at.date(), "n": int(at.timestamp()), "d": value_of(at.date())}
        for at in moments(chance, count)
    ]
    lake.spark.conf.set("spark.sql.session.timeZone", "UTC")
    held = pa.Table.from_pylist(rows, SCHEMA)
    lake.spark.createDataFrame(held).createOrReplaceTempView("held")
    texts = [text.format(x=x, t=x if x != "day" else "ts") for text in EXPRESSIONS for x in ("ts", "ntz", "day")]
    texts += [text.format(t=t, z=zone) for text in ZONED for zone in ZONES for t in ("ts", "ntz")]
    texts += NUMBERS
    chunks = [texts[start : start + 60] for start in range(0, len(texts), 60)] + [[text] for text in WINDOWS]
    known = {text: parsed(text) for chunk in chunks for text in chunk}
    exact = 0
    for chunk in chunks:
        columns = ", ".join(f"{text} AS c{at}" for at, text in enumerate(chunk))
        table = lake.spark.sql(f"SELECT {columns} FROM held").toArrow()
        for text, column in zip(chunk, table.columns, strict=True):
            found = known[text]
            assert found is not None, text
            pairs = list(zip(numbers(held[found.column.name]), numbers(column), strict=True))
            exact += check(text, found, pairs, chance)
    lake.spark.catalog.dropTempView("held")
    assert exact > 0.6 * len(known) * len(rows)  # the others are before 1970, or near a change of a clock


def check(text: str, found: Monotone, pairs: list[tuple[int, Any]], chance: random.Random) -> int:
    """Check one expression; return for how many values the bounds are exact."""
    images = [found.image(at, at) for at, _ in pairs]
    exact = len(pairs)
    if found.kind != "text":
        for (at, value), (low, high) in zip(pairs, images, strict=True):
            assert low <= value <= high, (text, at, value, low, high)
        exact = sum(low == high for low, high in images)
        for _ in range(5):
            first, last = sorted(chance.sample([at for at, _ in pairs], 2))
            low, high = found.image(first, last)
            assert all(low <= value <= high for at, value in pairs if first <= at <= last), text
    for symbol, passes in OPERATORS.items():
        for wanted in [value for _, value in chance.sample(pairs, 3)]:
            first, after = found.preimage(symbol, wanted)
            passing = [at for at, value in pairs if passes(value, wanted)]
            assert all((first is None or first <= at) and (after is None or at < after) for at in passing), (
                text,
                wanted,
            )
    return exact
