# SPDX-License-Identifier: Apache-2.0
"""The life of a view through Spark in each catalog, store and layout: the cells of the table in docs/matrix.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from tests.conftest import or_skip
from tests.engine.versity import versity_server
from tests.protocol.foreign import BucketStore
from tests.rest.proxy import Document, changed
from tests.services import RestServers

#: A process that has the catalog's properties in pyiceberg's configuration, as a user has.
_LIFE = """
import json, sys
from datetime import timedelta
from airflow_mv import MaterializedViewCatalog
from airflow_mv.extras.maintenance.drop import purge
from airflow_mv.extras.maintenance.orphans import maintain
from airflow_mv.extras.history.rollback import rollback
from airflow_mv.actions import create_view as create
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.refresh.run import refresh
from airflow_mv.common.stored_rows import stored_rows
from airflow_mv.extras.spark.session import InProcessStager
from airflow_mv.extras.maintenance.verify import verify

VIEW, source, base = "lake.sales.daily", *sys.argv[2:]
catalog = MaterializedViewCatalog("lake")
stager = InProcessStager(catalog, master="local[2]")
orders = catalog.other(base).tables.open(catalog.identify(f"{base}.sales.orders"))
done = {}

def rows():
    view = catalog.load(VIEW)
    storage = catalog.load_storage(view)
    if storage.name is None:  # no engine can name the rows
        frame = stored_rows(stager.session, view.identifier, storage, None)
    else:
        frame = stager.session.sql(f"SELECT * FROM {storage.name.sql()}")
    return [frame.columns, *[list(row) for row in frame.orderBy("day").collect()]]

def define(sql, **how):
    always = {"airflow-mv.incremental-up-to": "1000000"}  # a full refresh of three rows is cheaper
    how_stored = dict(time_travel=True, layout=sys.argv[1])
    definition = Definition(sql, refresh_strategy="incremental", properties=always, **how_stored)
    create(catalog, VIEW, definition, stager=stager, **how)

def refreshed(step):
    result = refresh(catalog, [VIEW], stager=stager)[0]
    done[step] = [result.outcome, result.mode, rows()]
    return result.refresh_id

define(f"SELECT day, sum(amount) AS amount FROM {source} GROUP BY day")
stager.session.conf.set("spark.sql.shuffle.partitions", "2")
first = refreshed("full")
orders.append(orders.scan().to_arrow().slice(0, 1))
refreshed("incremental")
done["verify"] = verify(catalog, VIEW, session=lambda: stager.session).equal
done["rollback"] = [rollback(catalog, VIEW, first).changed, rows()]
define(f"SELECT day, count(*) AS n, max(amount) AS amount FROM {source} GROUP BY day", replace=True)
done["before"] = rows()
refreshed("other columns")
maintain(catalog, VIEW, older_than=timedelta(0))
done["maintain"] = rows()
purge(catalog, VIEW)
done["left"] = [str(item) for item in catalog.list()] + [name for _, name in catalog._catalog.list_tables("sales")]
print(json.dumps(done))
"""


@pytest.fixture
def sqlite_local(sqlite_uri: str, warehouse: Path) -> dict[str, str]:
    return {"type": "sql", "uri": sqlite_uri, "warehouse": f"file://{warehouse}"}


@pytest.fixture
def postgres_local(postgres_uri: str, warehouse: Path) -> dict[str, str]:
    return {"type": "sql", "uri": postgres_uri, "warehouse": f"file://{warehouse}"}


@pytest.fixture
def sqlite_s3(sqlite_uri: str, bucket: BucketStore) -> dict[str, str]:
    return {"type": "sql", "uri": sqlite_uri, "warehouse": bucket.warehouse, **bucket.access}


@pytest.fixture
def postgres_s3(postgres_uri: str, bucket: BucketStore) -> dict[str, str]:
    return {"type": "sql", "uri": postgres_uri, "warehouse": bucket.warehouse, **bucket.access}


@pytest.fixture
def sqlite_versity(sqlite_uri: str, versity: str) -> dict[str, str]:
    bucket = BucketStore(versity, f"matrix-{uuid.uuid4().hex[:8]}")
    return {"type": "sql", "uri": sqlite_uri, "warehouse": bucket.warehouse, **bucket.access}


@pytest.fixture(scope="module")
def versity() -> Iterator[str]:
    """The address of a second S3 server."""
    with or_skip(versity_server()) as address:
        yield address


@pytest.fixture
def rest_local(rest_uri: str, warehouse: Path) -> dict[str, str]:
    return {"type": "rest", "uri": rest_uri, "warehouse": f"file://{warehouse}"}


@pytest.fixture
def rest_s3(rest_jvm: RestServers, sqlite_uri: str, bucket: BucketStore) -> Iterator[dict[str, str]]:
    with rest_jvm.serve(sqlite_uri, bucket.warehouse, **bucket.access) as address:
        yield {"type": "rest", "uri": address, "warehouse": bucket.warehouse, **bucket.access}


@pytest.fixture
def tables_s3(rest_s3: dict[str, str]) -> Iterator[dict[str, str]]:
    """A REST server that lists no endpoints for views."""

    def without_views(request: BaseHTTPRequestHandler, answer: Document) -> None:
        if "endpoints" in answer:
            answer["endpoints"] = [item for item in answer["endpoints"] if "/views" not in item]

    with changed(rest_s3["uri"], answer=without_views) as address:
        yield {**rest_s3, "uri": address}


@pytest.fixture
def glue_s3(glue_uri: str, s3_server: str, bucket: BucketStore, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Keys are in the environment only."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    region = {"client.region": "us-east-1", "glue.endpoint": s3_server, "s3.endpoint": s3_server}
    return {"type": "glue", "warehouse": bucket.warehouse, **region}


@pytest.fixture
def hive_local(hive_uri: str, warehouse: Path) -> dict[str, str]:
    return {"type": "hive", "uri": hive_uri, "warehouse": f"file://{warehouse}"}


@pytest.fixture
def bucket(s3_server: str) -> BucketStore:
    return BucketStore(s3_server, f"matrix-{uuid.uuid4().hex[:8]}")


_COLUMNS, _OTHERS = ["day", "amount"], ["day", "n", "amount"]
#: What each step of the life shows.
LIFE: dict[str, Any] = {
    "full": ["refreshed", "full", [_COLUMNS, ["a", 1], ["b", 5]]],
    "incremental": ["refreshed", "merge", [_COLUMNS, ["a", 2], ["b", 5]]],
    "verify": True,
    "rollback": [True, [_COLUMNS, ["a", 1], ["b", 5]]],
    "before": [_COLUMNS, ["a", 1], ["b", 5]],
    "other columns": ["refreshed", "full", [_OTHERS, ["a", 2, 1], ["b", 2, 3]]],
    "maintain": [_OTHERS, ["a", 2, 1], ["b", 2, 3]],
}
CELLS = [
    *product(
        ("sqlite_local", "postgres_local", "sqlite_s3", "postgres_s3", "sqlite_versity"),
        ("pointed", "registered", "table"),
    ),
    *product(("rest_local", "rest_s3"), ("registered", "table")),
    ("tables_s3", "table"),
    ("glue_s3", "table"),
    ("hive_local", "table"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("home", "layout"), CELLS)
def test_a_view_lives_in_each_catalog_store_and_layout(request: pytest.FixtureRequest, home: str, layout: str) -> None:
    properties: dict[str, str] = request.getfixturevalue(home)
    assert lived(layout, "sales.orders", {"lake": properties}) == {**LIFE, "left": ["orders"]}


@pytest.mark.slow
@pytest.mark.parametrize(("home", "layout"), [("sqlite_s3", "pointed"), ("rest_local", "table")])
def test_a_view_of_a_table_by_path_lives_alike(request: pytest.FixtureRequest, home: str, layout: str) -> None:
    """The table is another catalog's. The view's catalog gives access to the store, and allows the folder."""
    properties: dict[str, str] = request.getfixturevalue(home)
    source = f"iceberg.`{properties['warehouse']}/sales/orders`"
    assert lived(layout, source, {"lake": properties}) == {**LIFE, "left": ["orders"]}


@pytest.mark.slow
def test_base_tables_may_be_in_nessie(sqlite_s3: dict[str, str], nessie: dict[str, str]) -> None:
    """There a table has its current snapshot only, so after a change all rows are recomputed."""
    recomputed = ["refreshed", "full", LIFE["incremental"][2]]
    found = lived("table", "nessie.sales.orders", {"lake": sqlite_s3, "nessie": nessie}, base="nessie")
    assert found == {**LIFE, "incremental": recomputed, "left": []}


def lived(layout: str, source: str, catalogs: dict[str, dict[str, str]], base: str = "lake") -> dict[str, Any]:
    """Another process creates, refreshes, reads, verifies, rolls back, redefines, maintains and drops a view.

    Args:
        layout: The view's layout.
        source: The base table in the view's query.
        catalogs: The properties of the catalogs; the view is in ``lake``.
        base: The catalog of the base table.
    """
    variables = {}
    for name, properties in catalogs.items():
        iceberg, place = load_catalog(name, **properties), properties.get("warehouse")  # Nessie chooses its own
        iceberg.create_namespace("sales", {"location": f"{place}/sales"} if place else {})
        if name == base:
            rows = pa.table({"day": ["a", "b", "b"], "amount": [1, 2, 3]})
            location = f"{place}/sales/orders" if place else None
            iceberg.create_table("sales.orders", schema=rows.schema, location=location).append(rows)
        for key, value in properties.items():
            variables[f"PYICEBERG_CATALOG__{name.upper()}__{key.upper().replace('-', '_').replace('.', '__')}"] = value
    command = [sys.executable, "-c", _LIFE, layout, source, base]
    life = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    assert life.returncode == 0, life.stderr
    found: dict[str, Any] = json.loads(life.stdout.splitlines()[-1])
    return found
