# SPDX-License-Identifier: Apache-2.0
"""A REST server that vends S3 credentials for each table, and an S3 server that accepts no others."""

from __future__ import annotations

import json
import math
import re
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.protocol.foreign import BucketStore
from tests.rest.proxy import Document, Forwarding, changed
from tests.services import RestServers, http_server

_KEY = re.compile(r"Credential=(\w+)/")
_ENDED = b"<Error><Code>InvalidAccessKeyId</Code><Message>The key does not exist</Message></Error>"


@dataclass
class Vending:
    """The credentials that were vended.

    Args:
        bucket: The bucket of all tables.
        how: Where answers have the credentials: ``config``, or ``storage-credentials`` by prefix; ``signing``: nowhere,
            the server signs each request to the store.
        places: The folder that each access key opens, while it is valid.
        expires_ms: When the server says that they end.
        seconds: How long credentials are valid, which the server says; 0 for ever.
        uses: The number of requests after which credentials end; then the server says that they end in a minute.
        renews: Whether the server names an endpoint that renews them.
        renewed: How often that was asked.
        ends_at: The number of the request to the store before which all credentials end.
        requests: The number of requests to the store.
        broken: Whether the store accepts none of those that are vended from now on.
        refused: The requests that the store has refused.
        every: All secrets that were ever vended.
    """

    bucket: BucketStore
    how: str = "config"
    expires_ms: int | None = None
    seconds: int = 0
    uses: int = 0
    renews: bool = False
    renewed: int = 0
    ends_at: int = 0
    requests: int = 0
    broken: bool = False
    places: dict[str, str] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    every: set[str] = field(default_factory=set)
    used: Counter[str] = field(default_factory=Counter)
    ends: dict[str, float] = field(default_factory=dict)
    endpoints: dict[str, str] = field(default_factory=dict)
    endpoint: str = ""
    catalog: str = ""

    def end(self) -> None:
        """Let all credentials end."""
        self.places.clear()

    def credentials(self, folder: str) -> dict[str, str]:
        """Return new credentials for a folder."""
        key, secret, token = (f"{kind}{secrets.token_hex(12)}" for kind in ("KEY", "secret-", "token-"))
        if not self.broken:
            self.places[key] = self.bucket.path(folder)
        self.every |= {key, secret, token}
        found = {"s3.access-key-id": key, "s3.secret-access-key": secret, "s3.session-token": token}
        lives = self.seconds or (60 if self.uses else 0)
        ends = time.time_ns() // 1_000_000 + 1000 * lives if lives else self.expires_ms
        self.ends[key] = ends if self.seconds and ends else math.inf
        return found | ({"s3.session-token-expires-at-ms": str(ends)} if ends else {})

    def vend(self, request: BaseHTTPRequestHandler, answer: Document) -> None:
        """Add credentials to the answer with a table."""
        if "metadata" not in answer or "/tables" not in request.path:
            return
        if request.headers.get("X-Iceberg-Access-Delegation") != "vended-credentials":
            return
        folder = answer["metadata"]["location"]
        common = {"s3.endpoint": self.endpoint, "s3.path-style-access": "true", "client.region": "us-east-1"}
        path = urlsplit(request.path).path
        if self.renews and not path.endswith("/tables"):
            common["client.refresh-credentials-endpoint"] = f"{path}/credentials".removeprefix("/")
            self.endpoints[f"{path}/credentials"] = folder
        if self.how == "signing":
            signer = {"s3.remote-signing-enabled": "true", "s3.signer.uri": self.catalog}
            answer["config"] = common | signer | {"s3.signer": "S3V4RestSigner", "s3.signer.endpoint": "v1/sign"}
        elif self.how == "config":
            answer["config"] = common | self.credentials(folder)
        else:
            answer["config"] = common
            wrong = {"s3.access-key-id": "NONE", "s3.secret-access-key": "none", "s3.session-token": "none"}
            answer["storage-credentials"] = [
                {"prefix": f"s3://{self.bucket.bucket}/", "config": wrong},
                {"prefix": folder, "config": self.credentials(folder)},
            ]

    def accepts(self, request: BaseHTTPRequestHandler) -> bool:
        """Whether a request to the store is signed with a valid key for the place that it names."""
        key = _KEY.search(request.headers.get("Authorization", ""))
        url = urlsplit(request.path)
        place = unquote(url.path).removeprefix(f"/{self.bucket.bucket}").removeprefix("/")
        place = place or parse_qs(url.query).get("prefix", [""])[0]
        folder = self.places.get(key[1]) if key else None
        if key and self.uses:
            self.used[key[1]] += 1
            folder = folder if self.used[key[1]] <= self.uses else None
        if key and time.time_ns() // 1_000_000 > self.ends.get(key[1], math.inf):
            folder = None
        return folder is not None and (place.startswith(folder) or "delete" in url.query)


@contextmanager
def vending(servers: RestServers, database: str, bucket: BucketStore, how: str = "config") -> Iterator[Vending]:
    """Yield a catalog that vends credentials, and a store that accepts only these.

    Args:
        servers: Runs the catalog, which itself reaches the store by a way of its own.
        database: The SQLAlchemy URI of its database.
        bucket: The store behind the one that checks credentials.
        how: See :class:`Vending`.
    """
    state = Vending(bucket, how)

    class Store(Forwarding):
        other = urlsplit(bucket.endpoint).netloc

        def answer(self, body: bytes) -> None:
            state.requests += 1
            if state.requests == state.ends_at:
                state.end()
            if state.accepts(self):
                super().answer(body)
                return
            state.refused.append(f"{self.command} {self.path}")
            refusal: Any = b"" if self.command == "HEAD" else _ENDED
            self.write(HTTPStatus.FORBIDDEN, {"Content-Type": "application/xml"}, refusal)

    class Renewing(Forwarding):
        def answer(self, body: bytes) -> None:
            folder = state.endpoints.get(urlsplit(self.path).path)
            if folder is None:
                super().answer(body)
                return
            state.renewed += 1
            new = {"storage-credentials": [{"prefix": folder, "config": state.credentials(folder)}]}
            self.write(HTTPStatus.OK, {"Content-Type": "application/json"}, json.dumps(new).encode())

    with (
        http_server(Store) as port,
        servers.serve(database, bucket.warehouse, **bucket.access) as upstream,
        changed(upstream, answer=state.vend) as vends,
        http_server(Renewing) as first,
    ):
        Renewing.other = urlsplit(vends).netloc
        state.endpoint, state.catalog = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{first}"
        yield state
