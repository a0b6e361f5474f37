# SPDX-License-Identifier: Apache-2.0
"""The number of fresh intervals of the listed views: counted in the background, and again only after a change.

The count of a stale view needs the statistics of the files that were added to its base tables since. The survey of all
views does not read them. So views are counted when they are listed, by the function of the view's own page.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from airflow_mv.core.freshness.state import State
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.extras.fleet.coverage import coverage
from airflow_mv.plugin.rows import ViewRow
from airflow_mv.plugin.sources import CatalogSource, impatiently

#: Seconds that a request for a list waits for counts.
_WAIT = 0.4
_HOUR = 3600
#: Seconds after which a view without known pointers is counted again.
_AGAIN = 300


@dataclass
class Counts:
    """The counts of views. They are kept for as long as the view's pointers, and for the hour: the time ends now."""

    _kept: dict[Identifier, tuple[object, Future[dict[str, Any]]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(
        self, rows: Iterable[ViewRow], sources: Mapping[str, CatalogSource]
    ) -> dict[Identifier, dict[str, Any] | None]:
        """Return ``unit``, ``intervals`` and ``up_to_date`` of the stale views that have an interval column.

        Args:
            sources: Their catalogs, by name.

        Returns:
            ``None`` for a view that is being counted. One that cannot be counted is left out.
        """
        stale = [row for row in rows if row.state == State.STALE and row.view.catalog in sources]
        answers = {row.view: self._ask(row, sources[row.view.catalog]) for row in stale if row.interval_column}
        wait(answers.values(), timeout=_WAIT)
        return {
            view: answer.result() if answer.done() else None
            for view, answer in answers.items()
            if not answer.done() or answer.exception() is None
        }

    def _ask(self, row: ViewRow, source: CatalogSource) -> Future[dict[str, Any]]:
        moment = time.time() // (_HOUR if row.pointers else _AGAIN)
        state = (row.refresh_id, row.pointers and dict(row.pointers), moment)
        with self._lock:
            kept = self._kept.get(row.view)
            if kept is None or (kept[0] != state and kept[1].done()):
                count = source.counting.submit(impatiently, partial(_count, source, row.view))
                kept = self._kept[row.view] = (state, count)
            return kept[1]


def _count(source: CatalogSource, view: Identifier) -> dict[str, Any]:
    found = coverage(source.open(), view)
    return {"unit": found.unit, "intervals": found.total, "up_to_date": found.up_to_date}
