# SPDX-License-Identifier: Apache-2.0
"""The catalogs that the page shows: connections from Airflow's configuration, and the names of their catalogs."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from airflow.configuration import conf

from airflow_mv.catalog import MaterializedViewCatalog
from airflow_mv.errors import ConfigurationError
from airflow_mv.freshness.each import for_each
from airflow_mv.hooks import DEFAULT_ICEBERG_CONN_ID, MaterializedViewHook
from airflow_mv.hooks.iceberg import CATALOG_NAME, completed
from airflow_mv.plugin.messages import problem
from airflow_mv.plugin.survey import Survey

SECTION = "airflow_mv"
#: Seconds after which a changed connection is noticed.
_OPEN_SECONDS = 300.0
_THREADS = 2


@dataclass(frozen=True, slots=True)
class Address:
    """A catalog behind a connection."""

    conn_id: str
    catalog: str


@dataclass
class CatalogSource:
    """A catalog that is shown.

    It has its own threads: a hanging catalog blocks neither other catalogs nor Airflow's API.

    Args:
        address: Its connection and name.
        seconds: Maximum age of its shown content.
    """

    address: Address
    seconds: float
    _opened: MaterializedViewCatalog | None = None
    _until: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.survey = Survey(self.open, self.seconds)
        self.pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="airflow-mv-page")
        # Counts of many views must not keep a reader of one view waiting.
        self.counting = ThreadPoolExecutor(1, thread_name_prefix="airflow-mv-counts")

    def open(self) -> MaterializedViewCatalog:
        """Open the catalog. It is opened again after some minutes, because its connection may have been edited.

        Raises:
            ConfigurationError, CatalogUnavailableError: See :meth:`MaterializedViewHook.catalog_named`.
        """
        with self._lock:
            if self._opened is None or time.monotonic() > self._until:
                if self._opened is not None:
                    self._opened.close()
                self._opened = None
                self._opened = MaterializedViewHook(self.address.conn_id).catalog_named(self.address.catalog)
                self._until = time.monotonic() + _OPEN_SECONDS
            return self._opened


@dataclass
class Sources:
    """The catalogs of the page.

    Args:
        entries: ``conn_id``, or ``conn_id:catalog`` if the connection does not set its catalog's name.
        seconds: Maximum age of the shown content.
    """

    entries: tuple[str, ...]
    seconds: float
    _known: dict[Address, CatalogSource] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def configured(cls) -> Sources:
        """Read Airflow's configuration."""
        text = conf.get(SECTION, "page_conn_ids", fallback=DEFAULT_ICEBERG_CONN_ID)
        entries = tuple(entry.strip() for entry in text.split(",") if entry.strip())
        return cls(entries, conf.getfloat(SECTION, "page_cache_seconds", fallback=10.0))

    def all(self, seen: Collection[str]) -> tuple[list[CatalogSource], list[tuple[str, dict[str, Any]]]]:
        """Return the catalogs, and by entry the problem of connections without a catalog.

        Args:
            seen: Names of catalogs in the assets of DAGs, for connections that name none.
        """
        found: list[CatalogSource] = []
        wrong: list[tuple[str, dict[str, Any]]] = []
        for result in for_each(self.entries, lambda entry: _addresses(entry, seen)):
            found += [self._source(address) for address in result.value or ()]
            if result.error is not None:
                wrong.append((result.item, problem(result.error)))
        return found, wrong

    def _source(self, address: Address) -> CatalogSource:
        with self._lock:
            return self._known.setdefault(address, CatalogSource(address, self.seconds))


def _addresses(entry: str, seen: Iterable[str]) -> list[Address]:
    conn_id, colon, name = entry.partition(":")
    connection = completed(conn_id)
    if colon:
        return [Address(conn_id, name)]
    if bound := connection.extra_dejson.get(CATALOG_NAME):
        return [Address(conn_id, str(bound))]
    names = sorted(set(seen))
    if not names:
        raise ConfigurationError(
            f"connection {conn_id!r} does not name its catalog, and no DAG refreshes a view yet. Set its "
            f"extra {CATALOG_NAME!r}, or write {conn_id}:NAME in [{SECTION}] page_conn_ids"
        )
    return [Address(conn_id, name) for name in names]
