# SPDX-License-Identifier: Apache-2.0
"""Bound every wait for a catalog's database, and never look through a connection whose COMMIT has failed.

A change without an answer may still be done while the server works on it. What is bounded here is how late that can
be, and how long the lock of a process that has stopped can hold up all others. What the operator has set, in the
database or in the catalog's ``uri``, stands.

A COMMIT that fails, as SQLite's does while somebody reads, leaves the transaction open, and SQLAlchemy puts the
connection back as it is: whoever looked through it next would see the change as done that nobody else sees.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Engine, ExceptionContext, event

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
_LIBPQ = ("psycopg2", "psycopg")


def guard(engine: Engine) -> None:
    """Set both on an engine, whoever made it; doing it again changes nothing.

    Args:
        engine: Of a SQL catalog; pyiceberg's own statements are guarded, too. Databases other than PostgreSQL keep
            what limits they have: SQLite waits 5 s for a lock, unless the URI's ``timeout`` says otherwise.
    """
    in_memory = engine.dialect.name == "sqlite" and engine.url.database in (None, "", ":memory:")
    if not in_memory and not event.contains(engine, "handle_error", _leave_connection):
        event.listen(engine, "handle_error", _leave_connection)
    if engine.dialect.name != "postgresql" or event.contains(engine, "begin", _limit_transaction):
        return
    event.listen(engine, "begin", _limit_transaction)
    if engine.dialect.driver in _LIBPQ:
        event.listen(engine, "do_connect", _limit_connection)
        engine.dispose()  # what is connected already was not limited


def _leave_connection(context: ExceptionContext) -> None:
    if context.statement is None and context.connection is not None:  # what failed is a COMMIT, or a ROLLBACK
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
