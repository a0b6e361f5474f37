# SPDX-License-Identifier: Apache-2.0
"""Views in AWS Glue and in a Hive Metastore through Spark, which has clients of its own for both, and for S3."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from tests.protocol.foreign import BucketStore

#: A process that has the catalog's address in pyiceberg's configuration, and keys in its environment only.
_LIFE = """
import json, sys
from datetime import timedelta
from airflow_mv import MaterializedViewCatalog
from airflow_mv.maintenance.drop import purge
from airflow_mv.maintenance.orphans import maintain
from airflow_mv.maintenance.rollback import rollback
from airflow_mv.refresh.create import Definition, create
from airflow_mv.refresh.run import refresh
from airflow_mv.refresh.stagers import InProcessStager
from airflow_mv.refresh.verify import verify

VIEW = "lake.sales.daily"
catalog = MaterializedViewCatalog("lake")
stager = InProcessStager(catalog, master="local[2]")
orders = catalog.tables.open(catalog.identify("lake.sales.orders"))
done = {}

def rows():
    frame = stager.session.sql(f"SELECT * FROM {VIEW} ORDER BY 1")
    return [frame.columns, *[list(row) for row in frame.collect()]]

def define(sql, **how):
    definition = Definition(sql, refresh_strategy="incremental", time_travel=True)
    create(catalog, VIEW, definition, stager=stager, **how)

def refreshed(step):
    result = refresh(catalog, [VIEW], stager=stager)[0]
    done[step] = [result.outcome, result.mode, rows()]
    return result.refresh_id

define("SELECT day, sum(amount) AS amount FROM sales.orders GROUP BY day")
stager.session.conf.set("spark.sql.shuffle.partitions", "2")
first = refreshed("full")
orders.append(orders.scan().to_arrow().slice(0, 1))
refreshed("incremental")
done["verify"] = verify(catalog, VIEW, session=lambda: stager.session).equal
done["rollback"] = [rollback(catalog, VIEW, first).changed, rows()]
define("SELECT day, count(*) AS n, max(amount) AS amount FROM sales.orders GROUP BY day", replace=True)
done["before"] = rows()
refreshed("other columns")
maintain(catalog, VIEW, older_than=timedelta(0))
done["maintain"] = rows()
purge(catalog, VIEW)
done["left"] = [str(item) for item in catalog.list()] + [name for _, name in catalog._catalog.list_tables("sales")]
print(json.dumps(done))
"""


def _life(address: Mapping[str, str], access: Mapping[str, str], environment: Mapping[str, str]) -> None:
    """Let another process create, refresh, verify, roll back, redefine, maintain and drop a view."""
    properties = {key.lower().replace("__", "."): value for key, value in address.items()}
    iceberg = load_catalog("lake", **properties, **access)
    place = {"location": f"{address['WAREHOUSE']}/sales"}
    iceberg.create_namespace("sales", place)
    rows = pa.table({"day": ["a", "b", "b"], "amount": [1, 2, 3]})
    iceberg.create_table("sales.orders", schema=rows.schema).append(rows)

    variables = os.environ | environment | {f"PYICEBERG_CATALOG__LAKE__{key}": value for key, value in address.items()}
    life = subprocess.run([sys.executable, "-c", _LIFE], env=variables, capture_output=True, text=True, check=False)
    assert life.returncode == 0, life.stderr
    columns, others = ["day", "amount"], ["day", "n", "amount"]
    assert json.loads(life.stdout) == {
        "full": ["refreshed", "full", [columns, ["a", 1], ["b", 5]]],
        "incremental": ["refreshed", "merge", [columns, ["a", 2], ["b", 5]]],
        "verify": True,
        "rollback": [True, [columns, ["a", 1], ["b", 5]]],
        "before": [columns, ["a", 1], ["b", 5]],
        "other columns": ["refreshed", "full", [others, ["a", 2, 1], ["b", 2, 3]]],
        "maintain": [others, ["a", 2, 1], ["b", 2, 3]],
        "left": ["orders"],
    }


@pytest.mark.slow
def test_a_view_lives_in_glue_with_the_credentials_of_the_environment(glue_uri: str, s3_server: str) -> None:
    """Its rows are read by its name. Nothing but the addresses is configured, for Python and for Spark."""
    bucket = BucketStore(s3_server, "glue-views")
    address = {"TYPE": "glue", "GLUE__ENDPOINT": s3_server, "S3__ENDPOINT": s3_server, "CLIENT__REGION": "us-east-1"}
    keys = {"access-key-id": "testing", "secret-access-key": "testing"}
    environment = {f"AWS_{key.upper().replace('-', '_')}": value for key, value in keys.items()}
    access = {f"client.{key}": value for key, value in keys.items()}
    _life({**address, "WAREHOUSE": bucket.warehouse}, access, environment)


@pytest.mark.slow
def test_a_view_lives_in_a_hive_metastore(hive_uri: str, warehouse: Path) -> None:
    """The same; pyiceberg and Spark lock the table in the same way."""
    _life({"TYPE": "hive", "URI": hive_uri, "WAREHOUSE": f"file://{warehouse}"}, {}, {})
