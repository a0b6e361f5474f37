# SPDX-License-Identifier: Apache-2.0
"""The rows that a run refreshes follow from the run, for each kind of run in Airflow."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter

from airflow_mv.core.spec.table_metadata import TableMetadata
from airflow_mv.core.sql.interval_columns import resolve
from airflow_mv.errors import ConfigurationError
from airflow_mv.tasks.scope import RefreshScope, RunFacts, scope_of

NOW = datetime(2024, 6, 5, 13, 7, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str, zone: Any = UTC) -> datetime:
    """A time."""
    return datetime.fromisoformat(text).replace(tzinfo=zone)


def cron(expression: str, zone: Any = UTC) -> Any:
    """The ticks of a cron expression as a function."""

    def tick(moment: datetime, direction: int) -> datetime:
        ticks = croniter(expression, moment.astimezone(zone))
        found: datetime = ticks.get_prev(datetime) if direction < 0 else ticks.get_next(datetime)
        return found

    return tick


def interval(facts: RunFacts, **options: Any) -> tuple[str, str | None]:
    """The interval of a run, as texts."""
    found = scope_of(facts, "interval", **options).interval
    assert found is not None
    return found.start.isoformat(), found.end.isoformat() if found.end else None


SCHEDULED = RunFacts(NOW, (at("2024-06-01"), at("2024-06-02")))
TRIGGERED_BY_CRON = RunFacts(NOW, (at("2024-06-02"), at("2024-06-02")), tick=cron("0 0 * * *"))
BY_ASSET = RunFacts(NOW)


def test_a_run_refreshes_the_whole_view_by_default() -> None:
    """This holds for any kind of run, with the current base tables."""
    for facts in (SCHEDULED, TRIGGERED_BY_CRON, BY_ASSET, RunFacts(NOW, partition_key="2024-06-01")):
        assert scope_of(facts, "whole") == RefreshScope()


def test_a_scheduled_run_and_a_backfill_use_the_data_interval() -> None:
    """Both kinds of run have the same fields."""
    assert interval(SCHEDULED) == ("2024-06-01T00:00:00+00:00", "2024-06-02T00:00:00+00:00")
    assert scope_of(SCHEDULED, "as_of").as_of == at("2024-06-02")


def test_an_empty_data_interval_means_the_time_since_the_previous_tick() -> None:
    """``@daily`` is a CronTriggerTimetable, whose intervals start and end at the same moment."""
    assert interval(TRIGGERED_BY_CRON) == ("2024-06-01T00:00:00+00:00", "2024-06-02T00:00:00+00:00")
    assert scope_of(TRIGGERED_BY_CRON, "as_of").as_of == at("2024-06-02")
    weekly = RunFacts(NOW, (at("2024-06-02"), at("2024-06-02")), tick=cron("0 0 * * 0"))
    assert interval(weekly) == ("2024-05-26T00:00:00+00:00", "2024-06-02T00:00:00+00:00")


def test_a_manual_run_between_two_ticks_uses_the_schedule_s_last_complete_interval() -> None:
    """Airflow's trigger form defaults the logical date to the current time; an incomplete day is not wanted."""
    click = at("2024-06-05T13:37")
    by_hand = RunFacts(NOW, (click, click), tick=cron("0 0 * * *"))

    assert interval(by_hand) == ("2024-06-04T00:00:00+00:00", "2024-06-05T00:00:00+00:00")
    assert interval(by_hand, length=timedelta(days=3))[0] == "2024-06-02T00:00:00+00:00"
    assert interval(by_hand, length=timedelta(days=3))[1] == "2024-06-05T00:00:00+00:00"
    assert "the schedule's last whole interval before 2024-06-05T13:37" in scope_of(by_hand, "interval").why
    in_berlin = RunFacts(NOW, (click, click), zone=BERLIN, tick=cron("0 0 * * *", BERLIN))
    assert interval(in_berlin) == ("2024-06-04T00:00:00+02:00", "2024-06-05T00:00:00+02:00")
    weekly = RunFacts(NOW, (click, click), tick=cron("0 0 * * 0"))
    assert interval(weekly) == ("2024-05-26T00:00:00+00:00", "2024-06-02T00:00:00+00:00")
    assert interval(RunFacts(NOW, (click, click)), length=timedelta(hours=1))[1] == "2024-06-05T13:37:00+00:00"


def test_an_interval_length_replaces_the_previous_tick() -> None:
    """An hourly run may recompute the last three days."""
    found = interval(TRIGGERED_BY_CRON, length=timedelta(days=3))
    assert found == ("2024-05-30T00:00:00+00:00", "2024-06-02T00:00:00+00:00")


def test_an_empty_data_interval_without_ticks_is_refused() -> None:
    """A custom timetable has no known length: the message names the option to set."""
    with pytest.raises(ConfigurationError, match="set interval_length"):
        interval(RunFacts(NOW, (at("2024-06-02"), at("2024-06-02"))))


def test_days_follow_the_schedule_s_time_zone_when_clocks_change() -> None:
    """The last day of March 2024 in Berlin has 23 hours."""
    end = at("2024-03-31T22:00:00")
    facts = RunFacts(NOW, (end, end), zone=BERLIN, tick=cron("0 0 * * *", BERLIN))
    expected = ("2024-03-31T00:00:00+01:00", "2024-04-01T00:00:00+02:00")

    assert interval(facts) == expected
    assert interval(facts, length=timedelta(days=1)) == expected
    assert interval(facts, length=timedelta(hours=24))[0] == expected[0]


def test_a_day_that_begins_at_1_00_is_a_day() -> None:
    """In Santiago the clocks are put forward at midnight."""
    zone = ZoneInfo("America/Santiago")
    days = ("2024-09-07T00:00:00-04:00", "2024-09-08T01:00:00-03:00", "2024-09-09T00:00:00-03:00")
    schema = {"fields": [{"id": 1, "name": "day", "type": "date"}]}
    for start, end in pairwise(days):
        moment = datetime.fromisoformat(end).astimezone(UTC)
        facts = RunFacts(NOW, (moment, moment), zone=zone, tick=cron("0 0 * * *", zone))
        key = RunFacts(NOW, partition_key=start[:10], zone=zone)
        assert interval(facts) == interval(facts, length=timedelta(days=1)) == (start, end)
        for given in (facts, key):
            span = scope_of(given, "interval", column="day").interval
            assert span is not None
            rows = resolve(span, schema["fields"], {}, TableMetadata(format_version=2, location=""), view="v")
            assert (rows.start.isoformat()[:10], rows.end.isoformat()[:10]) == (start[:10], end[:10])


@pytest.mark.parametrize(
    ("key", "start", "end"),
    [
        ("2024", "2024-01-01T00:00:00+00:00", "2025-01-01T00:00:00+00:00"),
        ("2024-12", "2024-12-01T00:00:00+00:00", "2025-01-01T00:00:00+00:00"),
        ("2024-02-29", "2024-02-29T00:00:00+00:00", "2024-03-01T00:00:00+00:00"),
        ("2024-06-01T05", "2024-06-01T05:00:00+00:00", "2024-06-01T06:00:00+00:00"),
    ],
)
def test_the_length_of_a_partition_follows_from_the_precision_of_its_key(key: str, start: str, end: str) -> None:
    """Runs of partitioned DAGs have no logical date and no data interval."""
    facts = RunFacts(NOW, partition_key=key)

    assert interval(facts) == (start, end)
    assert scope_of(facts, "as_of").as_of == datetime.fromisoformat(end)


def test_a_partition_whose_key_is_an_exact_time_ends_at_the_schedule_s_next_tick() -> None:
    """CronPartitionTimetable's default key format does not contain the length."""
    facts = RunFacts(
        NOW, partition_key="2024-06-01T00:00:00", partition_date=at("2024-06-01"), tick=cron("0 0 * * *")
    )  # fmt: skip

    assert interval(facts) == ("2024-06-01T00:00:00+00:00", "2024-06-02T00:00:00+00:00")
    assert interval(facts, length=timedelta(hours=6))[1] == "2024-06-01T06:00:00+00:00"


def test_without_a_tick_the_storage_table_s_partitions_give_the_end() -> None:
    """Only the plan knows them, so the run leaves the end open."""
    assert interval(RunFacts(NOW, partition_key="2024-06-01T00:00:00")) == ("2024-06-01T00:00:00+00:00", None)


def test_a_partition_key_that_is_not_a_time_is_refused() -> None:
    """A key such as a region's name selects no time range."""
    with pytest.raises(ConfigurationError, match="partition key 'north' is not a time"):
        interval(RunFacts(NOW, partition_key="north"))


def test_a_run_by_an_asset_or_a_manual_run_without_a_date_is_refused_for_intervals() -> None:
    """Its rows are unknown; the message names three ways to set them. ``as_of`` is the time when the run was due."""
    with pytest.raises(ConfigurationError, match="refresh_interval_start and refresh_interval_end in its conf"):
        interval(BY_ASSET)
    assert scope_of(BY_ASSET, "as_of").as_of == NOW


@pytest.mark.parametrize("wanted", ["whole", "as_of", "interval"])
@pytest.mark.parametrize("facts", [SCHEDULED, TRIGGERED_BY_CRON, BY_ASSET])
def test_a_run_s_params_have_precedence(facts: RunFacts, wanted: Any) -> None:
    """A manual run may refresh another scope than the task's."""
    params = {"refresh_interval_start": "2023-01-01", "refresh_interval_end": "2023-02-01", "refresh_full": "true"}
    run_with_params = RunFacts(facts.run_after, facts.data_interval, params=params, zone=BERLIN)

    found = scope_of(run_with_params, wanted, column="day")

    assert found.interval is not None
    assert (found.interval.start, found.interval.column) == (at("2023-01-01", BERLIN), "day")
    assert (found.full, found.as_of) == (True, None)


def test_the_param_as_of_works_with_any_scope() -> None:
    """An interval can be computed from earlier base snapshots."""
    run_with_params = RunFacts(NOW, SCHEDULED.data_interval, params={"refresh_as_of": "2024-06-03T04:05:06+02:00"})

    for wanted in ("whole", "as_of", "interval"):
        found = scope_of(run_with_params, wanted)  # type: ignore[arg-type]
        assert found.as_of == datetime.fromisoformat("2024-06-03T04:05:06+02:00")
        assert (found.interval is not None) == (wanted == "interval")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"refresh_interval_start": "2024-06-01"}, "only one of"),
        ({"refresh_interval_end": "2024-06-01"}, "only one of"),
        ({"refresh_as_of": "yesterday"}, "refresh_as_of = 'yesterday', which is not a time"),
        ({"refresh_full": "perhaps"}, "refresh_full is 'perhaps'; it must be true or false"),
    ],
)
def test_an_invalid_param_is_refused(params: dict[str, str], message: str) -> None:
    """The message names the param."""
    with pytest.raises(ConfigurationError, match=message):
        scope_of(RunFacts(NOW, params=params), "whole")


def test_empty_params_are_ignored() -> None:
    """The fields of Airflow's form have empty defaults."""
    params = {"refresh_full": False, "refresh_as_of": None, "refresh_interval_start": None, "refresh_interval_end": ""}
    assert scope_of(RunFacts(NOW, params=params), "whole") == RefreshScope()
