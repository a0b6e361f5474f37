# SPDX-License-Identifier: Apache-2.0
"""Checks before publication, in real Spark and in both layouts: only rows that pass become visible."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Literal

import pytest
from pyiceberg.table import StaticTable

from airflow_mv.checks import CHECKS_PROPERTY, Check, condition, not_null, row_count, row_count_change, unique
from airflow_mv.core.refresh import RefreshOptions, plan_refresh
from airflow_mv.core.refresh.plan import RefreshResult
from airflow_mv.core.refresh.run import publish, stage
from airflow_mv.core.script import Outcome, Script
from airflow_mv.core.spec.interval import Span
from airflow_mv.errors import CheckFailedError, ConfigurationError, JobError
from airflow_mv.extras.describe import history
from tests.builders import LAYOUTS
from tests.engine.support import Lake, no_spark

DAILY = "SELECT day, region, amount FROM {ns}.orders"
COLUMNS = "day integer, region varchar, amount bigint"
ROWS = ["(1, 'north', 10), (1, 'south', 20)", "(2, 'north', 30)"]


def refreshed(lake: Lake, layout: Literal["pointed", "registered"], **definition: Any) -> Lake:
    """A lake with a view of a base table, refreshed."""
    lake.table("orders", COLUMNS, *ROWS)
    lake.create("daily", DAILY, layout=layout, **definition)
    lake.refresh("daily")
    return lake


@pytest.fixture(params=LAYOUTS)
def home(request: pytest.FixtureRequest, lake: Lake) -> Lake:
    """The view in each layout, for tests in which the layouts may differ."""
    return refreshed(lake, request.param)


@pytest.fixture
def pointed(lake: Lake) -> Lake:
    return refreshed(lake, "pointed")


def read(home: Lake) -> list[tuple[Any, ...]]:
    """The rows that a reader gets through the catalog alone."""
    storage = home.catalog.load_storage(home.view("daily"))
    table = StaticTable.from_metadata(storage.location)
    assert storage.table.head is not None
    return sorted((tuple(row.values()) for row in table.scan(snapshot_id=storage.table.head).to_arrow().to_pylist()),
                  key=repr)  # fmt: skip


def refresh(home: Lake, *checks: Any, **options: Any) -> RefreshResult:
    return home.refresh("daily", checks=tuple(checks), **options)


def failing(home: Lake, *checks: Check, **options: Any) -> CheckFailedError:
    """Refresh, which must fail and leave the published rows unchanged."""
    before, base = read(home), home.view("daily").base
    records = len(history(home.catalog, home("daily")))
    with pytest.raises(CheckFailedError) as caught:
        refresh(home, *checks, **options)
    assert read(home) == before
    assert home.view("daily").base == base
    assert len(history(home.catalog, home("daily"))) == records
    return caught.value


def test_a_failed_check_publishes_nothing_and_its_error_has_the_rows(
    home: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    """Invalid rows are shown once, in the error, and not published; after the data is fixed, the next try publishes."""
    home.insert("orders", "(3, 'north', -5), (3, NULL, 7)")
    with caplog.at_level(logging.ERROR):
        error = failing(home, condition("amount >= 0"), not_null("region", "day"), unique("day", "amount"))

    message = str(error)
    assert message.startswith(f"view {home('daily')}: 2 of 3 checks failed, so nothing was published")
    assert "check 'amount >= 0': expected amount >= 0, of each row; found violating rows: 1" in message
    assert "row day=3, region=north, amount=-5" in message
    assert "row day=3, region=NULL, amount=7" in message
    assert "row day=3" not in caplog.text, "the error has it"
    assert [result.name for result in error.results] == ["amount >= 0", "not_null(region, day)"]
    assert (error.exit_code, error.retryable) == (4, False)

    home.run("DELETE FROM {ns}.orders WHERE amount < 0 OR region IS NULL")
    result = refresh(home, condition("amount >= 0"), not_null("region", "day"))
    assert result.outcome == "refreshed"
    assert [check["result"] for check in result.to_dict()["checks"]] == ["passed", "passed"]
    assert history(home.catalog, home("daily"))[-1]["checks"] == [
        {"name": "amount >= 0", "result": "passed"},
        {"name": "not_null(region, day)", "result": "passed"},
    ]


def test_the_log_has_the_rows_that_do_not_fit_into_the_error(home: Lake, caplog: pytest.LogCaptureFixture) -> None:
    home.insert("orders", ", ".join(f"(3, 'north', -{number})" for number in range(1, 9)))
    with caplog.at_level(logging.ERROR):
        message = str(failing(home, condition("amount >= 0")))
    rows = [f"row day=3, region=north, amount=-{number}" for number in range(1, 9)]
    places = [(row in message, row in caplog.text) for row in rows]
    assert sorted(places) == [(False, True)] * 3 + [(True, False)] * 5
    assert "and 3 more in the log" in message


def test_the_rejected_rows_are_kept_for_inspection(home: Lake) -> None:
    """The message says where they are."""
    home.insert("orders", "(3, 'north', -5)")
    message = str(failing(home, condition("amount >= 0")))

    kept = message.rpartition("kept for inspection: ")[2]
    if "metadata file" in kept:
        location = kept.removeprefix("the Iceberg table with the metadata file ")
        assert StaticTable.from_metadata(location).scan().to_arrow().num_rows == 4
        return
    branch = kept.split(" ")[1]
    storage = home.view("daily").storage_table
    assert storage is not None
    assert home.sql(f"SELECT * FROM {storage.sql()} VERSION AS OF '{branch}'").count() == 4


def test_a_retry_runs_again_and_never_resumes_rows_that_failed(home: Lake) -> None:
    """The staged rows of a failed try are complete; without their check results they would look valid."""
    home.insert("orders", "(3, 'north', -5)")
    failing(home, condition("amount >= 0"))
    jobs = len(home.scripts)
    failing(home, condition("amount >= 0"))
    assert len(home.scripts) == jobs + 1

    result = refresh(home)
    assert (result.outcome, result.checks) == ("refreshed", ())
    assert len(home.scripts) == jobs + 2
    assert not history(home.catalog, home("daily"))[-1].get("checks")


def test_rows_that_passed_are_resumed_only_under_the_same_checks(home: Lake) -> None:
    """A worker died between Spark and the swap. Its successor uses the results only if the checks are the same."""
    home.insert("orders", "(3, 'north', -5)")
    options = RefreshOptions(checks=(condition("amount < 1000"), condition("amount >= 0", severity="warn")))
    plan = plan_refresh(home.catalog, home("daily"), options)
    staged = stage(home.catalog, plan, home.stager)
    assert staged is not None

    other = plan_refresh(home.catalog, home("daily"), RefreshOptions(checks=(condition("amount >= 0"),)))
    assert other.refresh_id != plan.refresh_id
    failing(home, condition("amount >= 0"))

    stage(home.catalog, plan, home.stager)
    resumed = home.refresh("daily", checks=options.checks, stager=no_spark)
    assert resumed.outcome == "refreshed"
    assert [check["result"] for check in resumed.to_dict()["checks"]] == ["passed", "warned"]


def test_a_job_that_did_not_run_the_checks_is_not_published(pointed: Lake) -> None:
    """A driver with an older package, or another script: missing results are not a success."""
    pointed.insert("orders", "(3, 'north', 5)")
    scripts = []

    def forgetful(script: Script) -> Outcome:
        scripts.append(script)
        return pointed.stager(Script.from_json(json.dumps({**json.loads(script.to_json()), "checks": None})))

    with pytest.raises(JobError, match="has not run the plan's checks"):
        pointed.refresh("daily", checks=(row_count(at_least=1),), stager=forgetful)
    plan = plan_refresh(pointed.catalog, pointed("daily"), RefreshOptions(checks=(row_count(at_least=1),)))
    with pytest.raises(JobError, match="has not run the plan's checks"):
        publish(pointed.catalog, plan, forgetful(plan.script))  # type: ignore[arg-type]
    assert len(read(pointed)) == 3


def test_a_warning_is_logged_and_the_rows_are_published(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    home = refreshed(lake, "registered")
    home.insert("orders", "(3, 'north', -5)")
    with caplog.at_level(logging.WARNING):
        result = refresh(home, condition("amount >= 0", severity="warn"))

    assert result.outcome == "refreshed"
    assert "row day=3, region=north, amount=-5" in caplog.text
    (check,) = history(home.catalog, home("daily"))[-1]["checks"]
    assert check == {"name": "amount >= 0", "result": "warned", "observed": "violating rows: 1"}
    assert "amount=-5" not in json.dumps(result.to_dict())


def test_an_incremental_refresh_is_checked_with_all_rows(lake: Lake) -> None:
    """Only one row is written, and it duplicates a key of a stored row."""
    home = refreshed(lake, "registered", refresh_strategy="incremental")
    home.insert("orders", "(1, 'north', 11)")
    error = failing(home, unique("day", "region"), on_fallback="fail")
    assert "row day=1, region=north, number of rows=2" in str(error)

    result = refresh(home, unique("day", "region", "amount"), row_count_change(at_most_up=0.5), on_fallback="fail")
    assert result.mode in ("append", "replace-keys")
    assert len(read(home)) == 4


def test_the_first_refresh_is_checked_without_a_comparison(lake: Lake) -> None:
    lake.table("orders", COLUMNS, *ROWS)
    lake.create("daily", DAILY)
    with pytest.raises(CheckFailedError):
        refresh(lake, row_count(at_least=4))
    assert lake.status("daily").state == "never-refreshed"

    result = refresh(lake, row_count_change(at_most_down=0.0), row_count(at_least=3, at_most=3))
    assert result.checks[0].observed == "rows: 3, no earlier rows"
    assert len(read(lake)) == 3


def test_nothing_is_checked_if_nothing_is_staged(pointed: Lake) -> None:
    """For a fresh view or a compacted base table the rows are already published."""
    wrong = condition("amount > 1000")
    assert pointed.refresh("daily", checks=(wrong,), stager=no_spark).outcome == "fresh"
    target = f"{pointed.namespace}.orders"
    pointed.run(f"CALL lake.system.rewrite_data_files(table => '{target}', options => map('rewrite-all', 'true'))")
    result = pointed.refresh("daily", checks=(wrong,), stager=no_spark)
    assert (result.mode, result.checks) == ("fast-forward", ())


def test_the_checks_of_an_interval_read_only_its_rows(lake: Lake) -> None:
    """A backfill of March does not fail because of rows of February, and compares March with March."""
    lake.table("orders", "day date, amount bigint", "('2024-02-01', -1), ('2024-03-01', 5), ('2024-03-02', 6)")
    lake.create("daily", "SELECT day, amount FROM {ns}.orders")
    lake.refresh("daily")
    lake.insert("orders", "('2024-02-02', -2), ('2024-03-03', 7)")
    march = Span(datetime(2024, 3, 1, tzinfo=UTC), datetime(2024, 4, 1, tzinfo=UTC), "day")

    same = row_count_change(at_most_up=0.0)
    with pytest.raises(CheckFailedError, match="found rows: 3, before: 2"):
        refresh(lake, condition("amount > 0"), same, interval=march)
    result = refresh(lake, condition("amount > 0"), row_count(at_least=3, at_most=3), interval=march)
    assert [check.passed for check in result.checks] == [True, True]


# -- the view's own checks ----------------------------------------------------------------------


def test_the_checks_of_a_view_apply_to_every_refresh(lake: Lake) -> None:
    lake.table("orders", COLUMNS, *ROWS)
    stored = json.dumps([{"not_null": ["day"]}, "amount >= 0", {"row_count": {"at_least": 1}, "severity": "warn"}])
    lake.create("daily", DAILY, properties={CHECKS_PROPERTY: stored})
    assert [check.name for check in lake.refresh("daily").checks] == ["not_null(day)", "amount >= 0", "row_count"]

    lake.insert("orders", "(3, 'north', -5)")
    failing(lake)
    failing(lake, not_null("day"))


def test_a_view_cannot_be_created_with_checks_that_do_not_match_its_columns(lake: Lake) -> None:
    lake.table("orders", COLUMNS, *ROWS)
    for text, message in [
        ('[{"not_null": ["nothing"]}]', "the view has no column 'nothing'; it has day, region, amount"),
        ('[{"python": "os:getcwd"}]', "is a function, which a property must not name"),
        ("[oops", "is not JSON"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            lake.create("daily", DAILY, properties={CHECKS_PROPERTY: text})
    assert not lake.catalog.exists(lake("daily"))
