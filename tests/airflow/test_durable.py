# SPDX-License-Identifier: Apache-2.0
"""A driver in a cluster survives the worker that submitted it: the next try finds it."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow.sdk import DAG

from airflow_mv.hooks import MaterializedViewHook
from airflow_mv.operators import RefreshMaterializedViewOperator
from tests.airflow.cluster import FakeYarn, KeptState, fake_yarn
from tests.airflow.conftest import VIEW, Airflow
from tests.builders import Lake


def _done_after(lake: Lake, questions: int) -> Callable[[FakeYarn], None]:
    """An application that is running in the first answers, and has done its work by the next one."""
    asked = itertools.count(1)
    return lambda yarn: yarn.run_driver(lake) if next(asked) > questions else None


def test_a_retry_reattaches_to_the_driver_that_a_dead_worker_submitted(
    airflow: Airflow, sales: Lake, tmp_path: Path
) -> None:
    """An hour of work on the cluster is not repeated because an Airflow pod was moved."""
    sales.view()
    with fake_yarn(tmp_path, _done_after(sales, 1)) as yarn:
        airflow.connect("spark_default", **yarn.connection)
        run = airflow.run(f"""
            from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
            poll = SparkSubmitOperator.poll_until_complete
            def die(self, external_id, context):
                if context["ti"].try_number == 1:
                    raise RuntimeError("the worker dies")
                return poll(self, external_id, context)
            SparkSubmitOperator.poll_until_complete = die
            RefreshMaterializedViewOperator(
                task_id="refresh", view="{VIEW}", spark_binary="{yarn.program}", yarn_track_via_rm_api=True, retries=1,
                retry_delay=timedelta(0))
        """)

    assert run.state == "success", run.log
    assert run.log.count("Spark-Submit cmd") == 1
    assert "Reconnecting to existing job" in run.log
    # The key has the run's clear number, because Airflow keeps task state when a task is cleared.
    assert "external_id_key=spark_job_id:0:" in run.log
    assert "external_id=application_17_1" in run.log
    assert len(sales.read()) == 2


def test_a_retry_emits_its_event_also_if_another_refresh_was_published_meanwhile(airflow: Airflow, daily: Lake) -> None:
    """Such as that of another day of the same backfill. The current refresh is not the one of the dead try then."""
    state, now = KeptState(), datetime.now(UTC)
    run = SimpleNamespace(clear_number=0, conf={}, run_after=now, data_interval_start=None, data_interval_end=None)

    def execute() -> tuple[str, list[str]]:
        with DAG("retried", schedule=None):
            operator = RefreshMaterializedViewOperator(task_id="refresh", view=VIEW)
        events: Any = defaultdict(SimpleNamespace)
        context = {"dag": operator.dag, "dag_run": run, "task_state_store": state, "outlet_events": events}
        return operator.execute(context)["outcome"], [event.extra["outcome"] for event in events.values()]

    assert execute() == ("fresh", [])
    daily.compact()
    assert execute() == ("refreshed", ["refreshed"])
    daily.compact()
    assert daily.refresh().outcome == "refreshed"
    assert execute() == ("already-committed", ["already-committed"])


def test_after_a_clear_a_finished_earlier_driver_is_ignored(airflow: Airflow, sales: Lake, tmp_path: Path) -> None:
    """Airflow's own mixin finds its id, asks YARN, and reports "already succeeded": nothing would be submitted."""
    sales.view()
    refresh_id = MaterializedViewHook().plan(VIEW).refresh_id
    before = f"spark_job_id:0:{refresh_id}"
    state = KeptState({before: "application_17_0042"})
    # Airflow waits at least 10 s between two questions.
    with fake_yarn(tmp_path, _done_after(sales, 0)) as yarn:
        airflow.connect("spark_default", **yarn.connection)
        with DAG("cleared", schedule=None) as dag:
            operator = RefreshMaterializedViewOperator(
                task_id="refresh", view=VIEW, spark_binary=str(yarn.program), yarn_track_via_rm_api=True
            )
        now = datetime.now(UTC)
        run = SimpleNamespace(clear_number=1, conf={}, run_after=now, data_interval_start=None, data_interval_end=None)
        events = defaultdict(SimpleNamespace)
        result = operator.execute({"dag": dag, "dag_run": run, "task_state_store": state, "outlet_events": events})
        operator.stager.job.hook._submit_sp.stdout.close()  # the provider does not close it

    assert len(yarn.submitted) == 1
    assert result["outcome"] == "refreshed"
    assert state[f"spark_job_id:1:{refresh_id}"] == "application_17_1"


def test_yarn_without_its_rest_interface_is_refused_in_one_line(airflow: Airflow, sales: Lake) -> None:
    """Airflow cannot find a driver again without it; another try would fail in the same way."""
    sales.view()
    airflow.connect("spark_default", conn_type="spark", host="yarn", extra={"deploy-mode": "cluster"})
    run = airflow.run(f'RefreshMaterializedViewOperator(task_id="refresh", view="{VIEW}", retries=3)')
    assert run.state == "failed"
    assert f"ConfigurationError: view {VIEW}: spark-submit was not started: YARN cluster mode" in run.log
    assert "requires yarn_track_via_rm_api=True" in run.log
    assert "another try would fail in the same way" in run.log
