# SPDX-License-Identifier: Apache-2.0
"""Read a table once for both its change and the rows that match changes of other tables.

Without this a refresh of a join reads a large changed table twice: for its deleted rows, and for the rows that join
with what changed elsewhere. Both are few rows of the same files.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType

from airflow_mv.job.context import MAX_LOCAL_ROWS, JobContext, columns_of
from airflow_mv.quoting import quote
from airflow_mv.script import DeltaStep

#: Iceberg's metadata columns.
PLACE = _FILE, _POSITION = "_file", "_pos"
DELETED = "_deleted"
#: The driver holds at most so many positions of deleted rows.
_MOST_POSITIONS = 200_000
#: The matching rows are kept: at most about one in so many of the table's rows, as of the other table's.
_ONE_IN = 20


def gathered(context: JobContext, step: DeltaStep, diff: Any, reading: Any) -> tuple[DataFrame, int, str] | None:
    """Read the rows of a step and those that match, and create the step's further views.

    Args:
        context: The context of the run.
        step: The step.
        diff: The Java helper with the tasks of both snapshots.
        reading: The Java table for the reading of tasks.

    Returns:
        The rows, how many they are, and the column with each one's number of copies in the change (0 for a row of both
        snapshots); ``None`` if the table is to be read in the usual way.
    """
    match = _match(context, step)
    if (
        match is None
        or diff.removed().size()
        or not diff.after().size()
        or {DELETED, _FILE, _POSITION} & {*step.columns}
    ):
        return None
    newly = newly_deleted(context, diff) if diff.deleting(diff.before()).size() else None
    if newly is None and diff.deleting(diff.before()).size():
        return None
    table = diff.readingDeletes()
    if table is None:
        return None
    names = _free(step.columns)
    frame = context.query(_statement(context, step, diff, (table, reading), match, names))
    held, count = context.kept(frame)
    if newly is not None:
        state = F.col(quote(names[0]))
        of_then = held.where(state == -1).join(F.broadcast(newly.toDF(*names[1:])), on=names[1:], how="left_semi")
        held, count = context.kept(held.where(state != -1).unionAll(of_then.select(*held.columns)), count)
    kept = held.drop(*names[1:])
    for version, view in step.near_views:
        is_there = F.col(quote(names[0])) >= 0 if version == "new" else F.col(quote(names[0])) <= 0
        context.view(view, kept.where(is_there).select(*map(quote, step.columns)))
        context.gathered.add(view)
    return kept, count, names[0]


def newly_deleted(context: JobContext, diff: Any) -> DataFrame | None:
    """Return the files and positions of the rows that only the new snapshot has deleted; ``None`` if not known.

    Args:
        context: The context of the run.
        diff: The Java helper with the tasks of both snapshots.
    """
    found = diff.newlyDeleted(_MOST_POSITIONS)
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


def _free(columns: Sequence[str]) -> list[str]:
    """Return names for the number of copies, the file and the position, that no column has."""
    prefix = "__"
    while any(name.lower().startswith(prefix) for name in columns):
        prefix += "_"
    return [f"{prefix}{name}" for name in ("copies", "file", "pos")]


def _statement(
    context: JobContext, step: DeltaStep, diff: Any, tables: tuple[Any, Any], match: str, names: Sequence[str]
) -> str:
    """Return the query for the rows: of files with other deletes, of new files, of files that are the same."""
    columns, where = columns_of(step.columns), f"({step.where})" if step.where else "true"
    copies, file, position = map(quote, names)
    deleting, reading = tables
    marked = context.staged(deleting, diff.after()).select(*map(quote, (*step.columns, DELETED, _FILE, _POSITION)))
    parts = [
        f"SELECT {columns}, IF({DELETED}, -1, 0) AS {copies}, {_FILE} AS {file}, {_POSITION} AS {position}\n"
        f"FROM {_named(context, marked)} WHERE ({DELETED} AND {where}) OR {match}"
    ]
    for tasks, number, condition in ((diff.added(), 1, f"{where} OR {match}"), (_same(context, step, diff), 0, match)):
        if tasks.size():
            rows = context.staged(reading, tasks).select(*map(quote, step.columns))
            parts.append(f"SELECT {columns}, {number}, NULL, NULL FROM {_named(context, rows)} WHERE {condition}")
    return "\nUNION ALL\n".join(parts)


def _same(context: JobContext, step: DeltaStep, diff: Any) -> Any:
    """Return the tasks of unchanged files that may have matching rows, by the files' statistics."""
    bounds = context.java("java.util.ArrayList")()
    for column, view, other in step.near:
        changed = context.spark.table(view)
        if not isinstance(changed.schema[other].dataType, IntegerType | LongType):
            return diff.same()
        # They are few, and the driver holds them: an aggregation would be a job.
        values = {row[0] for row in context.query(f"SELECT {quote(other)} FROM {view}").collect()} - {None}
        if values:
            bound = context.java("java.util.ArrayList")()
            for item in (column, context.long(min(values)), context.long(max(values))):
                bound.add(item)
            bounds.add(bound)
    return diff.sameWithin(bounds)


def _named(context: JobContext, frame: DataFrame) -> str:
    name = quote(f"airflow_mv_read_{uuid.uuid4().hex[:12]}")
    context.view(name, frame)
    return name
