# SPDX-License-Identifier: Apache-2.0
"""A task's process is killed at different moments under the real scheduler, whose own retry completes the refresh."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from pyiceberg.catalog import load_catalog

from airflow_mv.common.status import status
from airflow_mv.core.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog
from airflow_mv.core.catalog.catalog import next_number
from examples.demo.check import check
from examples.demo.data import append_month
from examples.demo.home import CATALOG, DemoHome
from examples.demo.local_airflow import local_airflow
from tests.airflow.deployment import Deployment, processes, until

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(1800)]

VIEW = "lake.nyc.route_month"
#: Code with which a first try waits to be killed.
MOMENTS = ("at-start", "planned", "staged", "before-the-swap", "after-the-swap", "at-the-end")
RESUMED = "resumed"
PREPARE = f"""
from pyiceberg.catalog import load_catalog
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.define.definition import Definition
from airflow_mv.actions import create_view as create
from airflow_mv.extras.spark.session import InProcessStager
from examples.demo.data import load
from examples.demo.home import CATALOG
from examples.demo.home import DemoHome
from examples.demo.views import VIEWS

iceberg = load_catalog(CATALOG, **DemoHome.default().catalog_properties)
load(iceberg, range(1, 2))
catalog = MaterializedViewCatalog(iceberg)
stager = InProcessStager(catalog, master="local[2]")
create(catalog, "{VIEW}", Definition(VIEWS["route_month"]), stager=stager)
stager.close()
"""
DAGS = f"""
import os
import time
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, PokeReturnValue
from airflow_mv.core.publish import protocol as commit
from airflow_mv.core.refresh import run as refresh
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.operators import RefreshMaterializedViewOperator
from airflow_mv.sensors import BaseTablesChangedSensor

CONF = {{"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}}


class Waits(RefreshMaterializedViewOperator):
    def wait(self, moment):
        marker = Path(os.environ["AIRFLOW_MV_DEMO_HOME"], f"waits-{{moment}}")
        if moment == self.task_id and not marker.exists():
            marker.write_text(str(os.getpid()))
            time.sleep(600)

    def around(self, owner, name, before, after):
        original = getattr(owner, name)

        def call(*args, **kwargs):
            self.wait(before)
            result = original(*args, **kwargs)
            self.wait(after)
            return result

        setattr(owner, name, call)

    def execute(self, context):
        self.wait("at-start")
        self.around(refresh, "plan_refresh", None, "planned")
        self.around(refresh, "publish_staged", "staged", None)
        self.around(MaterializedViewCatalog, "swap", "before-the-swap", "after-the-swap")
        result = super().execute(context)
        self.wait("at-the-end")
        return result


for moment in {MOMENTS}:
    with DAG(moment, schedule=None):
        Waits(task_id=moment, view="{VIEW}", conf=CONF, retries=1, retry_delay=timedelta(seconds=1))


class Resumes(BaseTablesChangedSensor):
    def look(self):
        looked = Path(os.environ["AIRFLOW_MV_DEMO_HOME"], "looked")
        if looked.exists():
            return super().look()
        looked.touch()
        return PokeReturnValue(False)

    def execute_complete(self, context, event):
        marker = Path(os.environ["AIRFLOW_MV_DEMO_HOME"], "waits-{RESUMED}")
        if not marker.exists():
            marker.write_text(str(os.getpid()))
            time.sleep(600)
        return super().execute_complete(context, event)


with DAG("{RESUMED}", schedule=None):
    Resumes(
        task_id="wait", views="{VIEW}", deferrable=True, poke_interval=1, timeout=600, retries=1,
        retry_delay=timedelta(seconds=1),
    ) >> RefreshMaterializedViewOperator(task_id="refresh", view="{VIEW}", conf=CONF)
"""


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Airflow in its own folder, one month of flights, and views that were never refreshed."""
    home = DemoHome(tmp_path_factory.mktemp("workers"))
    dags = home.folder / "dags"
    dags.mkdir()
    (dags / "moments.py").write_text(DAGS)
    environment = {**os.environ, **home.environment(), "AIRFLOW_MV_DEMO_HOME": str(home.folder)}
    preparing = subprocess.Popen([sys.executable, "-c", PREPARE], env=environment)
    settings = {
        "TMPDIR": str(home.folder),  # a killed worker leaves its temporary files
        "AIRFLOW_MV_DEMO_HOME": str(home.folder),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__WORKERS__SOCKET_CLEANUP_TIMEOUT": "3",
    }
    try:
        with local_airflow(home, dags=dags, port=0, settings=settings) as airflow:
            assert preparing.wait(600) == 0
            until(lambda: airflow.call("GET", "/api/v2/dags")["total_entries"] == len(MOMENTS) + 1)
            iceberg = load_catalog(CATALOG, **home.catalog_properties)
            yield Deployment(airflow, home, iceberg, MaterializedViewCatalog(iceberg))
    finally:
        preparing.kill()
        preparing.wait()
    assert processes(home) == []


def killed(deployment: Deployment, dag_id: str, months: range) -> tuple[LoadedView, dict[str, str]]:
    """Append months, and kill the task's process where it waits; return the view before it, and each task's state."""
    for month in months:
        append_month(deployment.iceberg, month)
    before = deployment.catalog.load(VIEW)
    marker = Path(deployment.home.folder, f"waits-{dag_id}")
    deployment.start(dag_id, "killed")
    psutil.Process(int(until(lambda: marker.exists() and marker.read_text()))).kill()
    return before, deployment.ended(dag_id, "killed")


def published_once(deployment: Deployment, before: LoadedView, months: range) -> LoadedStorage:
    """Check that the pointer has moved once, to the rows of these months; return the storage table."""
    after = deployment.catalog.load(VIEW)
    assert next_number(after.metadata_location) == next_number(before.metadata_location) + 1
    assert status(deployment.catalog, VIEW).state == "fresh"
    assert check(deployment.catalog, months, views=["route_month"])["route_month"] > 0
    return deployment.catalog.load_storage(after)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_task_process_costs_a_retry_and_the_refresh_is_published_once(
    deployment: Deployment, figures: Callable[..., None], moment: str
) -> None:
    """One move of the pointer, one asset event, and the expected states; airflow #17479, #36090, #42553."""
    months = range(1, MOMENTS.index(moment) + 3)
    before, states = killed(deployment, moment, months)

    assert states == {moment: "success"}, deployment.last_output()
    instance = deployment.airflow.call("GET", f"/api/v2/dags/{moment}/dagRuns/killed/taskInstances/{moment}")
    assert instance["try_number"] == 2
    result = deployment.value(moment, "killed", moment)
    published = moment in ("after-the-swap", "at-the-end")
    assert result["outcome"] == ("already-committed" if published else "refreshed")
    assert published_once(deployment, before, months).state.current_refresh_id == result["refresh_id"]
    assert deployment.events(moment, "killed")[moment]["refresh_id"] == result["refresh_id"]
    jobs = [
        sum("Spark-Submit cmd" in line for line in deployment.log(moment, "killed", moment, attempt))
        for attempt in (1, 2)
    ]
    assert jobs == ([0, 1] if moment in ("at-start", "planned") else [1, 0])
    figures(outcome=result["outcome"], jobs=jobs)


def test_k18_a_worker_that_dies_between_the_event_and_the_resume_costs_one_read_and_no_second_refresh(
    deployment: Deployment, figures: Callable[..., None]
) -> None:
    """The triggerer's event is lost with the worker: the next try checks the view itself, and only one refresh runs."""
    months = range(1, len(MOMENTS) + 3)
    before, states = killed(deployment, RESUMED, months)

    assert states == {"wait": "success", "refresh": "success"}, deployment.last_output()
    instance = deployment.airflow.call("GET", f"/api/v2/dags/{RESUMED}/dagRuns/killed/taskInstances/wait")
    assert instance["try_number"] == 2
    result = deployment.value(RESUMED, "killed", "refresh")
    assert result["outcome"] == "refreshed"
    published_once(deployment, before, months)
    figures(outcome=result["outcome"], tries=instance["try_number"])
