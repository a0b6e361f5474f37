# SPDX-License-Identifier: Apache-2.0
"""Read all views of a catalog in the background, only while they are requested."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_mv.common.each import ItemResult
from airflow_mv.core.catalog.store_deadlines import Impatience, impatient
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.errors import MaterializedViewError, StoreUnavailableError
from airflow_mv.extras.fleet.fact_cache import FactCache
from airflow_mv.extras.fleet.known import (
    CachedSummaries,
    CacheLookup,
    PropertiesOf,
    identifier_of,
    look_up,
    without_collections,
)
from airflow_mv.extras.fleet.summary import SUMMARY, Summary
from airflow_mv.plugin.messages import problem
from airflow_mv.plugin.rows import PENDING, PLAIN, ViewRow, row_of_result

if TYPE_CHECKING:
    from airflow_mv.core.catalog import MaterializedViewCatalog

log = logging.getLogger(__name__)

#: The limits of a survey's calls of stores. What a store did not return is read by the next survey.
IMPATIENCE = Impatience(seconds=15.0, calls=8, wait=15.0)


@dataclass(frozen=True, slots=True)
class SurveyedRows:
    """The known rows of a catalog's views.

    Args:
        rows: The materialized views; those that were not read yet are ``pending``.
        checked_at: When the last complete survey ended.
        looking: For how many seconds a survey has been running; ``None`` if none is.
        pause: After how many seconds a request starts the next survey.
        problem: Why the last survey failed.
    """

    rows: tuple[ViewRow, ...] = ()
    checked_at: datetime | None = None
    looking: float | None = None
    pause: float = 0.0
    problem: dict[str, Any] | None = None


@dataclass
class Survey:
    """The rows of one catalog, kept up to date.

    A survey reads all views in its own thread, and each row is available as soon as it is read. A view is not read
    again if its pointer and its base tables' pointers have not moved, so in a SQL catalog a survey of thousands of
    unchanged views costs a few queries. So does the first survey of a process where the cache knows the views.

    Args:
        open: Opens it. Called for each survey that has to read a view, so it should cache.
        seconds: Age of the rows after which a new survey starts.
        rest: Minimum pause, as a multiple of the shorter one of the last two surveys, so that slow surveys are not
            repeated constantly. What takes time once does not count: imports, an opened catalog, new views.
        cache: What metadata files say; the first survey takes from it what is still true.
        properties_of: The properties of catalogs by name, to look at their pointers without opening them.
    """

    name: str
    open: Callable[[], MaterializedViewCatalog]
    seconds: float
    rest: float = 3.0
    cache: FactCache = field(default_factory=FactCache.of_user)
    properties_of: PropertiesOf = lambda _: None
    _rows: dict[Identifier, ViewRow] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None
    _started: float = 0.0
    _took: tuple[float, float] = (0.0, 0.0)
    _ended: float | None = None
    _checked_at: datetime | None = None
    _problem: dict[str, Any] | None = None
    _kept: CacheLookup[Summary] = field(default_factory=CacheLookup)

    def found(self, *, wait: float = 0.0) -> SurveyedRows:
        """Return the known rows, and start a survey if they are too old.

        Args:
            wait: Seconds, from its start, to wait for a survey to end, so that no request waits for a hanging one.
        """
        thread = self._start()
        if thread is not None:
            thread.join(max(0.0, self._started + wait - time.monotonic()))
        with self._lock:
            rows = tuple(row for row in self._rows.values() if row.state != PLAIN)
            looking = time.monotonic() - self._started if thread is not None and thread.is_alive() else None
            return SurveyedRows(rows, self._checked_at, looking, self._pause(), self._problem)

    def _start(self) -> threading.Thread | None:
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return self._thread
            if self._pause() > 0:
                return None
            self._started = time.monotonic()
            self._thread = threading.Thread(target=self._look, name="airflow-mv-survey", daemon=True)
            self._thread.start()
            return self._thread

    def _pause(self) -> float:
        if self._ended is None:
            return 0.0
        return max(0.0, self._ended + max(self.seconds, self.rest * min(self._took)) - time.monotonic())

    def _look(self) -> None:
        trouble: dict[str, Any] | None = None
        left: list[StoreUnavailableError] = []
        try:
            first = not self._rows
            if not (first and self._recalled_all()):
                with impatient(IMPATIENCE):
                    left = self._go_through(self.open(), first=first)
        except MaterializedViewError as error:
            trouble = problem(error)
        except Exception as error:
            log.exception("The page cannot list the views of a catalog")
            unexpected = f"unexpected {type(error).__name__}; see the api-server's log"
            trouble = {"error": type(error).__name__, "message": unexpected, "advice": ""}
        with self._lock:
            self._problem = problem(left[0]) if left else trouble
            self._checked_at = self._checked_at if trouble else datetime.now(UTC)
            self._ended = time.monotonic()
            self._took = (self._took[1], self._ended - self._started)

    def _go_through(self, catalog: MaterializedViewCatalog, *, first: bool) -> list[StoreUnavailableError]:
        """Read what has changed. Return why tables that may be views were left out."""
        from airflow_mv.common.each import left_out, while_answered
        from airflow_mv.common.status import outdated_views
        from airflow_mv.extras.fleet.summaries import note_ordinary, summaries

        known = dict(self._rows)
        note_ordinary(catalog, self._kept)
        views = catalog.list()
        with self._lock:
            self._rows = {view: known.get(view, ViewRow(view, PENDING)) for view in views}
        if first:  # what was recalled was true a moment ago
            outdated = [view for view in views if view not in known]
        else:
            pointers = {view: row.pointers for view, row in self._rows.items() if row.pointers}
            outdated = [view for view in views if view not in pointers] + outdated_views(catalog, pointers)
        for result in while_answered(catalog, summaries(catalog, outdated, self._kept, self.cache)):
            row = row_of_result(result)
            with self._lock:
                self._rows[row.view] = row
        return left_out(catalog)

    def _recalled_all(self) -> bool:
        """Take the rows that an earlier process has found and that are still true. Return whether these are all."""
        properties = self.properties_of(self.name)
        if properties is None:
            return False
        with without_collections():
            lookup = look_up(self.name, properties, None, self.cache, self.properties_of, SUMMARY)
            results = (ItemResult(identifier_of(self.name, key), item) for key, item in lookup.known.views.items())
            rows = {row.view: row for row in map(row_of_result, results)}
        self._kept = CacheLookup(lookup.kind, CachedSummaries(ordinary=lookup.known.ordinary), lookup.gone)
        with self._lock:
            self._rows = rows
        return lookup.is_complete(None)
