# SPDX-License-Identifier: Apache-2.0
"""Record which stored rows were computed from which snapshots: those of a full refresh, and later intervals.

A partial refresh is never recorded as a complete one. Its record keeps the snapshots that the last whole refresh read,
and the intervals that were refreshed separately since. These do not overlap: a new interval replaces the parts of older
ones that it covers. Adjacent intervals with the same snapshots are merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_mv.core.spec.interval import Interval
from airflow_mv.core.spec.materialized_view import BaseTable, RefreshRecord


@dataclass(frozen=True, slots=True)
class IntervalPart:
    """Stored rows that were computed from one set of snapshots.

    Args:
        interval: Which rows; ``None`` for all rows that are in no recorded interval.
        base_tables: The base tables and snapshots that they were computed from.
        refresh_id: The refresh that computed them.
        refreshed_at_ms: When it was published, ms since the epoch.
        computed: Whether they were ever computed.
    """

    interval: Interval | None
    base_tables: tuple[BaseTable, ...]
    refresh_id: str
    refreshed_at_ms: int | None
    computed: bool = True

    @property
    def origin(self) -> tuple[tuple[str, int], ...]:
        """The snapshots. Parts with the same origin are as if one refresh had computed them."""
        return tuple(sorted((table.identifier, table.snapshot_reference) for table in self.base_tables))


def parts_of(record: RefreshRecord) -> tuple[IntervalPart, ...]:
    """Return all parts of the stored rows; the one outside of all intervals first."""
    rest = IntervalPart(
        None, record.base_tables, record.refresh_id, record.refreshed_at_ms, computed=not record.only_intervals
    )  # fmt: skip
    return (rest, *_intervals(record))


def parts_in(record: RefreshRecord, interval: Interval) -> tuple[IntervalPart, ...]:
    """Return the parts that may hold rows of an interval."""
    rest, *recorded = parts_of(record)
    left, within = [interval], []
    for part in recorded:
        other = part.interval
        if other is None or other.column != interval.column:
            return (rest, *recorded)  # each may hold rows of it
        if other.overlaps(interval):
            within.append(part)
            left = [piece for item in left for piece in item.without(other)]
    return (rest, *within) if left else tuple(within)


def after(record: RefreshRecord | None, interval: Interval, new: IntervalPart) -> list[dict[str, Any]]:
    """Return the recorded intervals, as documents, after one more was refreshed.

    Args:
        record: The current record before the refresh; ``None`` if there is none. Its intervals have the same column.
        interval: The refreshed interval.
        new: The origin of its rows.
    """
    pieces = [
        (piece, part)
        for part in (_intervals(record) if record else ())
        if part.interval is not None
        for piece in part.interval.without(interval)
    ]
    pieces = sorted([*pieces, (interval, new)], key=lambda item: item[0].start)
    if record is not None and not record.only_intervals:
        # Rows at the whole refresh's snapshots need no separate entry.
        whole = parts_of(record)[0].origin
        pieces = [(piece, part) for piece, part in pieces if part.origin != whole]
    return [_document(piece, part) for piece, part in _joined(pieces)]


def bounds(interval: Interval) -> dict[str, Any]:
    """Return an interval as a record stores it."""
    return {"column": interval.column, "start-us": interval.start_us, "end-us": interval.end_us}


def _joined(pieces: Sequence[tuple[Interval, IntervalPart]]) -> list[tuple[Interval, IntervalPart]]:
    joined: list[tuple[Interval, IntervalPart]] = []
    for interval, part in pieces:
        if joined and joined[-1][0].end == interval.start and joined[-1][1].origin == part.origin:
            last, before = joined[-1]
            newest = max(before, part, key=lambda item: item.refreshed_at_ms or 0)
            joined[-1] = (replace(last, end=interval.end), newest)
        else:
            joined.append((interval, part))
    return joined


def _intervals(record: RefreshRecord) -> tuple[IntervalPart, ...]:
    return tuple(
        IntervalPart(item.interval, item.base_tables, item.refresh_id, item.refreshed_at_ms)
        for item in record.intervals
    )


def _document(interval: Interval, part: IntervalPart) -> dict[str, Any]:
    return {
        **bounds(interval),
        "refresh-id": part.refresh_id,
        **({} if part.refreshed_at_ms is None else {"refreshed-at-ms": part.refreshed_at_ms}),
        "base-tables": [table.document() for table in part.base_tables],
    }
