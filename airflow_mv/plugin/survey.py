# SPDX-License-Identifier: Apache-2.0
"""Read all views of a catalog in the background, only while somebody requests them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from airflow_mv.catalog import MaterializedViewCatalog
from airflow_mv.errors import MaterializedViewError
from airflow_mv.plugin.messages import problem
from airflow_mv.plugin.rows import PENDING, PLAIN, ViewRow, rows_of
from airflow_mv.spec.identifiers import Identifier

log = logging.getLogger(__name__)

_CHUNK = 100


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of a catalog's views.

    Args:
        rows: The materialized views; those that were not looked at yet are ``pending``.
        looked_at: When the last look ended that reached every view.
        looking: For how many seconds a look has been under way; ``None`` where none is.
        problem: Why the last look did not reach the views.
    """

    rows: tuple[ViewRow, ...] = ()
    looked_at: datetime | None = None
    looking: float | None = None
    problem: dict[str, Any] | None = None


@dataclass
class Survey:
    """Keeps the rows of one catalog.

    A look goes through all views in a thread of its own, and its rows are there as soon as they are found. A view whose
    pointer and whose base tables' pointers are where they were is not read again, so that in a SQL catalog a look
    at thousands of unchanged views costs a few queries.

    Args:
        open: Opens the catalog; called for each look, it should remember.
        seconds: How old rows may be before they are looked for again.
        rest: At least so many times as long as a look took: one that takes a minute is not repeated every ten seconds.
    """

    open: Callable[[], MaterializedViewCatalog]
    seconds: float
    rest: float = 3.0
    _rows: dict[Identifier, ViewRow] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None
    _started: float = 0.0
    _took: float = 0.0
    _ended: float | None = None
    _looked_at: datetime | None = None
    _problem: dict[str, Any] | None = None

    def found(self, *, wait: float = 0.0) -> Found:
        """Return what is known, and see to it that it does not get old.

        Args:
            wait: Seconds since its beginning to wait for a look to end; nobody waits for one that hangs.
        """
        thread = self._start()
        if thread is not None:
            thread.join(max(0.0, self._started + wait - time.monotonic()))
        with self._lock:
            rows = tuple(row for row in self._rows.values() if row.state != PLAIN)
            looking = time.monotonic() - self._started if thread is not None and thread.is_alive() else None
            return Found(rows, self._looked_at, looking, self._problem)

    def _start(self) -> threading.Thread | None:
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return self._thread
            age = None if self._ended is None else time.monotonic() - self._ended
            if age is not None and age < max(self.seconds, self.rest * self._took):
                return None
            self._started = time.monotonic()
            self._thread = threading.Thread(target=self._look, name="airflow-mv-survey", daemon=True)
            self._thread.start()
            return self._thread

    def _look(self) -> None:
        trouble: dict[str, Any] | None = None
        try:
            self._go_through(self.open())
        except MaterializedViewError as error:
            trouble = problem(error)
        except Exception as error:
            log.exception("The page cannot list the views of a catalog")
            unexpected = f"unexpected {type(error).__name__}; the api-server's log says more"
            trouble = {"error": type(error).__name__, "message": unexpected, "advice": ""}
        with self._lock:
            self._problem = trouble
            self._looked_at = self._looked_at if trouble else datetime.now(UTC)
            self._ended = time.monotonic()
            self._took = self._ended - self._started

    def _go_through(self, catalog: MaterializedViewCatalog) -> None:
        views = catalog.list()
        with self._lock:
            self._rows = {view: self._rows.get(view, ViewRow(view, PENDING)) for view in views}
        for start in range(0, len(views), _CHUNK):
            chunk = views[start : start + _CHUNK]
            known = {view: row for view in chunk if (row := self._rows[view]).pointers}
            moved = [view for view in chunk if view not in known] + _moved(catalog, known)
            for row in rows_of(catalog, moved):
                with self._lock:
                    self._rows[row.view] = row


def _moved(catalog: MaterializedViewCatalog, known: Mapping[Identifier, ViewRow]) -> list[Identifier]:
    """Return the views that a row does not stand for any more."""
    if not catalog.chooses_locations:  # a REST catalog tells a pointer only with all that it leads to
        return list(known)
    names = list(dict.fromkeys(name for row in known.values() for name in row.pointers or ()))
    located = catalog.locate(names) if names else {}
    now = {name: place.metadata_location for name, place in located.items()}
    return [
        view
        for view, row in known.items()
        if any(now.get(name) != location for name, location in (row.pointers or {}).items())
    ]
