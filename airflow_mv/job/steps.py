# SPDX-License-Identifier: Apache-2.0
"""Run a script's steps in order, or its fallback if an incremental refresh turns out to be impossible."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from functools import partial

from pyspark.errors import (
    AnalysisException,
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    SparkRuntimeException,
)

from airflow_mv.errors import IncrementalRefusedError
from airflow_mv.job.analysis import check_reads, check_types
from airflow_mv.job.apply import merge_additive, replace_keys
from airflow_mv.job.context import JobContext, cause
from airflow_mv.job.delta import check_deterministic, check_snapshots, make_delta, read_ahead
from airflow_mv.job.storage import create_table
from airflow_mv.script import (
    COMPLETE_KEY,
    FALLBACK_KEY,
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
)

#: Errors that a row's values can cause in an expression of the query.
OF_VALUES = (
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    SparkRuntimeException,
)
#: The same for errors without a Python class or with only Java's name: SQLSTATEs of data errors, errors of libraries.
_ABOUT_VALUES = re.compile(r"SQLSTATE: (?:2[12]|42601)|\): java\.(?:lang\.IllegalArgument|util\.regex\.)")
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
        context: The context of the run.
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
        raise IncrementalRefusedError("not-supported", f"Spark cannot run a statement of it: {cause(error)}") from error
    except IncrementalRefusedError:
        raise
    except Exception as error:
        if not script.incremental or not fails_on_a_value(error):
            raise
        # The statement combines old and new rows, which never existed together. A full refresh may still succeed.
        raise IncrementalRefusedError("values", f"a statement fails on a value: {cause(error)}") from error


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
        context.staging_catalog().registerTable(context.staged_identifier(name), location)
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
