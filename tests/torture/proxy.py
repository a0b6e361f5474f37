# SPDX-License-Identifier: Apache-2.0
"""A proxy in front of PostgreSQL that loses, interrupts or delays one statement's message or its answer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum

_SSL_REQUEST = (80877103).to_bytes(4, "big")
#: Messages that end a client's message sequence: Query, Sync, Password, Terminate.
_ENDS = frozenset(b"QSpX")
_READY = ord("Z")


class Moment(StrEnum):
    """When the connection breaks."""

    BEFORE = "before it is applied"
    APPLIED = "after it is applied, before COMMIT"
    NOT_COMMITTED = "before COMMIT arrives"
    COMMITTED = "after COMMIT, before its answer"
    LATE = "COMMIT arrives long after the client was cut off"


@dataclass
class Fault:
    """One fault.

    Args:
        statement: A part of the statement's text.
        moment: When the connection breaks.
        number: Which of the statements with that text, from 1.
        delay: Seconds by which a late COMMIT is delayed.
    """

    statement: bytes
    moment: Moment
    number: int = 1
    delay: float = 0.4
    happened: bool = False
    over: threading.Event = field(default_factory=threading.Event)

    def applies(self, sent: bytes) -> bool:
        """Whether the fault applies to this message."""
        if self.happened or self.statement not in sent:
            return False
        self.number -= 1
        return self.number == 0

    def settle(self) -> None:
        """Wait until the server has processed everything: a late COMMIT is sent after the client got its error."""
        assert self.over.wait(10)


class Proxy:
    """Listens on its own port.

    Args:
        host: The server's host.
        port: The server's port.
    """

    def __init__(self, host: str, port: int) -> None:
        self.fault: Fault | None = None
        self._server = host, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._open: set[socket.socket] = set()
        self._run(self._accept)

    def _run(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                for end in (client, server):  # no message waits for the acknowledgement of the one before
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open |= {client, server}
                link = _Link(self, client, server)
                self._run(link.forward)
                self._run(link.answer)

    def close(self) -> None:
        """Close everything."""
        for item in (self._listener, *self._open):
            with suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)
            item.close()
        for thread in self._threads:
            thread.join(10)


@contextmanager
def proxy(host: str, port: int) -> Iterator[Proxy]:
    """Run a proxy."""
    running = Proxy(host, port)
    try:
        yield running
    finally:
        running.close()


class _Link:
    """The connection of one client."""

    def __init__(self, owner: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._owner, self._client, self._server = owner, client, server
        self._pending: Fault | None = None
        self._swallow = threading.Event()
        self._answered = threading.Event()

    def forward(self) -> None:
        """Forward from client to server."""
        with suppress(OSError), self._client.makefile("rb") as source:
            self._start(source)
            batch = b""
            while message := _message(source):
                batch += message
                if message[0] in _ENDS:
                    if not self._send(batch):
                        return
                    batch = b""
        self._cut()

    def _start(self, source: object) -> None:
        while True:
            size = source.read(4)  # type: ignore[attr-defined]
            body = source.read(int.from_bytes(size, "big") - 4)  # type: ignore[attr-defined]
            self._server.sendall(size + body)
            if not body.startswith(_SSL_REQUEST):
                return

    def _send(self, sent: bytes) -> bool:
        """Forward what the client sent, or not; return whether the connection stays open."""
        fault, moment = self._owner.fault, None
        if fault and fault.applies(sent):
            fault.happened = True
            if fault.moment in (Moment.BEFORE, Moment.APPLIED):
                moment = fault.moment
            else:
                self._pending = fault
        elif self._pending and b"COMMIT" in sent:
            moment = self._pending.moment
        if moment is None:
            self._server.sendall(sent)
            return True
        if moment == Moment.LATE:
            self._cut_client()
            time.sleep(self._pending.delay if self._pending else 0)
        if moment not in (Moment.BEFORE, Moment.NOT_COMMITTED):
            self._swallow.set()
            self._server.sendall(sent)
            self._answered.wait(10)
        self._cut()
        if fault:
            fault.over.set()
        return False

    def answer(self) -> None:
        """Forward from server to client."""
        with suppress(OSError), self._server.makefile("rb") as source:
            while message := _message(source):
                if not self._swallow.is_set():
                    self._client.sendall(message)
                elif message[0] == _READY:
                    self._answered.set()
        self._cut()

    def _cut_client(self) -> None:
        with suppress(OSError):
            self._client.shutdown(socket.SHUT_RDWR)

    def _cut(self) -> None:
        self._answered.set()
        self._cut_client()
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)


def _message(source: object) -> bytes:
    """Read one message: its type, its length, its body. The answer to an SSL request is a single type byte."""
    kind = source.read(1)  # type: ignore[attr-defined]
    if kind in (b"", b"N"):
        # "N" is also the type of a notice; no server here sends one.
        return bytes(kind)
    size = source.read(4)  # type: ignore[attr-defined]
    return bytes(kind + size + source.read(int.from_bytes(size, "big") - 4))  # type: ignore[attr-defined]
