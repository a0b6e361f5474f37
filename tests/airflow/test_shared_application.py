# SPDX-License-Identifier: Apache-2.0
"""The tasks of a DAG run share one Spark application, in a complete Airflow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import psutil
import pytest

from tests.airflow.deployment import Deployment, Shared, processes, until
from tests.builders import QUERY, Lake, lake

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(1200)]

VIEWS = {
    "daily": QUERY,
    "total": "SELECT sum(d.orders) AS n FROM lake.sales.daily d",
    # It fails when there are rows.
    "wrong": "SELECT id % (id - id) AS n FROM lake.sales.orders",
    "above": "SELECT n FROM lake.sales.wrong",
    "slow": """
        SELECT count(*) AS n FROM lake.sales.many a CROSS JOIN lake.sales.many b CROSS JOIN lake.sales.many c
        WHERE a.amount * b.amount + c.amount < b.id * c.id - a.id
    """,
}
DAGS = """
from airflow_mv.dags import materialized_views_dag

SPARK = {"conf": {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}}

materialized_views_dag(
    "shared",
    {
        "lake.sales.daily": [],
        "lake.sales.total": ["lake.sales.daily"],
        "lake.sales.wrong": [],
        "lake.sales.above": ["lake.sales.wrong"],
    },
    spark=SPARK,
    refresh={"deferrable": False},
    spark_application="shared",
    default_args={"retries": 0},
)
materialized_views_dag("killed", ["lake.sales.slow"], spark=SPARK, spark_application="shared")
"""
IN_APPLICATION = "The script runs in the Spark application of this DAG run (task spark_application)"


@dataclass(frozen=True)
class Views(Deployment):
    """A running Airflow over a lake."""

    lake: Lake

    def applications(self) -> list[psutil.Process]:
        """The processes of shared applications: two for each, Java and Python."""
        found = []
        for item in processes(self.home):
            with suppress(psutil.Error):  # it may end at any time
                if "--serve" in item.cmdline():
                    found.append(item)
        return found


@pytest.fixture(scope="module")
def deployment(shared_airflow: Shared) -> Iterator[Views]:
    """A base table, and views of it that were never refreshed."""
    home = shared_airflow.home
    (home.folder / "warehouse").mkdir(exist_ok=True)
    with lake(home.catalog_properties["uri"], home.folder / "warehouse") as found:
        found.table(rows=None)
        found.table("many", rows=None)
        for name, sql in VIEWS.items():
            found.view(name, sql)
        found.append((1, "north", 10), (2, "south", 20), (3, "north", 30))
        found.append(*((number, "north", number) for number in range(600)), name="many")
        running = shared_airflow.with_dags("shared_application.py", DAGS, "shared", "killed")
        yield Views(running.airflow, running.home, running.iceberg, running.catalog, found)


@pytest.fixture(scope="module")
def first(deployment: Views) -> dict[str, str]:
    """Return the states of a run."""
    return deployment.run("shared", "first")


def test_the_views_of_a_run_are_refreshed_in_one_application(deployment: Views, first: dict[str, str]) -> None:
    """Each has its own state, log and event. A failed one holds up only the views that read it."""
    assert first == {
        "pin": "success",
        "spark_application": "success",
        "refresh_daily": "success",
        "refresh_total": "success",
        "refresh_wrong": "failed",
        "refresh_above": "upstream_failed",
    }, deployment.last_output()
    assert deployment.lake.read("sales.total") == [{"n": 3}]
    for name in ("daily", "total"):
        log = deployment.log("shared", "first", f"refresh_{name}")
        assert IN_APPLICATION in log
        assert any(line.startswith("statement ") and "INSERT OVERWRITE" in line for line in log), log
        assert not any("Spark-Submit cmd" in line for line in log)
    assert IN_APPLICATION in deployment.log("shared", "first", "refresh_wrong")
    assert {*deployment.events("shared", "first")} == {"refresh_daily", "refresh_total"}
    application = deployment.log("shared", "first", "spark_application")
    assert sum("Spark-Submit cmd" in line for line in application) == 1
    assert any(line.startswith("lake.sales.wrong: ") and "by zero" in line for line in application)
    assert not deployment.applications()
    assert not [*deployment.home.folder.rglob("*.request.json")], "the folder was left behind"


def test_a_run_in_which_no_view_needs_spark_starts_none(deployment: Views, first: dict[str, str]) -> None:
    states = deployment.run("shared", "second")
    assert (states["refresh_daily"], states["refresh_total"]) == ("success", "success")
    # The failed view is stale still, so the application starts for it.
    assert IN_APPLICATION not in deployment.log("shared", "second", "refresh_daily")


def test_a_killed_application_costs_a_view_no_more_than_another_job(deployment: Views) -> None:
    """The task goes on with an application of its own, and the run succeeds."""
    deployment.start("killed", "first")
    until(lambda: any("statement 2/2" in line for line in _log(deployment)))
    for process in deployment.applications():
        with suppress(psutil.NoSuchProcess):
            process.kill()
    states = deployment.ended("killed", "first")
    # Its task was tried again, for views that are not finished.
    assert states == {"pin": "success", "spark_application": "success", "refresh_slow": "success"}
    log = deployment.log("killed", "first", "refresh_slow")
    assert any(line.startswith("No shared Spark application: it has ended") for line in log)
    path = "/api/v2/dags/killed/dagRuns/first"
    assert deployment.airflow.call("GET", path)["state"] == "success"


def _log(deployment: Views) -> list[str]:
    try:
        return deployment.log("killed", "first", "spark_application")
    except OSError:  # there is none yet
        return []
