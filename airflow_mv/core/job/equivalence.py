# SPDX-License-Identifier: Apache-2.0
"""Check plan equivalence: Spark must read the owner's query and its regenerated SQL as the same query."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from pyspark.sql import DataFrame

from airflow_mv.core.job.analysis import whole_text
from airflow_mv.core.job.context import JobContext, SparkJava
from airflow_mv.core.script import DeterminismStep
from airflow_mv.errors import IncrementalRefusedError

_CATALYST = "org.apache.spark.sql.catalyst"
#: A rule that numbers CTEs, whose ids differ in each plan. Before Spark 4.1 only one is there that inlines them.
_NUMBERS_CTES, _INLINES_CTES = f"{_CATALYST}.normalizer.NormalizeCTEIds", f"{_CATALYST}.optimizer.InlineCTE"
#: Rules that remove differences of notation (``CAST('1' AS INT)`` is 1). They do not read tables.
_RULES = ("ReplaceExpressions", "ConstantFolding", "SimplifyCasts", "BooleanSimplification")
#: They switch off rules that add filters by the sizes of tables. Spark does not treat two such filters as equal.
_RUNTIME_FILTERS = {
    "spark.sql.optimizer.dynamicPartitionPruning.enabled": "false",
    "spark.sql.optimizer.runtime.bloomFilter.enabled": "false",
}
_NUMBERS = re.compile(r"#\d+L?|plan_id=\d+")
_LEXEMES = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|--[^\n]*|/\*.*?\*/""", re.DOTALL)
_WORDS = re.compile(r"\w+|\W")
#: How much of two plans is shown where they differ: words around the difference, and characters.
_WORDS_AROUND, _MAX_EXCERPT = 8, 100
#: Includes the physical plan: filters that were pushed into a scan are in its text only.
_PLANS = re.compile(r"(?s)== Optimized Logical Plan ==\n(.*)")


def check_equivalent(context: JobContext, step: DeterminismStep, frame: DataFrame) -> None:
    """Refuse a query whose regenerated SQL has another meaning.

    The statements of an incremental refresh contain regenerated expressions. This check proves that they mean what the
    owner wrote. Usually it only compares the analysed queries, which reads no table.

    Args:
        step: The step with the query's regenerated SQL.
        frame: The query in its owner's text.

    Raises:
        IncrementalRefusedError: Code ``plan-differs``.
    """
    again = context.query(step.again)
    if frame.sameSemantics(again):
        return
    plans = _texts(context, step) if context.jvm is None else _plans(context, step)
    if plans is not None:
        message = "a part of the query would mean something else in the statements of an incremental refresh"
        raise IncrementalRefusedError("plan-differs", f"{message}{first_difference(*plans)}")


def _plans(context: JobContext, step: DeterminismStep) -> tuple[str, str] | None:
    """Compare the analysed plans with renumbered CTEs, then the optimized plans without runtime filters.

    Returns:
        The texts of the analysed plans; ``None`` if the plans are equal.
    """
    rules = [_ctes(context.java), *(context.java.find(f"{_CATALYST}.optimizer.{name}") for name in _RULES)]
    with context.settings(_RUNTIME_FILTERS):
        frames: list[Any] = [context.query(sql) for sql in (step.query, step.again)]
        one, other = (frame._jdf.queryExecution() for frame in frames)
        plans = [one.analyzed(), other.analyzed()]
        for rule in rules:
            plans = [rule.apply(plan) for plan in plans]
        if plans[0].sameResult(plans[1]) or one.optimizedPlan().sameResult(other.optimizedPlan()):
            return None
        with whole_text(context):
            return _renumbered(str(plans[0].toString())), _renumbered(str(plans[1].toString()))


def _ctes(java: SparkJava) -> Any:
    """Return the rule that makes CTEs of two plans comparable."""
    if java.can.has(_NUMBERS_CTES):
        return java.find(_NUMBERS_CTES)
    loader = java.find("java.lang.Thread").currentThread().getContextClassLoader()
    inlining = loader.loadClass(_INLINES_CTES).getConstructors()[0]
    always, keeps_unread = True, False  # Spark 3.5 has no second one
    return inlining.newInstance(java.array("Object", [always, keeps_unread][: inlining.getParameterCount()]))


def _texts(context: JobContext, step: DeterminismStep) -> tuple[str, str] | None:
    """Compare the optimized and physical plans as text with renumbered columns. Connect returns only the text.

    Returns:
        The texts; ``None`` if they are equal.
    """
    texts = []
    with whole_text(context):
        for sql in (step.query, step.again):
            plan = _PLANS.search(context.explained(context.query(sql)))
            texts.append(_renumbered(plan[1]) if plan else "")
    if texts[0] and texts[0] == texts[1] and _lists(step.query) == _lists(step.again):
        return None
    return texts[0], texts[1]


def first_difference(plan: str, other: str) -> str:
    """Return where two plans differ first, to be appended to a message; empty if their texts are equal.

    Args:
        other: That of the regenerated query.
    """
    for line, found in zip_longest(plan.splitlines(), other.splitlines(), fillvalue=""):
        if line != found:
            words, others = (_WORDS.findall(_NUMBERS.sub("", text)) for text in (line, found))
            before, after = _common(words, others), _common(words[::-1], others[::-1])
            return f": {_excerpt(words, before, after)} would be {_excerpt(others, before, after)}"
    return ""


def _common(words: Sequence[str], others: Sequence[str]) -> int:
    return next((at for at, (one, other) in enumerate(zip(words, others, strict=False)) if one != other), 0)


def _excerpt(words: Sequence[str], before: int, after: int) -> str:
    """Return the words between so many equal ones at the start and at the end, with some of these."""
    end = max(len(words) - after, before)
    text = "".join(words[max(before - _WORDS_AROUND, 0) : end + _WORDS_AROUND]).strip(" :+-,")
    return text if len(text) <= _MAX_EXCERPT else f"{text[:_MAX_EXCERPT]}…"


def _lists(sql: str) -> list[str]:
    """Return the string literals that are ambiguous in a plan's text, which has no quotes around them."""
    literals = (found[0] for found in _LEXEMES.finditer(sql) if found[0][0] in "'\"" and ", " in found[0])
    return sorted(re.sub(r"['\"\\]", "", literal) for literal in literals)


def _renumbered(plan: str) -> str:
    numbers: dict[str, str] = {}
    return _NUMBERS.sub(lambda found: numbers.setdefault(found[0].rstrip("L"), f"#{len(numbers)}"), plan)
