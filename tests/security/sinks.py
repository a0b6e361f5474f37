# SPDX-License-Identifier: Apache-2.0
"""Canary secrets, and the search for them in all results of a run."""

from __future__ import annotations

import base64
import gzip
import os
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote


@dataclass(frozen=True)
class Canary:
    """A secret that occurs in no other text.

    Args:
        place: Where it is given.
        core: Letters and digits only, which no escaping changes.
    """

    place: str
    core: str = field(default_factory=lambda: f"c4n{secrets.token_hex(10)}")

    @property
    def text(self) -> str:
        """The secret as it is given, with characters that a URL, a shell and JSON escape."""
        return f"{self.core}/+ @'"

    @property
    def url(self) -> str:
        """The secret in a URL."""
        return quote(self.text, safe="")

    def forms(self) -> tuple[bytes, ...]:
        """The forms to search for: the text in any escaping, and its base64 at each of the three offsets."""
        # Without the first and last characters, which depend on the adjacent text.
        coded = {base64.b64encode(b"x" * shift + self.core.encode())[4:24] for shift in range(3)}
        return (self.core.encode(), self.core.upper().encode(), self.core.encode("utf-16-le"), *coded)


def found(canaries: Iterable[Canary], sinks: Mapping[str, str | bytes]) -> list[str]:
    """Return which canary is in which sink."""
    data = {name: item if isinstance(item, bytes) else item.encode("utf-8", "replace") for name, item in sinks.items()}
    return [
        f"{canary.place} in {name}"
        for name, content in data.items()
        for canary in canaries
        if any(form in content for form in canary.forms())
    ]


def files(*folders: Path) -> dict[str, bytes]:
    """All files below folders, decompressed if necessary, including their names."""
    contents = {}
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                data = path.read_bytes()
                contents[str(path)] = str(path).encode() + (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    return contents


def _processes() -> list[str]:
    with os.scandir("/proc") as entries:
        return [entry.name for entry in entries if entry.name.isdigit()]


@contextmanager
def command_lines() -> Iterator[dict[str, str]]:
    """Watch the arguments of every process that starts on this machine; they are in the mapping at the end."""
    seen: dict[str, str] = {}
    stop = threading.Event()
    before = set(_processes())

    def watch() -> None:
        while not stop.wait(0.02):
            for process in set(_processes()) - before:
                try:
                    text = Path("/proc", process, "cmdline").read_bytes().decode("utf-8", "replace").replace("\0", " ")
                except OSError:
                    continue  # the process has ended
                seen[f"arguments of {text[:60]}#{hash(text)}"] = text

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield seen
    finally:
        stop.set()
        watcher.join()
