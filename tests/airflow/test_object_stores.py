# SPDX-License-Identifier: Apache-2.0
"""A view whose files are in an object store is created, refreshed, read and verified with the connection alone."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.extras.read import read_rows, readable
from airflow_mv.extras.spark.settings import spark_settings
from tests.airflow.conftest import SMALL, VIEW, Airflow
from tests.core.job.processes import command_line, connect_server
from tests.protocol.foreign import BucketStore
from tests.rest.vending import vending
from tests.services import RestServers


@pytest.fixture(params=["spark-submit", "connect"])
def spark(request: pytest.FixtureRequest, airflow: Airflow, s3_server: str, tmp_path: Path) -> Iterator[list[str]]:
    """The connection `spark_default`, and the same for the command line. A Connect server has no keys of the store."""
    if request.param == "spark-submit":
        airflow.connect("spark_default", conn_type="spark", host="local[2]")
        yield ["--master", "local[2]"]
        return
    server = {"type": "sql", "uri": "sqlite:////nowhere/x.db", "warehouse": "s3://none/wh", "s3.endpoint": s3_server}
    with connect_server(tmp_path, spark_settings("unused", server).session_confs()) as remote:
        host, _, port = remote.removeprefix("sc://").partition(":")
        airflow.connect("spark_default", conn_type="spark_connect", host=host, port=int(port))
        yield ["--remote", remote]


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["pointed", "table"])
def test_spark_needs_no_setting_of_its_own_for_s3(
    airflow: Airflow, spark: list[str], s3_server: str, tmp_path: Path, layout: str
) -> None:
    """The driver reads its script and writes its outcome with the catalog's FileIO: Hadoop has no file system for s3://."""
    bucket = BucketStore(s3_server, f"lake-{uuid.uuid4().hex[:8]}")
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": bucket.warehouse}
    properties |= bucket.access
    iceberg = SqlCatalog("lake", **properties)
    iceberg.create_namespace("sales")
    rows = pa.table({"day": ["a", "b", "b"], "amount": [1, 2, 3]})
    orders = iceberg.create_table("sales.orders", schema=rows.schema)
    orders.append(rows)
    airflow.connect("iceberg_default", conn_type="iceberg", extra=properties)

    run = airflow.run(f"""
        create = CreateMaterializedViewOperator(task_id="create", view="{VIEW}", conf={SMALL}, layout="{layout}",
            sql="SELECT day, sum(amount) AS amount FROM orders GROUP BY day", refresh_strategy="incremental",
            properties={{"airflow-mv.incremental-up-to": "1000000"}}, checks=["amount > 0"])
        create >> RefreshMaterializedViewOperator(task_id="refresh", view="{VIEW}", conf={SMALL})
    """)
    assert run.state == "success", run.log
    assert stored(iceberg, layout) == [["a", 1], ["b", 5]]
    orders.append(rows.slice(0, 1))
    run = airflow.run(f'RefreshMaterializedViewOperator(task_id="refresh", view="{VIEW}", conf={SMALL})')
    assert run.state == "success", run.log
    assert run.values["refresh"]["mode"] == "merge"
    assert [check["result"] for check in run.values["refresh"]["checks"]] == ["passed"]
    assert stored(iceberg, layout) == [["a", 2], ["b", 5]]

    names = {key: f"PYICEBERG_CATALOG__LAKE__{key.upper().replace('-', '_').replace('.', '__')}" for key in properties}
    with command_line(**{names[key]: value for key, value in properties.items()}) as call:
        verified = call("verify", VIEW, *spark)
    assert verified.code == 0, verified.stderr
    iceberg.engine.dispose()


def stored(iceberg: SqlCatalog, layout: str) -> list[list[Any]]:
    """The rows of the view, which in the layout `table` everyone reads by its name."""
    if layout == "table":
        rows = iceberg.load_table("sales.daily").scan().to_arrow().to_pylist()
        return sorted(list(row.values()) for row in rows)
    catalog = MaterializedViewCatalog(iceberg)
    return sorted(read_rows(catalog, readable(catalog, VIEW)).rows())


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
        assert sorted(read_rows(catalog, readable(catalog, VIEW)).rows()) == [["a", 1], ["b", 5]]
        assert sorted(iceberg.list_tables("sales")) == [("sales", "daily"), ("sales", "orders")]
        assert not [
            path for path in bucket.files() if "__script_" in path and path.endswith(f"staged/{Path(path).name}")
        ]
        assert not [secret for secret in server.every if secret in wrong.log + run.log]
