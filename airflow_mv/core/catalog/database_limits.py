# SPDX-License-Identifier: Apache-2.0
"""Timeouts for every wait for a catalog's database. See :mod:`airflow_mv.core.catalog.limits` for servers and stores.

A change without an answer may still be applied while the server works on it. Timeouts of the server bound how late
that can happen, and how long the lock of a stopped process can block others. Timeouts of the client end a wait for a
server that is connected but silent: libpq has no timeout for an answer, and no TCP timeout ends the wait for a server
that acknowledges packets but does not respond. Settings in the database, in the catalog's ``uri`` or in its properties
are kept.

A COMMIT that fails, as SQLite's does while another process reads, leaves the transaction open, and SQLAlchemy returns
the connection to its pool in this state. The connection is not used again: it would show a change that no other
connection sees.

A database must also support an atomic, visible compare-and-swap. SQLite on a network file system does not, and is
refused.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, ExceptionContext, create_engine, event
from sqlalchemy.pool import NullPool, QueuePool

from airflow_mv.core.catalog.locations import remote_kind
from airflow_mv.errors import ConfigurationError

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Call:
    """A running call.

    Args:
        until: Its deadline, by the monotonic clock.
        socket: A duplicate of its socket, so that the descriptor is not reused for another file during the call.
        over: Whether the socket was shut down.
    """

    until: float
    socket: socket.socket
    over: bool = False


class _Watch:
    """The running calls of this process, and the thread that ends them at their deadlines."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: set[Call] = set()
        self._thread: threading.Thread | None = None

    def start(self, call: Call) -> None:
        """Watch a call."""
        with self._changed:
            first = min((other.until for other in self._calls), default=None)
            self._calls.add(call)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="airflow-mv-deadlines", daemon=True)
                self._thread.start()
            elif first is None or call.until < first:
                self._changed.notify()

    def stop(self, call: Call) -> None:
        """Stop watching a call. Its socket is not used after this."""
        with self._changed:
            self._calls.discard(call)
            call.socket.close()

    def _run(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for call in [call for call in self._calls if call.until <= now]:
                    self._calls.discard(call)
                    call.over = True
                    with suppress(OSError):
                        call.socket.shutdown(socket.SHUT_RDWR)
                first = min((call.until for call in self._calls), default=None)
                self._changed.wait(None if first is None else first - now)


_watch = _Watch()


def _forget() -> None:
    """A forked process has neither the thread nor the calls of its parent."""
    global _watch
    _watch = _Watch()


os.register_at_fork(after_in_child=_forget)


@contextmanager
def bounded(descriptor: int | None, seconds: float) -> Iterator[None]:
    """End a call on a socket after some seconds.

    The driver's error is kept; a note with the timeout is added to it.

    Args:
        descriptor: The socket. Without one the call has no timeout.
        seconds: The timeout.
    """
    if descriptor is None:
        yield
        return
    call = Call(time.monotonic() + seconds, socket.socket(fileno=os.dup(descriptor)))
    _watch.start(call)
    try:
        yield
    except Exception as error:
        if call.over:
            error.add_note(no_answer(seconds))
        raise
    finally:
        _watch.stop(call)


def no_answer(seconds: float) -> str:
    """Return the message for a timeout."""
    return f"no response within {seconds:g} s"


#: Catalog property: the timeout in seconds for one answer of a database or REST server.
RESPONSE_TIMEOUT = "airflow-mv.response-timeout-seconds"
#: Its default. It is longer than the database's own timeout for a statement, whose error is more specific.
DEFAULT_TIMEOUT = 70.0
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
#: Seconds after which unused connections are closed.
IDLE_SECONDS = 30.0
_LIBPQ = ("psycopg2", "psycopg")
#: A dialect's calls on cursors, and on connections.
_CALLS = {
    **dict.fromkeys(("do_execute", "do_execute_no_params", "do_executemany"), True),
    **dict.fromkeys(("do_commit", "do_rollback", "do_ping"), False),
}
_STARTING = "airflow_mv_starting"

_guarded: weakref.WeakSet[Engine] = weakref.WeakSet()


def response_timeout(properties: Mapping[str, Any]) -> float:
    """Return the timeout for one answer of a catalog.

    Raises:
        ConfigurationError: The property is not a number of seconds.
    """
    return seconds_of(properties, RESPONSE_TIMEOUT, DEFAULT_TIMEOUT)


def seconds_of(properties: Mapping[str, Any], key: str, default: float) -> float:
    """Return the seconds that a catalog property sets.

    Raises:
        ConfigurationError: It is not a number of seconds.
    """
    text = properties.get(key)
    if text is None:
        return default
    with suppress(ValueError):
        seconds = float(text)
        if 0 < seconds < math.inf:
            return seconds
    raise ConfigurationError(f"the catalog property {key} is {text!r}; it must be a number of seconds")


def bounded_engine(engine: Engine, *, pre_ping: bool) -> Engine:
    """Return an engine for the same database with few connections, which are closed when they are unused.

    Args:
        engine: The engine that pyiceberg has made. One with a database in memory is returned unchanged.
        pre_ping: Whether a connection is tested before each use.
    """
    if in_memory(engine) or not isinstance(engine.pool, QueuePool):
        return engine
    # Otherwise SQLAlchemy would look up the types of PostgreSQL's extension hstore in each new connection.
    fewer_questions = {"use_native_hstore": False} if engine.dialect.driver in _LIBPQ else {}
    bounded = create_engine(
        engine.url,
        echo=engine.echo,
        pool_pre_ping=pre_ping,
        pool_size=CONNECTIONS,
        max_overflow=0,
        pool_timeout=DEFAULT_TIMEOUT,
        **fewer_questions,
    )
    engine.dispose()
    _Idle(bounded)
    return bounded


def one_connection(uri: str, properties: Mapping[str, Any]) -> Engine:
    """Return an engine for a few queries, with the timeouts of a catalog.

    Args:
        uri: The database.
        properties: The catalog's properties.
    """
    engine = create_engine(uri, poolclass=NullPool)
    if engine.dialect.driver in _LIBPQ:
        engine = create_engine(uri, poolclass=NullPool, use_native_hstore=False)
    guard(engine, response_timeout(properties))
    return engine


def guard(engine: Engine, seconds: float = DEFAULT_TIMEOUT) -> None:
    """Set timeouts for all waits of an engine. A second call has no effect.

    Args:
        engine: The engine of a SQL catalog; pyiceberg's own statements get the timeouts too. Databases other than
            PostgreSQL keep their own: SQLite waits 5 s for a lock, unless the URI's ``timeout`` is set.
        seconds: The timeout for one answer.
    """
    if engine in _guarded:
        return
    _guarded.add(engine)
    if not in_memory(engine):
        event.listen(engine, "handle_error", _leave_connection)
    if engine.dialect.name == "sqlite":
        return
    for name, on_cursor in _CALLS.items():
        call = getattr(engine.dialect, name)
        setattr(engine.dialect, name, _bounded_call(call, seconds, on_cursor=on_cursor))
    event.listen(engine, "connect", _starting(seconds), insert=True)
    event.listen(engine, "connect", _started)
    if engine.dialect.name == "postgresql":
        event.listen(engine, "begin", _limit_transaction)
    if engine.dialect.driver in _LIBPQ:
        event.listen(engine, "do_connect", _limit_connection)
        engine.dispose()  # open connections have no timeouts


def in_memory(engine: Engine) -> bool:
    """Whether an engine's database is in memory: each connection has its own."""
    return engine.dialect.name == "sqlite" and engine.url.database in (None, "", ":memory:")


def _leave_connection(context: ExceptionContext) -> None:
    if context.statement is None and context.connection is not None:  # a COMMIT or a ROLLBACK failed
        context.is_disconnect = True
        context.invalidate_pool_on_disconnect = False


def _limit_transaction(connection: Connection) -> None:
    limits = ", ".join(f"('{name}', '{value}')" for name, value in SERVER_LIMITS.items())
    connection.exec_driver_sql(
        f"SELECT set_config(name, wanted, true) FROM (VALUES {limits}) AS limits(name, wanted) "  # noqa: S608 (constants)
        "WHERE current_setting(name) = '0'"
    )


def _limit_connection(_dialect: Any, _record: Any, _arguments: Any, parameters: dict[str, Any]) -> None:
    for name, value in CLIENT_LIMITS.items():
        parameters.setdefault(name, value)


def _bounded_call(call: Callable[..., Any], seconds: float, *, on_cursor: bool) -> Callable[..., Any]:
    """Return a dialect's call on a cursor or connection, with a timeout."""

    def run(on: Any, *arguments: Any, **more: Any) -> Any:
        with bounded(_descriptor(getattr(on, "connection", None) if on_cursor else on), seconds):
            return call(on, *arguments, **more)

    return run


def _starting(seconds: float) -> Callable[[Any, Any], None]:
    """Set a timeout for a dialect's first queries on a new connection, such as PostgreSQL's types."""

    def start(connection: Any, record: Any) -> None:
        stack = ExitStack()
        stack.enter_context(bounded(_descriptor(connection), seconds))
        record.info[_STARTING] = stack

    return start


def _started(_connection: Any, record: Any) -> None:
    record.info.pop(_STARTING).close()


def _descriptor(connection: Any) -> int | None:
    """Return the socket of a driver's connection; ``None`` if it is closed or not known."""
    try:
        found = connection.fileno()
    except Exception:  # noqa: BLE001 (each driver has its own error for a connection that is closed)
        return None
    return found if isinstance(found, int) and found >= 0 else None


class _Idle:
    """Closes an engine's connections after a time without use."""

    def __init__(self, engine: Engine) -> None:
        self._engine = weakref.ref(engine)
        self._lock = threading.Lock()
        self._used = 0.0
        self._timer: threading.Timer | None = None
        event.listen(engine, "checkin", self._returned)
        _idle.add(self)
        # The listener keeps this object alive as long as the engine.

    def _returned(self, _connection: Any, _record: Any) -> None:
        self._used = time.monotonic()
        with self._lock:
            if self._timer is None:
                self._wait(IDLE_SECONDS)

    def _wait(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._look)
        self._timer.name, self._timer.daemon = "airflow-mv-idle", True
        self._timer.start()

    def _look(self) -> None:
        engine = self._engine()
        with self._lock:
            self._timer = None
            left = self._used + IDLE_SECONDS - time.monotonic()
            if engine is None:
                return
            if left > 0 or (isinstance(engine.pool, QueuePool) and engine.pool.checkedout()):
                self._wait(max(left, 1.0))
                return
        engine.dispose()

    def forked(self) -> None:
        """A forked process has no timer."""
        self._lock, self._timer = threading.Lock(), None


_idle: weakref.WeakSet[_Idle] = weakref.WeakSet()


def _after_fork() -> None:
    """Do not use the parent's connections: two processes on one connection would read each other's answers."""
    for engine in list(_guarded):
        engine.dispose(close=False)
    for idle in list(_idle):
        idle.forked()


os.register_at_fork(after_in_child=_after_fork)


# ---------------------------------------------------------------- databases whose locks do not hold


#: Catalog property: ``true`` allows a SQLite database on a network file system.
NETWORK = "airflow-mv.sqlite-on-network"


def require_locks(engine: Engine, properties: Mapping[str, str]) -> None:
    """Refuse a SQLite database on a file system whose locks other machines may not see.

    Args:
        engine: The engine of a SQL catalog.
        properties: The catalog's properties.

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
        log.warning("The SQLite database %s is on a file system of type %s: locks may not hold there", database, kind)
        return
    raise ConfigurationError(
        f"the SQLite database {database} is on a file system of type {kind}: SQLite's locks do not hold there between "
        f"machines, and two refreshes could both win. Use PostgreSQL, or a local disk; if only one machine ever opens "
        f"it, set the catalog property {NETWORK}=true"
    )
