# SPDX-License-Identifier: Apache-2.0
"""Which REST server the tests run on: Iceberg's own, Iceberg's behind a proxy that is stricter, or any given one.

Environment:
    AIRFLOW_MV_TEST_REST_STRICT: What the proxy does, names of :data:`HOW` with commas.
    AIRFLOW_MV_TEST_REST_URI: The address of another server. It must have no namespace ``sales``.
    AIRFLOW_MV_TEST_REST_PROPERTIES: A file with pyiceberg's properties for it, a JSON object. It may hold secrets.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

from tests.rest.proxy import Forwarding
from tests.services import RestServers, http_server, rest_servers

STRICT, URI, PROPERTIES = (f"AIRFLOW_MV_TEST_REST_{name}" for name in ("STRICT", "URI", "PROPERTIES"))
_NAMESPACE = "sales"
_PREFIX = "warehouses/of%20one"
#: Each request of this number is answered with 429.
_BUSY_EACH = 7


class _Strict(Forwarding):
    """Iceberg's server with the habits of others."""

    how: frozenset[str]
    numbers: Iterator[int]

    def answer(self, body: bytes) -> None:
        """Refuse a request, or forward it and change the answer."""
        for name in sorted(self.how):
            if {**HOW, **REFUSING}[name](self, body):
                return
        self.write(*self.forwarded(body))

    def refuse(self, status: HTTPStatus, message: str) -> bool:
        """Answer with an error."""
        error = {"error": {"message": message, "type": "BadRequestException", "code": int(status)}}
        self.write(status, {"Content-Type": "application/json", "Retry-After": "0"}, json.dumps(error).encode())
        return True

    def send(self, document: Any, headers: Any) -> bool:
        """Answer with a document."""
        kept = {key: value for key, value in headers.items() if key.lower() not in ("etag", "content-encoding")}
        self.write(HTTPStatus.OK, kept, json.dumps(document).encode())
        return True

    def asked(self, body: bytes) -> tuple[int, Any, Any]:
        """Return status, headers and the document of the server's answer."""
        del self.headers["Accept-Encoding"]
        status, headers, data = self.forwarded(body)
        return status, headers, json.loads(data) if data else None


def _stage_refused(request: _Strict, body: bytes) -> bool:
    return b'"stage-create":true' in body and request.refuse(HTTPStatus.BAD_REQUEST, "Stage create is not supported")


def _busy(request: _Strict, _: bytes) -> bool:
    """Answer 429 to some reads. What a change's answer of 429 means is tested elsewhere, and by all its writers."""
    busy = request.command == "GET" and next(request.numbers) % _BUSY_EACH == 0
    return busy and request.refuse(HTTPStatus.TOO_MANY_REQUESTS, "slow down")


def _prefixed(request: _Strict, body: bytes) -> bool:
    """Serve everything below a prefix that the configuration names."""
    if urlsplit(request.path).path == "/v1/config":
        _, headers, document = request.asked(body)
        return request.send({**document, "overrides": {**document["overrides"], "prefix": _PREFIX}}, headers)
    if not request.path.startswith(f"/v1/{_PREFIX}/"):
        return request.refuse(HTTPStatus.NOT_FOUND, f"no such path: {request.path}")
    request.path = request.path.replace(f"/{_PREFIX}/", "/", 1)
    return False


def _refs_dropped(request: _Strict, body: bytes) -> bool:
    """Accept a commit that sets a branch or a tag, and apply the rest of it. Only ``main`` is set."""
    if request.command != "POST" or b'"set-snapshot-ref"' not in body:
        return False
    document = json.loads(body)
    document["updates"] = [item for item in document["updates"] if item.get("ref-name", "main") == "main"]
    request.write(*request.forwarded(json.dumps(document).encode()))
    return True


def _purge_only(request: _Strict, _: bytes) -> bool:
    """Drop no table without its files, as S3 Tables."""
    kept = request.command == "DELETE" and "/tables/" in request.path and "purgeRequested=True" not in request.path
    return kept and request.refuse(HTTPStatus.BAD_REQUEST, "dropTable without purge is not supported")


def _pages_of_one(request: _Strict, body: bytes) -> bool:
    """List one name in each answer."""
    url = urlsplit(request.path)
    if request.command != "GET" or not url.path.endswith(("/namespaces", "/tables", "/views")):
        return False
    query = parse_qs(url.query)
    page = int((query.pop("pageToken", None) or ["0"])[0] or 0)
    parent = f"?parent={query['parent'][0]}" if "parent" in query else ""
    request.path = f"{url.path}{parent}"
    status, headers, document = request.asked(body)
    if status != HTTPStatus.OK:
        return request.refuse(HTTPStatus(status), "not there")
    key = next(key for key in ("namespaces", "identifiers") if key in document)
    more = {"next-page-token": str(page + 1)} if page + 1 < len(document[key]) else {}
    return request.send({key: document[key][page : page + 1], **more}, headers)


#: What a server may do, by name: a function that answers a request and returns true, or leaves it to the others.
HOW: dict[str, Callable[[_Strict, bytes], bool]] = {
    "a-prefix": _prefixed,  # first by its name: the others see the path without it
    "busy": _busy,
    "pages-of-one": _pages_of_one,
    "stage-refused": _stage_refused,
}
#: The same for servers that refuse a view, or a part of its life.
REFUSING = {"purge-only": _purge_only, "refs-dropped": _refs_dropped}


@contextmanager
def strict(upstream: str, *how: str) -> Iterator[str]:
    """Yield the address of a stricter server before another one."""

    class Handler(_Strict):
        other = urlsplit(upstream).netloc
        numbers = itertools.count(1)

    Handler.how = frozenset(how)
    with http_server(Handler) as port:
        yield f"http://127.0.0.1:{port}"


class _StrictServers:
    def __init__(self, servers: RestServers, how: str) -> None:
        self._servers, self._how = servers, how.split(",")

    @contextmanager
    def serve(self, *where: Any, **access: str) -> Iterator[str]:
        with self._servers.serve(*where, **access) as upstream, strict(upstream, *self._how) as address:
            yield address


class _GivenServer:
    """A server that runs already. Each test begins and ends without the namespace ``sales``."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        with self._opened() as catalog:
            if (_NAMESPACE,) in catalog.list_namespaces():
                raise RuntimeError(f"{uri} has a namespace {_NAMESPACE!r}: the tests need a catalog without one")

    @contextmanager
    def serve(self, *_where: Any, **_access: str) -> Iterator[str]:
        try:
            yield self._uri
        finally:
            with self._opened() as catalog:
                _empty(catalog)

    def _opened(self) -> Any:
        return load_catalog("lake", type="rest", uri=self._uri, **given_properties(self._uri))


def _empty(catalog: Any) -> None:
    with suppress(NoSuchNamespaceError):
        with suppress(NotImplementedError):  # it has no views
            for view in catalog.list_views(_NAMESPACE):
                catalog.drop_view(view)
        for table in catalog.list_tables(_NAMESPACE):
            with suppress(NoSuchTableError):
                catalog.drop_table(table)
        catalog.drop_namespace(_NAMESPACE)


def given_properties(uri: str) -> dict[str, str]:
    """Return pyiceberg's properties for the given server; none for another one."""
    file = os.environ.get(PROPERTIES)
    return json.loads(Path(file).read_text()) if file and uri == os.environ.get(URI) else {}


@contextmanager
def chosen_servers() -> Iterator[Any]:
    """Yield what serves REST catalogs, as the environment chooses it.

    Raises:
        ServiceUnavailableError: Java or Maven is not installed, or the jars cannot be fetched.
    """
    if os.environ.get(URI):
        yield _GivenServer(os.environ[URI])
        return
    with rest_servers() as servers:
        yield _StrictServers(servers, os.environ[STRICT]) if os.environ.get(STRICT) else servers
