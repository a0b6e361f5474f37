# SPDX-License-Identifier: Apache-2.0
"""Read stored JSON documents into frozen values and write them back, with precise errors.

Reading any bytes either returns a value or raises one :class:`~airflow_mv.errors.InvalidMetadataError` that names the
source and the field.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Annotated, Any, Generic, NoReturn, Self, TypeVar, overload

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, ValidationError

from airflow_mv.errors import InvalidMetadataError, NewerFormatError
from airflow_mv.foundation.documents import MAX_MARKS, MAX_TEXT_BYTES, check_marks

#: Largest metadata file that is read, in bytes, after decompression. A table with 100,000 snapshots
#: needs about 100 MB; a compression bomb wants more.
MAX_BYTES = 128 * 1024 * 1024
#: Largest view metadata file: Python's JSON objects take ten times the size of their text.
MAX_VIEW_BYTES = 12 * 1024 * 1024
#: The most marks in it, see :data:`airflow_mv.foundation.documents.MAX_MARKS`.
MAX_VIEW_MARKS = 250_000
#: Largest document that is decoded as a whole, in bytes: a storage table with 14,000 snapshots needs 14 MB.
MAX_DOCUMENT_BYTES = 64 * 1024 * 1024
#: The same, where a character may take four bytes in memory.
MAX_WIDE_BYTES = 24 * 1024 * 1024
#: The most marks in it, see :data:`airflow_mv.foundation.documents.MAX_MARKS`.
MAX_DOCUMENT_MARKS = 700_000
_PIECE = 1024 * 1024
#: Further errors are only counted, because describing each one takes a kilobyte.
_MAX_DESCRIBED = 10_000
_MAX_SHOWN_LENGTH = 300


def _each(*kinds: type) -> Callable[[Any], Any]:
    """Return a check that stops at the first value of another type. Pydantic would collect all, a kilobyte for each."""

    def check(value: Any) -> Any:
        if isinstance(value, Mapping) and len(value) > _MAX_DESCRIBED:
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
            NewerFormatError: It has a value or fields that this version does not know.
        """
        try:
            # JSON has no tuples: strict mode would refuse its lists, so validate as JSON input.
            return cls.model_validate_json(json.dumps(raw))
        except ValidationError as error:
            if _is_newer(raw, error):
                raise newer(f"{source}: {describe(error)}") from None
            raise InvalidMetadataError(f"{source}: {describe(error)}") from None
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidMetadataError(f"{source}: {error}") from None

    def document(self) -> dict[str, Any]:
        """Return the JSON object, unknown fields included; fields that were not set are left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


def newer(what: str) -> NewerFormatError:
    """Return the error about metadata that a newer program wrote.

    Args:
        what: The view, the file and the field.
    """
    return NewerFormatError(f"{what}. A newer program wrote it, and it is not damaged: upgrade airflow-mv")


def _is_newer(raw: object, error: ValidationError) -> bool:
    """Whether a complete document does not match because its writer knew more than this version.

    Either a value is none of the known ones, or a required field is missing beside a field that no record has.
    """
    if error.error_count() > _MAX_DESCRIBED:
        return False
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    if first["type"] != "missing":
        return first["type"] == "literal_error"
    parent: Any = raw
    try:
        for step in first["loc"][:-1]:
            parent = parent[step]
    except (LookupError, TypeError):  # a step may name a kind of records instead of a field
        return False
    known = {kebab(field) for record in StoredModel.__subclasses__() for field in record.model_fields}
    return isinstance(parent, Mapping) and not parent.keys() <= known


def describe(error: ValidationError) -> str:
    """Describe the first invalid field, e.g. ``field refreshes.0.version-id: Field required``."""
    if error.error_count() > _MAX_DESCRIBED:
        return f"{error.error_count()} fields are missing or wrong"
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    path = shown(".".join(str(step) for step in first["loc"])) or "(top level)"
    more = error.error_count() - 1
    return f"field {path!r}: {shown(first['msg'])}" + (f" (and {more} more)" if more else "")


def shown(text: str) -> str:
    """Shorten an untrusted text for a message."""
    return text if len(text) <= _MAX_SHOWN_LENGTH else f"{text[:_MAX_SHOWN_LENGTH]}…"


def decode(
    data: bytes, *, source: str, limit: int = MAX_DOCUMENT_BYTES, marks: int = MAX_DOCUMENT_MARKS
) -> dict[str, Any]:
    """Decode a metadata file: gzip or plain, UTF-8 JSON, one object.

    Args:
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
        limit: The most bytes that it may have.
        marks: The most marks between its values.

    Raises:
        InvalidMetadataError: Not JSON, not an object, ``NaN``, too deep, too large, or a key twice.
    """
    check_size(text, source, limit)
    try:
        if len(text) > marks:
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


# ---------------------------------------------------------------------------------- large documents
# Parts of a large document are decoded within a memory budget, a long array of it piece by piece, and an item of the
# array only when it is used. No structure is taken from a search in the text: a search only proposes where to cut, and
# a parser proves it.
#
# - A piece is text after a place where an item begins. If the piece in brackets is a JSON array, the piece ends where
#   an item ends: a parser that has read valid items up to there is not inside of a text or of another object.
# - The array is replaced by a mark, and the document is parsed with it. If the parser reads the mark as the field's
#   value, a parser of the whole document reads the array there: what precedes both is the same.


T = TypeVar("T")

#: Bytes of a piece. The first stays in the processor's cache while it is copied and read; the others are for long items
#: and items that contain arrays of objects.
_PIECES = (64 * 1024, 512 * 1024, 4 * 1024 * 1024)
#: The most bytes of the last one, which is decoded with all of its content.
_MAX_LAST = 512 * 1024
#: The most places of a piece that are tried as its end.
_MAX_TRIES = 8
#: The most bytes of a document without its array.
_MAX_REST = 16 * 1024 * 1024
#: Items of more bytes are decoded within a budget of memory.
_LONG_ITEM = 256 * 1024
#: Bytes of memory for an item's key, its entry in a dictionary of keys, and its place.
_ITEM = 200
_SPACE = rb"[ \t\r\n]*+"
#: In a JSON text that is part of a document's text a backslash precedes the quotation mark.
_BETWEEN = re.compile(rb"\}" + _SPACE + rb"(,)" + _SPACE + rb"\{" + _SPACE + rb'"')
_SCANNER = json.JSONDecoder()
_RAWS: msgspec.json.Decoder[list[msgspec.Raw]] = msgspec.json.Decoder(list[msgspec.Raw])
#: Stands for an array that was cut out.
MARK = b'["cut out by airflow-mv"]'
#: The most bytes of memory that the decoded parts of one document may take.
BUDGET = 176 * 1024 * 1024
#: The largest part that is decoded with all of its content.
_MAX_BYTES = 32 * 1024 * 1024
#: The most marks between the values of a part that is decoded with all of its content.
_MAX_MARKS = 1_500_000
#: The least bytes of memory that an object, a key with its value, and any value of a part take.
_OBJECT, _KEY, _VALUE = 120, 160, 60


class Budget:
    """The memory budget of the parts of one document."""

    def __init__(self) -> None:
        self._left = BUDGET

    def decode(
        self, raw: msgspec.Raw | bytes | bytearray, decoder: msgspec.json.Decoder[T], *, generic: bool = False
    ) -> T:
        """Decode a part.

        Args:
            generic: Whether the decoder keeps all content.

        Raises:
            ValueError: It would take too much memory.
        """
        text = bytes(raw)
        if generic:
            if len(text) > _MAX_BYTES:
                raise ValueError(f"larger than {_MAX_BYTES} bytes")
            if len(text) > _MAX_MARKS:
                check_marks(text, _MAX_MARKS)
            values = _VALUE * sum(map(text.count, (b",", b":", b"{", b"[")))
        else:
            values = _OBJECT * text.count(b"{") + _KEY * text.count(b":")
        self.take(len(text) * (4 if is_wide(text) else 1) + values)
        return decoder.decode(text)

    def take(self, amount: int) -> None:
        """Subtract bytes of memory.

        Raises:
            ValueError: There are not so many left.
        """
        self._left -= amount
        if self._left < 0:
            raise ValueError("it would take too much memory")


class LazyItems(Sequence[T], Generic[T]):
    """Items of a JSON array. Each is decoded when it is used, so an item with a fault raises then.

    Args:
        text: The document.
        cuts: Where each piece begins, and the end of the last one.
        firsts: The number of the first item of each piece.
        keys: The items' keys.
        decoder: Decodes one item.
    """

    def __init__(
        self,
        text: bytes | bytearray,
        cuts: Sequence[int],
        firsts: Sequence[int],
        keys: Sequence[int],
        decoder: msgspec.json.Decoder[T],
        source: str,
    ) -> None:
        self._text, self._cuts, self._firsts, self.keys = text, cuts, firsts, keys
        self._decoder, self._source = decoder, source
        self._places: dict[int, Sequence[int]] = {}

    @cached_property
    def by_key(self) -> dict[int, int]:
        """The numbers of the items, by key; of equal keys the last one."""
        return dict(zip(self.keys, range(len(self.keys)), strict=True))

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...

    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        piece = bisect_right(self._firsts, number) - 1
        if piece not in self._places:
            self._places[piece] = self._places_in(piece)
        places, at = self._places[piece], 2 * (number - self._firsts[piece])
        return self._decoded(self._text[places[at] : places[at + 1]])

    def __iter__(self) -> Iterator[T]:
        for piece in range(len(self._firsts)):
            yield from map(self._decoded, _RAWS.decode(self._piece(piece)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def _piece(self, piece: int) -> bytes:
        # The last byte is the comma or bracket after the last item.
        return b"".join((b"[", self._text[self._cuts[piece] : self._cuts[piece + 1] - 1], b"]"))

    def _places_in(self, piece: int) -> Sequence[int]:
        """Return where each item of a piece begins and ends. Between two of them are a comma and spaces only."""
        places, position = array("q"), self._cuts[piece]
        for item in _RAWS.decode(self._piece(piece)):
            start = self._text.index(b"{", position)
            position = start + len(memoryview(item))
            places.extend((start, position))
        return places

    def _decoded(self, item: bytes | bytearray | msgspec.Raw) -> T:
        try:
            if len(memoryview(item)) > _LONG_ITEM:
                return Budget().decode(item, self._decoder)
            return self._decoder.decode(item)
        except (ValueError, RecursionError) as error:
            raise InvalidMetadataError(f"{self._source}: {error}") from None


@dataclass(frozen=True, slots=True)
class SplitDocument(Generic[T]):
    """A document without a long array.

    Args:
        rest: The document, with :data:`MARK` in place of the array. What was cut out is the field's value only if a
            parser of the rest finds the mark there.
        items: The array's items.
    """

    rest: bytes
    items: LazyItems[T]


def cut_out(
    text: bytes | bytearray,
    field: str,
    keys: msgspec.json.Decoder[list[Any]],
    decoder: msgspec.json.Decoder[T],
    *,
    budget: Budget,
    source: str,
) -> SplitDocument[T] | None:
    """Cut an array of objects out of a document; ``None`` if there is none, or none that can be read by pieces.

    Args:
        text: The document.
        field: The field with the array.
        keys: Decodes a list of items to objects with a whole number ``key``.
        decoder: Decodes one item.
        budget: The document's budget of memory.
        source: For messages about items.

    Raises:
        ValueError: It would take too much memory.
    """
    begin = re.search(rb'"%b"%b:%b(\[)' % (field.encode("ascii"), _SPACE, _SPACE), text)
    if begin is None:
        return None
    cuts, firsts, found = array("q", [begin.end()]), array("q"), array("q")
    closed = False
    while not closed:
        piece = _next_piece(text, cuts[-1], keys)
        if piece is None:
            return None
        items, end, closed = piece
        budget.take(_ITEM * len(items))
        firsts.append(len(found))
        found.extend([item.key for item in items])
        cuts.append(end)
    if len(text) - (cuts[-1] - begin.start(1)) > _MAX_REST:
        return None
    rest = b"".join((text[: begin.start(1)], MARK, text[cuts[-1] :]))
    budget.take(len(rest))
    if rest.count(MARK) != 1:
        return None
    return SplitDocument(rest, LazyItems(text, cuts, firsts, found, decoder, source))


def _next_piece(
    text: bytes | bytearray, start: int, keys: msgspec.json.Decoder[list[Any]]
) -> tuple[list[Any], int, bool] | None:
    """Return the items of the next piece, where the following one begins, and whether there is none."""
    for size in _PIECES:
        found = _BETWEEN.finditer(text, start + size, start + 2 * size)
        for between in islice(found, _MAX_TRIES):
            items = _items(text[start : between.start(1)], keys)
            if items is not None:
                return items, between.end(1), False
        end = _end_of_array(text[start : start + size]) if size <= _MAX_LAST else None
        if end is not None:
            items = _items(text[start : start + end], keys)
            return None if items is None else (items, start + end + 1, True)
    return None


def _items(piece: bytes | bytearray, keys: msgspec.json.Decoder[list[Any]]) -> list[Any] | None:
    try:
        return keys.decode(b"".join((b"[", piece, b"]")))
    except (ValueError, RecursionError):
        return None


def _end_of_array(rest: bytes | bytearray) -> int | None:
    """Return where the bracket is that closes an array, given the text after the one that opens it."""
    try:
        # The marks of JSON are ASCII, so a character for each byte is enough to find them.
        _, end = _SCANNER.raw_decode("[" + rest.decode("latin-1"))
    except (ValueError, RecursionError):
        return None
    return end - 2
