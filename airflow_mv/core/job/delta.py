# SPDX-License-Identifier: Apache-2.0
"""Compute the net change of a base table between two snapshots, with the cheapest exact method.

The change of a bag is independent of the table's history: the rows of the scan tasks that only the new
snapshot has, minus those that only the old one has. Files that both read with the same deletes cancel unread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import reduce
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DoubleType, FloatType, MapType, StructField, StructType

from airflow_mv.core.job.analysis import check_reads, contains
from airflow_mv.core.job.changed_files import ChangedRows, Changelog, Entries, changed_files, changelog
from airflow_mv.core.job.context import (
    MAX_LOCAL_ROWS,
    ROWS,
    ComputedRows,
    JobContext,
    cause,
    incomparable,
    list_of,
    matching,
    unlike,
)
from airflow_mv.core.job.equivalence import check_equivalent
from airflow_mv.core.job.foreign import ChangeRead, format_of
from airflow_mv.core.job.gather import DELETED, PLACE, gathered, newly_deleted
from airflow_mv.core.job.history import begin, history
from airflow_mv.core.job.pruning import aggregates_of, bounds_of, within
from airflow_mv.core.job.row_lineage import CountedRows, RewrittenFiles
from airflow_mv.core.script import WEIGHT, Delta, DeltaStep, DeterminismStep, Step
from airflow_mv.core.spec.identifiers import quote
from airflow_mv.errors import IncrementalRefusedError

#: Types whose equal values may still be distinguishable.
_EQUAL_YET_OTHER = ("float", "double", "map")
_FLOATING = re.compile("float|double")
#: How Spark's plans mark a function that is not built in.
_OWN_FUNCTIONS = ("SQL_SCALAR_FUNCTION", "PYTHON_UDF", "SCALA_UDF")
#: A change of at most so many bytes is sent to all executors where it is joined. Each value is counted as this many.
_BROADCAST_BYTES, _VALUE_BYTES = 16 * 2**20, 20
_NO_GROUPS = ("variant", "geometry", "geography", "calendarinterval")


@dataclass(frozen=True, slots=True)
class _Appends:
    """Appends, as metadata tables show them.

    Args:
        schema: The table's columns at the last snapshot.
        counts: Files, bytes and rows; ``None`` if unknown.
    """

    schema: StructType
    counts: Sequence[int] | None


def check_deterministic(context: JobContext, step: DeterminismStep) -> None:
    """Refuse a query that is not deterministic, or whose regenerated SQL is not equivalent.

    Raises:
        IncrementalRefusedError: Codes ``not-deterministic``, ``user-function``, ``plan-differs``.
        InvalidQueryError: It reads something other than its base tables.
    """
    frame = check_reads(context, step.query)
    if step.again:
        check_equivalent(context, step, frame)
    if context.jvm is None:
        return  # Only the server has the analysed plan. The planner's list of functions is used instead.
    plan: Any = frame._jdf.queryExecution().analyzed()
    if any(contains(context, plan, name) for name in _OWN_FUNCTIONS):
        message = "the query calls a user-defined function, which may have been replaced by another definition"
        raise IncrementalRefusedError("user-function", message)
    current = contains(context, plan, "CURRENT_LIKE")
    # 'now' and 'today' are strings until they are cast.
    special = context.java.find("org.apache.spark.sql.catalyst.optimizer.SpecialDatetimeValues")
    current = current or not special.apply(plan).fastEquals(plan)
    if current or not plan.deterministic():
        raise IncrementalRefusedError(
            "not-deterministic",
            "the query returns other rows at each run: it uses rand(), current_timestamp() or the like",
        )


def make_delta(context: JobContext, step: DeltaStep) -> None:
    """Make the temporary views of a :class:`~airflow_mv.core.script.DeltaStep`.

    Raises:
        IncrementalRefusedError: As :func:`net_change`.
    """
    context.view(step.view, net_change(context, step))
    for version, view in step.near_views:
        if view not in context.gathered:
            snapshot = step.end if version == "new" else step.start
            rows = _pinned(context, replace(step, where="" if snapshot is not None else "false"), snapshot, 1)
            context.view(view, hiding_floats(rows.drop(WEIGHT)))


def net_change(context: JobContext, step: DeltaStep) -> DataFrame:
    """Return the rows of a :class:`~airflow_mv.core.script.DeltaStep`, with their signed counts.

    Rows that no query can distinguish cancel each other: all NaN are equal; -0.0 and 0.0 differ, and so do two orders
    of a map's entries.

    Raises:
        IncrementalRefusedError: Codes ``snapshot-missing``, ``schema-changed``, ``column-type``, ``delta-failed``,
            ``rows-removed``.
    """
    read = _read_or_refuse(context, step)
    frame, facts = (read.frame if read.net else cancelled(read.frame, step)), read.facts
    in_doubt = step.only_added and not read.added
    if in_doubt or not (read.net and read.sized and step.uses == 1):
        aggregates = aggregates_of(frame.schema, step.joined) if step.bounded else ()
        with _partitions(context, step, read):
            held = context.kept(frame, facts.rows_read if read.most is None else read.most, aggregates)
        facts = replace(facts, rows=held.rows)
        frame = _to_join(context, step, held)
    else:
        frame = hiding_floats(frame)
    if in_doubt and frame.where(F.col(quote(WEIGHT)) < 0).limit(1).collect():
        raise IncrementalRefusedError(
            "rows-removed", f"{step.table}: rows were removed, but its snapshot summaries report none"
        )
    context.deltas.append(facts)
    context.changes[step.view] = facts.rows
    return frame


def hiding_floats(frame: DataFrame) -> DataFrame:
    """Return the same rows, into whose scan Spark pushes no comparison of floating-point values.

    Bounds of files leave out NaN, and distinguish -0.0 from 0.0, which Spark does not. So a file that is skipped by
    them may have rows that pass. The product with 1 is the same value.
    """
    floats = {field.name: field.dataType for field in frame.schema if _FLOATING.search(field.dataType.simpleString())}
    flat = {name: kind for name, kind in floats.items() if isinstance(kind, FloatType | DoubleType)}
    ones = {name: (F.col(quote(name)) * F.lit(1.0).cast(kind)).alias(name) for name, kind in flat.items()}
    hidden = frame.select(*(ones.get(name, F.col(quote(name))) for name in frame.columns)) if ones else frame
    return hidden if len(flat) == len(floats) else hidden.where(F.spark_partition_id() >= 0)


def _to_join(context: JobContext, step: DeltaStep, held: ComputedRows) -> DataFrame:
    """Return the held rows of a change with what Spark needs to join them with large tables.

    That is their bounds, which Spark applies to the other side of a join too, and that they are few.
    """
    frame = held.frame
    known = bounds_of(frame.schema, step.joined, held.aggregates) if held.aggregates else {}
    all_pass = within(known, frame.schema)
    if all_pass:
        if held.rows <= MAX_LOCAL_ROWS:
            # Spark would apply a predicate to a local relation at once, and not know of it where it plans the join.
            frame = context.held(frame.localCheckpoint(eager=False))
        frame = frame.where(all_pass)
    # Spark takes the size of the files that were read for the size of the rows that were held.
    return F.broadcast(frame) if _size(step, held.rows) <= _BROADCAST_BYTES else frame


def _size(step: DeltaStep, rows: int) -> int:
    """Return about how many bytes so many rows of a change have."""
    return rows * len(step.columns) * _VALUE_BYTES


def _read_or_refuse(context: JobContext, step: DeltaStep) -> ChangeRead:
    try:
        return _read(context, step)
    except (AnalysisException, IncrementalRefusedError):
        raise
    except Exception as error:
        # Errors of the library's own code, such as a missing manifest, reach Python as py4j's error.
        message = f"{step.table}: its change cannot be read: {cause(error)}"
        raise IncrementalRefusedError("delta-failed", message) from error


def read_ahead(context: JobContext, steps: Iterable[Step]) -> None:
    """Begin to read in threads what the steps will ask of the metadata of base tables, while the run continues.

    Args:
        context: The run, over Spark Connect.
    """
    of_iceberg = [step for step in _of_base_tables(context, steps) if format_of(step.table) is None]
    if not of_iceberg:
        return
    pool = ThreadPoolExecutor(2)  # what is read of the files of one table does not wait for its history
    for table in dict.fromkeys(step.table for step in of_iceberg):
        begin(context, table, pool, log=any(_reads_log(step) for step in of_iceberg if step.table == table))
    for step in of_iceberg:
        needs_metadata = step.kind == "append" or _uses_metadata_tables(step)
        if step.start is not None and step.end not in (None, step.start) and needs_metadata:
            context.read_ahead[step.view] = pool.submit(_read_metadata, context, step, step.start, step.end)
    pool.submit(lambda: context.cores)
    pool.shutdown(wait=False)  # the threads end after the last one


def _of_base_tables(context: JobContext, steps: Iterable[Step]) -> Iterator[DeltaStep]:
    """Yield the steps that read changes of tables that exist before the run.

    Other steps register the tables of nested views, from files that do not change.
    """
    for step in steps:
        if isinstance(step, DeltaStep) and not context.is_staged(step.table):
            yield step


def _reads_log(step: DeltaStep) -> bool:
    return step.kind != "append"


def check_snapshots(context: JobContext, steps: Iterable[Step]) -> None:
    """Refuse steps whose snapshots have expired since the plan, before the first step runs.

    Raises:
        IncrementalRefusedError: Code ``snapshot-missing``.
    """
    for step in _of_base_tables(context, steps):
        wanted = {snapshot for snapshot in (step.start, step.end) if snapshot is not None}
        missing = wanted - _known(context, step, wanted)
        if missing:
            raise _expired(step, missing.pop())


def _known(context: JobContext, step: DeltaStep, wanted: Iterable[int]) -> set[int]:
    if (tables := format_of(step.table)) is not None:
        return {version for version in wanted if tables.has_version(context, step.table, version)}
    if context.jvm is not None:
        java = context.java.table(step.table)
        return {snapshot for snapshot in wanted if java.snapshot(snapshot) is not None}
    return set(history(context, step.table, log=_reads_log(step)).snapshots)


def _expired(step: DeltaStep, snapshot: int) -> IncrementalRefusedError:
    return IncrementalRefusedError("snapshot-missing", f"{step.table}: snapshot {snapshot} has expired")


def _partitions(context: JobContext, step: DeltaStep, read: ChangeRead) -> AbstractContextManager[None]:
    facts = read.facts
    if read.held:
        return context.sized_for(_size(step, read.most or 0))
    known = facts.old_tasks + facts.new_tasks
    return context.sized_for(facts.old_bytes + facts.new_bytes) if known else nullcontext()


def _read(context: JobContext, step: DeltaStep) -> ChangeRead:
    if step.start == step.end:
        return no_change(context, step, Delta(step.table, rows_read=0))
    if step.start is None or step.end is None:
        sign, snapshot = (-1, step.start) if step.end is None else (1, step.end)
        return ChangeRead(_pinned(context, step, snapshot, sign), Delta(step.table, ("whole",)))
    if (tables := format_of(step.table)) is not None:
        return tables.change(context, step, step.start, step.end)
    if not context.lists_tasks:
        return _without_tasks(context, step, step.start, step.end)
    if step.kind == "values":
        return _values(context, step)
    return _by_tasks(context, step, step.start, step.end)


def _without_tasks(context: JobContext, step: DeltaStep, start: int, end: int) -> ChangeRead:
    """Read the change where scan tasks cannot be listed."""
    if step.kind == "append":
        return _append_by_summaries(context, step, start, end)
    try:
        found = _by_metadata_tables(context, step, start, end) if _uses_metadata_tables(step) else None
    except AnalysisException:
        found = None  # those of another version of Iceberg have other columns
    return found or _values(context, step)


def _by_metadata_tables(context: JobContext, step: DeltaStep, start: int, end: int) -> ChangeRead | None:
    """Read the files in which two snapshots differ, or ``None`` if all rows have to be compared."""
    found = _metadata_of(context, step, start, end)
    if isinstance(found, Changelog):
        frame = signed(found.frame, step, found.weight)
        (old, new) = found.removed, found.added
        facts = Delta(step.table, ("changelog",), old[0], new[0], old[1], new[1], rows_read=old[2] + new[2])
        return ChangeRead(frame, facts, net=False)
    parts = changed_files(context, found)
    return None if parts is None else _of_parts(context, step, parts)


def _uses_metadata_tables(step: DeltaStep) -> bool:
    """Whether the change of a step follows from the metadata tables."""
    return step.kind not in ("append", "values")


def _metadata_of(context: JobContext, step: DeltaStep, start: int, end: int) -> Any:
    """Return what :func:`_read_metadata` returns, which may have been read ahead."""
    begun = context.read_ahead.pop(step.view, None)
    return _read_metadata(context, step, start, end) if begun is None else begun.result()


def _read_metadata(context: JobContext, step: DeltaStep, start: int, end: int) -> _Appends | Changelog | Entries:
    """Read which files were appended, or in which files two snapshots differ.

    It changes nothing in the session.
    """
    if step.kind == "append":
        return _Appends(context.at(step.table, end).schema, _summarized_appends(context, step, start, end))
    # Tables with delete files have no changelog.
    found = changelog(context, step.table, start, end) if step.merge_on_read_files is None else None
    return found or Entries(context, step, (start, end))


def _of_parts(context: JobContext, step: DeltaStep, parts: Sequence[ChangedRows]) -> ChangeRead:
    """Return the union of rows that may differ."""
    if not parts:
        return no_change(context, step, Delta(step.table, rows_read=0))
    frame = _all_of(step, [signed(part.frame, step, part.sign) for part in parts])
    old, new = ([part for part in parts if part.sign == sign] for sign in (-1, 1))
    facts = Delta(
        step.table,
        tuple(sorted({"deleted" if part.certain else "files" for part in parts})),
        old_tasks=sum(part.files for part in old),
        new_tasks=sum(part.files for part in new),
        old_bytes=sum(part.bytes for part in old),
        new_bytes=sum(part.bytes for part in new),
        rows_read=sum(part.rows for part in parts),
    )
    most = sum(part.most for part in parts)
    # The rows of one side cannot cancel each other. A few that are read once are not fetched by the client first.
    return ChangeRead(frame, facts, net=not (old and new), sized=most <= MAX_LOCAL_ROWS, most=most)


# ---------------------------------------------------------------------------------------- plain reads


def _pinned(context: JobContext, step: DeltaStep, snapshot: int | None, sign: int) -> DataFrame:
    version = f" VERSION AS OF {snapshot}" if snapshot is not None else ""
    where = f" WHERE {step.where}" if step.where else ""
    items = ", ".join([*map(quote, step.columns), f"{sign} AS {quote(WEIGHT)}"])
    frame = context.query(f"SELECT {items} FROM {step.table}{version} AS {quote(ROWS)}{where}")
    if context.jvm is None:
        _ = frame.schema  # analysed now: it is known here why the table cannot be read
    return frame


def no_change(context: JobContext, step: DeltaStep, facts: Delta) -> ChangeRead:
    """Return the read of a change without rows."""
    return ChangeRead(_pinned(context, replace(step, where="false"), step.end, 1), replace(facts, rows=0), added=True)


def _values(context: JobContext, step: DeltaStep) -> ChangeRead:
    both = _all_of(step, [_pinned(context, step, step.start, -1), _pinned(context, step, step.end, 1)])
    return ChangeRead(both, Delta(step.table, ("values",)), net=False)


def _all_of(step: DeltaStep, frames: Sequence[DataFrame]) -> DataFrame:
    """Return all rows of frames of two snapshots.

    Raises:
        IncrementalRefusedError: Code ``schema-changed``: a nested column has other fields. Spark would unite them by
            their places.
    """
    if len(frames) > 1 and len({tuple(map(_nested_type, frame.schema.fields)) for frame in frames}) > 1:
        message = f"{step.table}: the nested fields of a column differ between the two snapshots"
        raise IncrementalRefusedError("schema-changed", message)
    return reduce(DataFrame.unionAll, frames)


def _nested_type(field: StructField) -> str:
    nested = isinstance(field.dataType, ArrayType | MapType | StructType)
    return field.dataType.simpleString() if nested else ""


def _append(
    context: JobContext,
    step: DeltaStep,
    counts: Sequence[int] | None,
    bounds: Mapping[str, Sequence[Any]] | None = None,
) -> ChangeRead:
    """Read the files that were appended.

    Args:
        counts: Files, bytes and rows in the snapshots' summaries.
        bounds: Bounds of some columns in the files' statistics, see :func:`~airflow_mv.core.job.pruning.within`.
    """
    reader = context.spark.read.option("start-snapshot-id", str(step.start)).option("end-snapshot-id", str(step.end))
    facts = Delta(step.table, ("append",))
    if counts is not None:
        files, size, rows = counts
        facts = replace(facts, new_tasks=files, new_bytes=size, rows_read=rows, rows=rows)
    frame = reader.table(step.table)
    all_pass = within(bounds, frame.schema) if bounds else None
    return ChangeRead(signed(frame.where(all_pass) if all_pass else frame, step, 1), facts, added=True)


def _append_by_summaries(context: JobContext, step: DeltaStep, start: int, end: int) -> ChangeRead:
    """Read the appended files without access to the Java table (Spark Connect)."""
    found: _Appends = _metadata_of(context, step, start, end)
    if context.at(step.table, None).schema != found.schema:
        # The scan of appends has the current columns. The plan has made sure that equal names mean the same columns.
        raise IncrementalRefusedError("schema-changed", f"{step.table}: its columns changed after the plan")
    return _append(context, step, found.counts)


def _summarized_appends(context: JobContext, step: DeltaStep, start: int, end: int) -> Sequence[int] | None:
    """Return files, bytes and rows of a step's appends from the snapshots' summaries, without access to the Java table.

    Returns:
        ``None`` if a summary lacks them.

    Raises:
        IncrementalRefusedError: Code ``snapshot-missing``.
    """
    past = history(context, step.table, log=False)
    line = past.line(start, end)
    if line is None:
        raise IncrementalRefusedError("snapshot-missing", f"{step.table}: a snapshot of the appends has expired")
    appended = [past.snapshots[item].summary for item in line if past.snapshots[item].operation == "append"]
    numbers = [_appended(summary) for summary in appended]
    if any(number is None for row in numbers for number in row):
        return None
    return [sum(filter(None, column)) for column in zip(*numbers, strict=True)] if numbers else [0, 0, 0]


def _appended(summary: Mapping[str, str]) -> list[int | None]:
    """Return files, bytes and rows of an append; ``None`` for what its summary lacks."""
    texts = [summary.get(key, "") for key in ("added-data-files", "added-files-size", "added-records")]
    numbers = [int(text) if text.isdecimal() else None for text in texts]
    return [0 if numbers[0] == 0 and number is None else number for number in numbers]


def signed(frame: DataFrame, step: DeltaStep, sign: int | Column) -> DataFrame:
    """Return the wanted rows and columns of a frame, each row with a signed count."""
    frame = matching(frame, step.where)
    if isinstance(sign, Column):
        return frame.select(*(F.col(quote(name)) for name in step.columns), sign.alias(WEIGHT))
    return frame.selectExpr(*map(quote, step.columns), f"{sign} AS {quote(WEIGHT)}")


def cancelled(frame: DataFrame, step: DeltaStep) -> DataFrame:
    """Return each row value once with the sum of its counts, unless it is 0.

    Raises:
        IncrementalRefusedError: Code ``column-type``.
    """
    for field in frame.schema.fields:
        if (kind := incomparable(field.dataType, _NO_GROUPS)) is not None:
            raise IncrementalRefusedError(
                "column-type", f"{step.table}: the values of column {field.name} ({kind}) cannot be compared"
            )
    weight = F.col(quote(WEIGHT))
    exact = [name for name in step.columns if incomparable(frame.schema[name].dataType, _EQUAL_YET_OTHER) is None]
    other = [name for name in step.columns if name not in exact]
    # GROUP BY treats -0.0 and 0.0, and maps in any order, as equal. A query can distinguish them.
    own = unlike(step.columns)
    texts = [F.col(quote(name)).cast("string").alias(f"{own}text{number}") for number, name in enumerate(other)]
    values = [F.first(F.col(quote(name))).alias(name) for name in other]
    keys = [F.col(quote(name)) for name in exact]
    same = [_ordered(frame, name).alias(f"{own}same{number}") for number, name in enumerate(other)]
    summed = frame.groupBy(*keys, *same, *texts)
    found = summed.agg(*values, F.sum(weight).cast("int").alias(WEIGHT)).where(weight != 0)
    return found.select(*(F.col(quote(name)) for name in (*step.columns, WEIGHT)))


def _ordered(frame: DataFrame, name: str) -> Column:
    """Return the expression to group a column by. For a map it is its list of entries: Spark sorts maps first."""
    column = F.col(quote(name))
    return F.map_entries(column) if isinstance(frame.schema[name].dataType, MapType) else column


# ----------------------------------------------------------------------------------------- scan tasks


def _by_tasks(context: JobContext, step: DeltaStep, start: int, end: int) -> ChangeRead:
    table = context.java.table(step.table)
    for snapshot in (start, end):
        if table.snapshot(snapshot) is None:
            raise _expired(step, snapshot)
    if not context.java.reads_tasks(table) or not context.java.compiles("SnapshotDiff", table):
        return _without_tasks(context, step, start, end)
    diff = context.java.helper("SnapshotDiff", table, context.java.long(start), context.java.long(end))
    context.totals[step.view] = int(diff.total())
    if (problem := diff.problem(list_of(context, step.columns), list_of(context, step.partial))) is not None:
        raise IncrementalRefusedError("schema-changed", f"{step.table}: {problem}")
    if step.kind == "append" and diff.appendsCanBeScanned():
        found = diff.appendedBounds(list_of(context, step.joined)) if step.joined else "[]"
        bounds = json.loads(found, parse_float=Decimal)
        return _append(context, step, diff.appended(), dict(zip(step.joined, bounds, strict=True)))
    diff.plan()
    return _Tasks(context, step, diff, table).read()


class _Tasks:
    """The rows of the scan tasks that only one of two snapshots has."""

    def __init__(self, context: JobContext, step: DeltaStep, diff: Any, table: Any) -> None:
        self.context, self.step, self.diff = context, step, diff
        self.removed, self.added, self.before, self.after = diff.removed(), diff.added(), diff.before(), diff.after()
        self.version = int(self.context.java.find("org.apache.iceberg.TableUtil").formatVersion(table))
        self.rewritten = RewrittenFiles(context, step, diff, table, self.version)
        self.read_by: list[str] = []

    def read(self) -> ChangeRead:
        """Return the signed union of the rows that must be read."""
        if (together := self._gathered()) is not None:
            self.read_by += ["gathered", "lineage"] if self.removed.size() else ["gathered"]
            return self._counted(together)
        deleted = [*self._deleted()]
        if (rows := self.rewritten.changed()) is not None:
            self.read_by.append("lineage")
            if not deleted:
                return self._counted(rows)
            parts = [*deleted, self._changed(rows)]
        else:
            parts = [*deleted, *self._files()]
        facts = self._facts()
        if not parts:
            return no_change(self.context, self.step, facts)
        if self.read_by == ["diff"] and not self.removed.size():
            facts = replace(facts, rows=facts.rows_read)
        only_added = not (self.removed.size() or self.before.size() or self.after.size())
        frame = reduce(DataFrame.unionAll, parts)
        return ChangeRead(frame, facts, net=len(parts) == 1, sized=self.read_by == ["diff"], added=only_added)

    def _gathered(self) -> CountedRows | None:
        """The rows of the change, if the further views of the step are created from the same scan."""
        if not self.step.near:
            return None
        return gathered(self.context, self.step, self.diff, self.diff.reading(self.version), self.rewritten)

    def _counted(self, rows: CountedRows) -> ChangeRead:
        return ChangeRead(self._changed(rows), self._facts(), net=not self.added.size(), most=rows.count, held=True)

    def _changed(self, rows: CountedRows) -> DataFrame:
        copies = F.col(quote(rows.copies))
        # The rows have passed the step's condition, and may lack the columns for it.
        return signed(rows.frame.where(copies != 0), replace(self.step, where=""), copies)

    def _facts(self) -> Delta:
        return Delta(
            self.step.table,
            tuple(self.read_by),
            old_tasks=self.removed.size() + self.before.size(),
            new_tasks=self.added.size() + self.after.size(),
            old_bytes=self.diff.bytes(self.removed) + self.diff.bytes(self.before),
            new_bytes=self.diff.bytes(self.added) + self.diff.bytes(self.after),
            rows_read=sum(self.diff.rows(tasks) for tasks in (self.removed, self.added, self.after)),
        )

    def _deleted(self) -> Iterator[DataFrame]:
        """Files of both snapshots with different deletes: newly deleted rows count -1, no longer deleted rows +1."""
        table = self.diff.readingDeletes() if self.after.size() else None
        if table is None:
            return
        self.read_by.append("deleted")
        newly = newly_deleted(self.context, self.diff) if self.diff.deleting(self.before).size() else None
        if newly is not None and not set(PLACE) & set(self.step.columns):
            # Both snapshots have the older deletes, so the files are read once.
            deleted = self.context.java.staged(table, self.after).where(F.col(DELETED))
            placed = deleted.select(*(F.col(quote(name)) for name in self.step.columns), *map(F.col, newly.columns))
            yield signed(placed.join(F.broadcast(newly), on=newly.columns, how="left_semi"), self.step, -1)
            return
        for tasks, sign in ((self.after, -1), (self.before, 1)):
            deleting = self.diff.deleting(tasks)
            if deleting.size():
                frame = self.context.java.staged(table, deleting).where(F.col(DELETED))
                yield signed(frame, self.step, sign)

    def _files(self) -> Iterator[DataFrame]:
        """All rows of files that only one snapshot has."""
        if self.removed.size() or self.added.size():
            self.read_by.append("diff")
        table = self.diff.reading(self.version)
        for tasks, sign in ((self.removed, -1), (self.added, 1)):
            if tasks.size():
                yield signed(self.context.java.staged(table, tasks), self.step, sign)
