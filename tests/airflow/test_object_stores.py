# SPDX-License-Identifier: Apache-2.0
"""A view whose files are in an object store is created, refreshed, read and verified with the connection alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog

from airflow_mv.catalog import MaterializedViewCatalog
from airflow_mv.refresh.read import read_arrow, readable
from tests.airflow.conftest import SMALL, VIEW, Airflow
from tests.protocol.foreign import BucketStore
from tests.rest.vending import vending
from tests.services import RestServers


@pytest.mark.slow
def test_spark_submit_needs_no_setting_of_its_own_for_s3(airflow: Airflow, s3_server: str, tmp_path: Path) -> None:
    """The driver reads its script and writes its outcome with the catalog's FileIO: Hadoop has no file system for s3://."""
    bucket = BucketStore(s3_server, "spark-submit")
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": bucket.warehouse}
    properties |= bucket.access
    iceberg = SqlCatalog("lake", **properties)
    iceberg.create_namespace("sales")
    rows = pa.table({"day": ["a", "b", "b"], "amount": [1, 2, 3]})
    iceberg.create_table("sales.orders", schema=rows.schema).append(rows)
    airflow.connect("iceberg_default", conn_type="iceberg", extra=properties)
    airflow.connect("spark_default", conn_type="spark", host="local[2]")

    run = airflow.run(f"""
        create = CreateMaterializedViewOperator(task_id="create", view="{VIEW}", conf={SMALL},
            sql="SELECT day, sum(amount) AS amount FROM orders GROUP BY day")
        create >> RefreshMaterializedViewOperator(task_id="refresh", view="{VIEW}", conf={SMALL})
    """)
    assert run.state == "success", run.log
    catalog = MaterializedViewCatalog(iceberg)
    assert sorted(read_arrow(catalog, readable(catalog, VIEW)).rows()) == [["a", 1], ["b", 5]]

    names = {key: f"PYICEBERG_CATALOG__LAKE__{key.upper().replace('-', '_').replace('.', '__')}" for key in properties}
    environment = {**os.environ, **{names[key]: value for key, value in properties.items()}}
    verify = "from airflow_mv.cli import main; main()"
    command = [sys.executable, "-c", verify, "verify", VIEW, "--master", "local[2]"]
    verified = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert verified.returncode == 0, verified.stderr
    iceberg.engine.dispose()


@pytest.mark.slow
def test_spark_submit_creates_a_view_where_the_server_chooses_folders_and_vends_credentials(
    airflow: Airflow, rest_jvm: RestServers, s3_server: str, tmp_path: Path
) -> None:
    """An empty table has the script for the time of the creation. The connection has no keys of the store."""
    bucket = BucketStore(s3_server, "handed-over")
    with vending(rest_jvm, f"sqlite:///{tmp_path}/catalog.db", bucket) as server:
        properties = {"type": "rest", "uri": server.catalog}
        iceberg = load_catalog("lake", **properties)
        iceberg.create_namespace("sales")
        rows = pa.table({"day": ["a", "b", "b"], "amount": [1, 2, 3]})
        iceberg.create_table("sales.orders", schema=rows.schema).append(rows)
        airflow.connect("iceberg_default", conn_type="iceberg", extra=properties)
        airflow.connect("spark_default", conn_type="spark", host="local[2]")

        wrong = airflow.run(f"""
            CreateMaterializedViewOperator(task_id="create", view="{VIEW}", sql="SELECT no FROM orders", conf={SMALL})
        """)
        assert "InvalidQueryError" in wrong.log
        assert iceberg.list_tables("sales") == [("sales", "orders")]
        run = airflow.run(f"""
            create = CreateMaterializedViewOperator(task_id="create", view="{VIEW}", conf={SMALL},
                sql="SELECT day, sum(amount) AS amount FROM orders GROUP BY day")
            create >> RefreshMaterializedViewOperator(task_id="refresh", view="{VIEW}", conf={SMALL})
        """)
        assert run.state == "success", run.log
        catalog = MaterializedViewCatalog(load_catalog("lake", **properties))
        assert sorted(read_arrow(catalog, readable(catalog, VIEW)).rows()) == [["a", 1], ["b", 5]]
        assert sorted(iceberg.list_tables("sales")) == [("sales", "daily"), ("sales", "orders")]
        assert not [
            path for path in bucket.files() if "__script_" in path and path.endswith(f"staged/{Path(path).name}")
        ]
        assert not [secret for secret in server.every if secret in wrong.log + run.log]
