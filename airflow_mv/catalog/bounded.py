# SPDX-License-Identifier: Apache-2.0
"""pyiceberg's SQL and REST catalogs with limits from their first call on: their constructors ask the server already."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from pyiceberg.catalog import AVAILABLE_CATALOGS, Catalog, CatalogType
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from requests import PreparedRequest, Request, RequestException, Response, Session
from requests.exceptions import ConnectionError as RequestsConnectionError
from requests.exceptions import ReadTimeout
from urllib3.exceptions import HTTPError

from airflow_mv.catalog.deadlines import no_answer
from airflow_mv.catalog.waits import CONNECT_SECONDS, answer_seconds, bounded_engine, guard
from airflow_mv.spec.stored import MAX_BYTES

_opening: ContextVar[bool] = ContextVar("airflow_mv_opening", default=False)
_PIECE = 1024 * 1024
_BOUNDED = "airflow_mv_bounded"


class BoundedSqlCatalog(SqlCatalog):
    """A SQL catalog with few connections, whose calls end when there is no answer."""

    def _init_catalog(self) -> None:
        self.engine = bounded_engine(self.engine)
        guard(self.engine, answer_seconds(self.properties))
        # What follows takes a lost connection for tables that are not there, and tries to create them.
        self.engine.connect().close()
        super()._init_catalog()


class BoundedRestCatalog(RestCatalog):
    """A REST catalog whose calls end when there is no answer."""

    def _config_headers(self, session: Session) -> None:
        # The first that is done with a new session; what follows may ask for a token already.
        bound_session(session, answer_seconds(self.properties))
        super()._config_headers(session)


@contextmanager
def opening() -> Iterator[None]:
    """Have pyiceberg make catalogs with limits, in this thread, until the block ends."""
    token = _opening.set(True)
    try:
        yield
    finally:
        _opening.reset(token)


def bound_session(session: Session, seconds: float) -> None:
    """Limit how long the answers of a session may take, and how large they may be; doing it again changes nothing.

    Args:
        session: Of a REST catalog.
        seconds: For a whole answer, and for the wait between two parts of it.
    """
    if not hasattr(session, _BOUNDED):
        setattr(session, _BOUNDED, True)
        session.send = partial(_send, session.send, seconds)  # type: ignore[method-assign]


def _send(send: Any, seconds: float, request: PreparedRequest | Request, **options: Any) -> Response:
    until = time.monotonic() + seconds
    options["timeout"] = options.get("timeout") or (CONNECT_SECONDS, seconds)
    streamed = options.pop("stream", False)
    try:
        response: Response = send(request, stream=True, **options)
        if not streamed:
            response._content = _read(response, until)
    except RequestException as error:
        # What interrupts the reading of an answer is no Timeout.
        if time.monotonic() >= until or isinstance(error, ReadTimeout):
            error.add_note(no_answer(seconds))
        raise
    return response


def _read(response: Response, until: float) -> bytes:
    """Read an answer; one that does not end in time, or is too large, is a lost one."""
    data = bytearray()
    try:
        while piece := response.raw.read1(_PIECE, decode_content=True):
            data += piece
            if len(data) > MAX_BYTES:
                raise _given_up(response, f"an answer of more than {MAX_BYTES} bytes")
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


def _bounded_where_opened(make: Any, bounded: type[Catalog], name: str, properties: Any) -> Catalog:
    return bounded(name, **properties) if _opening.get() else make(name, properties)


for _kind, _bounded in ((CatalogType.SQL, BoundedSqlCatalog), (CatalogType.REST, BoundedRestCatalog)):
    # Whoever else opens catalogs in this process gets pyiceberg's own.
    AVAILABLE_CATALOGS[_kind] = partial(_bounded_where_opened, AVAILABLE_CATALOGS[_kind], _bounded)
