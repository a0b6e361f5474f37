# SPDX-License-Identifier: Apache-2.0
"""Lag: seconds since the first base commit that is not in the view, and the readiness that follows from it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_mv.actions import refresh_views
from airflow_mv.common.status import lag
from airflow_mv.core.freshness.state import Freshness, Lag, ObservedTable, State, assess
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import RefreshRecord
from airflow_mv.core.spec.properties import max_staleness_of
from airflow_mv.core.spec.reasons import Code, Reason
from airflow_mv.core.spec.table_metadata import LogEntry, Snapshot, TableMetadata
from airflow_mv.core.spec.times import duration
from airflow_mv.errors import ConfigurationError
from airflow_mv.extras.fleet.readiness import Readiness, readiness
from tests.builders import Lake, lake

MINUTE = 60_000
START = 1_700_000_000_000


def at(minute: int) -> datetime:
    return datetime.fromtimestamp((START + minute * MINUTE) / 1000, UTC)


def table(
    *written: tuple[int, str],
    log: tuple[tuple[int, int], ...] = (),
    head: int | None = None,
    retained: range | None = None,
    name: str = "orders",
    uuid: str = "t-1",
) -> ObservedTable:
    """A table whose snapshots 1, 2, … were committed at these minutes with these operations."""
    snapshots = [
        Snapshot(
            number,
            START + minute * MINUTE,
            number - 1 or None,
            summary={"operation": operation, "added-records": "1", "total-records": "9"},
        )
        for number, (minute, operation) in enumerate(written, 1)
        if retained is None or number in retained
    ]
    head = head or len(written) or None
    entries = [LogEntry(START + minute * MINUTE, snapshot) for minute, snapshot in log]
    metadata = TableMetadata(
        2, "s3://t", START, uuid, current_snapshot_id=head, snapshots=snapshots, snapshot_log=entries
    )
    return ObservedTable(Identifier.parse(f"lake.sales.{name}"), f"s3://t/{name}-{head}.json", head, metadata, uuid)


@dataclass(frozen=True)
class Observed:
    """The part of an observation that lag is computed from."""

    freshness: Freshness
    tables: tuple[ObservedTable, ...]


def ready(seen: Observed, max_staleness: timedelta | None = None, *, now: datetime | None = None) -> Readiness:
    return readiness(seen.freshness.state, lag(seen), max_staleness, now=now)


def observe(recorded: tuple[ObservedTable, ...] | None, *now: ObservedTable, version_id: int = 1) -> Observed:
    """A view that was refreshed at ``recorded`` and is observed at ``now``."""
    record = None
    if recorded is not None:
        tables = [item.record().document() for item in recorded]
        record = RefreshRecord.read({"refresh-id": "r", "version-id": 1, "base-tables": tables}, source="test")
    return Observed(assess(record, version_id=version_id, nested_views=(), observed=now), now)


ONE, TWO = (0, "append"), (10, "append")


def test_the_lag_counts_from_the_first_missing_commit() -> None:
    """Later commits do not reset it, and time without a commit does not add to it."""
    behind = lag(observe((table(ONE),), table(ONE, TWO, (30, "delete"))))

    assert (behind.since, behind.exact) == (at(10), True)
    assert behind.seconds(at(45)) == 35 * 60
    assert lag(observe((table(ONE),), table(ONE))) == Lag(State.FRESH)
    assert lag(observe((table(ONE),), table(ONE))).seconds(at(9999)) == 0


def test_compactions_and_commits_without_rows_add_no_lag() -> None:
    """An hourly compaction must not make a view late."""
    recorded = (table(ONE),)
    assert lag(observe(recorded, table(ONE, (5, "replace")))).seconds(at(60)) == 0
    assert lag(observe(recorded, table(ONE, (5, "replace"), TWO))).since == at(10)


def test_of_several_base_tables_the_oldest_missing_commit_counts() -> None:
    """Each table also reports its own lag."""
    stock = table(ONE, name="stock")
    later = table(ONE, (20, "append"), name="stock")
    fresh = table(ONE, name="fresh")
    behind = lag(observe((table(ONE), stock, fresh), table(ONE, TWO), later, fresh))

    assert {item.identifier: item.since for item in behind.tables} == {
        "lake.sales.orders": at(10),
        "lake.sales.stock": at(20),
    }
    assert behind.since == at(10)


def test_the_lag_of_a_table_that_was_empty_counts_from_its_first_commit() -> None:
    assert lag(observe((table(),), table(TWO, (30, "append")))).since == at(10)


def test_the_lag_of_a_rollback_counts_from_when_it_was_made() -> None:
    """The view contains the rows that were rolled back; the current snapshot is older than the refresh."""
    recorded = table(ONE, TWO, log=((0, 1), (10, 2)))
    now = table(ONE, TWO, log=((0, 1), (10, 2), (25, 1)), head=1)
    behind = lag(observe((recorded,), now))

    assert (behind.since, behind.exact) == (at(25), True)


def test_if_the_first_missing_commit_has_expired_the_lag_is_a_lower_bound() -> None:
    """The lag is neither zero nor unknown: no alert is lost because of an expiry, and no grace is given on a guess."""
    history = [ONE, TWO, (20, "append"), (30, "append")]
    seen = observe((table(ONE),), table(*history, retained=range(3, 5)))
    behind = lag(seen)

    assert (behind.since, behind.exact) == (at(20), False)
    assert behind.seconds(at(21)) == 60
    assert ready(seen, timedelta(hours=1), now=at(21)) == Readiness.STALE


def test_a_table_that_was_dropped_and_recreated_lacks_all_of_its_commits() -> None:
    behind = lag(observe((table(ONE),), table((40, "append"), (50, "append"), uuid="t-2")))
    assert (behind.since, behind.exact) == (at(40), True)


def test_a_slow_local_clock_gives_no_negative_lag() -> None:
    assert lag(observe((table(ONE),), table(ONE, TWO))).seconds(at(5)) == 0


def test_times_that_are_not_dates_raise_no_error() -> None:
    """Table metadata is written by others."""
    for minute in (-(2**40), 2**40):
        assert lag(observe((table(ONE),), table(ONE, (minute, "append")))).seconds(at(0)) is not None


@pytest.mark.parametrize(
    ("recorded", "now", "expected"),
    [
        ((table(ONE),), table(ONE), Readiness.FRESH),
        ((table(ONE),), table(ONE, (31, "append")), Readiness.WITHIN_GRACE),
        ((table(ONE),), table(ONE, (30, "append")), Readiness.WITHIN_GRACE),
        ((table(ONE),), table(ONE, (29, "append")), Readiness.STALE),
        (None, table(ONE), Readiness.NEVER),
        (
            (table(ONE),),
            ObservedTable(Identifier.parse("lake.sales.orders"), error="it was dropped"),
            Readiness.UNKNOWN,
        ),
    ],
)
def test_each_readiness_state(
    recorded: tuple[ObservedTable, ...] | None, now: ObservedTable, expected: Readiness
) -> None:
    """At minute 90, with an hour of grace."""
    assert ready(observe(recorded, now), timedelta(hours=1), now=at(90)) == expected


def test_rows_of_another_definition_are_invalid_and_never_within_grace() -> None:
    """They answer another query, so they are not merely old."""
    seen = observe((table(ONE),), table(ONE), version_id=2)
    assert ready(seen, timedelta(days=999), now=at(1)) == Readiness.INVALID
    assert lag(seen).seconds() is None


def test_rows_that_another_writer_changed_in_the_storage_table_are_never_within_grace() -> None:
    changed = Freshness(State.STALE, (Reason(Code.STORAGE_CHANGED, "another writer has changed it"),), ())
    assert ready(Observed(changed, ()), timedelta(days=999)) == Readiness.STALE


def test_without_a_tolerance_any_lag_is_stale() -> None:
    assert ready(observe((table(ONE),), table(ONE, TWO)), now=at(10)) == Readiness.STALE


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (timedelta(hours=2), 7200), (90, 90), (0.5, 0.5), ("90", 90), ("2 h", 7200), ("2h", 7200), ("30 m", 1800),
        ("1.5 Hours", 5400), (" 1 day ", 86_400), ("0s", 0), ("1w", 604_800),
    ],
)  # fmt: skip
def test_a_duration_is_parsed_in_the_formats_that_users_write(written: object, seconds: float) -> None:
    assert duration(written, what="max_staleness") == timedelta(seconds=seconds)


@pytest.mark.parametrize("written", ["two hours", "2 y", "-1 h", -1, True, "inf", "nan", [], "999999999 w", "1 h 30 m"])
def test_an_invalid_duration_is_refused_with_the_name_of_its_setting(written: object) -> None:
    with pytest.raises(ConfigurationError, match="max_staleness is "):
        duration(written, what="max_staleness")


def test_the_view_s_property_sets_its_max_staleness() -> None:
    assert max_staleness_of("2 h", view="v") == timedelta(hours=2)
    assert max_staleness_of(None, view="v") is None
    assert duration("", what="rendered from a template") is duration("None", what="the same") is None
    with pytest.raises(ConfigurationError, match=r"view v, property airflow-mv\.max-staleness is 'soon'"):
        max_staleness_of("soon", view="v")


@pytest.fixture
def home(sqlite_uri: str, warehouse: Path) -> Iterator[Lake]:
    with lake(sqlite_uri, warehouse) as found:
        found.table()
        found.action = refresh_views
        yield found


def test_a_refresh_reports_the_lag_of_the_view(home: Lake) -> None:
    """The lag counts from the first base commit that it added; later commits do not shorten it."""
    home.view()
    assert home.refresh().lag_seconds is None  # unknown for a view without rows
    home.append()
    first = home.load().metadata.snapshots[-1].timestamp_ms
    time.sleep(0.3)
    home.append((10, "east", 1))
    before = time.time() - first / 1000
    lag = home.refresh().lag_seconds
    assert lag is not None
    assert before <= lag < before + 60
    assert home.refresh().lag_seconds is None
