# SPDX-License-Identifier: Apache-2.0
"""The page shows of each refresh: its interval, reasons, fallback, and the results of its checks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_mv.core.freshness.observe import observe
from airflow_mv.core.script import CheckResult
from airflow_mv.core.spec.reasons import Code, Reason
from airflow_mv.extras.describe import history
from airflow_mv.extras.fleet.summaries import summary_of
from airflow_mv.operators.task import event_extra, log_result
from airflow_mv.plugin.messages import said
from airflow_mv.plugin.page import with_expiry, with_history
from airflow_mv.plugin.rows import ViewRow, row_of
from tests.core.refresh.intervals.support import VIEW, Days, days_lake

FIRST = {"column": "day", "start": "2024-06-01T00:00:00+00:00", "end": "2024-06-02T00:00:00+00:00"}
NOTHING = {"reasons": [], "fallback": None, "interval": None, "checks": None}


@pytest.fixture
def lake(sqlite_uri: str, warehouse: Path) -> Iterator[Days]:
    """A view by days, refreshed."""
    with days_lake(sqlite_uri, warehouse, "pointed") as made:
        made.sell((1, 10), (2, 20))
        made.refresh(VIEW)
        yield made


def row(lake: Days, view: str = VIEW) -> ViewRow:
    """The view's row in the list."""
    return row_of(summary_of(observe(lake.catalog, view)))


def lines(lake: Days, *events: dict[str, Any], view: str = VIEW) -> list[dict[str, Any]]:
    """The refreshes on a view's page, the newest first."""
    known = [{"kind": "refreshed", "at": f"2030-01-0{day}", **event} for day, event in enumerate(events, 1)]
    return list(with_history({"history": history(lake.catalog, view)}, known)["history"])


def test_a_refresh_shows_its_interval(lake: Days) -> None:
    """Otherwise thirty rows of a backfill would look the same: in the list, the record, and Airflow's event."""
    lake.sell((1, 1))
    result = lake.refresh_days(1, 2)
    found = row(lake).to_dict()["last"]
    assert (found["interval"], found["reasons"][-1]["code"]) == (FIRST, "INTERVAL")
    assert lines(lake)[0]["interval"] == FIRST
    assert said(event_extra(result))["interval"] == FIRST


def test_the_log_and_the_event_name_the_table_that_engines_read(
    sqlite_uri: str, warehouse: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever waits for the event knows what to query."""
    with days_lake(sqlite_uri, warehouse, "table") as made, caplog.at_level(logging.INFO):
        made.sell((1, 10))
        result = made.refresh(VIEW)
        log_result(logging.getLogger("task"), result)
    assert event_extra(result)["storage_table"] == f"lake.{VIEW}"
    assert f"other engines read the rows in: lake.{VIEW}" in caplog.text


def test_an_unexpected_recompute_is_marked_with_its_reason(lake: Days) -> None:
    """In the list and in the timeline, even if the record is removed and only Airflow's event remains."""
    view = str(
        lake.view(
            "first", "SELECT min_by(region, amount) AS region FROM sold GROUP BY day", refresh_strategy="incremental"
        )
    )
    lake.refresh(view)
    assert row(lake, view).to_dict()["last"]["fallback"] is None
    lake.sell((3, 30))
    result = lake.refresh(view)
    found = row(lake, view).to_dict()["last"]["fallback"]
    assert found
    assert found == result.fallback
    assert lines(lake, view=view)[0]["fallback"] == found
    older = {"refresh_id": "older", **said(event_extra(result))}
    marked = [line["fallback"] for line in lines(lake, older, view=view) if "fallback" in line]
    assert marked == [found, found], "the first refresh is full, too, as expected"


def test_an_event_has_the_reasons_and_check_results_within_bounds(lake: Days) -> None:
    """A refresh of a hundred base tables has a hundred reasons, and Airflow keeps events for long."""
    lake.sell((1, 1))
    many = tuple(Reason(Code.BASE_CHANGED, f"{number} " + "x" * 900) for number in range(100))
    checks = tuple(CheckResult(f"check {number}", "warn", number > 0, "true") for number in range(3))
    extra = event_extra(replace(lake.refresh(VIEW), reasons=many, checks=checks))
    assert [(item["code"], len(item["message"])) for item in extra["reasons"]] == [("BASE_CHANGED", 300)] * 5
    found = lines(lake, {"refresh_id": "older", **said(extra)})[0]
    assert found["reasons"][1]["message"].startswith("1 xxx")
    assert found["checks"] == {"passed": 2, "of": 3, "lines": ["check 0: warned"]}


def test_a_recorded_refresh_shows_its_checks_its_duration_and_who_ran_the_command() -> None:
    """Checks by name, with the observed value of a warning. Who is known of a DAG is decided by its events."""
    checks = [{"name": "rows", "result": "passed"}, {"name": "late", "result": "warned", "observed": "7 rows"}]
    ran = {
        "refreshed_at": "2030-01-01",
        "mode": "full",
        "seconds": 9.5,
        "requested_by": {"user": "lee", "host": "edge"},
    }
    by_dag = {**ran, "refreshed_at": "2029-01-01", "requested_by": {"dag-id": "hidden", "user": "kim"}}
    facts = {"history": [{**ran, "refresh_id": "one", "checks": checks}, {**by_dag, "refresh_id": "two"}]}
    line, other = with_history(facts, [])["history"]
    assert line["checks"] == {"passed": 1, "of": 2, "lines": ["rows: passed", "late: warned (7 rows)"]}
    assert [(item["seconds"], item["by"]) for item in (line, other)] == [(9.5, "lee@edge"), (9.5, None)]


def test_the_expiry_of_a_base_snapshot_is_shown_beside_the_next_scheduled_refresh() -> None:
    """Of the DAGs that refresh the view, the earliest run counts; later than a day it is shown if it comes too late."""

    def at(hours: float | None) -> str | None:
        return None if hours is None else (datetime.now(UTC) + timedelta(hours=hours, minutes=1)).isoformat()

    def shown(expires: float | None, *runs: float | None) -> list[str]:
        facts = {"base_tables": [{"identifier": "lake.s.t", "expires_at": at(expires)}]}
        found: list[str] = with_expiry(facts, [{"next_run": at(run)} for run in runs])["expiring"]
        return [text.removeprefix("the recorded snapshot of lake.s.t may expire ") for text in found]

    assert shown(14, 20, None, 44) == [
        "in about 14 h, and the next refresh is scheduled in about 20 h: it may be a full one"
    ]
    assert shown(14, 5, 20) == ["in about 14 h; the next refresh is scheduled in about 5 h, before that"]
    assert shown(14, None) == ["in about 14 h; then the next refresh is a full one"]
    assert [len(shown(40, run)) for run in (None, 5, 44)] == [0, 0, 1]
    assert shown(None, 5) == []


@pytest.mark.parametrize("wrong", ["text", 7, ["text"], {"start": 1}, {"start": "x", "end": "y", "column": "z"}, None])
def test_an_invalid_description_of_a_refresh_is_omitted(wrong: Any) -> None:
    """A user who may create asset events chooses their extra: it must not break a view's page."""
    assert said(dict.fromkeys(("reasons", "interval", "checks"), wrong)) == NOTHING
    assert (
        said({"fallback": [wrong], "reasons": [{"code": wrong if wrong != "text" else 1}]}) | {"reasons": []} == NOTHING
    )
