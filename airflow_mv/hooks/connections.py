# SPDX-License-Identifier: Apache-2.0
"""Find an Airflow connection; distinguish a missing one from a secrets backend that fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from airflow.sdk import BaseHook, Connection

from airflow_mv.errors import CatalogUnavailableError, ConfigurationError
from airflow_mv.foundation.redaction import hide, shortened
from airflow_mv.hooks.airflow_compat import (
    places_of_connections,
    reads_connections_from_the_database,
    redacted,
    searches_the_database,
)
from airflow_mv.tasks.older_airflow import AirflowNotFoundException

_MAX_LENGTH = 300


def find_connection(conn_id: str) -> Connection | None:
    """Return a connection; ``None`` if there is none of this id.

    Args:
        conn_id: The connection.

    Raises:
        ConfigurationError: Airflow's database could not be read from outside of Airflow, what is stored for the id is
            not a connection, or Airflow denies access to it.
        CatalogUnavailableError: A secrets backend or the API server failed, so it is not known whether it has the
            connection.
    """
    with suppress(AirflowNotFoundException), _access_denied(conn_id):
        return BaseHook.get_connection(conn_id)
    # Airflow's lookup passes over a secrets backend that fails, its own database included.
    if reads_connections_from_the_database():
        _require_database(conn_id)
    _require_places(conn_id)
    with suppress(AirflowNotFoundException), _access_denied(conn_id):
        return BaseHook.get_connection(conn_id)
    return None


def missing_connection(conn_id: str, parameter: str, arguments: str) -> ConfigurationError:
    """Return the error for a connection that does not exist.

    Args:
        conn_id: The connection.
        parameter: The operator's or hook's parameter that names it.
        arguments: What ``airflow connections add`` needs for it.
    """
    if searches_the_database():
        cure = f"Add it: airflow connections add {conn_id} {arguments}"
    else:
        cure = (
            "This process is not one of Airflow's, so it did not search Airflow's database. Set the variable "
            f"AIRFLOW_CONN_{conn_id.upper()}, or use the command line: airflow-mv … --conn-id {conn_id}"
        )
    return ConfigurationError(f"there is no connection {conn_id!r} ({parameter}). {cure}")


@contextmanager
def _access_denied(conn_id: str) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:  # AirflowSecretsBackendAccessDenied
        raise ConfigurationError(
            f"connection {conn_id!r}: Airflow denies this task access to it: {_shown(error)}"
        ) from None


def _require_places(conn_id: str) -> None:
    for place, ask in places_of_connections(conn_id):
        try:
            ask()
        except ValueError as error:  # its text may quote a part of the value
            raise ConfigurationError(
                f"connection {conn_id!r}: {place} has a value for it that is not a connection "
                f"({type(error).__name__}); write it as JSON or as a URI"
            ) from None
        except Exception as error:  # noqa: BLE001 (backends raise the errors of their own clients)
            raise CatalogUnavailableError(
                f"connection {conn_id!r} was not found, and {place} failed: {type(error).__name__}: {_shown(error)}"
            ) from None


def _shown(error: Exception) -> str:
    return shortened(redacted(" ".join(str(error).split())), _MAX_LENGTH)


def _require_database(conn_id: str) -> None:
    from airflow.models import Connection as Stored
    from sqlalchemy import select
    from sqlalchemy.exc import SQLAlchemyError

    from airflow_mv.tasks.older_airflow import engine_of_database

    engine = engine_of_database()
    try:
        with engine.connect() as database:
            database.execute(select(Stored.conn_id).limit(1))
    except SQLAlchemyError as error:
        url = engine.url
        # A driver's message may repeat the URL, whose query may also hold secrets.
        hide([str(url.password or ""), *(str(value) for value in url.query.values())])
        reason = shortened(" ".join(str(getattr(error, "orig", error)).split()), _MAX_LENGTH)
        place = ", ".join(filter(None, (url.get_backend_name(), url.host, url.database)))
        raise ConfigurationError(
            f"connection {conn_id!r} was not found, and Airflow's database ({place}) could not be read: {reason}. "
            "Set AIRFLOW__DATABASE__SQL_ALCHEMY_CONN (sql_alchemy_conn in [database] of airflow.cfg) to the database "
            "of your Airflow, and see that it is running; or define the connection in the variable "
            f"AIRFLOW_CONN_{conn_id.upper()}"
        ) from None
