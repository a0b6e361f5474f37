# SPDX-License-Identifier: Apache-2.0
"""Find an Airflow connection, and tell one that does not exist from a database that cannot be read."""

from __future__ import annotations

from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_mv.errors import ConfigurationError
from airflow_mv.hooks.airflow_compat import reads_connections_from_the_database

_LONGEST = 300


def find_connection(conn_id: str) -> Connection | None:
    """Return a connection; ``None`` if there is none of this id.

    Args:
        conn_id: The connection.

    Raises:
        ConfigurationError: Airflow's database could not be read, so it is not known whether it has the connection.
    """
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        # Airflow's lookup passes over a secrets backend that fails, its own database included.
        if reads_connections_from_the_database():
            _require_database(conn_id)
        return None


def _require_database(conn_id: str) -> None:
    from airflow import settings
    from airflow.models import Connection as Stored
    from sqlalchemy import Engine, select
    from sqlalchemy.exc import SQLAlchemyError

    from airflow_mv.redaction import hide, shortened

    engine: Engine = settings.get_engine()  # type: ignore[no-untyped-call]
    try:
        with engine.connect() as database:
            database.execute(select(Stored.conn_id).limit(1))
    except SQLAlchemyError as error:
        url = engine.url
        # A driver's message may repeat the URL, whose query may hold secrets, too.
        hide([str(url.password or ""), *(str(value) for value in url.query.values())])
        reason = shortened(" ".join(str(getattr(error, "orig", error)).split()), _LONGEST)
        place = ", ".join(filter(None, (url.get_backend_name(), url.host, url.database)))
        raise ConfigurationError(
            f"connection {conn_id!r} was not found, and Airflow's database ({place}) could not be read: {reason}. "
            "Set AIRFLOW__DATABASE__SQL_ALCHEMY_CONN (sql_alchemy_conn in [database] of airflow.cfg) to the database "
            "of your Airflow, and see that it is running; or define the connection in the variable "
            f"AIRFLOW_CONN_{conn_id.upper()}"
        ) from None
