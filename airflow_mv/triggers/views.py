# SPDX-License-Identifier: Apache-2.0
"""Polls of many views at once, for all triggers of a process that wait for views of one connection.

Views that are asked for at about the same time are read in one batch: their catalog is asked where they and their base
tables are, in a few queries, and only views with a changed pointer are read again. Views that will be asked for soon
are read in the same batch, so triggers with equal periods come to share one batch a period.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.interval import Span
from airflow_mv.errors import MaterializedViewError
from airflow_mv.extras.fleet.fact_cache import FactCache
from airflow_mv.extras.fleet.summary import Summary
from airflow_mv.hooks import MaterializedViewHook

if TYPE_CHECKING:
    from airflow_mv.common.status import Chains

#: Seconds from the first request of a batch to its start.
_COLLECT_SECONDS = 0.2
#: Maximum age of a result that another trigger's request has led to, in seconds.
_OLDEST_SECONDS = 30.0
#: A view is forgotten when it was not asked for during this many periods.
_PERIODS = 3


@dataclass(frozen=True, slots=True)
class FreshnessRequest:
    """The query of a trigger.

    Args:
        view: The view's name, as its trigger has it.
        span: The interval that it waits for; ``None`` for all rows.
        direct: Whether a view is fresh as soon as it has the present rows of the materialized views that it reads.
    """

    view: str
    span: Span | None = None
    direct: bool = False

    @property
    def is_kept(self) -> bool:
        """Whether the cache has the answer."""
        return self.span is None and not self.direct


@dataclass(frozen=True)
class ViewFreshness:
    """The freshness of a view, without the metadata that it was read from."""

    summary: Summary

    @cached_property
    def pointers(self) -> Mapping[Identifier, str] | None:
        """See :class:`airflow_mv.core.freshness.observe.Observation`.

        The first look at many views does not need them.
        """
        return self.summary.pointed()


Results: TypeAlias = dict[FreshnessRequest, ViewFreshness | MaterializedViewError]


@dataclass(slots=True)
class _LastPoll:
    """The last result for a view, and who may take it.

    Args:
        read_at: Monotonic time before its read.
        every: Seconds between the polls of the trigger that asked last.
        asked_at: When it did.
    """

    result: ViewFreshness | MaterializedViewError | None
    read_at: float
    every: float
    asked_at: float

    def is_due(self, now: float) -> bool:
        return now - self.read_at >= min(self.every / 2, _OLDEST_SECONDS)


@dataclass(frozen=True, slots=True)
class _Reading:
    """A batch that is being read.

    Args:
        began: Monotonic time before the read.
    """

    future: Future[Results]
    began: float


class ViewPolls:
    """The polls of the views of one connection.

    Args:
        submit: Runs a function in a thread.
        read: Reads views. It is given the last result for each; ``None`` for one that has to be read.
    """

    def __init__(
        self,
        submit: Callable[[Callable[[], Results]], Future[Results]],
        read: Callable[[Mapping[FreshnessRequest, ViewFreshness | None]], Results],
    ) -> None:
        self._submit = submit
        self._read = read
        self._lock = threading.Lock()
        self._known: dict[FreshnessRequest, _LastPoll] = {}
        self._next: Future[Results] | None = None
        self._requested: set[FreshnessRequest] = set()
        self._reading: dict[FreshnessRequest, _Reading] = {}

    def request(self, wanted: FreshnessRequest, *, every: float, since: float) -> Future[Results]:
        """Return the batch that has a view's freshness, at most half a period old.

        Args:
            wanted: The view.
            every: Seconds between the polls of this trigger.
            since: Monotonic time. A read that began before it is not taken.
        """
        now = time.monotonic()
        with self._lock:
            known = self._known.setdefault(wanted, _LastPoll(None, -_OLDEST_SECONDS, every, now))
            known.every, known.asked_at = every, now
            if known.result is not None and known.read_at >= since and not known.is_due(now):
                done: Future[Results] = Future()
                done.set_result({wanted: known.result})
                return done
            reading = self._reading.get(wanted)
            if reading is not None and reading.began >= since:
                return reading.future
            self._requested.add(wanted)
            if self._next is None:
                self._next = self._submit(self._batch)
            return self._next

    def _batch(self) -> Results:
        time.sleep(_COLLECT_SECONDS)
        started = time.monotonic()
        with self._lock:
            batch, future, requested = self._chosen(started), self._next, self._requested
            self._next, self._requested = None, set()
            reading = None if future is None else _Reading(future, started)
            if reading is not None:
                self._reading |= dict.fromkeys(batch, reading)
        try:
            results = self._read(batch)
            with self._lock:
                for wanted, result in results.items():
                    known = self._known.get(wanted)
                    if known is None or known.read_at > started:
                        continue  # a batch that began later was faster
                    known.result, known.read_at = result, started
                    if wanted in requested:
                        known.asked_at = time.monotonic()  # a trigger counts its period from the answer
        finally:
            with self._lock:
                for wanted in [item for item in batch if self._reading.get(item) is reading]:
                    self._reading.pop(wanted, None)
        return results

    def _chosen(self, now: float) -> dict[FreshnessRequest, ViewFreshness | None]:
        """Return the views of the next batch: those that were asked for, and those that would be soon."""
        in_use = self._requested | self._reading.keys()
        for wanted, known in [*self._known.items()]:
            if wanted not in in_use and now - known.asked_at > _PERIODS * known.every:
                del self._known[wanted]
        due = {wanted for wanted, known in self._known.items() if known.is_due(now)} - self._reading.keys()
        found: dict[FreshnessRequest, ViewFreshness | None] = {}
        for wanted in due | self._requested:
            last = self._known[wanted].result
            found[wanted] = last if isinstance(last, ViewFreshness) else None
        return found


def read_view(hook: MaterializedViewHook, wanted: FreshnessRequest) -> ViewFreshness:
    """Read the freshness of one view.

    Args:
        hook: Where it is.
        wanted: The view.

    Raises:
        MaterializedViewError: It cannot be read.
    """
    from airflow_mv.common.status import Chains

    return _read(hook, wanted, Chains())


def read_views(
    hook: MaterializedViewHook, last: Mapping[FreshnessRequest, ViewFreshness | None], cache: FactCache | None = None
) -> Results:
    """Read the freshness of views; a base table that they share is read once. Failures do not affect other views.

    Args:
        hook: Where they are.
        last: The last result for each. It is still true if no pointer has moved. ``None`` for one that has to be read.
        cache: What another process has found; by default this user's cache.
    """
    from airflow_mv.common.each import for_each
    from airflow_mv.extras.fleet.known import without_collections

    kept = cache or FactCache.of_user()
    with without_collections():
        remembered = _remembered(hook, [item for item in last if last[item] is None], kept)
    results: Results = {**remembered, **_unmoved(hook, last)}
    left, new = [item for item in last if item not in results], Results()
    if left:
        from airflow_mv.common.status import Chains

        chains = Chains()
        for result in for_each(left, lambda item: _read(hook, item, chains)):
            new[result.item] = result.error or result.get()
    _keep(hook, new, kept)
    return {**results, **new}


def _read(hook: MaterializedViewHook, wanted: FreshnessRequest, chains: Chains) -> ViewFreshness:
    from airflow_mv.core.freshness.observe import observe
    from airflow_mv.extras.fleet.summaries import summary_of

    catalog, view = hook.catalog_for(wanted.view), hook.connection.identify(wanted.view)
    if wanted.direct:
        return ViewFreshness(summary_of(observe(catalog, view, reads=chains.reads, span=wanted.span)))
    return ViewFreshness(summary_of(chains.observe(catalog, view, span=wanted.span)))


def _by_catalog(
    hook: MaterializedViewHook, wanted: Iterable[FreshnessRequest]
) -> dict[str, dict[FreshnessRequest, Identifier]]:
    """Group views by catalog. Those without a valid name are left out: each view's own read raises the error."""
    from airflow_mv.common.each import for_each

    found: dict[str, dict[FreshnessRequest, Identifier]] = {}
    for result in for_each(wanted, lambda item: hook.connection.identify(item.view)):
        if result.value is not None:
            found.setdefault(result.value.catalog, {})[result.item] = result.value
    return found


def _remembered(
    hook: MaterializedViewHook, wanted: Iterable[FreshnessRequest], cache: FactCache
) -> dict[FreshnessRequest, ViewFreshness]:
    """Return what the cache has of views at their present pointers, all rows of each. No catalog is opened."""
    from airflow_mv.common.each import for_each
    from airflow_mv.extras.fleet.known import key_of, look_up
    from airflow_mv.extras.fleet.summary import SUMMARY

    found: dict[FreshnessRequest, ViewFreshness] = {}
    by_catalog = _by_catalog(hook, [item for item in wanted if item.is_kept])

    def recalled(name: str) -> dict[FreshnessRequest, ViewFreshness]:
        keys = {item: key_of(view) for item, view in by_catalog[name].items()}
        properties_of = hook.connection.properties_from(name)
        lookup = look_up(
            name, properties_of(name) or {}, None, cache, properties_of, SUMMARY, wanted=set(keys.values())
        )
        known = lookup.known.views
        return {
            item: ViewFreshness(known[key])
            for item, key in keys.items()
            if key in known and known[key].status is not None
        }

    for result in for_each(by_catalog, recalled):
        found |= result.value or {}
    return found


def _keep(hook: MaterializedViewHook, new: Results, cache: FactCache) -> None:
    found = {item: result for item, result in new.items() if isinstance(result, ViewFreshness)}
    if not found:
        return
    from airflow_mv.extras.fleet.known import CacheLookup, kind_of
    from airflow_mv.extras.fleet.summaries import keep

    for name, items in _by_catalog(hook, found).items():
        catalog = hook.catalog_named(name)
        summaries = {found[item].summary.view: found[item].summary for item in items if item.is_kept}
        lookup: CacheLookup[Summary] = CacheLookup(kind_of(name, catalog.properties))
        keep(catalog, lookup, summaries, cache)


def _unmoved(hook: MaterializedViewHook, last: Mapping[FreshnessRequest, ViewFreshness | None]) -> Results:
    """Return the results that are still true."""
    known = {item: found for item, found in last.items() if found is not None}
    pointers = {item: found.pointers for item, found in known.items() if found.pointers is not None}
    return {item: known[item] for item in unmoved(hook, pointers)} if pointers else {}


def unmoved(
    hook: MaterializedViewHook, pointers: Mapping[FreshnessRequest, Mapping[Identifier, str]]
) -> list[FreshnessRequest]:
    """Return the views whose pointers have not changed; none after an error: each view's own read raises it.

    Args:
        hook: Where they are.
        pointers: See :class:`airflow_mv.core.freshness.observe.Observation`.
    """
    from airflow_mv.common.each import for_each
    from airflow_mv.common.status import outdated_views

    by_catalog = _by_catalog(hook, pointers)
    found: list[FreshnessRequest] = []

    def outdated_of(name: str) -> list[FreshnessRequest]:
        return outdated_views(hook.catalog_named(name), {item: pointers[item] for item in by_catalog[name]})

    for looked in for_each(by_catalog, outdated_of):
        outdated = set(by_catalog[looked.item] if looked.value is None else looked.value)
        found += [item for item in by_catalog[looked.item] if item not in outdated]
    return found
