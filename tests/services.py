# SPDX-License-Identifier: Apache-2.0
"""Real servers for the tests, started from the system's packages and stopped at the end."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, create_engine, make_url, text

from airflow_mv.errors import ConfigurationError
from examples.demo.postgres import postgres
from tests.rest.java import JavaProcess, java_process
from tests.rest.java import ServiceUnavailableError as ServiceUnavailableError

#: The URL of a running server (any database of it) whose user may create databases.
POSTGRES_URL_VARIABLE = "AIRFLOW_MV_TEST_POSTGRES_URL"

_START_SECONDS = 240
_STOP_SECONDS = 60


def free_port() -> int:
    """Return a port of 127.0.0.1 that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class _PromptServer(ThreadingHTTPServer):
    """A server whose body does not wait for the acknowledgement of its headers."""

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection, address


@contextmanager
def http_server(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """Serve a handler on a port of 127.0.0.1, which is yielded, until the block ends."""
    with _PromptServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def postgres_server() -> Iterator[URL]:
    """Yield the URL of a PostgreSQL server: the one in the environment variable, or a new one in a temporary folder.

    Raises:
        ServiceUnavailableError: If none is configured and PostgreSQL's programs are not installed.
    """
    if named := os.environ.get(POSTGRES_URL_VARIABLE):
        yield make_url(named).set(drivername="postgresql+psycopg2")
        return
    # Not in pytest's folder, which the server's user may not read.
    folder = Path(tempfile.mkdtemp(prefix="airflow-mv-postgres-"))
    # synchronous_commit stays on: a server that is crashed by a test would lose acknowledged commits.
    speed = ["-cfsync=off", "-cfull_page_writes=off"]
    try:
        with ExitStack() as running:
            try:
                url = running.enter_context(postgres(folder, user="tests", options=speed))
            except ConfigurationError as error:
                raise ServiceUnavailableError(f"{error}, or set {POSTGRES_URL_VARIABLE} to a server's URL") from None
            yield url
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def postgres_database(server: URL) -> Iterator[str]:
    """Yield the SQLAlchemy URI of a new, empty database, which is dropped afterwards."""
    name = f"airflow_mv_{secrets.token_hex(6)}"
    _execute(server, f'CREATE DATABASE "{name}"')
    try:
        yield server.set(database=name).render_as_string(hide_password=False)
    finally:
        _execute(server, f'DROP DATABASE "{name}" WITH (FORCE)')


def empty_database(uri: str) -> None:
    """Delete everything in a database and close its connections; several times as fast as creating another one."""
    others = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    _execute(
        make_url(uri),
        f"SELECT pg_terminate_backend(pid) FROM ({others}) AS others",
        "DROP SCHEMA public CASCADE",
        "CREATE SCHEMA public",
    )


class RestServers:
    """One JVM that runs an Iceberg REST catalog server for each catalog, on ports of 127.0.0.1.

    Args:
        jvm: Executes the orders of ``LoopbackRest``.
    """

    def __init__(self, jvm: JavaProcess) -> None:
        self._jvm = jvm

    @contextmanager
    def serve(self, uri: str, warehouse: Path | str, name: str = "lake", **access: str) -> Iterator[str]:
        """Yield the address of a REST catalog over a SQL catalog, for pyiceberg: ``type=rest, uri=<address>``.

        Args:
            uri: The SQL catalog's SQLAlchemy URI. Both ways access the same catalog.
            warehouse: The folder of its tables, or its URI.
            name: The SQL catalog's name, which its rows contain.
            access: The server's own access to an object store, as pyiceberg's properties.
        """
        port = self._order(json.dumps(jdbc_properties(uri, warehouse, name, **access)), "READY")
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            self._order(port, "CLOSED")

    def _order(self, order: str, expected: str) -> str:
        word, _, rest = self._jvm.ask(order).partition(" ")
        if word != expected:
            raise ServiceUnavailableError(f"the REST catalog server failed: {rest}")
        return rest


@contextmanager
def rest_servers() -> Iterator[RestServers]:
    """Yield a JVM that serves REST catalogs.

    Raises:
        ServiceUnavailableError: Java or Maven is not installed, or the jars cannot be fetched.
    """
    with java_process("LoopbackRest") as jvm:
        yield RestServers(jvm)


@contextmanager
def conditional_glue() -> Iterator[None]:
    """Let moto's AWS Glue refuse an update of another version than the present one, as the real one does."""
    from moto.glue.exceptions import GlueClientError
    from moto.glue.responses import GlueResponse

    plain, create, one_at_a_time = GlueResponse.update_table, GlueResponse.create_table, threading.Lock()

    def update_table(request: GlueResponse) -> Any:
        with one_at_a_time:
            given, name = request.parameters, request.parameters["TableInput"]["Name"]
            present = request.glue_backend.get_table(given["DatabaseName"], name).as_dict()["VersionId"]
            if given.get("VersionId", present) != present:
                raise GlueClientError("ConcurrentModificationException", "Update table failed due to another change")
            return plain(request)

    def create_table(request: GlueResponse) -> Any:
        with one_at_a_time:
            return create(request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GlueResponse, "update_table", update_table)
        patch.setattr(GlueResponse, "create_table", create_table)
        yield


def empty_glue() -> None:
    """Drop all databases of moto's AWS Glue."""
    from moto.glue.models import glue_backends

    for region in glue_backends["123456789012"].values():
        region.databases.clear()


@contextmanager
def rest_server(uri: str, warehouse: Path | str, name: str = "lake") -> Iterator[str]:
    """Yield the address of one REST catalog in its own JVM; see :meth:`RestServers.serve`."""
    with rest_servers() as servers, servers.serve(uri, warehouse, name) as address:
        yield address


def rest_properties(address: str) -> dict[str, str]:
    """Return pyiceberg's properties for a REST catalog at an address."""
    return {"type": "rest", "uri": address}


def jdbc_properties(uri: str, warehouse: Path | str, name: str = "lake", **access: str) -> dict[str, str]:
    """Return the name and the properties of Java's ``JdbcCatalog`` for a SQL catalog, as a Spark session gets them."""
    from airflow_mv.extras.spark.settings import spark_settings

    folder = warehouse.as_uri() if isinstance(warehouse, Path) else warehouse
    settings = spark_settings(name, {"type": "sql", "uri": uri, "warehouse": folder, **access}).session_confs()
    prefix = f"spark.sql.catalog.{name}."
    own = {key.removeprefix(prefix): value for key, value in settings.items() if key.startswith(prefix)}
    unflushed = {"jdbc.synchronous": "OFF"} if uri.startswith("sqlite") else {}
    created = {"jdbc.init-catalog-tables": "true"}  # the server comes first to an empty database
    return {**own, **created, **unflushed, "name": name}


def _execute(server: URL, *statements: str) -> None:
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            for statement in statements:
                connection.execute(text(statement))
    finally:
        engine.dispose()


class Quiet:
    """A server that accepts connections and forwards bytes to another server until it stops answering.

    Args:
        server: Host and port of the other server; ``None`` to never answer.
    """

    def __init__(self, server: tuple[str, int] | None = None) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._open: list[socket.socket] = [self._listener]
        self.port: int = self._listener.getsockname()[1]
        #: Number of a client's bytes after which no answer is returned any more; the bytes are still forwarded.
        self.last_words: bytes | None = None
        self.silent = server is None
        self.mute = False
        self.accepted = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.accepted += 1
                self._open.append(client)
                if self._server is not None:
                    self._forward(client, self._server)

    def _forward(self, client: socket.socket, address: tuple[str, int]) -> None:
        try:
            server = socket.create_connection(address)
        except OSError:  # it is down
            client.close()
            return
        self._open.append(server)
        for way in ((client, server, True), (server, client, False)):
            threading.Thread(target=self._pass_on, args=way, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, asks: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if asks and self.last_words is not None and self.last_words in data:
                    self.mute = True
                if not self.silent and (asks or not self.mute):
                    target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)

    def serve(self, server: tuple[str, int]) -> None:
        """Forward new connections to another server."""
        self._server = server

    def speak(self) -> None:
        """Forward everything again."""
        self.last_words, self.silent, self.mute = None, False, False

    def close(self) -> None:
        """Close everything."""
        self.silent = True
        for item in self._open:
            with suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)
            item.close()
