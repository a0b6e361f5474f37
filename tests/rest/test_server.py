# SPDX-License-Identifier: Apache-2.0
"""Iceberg's own REST server over the same tables as a SQL catalog: one catalog, three ways to access it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import ServiceUnavailableError as ServerIsBusyError
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from pyiceberg.view.metadata import SQLViewRepresentation, ViewVersion

from airflow_mv.common.status import status
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.catalog.rest_session import CONCURRENT, TRIES
from airflow_mv.errors import CatalogUnavailableError
from tests.builders import lake
from tests.rest.java import java_command
from tests.rest.proxy import Forwarding
from tests.services import RestServers, ServiceUnavailableError, http_server, rest_properties

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


@dataclass
class _Traffic:
    """What has passed a server: the statuses of the answers to ``GET``, and how many requests ran at a time."""

    statuses: list[int] = field(default_factory=list)
    busy: list[tuple[int, str]] = field(default_factory=list)
    running: int = 0
    most: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def watching(self, upstream: str, *, seconds: float = 0.0) -> Iterator[str]:
        """Yield the address of a server that forwards to another one. First it gives the answers of ``busy``.

        Args:
            upstream: The other server.
            seconds: How long each request takes.
        """

        class Handler(Forwarding):
            other = urlsplit(upstream).netloc

            def answer(handler, body: bytes) -> None:
                with self.lock:
                    self.running += 1
                    self.most = max(self.most, self.running)
                    refused = self.busy.pop(0) if self.busy else None
                time.sleep(seconds)
                status, headers, data = (refused[0], {"Retry-After": refused[1]}, b"") if refused else (0, {}, b"")
                if not refused:
                    status, headers, data = handler.forwarded(body)
                with self.lock:
                    self.running -= 1
                    self.statuses.append(status)
                handler.write(status, headers, data)

        with http_server(Handler) as port:
            yield f"http://127.0.0.1:{port}"


def test_a_table_that_has_not_moved_is_not_sent_again(rest_jvm: RestServers, sqlite_uri: str, warehouse: Path) -> None:
    """A look at a fresh view transfers no metadata; a commit is seen by the next look."""
    traffic = _Traffic()
    with (
        rest_jvm.serve(sqlite_uri, warehouse) as address,
        traffic.watching(address) as watched,
        lake(sqlite_uri, warehouse) as home,
        load_catalog("lake", **rest_properties(watched)) as rest,
    ):
        home.table()
        home.view(layout="table")
        home.refresh()
        catalog = MaterializedViewCatalog(rest)

        def looked() -> tuple[str, set[int]]:
            traffic.statuses.clear()
            return str(status(catalog, "sales.daily").state), set(traffic.statuses) - {404}

        assert looked() == ("fresh", {200})
        assert looked() == looked() == ("fresh", {304})
        home.append()
        assert looked() == ("stale", {200, 304})
        assert looked() == ("stale", {304})
        home.refresh()
        assert looked() == ("fresh", {200, 304})


@pytest.mark.parametrize("after", ["0", "Thu, 01 Jan 1970 00:00:00 GMT", ""])
def test_a_busy_server_is_asked_again_and_few_requests_run_at_a_time(
    rest_jvm: RestServers, sqlite_uri: str, warehouse: Path, after: str
) -> None:
    """After the time that it has given. A change is sent once: it may have been made."""
    traffic = _Traffic()
    with (
        rest_jvm.serve(sqlite_uri, warehouse) as address,
        traffic.watching(address, seconds=0.02) as watched,
        lake(sqlite_uri, warehouse) as home,
        load_catalog("lake", **rest_properties(watched)) as rest,
    ):
        names = [home.table(f"t{number}").name() for number in range(16)]
        catalog = MaterializedViewCatalog(rest)
        traffic.busy, traffic.statuses = [(429, after), (503, after)], []
        with ThreadPoolExecutor(len(names)) as readers:
            list(readers.map(rest.load_table, names))
        assert sorted(set(traffic.statuses)) == [200, 429, 503]
        assert traffic.most <= CONCURRENT
        traffic.busy, traffic.most = [(503, after)] * TRIES, 0
        with pytest.raises(CatalogUnavailableError):
            catalog.load("sales.t1")
        found = catalog.locate([catalog.identify(f"sales.t{number}") for number in range(16)])
        assert (len(found), 1 < traffic.most <= CONCURRENT) == (16, True)
        traffic.busy, traffic.statuses = [(503, after)], []
        with pytest.raises(ServerIsBusyError):
            rest.create_namespace("more")
        assert traffic.statuses == [503]
