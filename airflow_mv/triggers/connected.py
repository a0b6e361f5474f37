# SPDX-License-Identifier: Apache-2.0
"""What all triggers of a process share for one connection: its catalogs, a few threads, and looks.

Opening a catalog costs more than a look at a view, and each open catalog keeps connections to its database. So there is
one hook per connection and process. Looks run in threads of the connection: a catalog that does not answer keeps its
own threads busy, and no others. A look that several triggers want at the same time is done once.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from airflow_mv.errors import CatalogUnavailableError, ConfigurationError, MaterializedViewError, UnexpectedError
from airflow_mv.hooks import MaterializedViewHook

#: Where triggers are found by their names, whichever module they are in: waiting tasks outlive an upgrade.
PUBLIC_MODULE = "airflow_mv.triggers"
#: Looks at the catalogs of one connection that run at once.
THREADS = 4
#: Seconds after which a connection is read again: it may have been edited.
REREAD_SECONDS = 30.0
#: Seconds that a trigger waits for a look before it reports that the catalog does not answer.
LOOK_SECONDS = 300.0
#: A catalog that was opened so recently is not opened again after an error.
_YOUNG_SECONDS = 10.0
#: The most that a shared look may be old.
_OLDEST_SECONDS = 30.0

T = TypeVar("T")


class _Threads:
    """A bounded number of daemon threads: one that hangs does not keep the process from ending."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._started = 0

    def submit(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._queue.put((future, call))
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
    """What came of a look.

    Args:
        result: What it returned.
        error: What it raised.
        until: Until when others may take it.
    """

    result: Any = None
    error: Exception | None = None
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
        self._running: dict[Hashable, Future[_Answer]] = {}
        self._answers: dict[Hashable, _Answer] = {}
        self._hook: MaterializedViewHook | None = None
        self._content: object = None
        self._opened = self._read = 0.0

    # -- the hook ------------------------------------------------------------------------------

    @property
    def hook(self) -> MaterializedViewHook:
        """The hook; another one after the connection was edited.

        Raises:
            ConfigurationError: There is no such connection, or it is of another type.
        """
        with self._opening:
            now = time.monotonic()
            if self._hook is None or now - self._read > REREAD_SECONDS:
                fresh = MaterializedViewHook(self.conn_id)
                content = fresh.content()
                if self._hook is None or content != self._content:
                    self.close()
                    self._hook, self._content, self._opened = fresh, content, now
                self._read = now
            return self._hook

    def after(self, *met: Exception) -> None:
        """Read the connection again after errors that may be the catalog's: a password was mended, a server moved.

        Args:
            met: What a look met. A fault of a view, which may last, says nothing against the catalog.
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
        """Read the connection again. Return whether it has changed, so that another look may find something else."""
        with self._opening:
            before, self._read = self._content, -REREAD_SECONDS
        try:
            return self.hook is not None and self._content != before
        except MaterializedViewError:
            return False

    def close(self) -> None:
        """Close the connections that no look uses now."""
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.close()

    # -- looks ---------------------------------------------------------------------------------

    async def look(self, what: Hashable, call: Callable[[], T], *, every: float) -> T:
        """Look in a thread of the connection, or take what a look for another trigger has found.

        Args:
            what: Equal for looks that find the same.
            call: The look.
            every: Seconds between the looks of this trigger. One that began within half of it is taken.

        Raises:
            CatalogUnavailableError: No look has ended in time.
        """
        future = self._submit(what, call, min(every / 2, _OLDEST_SECONDS))
        try:
            # Others may wait for it: it goes on when this trigger is cancelled.
            async with asyncio.timeout(LOOK_SECONDS):
                answer = await asyncio.shield(asyncio.wrap_future(future))
        except TimeoutError:
            raise CatalogUnavailableError(
                f"connection {self.conn_id!r}: its catalog did not answer within {LOOK_SECONDS:g} s; "
                f"{len(self._running)} looks wait for it"
            ) from None
        if answer.error is not None:
            raise answer.error.with_traceback(None)
        return cast("T", answer.result)

    def _submit(self, what: Hashable, call: Callable[[], Any], age: float) -> Future[_Answer]:
        with self._lock:
            now = time.monotonic()
            known = self._answers.get(what)
            if known is not None and now < known.until:
                done: Future[_Answer] = Future()
                done.set_result(known)
                return done
            if what not in self._running:
                for old in [key for key, answer in self._answers.items() if answer.until <= now]:
                    del self._answers[old]
                self._running[what] = self._threads.submit(lambda: self._answer(what, call, age))
            return self._running[what]

    def _answer(self, what: Hashable, call: Callable[[], Any], age: float) -> _Answer:
        answer = _Answer(until=time.monotonic() + age)
        try:
            answer.result = call()
        except Exception as error:  # noqa: BLE001 (raised again by each trigger that waits for it)
            answer.error = error
        with self._lock:
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
    """Close all that is shared, and begin anew."""
    with _lock:
        for item in _known.values():
            item.close()
        _known.clear()


def _forked() -> None:
    """A forked process has none of its parent's threads, and must not use its connections."""
    global _lock
    _lock = threading.Lock()
    _known.clear()


os.register_at_fork(after_in_child=_forked)
