# SPDX-License-Identifier: Apache-2.0
"""Real servers for the tests, started from the system's packages and stopped at the end."""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, create_engine, make_url, text
from sqlalchemy.exc import OperationalError

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
    programs = _postgres_programs()
    # Not in pytest's folder, which the server's user may not read.
    folder = Path(tempfile.mkdtemp(prefix="airflow-mv-postgres-"))
    try:
        with _started_postgres(programs, folder) as url:
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
    from airflow_mv.catalog.spark import spark_settings

    folder = warehouse.as_uri() if isinstance(warehouse, Path) else warehouse
    settings = spark_settings(name, {"type": "sql", "uri": uri, "warehouse": folder, **access}).session_confs()
    prefix = f"spark.sql.catalog.{name}."
    own = {key.removeprefix(prefix): value for key, value in settings.items() if key.startswith(prefix)}
    unflushed = {"jdbc.synchronous": "OFF"} if uri.startswith("sqlite") else {}
    return {**own, **unflushed, "name": name}


def _postgres_programs() -> Path:
    newest_first = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]), reverse=True
    )
    found = newest_first[0] if newest_first else shutil.which("initdb")
    if found is None:
        raise ServiceUnavailableError(
            "PostgreSQL is not installed: install your system's package (Debian, Ubuntu: apt-get install postgresql) "
            f"or set {POSTGRES_URL_VARIABLE} to a server's URL"
        )
    return Path(found).resolve().parent


@contextmanager
def _started_postgres(programs: Path, folder: Path) -> Iterator[URL]:
    account = _server_account()
    data, password_file, log = folder / "data", folder / "password", folder / "server.log"
    password = secrets.token_hex(16)
    password_file.write_text(password)
    if account:
        for path in (folder, password_file):
            os.chown(path, account.pw_uid, account.pw_gid)
    as_account = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if account else {}
    with log.open("w") as output:
        common = {"cwd": folder, "stdin": subprocess.DEVNULL, "stdout": output, "stderr": output, **as_account}
        initialise = [programs / "initdb", "-D", data, "-U", "tests", "--auth=scram-sha-256", "--pwfile", password_file]
        if subprocess.run([*initialise, "-E", "UTF8", "--locale=C", "--no-sync"], check=False, **common).returncode:
            raise ServiceUnavailableError(f"initdb failed: {log.read_text()}")
        port = free_port()
        options = [f"-cport={port}", "-clisten_addresses=127.0.0.1", f"-cunix_socket_directories={folder}"]
        # synchronous_commit stays on: a server that is crashed by a test would lose acknowledged commits.
        speed = ["-cfsync=off", "-cfull_page_writes=off"]
        server = subprocess.Popen([programs / "postgres", "-D", data, *options, *speed], **common)
        try:
            url = URL.create("postgresql+psycopg2", "tests", password, "127.0.0.1", port, "postgres")
            _wait_until_it_answers(server, url, log)
            yield url
        finally:
            _stop(server)


def _server_account() -> pwd.struct_passwd | None:
    """The account of the server, because PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise ServiceUnavailableError("PostgreSQL refuses to run as root, and there is no account `postgres` or `nobody`")


def _wait_until_it_answers(server: subprocess.Popen[bytes], url: URL, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            _execute(url, "SELECT 1")
            return
        except OperationalError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise ServiceUnavailableError(f"PostgreSQL did not start: {log.read_text()}") from None
            time.sleep(0.1)


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.send_signal(signal.SIGINT)  # PostgreSQL's "fast shutdown": it does not wait for clients
    try:
        server.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


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
                    server = socket.create_connection(self._server)
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
