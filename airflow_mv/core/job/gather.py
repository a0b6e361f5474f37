# SPDX-License-Identifier: Apache-2.0
"""Read a table once for both its change and the rows that match changes of other tables.

Without this a refresh of a join reads a large changed table twice: for its deleted rows, and for the rows that join
with what changed elsewhere. Both are few rows of the same files.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType

from airflow_mv.core.job.context import MAX_LOCAL_ROWS, JobContext, columns_of, unlike
from airflow_mv.core.job.row_lineage import CountedRows, RewrittenFiles
from airflow_mv.core.script import DeltaStep
from airflow_mv.core.spec.identifiers import quote

#: Iceberg's metadata columns.
PLACE = _FILE, _POSITION = "_file", "_pos"
DELETED = "_deleted"
#: The driver holds at most so many positions of deleted rows.
_MAX_POSITIONS = 200_000
#: The matching rows are kept: at most about one in so many of the table's rows, as of the other table's.
_ONE_IN = 20


def gathered(
    context: JobContext, step: DeltaStep, diff: Any, reading: Any, rewritten: RewrittenFiles
) -> CountedRows | None:
    """Read the rows of a step and those that match, and create the step's further views.

    Args:
        diff: The Java helper with the tasks of both snapshots.
        reading: The Java table for the reading of tasks.
        rewritten: Reads the rewritten files among them.

    Returns:
        ``None`` if the table is to be read in the usual way.
    """
    match = _match(context, step)
    if match is None or {DELETED, *PLACE} & {*step.columns}:
        return None
    reads = _reads(context, step, diff, rewritten)
    if reads is None:
        return None
    names = [f"{unlike(step.columns)}{name}" for name in ("copies", "file", "pos")]
    parts = _Parts(context, step, match, names)
    found, queries = reads.rewritten, [*_queries(parts, diff, reading, reads)]
    if found is None or queries:
        queries += [] if found is None else [parts.counted(found)]
        found = _held(context, queries, reads.newly, names)
    # Else the scanned rows are all: they are held already, and a view may have more rows than match.
    copies = F.col(quote(found.copies))
    for version, view in step.near_views:
        is_there = copies >= 0 if version == "new" else copies <= 0
        context.view(view, found.frame.where(is_there).select(*map(quote, step.columns)))
        context.gathered.add(view)
    return replace(found, frame=found.frame.where(parts.where))


def _held(context: JobContext, queries: Sequence[str], newly: DataFrame | None, names: Sequence[str]) -> CountedRows:
    """Run the queries.

    Args:
        queries: For the rows, with three further columns.
        newly: Which of the deleted rows count; ``None`` for all.
        names: The further columns, see :class:`_Parts`.
    """
    held = context.kept(context.query("\nUNION ALL\n".join(queries)))
    if newly is not None:
        rows, copies, file = held.frame, *map(F.col, map(quote, names[:2]))
        # Removed rows of rewritten files have no file here: they are removed for certain.
        by_position = (copies == -1) & file.isNotNull()
        deleted = rows.where(by_position).join(F.broadcast(newly.toDF(*names[1:])), on=[*names[1:]], how="left_semi")
        held = context.kept(rows.where(~by_position).unionAll(deleted.select(*rows.columns)), held.rows)
    return CountedRows(held.frame.drop(*names[1:]), names[0], held.rows)


def newly_deleted(context: JobContext, diff: Any) -> DataFrame | None:
    """Return the files and positions of the rows that only the new snapshot has deleted; ``None`` if unknown.

    Args:
        diff: The Java helper with the tasks of both snapshots.
    """
    found = diff.newlyDeleted(_MAX_POSITIONS)
    if found is None:
        return None
    schema = context.spark.createDataFrame([], f"{_FILE} STRING, {_POSITION} BIGINT")._jdf.schema()
    return DataFrame(context.spark._jsparkSession.createDataFrame(found, schema), context.spark)


def _match(context: JobContext, step: DeltaStep) -> str | None:
    """Return the condition of the matching rows; ``None`` if they may be too many."""
    parts = []
    for column, view, other in step.near:
        rows, total = context.changes.get(view), context.totals.get(view, -1)
        if rows is None or rows > MAX_LOCAL_ROWS or rows * _ONE_IN > total:
            return None
        parts.append(f"{quote(column)} IN (SELECT /*+ BROADCAST(`__d`) */ `__d`.{quote(other)} FROM {view} AS `__d`)")
    return " OR ".join(parts) or None


@dataclass(frozen=True, slots=True)
class _Reads:
    """How the files with changed rows are read, other than new ones.

    Args:
        deleting: The Java table to read deleted rows with, if files have other deletes than before.
        newly: Which of these rows are deleted in the new snapshot only, if some are in both.
    """

    deleting: Any
    newly: DataFrame | None
    rewritten: CountedRows | None


def _reads(context: JobContext, step: DeltaStep, diff: Any, rewritten: RewrittenFiles) -> _Reads | None:
    """Return how the files are read; ``None`` if their rows do not show the change, or no row was removed."""
    deleting, newly, found = None, None, None
    if diff.after().size():
        deleted_before = bool(diff.deleting(diff.before()).size())
        newly = newly_deleted(context, diff) if deleted_before else None
        deleting = diff.readingDeletes() if newly is not None or not deleted_before else None
        if deleting is None:
            return None
    if diff.removed().size():
        wanted = [(column, context.spark.table(view).select(quote(other))) for column, view, other in step.near]
        found = rewritten.changed(wanted)
        if found is None:
            return None
    return None if deleting is None and found is None else _Reads(deleting, newly, found)


def _queries(parts: _Parts, diff: Any, reading: Any, reads: _Reads) -> Iterator[str]:
    """Yield the queries for the rows of all files but the rewritten ones with row ids."""
    if reads.deleting is not None:
        yield parts.deleted(reads.deleting, diff.after())
    if reads.rewritten is None and diff.added().size():
        yield parts.all_of(reading, diff.added(), 1)
    same = _same(parts.context, parts.step, diff)
    if same.size():
        yield parts.all_of(reading, same, 0)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The queries for the rows of the change and those that match, with the columns of the step and three more.

    Args:
        match: The condition of those that match.
        names: The further columns: the number of copies, and the file and the position of a row that may be deleted.
    """

    context: JobContext
    step: DeltaStep
    match: str
    names: Sequence[str]

    @property
    def where(self) -> str:
        return f"({self.step.where or 'true'})"

    def deleted(self, table: Any, tasks: Any) -> str:
        """The rows of files with other deletes than before."""
        rows = self.context.java.staged(table, tasks).select(*map(quote, self.step.columns), DELETED, *PLACE)
        return self._query(rows, (f"IF({DELETED}, -1, 0)", *PLACE), f"{DELETED} AND {self.where}")

    def counted(self, rows: CountedRows) -> str:
        """The rows of rewritten files."""
        copies = quote(rows.copies)
        return self._query(rows.frame, (copies, "NULL", "NULL"), f"{copies} <> 0 AND {self.where}")

    def all_of(self, table: Any, tasks: Any, copies: int) -> str:
        """The rows of files of the new snapshot.

        Args:
            table: The Java table to read with.
            tasks: Its scan tasks.
            copies: 1 if the old snapshot does not have the files, else 0.
        """
        rows = self.context.java.staged(table, tasks).select(*map(quote, self.step.columns))
        return self._query(rows, (str(copies), "NULL", "NULL"), self.where if copies else "false")

    def _query(self, rows: DataFrame, more: Sequence[str], changed: str) -> str:
        name = quote(f"airflow_mv_read_{uuid.uuid4().hex[:12]}")
        self.context.view(name, rows)
        items = zip(more, ("INT", "STRING", "BIGINT"), map(quote, self.names), strict=True)
        added = ", ".join(f"CAST({item} AS {kind}) AS {named}" for item, kind, named in items)
        return f"SELECT {columns_of(self.step.columns)}, {added} FROM {name} WHERE ({changed}) OR {self.match}"


def _same(context: JobContext, step: DeltaStep, diff: Any) -> Any:
    """Return the tasks of unchanged files that may have matching rows, by the files' statistics."""
    bounds = context.java.find("java.util.ArrayList")()
    for column, view, other in step.near:
        changed = context.spark.table(view)
        if not isinstance(changed.schema[other].dataType, IntegerType | LongType):
            return diff.same()
        # They are few, and the driver holds them: an aggregation would be a job.
        values = {row[0] for row in context.query(f"SELECT {quote(other)} FROM {view}").collect()} - {None}
        if values:
            bound = context.java.find("java.util.ArrayList")()
            for item in (column, context.java.long(min(values)), context.java.long(max(values))):
                bound.add(item)
            bounds.add(bound)
    return diff.sameWithin(bounds)
