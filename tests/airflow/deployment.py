# SPDX-License-Identifier: Apache-2.0
"""What a user does with a running Airflow over its REST API, and which processes it has."""

from __future__ import annotations

import time
import urllib.error
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import psutil
from pyiceberg.catalog import Catalog

from airflow_mv.catalog import MaterializedViewCatalog
from airflow_mv.demo.home import DemoHome
from airflow_mv.demo.local_airflow import LocalAirflow


@dataclass(frozen=True)
class Deployment:
    """A running Airflow over the demo's tables, and what a user does with it."""

    airflow: LocalAirflow
    home: DemoHome
    iceberg: Catalog
    catalog: MaterializedViewCatalog

    def start(self, dag_id: str, run_id: str) -> None:
        """Trigger a run."""
        body = {"logical_date": None, "dag_run_id": run_id}
        try:
            self.airflow.call("POST", f"/api/v2/dags/{dag_id}/dagRuns", body)
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.CONFLICT:  # the answer to an earlier call was lost: the run is there
                raise

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

    def drivers(self) -> list[psutil.Process]:
        """The processes of Spark jobs: two for each, Java and Python."""
        found = []
        for item in processes(self.home):
            with suppress(psutil.Error):  # it may end at any time
                if "script.json" in " ".join(item.cmdline()):
                    found.append(item)
        return found

    def said(self) -> str:
        """The last of what Airflow printed."""
        return (self.home.folder / "standalone.log").read_text()[-20_000:]


def until(look: Callable[[], Any], seconds: float = 600) -> Any:
    """Wait for something true."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, "it has not happened in time"
        time.sleep(0.5)
    return found


def processes(home: DemoHome) -> list[psutil.Process]:
    """All processes of the Airflow that lives there, and what they have started."""
    found = []
    for item in psutil.process_iter():
        try:
            if item.environ().get("AIRFLOW_HOME") == str(home.airflow_home) and item.status() != psutil.STATUS_ZOMBIE:
                found.append(item)
        except psutil.Error:
            continue
    return found
