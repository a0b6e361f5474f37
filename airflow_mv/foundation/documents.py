# SPDX-License-Identifier: Apache-2.0
"""Read texts, and JSON documents as frozen dataclasses of strict types. Standard library only: the driver uses it."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import MappingProxyType, UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from airflow_mv.errors import InvalidMetadataError, InvalidQueryError

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


def short_id(text: str | None) -> str:
    """Return the beginning of an id of a refresh, for people; ``none`` without one."""
    return "none" if text is None else text[:8]


def utf8_text(content: bytes, *, source: str) -> str:
    """Read the text of a file with SQL. A byte order mark is accepted.

    Args:
        source: The file, for messages.

    Raises:
        InvalidQueryError: It is not text in UTF-8.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        is_utf_16 = content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        found = "this is UTF-16" if is_utf_16 else f"byte {error.start + 1} is not"
        raise InvalidQueryError(f"{source}: UTF-8 is expected, and {found}: save the file as UTF-8") from None
    if "\0" in text:
        raise InvalidQueryError(
            f"{source}: UTF-8 is expected, and this has zero bytes, as UTF-16 has: save it as UTF-8"
        )
    return text


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
        _read(document.get(name, ...), kind, what, name, {})


def read(
    cls: type[_Document],
    document: Mapping[str, Any],
    what: str,
    readers: Mapping[Any, Callable[[Any], Any]] = MappingProxyType({}),
) -> _Document:
    """Make a dataclass of a JSON object. Types are checked strictly, because the text is untrusted input.

    Args:
        cls: The dataclass. Its fields may be dataclasses and tuples of these.
        document: The object.
        what: The kind of document, for messages.
        readers: Functions that read values of other types, by type.

    Raises:
        InvalidMetadataError: A field is missing, unknown or of another type.
    """
    types = _types(cast("Hashable", cls))
    try:
        return cls(**{
            name: _read(raw, types[name], what, name, readers) if name in types else raw
            for name, raw in document.items()
        })  # fmt: skip
    except (TypeError, RecursionError) as error:
        raise InvalidMetadataError(f"not a document of kind {what}: {str(error)[:200]}") from None


@cache
def _types(cls: Hashable) -> dict[str, Any]:
    return get_type_hints(cls)


def _read(value: Any, kind: Any, what: str, name: str, readers: Mapping[Any, Callable[[Any], Any]]) -> Any:
    """Return a decoded value as one of a type."""
    refused = InvalidMetadataError(f"not a document of kind {what}: field {name!r}")
    if kind not in readers and get_origin(kind) is UnionType:
        kind = next((item for item in get_args(kind) if type(value) is item), get_args(kind)[0])
    try:
        if kind in readers:
            return readers[kind](value)
        if is_dataclass(kind) and isinstance(value, dict):
            return read(kind, value, what, readers)  # type: ignore[arg-type]
        if get_origin(kind) is tuple and isinstance(value, list | tuple):
            items = get_args(kind)
            wanted = items[:1] * len(value) if items[-1] is Ellipsis else items
            return tuple(_read(item, each, what, name, readers) for item, each in zip(value, wanted, strict=True))
        converts = isinstance(kind, type) and issubclass(kind, Enum)
        found = kind(value) if converts else value
    except (KeyError, TypeError, ValueError, AttributeError):
        raise refused from None
    if not converts and type(value) not in ((int, float) if kind is float else (kind,)):
        raise refused
    return found


def document_of(value: Any, writers: Mapping[type, Callable[[Any], Any]] = MappingProxyType({})) -> Any:
    """Return the JSON form of a dataclass, which :func:`read` reads back.

    Args:
        value: The dataclass.
        writers: Functions that write values of other types, by type.
    """
    if type(value) in writers:
        return writers[type(value)](value)
    if is_dataclass(value):
        return {item.name: document_of(getattr(value, item.name), writers) for item in fields(value)}
    if isinstance(value, list | tuple):
        return [document_of(item, writers) for item in value]
    return str(value) if isinstance(value, Enum) else value
