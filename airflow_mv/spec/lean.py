# SPDX-License-Identifier: Apache-2.0
"""Decode parts of large documents within a memory budget: larger parts are refused before they are decoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

import msgspec

from airflow_mv.documents import check_marks
from airflow_mv.spec.stored import is_wide

T = TypeVar("T")

#: The most bytes of memory that the decoded parts of one document may take.
BUDGET = 176 * 1024 * 1024
#: The largest part that is decoded with all of its content.
_MOST_BYTES = 32 * 1024 * 1024
#: The most marks between the values of a part that is decoded with all of its content.
_MOST_MARKS = 1_500_000
#: The most keys that the items of a lazy sequence may have together.
_MOST_KEYS = 4_000_000
#: The least bytes of memory that an object, a key with its value, and any value of a part take.
_OBJECT, _KEY, _VALUE = 120, 160, 60


class LazyItems(Sequence[T], Generic[T]):
    """Items of a JSON array that are decoded at each access.

    Args:
        items: The texts of the items.
        decoder: Decodes one.
    """

    def __init__(self, items: Sequence[msgspec.Raw], decoder: msgspec.json.Decoder[T]) -> None:
        self._items = items
        self._decoder = decoder

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...

    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return LazyItems(self._items[index], self._decoder)
        return self._decoder.decode(self._items[index])

    def __iter__(self) -> Iterator[T]:
        return map(self._decoder.decode, self._items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


class Budget:
    """The memory budget of the parts of one document."""

    def __init__(self) -> None:
        self._left = BUDGET

    def decode(self, raw: msgspec.Raw, decoder: msgspec.json.Decoder[T], *, generic: bool = False) -> T:
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
        self._take(len(text) * (4 if is_wide(text) else 1) + values)
        return decoder.decode(text)

    def lazy(self, raw: msgspec.Raw, decoder: msgspec.json.Decoder[T], whole: bytes | bytearray) -> Sequence[T]:
        """Decode the items of a large array one by one, and keep none of them; decode a small one at once.

        Args:
            raw: Its text.
            decoder: The decoder of an item.
            whole: The document that contains the array. Marks are counted in it, which gives an upper bound, because
                counting in the array would need a copy of it.

        Raises:
            ValueError: It would take too much memory, or too long.
        """
        keys, objects = whole.count(b":"), whole.count(b"{")
        if keys > _MOST_KEYS:
            raise ValueError(f"more than {_MOST_KEYS} keys")
        self._take(_OBJECT * objects)
        _OBJECTS.decode(raw)  # so there are no more items than objects
        items = LazyItems(_RAWS.decode(raw), decoder)
        cost = _KEY * keys + len(whole) * (4 if is_wide(whole) else 1)
        if cost < self._left // 2:
            self._take(cost)
            return list(items)
        for _ in items:  # each item is decoded, so that errors are found now
            pass
        return items

    def _take(self, amount: int) -> None:
        self._left -= amount
        if self._left < 0:
            raise ValueError("it would take too much memory")


class _Object(msgspec.Struct, gc=False):
    """Any JSON object; its content is not kept."""


_OBJECTS = msgspec.json.Decoder(list[_Object])
_RAWS: Any = msgspec.json.Decoder(list[msgspec.Raw])
