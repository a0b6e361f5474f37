# SPDX-License-Identifier: Apache-2.0
"""Spark connections and their targets."""

from __future__ import annotations

from dataclasses import dataclass

from airflow.sdk import Connection

from airflow_mv.errors import ConfigurationError
from airflow_mv.hooks.connections import find_connection, missing_connection

DEFAULT_SPARK_CONN_ID = "spark_default"
_SPARK_TYPES = frozenset({"spark", "k8s", "yarn", "local"})


@dataclass(frozen=True, slots=True)
class SparkTarget:
    """The target of a Spark connection.

    Args:
        conn_id: The connection.
        master: A Spark master, for ``spark-submit`` or a session in this process.
        remote: A Spark Connect URL instead; it may hold a token.
        deploy_mode: ``client``, ``cluster`` or ``None``.
        binary: The connection's name of ``spark-submit``.
        missing: Whether the connection is missing and the default is used.
    """

    conn_id: str
    master: str | None = None
    remote: str | None = None
    deploy_mode: str | None = None
    binary: str | None = None
    missing: bool = False

    @property
    def notice(self) -> str:
        """The message about a missing connection."""
        return (
            f"There is no connection {self.conn_id!r}: Spark runs on this worker, with master local[*]. To run it "
            f"elsewhere: airflow connections add {self.conn_id} --conn-type spark --conn-host spark://host:7077"
        )


def spark_target(conn_id: str) -> SparkTarget:
    """Return the target of a Spark connection.

    Args:
        conn_id: A connection of type ``spark`` or ``spark_connect``. The default one may be missing: then the
            master is ``local[*]``, not YARN as in the Spark provider.

    Raises:
        ConfigurationError: The connection is missing, or is of another type.
    """
    connection = find_connection(conn_id)
    if connection is None:
        if conn_id == DEFAULT_SPARK_CONN_ID:
            return SparkTarget(conn_id, master="local[*]", missing=True)
        raise missing_connection(
            conn_id,
            "spark_conn_id",
            "--conn-type spark --conn-host 'local[*]' (spark://host:7077, yarn, k8s://…), or --conn-type spark_connect",
        )
    if connection.conn_type == "spark_connect":
        from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook

        return SparkTarget(conn_id, remote=SparkConnectHook(conn_id).get_connection_url())
    if connection.conn_type not in _SPARK_TYPES:
        raise ConfigurationError(
            f"connection {conn_id!r} (spark_conn_id) is of type {connection.conn_type!r}; it must be spark or "
            "spark_connect"
        )
    extra = connection.extra_dejson
    return SparkTarget(
        conn_id,
        master=_master(connection),
        deploy_mode=extra.get("deploy-mode"),
        binary=extra.get("spark-binary"),
    )


def _master(connection: Connection) -> str:
    """Return the master as the Spark provider reads it: a whole URL in the host, or a URI taken apart."""
    host = connection.host or ""
    whole = connection.conn_type == "spark" and host and ("://" in host or not connection.port)
    master = host if whole else f"{connection.conn_type}://{host}"
    return f"{master}:{connection.port}" if connection.port else master
