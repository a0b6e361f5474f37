# SPDX-License-Identifier: Apache-2.0
"""How requests reach a REST server: few at a time, with timeouts, again if it is busy, without content that is known.

A server that answers 429 or 503 gets the request again after the time of its ``Retry-After``, or after a short one.
Only requests that change nothing are repeated: whether a change was made is settled by whoever has sent it.

The answer with a table may have a tag (``ETag``). The next request for it names the tag (``If-None-Match``), and a
server whose table has not advanced answers 304 without the content. That is the mechanism of Iceberg's REST protocol
for ``loadTable``. An answer with credentials is not kept: they end, and whoever asks again may need new ones.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any

import msgspec
from requests import PreparedRequest, RequestException, Response, Session
from requests.adapters import HTTPAdapter
from requests.exceptions import ConnectionError as RequestsConnectionError
from requests.exceptions import ReadTimeout
from urllib3.exceptions import HTTPError, InvalidHeader
from urllib3.response import BaseHTTPResponse
from urllib3.util.retry import Retry

from airflow_mv.core.catalog.configured import CONNECT_SECONDS
from airflow_mv.core.catalog.store_deadlines import no_answer
from airflow_mv.core.spec.stored import MAX_BYTES
from airflow_mv.foundation.redaction import is_secret

#: Requests of one process to one server at a time.
CONCURRENT = 8
#: How often a request is sent to a busy server.
TRIES = 4
#: The statuses of a busy server.
BUSY = frozenset({429, 503})
#: The most bytes of the answers that are kept for one server, and of one of them.
MAX_KEPT_BYTES = 128 * 1024 * 1024
MAX_ANSWER_BYTES = 32 * 1024 * 1024
#: The pauses are 0, 0.4 and 0.8 s, each of the last two with up to 0.4 s more: not all clients ask at once.
_PAUSE = 0.2
_JITTER = 0.4
#: The longest ``Retry-After`` that is waited for, seconds.
_MAX_PAUSE = 20.0
_READS = frozenset({"GET", "HEAD"})
#: The headers by which the content of an answer may differ.
_VARY = ("Authorization", "X-Iceberg-Access-Delegation")
_NOT_MODIFIED = 304
_PIECE = 1024 * 1024

Send = Callable[..., Response]


class _Retry(Retry):
    """Retries for a busy server, which do not wait for long."""

    def get_retry_after(self, response: BaseHTTPResponse) -> float | None:
        """Return the pause that the server has named, in seconds."""
        with suppress(InvalidHeader):
            given = super().get_retry_after(response)
            return None if given is None else min(given, _MAX_PAUSE)
        return None


_RETRY = _Retry(
    TRIES - 1,
    connect=0,
    read=0,
    other=0,
    allowed_methods=_READS,
    status_forcelist=BUSY,
    backoff_factor=_PAUSE,
    backoff_jitter=_JITTER,
    raise_on_status=False,
)


def bound_session(session: Session, seconds: float) -> None:
    """Limit the requests of a session at one time, and the time and the size of its answers.

    A second call bounds only adapters that were added since.

    Args:
        session: The session of a REST catalog.
        seconds: The timeout for a complete answer, and for the wait between two parts of it.
    """
    for adapter in session.adapters.values():
        if isinstance(adapter, HTTPAdapter) and adapter.max_retries is not _RETRY:
            adapter.max_retries = _RETRY
            adapter.init_poolmanager(1, CONCURRENT, block=True)
    if not isinstance(getattr(session.send, "__self__", None), _Answers):
        session.send = _Answers(partial(_send, session.send, seconds)).send  # type: ignore[method-assign]


def _send(send: Any, seconds: float, request: PreparedRequest, **options: Any) -> Response:
    until = time.monotonic() + seconds
    options["timeout"] = options.get("timeout") or (CONNECT_SECONDS, seconds)
    streamed = options.pop("stream", False)
    try:
        response: Response = send(request, stream=True, **options)
        if not streamed:
            response.raw = BytesIO(_read(response, until))
    except RequestException as error:
        # An interruption while an answer is read is not raised as a Timeout.
        if time.monotonic() >= until or isinstance(error, ReadTimeout):
            error.add_note(no_answer(seconds))
        raise
    return response


def _read(response: Response, until: float) -> bytes:
    """Read an answer. One that does not end in time or is too large counts as lost."""
    data = bytearray()
    try:
        while piece := response.raw.read1(_PIECE, decode_content=True):
            data += piece
            if len(data) > MAX_BYTES:
                raise _given_up(response, f"a response of more than {MAX_BYTES} bytes")
            if time.monotonic() > until:
                raise _given_up(response)
    except HTTPError as error:
        raise RequestsConnectionError(error) from None
    response.raw.release_conn()
    return bytes(data)


def _given_up(response: Response, *why: str) -> RequestException:
    response.close()
    error = RequestException()
    for note in why:
        error.add_note(note)
    return error


class _Access(msgspec.Struct, rename="kebab"):
    """The part of an answer that may have credentials."""

    config: dict[str, str] | None = None
    storage_credentials: list[msgspec.Raw] | None = None


@dataclass(frozen=True, slots=True)
class _Kept:
    etag: str
    content: bytes
    headers: Any


class _Answers:
    """The answers with a tag of one session. Safe for threads.

    Args:
        send: Sends one request, and reads its answer.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, ...], _Kept] = OrderedDict()
        self._bytes = 0

    def send(self, request: PreparedRequest, **options: Any) -> Response:
        """Send a request as :meth:`requests.Session.send` does."""
        if request.method not in _READS or options.get("stream"):
            return self._send(request, **options)
        key = (request.method or "", request.url or "", *(str(request.headers.get(name)) for name in _VARY))
        kept = self._known(key)
        if kept is not None:
            request.headers.setdefault("If-None-Match", kept.etag)
        response = self._send(request, **options)
        known = kept is not None and request.headers["If-None-Match"] == kept.etag
        if response.status_code == _NOT_MODIFIED and kept is not None and known:
            response.status_code, response.reason = 200, "OK"
            response.raw, response.headers = BytesIO(kept.content), kept.headers
        elif kept is not None or response.headers.get("ETag"):
            self._note(key, response)
        return response

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
