# SPDX-License-Identifier: Apache-2.0
"""Helpers: use a running Airflow through its REST API, and list its processes."""

from __future__ import annotations

import time
import urllib.error
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import psutil
from pyiceberg.catalog import Catalog, load_catalog

from airflow_mv.core.catalog import MaterializedViewCatalog
from examples.demo.home import CATALOG, DemoHome
from examples.demo.local_airflow import LocalAirflow, local_airflow

_SETTINGS = {
    "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
    "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
    "AIRFLOW__CORE__PARALLELISM": "3",
    # Several workers start at once, on any host.
    "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "120",
    "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
    # How long Airflow waits for orphans of a dead task to close its pipes.
    "AIRFLOW__WORKERS__SOCKET_CLEANUP_TIMEOUT": "3",
    # New files are found soon, and known files are not parsed repeatedly.
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "3",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
    # Between two steps of a run the scheduler may be idle.
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.3",
}
#: A plugin that defines nothing: it imports what tasks and DAG files need, so that forked processes have it.
_WARM = """
import sys

if sys.argv[-1] in ("scheduler", "dag-processor"):
    import airflow.providers.apache.spark.hooks.spark_submit
    import airflow.sdk.execution_time.task_runner
    import airflow_mv.dags
    import airflow_mv.operators
    import airflow_mv.sensors
"""


@dataclass(frozen=True)
class Deployment:
    """A running Airflow over the demo's tables, and the actions of a user."""

    airflow: LocalAirflow
    home: DemoHome
    iceberg: Catalog
    catalog: MaterializedViewCatalog

    def connect(self, remote: str) -> None:
        """Add the connection ``connect`` of a Spark Connect server, unless another module has added it."""
        host, _, port = remote.removeprefix("sc://").partition(":")
        connection = {"connection_id": "connect", "conn_type": "spark_connect", "host": host, "port": int(port)}
        try:
            self.airflow.call("POST", "/api/v2/connections", connection)
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.CONFLICT:
                raise

    def start(self, dag_id: str, run_id: str) -> None:
        """Trigger a run."""
        body = {"logical_date": None, "dag_run_id": run_id}
        try:
            self.airflow.call("POST", f"/api/v2/dags/{dag_id}/dagRuns", body)
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.CONFLICT:  # the answer to an earlier call was lost: the run exists
                raise

    def run(self, dag_id: str, run_id: str) -> dict[str, str]:
        """Trigger a run and wait for its end; return the state of each task."""
        self.start(dag_id, run_id)
        return self.ended(dag_id, run_id)

    def ended(self, dag_id: str, run_id: str) -> dict[str, str]:
        """Wait for a run's end; return the state of each task."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}"
        until(lambda: self.airflow.call("GET", path)["state"] in ("success", "failed"))
        found = self.airflow.call("GET", f"{path}/taskInstances")["task_instances"]
        return {item["task_id"]: item["state"] for item in found}

    def value(self, dag_id: str, run_id: str, task_id: str) -> Any:
        """The return value of a task."""
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

    def last_output(self) -> str:
        """The last lines of Airflow's output."""
        return (self.home.folder / "standalone.log").read_text()[-20_000:]


class Shared:
    """One Airflow for all modules that need it; it is started for the first one.

    Each module adds its DAG files, connections and namespaces.

    Args:
        home: Its folder, with the catalog.
        database: SQLAlchemy URI of Airflow's own database. It is not SQLite, because there the scheduler fails when a
            backfill is being created.
    """

    def __init__(self, home: DemoHome, database: str) -> None:
        self.home = home
        self._database = database
        self._stack = ExitStack()
        self._running: Deployment | None = None

    def with_dags(self, file: str, dags: str, *dag_ids: str) -> Deployment:
        """Return the deployment once it has these DAGs."""
        folder = self.home.folder / "dags"
        folder.mkdir(exist_ok=True)
        (folder / file).write_text(dags)
        running = self._started()
        until(lambda: {*dag_ids} <= {dag["dag_id"] for dag in running.airflow.call("GET", "/api/v2/dags")["dags"]})
        return running

    def _started(self) -> Deployment:
        if self._running is None:
            plugins = self.home.airflow_home / "plugins"
            plugins.mkdir(parents=True, exist_ok=True)
            (plugins / "warm.py").write_text(_WARM)
            settings = {
                **_SETTINGS,
                "TMPDIR": str(self.home.folder),  # a killed worker leaves its temporary files
                "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self._database,
                "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": self._database.replace("+psycopg2", "+psycopg"),
            }
            dags = self.home.folder / "dags"
            airflow = self._stack.enter_context(local_airflow(self.home, dags=dags, port=0, settings=settings))
            iceberg = load_catalog(CATALOG, **self.home.catalog_properties)
            self._running = Deployment(airflow, self.home, iceberg, MaterializedViewCatalog(iceberg))
        return self._running

    def stop(self) -> None:
        """Stop it until another module needs it."""
        self._stack.close()
        self._running = None
        assert processes(self.home) == []


def until(look: Callable[[], Any], seconds: float = 600) -> Any:
    """Wait until the result is true, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, "not within the time limit"
        time.sleep(0.5)
    return found


def processes(home: DemoHome) -> list[psutil.Process]:
    """All processes of the Airflow in this folder, and their children."""
    found = []
    for item in psutil.process_iter():
        try:
            if item.environ().get("AIRFLOW_HOME") == str(home.airflow_home) and item.status() != psutil.STATUS_ZOMBIE:
                found.append(item)
        except psutil.Error:
            continue
    return found
