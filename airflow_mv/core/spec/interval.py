# SPDX-License-Identifier: Apache-2.0
"""Intervals of time: as requested, and as a range of a view's interval column."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from airflow_mv.core.spec.times import parse_timestamp

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Span:
    """An interval of time as requested.

    Args:
        start: Its first moment, an aware time.
        end: The first moment after it; ``None`` for the end of the storage table's partition that starts there.
        column: The view's interval column; by default the one in the view's property.
    """

    start: datetime
    end: datetime | None
    column: str | None = None

    def __str__(self) -> str:
        return f"[{_shown(self.start)}, {_shown(self.end) if self.end else 'end of its partition'})"


@dataclass(frozen=True, slots=True)
class Interval:
    """The rows of a view whose interval column lies between two times. NULL lies in no interval.

    Args:
        start: Its first moment, in UTC.
        end: The first moment after it, in UTC.
    """

    column: str
    start: datetime
    end: datetime

    @classmethod
    def of_micros(cls, column: str, start_us: int, end_us: int) -> Interval:
        """Return the interval between two times in µs since the epoch.

        Raises:
            ValueError, OverflowError: It is empty, or a time is out of the range of dates.
        """
        start, end = (_EPOCH + timedelta(microseconds=value) for value in (start_us, end_us))
        if start >= end:
            raise ValueError(f"the interval from {start_us} to {end_us} is empty")
        return cls(column, start, end)

    @property
    def start_us(self) -> int:
        """Its start in µs since the epoch."""
        return (self.start - _EPOCH) // _MICROSECOND

    @property
    def end_us(self) -> int:
        """Its end in µs since the epoch."""
        return (self.end - _EPOCH) // _MICROSECOND

    def overlaps(self, other: Interval) -> bool:
        """Whether the intervals, which have the same column, overlap."""
        return self.start < other.end and other.start < self.end

    def without(self, other: Interval) -> tuple[Interval, ...]:
        """Return this interval without another one of the same column: no piece, one or two."""
        if not self.overlaps(other):
            return (self,)
        before = (replace(self, end=other.start),) if self.start < other.start else ()
        after = (replace(self, start=other.end),) if other.end < self.end else ()
        return (*before, *after)

    def to_dict(self) -> dict[str, str]:
        """Return the JSON form in plans, results and histories; :meth:`from_dict` reads it back."""
        return {"column": self.column, "start": self.start.isoformat(), "end": self.end.isoformat()}

    @classmethod
    def from_dict(cls, document: dict[str, str]) -> Interval:
        """Read what :meth:`to_dict` wrote.

        Raises:
            KeyError, TypeError, ValueError: It is not such a document.
        """
        start, end = (parse_timestamp(document[key]).astimezone(UTC) for key in ("start", "end"))
        if start >= end:
            raise ValueError("an interval is empty")
        return cls(str(document["column"]), start, end)

    def __str__(self) -> str:
        return f"{self.column} in [{_shown(self.start)}, {_shown(self.end)})"


def _shown(moment: datetime) -> str:
    """Return a time as text; midnight in UTC is shown as a date."""
    text = moment.isoformat()
    return text.removesuffix("T00:00:00+00:00") if text.endswith("T00:00:00+00:00") else text
