# SPDX-License-Identifier: Apache-2.0
"""Which failures are retried, and when; a stopped task leaves no running process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import airflow
import pytest
from airflow.sdk import DAG
from packaging.version import Version

from airflow_mv import errors
from airflow_mv.errors import CatalogUnavailableError, CommitConflictError, CommitStateUnknownError, JobError
from airflow_mv.extras.spark.settings import spark_settings
from airflow_mv.operators import PlanRefreshOperator, RefreshMaterializedViewOperator
from airflow_mv.retries import DEFAULT_RETRY_DELAY, MaterializedViewRetryPolicy, RetryAction
from airflow_mv.tasks.older_airflow import BEFORE_3_3
from tests.airflow.conftest import VIEW, Airflow
from tests.builders import Lake
from tests.core.job.processes import connect_server
from tests.older import DagSerialization

POLICY = MaterializedViewRetryPolicy()
#: A catalog whose database does not respond.
DOWN = {"type": "sql", "uri": "postgresql+psycopg2://127.0.0.1:1/catalog", "warehouse": "file:///nowhere"}


def _all(kind: type[errors.MaterializedViewError]) -> Iterator[type[errors.MaterializedViewError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _all(each)


def _context(**task: Any) -> Any:
    return {
        "ti": SimpleNamespace(task=SimpleNamespace(**{"retry_delay": timedelta(seconds=300), "retries": 3, **task}))
    }


def _seconds(error: BaseException, *, try_number: int = 1, max_tries: int = 3, **task: Any) -> float | None:
    decision = POLICY.evaluate(error, try_number, max_tries, _context(**task))
    assert decision.action == RetryAction.RETRY
    return decision.retry_delay.total_seconds() if decision.retry_delay else None


@pytest.mark.parametrize("kind", sorted(set(_all(errors.MaterializedViewError)), key=lambda kind: kind.__name__))
def test_an_error_is_retried_if_it_is_retryable(kind: type[errors.MaterializedViewError]) -> None:
    """Tasks, sensors and the command line use one attribute, which new errors have by inheritance."""
    decision = POLICY.evaluate(kind.__new__(kind), 1, 3, _context())

    assert decision.action == (RetryAction.RETRY if kind.retryable else RetryAction.FAIL)
    assert decision.reason
    assert decision.reason.startswith(f"{kind.__name__}: another try ")


def test_errors_of_other_packages_get_airflow_s_default() -> None:
    """A user's callback or pre_execute may raise any error."""
    assert POLICY.evaluate(ValueError("x"), 1, 3).action == RetryAction.DEFAULT


@pytest.mark.parametrize("error", [CommitConflictError("x"), CommitStateUnknownError("x")])
def test_the_delay_after_a_conflict_is_short_and_random(error: Exception) -> None:
    """A commit takes a moment, and the other task retries, too."""
    delays = {_seconds(error) for _ in range(50)}

    assert all(delay is not None and 5 <= delay <= 15 for delay in delays)
    assert len(delays) > 10


@pytest.mark.parametrize("error", [CatalogUnavailableError("x"), JobError("x")])
def test_the_delays_after_an_outage_grow(error: Exception) -> None:
    """The longest delay is ten minutes."""
    delays = [_seconds(error, try_number=number, max_tries=40, retries=40) or 0 for number in range(1, 40)]

    for delay, least in zip(delays, (20, 40, 80, 160, 320, 600, 600), strict=False):
        assert least <= delay <= least * 1.1
    assert max(delays) <= 660


def test_a_cleared_task_counts_its_failures_from_zero() -> None:
    """Airflow continues to count its tries."""
    assert 20 <= (_seconds(JobError("x"), try_number=9, max_tries=11, retries=3) or 0) <= 22


def test_a_task_s_own_delay_is_kept() -> None:
    assert _seconds(JobError("x"), retry_delay=timedelta(seconds=7)) is None
    assert 20 <= (_seconds(JobError("x"), retry_delay=DEFAULT_RETRY_DELAY) or 0) <= 22


def test_after_a_killed_process_a_task_waits_less_than_a_minute() -> None:
    """No policy is asked then: the scheduler takes the delay from the serialized DAG. It is the author's, if set."""
    own = timedelta(minutes=7)
    with DAG("killed", default_args={"retries": 3}) as dag:
        RefreshMaterializedViewOperator(task_id="plain", view=VIEW)
        RefreshMaterializedViewOperator.partial(task_id="mapped").expand(view=[VIEW])
        PlanRefreshOperator(task_id="plan", view=VIEW)
        RefreshMaterializedViewOperator(task_id="own", view=VIEW, retry_delay=own)
    with DAG("defaults", default_args={"retry_delay": own}) as other:
        RefreshMaterializedViewOperator(task_id="own", view=VIEW)
        RefreshMaterializedViewOperator.partial(task_id="mapped").expand(view=[VIEW])

    delays = {task_id: task.retry_delay for task_id, task in stored(dag).task_dict.items()}
    ours = ["plain", "mapped", "plan"]
    if Version(airflow.__version__) < Version("3.3.2"):  # it ignores the defaults of a mapped task's class
        ours.remove("mapped")
        assert delays.pop("mapped") == timedelta(minutes=5)
    assert delays == {**dict.fromkeys(ours, DEFAULT_RETRY_DELAY), "own": own}
    assert timedelta() < DEFAULT_RETRY_DELAY < timedelta(minutes=1)
    assert {task.retry_delay for task in stored(other).task_dict.values()} == {own}


def stored(dag: DAG) -> Any:
    """The DAG as the scheduler reads it."""
    return DagSerialization.from_dict(DagSerialization.to_dict(dag))


def test_a_task_that_is_stopped_says_so_and_not_that_spark_failed(
    airflow: Airflow, sales: Lake, tmp_path: Path
) -> None:
    """*Mark as failed* ends spark-submit, whose own error is that it has ended."""
    program = tmp_path / "ended-spark-submit"
    program.write_text("#!/bin/sh\nexit 143\n")
    program.chmod(0o755)
    sales.view()
    run = airflow.run(f"""
        from unittest import mock
        from airflow_mv.operators.spark import SparkJob

        class Stopped(RefreshMaterializedViewOperator):
            def execute(self, context):
                run = SparkJob.run
                def stopped(*args, **kwargs):
                    self.on_kill()
                    return run(*args, **kwargs)
                with mock.patch.object(SparkJob, "run", stopped):
                    return super().execute(context)
        Stopped(task_id="refresh", view="{VIEW}", spark_binary="{program}")
    """)
    assert run.states == {"refresh": "failed"}, run.log
    assert f"StoppedError: view {VIEW}: its Spark job was stopped from outside" in run.log
    assert "spark-submit failed" not in run.log


def test_a_policy_is_unchanged_after_airflow_has_stored_it() -> None:
    """Airflow may serialize it with the DAG."""
    policy = MaterializedViewRetryPolicy(outage=timedelta(seconds=3))
    assert MaterializedViewRetryPolicy.deserialize(policy.serialize()).outage == timedelta(seconds=3)


@pytest.mark.skipif(BEFORE_3_3, reason="Airflow 3.2 knows a task's own retry_delay only")
def test_an_outage_is_retried_by_the_policy_and_logged(airflow: Airflow) -> None:
    """In a real run: the log has the decision and its reason, without a stack trace."""
    airflow.connect("down", conn_type="iceberg", extra=DOWN)
    run = airflow.run(f"""
        from airflow_mv.retries import MaterializedViewRetryPolicy
        RefreshMaterializedViewOperator(
            task_id="refresh", view="{VIEW}", iceberg_conn_id="down", retries=1,
            retry_policy=MaterializedViewRetryPolicy(outage=timedelta(seconds=2)),
        )
    """)
    assert not run.import_error
    failed = [line for line in run.log.splitlines() if "Task failed with exception" in line]
    first, second = (datetime.fromisoformat(line.split()[0]) for line in failed)

    assert run.states == {"refresh": "failed"}
    assert second - first >= timedelta(seconds=2)
    assert run.log.count("errors.CatalogUnavailableError: connection 'down': the catalog does not respond") == 2
    assert "reason='CatalogUnavailableError: another try may succeed, in 2 s'" in run.log
    assert "airflow_mv/hooks/views.py" not in run.log


ANYTHING = """
        from airflow.sdk import ExceptionRetryPolicy, RetryRule
        from airflow_mv.errors import BaseTableNotFoundError
        ANYTHING = ExceptionRetryPolicy([RetryRule(BaseTableNotFoundError, retry_delay=timedelta(0))])
"""


@pytest.mark.parametrize(
    ("given", "tries"),
    [
        ("", 1),
        ("retry_policy=None, ", 2),
        pytest.param(
            "default_args=dict(retry_policy=ANYTHING), ",
            2,
            marks=pytest.mark.skipif(BEFORE_3_3, reason="Airflow 3.2 has no retry policies"),
        ),
    ],
)
def test_another_policy_replaces_the_default_one(airflow: Airflow, sales: Lake, given: str, tries: int) -> None:
    """If base tables are dropped and created again regularly, a missing one is worth a retry."""
    sales.view()
    sales.iceberg.drop_table("sales.orders")
    run = airflow.run(f"""{ANYTHING if "ANYTHING" in given else ""}
        RefreshMaterializedViewOperator(
            task_id="refresh", view="{VIEW}", retries=1, {given}retry_delay=timedelta(0)
        )
    """)

    assert run.states == {"refresh": "failed"}
    assert len(re.findall("BaseTableNotFoundError: view lake.sales.daily: base table", run.log)) == tries, run.log


@pytest.mark.slow
@pytest.mark.cluster
def test_a_task_that_exceeds_its_timeout_frees_the_spark_connect_server(
    airflow: Airflow, sales: Lake, tmp_path: Path
) -> None:
    """Its query occupies every core of the server: another query ends only when they are free again."""
    sales.append(*((number, "x", number) for number in range(2000)))
    sales.append(*((number, "y", number) for number in range(2000)))
    endless = "SELECT count(*) AS n FROM orders a, orders b, orders c, orders d WHERE a.id + b.id > c.id + d.id"
    settings = spark_settings("lake", sales.iceberg.properties)
    with connect_server(tmp_path, settings.session_confs()) as remote:
        host, _, port = remote.removeprefix("sc://").partition(":")
        airflow.connect("connect", conn_type="spark_connect", host=host, port=int(port))
        run = airflow.run(f"""
            create = CreateMaterializedViewOperator(
                task_id="create", view="{VIEW}", sql="{endless}", spark_conn_id="connect"
            )
            refresh = RefreshMaterializedViewOperator(
                task_id="refresh", view="{VIEW}", spark_conn_id="connect", execution_timeout=timedelta(seconds=20)
            )
            create >> refresh
            @task(trigger_rule="all_done")
            def other():
                from pyspark.sql import SparkSession
                spark = SparkSession.builder.remote("{remote}").getOrCreate()
                found = spark.range(0, 100, 1, 4).selectExpr("sum(id) AS total").collect()[0].total
                spark.stop()
                return found
            refresh >> other()
        """)
        log = (tmp_path / "server.log").read_text()

    assert run.states == {"create": "success", "refresh": "failed", "other": "success"}, run.log
    assert "INSERT OVERWRITE" in run.task_log("refresh")
    assert "AirflowTaskTimeout" in run.log
    assert run.values["other"] == 4950
    assert re.search(r"cancel|interrupt", log, re.IGNORECASE)
