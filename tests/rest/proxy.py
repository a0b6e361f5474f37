# SPDX-License-Identifier: Apache-2.0
"""An HTTP server that forwards requests to another one, and may change requests and answers."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

from tests.services import http_server

Document = dict[str, Any]
#: Changes a JSON document of a request, or of the answer to it.
Change = Callable[[BaseHTTPRequestHandler, Document], None]


class Forwarding(BaseHTTPRequestHandler):
    """Forwards every request."""

    other: str
    protocol_version = "HTTP/1.1"
    timeout = 60
    # Header and body are sent in one packet; otherwise each answer waits for the other side's acknowledgement.
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Answer a request."""
        if self.headers.get("Transfer-Encoding") == "chunked":
            self.answer(b"".join(self._chunks()))
        else:
            self.answer(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

    def handle_expect_100(self) -> bool:
        """Let a client send its body at once; S3's clients wait for a second if the answer stays in the buffer."""
        super().handle_expect_100()
        self.wfile.flush()
        return True

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def answer(self, body: bytes) -> None:
        """Forward a request."""
        self.write(*self.forwarded(body))

    def forwarded(self, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        """Return the other server's answer: status, headers, body."""
        connection = http.client.HTTPConnection(self.other, timeout=60)
        try:
            headers = {key: value for key, value in self.headers.items() if key.lower() not in _OF_THE_REQUEST}
            connection.request(self.command, self.path, body or None, headers)
            response = connection.getresponse()
            kept = {key: value for key, value in response.getheaders() if key.lower() not in _OF_THE_CONNECTION}
            return response.status, kept, response.read()
        finally:
            connection.close()

    def write(self, status: int, headers: Mapping[str, str], data: bytes) -> None:
        """Send an answer."""
        self.send_response(status)
        for key, value in headers.items():
            if key.lower() != "content-length" or self.command == "HEAD":
                self.send_header(key, value)
        if self.command != "HEAD":  # of which the other server's length is that of the same GET
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


_OF_THE_CONNECTION = ("connection", "transfer-encoding", "date", "server")
_OF_THE_REQUEST = ("connection", "transfer-encoding", "content-length", "expect")


@contextmanager
def changed(upstream: str, *, request: Change | None = None, answer: Change | None = None) -> Iterator[str]:
    """Yield the address of a server that forwards to another one, with changed JSON documents.

    Args:
        upstream: The other server's address.
        request: Changes the documents of requests.
        answer: Changes the documents of successful answers.
    """

    class Handler(Forwarding):
        other = urlsplit(upstream).netloc

        def answer(self, body: bytes) -> None:
            if self.headers.get("Accept-Encoding"):
                self.headers.replace_header("Accept-Encoding", "identity")
            status, headers, data = self.forwarded(_edited(body, request, self))
            if answer is not None:  # of which the other server's tag says nothing
                headers = {key: value for key, value in headers.items() if key.lower() != "etag"}
            self.write(status, headers, data if status >= 300 else _edited(data, answer, self))

    with http_server(Handler) as port:
        yield f"http://127.0.0.1:{port}"


def _edited(data: bytes, change: Change | None, handler: BaseHTTPRequestHandler) -> bytes:
    if change is None or not data.startswith(b"{"):
        return data
    document: Document = json.loads(data)
    change(handler, document)
    return json.dumps(document).encode()
