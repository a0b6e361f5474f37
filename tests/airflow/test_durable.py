# SPDX-License-Identifier: Apache-2.0
"""A driver in a cluster survives the worker that submitted it: the next try finds it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace

from airflow.sdk import DAG

from airflow_mv.hooks import MaterializedViewHook
from airflow_mv.operators import RefreshMaterializedViewOperator
from tests.airflow.cluster import KeptState
from tests.airflow.conftest import VIEW, Airflow
from tests.builders import Lake
from tests.services import http_server


@contextmanager
def _resource_manager(lake: Lake, *, running: int) -> Iterator[str]:
    """A YARN whose application is running in the first answers, and has done its work by the next one."""
    requests: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            done = len(requests) > running
            if done:
                script = MaterializedViewHook().plan(VIEW).script
                lake.catalog.files.replace_text(script.outcome_location, lake.stager(script).to_json())
            state = {"state": "FINISHED", "finalStatus": "SUCCEEDED"} if done else {"state": "RUNNING"}
            body = json.dumps({"app": {"finalStatus": "UNDEFINED", **state}}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http_server(Answers) as port:
        yield f"http://127.0.0.1:{port}"


def test_a_retry_reattaches_to_the_driver_that_a_dead_worker_submitted(
    airflow: Airflow, sales: Lake, tmp_path: Path
) -> None:
    """An hour of work on the cluster is not repeated because an Airflow pod was moved."""
    program = tmp_path / "fake-spark-submit"
    program.write_text("#!/bin/sh\necho Submitted application application_17_0042\n")
    program.chmod(0o755)
    sales.view()
    with _resource_manager(sales, running=1) as address:
        extra = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": address}
        airflow.connect("spark_default", conn_type="spark", host="yarn", extra=extra)
        run = airflow.run(f"""
            from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
            poll = SparkSubmitOperator.poll_until_complete
            def die(self, external_id, context):
                if context["ti"].try_number == 1:
                    raise RuntimeError("the worker dies")
                return poll(self, external_id, context)
            SparkSubmitOperator.poll_until_complete = die
            RefreshMaterializedViewOperator(
                task_id="refresh", view="{VIEW}", spark_binary="{program}", yarn_track_via_rm_api=True, retries=1,
                retry_delay=timedelta(0))
        """)

    assert run.state == "success", run.log
    assert run.log.count("Spark-Submit cmd") == 1
    assert "Reconnecting to existing job" in run.log
    # The key has the run's clear number, because Airflow keeps task state when a task is cleared.
    assert "external_id_key=spark_job_id:0:" in run.log
    assert "external_id=application_17_0042" in run.log
    assert len(sales.read()) == 2


def test_after_a_clear_a_finished_earlier_driver_is_ignored(airflow: Airflow, sales: Lake, tmp_path: Path) -> None:
    """Airflow's own mixin finds its id, asks YARN, and reports "already succeeded": nothing would be submitted."""
    program = tmp_path / "fake-spark-submit"
    program.write_text(
        f"#!/bin/sh\necho again >> {tmp_path}/submitted\necho Submitted application application_17_0043\n"
    )
    program.chmod(0o755)
    sales.view()
    refresh_id = MaterializedViewHook().plan(VIEW).refresh_id
    before = f"spark_job_id:0:{refresh_id}"
    state = KeptState({before: "application_17_0042"})
    # Airflow waits at least 10 s between two questions.
    with _resource_manager(sales, running=0) as address:
        extra = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": address}
        airflow.connect("spark_default", conn_type="spark", host="yarn", extra=extra)
        with DAG("cleared", schedule=None) as dag:
            operator = RefreshMaterializedViewOperator(
                task_id="refresh", view=VIEW, spark_binary=str(program), yarn_track_via_rm_api=True
            )
        now = datetime.now(UTC)
        run = SimpleNamespace(clear_number=1, conf={}, run_after=now, data_interval_start=None, data_interval_end=None)
        events = defaultdict(SimpleNamespace)
        result = operator.execute({"dag": dag, "dag_run": run, "task_state_store": state, "outlet_events": events})
        operator.hook._submit_sp.stdout.close()  # the provider does not close it

    assert (tmp_path / "submitted").read_text() == "again\n"
    assert result["outcome"] == "refreshed"
    assert state[f"spark_job_id:1:{refresh_id}"] == "application_17_0043"


def test_yarn_without_its_rest_interface_is_refused_in_one_line(airflow: Airflow, sales: Lake) -> None:
    """Airflow cannot find a driver again without it; another try would fail in the same way."""
    sales.view()
    airflow.connect("spark_default", conn_type="spark", host="yarn", extra={"deploy-mode": "cluster"})
    run = airflow.run(f'RefreshMaterializedViewOperator(task_id="refresh", view="{VIEW}", retries=3)')
    assert run.state == "failed"
    assert f"ConfigurationError: view {VIEW}: spark-submit was not started: YARN cluster mode" in run.log
    assert "requires yarn_track_via_rm_api=True" in run.log
    assert "another try would fail in the same way" in run.log
