# SPDX-License-Identifier: Apache-2.0
"""End calls on sockets that get no answer in time.

libpq has no limit for the time that it waits for an answer, and none of TCP's own limits ends the wait for a server
that acknowledges packets and stays silent. One daemon thread per process watches the calls that are under way and
shuts down the socket of a call whose time is over; the driver then reports a lost connection to its caller.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Call:
    """A call that is under way.

    Args:
        until: When its time is over, by the monotonic clock.
        socket: A duplicate of its socket: it cannot come to mean another file while the call lasts.
        over: Whether the socket was shut down.
    """

    until: float
    socket: socket.socket
    over: bool = False


class _Watch:
    """The calls of this process, and the thread that ends those whose time is over."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: set[Call] = set()
        self._thread: threading.Thread | None = None

    def start(self, call: Call) -> None:
        """Watch a call."""
        with self._changed:
            first = min((other.until for other in self._calls), default=None)
            self._calls.add(call)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="airflow-mv-deadlines", daemon=True)
                self._thread.start()
            elif first is None or call.until < first:
                self._changed.notify()

    def stop(self, call: Call) -> None:
        """Watch a call no longer; its socket is not touched after this."""
        with self._changed:
            self._calls.discard(call)
            call.socket.close()

    def _run(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for call in [call for call in self._calls if call.until <= now]:
                    self._calls.discard(call)
                    call.over = True
                    with suppress(OSError):
                        call.socket.shutdown(socket.SHUT_RDWR)
                first = min((call.until for call in self._calls), default=None)
                self._changed.wait(None if first is None else first - now)


_watch = _Watch()


def _forget() -> None:
    """A forked process has neither the thread nor the calls of its parent."""
    global _watch
    _watch = _Watch()


os.register_at_fork(after_in_child=_forget)


@contextmanager
def bounded(descriptor: int | None, seconds: float) -> Iterator[None]:
    """End a call on a socket after some seconds.

    The driver's error is left as it is; a note says that and how long was waited.

    Args:
        descriptor: The socket; without one the call is not bounded.
        seconds: How long an answer may take.
    """
    if descriptor is None:
        yield
        return
    call = Call(time.monotonic() + seconds, socket.socket(fileno=os.dup(descriptor)))
    _watch.start(call)
    try:
        yield
    except Exception as error:
        if call.over:
            error.add_note(no_answer(seconds))
        raise
    finally:
        _watch.stop(call)


def no_answer(seconds: float) -> str:
    """Say that there was no answer in time."""
    return f"no answer within {seconds:g} s"
