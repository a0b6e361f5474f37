# SPDX-License-Identifier: Apache-2.0
"""Refreshes in a cluster under Airflow's scheduler and triggerer. A test runs the drivers, with DuckDB for Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psutil
import pytest

from tests.airflow.cluster import FakeYarn, fake_yarn
from tests.airflow.conftest import VIEW
from tests.airflow.deployment import Deployment, Shared, processes, until
from tests.builders import Lake, lake

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(1200)]

DAG_ID = "in_cluster"


@dataclass
class Cluster:
    """A running Airflow, its lake, and the cluster that runs its drivers."""

    deployment: Deployment
    lake: Lake
    yarn: FakeYarn
    triggerers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def begin(self, run_id: str) -> None:
        """Start a run, and wait until its task is deferred."""
        self.lake.append()
        self.yarn.state = "RUNNING"
        self.deployment.start(DAG_ID, run_id)
        until(lambda: self.task(run_id)["state"] == "deferred")

    def task(self, run_id: str) -> dict[str, Any]:
        """The task as the API shows it."""
        path = f"/api/v2/dags/{DAG_ID}/dagRuns/{run_id}/taskInstances/refresh"
        found: dict[str, Any] = self.deployment.airflow.call("GET", path)
        return found

    def replace_triggerer(self) -> None:
        """Kill the triggerer, as the loss of a host does, and start another one."""
        found = [item for item in processes(self.deployment.home) if "triggerer" in " ".join(item.cmdline())]
        assert found
        (standalone,) = (
            item for item in processes(self.deployment.home) if item.pid == self.deployment.airflow.process.pid
        )
        environment = {**os.environ, **standalone.environ()}
        for item in found:
            with suppress(psutil.NoSuchProcess):
                item.kill()
        psutil.wait_procs(found, 30)
        command = [sys.executable, "-m", "airflow", "triggerer"]
        output = subprocess.DEVNULL
        self.triggerers.append(subprocess.Popen(command, env=environment, stdout=output, stderr=output))


@pytest.fixture(scope="module")
def cluster(shared_airflow: Shared, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A view that is refreshed in the cluster, by a task that does not say where it waits."""
    home = shared_airflow.home
    (home.folder / "warehouse").mkdir(exist_ok=True)
    with (
        fake_yarn(tmp_path_factory.mktemp("yarn")) as yarn,
        lake(home.catalog_properties["uri"], home.folder / "warehouse") as found,
    ):
        found.table()
        found.view()
        dags = f"""
from datetime import timedelta
from airflow.sdk import DAG
from airflow_mv.operators import RefreshMaterializedViewOperator

with DAG("{DAG_ID}", schedule=None):
    RefreshMaterializedViewOperator(
        task_id="refresh", view="{VIEW}", spark_conn_id="yarn", spark_binary="{yarn.program}",
        yarn_track_via_rm_api=True, retries=2, retry_delay=timedelta(seconds=1), pool="cluster")
"""
        running = shared_airflow.with_dags("in_cluster.py", dags)
        running.airflow.call("POST", "/api/v2/pools", {"name": "cluster", "slots": 1})
        fields = {**yarn.connection, "extra": json.dumps(yarn.connection["extra"])}
        running.airflow.call("POST", "/api/v2/connections", {"connection_id": "yarn", **fields})
        until(lambda: DAG_ID in {dag["dag_id"] for dag in running.airflow.call("GET", "/api/v2/dags")["dags"]})
        result = Cluster(running, found, yarn)
        yield result
        for item in result.triggerers:
            item.kill()
            item.wait()


def test_a_deferred_refresh_frees_its_slot_and_outlives_its_triggerer(cluster: Cluster) -> None:
    """Its outcome is published after the resumption, with one submission and one event."""
    cluster.begin("outlived")
    until(lambda: cluster.deployment.airflow.call("GET", "/api/v2/pools/cluster")["occupied_slots"] == 0)
    assert not [item for item in processes(cluster.deployment.home) if cluster.yarn.program.name in str(item.cmdline())]
    cluster.replace_triggerer()
    cluster.yarn.run_driver(cluster.lake)
    assert cluster.deployment.ended(DAG_ID, "outlived") == {"refresh": "success"}, cluster.deployment.last_output()
    assert cluster.deployment.value(DAG_ID, "outlived", "refresh")["outcome"] == "refreshed"
    assert cluster.task("outlived")["try_number"] == 1
    assert (len(cluster.yarn.submitted), cluster.yarn.killed) == (1, [])
    assert [*cluster.deployment.events(DAG_ID, "outlived")] == ["refresh"]
    assert sum(row["orders"] for row in cluster.lake.read()) == cluster.lake.load().scan().to_arrow().num_rows


def test_marking_a_deferred_refresh_as_failed_kills_its_driver(cluster: Cluster) -> None:
    """In the triggerer, as no worker has the task."""
    before = len(cluster.yarn.submitted)
    cluster.begin("marked")
    # A trigger that has not begun is not told.
    until(
        lambda: any(
            "found" in line or "Waiting" in line for line in cluster.deployment.log(DAG_ID, "marked", "refresh")
        )
    )
    until(lambda: cluster.task("marked")["triggerer_job"])
    path = f"/api/v2/dags/{DAG_ID}/dagRuns/marked/taskInstances/refresh"
    cluster.deployment.airflow.call("PATCH", path, {"new_state": "failed"})
    assert cluster.deployment.ended(DAG_ID, "marked") == {"refresh": "failed"}
    until(lambda: cluster.yarn.killed == [f"application_17_{before + 1}"], 60)
