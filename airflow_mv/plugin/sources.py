# SPDX-License-Identifier: Apache-2.0
"""The catalogs that the page shows: connections from Airflow's configuration, and the names of their catalogs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow.configuration import conf

from airflow_mv.common.each import for_each
from airflow_mv.core.catalog.store_deadlines import Impatience, impatient
from airflow_mv.errors import CatalogUnavailableError, ConfigurationError
from airflow_mv.hooks import DEFAULT_ICEBERG_CONN_ID, MaterializedViewHook
from airflow_mv.hooks.iceberg import CATALOG_NAME
from airflow_mv.plugin.messages import problem
from airflow_mv.plugin.survey import Survey

if TYPE_CHECKING:
    from airflow_mv.core.catalog import MaterializedViewCatalog

SECTION = "airflow_mv"
#: Seconds after which a catalog is opened again: its credentials may be short-lived.
_OPEN_SECONDS = 300.0
#: Questions about one catalog that are answered at once, and that wait. Others are refused.
THREADS = 8
MAX_WAITING = 32
#: The limits of what a reader waits for: less than the 20 s after which a request ends, and of one store that does not
#: answer fewer calls than there are threads.
IMPATIENCE = Impatience(seconds=15.0, calls=2, wait=2.0)


@dataclass(frozen=True, slots=True)
class Address:
    """A catalog behind a connection."""

    conn_id: str
    catalog: str


@dataclass
class CatalogSource:
    """A catalog that is shown.

    It has its own threads: a hanging catalog blocks neither other catalogs nor Airflow's API. A store that does not
    answer takes some of them, so that questions about views in other stores are answered.

    Args:
        address: Its connection and name.
        seconds: Maximum age of its shown content.
        content: The content of the connection, see :meth:`CatalogConnection.content`.
    """

    address: Address
    seconds: float
    content: object = None
    _answers: dict[tuple[str, ...], tuple[float, Future[Any]]] = field(default_factory=dict)
    _opened: MaterializedViewCatalog | None = None
    _until: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        name, hook = self.address.catalog, MaterializedViewHook(self.address.conn_id)
        self.survey = Survey(name, self.open, self.seconds, properties_of=hook.connection.properties_from(name))
        self.pool = ThreadPoolExecutor(THREADS, thread_name_prefix="airflow-mv-page")
        # Counts of many views must not keep a reader of one view waiting.
        self.counting = ThreadPoolExecutor(1, thread_name_prefix="airflow-mv-counts")
        self._lock_of_answers = threading.Lock()

    def open(self) -> MaterializedViewCatalog:
        """Open the catalog. It is opened again after some minutes.

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

    def ask(self, call: Callable[[], Any], *key: str) -> Future[Any]:
        """Call a function in the catalog's threads. Equal questions within the maximum age share the answer.

        Args:
            call: The function.
            key: The question.

        Raises:
            CatalogUnavailableError: Too many other questions wait.
        """
        with self._lock_of_answers:
            now = time.monotonic()
            for old in [key for key, (until, answer) in self._answers.items() if until < now and answer.done()]:
                del self._answers[old]
            if key not in self._answers:
                if sum(not answer.done() for _, answer in self._answers.values()) >= THREADS + MAX_WAITING:
                    raise CatalogUnavailableError(
                        f"{MAX_WAITING} requests to catalog {self.address.catalog!r} are already waiting. Try again "
                        "in a few seconds"
                    )
                self._answers[key] = (now + self.seconds, self.pool.submit(impatiently, call))
            return self._answers[key][1]


def impatiently(call: Callable[[], Any]) -> Any:
    """Call a function for which a reader waits."""
    with impatient(IMPATIENCE):
        return call()


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
            found += [self._source(address, content) for address, content in result.value or ()]
            if result.error is not None:
                wrong.append((result.item, problem(result.error)))
        return found, wrong

    def _source(self, address: Address, content: object) -> CatalogSource:
        """Return the source of an address. After its connection was edited it is another one, which knows nothing."""
        with self._lock:
            known = self._known.get(address)
            if known is None or known.content != content:
                known = self._known[address] = CatalogSource(address, self.seconds, content)
            return known


def _addresses(entry: str, seen: Iterable[str]) -> list[tuple[Address, object]]:
    conn_id, colon, name = entry.partition(":")
    hook = MaterializedViewHook(conn_id)
    content, bound = hook.connection.content(), hook.connection.bound_name()
    names = [name] if colon else [bound] if bound else sorted(set(seen))
    if not names:
        raise ConfigurationError(
            f"connection {conn_id!r} does not name its catalog, and no DAG refreshes a view yet. Set its "
            f"extra {CATALOG_NAME!r}, or write {conn_id}:NAME in [{SECTION}] page_conn_ids"
        )
    return [(Address(conn_id, name), content) for name in names]
