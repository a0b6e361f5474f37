# SPDX-License-Identifier: Apache-2.0
"""Structure-aware mutation of stored documents: variants of a real file as by a broken or hostile writer."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from typing import Any

#: Text with a meaning in SQL, Jinja, ``str.format``, a shell, a path, a terminal or a URL.
ODD_TEXTS = (
    "",
    " ",
    "\0",
    "\ud800",
    "\u202e",
    "\x1b[31m",
    "../../etc/passwd",
    "file:///etc/passwd",
    "http://169.254.169.254/latest/meta-data",
    "s3://b/../c",
    "{{ 7*7 }}",
    "{% raw %}",
    "{0.__class__}",
    "%s%n",
    "${env:HOME}",
    "a`b",
    "x'; DROP TABLE t--",
    "é",
    "e\u0301",
    "-1",
    "9" * 5000,
    "x" * 300,
)
ODD_NUMBERS = (0, -1, 1, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**400, 1.5, 1e308, -0.0)
ODD_VALUES: tuple[Any, ...] = (None, True, False, [], {}, [[]], {"a": {}}, [None], *ODD_NUMBERS, *ODD_TEXTS)
#: Inserted into the text for values that ``json.dumps`` cannot write.
RAW = ("NaN", "Infinity", "-Infinity", "1e999", "-", "01", "[" * 5000 + "]" * 5000, '{"a":' * 5000 + "1" + "}" * 5000)
_MARK = '"@@raw@@"'


class Mutator:
    """Makes broken and hostile variants of documents, the same ones for the same seed.

    Args:
        seed: The seed of the random numbers.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def variant(self, document: Any) -> bytes:
        """Return a variant of a document as bytes: with changes of its structure, its text, or its bytes."""
        changed = json.loads(json.dumps(document))
        for _ in range(self.random.choice((0, 1, 1, 1, 2, 3))):
            changed = self.structure(changed)
        return self.bytes(self.text(changed).encode("utf-8", "surrogatepass"))

    def structure(self, document: Any) -> Any:
        """Remove, duplicate, rename or exchange one node, or replace it by another type."""
        places = list(_places(document))
        if not places:
            return self.random.choice(ODD_VALUES)
        container, key = self.random.choice(places)
        change = self.random.choice((_take_out, _double, _rename, self._replace, self._replace, self._exchange))
        change(container, key)
        return document

    def text(self, document: Any) -> str:
        """Return the JSON text of a document, sometimes with text that no JSON writer produces."""
        text = json.dumps(document, ensure_ascii=self.random.random() < 0.8)
        if self.random.random() > 0.2 or not (places := list(_places(document))):
            return text
        container, key = self.random.choice(places)
        if isinstance(container, dict) and self.random.random() < 0.5:
            name = json.dumps(key)
            return text.replace(f"{name}:", f"{name}: {json.dumps(self.random.choice(ODD_NUMBERS))}, {name}:", 1)
        container[key] = _MARK.strip('"')
        return json.dumps(document).replace(_MARK, self.random.choice(RAW))

    def bytes(self, data: bytes) -> bytes:
        """Return the bytes unchanged (mostly), truncated, flipped, wrapped, re-encoded or followed by other data."""
        ways: tuple[Callable[[bytes], bytes], ...] = (self._flip, self._cut, self._insert, _recode, _wrap, self._packed)
        return self.random.choice(ways)(data) if self.random.random() < 0.4 else data

    def _replace(self, container: Any, key: Any) -> None:
        container[key] = self.random.choice(ODD_VALUES)

    def _exchange(self, container: Any, key: Any) -> None:
        keys = list(container) if isinstance(container, dict) else range(len(container))
        other = self.random.choice(list(keys))
        container[key], container[other] = container[other], container[key]

    def _flip(self, data: bytes) -> bytes:
        flipped = bytearray(data)
        for _ in range(self.random.randint(1, 6)):
            flipped[self.random.randrange(len(flipped))] = self.random.randrange(256)
        return bytes(flipped)

    def _cut(self, data: bytes) -> bytes:
        return data[: len(data) * self.random.randrange(20) // 20]

    def _insert(self, data: bytes) -> bytes:
        at = self.random.randrange(len(data) + 1)
        return data[:at] + self.random.choice((b"\0", b"\xff", b"\xed\xa0\x80", b"}", b"{}", data)) + data[at:]

    def _packed(self, data: bytes) -> bytes:
        packed = gzip.compress(data, mtime=0)
        return self.random.choice((packed, packed + b"junk", packed[:-5], gzip.compress(packed), self._flip(packed)))


def _places(document: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a document, without recursion."""
    found: list[tuple[Any, Any]] = []
    waiting = [document]
    while waiting:
        node = waiting.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        for key in keys:
            found.append((node, key))
            waiting.append(node[key])
    return found


def _take_out(container: Any, key: Any) -> None:
    del container[key]


def _double(container: Any, key: Any) -> None:
    if isinstance(container, list):
        container.append(container[key])
    else:
        container[f"{key}-2"] = container[key]


def _rename(container: Any, key: Any) -> None:
    if isinstance(container, dict):
        container[str(key).replace("-", "_").upper()] = container.pop(key)
    else:
        container.reverse()


def _recode(data: bytes) -> bytes:
    text = data.decode("utf-8", "replace")
    return text.encode(("utf-16", "utf-16-be", "utf-32", "latin-1")[len(data) % 4], "replace")


def _wrap(data: bytes) -> bytes:
    return (b"\xef\xbb\xbf" + data, data + b"junk", b"[" + data + b"]", b" " * 4096 + data, data + data)[len(data) % 5]
