# SPDX-License-Identifier: Apache-2.0
"""Checks before publication as a DAG author sees them: the effect of a failure on the task, its log and readers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_mv.core.refresh.plan import RefreshPlan
from airflow_mv.core.refresh.run import find_staged
from airflow_mv.core.script import CheckResult
from tests.airflow.conftest import VIEW, Airflow
from tests.builders import Lake
from tests.extras.maintenance.support import local

EXAMPLES = Path(__file__).parents[2] / "dags_examples"


@pytest.fixture
def bad(daily: Lake) -> Lake:
    """A refreshed view whose base table has a new row that must not become visible."""
    daily.append((4, "west", -3))
    return daily


@pytest.mark.slow
def test_the_example_publishes_valid_rows_and_rejects_invalid_ones(airflow: Airflow, sales: Lake) -> None:
    """Without a retry, because the same rows would fail the same check."""
    sales.view()
    good = airflow.run_file(EXAMPLES / "checks_before_publish.py")
    assert good.states == {"refresh": "success"}, good.log
    assert {check["result"] for check in good.values["refresh"]["checks"]} == {"passed"}
    assert len(good.values["refresh"]["checks"]) == 6
    assert "6 of 6 checks passed before it was published" in good.task_log("refresh")
    before = sales.read()

    sales.append((4, "west", -3))
    held = airflow.run_file(EXAMPLES / "checks_before_publish.py")
    log = held.task_log("refresh")
    assert held.states == {"refresh": "failed"}
    assert "CheckFailedError: view lake.sales.daily: 1 of 6 checks failed, so nothing was published" in log
    assert "check 'amount >= 0': expected amount >= 0, of each row; found violating rows: 1" in log
    assert "row region=west, orders=1, amount=-3" in log
    assert held.events == []
    assert sales.read() == before


def test_a_commit_rejects_rows_that_another_operator_s_job_found_invalid(airflow: Airflow, bad: Lake) -> None:
    """The checks cross XCom with the plan, and templates in them are rendered. The job's answer is written here."""
    before = bad.read()
    planned = airflow.run(f"""
        from airflow_mv.checks import condition
        checks = [condition("amount >= {{{{ params.least }}}}"), "region <> 'nowhere'"]
        PlanRefreshOperator(task_id="plan", view="{VIEW}", checks=checks, params={{"least": 0}})
    """)
    plan = RefreshPlan.from_dict(planned.values["plan"])
    assert plan.script is not None
    assert plan.script.checks is not None
    assert [check.name for check in plan.script.checks.checks] == ["amount >= 0", "region <> 'nowhere'"]
    results = tuple(CheckResult(check.name, "error", check.name[0] == "r", "") for check in plan.script.checks.checks)
    results = (replace(results[0], columns=("region", "amount"), rows=(("west", "-3"),)), results[1])
    staged = replace(bad.stager(plan.script), checks=results, checks_digest=plan.script.checks.digest)
    local(str(plan.script.outcome_location)).write_text(staged.to_json())
    run = airflow.run(f"""CommitRefreshOperator(task_id="commit", plan={planned.values["plan"]!r})""")

    assert planned.rendered["plan"]["checks"][0]["condition"] == "amount >= 0"
    assert run.states == {"commit": "failed"}, run.log
    assert "1 of 2 checks failed, so nothing was published" in run.task_log("commit")
    assert run.task_log("commit").count("row region=west, amount=-3") == 1
    assert bad.read() == before

    # A task without the checks does not find what this one has refused.
    good = airflow.run(f"""PlanRefreshOperator(task_id="plan", view="{VIEW}")""")
    unchecked = RefreshPlan.from_dict(good.values["plan"])
    assert unchecked.script is not None
    assert unchecked.records == plan.records
    assert unchecked.script.outcome_location != plan.script.outcome_location
    assert find_staged(bad.catalog, unchecked) is None


def test_a_function_of_the_dag_file_is_refused_if_a_remote_driver_would_need_it(airflow: Airflow, bad: Lake) -> None:
    """Airflow names a DAG file's module itself, so no driver can import it. It is refused before Spark starts."""
    run = airflow.run(f"""
        from airflow_mv.checks import python
        def enough(rows):
            return rows.count() > 3
        RefreshMaterializedViewOperator(task_id="refresh", view="{VIEW}", checks=[python(enough)])
        RefreshMaterializedViewOperator(task_id="wrong", view="{VIEW}", checks=[{{"not_null": "nothing"}}])
    """)

    assert run.states == {"refresh": "failed", "wrong": "failed"}
    assert "its function is in the DAG file, which Spark's driver does not have" in run.task_log("refresh")
    assert "ConfigurationError: view lake.sales.daily, check 'not_null(nothing)': the view has no column" in run.log
    assert "Spark-Submit cmd" not in run.log
