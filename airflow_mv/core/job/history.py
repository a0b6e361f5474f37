# SPDX-License-Identifier: Apache-2.0
"""The snapshots, log and references of a table, by metadata tables, for sessions that cannot load a Java table.

Over Spark Connect each query is a job of some 100 ms, so one query reads all that is wanted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from itertools import takewhile

from pyspark.sql import SparkSession

from airflow_mv.core.job.context import JobContext, as_frame

_SELECTS = {
    "snapshots": "SELECT 'snapshots' AS kind, snapshot_id, parent_id, operation AS text, summary, "
    "CAST(NULL AS INT) AS schema",
    "log": "SELECT 'log', latest_snapshot_id, NULL, file, NULL, latest_schema_id",
    "references": "SELECT 'references', snapshot_id, NULL, name, NULL, NULL",
}
#: The metadata table of each of them.
_TABLES = {"snapshots": "snapshots", "log": "metadata_log_entries", "references": "refs"}


@dataclass(frozen=True, slots=True)
class KnownSnapshot:
    """A snapshot as the metadata table ``snapshots`` has it."""

    parent: int | None
    operation: str | None
    summary: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LoggedFile:
    """A metadata file in a table's log.

    Args:
        file: Its location.
        snapshot: The snapshot that was the latest one.
        schema: The id of this snapshot's schema.
    """

    file: str
    snapshot: int | None
    schema: int | None


@dataclass(frozen=True, slots=True)
class History:
    """A table's history, as its metadata has it.

    Args:
        snapshots: By their ids.
        log: The metadata files, the current one last. By timestamp it may not be, because writers' clocks differ.
            Empty if it was not read.
        references: The snapshots of branches and tags, by name. Empty if they were not read.
    """

    snapshots: Mapping[int, KnownSnapshot]
    log: tuple[LoggedFile, ...]
    references: Mapping[str, int]

    def ancestors(self, snapshot: int | None) -> Iterator[int]:
        """Yield a snapshot and those before it, newest first, as far as they have not expired."""
        while snapshot is not None and snapshot in self.snapshots:
            yield snapshot
            snapshot = self.snapshots[snapshot].parent

    def line(self, start: int, end: int) -> list[int] | None:
        """Return the snapshots after ``start`` up to ``end``, newest first; ``None`` if they are not all ancestors."""
        line = list(takewhile(lambda snapshot: snapshot != start, self.ancestors(end)))
        first = self.snapshots[line[-1]].parent if line else end
        return line if first == start else None


def begin(context: JobContext, table: str, pool: Executor, *, log: bool) -> None:
    """Begin to read the history of a base table, for :func:`history`.

    Args:
        context: The run, over Spark Connect.
        table: Quoted Spark name.
        pool: Reads it.
        log: Whether the log is also wanted.
    """
    context.histories[table] = pool.submit(read_history, context.spark, table, *_parts(log=log))


def history(context: JobContext, table: str, *, log: bool = True) -> History:
    """Return the history of a base table without its references, read once in a run.

    Args:
        context: The run, which keeps it.
        table: Quoted Spark name.
        log: Whether the log is also wanted.
    """
    found = context.histories.get(table)
    if isinstance(found, Future):
        found = found.result()
    if not isinstance(found, History) or (log and not found.log):
        found = read_history(context.spark, table, *_parts(log=log))
    context.histories[table] = found
    return found


def _parts(*, log: bool) -> list[str]:
    return ["log"] if log else []


def read_history(spark: SparkSession, table: str, *more: str) -> History:
    """Read the present history of a table.

    Args:
        table: Quoted Spark name.
        more: ``log`` and ``references``, if they are wanted beside the snapshots.
    """
    selects = (f"{_SELECTS[part]} FROM {table}.{_TABLES[part]}" for part in ("snapshots", *more))
    rows = as_frame(spark, " UNION ALL ".join(selects)).collect()
    snapshots, log, references = ([row for row in rows if row.kind == kind] for kind in _SELECTS)
    return History(
        {row.snapshot_id: KnownSnapshot(row.parent_id, row.text, row.summary or {}) for row in snapshots},
        tuple(LoggedFile(row.text, row.snapshot_id, row.schema) for row in log),
        {row.text: row.snapshot_id for row in references},
    )
