# SPDX-License-Identifier: Apache-2.0
"""The demo's three views in a whole Airflow: scheduler, API server, DAG processor, triggerer; runs over REST."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyiceberg.catalog import load_catalog

from airflow_mv.catalog import MaterializedViewCatalog
from airflow_mv.demo.check import check
from airflow_mv.demo.data import append_month
from airflow_mv.demo.home import CATALOG, DemoHome
from airflow_mv.demo.local_airflow import LocalAirflow, local_airflow
from airflow_mv.demo.views import VIEWS

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1200)]

PREPARE = "from airflow_mv.demo import home, run; run.prepare(home.DemoHome.default(), range(1, 2))"
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
    return {{name: hook.read(f"lake.nyc.{{name}}", refresh=False).batches.read_all().num_rows for name in {[*VIEWS]}}}

with DAG("three_views", schedule=None):
    fresh = MaterializedViewFreshSensor(
        task_id="fresh", view="lake.nyc.weather_impact", deferrable=True, poke_interval=1, priority_weight=9
    )
    views = [RefreshMaterializedViewOperator(task_id=n, view=f"lake.nyc.{{n}}", conf=CONF) for n in {[*VIEWS]}]
    [fresh, *views] >> count()

with DAG("one_view", schedule=None):
    RefreshMaterializedViewOperator(
        task_id="refresh", view="lake.nyc.route_month", conf=CONF, retries=1, retry_delay=timedelta(seconds=1)
    )
"""


@dataclass(frozen=True)
class Deployment:
    """A running Airflow over the demo's tables, and what a user does with it."""

    airflow: LocalAirflow
    home: DemoHome
    catalog: MaterializedViewCatalog

    def start(self, dag_id: str, run_id: str) -> None:
        """Trigger a run."""
        body = {"logical_date": None, "dag_run_id": run_id}
        self.airflow.call("POST", f"/api/v2/dags/{dag_id}/dagRuns", body)

    def run(self, dag_id: str, run_id: str) -> dict[str, str]:
        """Trigger a run and wait for its end: the state of each task."""
        self.start(dag_id, run_id)
        return self.ended(dag_id, run_id)

    def ended(self, dag_id: str, run_id: str) -> dict[str, str]:
        """Wait for a run's end: the state of each task."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}"
        until(lambda: self.airflow.call("GET", path)["state"] in ("success", "failed"))
        found = self.airflow.call("GET", f"{path}/taskInstances")["task_instances"]
        return {item["task_id"]: item["state"] for item in found}

    def value(self, dag_id: str, run_id: str, task_id: str) -> Any:
        """What a task returned."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/return_value"
        return self.airflow.call("GET", f"{path}?deserialize=true")["value"]

    def log(self, dag_id: str, run_id: str, task_id: str, attempt: int = 1) -> list[str]:
        """The lines of a task's log, as the UI shows them."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{attempt}"
        return [line["event"].strip() for line in self.airflow.call("GET", f"{path}?full_content=true")["content"]]

    def events(self, dag_id: str, run_id: str) -> dict[str, dict[str, Any]]:
        """The extras of the asset events that a run made, by task."""
        path = f"/api/v2/assets/events?source_dag_id={dag_id}&source_run_id={run_id}"
        found = self.airflow.call("GET", path)["asset_events"]
        assert len({event["source_task_id"] for event in found}) == len(found)
        return {event["source_task_id"]: event["extra"] for event in found}


def until[T](look: Callable[[], T], seconds: float = 600) -> T:
    """Wait for something true."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, "it has not happened in time"
        time.sleep(0.5)
    return found
