# SPDX-License-Identifier: Apache-2.0
"""Airflow's real application with real users, over a lake behind a connection."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from airflow_mv.tasks.older_airflow import BEFORE_3_2
from tests.builders import Lake, lake
from tests.older import TIMETABLES, dag_bag, store_dags

ROLES = ("viewer", "user", "op", "admin")
DAGS = """
from datetime import datetime
from airflow.sdk import DAG, task
from airflow_mv.tasks.older_airflow import BEFORE_3_2
from airflow_mv.operators import CreateMaterializedViewOperator, RefreshMaterializedViewOperator

with DAG("refresh_sales", schedule=None, is_paused_upon_creation=False):
    RefreshMaterializedViewOperator(task_id="daily", view="pages.sales.daily")
    RefreshMaterializedViewOperator(task_id="by_region", view="pages.sales.by_region")

with DAG("refresh_paused", schedule="@daily", start_date=datetime(2026, 1, 1)):
    RefreshMaterializedViewOperator(task_id="later", view="pages.sales.by_region")

with DAG("new_view", schedule=None, is_paused_upon_creation=False):
    create = CreateMaterializedViewOperator(task_id="create", view="pages.sales.new", sql="SELECT id FROM nowhere")
    create >> RefreshMaterializedViewOperator(task_id="refresh", view="pages.sales.new")

with DAG("report", schedule=None, is_paused_upon_creation=False):
    @task
    def read(): ...
    read()
"""
#: DAGs whose tasks refresh the interval of a run, or what its conf says.
BY_DAY = """
from datetime import datetime, timedelta
from airflow.sdk import DAG
from TIMETABLES import CronDataIntervalTimetable
from airflow_mv.dags import materialized_views_dag
from airflow_mv.operators import (
    CommitRefreshOperator, PlanRefreshOperator, RefreshMaterializedViewOperator as Refresh
)

VIEW = "pages.sales.never"
START = datetime(2024, 1, 1)
BERLIN = CronDataIntervalTimetable("@daily", timezone="Europe/Berlin")

with DAG("by_day", schedule=BERLIN, start_date=START, is_paused_upon_creation=False):
    Refresh(task_id="refresh", view=VIEW, scope="interval")

materialized_views_dag(
    "by_day_chain", [VIEW], scope="interval", schedule="@daily", start_date=START, is_paused_upon_creation=False
)

with DAG("three_days", schedule="@daily", start_date=START):
    Refresh(task_id="refresh", view=VIEW, scope="interval", interval_length="3 d")

with DAG("by_five_minutes", schedule=CronDataIntervalTimetable("*/5 * * * *", timezone="UTC"), start_date=START):
    Refresh(task_id="refresh", view=VIEW, scope="interval")

with DAG("by_seconds", schedule=timedelta(seconds=5), start_date=START):
    Refresh(task_id="refresh", view=VIEW, scope="interval")

with DAG("whole", schedule=timedelta(seconds=5), start_date=START):
    Refresh(task_id="refresh", view=VIEW)

with DAG("by_day_mapped", schedule=None):
    Refresh.partial(task_id="refresh", scope="interval").expand(view=[VIEW])

with DAG("by_day_in_steps", schedule=None):
    plan = PlanRefreshOperator(task_id="plan", view=VIEW, scope="interval")
    CommitRefreshOperator(task_id="commit", plan=plan.output)

with DAG("mapped_over_scopes", schedule=None):
    Refresh.partial(task_id="refresh", view=VIEW).expand(scope=["interval", "whole"])

with DAG("some_by_day", schedule=None):
    Refresh(task_id="by_day", view=VIEW, scope="interval")
    Refresh(task_id="whole", view=VIEW)

with DAG("by_template", schedule=None):
    Refresh(task_id="refresh", view=VIEW, scope="{{ dag_run.conf.scope }}")
""".replace("TIMETABLES", TIMETABLES)
if not BEFORE_3_2:
    BY_DAY += """
from airflow.sdk import CronPartitionTimetable

with DAG("by_partition", schedule=CronPartitionTimetable("@daily", timezone="Europe/Berlin"), start_date=START):
    Refresh(task_id="refresh", view=VIEW, scope="interval")
"""
#: It emits its event through the alias, as a mapped task does, and without Spark.
PUBLISHING = """
from airflow.sdk import DAG, task
from airflow_mv.assets import VIEWS_ALIAS
from airflow_mv.assets import materialized_view_asset

with DAG("publishing", schedule=None):
    @task(outlets=[VIEWS_ALIAS])
    def publish(*, outlet_events, dag_run):
        if not dag_run.conf:
            raise ValueError("the Spark job failed")
        outlet_events[VIEWS_ALIAS].add(materialized_view_asset("pages.sales.daily"), extra=dict(dag_run.conf))
    publish()
"""


@dataclass(frozen=True)
class Server:
    """Airflow's API server in this process."""

    app: FastAPI

    def client(self, role: str | None = "viewer") -> TestClient:
        """A client that is logged in with a role; "" is a user without a role, ``None`` an anonymous client."""
        from airflow.api_fastapi.app import get_auth_manager
        from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

        client = TestClient(self.app, raise_server_exceptions=False)
        if role is not None:
            user = SimpleAuthManagerUser(username=role or "nobody", role=role or None)
            client.cookies.set("_token", get_auth_manager().generate_jwt(user))
        return client

    def get(self, path: str, role: str | None = "viewer", **parameters: Any) -> Any:
        """The JSON response of the page's application."""
        response = self.client(role).get(f"/airflow-mv/{path}", params=parameters)
        assert response.status_code == 200, response.text
        return response.json()


class Settings(dict[str, str]):
    """Environment variables of these tests' Airflow."""

    def setenv(self, name: str, value: str) -> None:
        """Set a variable."""
        self[name] = os.environ[name] = value


@pytest.fixture(scope="package")
def environment() -> Iterator[Settings]:
    """Users have roles, and the page shows one connection."""
    found = Settings()
    found.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS", "False")
    found.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", ",".join(f"{role}:{role}" for role in ROLES))
    found.setenv("AIRFLOW__API_AUTH__JWT_SECRET", secrets.token_hex(32))
    found.setenv("AIRFLOW__AIRFLOW_MV__PAGE_CONN_IDS", "pages")
    found.setenv("AIRFLOW__AIRFLOW_MV__PAGE_CACHE_SECONDS", "0")
    yield found
    _leave(found)


@pytest.fixture(scope="module", autouse=True)
def _only_here(environment: Settings) -> Iterator[None]:
    """Tests of other folders may run between these modules, and their Airflow has its own settings."""
    os.environ.update(environment)
    yield
    _leave(environment)


def _leave(settings: Settings) -> None:
    for name in settings:
        os.environ.pop(name, None)


@pytest.fixture(scope="package")
def sales(environment: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """A lake with its own name, as Airflow is shared: a fresh, a stale, a never refreshed and a broken view."""
    folder = tmp_path_factory.mktemp("lake")
    (folder / "warehouse").mkdir()
    uri, warehouse = f"sqlite:///{folder}/catalog.db", folder / "warehouse"
    extra = {"type": "sql", "uri": uri, "warehouse": f"file://{warehouse}"}
    for name, bound in (("pages", {"catalog_name": "pages"}), ("unbound", {})):
        connection = {"conn_type": "iceberg", "extra": {**extra, **bound}}
        environment.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))
    with lake(uri, warehouse, "pages") as found:
        found.table()
        found.table("customers")
        found.view("daily", "SELECT region, count(*) AS orders FROM orders GROUP BY region")
        found.view("by_region", "SELECT region, count(*) AS customers FROM customers GROUP BY region")
        found.view("never", "SELECT id FROM orders")
        found.view("on_top", "SELECT region, orders FROM daily")
        found.refresh()
        found.refresh("sales.by_region")
        found.append()
        found.view("broken", "SELECT id FROM orders")
        location = found.catalog.load("sales.broken").metadata_location
        Path(location.removeprefix("file://")).write_text("{ this is no metadata")
        yield found


@pytest.fixture(scope="package")
def server(environment: Settings, sales: Lake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The complete application, with the plugin as Airflow loads it."""
    from airflow.api_fastapi.app import create_app, purge_cached_app
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.db import initdb
    from airflow.utils.session import create_session

    import airflow_mv.plugin

    initdb()
    with create_session() as session:
        session.merge(DagBundleModel(name="pages"))
    file = tmp_path_factory.mktemp("dags") / "views.py"
    file.write_text(DAGS)
    (file.parent / "by_day.py").write_text(BY_DAY)
    (file.parent / "publishing.py").write_text(PUBLISHING)
    bag = dag_bag(str(file.parent), "pages")
    store_dags(bag, "pages")
    state = sales.storage().state
    assert state
    extra = {"refresh_id": state.current_refresh_id, "mode": "full", "rows_written": 2, "seconds": 12.5}
    assert bag.dags["publishing"].test(run_conf=extra).state == "success"
    assert bag.dags["publishing"].test().state == "failed"
    assert bag.dags["new_view"].test().state == "failed"
    airflow_mv.plugin._page_app.cache_clear()
    purge_cached_app()
    yield Server(create_app("core"))
    purge_cached_app()
    airflow_mv.plugin._page_app.cache_clear()
