# SPDX-License-Identifier: Apache-2.0
"""Deadlines for the calls of stores, whichever library makes them.

Each call runs in its own thread, and its caller waits until the deadline. No library can be interrupted, so the thread
of a late call stays until its library gives up: Google's client after 15 minutes, a hard NFS mount never. Two rules
bound these threads. A store has at most :data:`MAX_CALLS` calls at once, the late ones included. A store that has
answered nothing since a late call began is asked once in :data:`RETRY_SECONDS`; other calls are refused at once. A
store is a scheme with its authority, such as ``s3://bucket``, or the mount of a network file system.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any, TypeVar

from airflow_mv.core.catalog.locations import remote_mount, split_location

Result = TypeVar("Result")

#: Calls of one process to one store at once.
MAX_CALLS = 16
#: Late calls of one process to all stores. From then on only stores that have answered before are asked.
MAX_LATE_CALLS = 64
#: Seconds after which a silent store is asked again.
RETRY_SECONDS = 20.0
#: A call that ends without an answer after more seconds than this counts as late: the next one would take as long.
SLOW_SECONDS = 5.0
#: How much longer the listing of a large folder may take.
LISTING_FACTOR = 10
#: Errors by which a store has answered.
_ANSWERS = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)


class StoreTimeoutError(TimeoutError):
    """A store has not answered before the deadline, or is not asked, because it has not answered other calls."""


@dataclass(frozen=True, slots=True, eq=False)
class Impatience:
    """Limits of calls, for threads that are few.

    Args:
        seconds: The deadline of one call.
        calls: The calls of one store at once.
        wait: Seconds that the oldest of them may have taken while a further call waits. Then that is refused.
    """

    seconds: float
    calls: int
    wait: float


_impatience: ContextVar[Impatience | None] = ContextVar("airflow_mv_impatience", default=None)


@contextmanager
def impatient(limits: Impatience) -> Iterator[None]:
    """Limit this thread's calls until the block ends."""
    token = _impatience.set(limits)
    try:
        yield
    finally:
        _impatience.reset(token)


def store_name(location: str) -> str | None:
    """Return the name of a location's store; ``None`` for a disk of this host, which needs no deadline."""
    scheme, authority, path = split_location(location)
    if scheme != "file":
        return f"{scheme}://{authority}"
    mount = remote_mount(path)
    return None if mount is None else f"file://{mount}"


def within(location: str, seconds: float, act: Callable[[], Result]) -> Result:
    """Call a store, and wait for the result until a deadline. The disks of this host are called directly.

    Args:
        location: A file or folder of the store.
        seconds: The deadline.
        act: The call. After the deadline it may still take effect: what it writes must have a new name.

    Raises:
        StoreTimeoutError: There was no answer, or the store is not asked.
        Exception: That of the call.
    """
    name = store_name(location)
    if name is None:
        return act()
    limits = _impatience.get()
    if limits is not None:
        seconds = min(seconds, limits.seconds)
    call = _stores.get(name).begin(seconds, limits)
    threading.Thread(target=copy_context().run, args=(call.run, act), name="airflow-mv-store", daemon=True).start()
    if not call.done.wait(seconds) and call.give_up():
        raise StoreTimeoutError(no_answer(seconds))
    if call.error is not None:
        raise call.error
    result: Result = call.result
    return result


@dataclass(eq=False, slots=True)
class _Call:
    """A running call."""

    store: _Store
    began: float
    limits: Impatience | None = None
    late: bool = False
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: BaseException | None = None

    def run(self, act: Callable[[], Any]) -> None:
        """Call the store, in the call's own thread."""
        try:
            self.result = act()
        except BaseException as error:  # noqa: BLE001 (the caller raises it)
            self.error = error
        with self.store.changed:
            self.store.ended(self)
            self.done.set()

    def give_up(self) -> bool:
        """Count the call as late; ``False`` if it has ended meanwhile."""
        with self.store.changed:
            if self.done.is_set():
                return False
            self.late = True
            self.store.is_silent(self)
            self.store.changed.notify_all()
            return True


class _Store:
    """The running calls of one store."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.changed = threading.Condition()
        self.calls: set[_Call] = set()
        self.answered = -math.inf
        self.silent_since: float | None = None
        self.retry_at = -math.inf

    @property
    def late(self) -> int:
        """The number of late calls."""
        return sum(call.late for call in list(self.calls))

    def begin(self, seconds: float, limits: Impatience | None) -> _Call:
        """Add a call, once the store has room for it.

        Raises:
            StoreTimeoutError: The store is not asked.
        """
        until = time.monotonic() + seconds
        with self.changed:
            while not self._has_room(limits):
                self._require_answers()
                patience = min([until, *(call.began + limits.wait for call in self._own(limits))]) if limits else until
                left = patience - time.monotonic()
                if left <= 0 or self.late == MAX_CALLS:
                    raise StoreTimeoutError(f"{len(self.calls)} other calls wait for it; try again later")
                self.changed.wait(left)
            self._require_answers()
            call = _Call(self, time.monotonic(), limits)
            if self.silent_since is not None:
                self.retry_at = call.began + RETRY_SECONDS  # this call asks, others are refused meanwhile
            self.calls.add(call)
            return call

    def _has_room(self, limits: Impatience | None) -> bool:
        return len(self.calls) < MAX_CALLS and (limits is None or len(self._own(limits)) < limits.calls)

    def _own(self, limits: Impatience) -> list[_Call]:
        """Return the calls of threads with these limits that are not late."""
        return [call for call in self.calls if call.limits is limits and not call.late]

    def ended(self, call: _Call) -> None:
        """Remove a call, and note whether the store has answered."""
        self.calls.discard(call)
        if not isinstance(call.error, OSError) or isinstance(call.error, _ANSWERS):
            self.answered, self.silent_since = time.monotonic(), None
        elif time.monotonic() - call.began > SLOW_SECONDS:
            self.is_silent(call)
        self.changed.notify_all()

    def is_silent(self, call: _Call) -> None:
        """Note that a call got no answer."""
        if call.began > self.answered:
            self.silent_since = min(call.began, self.silent_since or math.inf)
            self.retry_at = time.monotonic() + RETRY_SECONDS

    def _require_answers(self) -> None:
        """Refuse a call of a silent store."""
        now = time.monotonic()
        if self.silent_since is not None and now < self.retry_at:
            raise StoreTimeoutError(
                f"it has not answered for {now - self.silent_since:.0f} s, and is called again in "
                f"{self.retry_at - now:.0f} s"
            )
        if self.answered == -math.inf and _stores.late >= MAX_LATE_CALLS:
            raise StoreTimeoutError(
                f"{MAX_LATE_CALLS} calls of this process are waiting for object stores that do not respond"
            )


class _Stores:
    """The stores of this process, by name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, _Store] = {}

    def get(self, name: str) -> _Store:
        """Return a store."""
        with self._lock:
            return self._known.setdefault(name, _Store(name))

    @property
    def late(self) -> int:
        """The number of late calls to all stores."""
        return sum(store.late for store in list(self._known.values()))


_stores = _Stores()


def _forget() -> None:
    """A forked process has none of its parent's threads."""
    global _stores
    _stores = _Stores()


os.register_at_fork(after_in_child=_forget)


def no_answer(seconds: float) -> str:
    """Return the message for a timeout."""
    return f"no response within {seconds:g} s"
