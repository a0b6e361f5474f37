# SPDX-License-Identifier: Apache-2.0
"""How requests reach a REST server: few at a time, again later if it is busy, and without content that is known.

A server that answers 429 or 503 gets the request again after the time of its ``Retry-After``, or after a short one.
Only requests that change nothing are repeated: whether a change was made is settled by whoever has sent it.

The answer with a table may have a tag (``ETag``). The next request for it names the tag (``If-None-Match``), and a
server whose table has not moved answers 304 without the content. That is the mechanism of Iceberg's REST protocol for
``loadTable``. An answer with credentials is not kept: they end, and whoever asks again may need new ones.
"""

from __future__ import annotations

import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from io import BytesIO
from typing import Any

import msgspec
from requests import PreparedRequest, Response

from airflow_mv.redaction import is_secret

#: Requests of one process to one server at a time.
CONCURRENT = 8
#: How often a request is sent to a busy server.
TRIES = 4
#: The statuses of a busy server.
BUSY = frozenset({429, 503})
#: The most bytes of the answers that are kept for one server, and of one of them.
MAX_KEPT_BYTES = 128 * 1024 * 1024
MAX_ANSWER_BYTES = 32 * 1024 * 1024
_FIRST_PAUSE = 0.2
_MAX_PAUSE = 30.0
_READS = frozenset({"GET", "HEAD"})
#: The headers by which the content of an answer may differ.
_VARY = ("Authorization", "X-Iceberg-Access-Delegation")
_NOT_MODIFIED = 304

Send = Callable[..., Response]


class _Access(msgspec.Struct, rename="kebab"):
    """The part of an answer that may have credentials."""

    config: dict[str, str] | None = None
    storage_credentials: list[msgspec.Raw] | None = None


@dataclass(frozen=True, slots=True)
class _Kept:
    etag: str
    content: bytes
    headers: Any


class RestSession:
    """Sends the requests of one catalog. Safe for threads.

    Args:
        send: Sends one request, and reads its answer.
        seconds: The time for all tries of a request.
    """

    def __init__(self, send: Send, seconds: float) -> None:
        self._send, self._seconds = send, seconds
        self._slots = threading.BoundedSemaphore(CONCURRENT)
        self._sending = threading.local()
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, ...], _Kept] = OrderedDict()
        self._bytes = 0

    def send(self, request: PreparedRequest, **options: Any) -> Response:
        """Send a request as :meth:`requests.Session.send` does."""
        if getattr(self._sending, "active", False):
            return self._send(request, **options)  # the request to which another one was redirected
        if request.method not in _READS or options.get("stream"):
            return self._sent(request, options)
        key = (request.method or "", request.url or "", *(str(request.headers.get(name)) for name in _VARY))
        kept = self._known(key)
        if kept is not None and "If-None-Match" not in request.headers:
            request.headers["If-None-Match"] = kept.etag
        response = self._patient(request, options)
        if response.status_code == _NOT_MODIFIED and kept is not None:
            response.status_code, response.reason = 200, "OK"
            response.raw, response.headers = BytesIO(kept.content), kept.headers
        elif kept is not None or response.headers.get("ETag"):
            self._note(key, response)
        return response

    def _sent(self, request: PreparedRequest, options: dict[str, Any]) -> Response:
        with self._slots:
            self._sending.active = True
            try:
                return self._send(request, **options)
            finally:
                self._sending.active = False

    def _patient(self, request: PreparedRequest, options: dict[str, Any]) -> Response:
        """Send a request again while the server is busy and there is time."""
        until = time.monotonic() + self._seconds
        for attempt in range(1, TRIES):
            response = self._sent(request, options)
            pause = _pause(response, attempt) if response.status_code in BUSY else None
            if pause is None or time.monotonic() + pause > until:
                return response
            time.sleep(pause)
        return self._sent(request, options)

    def _known(self, key: tuple[str, ...]) -> _Kept | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def _note(self, key: tuple[str, ...], response: Response) -> None:
        """Keep an answer that has a tag, and forget the earlier one."""
        etag, content = response.headers.get("ETag"), b""
        if etag and response.ok and isinstance(response.raw, BytesIO):
            content = response.raw.getvalue()
        keep = etag is not None and 0 < len(content) <= MAX_ANSWER_BYTES and not _gives_access(content)
        with self._lock:
            before = self._kept.pop(key, None)
            self._bytes -= len(before.content) if before else 0
            if keep and etag is not None:
                self._kept[key] = _Kept(etag, content, response.headers.copy())
                self._bytes += len(content)
            while self._bytes > MAX_KEPT_BYTES:
                _, oldest = self._kept.popitem(last=False)
                self._bytes -= len(oldest.content)


def _gives_access(content: bytes) -> bool:
    """Whether an answer has, or may have, credentials."""
    try:
        found = msgspec.json.decode(content, type=_Access)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True
    return bool(found.storage_credentials) or any(map(is_secret, found.config or ()))


def _pause(response: Response, attempt: int) -> float:
    """Return how long to wait before a request is sent again, in seconds."""
    given = _seconds(response.headers.get("Retry-After", ""))
    if given is None:
        # Not all clients of a busy server at once.
        given = _FIRST_PAUSE * 2**attempt * random.uniform(0.5, 1.0)  # noqa: S311 (no secret)
    return min(max(given, 0.0), _MAX_PAUSE)


def _seconds(text: str) -> float | None:
    """Read ``Retry-After``: seconds, or a date of HTTP."""
    if text.strip().isdecimal():
        return float(text)
    try:
        return (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
    except (TypeError, ValueError):
        return None
