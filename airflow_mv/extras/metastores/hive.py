# SPDX-License-Identifier: Apache-2.0
"""Hive Metastores."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hive_metastore.ttypes import EnvironmentContext, LockState, NoSuchObjectException, UnlockRequest
from pyiceberg.catalog.hive import HiveCatalog
from pyiceberg.exceptions import CommitFailedException, WaitingForLockException

from airflow_mv.core.catalog.answers import MAX_LENGTH, brief, no_answer
from airflow_mv.errors import CatalogUnavailableError, MaterializedViewError, UnsupportedError
from airflow_mv.extras.metastores.entries import MetastoreEntries, metadata_location
from airflow_mv.foundation.redaction import shortened

#: Seconds for one answer of a Hive Metastore, which tries a failed statement of its database again by itself.
_SECONDS = 60.0
#: Entries in one answer of a Hive Metastore.
_PAGE = 100
#: Errors of a Hive Metastore that the same request would get again; a value may be too long for its database.
_REFUSED_BY_HIVE = re.compile(r"^(Invalid|NoSuch|AlreadyExists)|Put request failed|(?i:denied|not allowed|truncat)")


class HiveConnections:
    """Connections to a Hive Metastore: ``with connections as client``, one for each block.

    pyiceberg's own client has one connection, which threads would share, and waits for an answer without a timeout.

    Args:
        catalog: The catalog. From now on it also uses these connections.
        seconds: The timeout for one answer.
    """

    def __init__(self, catalog: HiveCatalog, seconds: float) -> None:
        self._make, self._properties = catalog._create_hive_client, dict(catalog.properties)
        self._milliseconds, self._open = seconds * 1000, threading.local()
        catalog._client = self  # type: ignore[assignment]

    def __enter__(self) -> Any:
        client = self._make(self._properties)
        buffered = vars(client._transport)
        socket = buffered.get("_TBufferedTransport__trans") or buffered.get("_trans")
        if socket is not None:
            socket.setTimeout(self._milliseconds)
        opened = client.__enter__()
        self._open.__dict__.setdefault("clients", []).append(client)
        return opened

    def __exit__(self, *error: Any) -> None:
        self._open.clients.pop().__exit__(*error)


@contextmanager
def hive_lock(catalog: HiveCatalog, client: Any, database: str, name: str) -> Iterator[None]:
    """Hold the lock by which commits to a table in a Hive Metastore exclude each other.

    Args:
        catalog: The catalog; its properties say how long to wait.
        client: An open connection.

    Raises:
        CatalogUnavailableError: Another client holds the lock.
    """
    lock = client.lock(catalog._create_lock_request(database, name))
    try:
        if lock.state != LockState.ACQUIRED:
            catalog._wait_for_lock(database, name, lock.lockid, client)
        yield
    except (WaitingForLockException, CommitFailedException):
        raise CatalogUnavailableError(f"another client holds the lock of table {database}.{name}; try again") from None
    finally:
        client.unlock(UnlockRequest(lockid=lock.lockid))


class HiveTables(MetastoreEntries):
    """The entries of a Hive Metastore.

    Args:
        catalog: pyiceberg's catalog.
    """

    service = "a Hive Metastore"

    def __init__(self, catalog: HiveCatalog) -> None:
        super().__init__(catalog)
        self._hive, self._connections = catalog, HiveConnections(catalog, _SECONDS)

    def _parameters(self, database: str, name: str) -> Mapping[str, Any] | None:
        with self._connections as client:
            try:
                entry: Any = client.get_table(dbname=database, tbl_name=name)
            except NoSuchObjectException:
                return None
        return entry.parameters or {}

    def _swap(self, database: str, name: str, base: str, parameters: dict[str, str]) -> bool:
        keep = EnvironmentContext(properties={"DO_NOT_UPDATE_STATS": "true"})
        with self._connections as client, hive_lock(self._hive, client, database, name):
            try:
                entry: Any = client.get_table(dbname=database, tbl_name=name)
            except NoSuchObjectException:
                return False
            if metadata_location(entry.parameters or {}) != base:
                return False
            entry.parameters = {**entry.parameters, **parameters}
            client.alter_table_with_environment_context(database, name, entry, keep)
        return True

    def _entries(self, database: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        with self._connections as client:
            names = client.get_all_tables(db_name=database)
            for start in range(0, len(names), _PAGE):
                chunk = names[start : start + _PAGE]
                for entry in client.get_table_objects_by_name(dbname=database, tbl_names=chunk):
                    yield entry.tableName, entry.parameters or {}


def translated(catalog: str, what: str, error: Exception) -> MaterializedViewError:
    """Translate an error of Hive's client: of the connection, of the protocol, or of the metastore itself."""
    name, text = type(error).__name__, str(error)
    if name == "TApplicationException" and "method" in text.lower():
        return UnsupportedError(
            f"catalog {catalog!r} cannot do {what} ({shortened(text, MAX_LENGTH)}): pyiceberg supports the Thrift "
            "API of Hive 2 and 3. Hive 4.1 and later also serve Iceberg's REST API: set metastore.catalog.servlet.port "
            "there, and use the catalog with type=rest and uri=http://HOST:PORT/iceberg"
        )
    if "incompatible with the existing columns" in text:
        return UnsupportedError(
            f"catalog {catalog!r} refuses other types of columns in {what}: set "
            "hive.metastore.disallow.incompatible.col.type.changes to false in the metastore, as Iceberg needs it"
        )
    if _REFUSED_BY_HIVE.search(name) or _REFUSED_BY_HIVE.search(text):
        return UnsupportedError(f"catalog {catalog!r} cannot do {what}: {brief(error)}")
    return no_answer(catalog, what, error)


def entries_of(catalog: HiveCatalog) -> HiveTables:
    """Return the entries of a catalog."""
    return HiveTables(catalog)
