# SPDX-License-Identifier: Apache-2.0
"""The snapshots of each row, compared with a simple model that has one entry for each hour."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_mv.core.spec.interval import Interval
from airflow_mv.core.spec.interval_parts import IntervalPart, after, parts_in, parts_of
from airflow_mv.core.spec.materialized_view import BaseTable, RefreshRecord
from airflow_mv.core.sql.interval_columns import condition
from airflow_mv.errors import InvalidMetadataError

DAY = datetime(2024, 6, 1, tzinfo=UTC)
LAST = 12


def interval(first: int, end: int) -> Interval:
    """A range of hours of one day."""
    return Interval("ts", DAY + timedelta(hours=first), DAY + timedelta(hours=end))


def base(snapshot: int) -> tuple[BaseTable, ...]:
    """The one base table at a snapshot."""
    document = {"type": "iceberg-metastore", "identifier": "lake.s.t", "snapshot-reference": snapshot}
    return (BaseTable.read(document, source="test"),)


def record(snapshot: int, intervals: list[dict[str, Any]], **more: Any) -> RefreshRecord:
    """A record with intervals."""
    document = {
        "refresh-id": "r",
        "version-id": 1,
        "base-tables": [item.document() for item in base(snapshot)],
        "intervals": intervals,
        **more,
    }
    return RefreshRecord.read(document, source="test")


steps = st.lists(
    st.tuples(st.integers(0, LAST - 1), st.integers(1, 5), st.integers(1, 4)),  # first hour, hours, snapshot
    max_size=12,
)


@given(steps=steps, only=st.booleans(), hours_read=st.tuples(st.integers(0, LAST - 1), st.integers(1, 5)))
def test_every_moment_has_the_snapshot_that_was_refreshed_last(
    steps: list[tuple[int, int, int]], only: bool, hours_read: tuple[int, int]
) -> None:
    """Intervals are disjoint, merged if their snapshots are equal, and dropped if these are the full refresh's."""
    found = record(-1 if only else 1, [], **({"only-intervals": True} if only else {}))
    model: dict[int, int] = {}
    for number, (first, hours, snapshot) in enumerate(steps):
        stretch = interval(first, first + hours)
        new = IntervalPart(stretch, base(snapshot), f"r{number}", number)
        found = record(-1 if only else 1, after(found, stretch, new), **({"only-intervals": True} if only else {}))
        model.update(dict.fromkeys(range(first, first + hours), snapshot))

    for hour in range(LAST + 5):
        expected = model.get(hour, -1 if only else 1)
        (part,) = parts_in(found, interval(hour, hour + 1))
        assert part.base_tables[0].snapshot_reference == expected
        assert part.computed == (not only or hour in model)
    entries = [item for item in parts_of(found) if item.interval is not None]
    for earlier, later in itertools.pairwise(entries):
        assert earlier.interval
        assert later.interval
        assert earlier.interval.end < later.interval.start or earlier.origin != later.origin
    assert only or all(part.origin != parts_of(found)[0].origin for part in entries)
    first, hours = hours_read
    snapshots = {part.base_tables[0].snapshot_reference for part in parts_in(found, interval(first, first + hours))}
    assert snapshots == {model.get(hour, -1 if only else 1) for hour in range(first, first + hours)}


@pytest.mark.parametrize(
    ("intervals", "message"),
    [
        ([{"start-us": 5, "end-us": 5}], "is empty"),
        ([{"start-us": 5, "end-us": 4}], "is empty"),
        ([{"start-us": 0, "end-us": 2**62}], "out of range"),
        ([{"start-us": 0, "end-us": 9}, {"start-us": 8, "end-us": 12}], "two intervals overlap"),
        ([{"start-us": 0, "end-us": 9}, {"start-us": 9, "end-us": 12, "column": "b"}], "of several columns"),
        ([{"start-us": "0", "end-us": 9}], "valid integer"),
    ],
)
def test_invalid_stored_intervals_are_refused(intervals: list[dict[str, Any]], message: str) -> None:
    """The message names the record, whichever writer it is of."""
    entry = {"column": "a", "refresh-id": "r", "base-tables": []}

    with pytest.raises(InvalidMetadataError, match=message):
        record(1, [{**entry, **item} for item in intervals])


def test_a_record_without_intervals_is_read_as_before() -> None:
    """Other writers do not write intervals."""
    found = RefreshRecord.read({"refresh-id": "r", "version-id": 1, "base-tables": []}, source="test")

    assert (found.intervals, found.interval, found.only_intervals) == ((), None, False)
    assert len(parts_of(found)) == 1
    assert set(found.document()) == {"refresh-id", "version-id", "base-tables"}


def test_an_interval_of_an_invalid_column_gives_no_sql() -> None:
    """A record is untrusted: a name in it is quoted and must be a column of dates or times."""
    fields = [{"name": "a`b", "type": "date"}, {"name": "n", "type": "long"}]

    assert condition(replace(interval(0, 24), column="a`b"), fields) == (
        "`a``b` >= DATE '2024-06-01' AND `a``b` < DATE '2024-06-02'"
    )
    for column in ("n", "nowhere"):
        with pytest.raises(InvalidMetadataError, match="not a date or time"):
            condition(replace(interval(0, 24), column=column), fields)
