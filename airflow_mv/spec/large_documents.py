# SPDX-License-Identifier: Apache-2.0
"""Decode large JSON documents: parts within a memory budget, and a long array piece by piece.

An item of the array is decoded only when it is used.
No structure is taken from a search in the text: a search only proposes where to cut, and a parser proves it.

- A piece is text after a place where an item begins. If the piece in brackets is a JSON array, the piece ends where an
  item ends: a parser that has read valid items up to there is not inside of a text or of another object.
- The array is replaced by a mark, and the document is parsed with it. If the parser reads the mark as the field's
  value, a parser of the whole document reads the array there: what precedes both is the same.
"""

from __future__ import annotations

import json
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Generic, TypeVar, overload

import msgspec

from airflow_mv.documents import check_marks
from airflow_mv.errors import InvalidMetadataError
from airflow_mv.spec.stored import is_wide

T = TypeVar("T")

#: Bytes of a piece. The first stays in the processor's cache while it is copied and read; the others are for long items
#: and items that contain arrays of objects.
_PIECES = (64 * 1024, 512 * 1024, 4 * 1024 * 1024)
#: The most bytes of the last one, which is decoded with all of its content.
_MOST_LAST = 512 * 1024
#: The most places of a piece that are tried as its end.
_MOST_TRIES = 8
#: The most bytes of a document without its array.
_MOST_REST = 16 * 1024 * 1024
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
_MOST_BYTES = 32 * 1024 * 1024
#: The most marks between the values of a part that is decoded with all of its content.
_MOST_MARKS = 1_500_000
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
            raw: Its text.
            decoder: Its decoder.
            generic: Whether the decoder keeps all content.

        Raises:
            ValueError: It would take too much memory.
        """
        text = bytes(raw)
        if generic:
            if len(text) > _MOST_BYTES:
                raise ValueError(f"larger than {_MOST_BYTES} bytes")
            check_marks(text, _MOST_MARKS)
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
        source: For messages.
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
    if len(text) - (cuts[-1] - begin.start(1)) > _MOST_REST:
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
        for between in islice(found, _MOST_TRIES):
            items = _items(text[start : between.start(1)], keys)
            if items is not None:
                return items, between.end(1), False
        end = _end_of_array(text[start : start + size]) if size <= _MOST_LAST else None
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
