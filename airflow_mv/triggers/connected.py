# SPDX-License-Identifier: Apache-2.0
"""Shared by all triggers of a process, by connection: its catalogs, a few threads, and results of polls.

Opening a catalog costs more than reading a view's metadata, and each open catalog keeps connections to its database.
So there is one hook per connection and process. Reads run in threads of the connection: a catalog that does not respond
blocks its own threads only. A read that several triggers request at the same time runs once.

No trigger takes the result of a read that began before the trigger did: its task may have seen a later state.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar, cast

from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.errors import CatalogUnavailableError, ConfigurationError, MaterializedViewError, UnexpectedError
from airflow_mv.extras.pending.criteria import PendingCriteria
from airflow_mv.hooks import MaterializedViewHook
from airflow_mv.tasks.older_airflow import asking_in_the_loop
from airflow_mv.triggers.views import FreshnessRequest, Results, ViewFreshness, ViewPolls, read_views

#: The module of all triggers' serialized paths. It must not change: waiting tasks outlive an upgrade.
PUBLIC_MODULE = "airflow_mv.triggers"
#: Concurrent reads of the catalogs of one connection.
THREADS = 4
#: Seconds after which a connection is read again, because it may have been edited.
REREAD_SECONDS = 30.0
#: Seconds that a trigger waits for a read before it reports that the catalog does not respond.
LOOK_SECONDS = 300.0
#: Seconds within which an opened catalog is not opened again after an error.
_YOUNG_SECONDS = 10.0
#: Maximum age of a shared result, in seconds.
_OLDEST_SECONDS = 30.0

log = logging.getLogger(__name__)

T = TypeVar("T")


class PollResult(Protocol):
    """The result of a poll."""

    @property
    def verdict(self) -> object:
        """The part that is logged when it changes."""

    def describe(self) -> str:
        """Return it for people."""


class PollLog:
    """Logs the result of a poll if it differs from that of the last poll."""

    def __init__(self) -> None:
        self._last: object = None

    def note(self, log: Any, result: PollResult) -> None:
        """Log a result if it is new.

        Args:
            log: A logger: the standard library's, or Airflow's of a task or trigger.
        """
        if result.verdict != self._last:
            log.info(result.describe())
            self._last = result.verdict


class _Threads:
    """A bounded number of daemon threads, so that a hanging thread does not keep the process from exiting."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._started = 0

    def submit(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._queue.put((future, asking_in_the_loop(call)))
        if self._started < THREADS:
            self._started += 1
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            future, call = self._queue.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001 (it is raised where the result is wanted)
                    future.set_exception(error)
            del future, call


@dataclass(slots=True)
class _Answer:
    """The result of a read.

    Args:
        result: The returned value.
        error: The raised exception.
        began: Monotonic time before the read; infinite until it begins.
        until: Monotonic time until which other triggers may take it.
    """

    result: Any = None
    error: Exception | None = None
    began: float = math.inf
    until: float = 0.0


class Connected:
    """One connection of this process.

    Args:
        iceberg_conn_id: The connection.
    """

    def __init__(self, iceberg_conn_id: str) -> None:
        self.conn_id = iceberg_conn_id
        self._threads = _Threads(f"airflow-mv-looks-{iceberg_conn_id}")
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._running: dict[Hashable, tuple[_Answer, Future[_Answer]]] = {}
        self._answers: dict[Hashable, _Answer] = {}
        self._views = ViewPolls(self._threads.submit, self._read_views)
        self._hook: MaterializedViewHook | None = None
        self._content: object = None
        self._opened = self._read = 0.0
        #: The pointers of views without pending changes, by view and what counts; ``None`` for other views.
        self.fresh: dict[tuple[str, PendingCriteria], Mapping[Identifier, str] | None] = {}

    # -- the hook ------------------------------------------------------------------------------

    @property
    def hook(self) -> MaterializedViewHook:
        """The hook. A new one after the connection was edited; the open one while it is not found or is wrong.

        Raises:
            ConfigurationError: There is no such connection, or it is of another type.
            CatalogUnavailableError: There may be one.
        """
        with self._opening:
            now = time.monotonic()
            if self._hook is None:
                self._open(now)
            elif now - self._read > REREAD_SECONDS:
                try:
                    self._open(now)
                except MaterializedViewError as error:
                    # A secrets backend that fails for a moment must not end the waits of all tasks.
                    self._read = now
                    log.warning("Could not re-read the connection; using its cached settings: %s", error)
            return cast("MaterializedViewHook", self._hook)

    def _open(self, now: float) -> None:
        fresh = MaterializedViewHook(self.conn_id)
        content = fresh.connection.content()
        if self._hook is None or content != self._content:
            self.close()
            self._hook, self._content, self._opened = fresh, content, now
        self._read = now

    def after(self, *met: Exception) -> None:
        """Read the connection again after errors that may be the catalog's: a password was corrected, a server moved.

        It is called in threads only: one that opens the catalog waits for the triggerer's event loop.

        Args:
            met: The errors of a read. An error of a view may last and does not mean that the catalog failed.
        """
        faults = (CatalogUnavailableError, ConfigurationError, UnexpectedError)
        found = [error for error in met if isinstance(error, faults) or not isinstance(error, MaterializedViewError)]
        if not found:
            return
        with self._opening:
            self._read = -REREAD_SECONDS
            mistaken = all(isinstance(error, ConfigurationError) for error in found)  # of one DAG, perhaps
            if not mistaken and time.monotonic() - self._opened > _YOUNG_SECONDS:
                self.close()

    def was_edited(self) -> bool:
        """Read the connection again. Return whether it has changed, so that another read may have another result."""
        with self._opening:
            before, self._read = self._content, -REREAD_SECONDS
        try:
            return self.hook is not None and self._content != before
        except MaterializedViewError:
            return False

    def close(self) -> None:
        """Close the connections that no read uses now."""
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.close()

    # -- reads ---------------------------------------------------------------------------------

    async def look(self, what: Hashable, call: Callable[[], T], *, every: float, since: float = 0.0) -> T:
        """Read in a thread of the connection, or take the result of another trigger's read.

        Args:
            what: Key: equal for reads with the same result.
            call: The read.
            every: Seconds between the polls of this trigger. A read that began within half of it is shared.
            since: Monotonic time. A read that began before it is not shared.

        Raises:
            CatalogUnavailableError: The read did not end in time.
        """
        answer = await self._answered(self._submit(what, call, min(every / 2, _OLDEST_SECONDS), since))
        if answer.error is not None:
            raise answer.error.with_traceback(None)
        return cast("T", answer.result)

    async def poll(self, wanted: FreshnessRequest, *, every: float, since: float = 0.0) -> ViewFreshness:
        """Return the freshness of a view. Views of many triggers are read together, see :class:`ViewPolls`.

        Args:
            wanted: The view.
            every: Seconds between the polls of this trigger.
            since: Monotonic time. A read that began before it is not shared.

        Raises:
            CatalogUnavailableError: The read did not end in time.
            MaterializedViewError: The view cannot be read.
        """
        found = (await self._answered(self._views.request(wanted, every=every, since=since)))[wanted]
        if isinstance(found, MaterializedViewError):
            raise found.with_traceback(None)
        return found

    async def _answered(self, future: Future[T]) -> T:
        """Wait for a read. Other triggers may wait for it, so it continues when this trigger is cancelled."""
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                return await asyncio.shield(asyncio.wrap_future(future))
        except TimeoutError:
            raise CatalogUnavailableError(
                f"connection {self.conn_id!r}: its catalog did not respond within {LOOK_SECONDS:g} s"
            ) from None

    def _read_views(self, last: Mapping[FreshnessRequest, ViewFreshness | None]) -> Results:
        results = self._read_once(last)
        met = [result for result in results.values() if isinstance(result, MaterializedViewError)]
        self.after(*met)
        # A fatal error may come from the connection as it was before it was corrected.
        if any(not error.retryable for error in met) and self.was_edited():
            return self._read_once(last)
        return results

    def _read_once(self, last: Mapping[FreshnessRequest, ViewFreshness | None]) -> Results:
        try:
            return read_views(self.hook, last)
        except MaterializedViewError as error:
            return dict.fromkeys(last, error)

    def _submit(self, what: Hashable, call: Callable[[], Any], age: float, since: float) -> Future[_Answer]:
        with self._lock:
            now = time.monotonic()
            known = self._answers.get(what)
            if known is not None and now < known.until and known.began >= since:
                done: Future[_Answer] = Future()
                done.set_result(known)
                return done
            if what not in self._running or self._running[what][0].began < since:
                for old in [key for key, answer in self._answers.items() if answer.until <= now]:
                    del self._answers[old]
                new = _Answer()
                self._running[what] = new, self._threads.submit(lambda: self._answer(what, call, age, new))
            return self._running[what][1]

    def _answer(self, what: Hashable, call: Callable[[], Any], age: float, answer: _Answer) -> _Answer:
        answer.began = time.monotonic()
        answer.until = answer.began + age
        try:
            answer.result = call()
        except Exception as error:  # noqa: BLE001 (raised again by each trigger that waits for it)
            answer.error = error
            self.after(error)
        with self._lock:
            if what in self._running and self._running[what][0] is answer:  # otherwise a read that began later follows
                self._answers[what] = answer
                del self._running[what]
        return answer


_lock = threading.Lock()
_known: dict[str, Connected] = {}


def connected(iceberg_conn_id: str) -> Connected:
    """Return what this process shares for a connection."""
    with _lock:
        if iceberg_conn_id not in _known:
            _known[iceberg_conn_id] = Connected(iceberg_conn_id)
        return _known[iceberg_conn_id]


def forget() -> None:
    """Close all shared connections and forget all results."""
    with _lock:
        for item in _known.values():
            item.close()
        _known.clear()


def _forked() -> None:
    """Reset in a forked process: it has none of its parent's threads and must not use its connections."""
    global _lock
    _lock = threading.Lock()
    _known.clear()


os.register_at_fork(after_in_child=_forked)
