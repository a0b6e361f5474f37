# SPDX-License-Identifier: Apache-2.0
"""Lag: seconds since the first base commit that is not in the view, and what that means for those who wait."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from airflow_mv.errors import ConfigurationError
from airflow_mv.freshness.lag import Lag, Readiness, lag, max_staleness_of, readiness
from airflow_mv.freshness.state import Freshness, ObservedTable, State, assess
from airflow_mv.spec.materialized_view import RefreshRecord
from airflow_mv.spec.reasons import Code, Reason
from airflow_mv.spec.table import LogEntry, Snapshot, TableMetadata
from airflow_mv.spec.times import duration

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
    """A table whose snapshots 1, 2, … were written at these minutes by these operations."""
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
    return ObservedTable(f"lake.sales.{name}", f"s3://t/{name}-{head}.json", head, metadata, uuid)


@dataclass(frozen=True)
class Look:
    """What of an observation the lag is made from."""

    freshness: Freshness
    tables: tuple[ObservedTable, ...]


def look(recorded: tuple[ObservedTable, ...] | None, *now: ObservedTable, version_id: int = 1) -> Look:
    """A view that was refreshed from the one and is looked at with the other."""
    record = None
    if recorded is not None:
        tables = [item.record().document() for item in recorded]
        record = RefreshRecord.read({"refresh-id": "r", "version-id": 1, "base-tables": tables}, source="test")
    return Look(assess(record, version_id=version_id, nested_views=(), observed=now), now)


ONE, TWO = (0, "append"), (10, "append")


def test_the_lag_counts_from_the_first_commit_that_is_missing() -> None:
    """Later ones do not reset it, and time without a commit is no lag."""
    behind = lag(look((table(ONE),), table(ONE, TWO, (30, "delete"))))

    assert (behind.since, behind.exact) == (at(10), True)
    assert behind.seconds(at(45)) == 35 * 60
    assert lag(look((table(ONE),), table(ONE))) == Lag(State.FRESH)
    assert lag(look((table(ONE),), table(ONE))).seconds(at(9999)) == 0


def test_compaction_and_commits_without_rows_are_not_missed() -> None:
    """Whoever compacts each hour must not make a view late."""
    recorded = (table(ONE),)
    assert lag(look(recorded, table(ONE, (5, "replace")))).seconds(at(60)) == 0
    assert lag(look(recorded, table(ONE, (5, "replace"), TWO))).since == at(10)


def test_of_several_base_tables_the_longest_missing_commit_counts() -> None:
    """And each says its own."""
    stock = table(ONE, name="stock")
    later = table(ONE, (20, "append"), name="stock")
    fresh = table(ONE, name="fresh")
    behind = lag(look((table(ONE), stock, fresh), table(ONE, TWO), later, fresh))

    assert {item.identifier: item.since for item in behind.tables} == {
        "lake.sales.orders": at(10),
        "lake.sales.stock": at(20),
    }
    assert behind.since == at(10)


def test_a_table_that_was_empty_lacks_from_its_first_commit() -> None:
    assert lag(look((table(),), table(TWO, (30, "append")))).since == at(10)


def test_a_rollback_counts_from_when_it_was_made() -> None:
    """The rows that it took away are in the view; its own snapshot is older than the refresh."""
    recorded = table(ONE, TWO, log=((0, 1), (10, 2)))
    now = table(ONE, TWO, log=((0, 1), (10, 2), (25, 1)), head=1)
    behind = lag(look((recorded,), now))

    assert (behind.since, behind.exact) == (at(25), True)


def test_where_the_first_missing_commit_has_expired_the_lag_is_at_least_what_is_known() -> None:
    """It is not zero and not unknown: an alert must not be lost over an expiry, and no grace be given on a guess."""
    history = [ONE, TWO, (20, "append"), (30, "append")]
    seen = look((table(ONE),), table(*history, retained=range(3, 5)))
    behind = lag(seen)

    assert (behind.since, behind.exact) == (at(20), False)
    assert behind.seconds(at(21)) == 60
    assert readiness(seen, timedelta(hours=1), now=at(21)) == Readiness.STALE


def test_a_table_that_was_dropped_and_made_again_lacks_all_of_its_commits() -> None:
    behind = lag(look((table(ONE),), table((40, "append"), (50, "append"), uuid="t-2")))
    assert (behind.since, behind.exact) == (at(40), True)


def test_a_clock_that_is_behind_the_writers_gives_no_negative_lag() -> None:
    assert lag(look((table(ONE),), table(ONE, TWO))).seconds(at(5)) == 0


def test_times_that_are_no_dates_are_survived() -> None:
    """A table's metadata is written by others."""
    for minute in (-(2**40), 2**40):
        assert lag(look((table(ONE),), table(ONE, (minute, "append")))).seconds(at(0)) is not None


@pytest.mark.parametrize(
    ("recorded", "now", "expected"),
    [
        ((table(ONE),), table(ONE), Readiness.FRESH),
        ((table(ONE),), table(ONE, (31, "append")), Readiness.WITHIN_GRACE),
        ((table(ONE),), table(ONE, (30, "append")), Readiness.WITHIN_GRACE),
        ((table(ONE),), table(ONE, (29, "append")), Readiness.STALE),
        (None, table(ONE), Readiness.NEVER),
        ((table(ONE),), ObservedTable("lake.sales.orders", error="it was dropped"), Readiness.UNKNOWN),
    ],
)
def test_each_state_of_waiting(
    recorded: tuple[ObservedTable, ...] | None, now: ObservedTable, expected: Readiness
) -> None:
    """At minute 90, with an hour of grace."""
    assert readiness(look(recorded, now), timedelta(hours=1), now=at(90)) == expected


def test_rows_of_another_definition_are_invalid_and_never_within_grace() -> None:
    """They are not old answers to the question but answers to another one."""
    seen = look((table(ONE),), table(ONE), version_id=2)
    assert readiness(seen, timedelta(days=999), now=at(1)) == Readiness.INVALID
    assert lag(seen).seconds() is None


def test_rows_that_others_wrote_into_the_storage_table_are_never_within_grace() -> None:
    changed = Freshness(State.STALE, (Reason(Code.STORAGE_CHANGED, "others write to it"),), ())
    assert readiness(Look(changed, ()), timedelta(days=999)) == Readiness.STALE


def test_without_a_tolerance_any_lag_is_stale() -> None:
    assert readiness(look((table(ONE),), table(ONE, TWO)), now=at(10)) == Readiness.STALE


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (timedelta(hours=2), 7200), (90, 90), (0.5, 0.5), ("90", 90), ("2 h", 7200), ("2h", 7200), ("30 m", 1800),
        ("1.5 Hours", 5400), (" 1 day ", 86_400), ("0s", 0), ("1w", 604_800),
    ],
)  # fmt: skip
def test_a_length_of_time_as_people_write_it(written: object, seconds: float) -> None:
    assert duration(written, what="max_staleness") == timedelta(seconds=seconds)


@pytest.mark.parametrize("written", ["two hours", "2 y", "-1 h", -1, True, "inf", "nan", [], "999999999 w", "1 h 30 m"])
def test_what_is_no_length_of_time_is_refused_by_name(written: object) -> None:
    with pytest.raises(ConfigurationError, match="max_staleness is "):
        duration(written, what="max_staleness")


def test_the_views_property_says_what_it_tolerates() -> None:
    assert max_staleness_of({"airflow-mv.max-staleness": "2 h"}, view="v") == timedelta(hours=2)
    assert max_staleness_of({}, view="v") is None
    assert duration("", what="rendered from a template") is duration("None", what="the same") is None
    with pytest.raises(ConfigurationError, match=r"view v, property airflow-mv\.max-staleness is 'soon'"):
        max_staleness_of({"airflow-mv.max-staleness": "soon"}, view="v")
