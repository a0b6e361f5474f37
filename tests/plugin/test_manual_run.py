# SPDX-License-Identifier: Apache-2.0
"""The input that the page requests before it runs a DAG: a DAG with scope="interval" needs an interval."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from airflow.utils.session import create_session

from airflow_mv.core.spec.interval import Span
from airflow_mv.plugin.intervals import rows_of
from airflow_mv.plugin.manual_run import asking
from airflow_mv.tasks.older_airflow import BEFORE_3_2, BEFORE_3_3
from airflow_mv.tasks.scope import RefreshScope, RunFacts, scope_of
from tests.plugin.conftest import Server

pytestmark = pytest.mark.airflow

NEVER = "pages.sales.never"
HAS_PARTITIONS = pytest.mark.skipif(BEFORE_3_2, reason="Airflow 3.1 has no schedules of partitions")
#: The date of the partition of 2 June in Berlin: a point in time in Airflow 3.2, a day since.
PARTITION = "2024-06-01T22:00:00+00:00" if BEFORE_3_3 else "2024-06-02T00:00:00+00:00"


@pytest.mark.parametrize(
    ("dag_id", "asks"),
    [
        ("refresh_sales", "nothing"),
        ("report", "nothing"),
        ("gone", "nothing"),
        ("by_day", "interval"),
        ("by_day_chain", "interval"),
        ("by_day_mapped", "interval"),
        ("by_day_in_steps", "interval"),
        ("mapped_over_scopes", "form"),
        ("some_by_day", "form"),
        ("by_template", "form"),
    ],
)
def test_the_required_input_of_a_run_follows_from_the_dag(server: Server, dag_id: str, asks: str) -> None:
    """One form cannot be used if the tasks of a run need different input."""
    with create_session() as session:
        assert asking(dag_id, session)["asks"] == asks


def test_the_page_gets_the_required_input_with_the_schedule_s_time_zone(server: Server) -> None:
    """A day of a date column is a day of that zone."""
    dags = {dag["dag_id"]: dag for dag in server.get("api/view", "user", view=NEVER)["refreshers"]["dags"]}
    shown = {key: dags["by_day"][key] for key in ("may_run", "asks", "params", "zone")}
    params = ["refresh_interval_start", "refresh_interval_end"]
    assert shown == {"may_run": True, "asks": "interval", "params": params, "zone": "Europe/Berlin"}
    assert dags["by_template"]["asks"] == "form"


@pytest.mark.parametrize("dag_id", ["by_day", "by_day_chain"])
def test_airflow_accepts_the_input_and_the_tasks_understand_it(server: Server, dag_id: str) -> None:
    """Also if the DAG declares no such params. Without the input the tasks refuse the run."""
    times = ["2024-06-01T00:00:00+02:00", "2024-06-02T00:00:00+02:00"]
    with create_session() as session:
        conf = dict(zip(asking(dag_id, session)["params"], times, strict=True))
    body = {"logical_date": None, "conf": conf}
    made = server.client("user").post(f"/api/v2/dags/{dag_id}/dagRuns", json=body)
    assert made.status_code == 200, made.text
    found = scope(made.json()).interval
    assert found is not None
    assert [found.start.isoformat(), found.end and found.end.isoformat()] == times


@pytest.mark.parametrize(
    ("dag_id", "kind", "first", "runs", "rows"),
    [
        # 2 and 3 June: of a data interval's start, of a tick that ends the day, of a partition
        ("by_day", "date", "2024-06-02T00:00:00+02:00", 2, ("2024-06-02", "2024-06-04")),
        ("by_day_chain", "date", "2024-06-03T00:00:00+00:00", 2, ("2024-06-02", "2024-06-04")),
        pytest.param("by_partition", "date", PARTITION, 2, ("2024-06-02", "2024-06-04"), marks=HAS_PARTITIONS),
        # a day of UTC is parts of two days of Berlin
        ("by_day", "timestamptz", "2024-06-02T00:00:00+02:00", 3, ("2024-06-01T22", "2024-06-04T22")),
        ("three_days", "date", "2024-06-03T00:00:00+00:00", 4, ("2024-05-31", "2024-06-06")),
        # a month before them has 8928 dates
        ("by_five_minutes", "timestamptz", "2024-06-02T00:00:00+00:00", 576, ("2024-06-02", "2024-06-04")),
    ],
)
def test_a_backfill_of_rows_has_the_dates_of_the_runs_that_refresh_them(
    server: Server, dag_id: str, kind: str, first: str, runs: int, rows: tuple[str, str]
) -> None:
    """Airflow would create as many runs for these dates."""
    wanted = {"start": "2024-06-02T00:00:00+00:00", "end": "2024-06-04T00:00:00+00:00"}
    found = server.get("api/backfill", "user", dag_id=dag_id, type=kind, **wanted)
    assert datetime.fromisoformat(found["from_date"]) == datetime.fromisoformat(first)
    assert (found["runs"], found["start"].startswith(rows[0]), found["end"].startswith(rows[1])) == (runs, True, True)
    body = {"dag_id": dag_id, "from_date": found["from_date"], "to_date": found["to_date"]}
    made = server.client("user").post("/api/v2/backfills/dry_run", json=body)
    assert made.json()["total_entries"] == runs, made.text


def test_a_backfill_of_too_many_runs_is_refused(server: Server) -> None:
    """With the reason, however many dates the schedule has before these rows."""
    wanted = {"start": "2024-06-02T00:00:00+00:00", "end": "2024-09-04T00:00:00+00:00", "type": "timestamptz"}
    found = server.get("api/backfill", "user", dag_id="by_five_minutes", **wanted)
    assert found == {"problem": "These rows take more than 1,000 runs: choose fewer rows."}


@pytest.mark.parametrize(("dag_id", "problem"), [("by_seconds", "over 20,000 dates"), ("whole", "No task of this DAG")])
def test_a_schedule_of_seconds_is_not_walked_to_its_end(server: Server, dag_id: str, problem: str) -> None:
    """It has millions of dates since 2024, and its runs have no interval."""
    wanted = {"start": "2024-06-02T00:00:00+00:00", "end": "2024-06-03T00:00:00+00:00", "type": "timestamptz"}
    assert problem in server.get("api/backfill", "user", dag_id=dag_id, **wanted)["problem"]


def test_a_dag_without_dates_has_no_backfill(server: Server) -> None:
    """And a DAG that the reader may not see is not read."""
    wanted = {"start": "2024-06-02T00:00:00+00:00", "end": "2024-06-04T00:00:00+00:00", "type": "date"}
    assert "no schedule" in server.get("api/backfill", "user", dag_id="refresh_sales", **wanted)["problem"]
    answer = server.client("").get("/airflow-mv/api/backfill", params={"dag_id": "by_day", **wanted})
    assert answer.status_code == 403


def scope(run: dict[str, Any]) -> RefreshScope:
    """The scope of a run's tasks."""
    assert run["data_interval_start"] is None
    return scope_of(RunFacts(datetime.fromisoformat(run["run_after"]), params=run["conf"]), "interval")


def test_rows_of_a_day_that_begins_at_1_00_are_those_of_its_date() -> None:
    """In Santiago the clocks are put forward at midnight. A partition of a run without an end is taken for a day."""
    start = datetime(2024, 9, 8, 1, tzinfo=ZoneInfo("America/Santiago"))
    assert str(rows_of(Span(start, None, "day"), "date")) == "day in [2024-09-08, 2024-09-09)"
    assert str(rows_of(Span(start, None, "at"), "timestamptz")).endswith("04:00:00+00:00, 2024-09-09T03:00:00+00:00)")
