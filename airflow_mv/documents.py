# SPDX-License-Identifier: Apache-2.0
"""Read JSON documents into frozen dataclasses with strict types. Standard library only, because the driver uses it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from airflow_mv.errors import InvalidMetadataError

_Document = TypeVar("_Document")
#: Largest text of a script, an outcome or a record of a view, in bytes.
MAX_TEXT_BYTES = 16 * 1024 * 1024
#: The most marks (``,``, ``:``, ``{`` and ``[``) between the values of such a text: each value costs up to 50 times
#: its text when it is decoded.
MAX_MARKS = 500_000
_MARKS = (",", ":", "{", "[")
_SPELLING = r'[,:{\[]|"[^"\\]*+(?:\\.[^"\\]*+)*+"?'
_LEXEME = re.compile(_SPELLING, re.DOTALL)
_LEXEME_OF_BYTES = re.compile(_SPELLING.encode("ascii"), re.DOTALL)


def id_text(snapshot: int | None) -> str | None:
    """Return a snapshot id as all JSON documents and XComs have it. Programs lose the last digits of large numbers."""
    return None if snapshot is None else str(snapshot)


def check_marks(text: str | bytes | bytearray, limit: int = MAX_MARKS) -> None:
    """Reject a JSON text with too many values, without decoding it.

    Raises:
        ValueError: There are more than ``limit`` marks between its values.
    """
    plain = isinstance(text, str)
    marks: Any = _MARKS if plain else tuple(mark.encode("ascii") for mark in _MARKS)
    pattern: Any = _LEXEME if plain else _LEXEME_OF_BYTES
    if sum(map(text.count, marks)) <= limit:
        return
    # Marks in strings are not counted. A JSON text has at most one more string than marks.
    found = 0
    for number, match in enumerate(pattern.finditer(text)):
        found += match.group() in marks
        if found > limit or number > 2 * limit + 1:
            raise ValueError(f"more than {limit} keys and values")


def json_object(text: str, what: str) -> dict[str, Any]:
    """Decode a JSON object.

    Args:
        text: The JSON text.
        what: Names the kind of document, for messages.

    Raises:
        InvalidMetadataError: The text is not a JSON object.
    """
    try:
        if len(text) > MAX_TEXT_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:
            raise ValueError(f"larger than {MAX_TEXT_BYTES} bytes")
        check_marks(text)
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidMetadataError(f"not a document of kind {what}: {str(error)[:200] or 'too deep'}") from None
    if not isinstance(document, dict):
        raise InvalidMetadataError(f"not a document of kind {what}: not a JSON object")
    return document


def json_objects(value: object, what: str, name: str) -> list[dict[str, Any]]:
    """Check that a decoded value is a list of JSON objects.

    Args:
        what: The kind of document that contains it, for messages.
        name: Its field in the document, for messages.

    Raises:
        InvalidMetadataError: It is not such a list.
    """
    if not isinstance(value, list) or not all(isinstance(raw, dict) for raw in value):
        raise InvalidMetadataError(f"not a {what} document: field {name!r}")
    return value


def check_fields(document: Mapping[str, Any], kinds: Mapping[str, Any], what: str) -> None:
    """Check the types of some fields of a decoded object.

    Args:
        document: The object.
        kinds: The type of each field.
        what: The kind of document, for messages.

    Raises:
        InvalidMetadataError: One of them is missing or of another type; the message names it.
    """
    for name, kind in kinds.items():
        if name not in document or not _fits(document[name], kind):
            raise InvalidMetadataError(f"not a {what} document: field {name!r}")


def read(cls: type[_Document], document: dict[str, Any], what: str) -> _Document:
    """Make a dataclass of a JSON object. Types are checked strictly, because the text is untrusted input.

    Args:
        cls: The dataclass.
        document: The object.
        what: The kind of document, for messages.

    Raises:
        InvalidMetadataError: A field is missing, unknown or of another type.
    """
    types = get_type_hints(cls)
    try:
        values = {key: _tuples(value) for key, value in document.items()}
        for item in fields(cls):  # type: ignore[arg-type]
            if item.name in values and not _fits(values[item.name], types[item.name]):
                raise InvalidMetadataError(f"not a document of kind {what}: field {item.name!r}")
        return cls(**values)
    except (TypeError, RecursionError) as error:
        raise InvalidMetadataError(f"not a document of kind {what}: {str(error)[:200]}") from None


def _fits(value: object, kind: Any) -> bool:
    if get_origin(kind) is UnionType:
        return any(_fits(value, item) for item in get_args(kind))
    if get_origin(kind) is tuple:
        items = get_args(kind)
        if not isinstance(value, tuple):
            return False
        wanted = items[:1] * len(value) if items[-1] is Ellipsis else items
        return len(value) == len(wanted) and all(map(_fits, value, wanted))
    return type(value) in ((int, float) if kind is float else (kind,))


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
