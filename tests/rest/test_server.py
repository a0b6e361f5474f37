# SPDX-License-Identifier: Apache-2.0
"""Iceberg's own REST server over the same tables as a SQL catalog: one catalog, three ways to access it."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from pyiceberg.view.metadata import SQLViewRepresentation, ViewVersion

from tests.builders import lake
from tests.rest.java import java_command
from tests.services import RestServers, ServiceUnavailableError, rest_properties

DATABASES = ["sqlite_uri", pytest.param("postgres_uri", marks=pytest.mark.postgres)]
COUNT = Schema(NestedField(1, "n", LongType(), required=False))


def create_view(catalog: Catalog, name: str, sql: str) -> None:
    catalog.create_view(
        name,
        COUNT,
        ViewVersion(
            version_id=1,
            schema_id=0,
            timestamp_ms=time.time_ns() // 1_000_000,
            summary={},
            representations=[SQLViewRepresentation(type="sql", sql=sql, dialect="spark")],
            default_namespace=["sales"],
        ),
    )


@pytest.mark.parametrize("database", DATABASES)
def test_a_catalog_has_the_same_content_through_rest_and_through_sql(
    rest_jvm: RestServers, request: pytest.FixtureRequest, database: str, warehouse: Path
) -> None:
    """The commit tests through REST depend on this: a table and a view that one creates can be loaded by the other."""
    uri = str(request.getfixturevalue(database))
    with (
        rest_jvm.serve(uri, warehouse) as address,
        lake(uri, warehouse) as home,
        load_catalog("lake", **rest_properties(address)) as rest,
    ):
        rest.create_table("sales.orders", COUNT).append(pa.table({"n": [1, 2]}))
        create_view(rest, "sales.v", "SELECT count(*) AS n FROM orders")
        assert home.load("orders").scan().count() == 2
        assert home.catalog.load("sales.v").metadata.sql(view="v") == "SELECT count(*) AS n FROM orders"
        home.plain_view("w", "SELECT 1 AS n", ["n"])
        assert rest.load_view("sales.w").current_version().representations[0].root.sql == "SELECT 1 AS n"
        assert rest.list_views("sales") == [("sales", "v"), ("sales", "w")]


def test_the_server_listens_on_the_loopback_address_only(rest_uri: str) -> None:
    """No other host may connect to it."""
    assert urlsplit(rest_uri).hostname == "127.0.0.1"


def test_the_error_on_a_machine_without_java_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests are skipped there, and the reason says what to install."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ServiceUnavailableError, match="apt-get install openjdk-17-jre-headless"):
        java_command("LoopbackRest")
