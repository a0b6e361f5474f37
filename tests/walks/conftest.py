# SPDX-License-Identifier: Apache-2.0
"""One Airflow with PostgreSQL for all walks, the command line as a process, and steps that are printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from examples.demo.home import CATALOG
from tests.airflow.conftest import shared_airflow as shared_airflow
from tests.airflow.deployment import Deployment, Shared
from tests.core.refresh.intervals.support import Days, days_lake

DAGS = """
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG, task
from airflow_mv.assets import materialized_view_asset
from airflow_mv.operators import CreateMaterializedViewOperator, RefreshMaterializedViewOperator, refresh_params

SQL = "SELECT region, count(*) AS orders, sum(amount) AS amount FROM lake.sales.orders GROUP BY region"

for number, stale in ((1, None), (2, True)):
    with DAG(f"author_{number}", schedule=None):
        CreateMaterializedViewOperator(
            task_id="create", view="lake.sales.by_region", sql=SQL, allow_stale_data=stale, spark_conn_id="connect"
        ) >> RefreshMaterializedViewOperator(task_id="refresh", view="lake.sales.by_region", spark_conn_id="connect")

with DAG("killed", schedule=None):
    RefreshMaterializedViewOperator(task_id="refresh", view="lake.sales.taken_up", retries=2)

with DAG("stopped", schedule=None):
    RefreshMaterializedViewOperator(task_id="refresh", view="lake.sales.endless", retries=0)

with DAG(
    "by_day", schedule="@daily", start_date=datetime(2024, 1, 1, tzinfo=UTC), catchup=False,
    end_date=datetime(2024, 12, 31, tzinfo=UTC), params=refresh_params(),
):
    RefreshMaterializedViewOperator(
        task_id="refresh", view="lake.sales.daily", spark_conn_id="connect", scope="interval", retries=2,
        retry_delay=timedelta(seconds=5),
    )

with DAG("analyst_fails", schedule=None):
    RefreshMaterializedViewOperator(task_id="refresh", view="lake.sales.by_region", spark_conn_id="nowhere")

with DAG("analyst_creates", schedule=None):
    CreateMaterializedViewOperator(
        task_id="create", view="lake.sales.absent", sql="SELECT id FROM lake.sales.nowhere", spark_conn_id="connect"
    ) >> RefreshMaterializedViewOperator(task_id="refresh", view="lake.sales.absent", spark_conn_id="connect")

with DAG("analyst_waits", schedule=None):
    @task(outlets=[materialized_view_asset("lake.sales.by_region")])
    def wait():
        while not Path(os.environ["AIRFLOW_HOME"], "go").exists():
            time.sleep(0.5)
    wait()
"""
#: A DAG file with a scope that does not exist.
MISSPELLED = """
from airflow.sdk import DAG
from airflow_mv.operators import RefreshMaterializedViewOperator

with DAG("author_misspelled", schedule=None):
    RefreshMaterializedViewOperator(task_id="refresh", view="lake.sales.by_region", scope="intervall")
"""
ANALYST = ("analyst_fails", "analyst_creates", "analyst_waits")


@dataclass(frozen=True)
class Walk:
    """What a user has: an Airflow, a lake, and the command line."""

    deployment: Deployment
    lake: Days
    database: str
    remote: str

    def command(self, *arguments: str, java: bool = True) -> subprocess.CompletedProcess[str]:
        """Run ``airflow-mv``; connections are only in Airflow's database. Without Java no Spark can start."""
        return self._run(str(Path(sys.executable).with_name("airflow-mv")), *arguments, java=java)

    def python(self, code: str) -> str:
        """Run Python code, and return what it prints. Connections are variables, as outside of tasks."""
        done = self._run(sys.executable, "-c", code, java=False, connections=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _run(self, *command: str, java: bool, connections: bool = False) -> subprocess.CompletedProcess[str]:
        known = self.deployment.home.environment()
        own = {k: v for k, v in known.items() if connections or not k.startswith("AIRFLOW_CONN_")}
        database = {
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self.database,
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": self.database.replace("+psycopg2", "+psycopg"),
        }
        environment = {**os.environ, **own, **database, **({} if java else {"JAVA_HOME": "/nowhere"})}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)

    def json(self, *arguments: str) -> Any:
        """Run ``airflow-mv … --json``, which must succeed, and return its document."""
        done = self.command(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="session")
def walk(shared_airflow: Shared, connect: str) -> Iterator[Walk]:
    """The Airflow, with a base table of orders, and one of sold items by day."""
    home = shared_airflow.home
    with days_lake(home.catalog_properties["uri"], home.folder / "warehouse", "pointed", name=CATALOG) as lake:
        lake.table("orders", rows=[(number, ("north", "south")[number % 2], number) for number in range(10)])
        lake.sell(*((number, number) for number in range(1, 11)))
        own = ("author_1", "author_2", "killed", "stopped", "by_day")
        found = shared_airflow.with_dags("walks.py", DAGS, *own, *ANALYST)
        found.connect(connect)
        yield Walk(found, lake, shared_airflow._database, connect)


@pytest.fixture
def step(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Print a step as a line that is also shown for a walk that succeeds."""

    def say(text: str) -> None:
        with capsys.disabled():
            print(f"  ▸ {text}", flush=True)

    return say
