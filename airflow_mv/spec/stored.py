# SPDX-License-Identifier: Apache-2.0
"""Read stored JSON documents into frozen values and write them back, with precise errors.

Reading any bytes either returns a value or raises one :class:`~airflow_mv.errors.InvalidMetadataError` that names the
source and the field.
"""

from __future__ import annotations

import json
import math
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NoReturn, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, ValidationError

from airflow_mv.documents import MAX_MARKS, MAX_TEXT_BYTES, check_marks
from airflow_mv.errors import InvalidMetadataError

#: Largest metadata file that is read, in bytes, after decompression. A table with 100,000 snapshots
#: needs about 100 MB; a compression bomb wants more.
MAX_BYTES = 128 * 1024 * 1024
#: Largest view metadata file: Python's JSON objects take ten times the size of their text.
MAX_VIEW_BYTES = 12 * 1024 * 1024
#: The most marks in it, see :data:`airflow_mv.documents.MAX_MARKS`.
MAX_VIEW_MARKS = 250_000
#: Largest document that is decoded as a whole, in bytes: a storage table with 14,000 snapshots needs 14 MB.
MAX_DOCUMENT_BYTES = 64 * 1024 * 1024
#: The same, where a character may take four bytes in memory.
MAX_WIDE_BYTES = 24 * 1024 * 1024
#: The most marks in it, see :data:`airflow_mv.documents.MAX_MARKS`.
MAX_DOCUMENT_MARKS = 700_000
_PIECE = 1024 * 1024
#: Further errors are only counted, because describing each one takes a kilobyte.
_MOST_DESCRIBED = 10_000
_LONGEST_SHOWN = 300


def _each(*kinds: type) -> Callable[[Any], Any]:
    """Return a check that stops at the first value of another type. Pydantic would collect all, a kilobyte for each."""

    def check(value: Any) -> Any:
        if isinstance(value, Mapping) and len(value) > _MOST_DESCRIBED:
            for key, item in value.items():
                if type(item) not in kinds:
                    raise ValueError(f"the value of {shown(str(key))!r} is of type {type(item).__name__}")
        return value

    return check


#: A field that is a tuple. Its validation stops at the first error.
FirstFault = FailFast()
Texts = Annotated[Mapping[str, str], BeforeValidator(_each(str))]
Numbers = Annotated[Mapping[str, float], BeforeValidator(_each(int, float))]
Long = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Int = Annotated[int, Field(ge=0, le=2**31 - 1)]


def kebab(name: str) -> str:
    """Convert a Python field name to the formats' style: ``refresh_id`` becomes ``refresh-id``."""
    return name.replace("_", "-")


class StoredModel(BaseModel):
    """A frozen record of a stored format: kebab-case keys, strict types, unknown fields kept."""

    model_config = ConfigDict(alias_generator=kebab, extra="allow", frozen=True, strict=True)

    @classmethod
    def read(cls, raw: object, *, source: str) -> Self:
        """Validate a decoded JSON value.

        Args:
            raw: The decoded value.
            source: Names the view and the file or property, for the message.

        Raises:
            InvalidMetadataError: Names the first field that is missing or wrong.
        """
        try:
            # JSON has no tuples: strict mode would refuse its lists, so validate as JSON input.
            return cls.model_validate_json(json.dumps(raw))
        except ValidationError as error:
            raise InvalidMetadataError(f"{source}: {describe(error)}") from None
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidMetadataError(f"{source}: {error}") from None

    def document(self) -> dict[str, Any]:
        """Return the JSON object, unknown fields included; fields that were not set are left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


def describe(error: ValidationError) -> str:
    """Describe the first invalid field, e.g. ``field refreshes.0.version-id: Field required``."""
    if error.error_count() > _MOST_DESCRIBED:
        return f"{error.error_count()} fields are missing or wrong"
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    path = shown(".".join(str(step) for step in first["loc"])) or "(top level)"
    more = error.error_count() - 1
    return f"field {path!r}: {shown(first['msg'])}" + (f" (and {more} more)" if more else "")


def shown(text: str) -> str:
    """Shorten an untrusted text for a message."""
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def decode(
    data: bytes, *, source: str, limit: int = MAX_DOCUMENT_BYTES, marks: int = MAX_DOCUMENT_MARKS
) -> dict[str, Any]:
    """Decode a metadata file: gzip or plain, UTF-8 JSON, one object.

    Args:
        data: The file.
        source: For messages.
        limit: The most bytes that it may have after decompression.
        marks: See :func:`decode_text`.

    Raises:
        InvalidMetadataError: The data is anything else; the message names ``source``.
    """
    return decode_text(unpacked(data, source, limit), source=source, limit=limit, marks=marks)


def decode_text(
    text: bytes | bytearray | str, *, source: str, limit: int = MAX_TEXT_BYTES, marks: int = MAX_MARKS
) -> dict[str, Any]:
    """Decode one JSON object.

    Args:
        text: Its text.
        source: For messages.
        limit: The most bytes that it may have.
        marks: The most marks between its values.

    Raises:
        InvalidMetadataError: Not JSON, not an object, ``NaN``, too deep, too large, or a key twice.
    """
    check_size(text, source, limit)
    try:
        check_marks(text, marks)
        plain = text if isinstance(text, str) else text.decode("utf-8")
        raw = json.loads(plain, parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        detail = "nested too deeply" if isinstance(error, RecursionError) else shown(str(error))
        raise InvalidMetadataError(f"{source}: not valid JSON: {detail}") from None
    if not isinstance(raw, dict):
        raise InvalidMetadataError(f"{source}: expected a JSON object, found {type(raw).__name__}")
    return raw


def check_size(text: bytes | bytearray | str, source: str, limit: int) -> None:
    """Refuse a text that would take too much memory when it is decoded.

    Raises:
        InvalidMetadataError: It is larger than ``limit`` bytes, or than the limit for text with characters that take
            more than a byte.
    """
    size = len(text)
    if isinstance(text, str) and size <= limit and not text.isascii():
        size = len(text.encode("utf-8", "surrogatepass"))
    allowed = limit if size <= MAX_WIDE_BYTES or not is_wide(text) else min(limit, MAX_WIDE_BYTES)
    if size > allowed:
        raise InvalidMetadataError(f"{source}: larger than {allowed} bytes")


def is_wide(text: bytes | bytearray | str) -> bool:
    """Whether a JSON text may contain characters that take more than a byte in memory."""
    if not text.isascii():
        return True
    if isinstance(text, str):
        return text.count("\\u") > text.count("\\u00")
    if b"\\" not in text:  # much faster than to count
        return False
    return text.count(b"\\u") > text.count(b"\\u00")


def encode(document: dict[str, Any]) -> bytes:
    """Write a document as the plain JSON bytes of a metadata file.

    Raises:
        InvalidMetadataError: It is nested too deeply.
    """
    try:
        return json.dumps(document, separators=(",", ":")).encode("ascii")
    except RecursionError:
        raise InvalidMetadataError("a metadata document is nested too deeply to be written") from None


def whole_number(text: str, default: int) -> int:
    """Read a whole number of a setting or a file name, ``default`` for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else default


def unpacked(data: bytes, source: str, limit: int = MAX_BYTES) -> bytes | bytearray:
    """Return a file's bytes, decompressed if they are gzip data. Bytes after the gzip data are ignored.

    Raises:
        InvalidMetadataError: Broken or truncated gzip data, or more than ``limit`` bytes.
    """
    if data[:2] == b"\x1f\x8b":
        return _decompressed(data, source, limit)
    if len(data) > limit:
        raise InvalidMetadataError(f"{source}: larger than {limit} bytes")
    return data


def _decompressed(data: bytes, source: str, limit: int) -> bytearray:
    """Decompress piece by piece. Stops at the limit, so that a compression bomb does no harm."""
    stream, text, position = zlib.decompressobj(wbits=31), bytearray(), 0
    try:
        while not stream.eof:
            waiting = stream.unconsumed_tail or data[position : position + _PIECE]
            position += 0 if stream.unconsumed_tail else _PIECE
            if not waiting:
                raise InvalidMetadataError(f"{source}: truncated gzip data")
            text += stream.decompress(waiting, _PIECE)
            if len(text) > limit:
                raise InvalidMetadataError(f"{source}: larger than {limit} bytes")
    except zlib.error as error:
        raise InvalidMetadataError(f"{source}: broken gzip data: {error}") from None
    return text


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"the number {digits[:40]} is out of range")
    return number


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"key {twice[:80]!r} occurs twice")
    return document
