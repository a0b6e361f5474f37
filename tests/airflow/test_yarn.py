# SPDX-License-Identifier: Apache-2.0
"""Drivers that run in a YARN cluster, with deploy mode ``cluster``, on tables in an object store."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import make_url

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.extras.describe import history
from tests.airflow.conftest import VIEW, Airflow
from tests.conftest import or_skip
from tests.protocol.foreign import BucketStore
from tests.yarn.cluster import Yarn, yarn_cluster

ROWS = pa.table({"day": ["a", "b", "b"], "amount": [1, 2, 3]})
QUERY = "SELECT day, sum(amount) AS amount FROM orders GROUP BY day"


@pytest.fixture(scope="module")
def yarn() -> Iterator[Yarn]:
    with or_skip(yarn_cluster()) as found:
        yield found


@pytest.fixture
def lake(postgres_uri: str, s3_server: str) -> Iterator[SqlCatalog]:
    """A catalog whose database and store need passwords, with a base table."""
    bucket = BucketStore(s3_server, "yarn")
    found = SqlCatalog("lake", uri=postgres_uri, warehouse=bucket.warehouse, **bucket.access)
    found.create_namespace("sales")
    found.create_table("sales.orders", schema=ROWS.schema).append(ROWS)
    yield found
    found.engine.dispose()


@pytest.mark.slow
def test_drivers_run_in_yarn_and_a_killed_one_is_replaced(
    airflow: Airflow, yarn: Yarn, lake: SqlCatalog, tmp_path: Path
) -> None:
    """The nodes have a Python without packages. The catalog's password reaches the driver, and no log."""
    airflow.connect("iceberg_default", conn_type="iceberg", extra={"type": "sql", **lake.properties})
    rest = {"yarn_resourcemanager_webapp_address": yarn.web}
    airflow.connect("spark_default", conn_type="spark", host="yarn", extra={"deploy-mode": "cluster", **rest})
    airflow.connect("here", conn_type="spark", host="local[2]")
    task = f"""view="{VIEW}", yarn_track_via_rm_api=True, conf={settings(tmp_path)!r},
               env_vars={{"YARN_CONF_DIR": "{yarn.settings}"}}"""

    first = airflow.run(f"""
        create = CreateMaterializedViewOperator(task_id="create", sql="{QUERY}", layout="table", {task},
            refresh_strategy="incremental", properties={{"airflow-mv.incremental-up-to": "1000000"}})
        create >> RefreshMaterializedViewOperator(task_id="refresh", {task})
    """)
    assert first.state == "success", first.log
    lake.load_table("sales.orders").append(ROWS.slice(0, 1))
    second = airflow.run(
        f"""
        refresh = RefreshMaterializedViewOperator(task_id="refresh", {task}, retries=1, retry_delay=timedelta(0))
        refresh >> VerifyMaterializedViewOperator(task_id="verify", view="{VIEW}", spark_conn_id="here")
        """,
        meanwhile=("Tracking YARN application", yarn.kill_the_running_one),
    )
    assert second.state == "success", second.log

    assert yarn.applications() == ["SUCCEEDED", "KILLED", "SUCCEEDED"]  # the view is created without Spark
    assert f"JobError: view {VIEW}: spark-submit failed: YARN application" in second.log
    assert "ended with state: KILLED" in second.log
    assert history(MaterializedViewCatalog(lake), VIEW)[-1]["mode"] == "merge"
    rows = lake.load_table("sales.daily").scan().to_arrow().to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == [("a", 2), ("b", 5)]

    lake.load_table("sales.orders").append(ROWS.slice(0, 1))
    third = airflow.run(
        f"""
        from airflow_mv.operators import deferral
        deferral.FIRST_QUESTION_SECONDS = 5
        RefreshMaterializedViewOperator(task_id="refresh", {task}, deferrable=True)
        """,
        meanwhile=("Waiting in the triggerer for the outcome of the driver", yarn.kill_the_running_one),
    )
    assert third.state == "success", third.log
    assert yarn.applications()[3:] == ["KILLED", "SUCCEEDED"]
    # Airflow's scheduler hands the plan over, and ``dag.test()`` does not: the resumed task asks YARN by its kept id.
    assert "Prior job in terminal state, resubmitting fresh" in third.log
    assert third.values["refresh"]["outcome"] == "refreshed"
    assert "Tracking YARN application" not in third.log  # no worker has waited
    rows = lake.load_table("sales.daily").scan().to_arrow().to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == [("a", 3), ("b", 5)]
    password = str(make_url(lake.properties["uri"]).password)
    assert password not in first.log + second.log + third.log + yarn.logs()


def settings(folder: Path) -> dict[str, str]:
    """Small settings, and what the nodes need: Spark's jars, and a Python."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without packages
    python.chmod(0o755)
    return {
        "spark.yarn.jars": f"local:{Path(pyspark.__file__).with_name('jars')}/*",
        "spark.yarn.stagingDir": f"file://{folder}",  # not the home folder
        "spark.pyspark.python": str(python),
        "spark.executor.instances": "1",
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
