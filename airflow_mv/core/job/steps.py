# SPDX-License-Identifier: Apache-2.0
"""Run a script's steps in order, or its fallback if an incremental refresh turns out to be impossible.

The first step may create the storage table, and at the end it is read what was written to it.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from pyspark.errors import (
    AnalysisException,
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    SparkRuntimeException,
)
from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StructField, StructType

from airflow_mv.core.job.analysis import check_reads, check_types
from airflow_mv.core.job.apply import merge_additive, replace_keys
from airflow_mv.core.job.context import JobContext, cause, incomparable, translated
from airflow_mv.core.job.delta import check_deterministic, check_snapshots, make_delta, read_ahead
from airflow_mv.core.job.history import read_history
from airflow_mv.core.script import (
    COMPLETE_KEY,
    FALLBACK_KEY,
    REFRESH_ID_KEY,
    SNAPSHOT_PROPERTY,
    CreateStorageStep,
    DeltaStep,
    DeterminismStep,
    MergeAdditiveStep,
    ReplaceKeysStep,
    RewriteStep,
    Script,
    SqlStep,
    Step,
    rows_changed,
    with_row_groups,
)
from airflow_mv.core.spec.identifiers import quote, string_literal
from airflow_mv.errors import IncrementalRefusedError, InvalidQueryError, JobError

#: Errors that a row's values can cause in an expression of the query.
OF_VALUES = (
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    SparkRuntimeException,
)
#: The same for errors without a Python class or with only Java's name: SQLSTATEs of data errors, errors of libraries.
_ABOUT_VALUES = re.compile(
    r"SQLSTATE: (?:2[12]|42601)|\): java\.(?:lang\.(?:IllegalArgument|Runtime)Exc|util\.regex\.)"
)
#: Set for a script's last statement, so that another run that finds the branch knows whether all statements have run.
COMPLETE = f"{SNAPSHOT_PROPERTY}{COMPLETE_KEY}"
#: Set to the code and the reason while the fallback runs, so that such a run also knows about the fallback.
FALLBACK = f"{SNAPSHOT_PROPERTY}{FALLBACK_KEY}"


def run_steps(
    context: JobContext, script: Script, seconds: list[float], report: Callable[[str], None]
) -> IncrementalRefusedError | None:
    """Run the steps, or the fallback's when one of them refuses.

    The one statement that writes comes last, so nothing is written when a step refuses.

    Args:
        script: The script, bound to the run.
        seconds: Receives the wall-clock seconds of each step.
        report: Called with a line before and after each step.

    Returns:
        The refusal, if the fallback ran.

    Raises:
        IncrementalRefusedError: A step refused, and the script has no fallback.
    """
    context.has_fallback = bool(script.fallback)
    if context.jvm is None:
        read_ahead(context, script.steps)
    try:
        _run_incremental(context, script, seconds, report)
    except IncrementalRefusedError as error:
        if not script.fallback:
            raise
        report(f"full refresh instead: {context.public(str(error))}")
        context.close()
        context.written_by = "statement"
        if script.branch is not None:
            context.spark.conf.set(COMPLETE, "false")
        reason = f"{error.code}: {context.found(error)['fallback_reason']}"
        with context.settings({FALLBACK: reason} if script.branch is not None else {}):
            _run_each(context, script, script.fallback, seconds, report)
        return error
    return None


def _run_incremental(context: JobContext, script: Script, seconds: list[float], report: Callable[[str], None]) -> None:
    try:
        _run_each(context, script, script.steps, seconds, report)
    except AnalysisException as error:
        if not script.incremental:
            raise
        # The statement is generated, not the user's: Spark refuses some subqueries that SQL allows.
        raise IncrementalRefusedError(
            "not-supported", f"Spark refuses a statement of the refresh: {cause(error)}"
        ) from error
    except IncrementalRefusedError:
        raise
    except Exception as error:
        found = translated(error)
        if not script.incremental or not fails_on_a_value(found):
            raise
        # The statement combines old and new rows, which never existed together. A full refresh may still succeed.
        raise IncrementalRefusedError("values", f"a statement fails on a value: {cause(found)}") from error
    finally:
        for line in context.java.can.slower() if context.jvm is not None else ():
            report(line)


def fails_on_a_value(error: Exception) -> bool:
    """Whether a statement failed on the values of some rows: with the same rows it fails again."""
    return isinstance(error, OF_VALUES) or _ABOUT_VALUES.search(str(error)) is not None


def _run_each(
    context: JobContext,
    script: Script,
    steps: Sequence[Step],
    seconds: list[float],
    report: Callable[[str], None],
) -> None:
    for number, step in enumerate(steps, 1):
        report(f"statement {number}/{len(steps)}: {brief(context.public(step.describe()))}")
        started = time.monotonic()
        if script.types and number == len(steps):
            check_types(context, script)
        if script.branch is not None and number == len(steps):
            context.before_last = partial(context.spark.conf.set, COMPLETE, "true")
        try:
            _run_step(context, step, steps)
        finally:
            seconds.append(round(time.monotonic() - started, 3))
        if number < len(steps):  # what the last step has taken is read with the outcome
            context.executors.read()
        report(f"statement {number}/{len(steps)}: {seconds[-1]:.1f} s")


def _run_step(context: JobContext, step: Step, steps: Sequence[Step]) -> None:
    match step:
        case SqlStep():
            _run_sql(context, step)
        case CreateStorageStep():
            context.write(create_table(context, step, check_reads(context, step.query).schema))
        case DeterminismStep():
            _check(context, step, steps)
        case DeltaStep():
            make_delta(context, step)
        case ReplaceKeysStep():
            replace_keys(context, step)
        case MergeAdditiveStep():
            merge_additive(context, step)
        case RewriteStep():
            context.written_by = "rewrite"
            context.run(step.describe())


def _check(context: JobContext, step: DeterminismStep, steps: Sequence[Step]) -> None:
    """Check the query and the snapshots, before any incremental step.

    Over Spark Connect the histories are read meanwhile. An expired snapshot is the reason for an error of the query.
    """
    try:
        check_deterministic(context, step)
    finally:
        check_snapshots(context, steps)


def _run_sql(context: JobContext, step: SqlStep) -> None:
    if step.registers and context.jvm is not None:
        name, location = step.registers
        context.sql = step.sql
        context.java.staging_catalog(context.staging).registerTable(context.java.staged_identifier(name), location)
        return
    if step.query:
        check_reads(context, step.query)
    if step.view:
        context.forget_later(step.view)
    context.write(step.sql)


def brief(sql: str) -> str:
    """Return the first line of a statement, shortened."""
    line = " ".join(sql.strip().splitlines()[:1])
    line = f"{line} …" if len(sql.strip().splitlines()) > 1 else line
    return line if len(line) <= 160 else f"{line[:159]}…"


# -------------------------------------------------------------------------------- the storage table


_SINCE_VERSION_3 = ("variant", "geometry", "geography")


def create_table(context: JobContext, step: CreateStorageStep, schema: StructType) -> str:
    """Return the CREATE TABLE of a storage table with the columns of a query.

    Raises:
        InvalidQueryError: A column has no type, or two have one name.
    """
    counts = Counter(field.name.lower() for field in schema.fields)
    for field in schema.fields:
        if counts[field.name.lower()] > 1:
            raise InvalidQueryError(f"the query has two columns named {field.name!r}: give one another name with AS")
        if isinstance(field.dataType, NullType):
            raise InvalidQueryError(
                f"the column {field.name!r} is always NULL and has no type: give it one with CAST(NULL AS …)"
            )
    given = with_row_groups(step.properties, len(schema.fields))
    if any(_since_version_3(field, staged=context.is_staged(step.table)) for field in schema.fields):
        given["format-version"] = "3"
    pairs = ", ".join(f"{string_literal(key)} = {string_literal(value)}" for key, value in given.items())
    properties = f" TBLPROPERTIES ({pairs})" if pairs else ""
    partitioning = f" PARTITIONED BY ({', '.join(step.partition_by)})" if step.partition_by else ""
    location = f" LOCATION {string_literal(step.location)}" if step.location else ""
    comments = dict(step.comments)
    columns = (_column(field, " ", comments.get(field.name)) for field in schema.fields)
    return f"CREATE TABLE {step.table} ({', '.join(columns)}) USING iceberg{partitioning}{location}{properties}"


def _column(field: StructField, separator: str, comment: str | None = None) -> str:
    """Return the SQL of a column or a struct field. It is nullable, like a view's columns."""
    comment = field.metadata.get("comment") if comment is None else comment
    text = f" COMMENT {string_literal(str(comment))}" if comment else ""
    return f"{quote(field.name)}{separator}{_type(field.dataType)}{text}"


def _since_version_3(field: StructField, *, staged: bool) -> bool:
    """Whether a column's type, or a nested type, needs Iceberg's format version 3.

    Raises:
        InvalidQueryError: It does, and the table is to be registered in the catalog, where pyiceberg must read it.
    """
    kind = incomparable(field.dataType, _SINCE_VERSION_3)
    if kind is not None and not staged:
        raise InvalidQueryError(
            f"the column {field.name!r} has the type {kind}, with which pyiceberg cannot read a table of the catalog: "
            "use the layout 'pointed', or cast the column to another type"
        )
    return kind is not None


def _type(kind: DataType) -> str:
    # simpleString() quotes no field name.
    if isinstance(kind, StructType):
        return f"struct<{', '.join(_column(field, ': ') for field in kind.fields)}>"
    if isinstance(kind, ArrayType):
        return f"array<{_type(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{_type(kind.keyType)}, {_type(kind.valueType)}>"
    return kind.simpleString()


def written(context: JobContext, script: Script) -> dict[str, Any]:
    """Return ``metadata_location``, ``rows_written`` and ``rows_deleted`` of an outcome.

    Args:
        script: The script, bound to the run.

    Raises:
        JobError: The newest snapshot has no refresh id, so it cannot be distinguished from another writer's.
    """
    if context.jvm is None:
        location, head, summaries = _by_history(context, script)
    else:
        location, head, summaries = _by_metadata(context.java.table(script.table), script)
    # A rewrite is known by its operation: the procedure adds nothing to the summary.
    if (
        context.written_by not in ("none", "rewrite")
        and head is not None
        and head.get(REFRESH_ID_KEY) != script.refresh_id
    ):
        raise JobError(
            f"Spark {context.spark.version} has not written the refresh id ({REFRESH_ID_KEY}) into the summary of the "
            "snapshot that it staged: nothing may be published. Does its Iceberg honour the setting "
            f"{SNAPSHOT_PROPERTY}*?"
        )
    added, deleted = rows_changed(summaries)
    return {"metadata_location": location, "rows_written": added, "rows_deleted": deleted}


_Summary = Mapping[str, str]


def _by_metadata(table: Any, script: Script) -> tuple[str, _Summary | None, list[_Summary]]:
    """Return the metadata location, the newest snapshot's summary and the run's ones, through Java.

    A Spark statement would take longer.
    """
    table.refresh()
    head = table.currentSnapshot() if script.branch is None else table.snapshot(script.branch)
    location = str(table.operations().current().metadataFileLocation())
    return location, None if head is None else head.summary(), list(_own(table, head, script))


def _own(table: Any, snapshot: Any, script: Script) -> Iterator[_Summary]:
    """Yield the summaries of the run's snapshots, newest first. Deletes of whole files have no refresh id in theirs."""
    while snapshot is not None:
        summary = snapshot.summary()
        stamp = summary.get(REFRESH_ID_KEY)
        if stamp == script.refresh_id:
            yield summary
        elif stamp is not None:
            return  # this snapshot and all before it belong to earlier refreshes
        snapshot = None if snapshot.parentId() is None else table.snapshot(snapshot.parentId())


def _by_history(context: JobContext, script: Script) -> tuple[str, _Summary | None, list[_Summary]]:
    """Return the same by metadata tables."""
    past = read_history(context.spark, script.table, "log", "references")
    line = [past.snapshots[item].summary for item in past.ancestors(past.references.get(script.branch or "main"))]
    # Other runs of the same refresh have also written to the table.
    own = [summary for summary in line if summary.get(REFRESH_ID_KEY) == script.refresh_id]
    return past.log[-1].file, line[0] if line else None, own
