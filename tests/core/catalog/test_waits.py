# SPDX-License-Identifier: Apache-2.0
"""Every wait for a catalog's database has a limit and ends with an error of this package."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import psutil
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import QueuePool

from airflow_mv.common.status import status
from airflow_mv.core.catalog import Layout, MaterializedViewCatalog, TableChange
from airflow_mv.core.catalog import database_limits as waits
from airflow_mv.core.catalog.catalog import catalog_errors
from airflow_mv.core.catalog.configured import RESPONSE_TIMEOUT, with_store_limits
from airflow_mv.core.catalog.database_limits import CLIENT_LIMITS, CONNECTIONS, SERVER_LIMITS
from airflow_mv.core.catalog.files import MetadataFiles
from airflow_mv.core.define.create import create
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.publish import publish
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.view import with_view_properties
from airflow_mv.errors import CatalogUnavailableError, CommitStateUnknownError
from tests.builders import LAYOUTS, QUERY, Lake, lake
from tests.faults import Clock
from tests.services import Quiet, http_server

DRIVERS = ["postgresql+psycopg2", "postgresql+psycopg"]


@pytest.fixture(params=DRIVERS)
def uri(request: pytest.FixtureRequest, postgres_uri: str) -> str:
    return make_url(postgres_uri).set(drivername=request.param).render_as_string(hide_password=False)


@pytest.fixture
def home(uri: str, warehouse: Path) -> Iterator[Lake]:
    with lake(uri, warehouse) as found:
        found.table()
        found.view()
        yield found


def settings(catalog: SqlCatalog) -> dict[str, str]:
    """The limits that hold in a transaction of a catalog's engine."""
    with Session(catalog.engine) as session:
        return {name: session.execute(text(f"SHOW {name}")).scalar_one() for name in SERVER_LIMITS}


def test_every_transaction_and_connection_is_bounded(home: Lake) -> None:
    assert isinstance(home.iceberg, SqlCatalog)
    assert settings(home.iceberg) == {
        "lock_timeout": "10s",
        "statement_timeout": "1min",
        "idle_in_transaction_session_timeout": "1min",
    }
    with home.iceberg.engine.connect() as connection:
        driver = connection.connection.dbapi_connection
        info = driver.info  # type: ignore[union-attr]
        parameters = info.dsn_parameters if hasattr(info, "dsn_parameters") else info.get_parameters()
    assert {name: int(parameters[name]) for name in CLIENT_LIMITS} == CLIENT_LIMITS


def test_limits_in_the_uri_are_not_changed(home: Lake, uri: str) -> None:
    query = {"options": "-c lock_timeout=3s -c statement_timeout=5min", "tcp_user_timeout": "7000"}
    own = make_url(uri).update_query_dict(query).render_as_string(hide_password=False)
    iceberg = SqlCatalog("lake", uri=own, warehouse=home.iceberg.properties["warehouse"])
    MaterializedViewCatalog(iceberg)
    found = settings(iceberg)
    assert (found["lock_timeout"], found["statement_timeout"]) == ("3s", "5min")
    assert found["idle_in_transaction_session_timeout"] == "1min"
    iceberg.engine.dispose()


def test_a_locked_row_ends_in_a_typed_unknown_outcome(home: Lake, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyiceberg's own commit to a table is bounded, too; the registered layout publishes by it."""
    monkeypatch.setitem(SERVER_LIMITS, "lock_timeout", "300ms")
    view, table = home.catalog.load("sales.daily"), home.load()
    name = home.catalog.identify("sales.orders")
    holder, started = create_engine(uri), time.monotonic()
    with holder.begin() as connection:
        connection.execute(text("SELECT * FROM iceberg_tables FOR UPDATE"))
        with pytest.raises(CommitStateUnknownError, match=r"sales\.daily: no response to the swap"):
            home.catalog.swap(view.identifier, view.metadata_location, "file:///new.metadata.json")
        with pytest.raises(CommitStateUnknownError, match=r"sales\.orders: no response to a commit"):
            home.catalog.tables.commit(name, str(table.metadata.table_uuid), TableChange(properties={"a": "b"}))
        with pytest.raises(CommitStateUnknownError, match="drop it again"):
            home.catalog.drop(view.identifier)
    holder.dispose()
    assert time.monotonic() - started < 25  # three times the 10 s of SERVER_LIMITS would be more
    assert home.catalog.load("sales.daily") == view


def test_a_stopped_process_in_a_transaction_does_not_block_the_others(
    home: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has sent its statement and is stopped before the COMMIT; the server ends its transaction."""
    monkeypatch.setitem(SERVER_LIMITS, "idle_in_transaction_session_timeout", "300ms")
    view = home.catalog.load("sales.daily")
    assert isinstance(home.iceberg, SqlCatalog)
    stopped = home.iceberg.engine.connect()
    stopped.execute(text("UPDATE iceberg_tables SET previous_metadata_location = 'x' WHERE table_name = 'daily'"))
    assert home.refresh().outcome == "refreshed"
    row = home.catalog.row(view.identifier)
    assert row is not None
    assert row.previous == view.metadata_location
    stopped.invalidate()
    stopped.close()


def test_a_locked_sqlite_file_ends_in_a_typed_unknown_outcome(sqlite_uri: str, warehouse: Path) -> None:
    """SQLite's driver waits 5 s by default; the URI's ``timeout`` sets the limit."""
    with lake(f"{sqlite_uri}?timeout=0.2", warehouse) as home:
        home.table()
        home.view()
        view = home.catalog.load("sales.daily")
        other = sqlite3.connect(sqlite_uri.removeprefix("sqlite:///"), isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        started = time.monotonic()
        with pytest.raises(CommitStateUnknownError, match="no response to the swap"):
            home.catalog.swap(view.identifier, view.metadata_location, "file:///new.metadata.json")
        assert time.monotonic() - started < 4
        other.close()
        assert home.refresh().outcome == "refreshed"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_failed_commit_is_not_visible(sqlite_uri: str, warehouse: Path, layout: Layout) -> None:
    """While another connection reads, SQLite accepts the UPDATE, refuses the COMMIT and leaves the transaction open."""
    with lake(f"{sqlite_uri}?timeout=0.1", warehouse, layout=layout) as home:
        home.table()
        home.view()
        plan, outcome = home.stage()
        reader = sqlite3.connect(sqlite_uri.removeprefix("sqlite:///"))
        before = reader.execute("SELECT * FROM iceberg_tables ORDER BY 3").fetchall()
        reading = reader.execute("SELECT * FROM iceberg_tables")
        reading.fetchone()
        with pytest.raises(CommitStateUnknownError):
            publish(home.catalog, plan, outcome.staged, effects=Clock().effects)
        reading.close()
        assert reader.execute("SELECT * FROM iceberg_tables ORDER BY 3").fetchall() == before
        reader.close()
        assert home.refresh().outcome == "refreshed"


def test_a_failed_commit_of_a_new_view_is_not_visible(sqlite_uri: str, warehouse: Path) -> None:
    with lake(f"{sqlite_uri}?timeout=0.1", warehouse) as home:
        home.table()
        reader = sqlite3.connect(sqlite_uri.removeprefix("sqlite:///"))
        reading = reader.execute("SELECT * FROM iceberg_tables UNION ALL SELECT * FROM iceberg_tables")
        reading.fetchone()
        wanted = Definition(QUERY, layout=home.layout)
        with pytest.raises(CommitStateUnknownError, match="may or may not have been created"):
            create(home.catalog, "sales.daily", wanted, stager=home.stager, effects=Clock().effects)
        reading.close()
        assert reader.execute("SELECT count(*) FROM iceberg_tables").fetchone() == (1,)
        reader.close()
        home.view()


# ------------------------------------------------------------------ servers that accept connections and do not answer


@pytest.fixture
def quiet() -> Iterator[Callable[..., Quiet]]:
    """Start servers that can stop answering."""
    with ExitStack() as stack:
        yield lambda server=None: stack.enter_context(closing(Quiet(server)))


def through(quiet: Callable[..., Quiet], uri: str) -> tuple[Quiet, str]:
    """Put a server that can stop answering in front of a database, and return its URI."""
    url = make_url(uri)
    between = quiet((url.host or "127.0.0.1", url.port or 5432))
    return between, url.set(host="127.0.0.1", port=between.port).render_as_string(hide_password=False)


Opener = Callable[..., MaterializedViewCatalog]


@pytest.fixture
def opened(home: Lake) -> Iterator[Opener]:
    """Open the lake's catalog by another URI."""
    with ExitStack() as stack:

        def open_(uri: str, **more: str) -> MaterializedViewCatalog:
            given = {
                "type": "sql",
                "uri": uri,
                "warehouse": home.iceberg.properties["warehouse"],
                RESPONSE_TIMEOUT: "1",
                **more,
            }
            with catalog_errors("catalog 'lake'", given):
                return stack.enter_context(closing(MaterializedViewCatalog(load_catalog("lake", **given))))

        yield open_


def test_a_database_that_stops_answering_ends_in_an_error_that_names_catalog_and_limit(
    uri: str, opened: Opener, quiet: Callable[..., Quiet]
) -> None:
    """Its TCP stack acknowledges everything, so no limit of TCP ends the wait."""
    between, address = through(quiet, uri)
    catalog = opened(address)
    assert status(catalog, "sales.daily").to_dict()["state"] == "never-refreshed"
    between.silent = True
    for call in (lambda: status(catalog, "sales.daily"), catalog.list, lambda: catalog.folders.new(_DAILY)):
        started = time.monotonic()
        with pytest.raises(CatalogUnavailableError, match=r"catalog 'lake' did not respond.*no response within 1 s"):
            call()
        assert time.monotonic() - started < 60  # without a limit it would never end
        between.speak()  # the broken connection is not used again
        assert catalog.list() == [_DAILY]
        between.silent = True


_DAILY = Identifier("lake", ("sales",), "daily")


def test_a_database_that_never_answers_does_not_block_opening(
    uri: str, opened: Opener, quiet: Callable[..., Quiet], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CLIENT_LIMITS, "connect_timeout", 2)
    url = make_url(uri).set(host="127.0.0.1", port=quiet().port).render_as_string(hide_password=False)
    started = time.monotonic()
    with pytest.raises(CatalogUnavailableError, match="catalog 'lake' does not respond: OperationalError"):
        opened(url)
    assert time.monotonic() - started < 60  # without a limit it would never end


@pytest.mark.parametrize(
    ("uri", "word"),
    [
        (DRIVERS[0], b"UPDATE iceberg_tables"),
        (DRIVERS[1], b"COMMIT"),
        pytest.param(DRIVERS[0], b"COMMIT", marks=pytest.mark.slow),
        pytest.param(DRIVERS[1], b"UPDATE iceberg_tables", marks=pytest.mark.slow),
    ],
    indirect=["uri"],
)
def test_a_lost_answer_after_the_swap_was_sent_is_an_unknown_outcome(
    home: Lake, uri: str, opened: Opener, quiet: Callable[..., Quiet], word: bytes
) -> None:
    """It is never a failure: the server has the statement. The published state settles it."""
    between, address = through(quiet, uri)
    catalog = opened(address)
    plan, outcome = home.stage()
    between.last_words = word
    view = catalog.load("sales.daily")
    with pytest.raises(CommitStateUnknownError, match=r"no response to the swap.*no response within 1 s"):
        catalog.swap(view.identifier, view.metadata_location, view.metadata_location)
    between.speak()
    between.last_words = word
    effects = replace(Clock().effects, sleep=lambda _: between.speak())
    found = publish(catalog, plan, outcome.staged, effects=effects)
    assert (found.outcome, found.tries) == ("committed", 2)
    assert status(home.catalog, "sales.daily").to_dict()["state"] == "fresh"


def test_ended_calls_leave_no_thread_and_no_file_descriptor(
    uri: str, opened: Opener, quiet: Callable[..., Quiet]
) -> None:
    between, address = through(quiet, uri)
    catalog = opened(address)
    me = psutil.Process()
    before = me.num_fds(), threading.active_count()
    for _ in range(2):
        catalog.list()
        between.silent = True
        with pytest.raises(CatalogUnavailableError):
            catalog.list()
        between.speak()
    between.close()
    del between
    assert threading.active_count() <= before[1] + 1
    assert me.num_fds() <= before[0] + 1


def test_a_rest_server_that_does_not_answer_ends_in_an_error(quiet: Callable[..., Quiet]) -> None:
    """This holds for the catalog's server and for the token server, in both of pyiceberg's ways to authenticate."""
    silent = f"http://127.0.0.1:{quiet().port}"
    own = {"client_id": "me", "client_secret": "s", "token_url": f"{silent}/token"}
    ways: list[dict[str, Any]] = [
        {"token": "t"},
        {"credential": "me:s", "oauth2-server-uri": f"{silent}/token"},
        {"auth": {"type": "oauth2", "oauth2": own}},
    ]
    for way in ways:
        given = {"type": "rest", "uri": silent, **way, RESPONSE_TIMEOUT: "0.3"}
        started = time.monotonic()
        with (
            pytest.raises(CatalogUnavailableError, match=r"does not respond.*no response within 0\.3 s"),
            catalog_errors("catalog 'lake'", given),
        ):
            load_catalog("lake", **given)
        assert time.monotonic() - started < 5


def test_a_token_is_requested_and_used() -> None:
    """pyiceberg creates two sessions: one to load the server's configuration, and one with that configuration."""
    requests: list[str] = []

    class Server(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["Content-Length"])).decode()
            requests.append(f"{self.headers['Authorization']} {form}")
            self._answer('{"access_token": "abc", "expires_in": 3600}')

        def do_GET(self) -> None:
            requests.append(f"{self.path.partition('?')[0]} {self.headers['Authorization']}")
            self._answer('{"defaults": {}, "overrides": {}}' if "config" in self.path else '{"namespaces": []}')

        def _answer(self, text: str) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *arguments: object) -> None:
            """Log nothing."""

    with http_server(Server) as port:
        uri = f"http://127.0.0.1:{port}"
        own = {"client_id": "me", "client_secret": "s", "token_url": f"{uri}/token", "scope": "all"}
        given: dict[str, Any] = {"type": "rest", "uri": uri, "auth": {"type": "oauth2", "oauth2": own}}
        with catalog_errors("catalog 'lake'", given):
            assert load_catalog("lake", **given).list_namespaces() == []
    token = "Basic bWU6cw== grant_type=client_credentials&scope=all"
    assert requests == [token, "/v1/config Bearer abc", token, "/v1/namespaces Bearer abc"]


def test_a_lost_answer_of_a_rest_server_after_a_commit_is_an_unknown_outcome(
    rest_uri: str, warehouse: Path, quiet: Callable[..., Quiet]
) -> None:
    """This holds for pyiceberg's own request, which has no limit, and for the request that replaces a view."""
    address = urlsplit(rest_uri)
    between = quiet((address.hostname, address.port))
    with lake(rest_uri, warehouse, layout="registered") as home:
        home.table()
        home.view()
        name, uuid = home.catalog.identify("sales.orders"), str(home.load().metadata.table_uuid)
        given = {"type": "rest", "uri": f"http://127.0.0.1:{between.port}{address.path}", RESPONSE_TIMEOUT: "2"}
        with catalog_errors("catalog 'lake'", given):
            catalog = MaterializedViewCatalog(load_catalog("lake", **given))
        view = catalog.load("sales.daily")
        changed = with_view_properties(view.metadata, {"a": "b"})
        between.last_words = b"POST "
        with pytest.raises(CommitStateUnknownError, match=r"no response to a commit: .*no response within 2 s"):
            catalog.tables.commit(name, uuid, TableChange(properties={"a": "b"}))
        between.mute = False
        with pytest.raises(CommitStateUnknownError, match=r"replacing view lake\.sales\.daily.*no response within 2 s"):
            catalog.replace(view, changed)
        between.speak()
        assert catalog.load("sales.daily").metadata.properties["a"] == "b"
        assert home.load().properties["a"] == "b"
        between.silent = True
        with pytest.raises(CatalogUnavailableError, match=r"catalog 'lake' did not respond.*no response within 2 s"):
            status(catalog, "sales.daily")
        catalog.close()


@pytest.mark.parametrize("slow", [True, False])
def test_an_answer_that_never_ends_is_aborted(slow: bool) -> None:
    """Bytes keep arriving, so the limit of a single wait is never reached."""

    class Endless(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                while True:
                    self.wfile.write(b" " if slow else b" " * 1_000_000)
                    time.sleep(0.05 if slow else 0)

        def log_message(self, *arguments: object) -> None:
            """Log nothing."""

    with http_server(Endless) as port:
        given = {
            "type": "rest",
            "uri": f"http://127.0.0.1:{port}",
            "token": "t",
            RESPONSE_TIMEOUT: "0.5" if slow else "30",
        }
        why = r"no response within 0\.5 s" if slow else r"a response of more than \d+ bytes"
        with pytest.raises(CatalogUnavailableError, match=why), catalog_errors("catalog 'lake'", given):
            load_catalog("lake", **given)


def test_an_object_store_that_does_not_answer_ends_in_an_error(quiet: Callable[..., Quiet]) -> None:
    limits = with_store_limits({})
    assert {name: float(value) for name, value in limits.items()} == {
        "s3.connect-timeout": 10,
        "s3.request-timeout": 20,
    }
    given = {"s3.endpoint": f"http://127.0.0.1:{quiet().port}", "s3.access-key-id": "a", "s3.secret-access-key": "b"}
    files = MetadataFiles({**given, "s3.region": "us-east-1", **dict.fromkeys(limits, "1")})
    with pytest.raises(CatalogUnavailableError, match=r"the store of s3://b/1\.metadata\.json did not respond"):
        files.read("s3://b/1.metadata.json", what="view v")


def test_connections_are_few_and_are_replaced(uri: str, opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "MAX_CONNECTION_AGE", 1)
    catalog = opened(uri, **{RESPONSE_TIMEOUT: "60"})
    with ThreadPoolExecutor(16) as pool:
        assert set(map(len, pool.map(lambda _: catalog.list(), range(64)))) == {1}
    engine = cast("SqlCatalog", catalog._catalog).engine
    assert cast("QueuePool", engine.pool).checkedin() <= CONNECTIONS

    def backend() -> int:
        with engine.connect() as connection:
            return int(connection.execute(text("SELECT pg_backend_pid()")).scalar_one())

    before = backend()
    time.sleep(1.1)
    assert backend() != before


@pytest.mark.parametrize("lost", ["closed", "silent"])
def test_a_lost_connection_is_found_before_its_use(
    uri: str, opened: Opener, quiet: Callable[..., Quiet], lost: str
) -> None:
    """With ``pool_pre_ping``. Its test has a timeout too."""
    between, address = through(quiet, uri)
    catalog = opened(address, pool_pre_ping="true")
    assert catalog.list() == [_DAILY]
    if lost == "closed":
        other = create_engine(uri)
        with other.connect() as connection:
            connection.execute(
                text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
            )
        other.dispose()
    else:
        between.silent = True
        threading.Timer(0.3, between.speak).start()
    assert catalog.list() == [_DAILY]


def test_a_forked_process_does_not_use_its_parent_s_connections(uri: str, opened: Opener) -> None:
    """Airflow's LocalExecutor forks: two processes on one connection would read each other's answers."""
    catalog = opened(uri)
    assert catalog.list() == [_DAILY]
    backend = text("SELECT pg_backend_pid()")
    engine = cast("SqlCatalog", catalog._catalog).engine
    with engine.connect() as connection:
        ours = connection.execute(backend).scalar_one()
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the test forks a process with threads
        child = os.fork()
    if not child:
        with engine.connect() as connection:
            found = connection.execute(backend).scalar_one()
        os.write(write, f"{found} {catalog.list() == [_DAILY]}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs, worked = os.read(read, 100).decode().split()
    assert (worked, int(theirs) != ours) == ("True", True)
    with engine.connect() as connection:
        assert connection.execute(backend).scalar_one() == ours
