# SPDX-License-Identifier: Apache-2.0
"""The example DAGs run."""

from __future__ import annotations

import time
from datetime import date
from pathlib import Path

import pyarrow.compute as pc
import pytest

from airflow_mv.assets import materialized_view_asset
from airflow_mv.checks import condition, row_count
from airflow_mv.errors import InvalidIdentifierError
from airflow_mv.tasks.older_airflow import BEFORE_3_2, BEFORE_3_3
from examples.demo.data import rows as flight_rows
from examples.demo.home import dags_folder
from tests.airflow.conftest import VIEW, Airflow
from tests.builders import QUERY, Lake

EXAMPLES = Path(__file__).parents[2] / "dags_examples"
BARE = QUERY.replace("lake.sales.orders", "orders")


def test_no_example_has_an_import_error_and_the_daily_refresh_of_a_fresh_view_does_nothing(
    airflow: Airflow, sales: Lake
) -> None:
    """The folder is parsed as a whole. The view exists with the example's query, so the tasks do nothing."""
    files = sorted(EXAMPLES.glob("*.py"))
    assert {"refresh_daily.py", "gate_on_freshness.py", "plan_and_commit.py"} <= {file.name for file in files}
    sales.view(sql=BARE)
    sales.refresh()
    if BEFORE_3_2:  # one example names what is elsewhere there: docs/install.md says where
        (error,) = airflow.run_file(EXAMPLES, dag_id="refresh_daily").import_error.strip().split("Traceback")[1:]
        assert "cannot import name 'CronDataIntervalTimetable'" in error
    run = airflow.run_file(EXAMPLES / "refresh_daily.py" if BEFORE_3_2 else EXAMPLES, dag_id="refresh_daily")

    assert run.import_error == ""
    assert run.states == {"create": "success", "refresh": "success"}, run.log
    assert run.values["refresh"]["outcome"] == "fresh"


def test_the_gate_lets_a_report_read_the_fresh_view(airflow: Airflow, daily: Lake) -> None:
    """The report streams the rows without Spark, and its log names the refresh that it read."""
    run = airflow.run_file(EXAMPLES / "gate_on_freshness.py")

    assert run.states == {"fresh": "success", "report": "success"}, run.log
    assert run.values["report"] == {"rows": 2, "columns": 3, "lag_seconds": 0}
    assert f"Reading lake.sales.daily: refresh {daily.storage().state.current_refresh_id}" in run.task_log("report")


def test_a_refresh_that_a_repeated_event_started_finds_the_view_fresh(airflow: Airflow, daily: Lake) -> None:
    """The event came twice or too late. Starting by a commit is tested with a triggerer."""
    run = airflow.run_file(EXAMPLES / "refresh_on_base_commit.py")

    assert run.states == {"refresh": "success"}, run.log
    assert run.values["refresh"]["outcome"] == "fresh"


@pytest.mark.slow
def test_the_demos_backfill_computes_the_day_of_its_run_from_the_flights(airflow: Airflow, sales: Lake) -> None:
    """Real Spark on three days of the demo's flights: the run is for the second day, and repeating it is a no-op."""
    flights = flight_rows("flights", 1).filter(pc.field("day") <= 3)
    sales.iceberg.create_namespace("nyc")
    sales.iceberg.create_table("nyc.flights", flights.schema).append(flights)
    by_hand = {"logical_date": "2013-01-03T13:37:00Z"}
    first, again = (airflow.run_file(dags_folder() / "nyc_backfill.py", **by_hand) for _ in range(2))

    assert first.states == again.states == {"create": "success", "refresh": "success"}, first.log + again.log
    assert first.values["refresh"]["interval"] == {
        "column": "day",
        "start": "2013-01-02T00:00:00+00:00",
        "end": "2013-01-03T00:00:00+00:00",
    }
    assert (first.values["refresh"]["outcome"], again.values["refresh"]["outcome"]) == ("refreshed", "fresh")
    counted = flights.filter(pc.field("day") == 2).group_by("origin").aggregate([("day", "count")])
    assert {(row["origin"], row["flights"], row["day"]) for row in sales.read("nyc.by_day")} == {
        (row["origin"], row["day_count"], date(2013, 1, 2)) for row in counted.to_pylist()
    }
    assert counted.num_rows == 3


def test_a_late_view_is_reported_once_and_its_recovery_once(airflow: Airflow, sales: Lake) -> None:
    """Each run checks the view again, and knows which alerts were sent; Airflow 3.2 has nothing that remembers it."""
    sales.view(properties={"airflow-mv.max-staleness": "0 s"})
    sales.refresh()
    sales.append()
    time.sleep(0.1)
    late, again = (airflow.run_file(EXAMPLES / "lag_alerts.py") for _ in range(2))
    sales.refresh()
    recovered = airflow.run_file(EXAMPLES / "lag_alerts.py")

    assert late.values["freshness"][0]["breached"], late.log
    assert "Paging: lake.sales.daily is " in late.log
    assert ("Paging:" in again.log) is BEFORE_3_3
    assert ("lake.sales.daily is on time again (FRESH)" in recovered.log) is not BEFORE_3_3
    assert ("There is no state store here: every run sends an alert" in again.log) is BEFORE_3_3
    assert {late.state, again.state, recovered.state} == {"success"}


def test_another_operator_runs_the_job_between_plan_and_commit(airflow: Airflow, sales: Lake) -> None:
    """Real Spark through the provider's plain operator, which gets only the plan's XComs. It runs the view's checks."""
    sales.view(checks=[condition("amount >= 0"), row_count(at_least=2)])
    run = airflow.run_file(EXAMPLES / "plan_and_commit.py")

    assert run.states == {"plan": "success", "spark": "success", "commit": "success"}, run.log
    assert run.values["plan"]["mode"] == "full"
    assert run.values["commit"]["outcome"] == "refreshed"
    assert [check["result"] for check in run.values["commit"]["checks"]] == ["passed", "passed"]
    assert [event[:2] for event in run.events] == [["commit", VIEW]]
    assert len(sales.read()) == 2

    again = airflow.run_file(EXAMPLES / "plan_and_commit.py")
    assert again.states == {"plan": "success", "spark": "skipped", "commit": "success"}, again.log
    assert again.values["commit"]["outcome"] == "fresh"
    assert again.events == []


def test_a_commit_without_a_spark_job_reports_what_is_missing(airflow: Airflow, sales: Lake) -> None:
    """A task was forgotten, or ran something else."""
    sales.view()
    run = airflow.run(f"""
        plan = PlanRefreshOperator(task_id="plan", view="{VIEW}")
        CommitRefreshOperator(task_id="commit", plan=plan.output, retries=2)
        CommitRefreshOperator(task_id="nonsense", plan="{{{{ run_id }}}}")
    """)

    assert run.states == {"plan": "success", "commit": "failed", "nonsense": "failed"}
    assert "the Spark job left no outcome at" in run.task_log("commit")
    assert "which is no plan; give it the PlanRefreshOperator's output" in run.log


def test_an_asset_has_the_same_uri_wherever_it_is_named() -> None:
    """Producer and consumer write the name independently."""
    asset = materialized_view_asset("lake.sales.daily")

    assert (asset.name, asset.uri) == ("lake.sales.daily", "iceberg-mv://lake/sales/daily")
    assert materialized_view_asset("`lake`.sales.`daily`") == asset
    odd = materialized_view_asset("lake.`2024 Q1`.`a/b;c.d`")
    assert odd.uri == "iceberg-mv://lake/2024%20Q1/a%2Fb%3Bc.d"
    with pytest.raises(InvalidIdentifierError):
        materialized_view_asset("daily")
