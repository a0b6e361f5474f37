# SPDX-License-Identifier: Apache-2.0
"""Check plan equivalence: Spark must read the owner's query and its regenerated SQL as the same query."""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql import DataFrame

from airflow_mv.errors import IncrementalRefusedError
from airflow_mv.job.analysis import whole_text
from airflow_mv.job.context import JobContext
from airflow_mv.script import DeterminismStep

#: Rules that number CTEs, and remove differences of notation (``CAST('1' AS INT)`` is 1). They do not read tables.
_RULES = (
    "normalizer.NormalizeCTEIds",
    "optimizer.ReplaceExpressions",
    "optimizer.ConstantFolding",
    "optimizer.SimplifyCasts",
    "optimizer.BooleanSimplification",
)
#: They switch off rules that add filters by the sizes of tables. Spark does not treat two such filters as equal.
_RUNTIME_FILTERS = {
    "spark.sql.optimizer.dynamicPartitionPruning.enabled": "false",
    "spark.sql.optimizer.runtime.bloomFilter.enabled": "false",
}
_NUMBERS = re.compile(r"#\d+L?|plan_id=\d+")
_LEXEMES = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|--[^\n]*|/\*.*?\*/""", re.DOTALL)
#: Includes the physical plan: filters that were pushed into a scan are in its text only.
_PLANS = re.compile(r"(?s)== Optimized Logical Plan ==\n(.*)")


def check_equivalent(context: JobContext, step: DeterminismStep, frame: DataFrame) -> None:
    """Refuse a query whose regenerated SQL has another meaning.

    The statements of an incremental refresh contain regenerated expressions. This check proves that they mean what the
    owner wrote. Usually it only compares the analysed queries, which reads no table.

    Args:
        context: The context of the run.
        step: The step with the query's regenerated SQL.
        frame: The query in its owner's text.

    Raises:
        IncrementalRefusedError: Code ``plan-differs``.
    """
    again = context.query(step.again)
    if frame.sameSemantics(again):
        return
    alike = _same_text(context, step) if context.jvm is None else _same_plan(context, step)
    if not alike:
        message = "a part of the query would mean something else in the statements of an incremental refresh"
        raise IncrementalRefusedError("plan-differs", message)


def _same_plan(context: JobContext, step: DeterminismStep) -> bool:
    """Compare the analysed plans with renumbered CTEs, then the optimized plans without runtime filters."""
    rules = [context.java(f"org.apache.spark.sql.catalyst.{name}") for name in _RULES]
    with context.settings(_RUNTIME_FILTERS):
        frames: list[Any] = [context.query(sql) for sql in (step.query, step.again)]
        one, other = (frame._jdf.queryExecution() for frame in frames)
        plans = [one.analyzed(), other.analyzed()]
        for rule in rules:
            plans = [rule.apply(plan) for plan in plans]
        return bool(plans[0].sameResult(plans[1]) or one.optimizedPlan().sameResult(other.optimizedPlan()))


def _same_text(context: JobContext, step: DeterminismStep) -> bool:
    """Compare the optimized and physical plans as text with renumbered columns. Connect returns only the text."""
    texts = []
    with whole_text(context):
        for sql in (step.query, step.again):
            plan = _PLANS.search(context.explained(context.query(sql)))
            texts.append(_renumbered(plan[1]) if plan else "")
    return bool(texts[0]) and texts[0] == texts[1] and _lists(step.query) == _lists(step.again)


def _lists(sql: str) -> list[str]:
    """Return the string literals that are ambiguous in a plan's text, which has no quotes around them."""
    literals = (found[0] for found in _LEXEMES.finditer(sql) if found[0][0] in "'\"" and ", " in found[0])
    return sorted(re.sub(r"['\"\\]", "", literal) for literal in literals)


def _renumbered(plan: str) -> str:
    numbers: dict[str, str] = {}
    return _NUMBERS.sub(lambda found: numbers.setdefault(found[0].rstrip("L"), f"#{len(numbers)}"), plan)
