# SPDX-License-Identifier: Apache-2.0
"""Chains of views in a complete Airflow: parallel views, cleared tasks, and two DAGs for one chain."""

from __future__ import annotations

import urllib.error
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from airflow_mv.common.status import status
from examples.demo.home import DemoHome
from examples.demo.local_airflow import local_airflow
from tests.airflow.deployment import Deployment, processes, until
from tests.builders import QUERY, Lake, lake

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(1200)]

VIEWS = {
    "counts": "SELECT count(*) AS n FROM lake.sales.orders",
    "daily": QUERY,
    "total": "SELECT sum(d.orders) AS n FROM lake.sales.daily d",
    "other": "SELECT count(*) AS n FROM lake.sales.others",
    "above": "SELECT n FROM lake.sales.other",
}
DAGS = """
import time
from datetime import UTC, datetime
from pathlib import Path

from airflow.sdk import Asset, AssetOrTimeSchedule, CronDataIntervalTimetable
from airflow_mv.dags import materialized_views_dag
from airflow_mv.dags import materialized_views_dags

START = datetime(2026, 1, 1, tzinfo=UTC)
DAILY = CronDataIntervalTimetable("@daily", timezone="UTC")
ORDERS = Asset(name="orders", uri="x-orders://lake/sales/orders")
MEETING = Path(__file__).parents[1] / "meeting"
PAIR = ("refresh_counts", "refresh_daily")


def meet(context):
    "End only when the other one has begun."
    if context["ti"].task_id in PAIR:
        (MEETING / context["ti"].task_id).touch()
        deadline = time.monotonic() + 300
        while not all((MEETING / task_id).exists() for task_id in PAIR):
            assert time.monotonic() < deadline, "the other one does not come"
            time.sleep(0.2)


chain = {
    "lake.sales.counts": [],
    "lake.sales.daily": [],
    "lake.sales.total": ["lake.sales.daily"],
    "lake.sales.other": [],
    "lake.sales.above": ["lake.sales.other"],
}
pair = {"lake.sales.counts": [], "lake.sales.daily": []}
materialized_views_dag("chain", chain, refresh={"pre_execute": meet})
materialized_views_dags("events", pair, on=[ORDERS], every=DAILY, start_date=START)
materialized_views_dag("both", pair, schedule=AssetOrTimeSchedule(timetable=DAILY, assets=[ORDERS]), start_date=START)
"""


@dataclass(frozen=True)
class Chains(Deployment):
    """A running Airflow over a lake."""

    lake: Lake

    def clear(self, run_id: str, *task_ids: str) -> dict[str, str]:
        """Clear tasks of a run of the DAG `chain`, and wait for its end."""
        body = {"dry_run": False, "dag_run_id": run_id, "task_ids": [*task_ids], "only_failed": False}
        self.airflow.call("POST", "/api/v2/dags/chain/clearTaskInstances", body)
        return self.ended("chain", run_id)

    def backfill(self, dag_id: str, path: str = "") -> Any:
        """Backfill two days, as the UI does."""
        days = {"from_date": "2026-02-01T00:00:00Z", "to_date": "2026-02-02T00:00:00Z"}
        body = {"dag_id": dag_id, **days, "max_active_runs": 2, "reprocess_behavior": "none"}
        return self.airflow.call("POST", f"/api/v2/backfills{path}", body)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chains]:
    """Five views; one base table is dropped, the other has been compacted since the views were refreshed."""
    home = DemoHome(tmp_path_factory.mktemp("chains"))
    for name in ("dags", "meeting", "warehouse"):
        (home.folder / name).mkdir()
    (home.folder / "dags" / "chains.py").write_text(DAGS)
    with lake(home.catalog_properties["uri"], home.folder / "warehouse") as found:
        found.table()
        found.table("others")
        for name, sql in VIEWS.items():
            found.view(name, sql)
            found.refresh(f"sales.{name}")
        found.compact()
        found.iceberg.drop_table("sales.others")
        settings = {
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
            "AIRFLOW__CORE__PARALLELISM": "3",  # two refreshes meet while the application's task runs
        }
        with local_airflow(home, dags=home.folder / "dags", port=0, settings=settings) as airflow:
            until(lambda: airflow.call("GET", "/api/v2/dags")["total_entries"] == 4)
            yield Chains(airflow, home, found.iceberg, found.catalog, found)
    assert processes(home) == []


@pytest.fixture(scope="module")
def first(deployment: Chains) -> dict[str, str]:
    """The states of a run's tasks; the views of the first level wait for each other."""
    return deployment.run("chain", "first")


def test_views_of_a_level_run_in_parallel_and_a_failed_one_blocks_only_its_readers(
    deployment: Chains, first: dict[str, str]
) -> None:
    """The refreshes of two views end only after both have begun."""
    assert first == {
        "pin": "success",
        "spark_application": "success",
        "refresh_counts": "success",
        "refresh_daily": "success",
        "refresh_total": "success",
        "refresh_other": "failed",
        "refresh_above": "upstream_failed",
    }, deployment.last_output()
    assert status(deployment.catalog, "lake.sales.counts").state == "fresh"


def test_a_cleared_refresh_keeps_the_snapshots_of_its_run_and_a_cleared_run_pins_new_ones(
    deployment: Chains, first: dict[str, str]
) -> None:
    """Finished views have the run's snapshot set, so a single view must not use another one."""
    pinned = deployment.value("chain", "first", "pin")["base_tables"]["lake.sales.orders"]["snapshot_id"]
    head = deployment.lake.compact()
    assert deployment.clear("first", "refresh_counts")["refresh_counts"] == "success"
    again = deployment.value("chain", "first", "refresh_counts")
    assert (again["outcome"], again["base_tables"]) == ("fresh", {"lake.sales.orders": pinned})

    deployment.clear("first", "pin", "refresh_counts", "refresh_daily", "refresh_total")
    anew = deployment.value("chain", "first", "refresh_counts")
    assert (anew["outcome"], anew["base_tables"]) == ("refreshed", {"lake.sales.orders": str(head)})


def test_only_the_scheduled_dag_can_be_backfilled_and_both_dags_may_run_at_once(
    deployment: Chains, first: dict[str, str]
) -> None:
    """Each run is correct in any order; the views end up fresh."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        deployment.backfill("events")
    assert refused.value.code == 422
    head = deployment.lake.compact()
    deployment.backfill("events_periodic")
    assets = deployment.airflow.call("GET", "/api/v2/assets?name_pattern=orders")["assets"]
    (asset,) = [item for item in assets if item["name"] == "orders"]
    deployment.airflow.call("POST", "/api/v2/assets/events", {"asset_id": asset["id"], "extra": {}})

    def runs(dag_id: str, kind: str) -> list[str]:
        found = deployment.airflow.call("GET", f"/api/v2/dags/{dag_id}/dagRuns")["dag_runs"]
        return [run["state"] for run in found if run["run_type"] == kind]

    until(lambda: runs("events_periodic", "backfill") == ["success"] * 2 and runs("events", "asset_triggered"))
    until(lambda: "running" not in runs("events", "asset_triggered") + runs("events", "asset_triggered"))
    until(lambda: set(runs("events", "asset_triggered")) == {"success"})
    for name in ("counts", "daily"):
        assert status(deployment.catalog, f"lake.sales.{name}").state == "fresh"
        record = deployment.lake.storage(f"sales.{name}").state.current
        assert record.snapshots == {"lake.sales.orders": head}


def test_one_dag_may_be_started_by_a_schedule_of_assets_or_time(deployment: Chains) -> None:
    """Airflow treats it as a periodic DAG."""
    assert deployment.backfill("both", "/dry_run")["total_entries"] == 2
