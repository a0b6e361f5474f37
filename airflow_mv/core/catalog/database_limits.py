# SPDX-License-Identifier: Apache-2.0
"""Timeouts for every wait for a catalog's database. See :mod:`airflow_mv.core.catalog.limits` for servers and stores.

A change without an answer may still be applied while the server works on it. Timeouts of the server bound how late
that can happen, and how long the lock of a stopped process can block others. libpq's parameters end a wait for packets
that are not acknowledged. No parameter of libpq or TCP ends the wait for a server that acknowledges packets and does
not respond, so a timer shuts down the socket of a connection that was not returned to its pool in time. Settings in the
database, in the catalog's ``uri`` or in its properties are kept.

A COMMIT that fails, as SQLite's does while another process reads, leaves the transaction open, and SQLAlchemy returns
the connection to its pool in this state. The connection is not used again: it would show a change that no other
connection sees.

A database must also support an atomic, visible compare-and-swap. SQLite on a network file system does not, and is
refused.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from sqlalchemy import URL, Connection, Engine, ExceptionContext, create_engine, event, make_url
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import NullPool, QueuePool

from airflow_mv.core.catalog.configured import DEFAULT_TIMEOUT, response_timeout
from airflow_mv.core.catalog.locations import remote_kind
from airflow_mv.core.catalog.store_deadlines import no_answer
from airflow_mv.errors import ConfigurationError

log = logging.getLogger(__name__)

#: PostgreSQL's own settings, for one transaction at a time: a pooler may give the connection to others.
SERVER_LIMITS = {
    "lock_timeout": "10s",
    "statement_timeout": "60s",
    "idle_in_transaction_session_timeout": "60s",
}
#: libpq's connection parameters: seconds, but for the last in milliseconds.
CLIENT_LIMITS = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
#: Connections of one process to one catalog's database.
CONNECTIONS = 4
#: Seconds after which a connection is replaced before its next use.
MAX_CONNECTION_AGE = 30
#: Catalog property: ``true`` allows a SQLite database on a network file system.
NETWORK = "airflow-mv.sqlite-on-network"
_LIBPQ = ("psycopg2", "psycopg")
_DEADLINE = "airflow_mv_deadline"

_guarded: weakref.WeakSet[Engine] = weakref.WeakSet()


def bounded_engine(engine: Engine) -> Engine:
    """Return an engine for the same database with few connections, which are replaced after a time.

    Args:
        engine: The engine that pyiceberg has made. One with a database in memory is returned unchanged.
    """
    if in_memory(engine) or not isinstance(engine.pool, QueuePool):
        return engine
    engine.dispose()
    return create_engine(
        engine.url,
        echo=engine.echo,
        pool_size=CONNECTIONS,
        max_overflow=0,
        pool_timeout=DEFAULT_TIMEOUT,
        pool_recycle=MAX_CONNECTION_AGE,
        **_dialect_options(engine.url),
    )


def one_connection(uri: str, properties: Mapping[str, Any]) -> Engine:
    """Return an engine for a few queries, with the timeouts of a catalog with these properties."""
    engine = create_engine(uri, poolclass=NullPool, **_dialect_options(make_url(uri)))
    guard(engine, response_timeout(properties))
    return engine


def _dialect_options(url: URL) -> dict[str, Any]:
    """Keep SQLAlchemy from a query for the types of PostgreSQL's extension hstore in each new connection."""
    return {"use_native_hstore": False} if url.get_driver_name() in _LIBPQ else {}


def guard(engine: Engine, seconds: float = DEFAULT_TIMEOUT, *, pre_ping: bool = False) -> None:
    """Set timeouts for all waits of an engine. A second call has no effect.

    Args:
        engine: The engine of a SQL catalog; pyiceberg's own statements get the timeouts too. Databases other than
            PostgreSQL keep their own: SQLite waits 5 s for a lock, unless the URI's ``timeout`` is set.
        seconds: The time after which a connection must be returned to its pool.
        pre_ping: Whether a connection is tested before each use. SQLAlchemy's own test has no timeout.
    """
    if engine in _guarded:
        return
    _guarded.add(engine)
    if not in_memory(engine):
        event.listen(engine, "handle_error", _explain)
    if engine.dialect.name == "sqlite":
        return
    deadlines = _Deadlines(engine, seconds, pre_ping=pre_ping)
    event.listen(engine, "connect", deadlines.connecting, insert=True)  # before the dialect's first queries
    event.listen(engine, "checkout", deadlines.begin)
    event.listen(engine, "checkin", deadlines.end)
    if engine.dialect.name == "postgresql":
        event.listen(engine, "begin", _limit_transaction)
    if engine.dialect.driver in _LIBPQ:
        event.listen(engine, "do_connect", _limit_connection)
        engine.dispose()  # open connections have no timeouts


def in_memory(engine: Engine) -> bool:
    """Whether an engine's database is in memory: each connection has its own."""
    return engine.dialect.name == "sqlite" and engine.url.database in (None, "", ":memory:")


def _explain(context: ExceptionContext) -> None:
    """Name the timeout in an error after it, and do not use a connection again whose COMMIT or ROLLBACK failed."""
    if context.connection is None:
        return
    if context.statement is None:
        context.is_disconnect = True
        context.invalidate_pool_on_disconnect = False
    deadline: _Deadline | None = context.connection.info.get(_DEADLINE)
    if deadline is not None and deadline.is_over():
        context.original_exception.add_note(no_answer(deadline.seconds))


def _limit_transaction(connection: Connection) -> None:
    limits = ", ".join(f"('{name}', '{value}')" for name, value in SERVER_LIMITS.items())
    connection.exec_driver_sql(
        f"SELECT set_config(name, wanted, true) FROM (VALUES {limits}) AS limits(name, wanted) "  # noqa: S608 (constants)
        "WHERE current_setting(name) = '0'"
    )


def _limit_connection(_dialect: Any, _record: Any, _arguments: Any, parameters: dict[str, Any]) -> None:
    for name, value in CLIENT_LIMITS.items():
        parameters.setdefault(name, value)


class _Deadline:
    """A timer that shuts down a socket.

    Args:
        descriptor: The socket. It is duplicated, so that the descriptor is not reused for another file meanwhile.
        seconds: The time until then.
    """

    def __init__(self, descriptor: int, seconds: float) -> None:
        self.seconds = seconds
        self._until = time.monotonic() + seconds
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._timer = threading.Timer(seconds, self._shut_down)
        self._timer.name, self._timer.daemon = "airflow-mv-deadline", True
        self._timer.start()

    def is_over(self) -> bool:
        """Whether the time has passed."""
        return time.monotonic() >= self._until

    def stop(self) -> None:
        """Stop the timer."""
        self._timer.cancel()
        self._socket.close()

    def _shut_down(self) -> None:
        with suppress(OSError), self._socket:  # it may be closed
            self._socket.shutdown(socket.SHUT_RDWR)


class _Deadlines:
    """A deadline for each use of a connection of an engine."""

    def __init__(self, engine: Engine, seconds: float, *, pre_ping: bool) -> None:
        self._dialect, self._seconds, self._pre_ping = engine.dialect, seconds, pre_ping

    def connecting(self, connection: Any, record: Any) -> None:
        """Begin with a new connection. A driver may not show its socket."""
        self.end(connection, record)
        with suppress(Exception):  # each driver has its own error for a connection that is closed
            record.info[_DEADLINE] = _Deadline(connection.fileno(), self._seconds)

    def begin(self, connection: Any, record: Any, _proxy: Any) -> None:
        """Begin with a connection that is taken from the pool."""
        self.connecting(connection, record)
        if self._pre_ping:
            try:
                self._dialect.do_ping(connection)
            except self._dialect.loaded_dbapi.Error as error:
                raise DisconnectionError from error  # the pool opens another connection

    def end(self, _connection: Any, record: Any) -> None:
        """End with a connection that is returned."""
        if (deadline := record.info.pop(_DEADLINE, None)) is not None:
            deadline.stop()


def _after_fork() -> None:
    """Do not use the parent's connections: two processes on one connection would read each other's answers."""
    for engine in list(_guarded):
        engine.dispose(close=False)


os.register_at_fork(after_in_child=_after_fork)


def require_locks(engine: Engine, properties: Mapping[str, str]) -> None:
    """Refuse a SQLite database on a file system whose locks other machines may not see.

    Raises:
        ConfigurationError: It is on such a file system, and the catalog's owner has not allowed it.
    """
    database = engine.url.database
    if engine.dialect.name != "sqlite" or not database or database.startswith((":memory:", "file::memory:")):
        return
    kind = remote_kind(database.removeprefix("file:"))
    if kind is None:
        return
    if str(properties.get(NETWORK, "false")).lower() == "true":
        log.warning("The SQLite database %s is on a file system of type %s: locks may not work there", database, kind)
        return
    raise ConfigurationError(
        f"the SQLite database {database} is on a file system of type {kind}: SQLite's locks do not work there between "
        f"machines, and two refreshes could both win. Use PostgreSQL, or a local disk; if only one machine ever opens "
        f"it, set the catalog property {NETWORK}=true"
    )
