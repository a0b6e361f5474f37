# SPDX-License-Identifier: Apache-2.0
"""A store on which this user may not delete, or not write, files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import urlsplit

from tests.protocol.foreign import BucketStore
from tests.rest.proxy import Forwarding
from tests.services import http_server

_DENIED = b"<Error><Code>AccessDenied</Code><Message>you are not authorized</Message></Error>"


@dataclass
class Keeping:
    """A bucket that refuses requests, and those that it has refused.

    Args:
        denies: The method of the requests; an empty text for none.
    """

    bucket: BucketStore
    denies: str = "DELETE"
    refused: list[str] = field(default_factory=list)


@contextmanager
def keeping(store: Keeping) -> Iterator[str]:
    """Yield the address of a server that refuses what the store denies."""

    class Handler(Forwarding):
        other = urlsplit(store.bucket.endpoint).netloc

        def answer(self, body: bytes) -> None:
            deletes = self.command == "DELETE" or "delete" in urlsplit(self.path).query
            if store.denies != ("DELETE" if deletes else self.command):
                super().answer(body)
                return
            store.refused.append(self.path)
            self.write(HTTPStatus.FORBIDDEN, {"Content-Type": "application/xml"}, _DENIED)

    with http_server(Handler) as port:
        yield f"http://127.0.0.1:{port}"
