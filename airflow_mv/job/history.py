# SPDX-License-Identifier: Apache-2.0
"""The snapshots of a table and its log, by metadata tables, for sessions that cannot load a Java table.

Over Spark Connect each query is a round trip of some 50 ms, so both are read by one query, once in a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_mv.job.context import JobContext


@dataclass(frozen=True, slots=True)
class KnownSnapshot:
    """A snapshot as the metadata table ``snapshots`` has it."""

    parent: int | None
    operation: str | None
    summary: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class History:
    """What a table's metadata says about its past.

    Args:
        snapshots: By their ids.
        log: Of each metadata file, oldest first: the snapshot that was the latest one, and the id of its schema.
    """

    snapshots: Mapping[int, KnownSnapshot]
    log: tuple[tuple[int | None, int | None], ...]

    def line(self, start: int, end: int) -> list[int] | None:
        """Return the snapshots after ``start`` up to ``end``, newest first; ``None`` if they are not all ancestors."""
        line: list[int] = []
        snapshot: int | None = end
        while snapshot is not None and snapshot in self.snapshots and snapshot != start:
            line.append(snapshot)
            snapshot = self.snapshots[snapshot].parent
        return line if snapshot == start else None


def history(context: JobContext, table: str) -> History:
    """Return the history of a table.

    Args:
        context: The run, which keeps it.
        table: Quoted Spark name.
    """
    found = context.histories.get(table)
    if not isinstance(found, History):
        rows = context.query(
            "SELECT false AS logged, snapshot_id, parent_id, operation, summary, NULL AS schema "
            f"FROM {table}.snapshots UNION ALL SELECT true, latest_snapshot_id, NULL, NULL, NULL, latest_schema_id "
            f"FROM {table}.metadata_log_entries"
        ).collect()
        snapshots = {row[1]: KnownSnapshot(row[2], row[3], row[4] or {}) for row in rows if not row[0]}
        found = context.histories[table] = History(snapshots, tuple((row[1], row[5]) for row in rows if row[0]))
    return found
