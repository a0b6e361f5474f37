# SPDX-License-Identifier: Apache-2.0
"""The demo's three views in a complete Airflow: scheduler, API server, DAG processor, triggerer; runs through REST."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

from airflow_mv.common.status import status
from airflow_mv.core.catalog.catalog import next_number
from examples.demo.check import check
from examples.demo.data import append_month
from examples.demo.views import VIEWS
from tests.airflow.deployment import Deployment, Shared, until

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1200)]

#: A query whose job does not end by itself.
SLOW = "SELECT count(*) AS n FROM weather a, weather b, weather c, weather d WHERE a.temp + b.temp > c.temp + d.temp"
PREPARE = f"""
import sys
from pyiceberg.catalog import load_catalog
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.define.definition import Definition
from airflow_mv.actions import create_view as create
from examples.demo.data import load
from examples.demo.home import CATALOG
from examples.demo.home import NAMESPACE
from examples.demo.home import DemoHome
from examples.demo.views import VIEWS
from airflow_mv.extras.spark.session import InProcessStager
from tests.older import create_tables_with_kinds

create_tables_with_kinds()
iceberg = load_catalog(CATALOG, **DemoHome.default().catalog_properties)
catalog = MaterializedViewCatalog(iceberg)
load(iceberg, range(1, 2))
stager = InProcessStager(catalog, remote=sys.argv[1])
for name, sql in {{**VIEWS, "slow": {SLOW!r}}}.items():
    create(catalog, CATALOG + "." + NAMESPACE + "." + name, Definition(sql=sql), stager=stager)
stager.close()
"""
DAGS = f"""
from datetime import timedelta

from airflow.sdk import DAG, task
from airflow_mv.hooks import MaterializedViewHook
from airflow_mv.operators import RefreshMaterializedViewOperator
from airflow_mv.sensors import MaterializedViewFreshSensor

CONF = {{"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}}

@task
def count() -> dict[str, int]:
    hook = MaterializedViewHook()
    return {{name: hook.read(f"lake.nyc.{{name}}", refresh=False).to_arrow().num_rows for name in {[*VIEWS]}}}

with DAG("three_views", schedule=None, max_active_tasks=2):
    fresh = MaterializedViewFreshSensor(
        task_id="fresh", view="lake.nyc.weather_impact", deferrable=True, poke_interval=1, priority_weight=9
    )
    # On a server that runs already: a driver of its own costs 10 s, and the other DAGs start some.
    views = [
        RefreshMaterializedViewOperator(task_id=name, view=f"lake.nyc.{{name}}", spark_conn_id="connect")
        for name in {[*VIEWS]}
    ]
    [fresh, *views] >> count()

with DAG("one_view", schedule=None):
    RefreshMaterializedViewOperator(
        task_id="refresh", view="lake.nyc.route_month", conf=CONF, retries=1, retry_delay=timedelta(seconds=1)
    )

with DAG("endless", schedule=None):
    ONE_AT_A_TIME = {{**CONF, "spark.task.cpus": "2"}}  # its query need not take the whole machine
    RETRIED = dict(retries=3, retry_delay=timedelta(seconds=1))
    RefreshMaterializedViewOperator(task_id="marked", view="lake.nyc.slow", conf=ONE_AT_A_TIME, **RETRIED)
    RefreshMaterializedViewOperator(
        task_id="late", view="lake.nyc.slow", conf=ONE_AT_A_TIME, execution_timeout=timedelta(seconds=20)
    )
    RefreshMaterializedViewOperator(task_id="wrong", view="lake.nyc.nowhere", priority_weight=9, **RETRIED)
"""


@pytest.fixture(scope="module")
def deployment(shared_airflow: Shared, connect: str) -> Iterator[Deployment]:
    """Airflow with one month of flights, and three views that were never refreshed."""
    home = shared_airflow.home
    environment = {**os.environ, **home.environment(), "AIRFLOW_MV_DEMO_HOME": str(home.folder)}
    preparing = subprocess.Popen([sys.executable, "-c", PREPARE, connect], env=environment)
    try:
        found = shared_airflow.with_dags("views.py", DAGS, "three_views", "one_view", "endless")
        found.connect(connect)
        assert preparing.wait(600) == 0
        yield found
    finally:
        preparing.kill()
        preparing.wait()


@pytest.fixture(scope="module")
def first(deployment: Deployment) -> dict[str, str]:
    """Return the states of the first run, which finds no rows."""
    return deployment.run("three_views", "first")


@pytest.fixture(scope="module")
def second(deployment: Deployment, first: dict[str, str]) -> dict[str, str]:
    """Return the states of a second run, which finds nothing changed."""
    return deployment.run("three_views", "second")


def test_a_run_in_the_scheduler_refreshes_every_view(deployment: Deployment, first: dict[str, str]) -> None:
    """The rows are compared with another engine's, over the raw files."""
    assert first == dict.fromkeys([*VIEWS, "fresh", "count"], "success"), deployment.last_output()
    for name in VIEWS:
        assert deployment.value("three_views", "first", name)["outcome"] == "refreshed"
    assert deployment.value("three_views", "first", "count") == check(deployment.catalog, range(1, 2))


def test_a_sensor_waits_in_the_triggerer_until_another_task_has_refreshed(
    deployment: Deployment, first: dict[str, str]
) -> None:
    """Its log says what it waited for, and what ended the waiting."""
    log = "\n".join(deployment.log("three_views", "first", "fresh"))
    assert log.index("lake.nyc.weather_impact is never-refreshed") < log.index("lake.nyc.weather_impact is fresh")
    refreshed = deployment.value("three_views", "first", "weather_impact")
    assert deployment.value("three_views", "first", "fresh")["refresh_id"] == refreshed["refresh_id"]


def test_a_second_run_does_nothing_and_logs_it(deployment: Deployment, second: dict[str, str]) -> None:
    """In words that need no knowledge of this package."""
    assert set(second.values()) == {"success"}
    for name in VIEWS:
        result = deployment.value("three_views", "second", name)
        assert (result["outcome"], result["rows_written"]) == ("fresh", 0)
        _assert_says_that_nothing_was_done(deployment.log("three_views", "second", name), name)


#: The base tables of each view.
READ = {
    "daily_carrier_delay": ("flights", "airlines"),
    "route_month": ("flights", "airports"),
    "weather_impact": ("flights", "weather"),
    "january_weather": ("weather",),
}


def test_only_the_run_that_published_emits_asset_events(deployment: Deployment, second: dict[str, str]) -> None:
    """A consumer is started once, and knows the base snapshots of the rows."""
    events = deployment.events("three_views", "first")
    assert set(events) == set(VIEWS)
    for name, extra in events.items():
        assert extra["refresh_id"] == deployment.value("three_views", "first", name)["refresh_id"]
        assert extra["mode"] == "full"
        assert extra["base_tables"] == {
            f"lake.nyc.{table}": str(deployment.iceberg.load_table(f"nyc.{table}").metadata.current_snapshot_id)
            for table in READ[name]
        }
    assert deployment.events("three_views", "second") == {}


def test_a_cleared_task_checks_the_view_again(deployment: Deployment, second: dict[str, str]) -> None:
    """Airflow keeps a task's state when it is cleared, and its Spark operator then reports "already succeeded"."""
    body = {"dry_run": False, "dag_run_id": "first", "task_ids": ["route_month"], "only_failed": False}
    deployment.airflow.call("POST", "/api/v2/dags/three_views/clearTaskInstances", body)
    assert deployment.ended("three_views", "first")["route_month"] == "success"
    assert deployment.value("three_views", "first", "route_month")["outcome"] == "fresh"
    _assert_says_that_nothing_was_done(deployment.log("three_views", "first", "route_month", 2), "route_month")
    assert set(deployment.events("three_views", "first")) == set(VIEWS)


def test_i14_a_worker_that_dies_during_the_spark_job_costs_a_retry_and_not_a_second_refresh(
    deployment: Deployment, second: dict[str, str]
) -> None:
    """The first driver continues beside that of the retry, and one refresh is published."""
    append_month(deployment.iceberg, 2)
    before = deployment.catalog.load("lake.nyc.route_month")
    deployment.start("one_view", "killed")
    until(lambda: [item for item in deployment.drivers() if item.name().startswith("python")])
    (java,) = [item for item in deployment.drivers() if item.name() == "java"]
    java.parent().kill()  # the task's own process
    states = deployment.ended("one_view", "killed")
    until(lambda: not deployment.drivers())

    assert states == {"refresh": "success"}, deployment.last_output()
    assert (
        deployment.airflow.call("GET", "/api/v2/dags/one_view/dagRuns/killed/taskInstances/refresh")["try_number"] == 2
    )
    result = deployment.value("one_view", "killed", "refresh")
    after = deployment.catalog.load("lake.nyc.route_month")
    assert result["outcome"] in ("refreshed", "already-committed")
    assert status(deployment.catalog, "lake.nyc.route_month").state == "fresh"
    assert deployment.catalog.load_storage(after).state.current_refresh_id == result["refresh_id"]
    assert next_number(after.metadata_location) == next_number(before.metadata_location) + 1
    assert deployment.events("one_view", "killed")["refresh"]["refresh_id"] == result["refresh_id"]


def test_a_task_that_is_marked_failed_or_runs_too_long_leaves_no_driver(deployment: Deployment) -> None:
    """A query without a task would keep the cluster busy."""
    before = set(deployment.home.folder.glob("airflow-mv-*"))  # folders of runners that were killed
    deployment.start("endless", "stopped")
    until(lambda: _at_work(deployment, "marked"))
    path = "/api/v2/dags/endless/dagRuns/stopped/taskInstances/marked"
    deployment.airflow.call("PATCH", path, {"new_state": "failed"})
    until(lambda: not _drivers_of(deployment, "marked"), seconds=180)
    states = deployment.ended("endless", "stopped")
    until(lambda: not deployment.drivers(), seconds=180)

    assert states == dict.fromkeys(["marked", "late", "wrong"], "failed"), deployment.last_output()
    assert _try(deployment, "wrong") <= 3, "four tries would hide a misspelled name"
    assert any("Process timed out" in line for line in deployment.log("endless", "stopped", "late"))
    assert set(deployment.home.folder.glob("airflow-mv-*")) <= before, "a folder with credentials"
    assert status(deployment.catalog, "lake.nyc.slow").state == "never-refreshed"


def _at_work(deployment: Deployment, task_id: str) -> bool:
    """Whether the driver has sent its query."""
    attempt = _try(deployment, task_id)
    return attempt > 0 and any(
        "INSERT OVERWRITE" in line for line in deployment.log("endless", "stopped", task_id, attempt)
    )


def _try(deployment: Deployment, task_id: str) -> int:
    path = f"/api/v2/dags/endless/dagRuns/stopped/taskInstances/{task_id}"
    return int(deployment.airflow.call("GET", path)["try_number"])


def _drivers_of(deployment: Deployment, task_id: str) -> list[psutil.Process]:
    """The processes of a task's Spark job."""
    found = []
    for item in deployment.drivers():
        with suppress(psutil.Error):
            if item.environ().get("AIRFLOW_CTX_TASK_ID") == task_id:
                found.append(item)
    return found


def _assert_says_that_nothing_was_done(log: list[str], name: str) -> None:
    lines = [line for line in log if not line.startswith("::")]
    assert f"Plan for lake.nyc.{name}: noop (the view is fresh)" in lines
    assert "because every base table is at the snapshot that the last refresh read [FRESH]" in lines
    assert "No Spark job is needed" in lines
    assert any(
        line.startswith(f"lake.nyc.{name}: fresh, nothing was written; the current refresh is ") for line in lines
    )
    assert "No asset event: nothing new was published" in lines
    assert not any("Spark-Submit cmd" in line or "already succeeded" in line for line in lines)
