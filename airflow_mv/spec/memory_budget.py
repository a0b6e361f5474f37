# SPDX-License-Identifier: Apache-2.0
"""Decode parts of large documents within a memory budget: larger parts are refused before they are decoded."""

from __future__ import annotations

from typing import TypeVar

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
