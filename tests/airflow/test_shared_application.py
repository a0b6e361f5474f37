# SPDX-License-Identifier: Apache-2.0
"""The tasks of a DAG run share one Spark application, in a complete Airflow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from airflow_mv.core.catalog import MaterializedViewCatalog
from tests.airflow.deployment import Deployment, Shared, processes, until
from tests.builders import QUERY, Lake, lake
from tests.duck import DuckStager
from tests.protocol.foreign import BucketStore

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
materialized_views_dag(
    "in_bucket",
    {"lake.sales.daily": [], "lake.sales.total": ["lake.sales.daily"]},
    connections={"iceberg_conn_id": "bucket"},
    spark=SPARK,
    refresh={"deferrable": False},
    spark_application="shared",
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
                if "--extra" in item.cmdline():
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
        running = shared_airflow.with_dags("shared_application.py", DAGS, "shared", "killed", "in_bucket")
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


def test_an_application_serves_views_in_an_object_store(deployment: Views, s3_server: str, tmp_path: Path) -> None:
    """Requests and answers are files there, too. The first refreshes are full, the second ones incremental."""
    bucket = BucketStore(s3_server, "shared-application")
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": bucket.warehouse}
    properties |= bucket.access
    connection = {"connection_id": "bucket", "conn_type": "iceberg", "extra": json.dumps(properties)}
    deployment.airflow.call("POST", "/api/v2/connections", connection)
    with closing(SqlCatalog("lake", **properties)) as iceberg:
        iceberg.create_namespace("sales")
        catalog = MaterializedViewCatalog(iceberg)
        found = Lake(iceberg, catalog, DuckStager(catalog, iceberg), "table")
        found.table(rows=None)
        found.append((1, "north", 10), (2, "south", 20), (3, "north", 30))
        always = {"airflow-mv.incremental-up-to": "1000000"}
        found.view(refresh_strategy="incremental", properties=always)
        found.view("total", VIEWS["total"], refresh_strategy="incremental", properties=always)
        for run, rows, modes in (("first", 3, {"full"}), ("second", 4, {"merge", "replace-keys"})):
            states = deployment.run("in_bucket", run)
            assert set(states.values()) == {"success"}, deployment.last_output()
            for name in ("daily", "total"):
                assert IN_APPLICATION in deployment.log("in_bucket", run, f"refresh_{name}")
                assert deployment.value("in_bucket", run, f"refresh_{name}")["mode"] in modes
            assert found.read("sales.total") == [{"n": rows}]
            found.append((4, "south", 40))
    assert not [path for path in bucket.files() if path.endswith(".request.json")]


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
