# SPDX-License-Identifier: Apache-2.0
"""Check the staged rows of a job before they are published.

All SQL checks are computed in one aggregation. For a failed check another query fetches some offending rows.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType

from airflow_mv.core.job.context import JobContext, cause, translated
from airflow_mv.core.job.steps import OF_VALUES, fails_on_a_value
from airflow_mv.core.script import MAX_ROWS, MAX_VALUE_LENGTH, CheckResult, StagedCheck, StagedChecks
from airflow_mv.core.spec.identifiers import quote
from airflow_mv.foundation.redaction import shortened

#: Errors that the SQL of a check itself causes: a retry does not help.
_OF_SQL = (AnalysisException, *OF_VALUES)
#: The same errors for a check's function.
_OF_FUNCTION = (
    *_OF_SQL,
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    TypeError,
    ValueError,
)


def run_checks(context: JobContext, checks: StagedChecks, report: Callable[[str], None]) -> tuple[CheckResult, ...]:
    """Compute the checks of a run.

    Args:
        checks: The checks of the script that is bound to the run.
        report: Called with a line for each check.

    Returns:
        A result for each check, in order. A check that cannot be computed has failed, with its problem.
    """
    in_sql = [check for check in checks.checks if not check.function]
    verdicts = iter(_computed(context, checks, in_sql))
    results = []
    for check in checks.checks:
        result = _called(context, checks, check) if check.function else next(verdicts)
        if not result.passed and not result.problem and not result.columns and check.offending:
            result = _with_rows(result, context.query(checks.over(check.offending)))
        report(f"check {check.name!r}: {'passed' if result.passed else 'FAILED'}, {result.observed or result.problem}")
        results.append(result)
    return tuple(results)


def _computed(context: JobContext, checks: StagedChecks, in_sql: Sequence[StagedCheck]) -> list[CheckResult]:
    """Compute checks in one aggregation; if it fails, each one separately, so that the others have a result."""
    if not in_sql:
        return []
    try:
        (row,) = context.query(checks.statement(tuple(in_sql))).collect()
    except Exception as error:
        found = translated(error)
        # What fails in a scalar subquery has no class in Python.
        if not isinstance(found, AnalysisException) and not fails_on_a_value(found):
            raise
        if len(in_sql) == 1:
            return [_result(in_sql[0], passed=False, problem=_reason(context, found))]
        return [result for check in in_sql for result in _computed(context, checks, [check])]
    return [
        _result(
            check, passed=row[2 * number + 1] is True, observed="NULL" if row[2 * number] is None else row[2 * number]
        )
        for number, check in enumerate(in_sql)
    ]


def _called(context: JobContext, checks: StagedChecks, check: StagedCheck) -> CheckResult:
    """Call a check's function with the staged rows."""
    module, _, path = check.function.partition(":")
    try:
        function = importlib.import_module(module)
        for name in path.split("."):
            function = getattr(function, name)
        found = function(context.query(checks.over(check.offending)))  # type: ignore[operator]
        if isinstance(found, bool):
            return _result(check, passed=found, observed=str(found).lower())
        # The DataFrame classes of classic and Connect sessions share this base class.
        if isinstance(found, DataFrame):
            broken = _with_rows(_result(check, passed=False), found)
            count = len(broken.rows)
            more = " or more" if count == MAX_ROWS else ""
            return replace(broken, passed=count == 0, observed=f"violating rows: {count}{more}")
        raise TypeError(f"it returned {type(found).__name__}; it must return a boolean or a DataFrame")
    except Exception as error:
        if not isinstance(inner := translated(error), _OF_FUNCTION):
            raise
        return _result(check, passed=False, problem=f"{type(inner).__name__}: {_reason(context, inner)}")


def _with_rows(result: CheckResult, frame: DataFrame) -> CheckResult:
    """Add some of the offending rows of a check, each value as text."""
    columns = tuple(frame.columns)
    numbered = frame.toDF(*(f"c{number}" for number in range(len(columns))))
    texts = [
        f"hex({quote(field.name)})"
        if isinstance(field.dataType, BinaryType)
        else f"CAST({quote(field.name)} AS STRING)"
        for field in numbered.schema.fields
    ]
    rows = numbered.limit(MAX_ROWS).selectExpr(*texts).collect()
    return replace(result, columns=columns, rows=tuple(tuple(map(_cut, row)) for row in rows))


def _result(
    check: StagedCheck, *, passed: bool, observed: str | None = None, problem: str | None = None
) -> CheckResult:
    return CheckResult(check.name, check.severity, passed, check.expected, _cut(observed), problem)


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= MAX_VALUE_LENGTH else f"{text[: MAX_VALUE_LENGTH - 1]}…"


def _reason(context: JobContext, error: Exception) -> str:
    text = str(error).partition("JVM stacktrace:")[0]
    if "\n: " in text:  # an error of Java without a Python class: the rest is its stack trace
        text = cause(error)
    return shortened(context.public(" ".join(text.split())), 500)
