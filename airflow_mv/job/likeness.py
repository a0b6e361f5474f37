# SPDX-License-Identifier: Apache-2.0
"""Whether Spark makes the same of a view's query as its owner wrote it and as incremental statements are written."""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql import DataFrame

from airflow_mv.errors import IncrementalRefusedError
from airflow_mv.job.work import Work
from airflow_mv.script import DeterminismStep

#: The optimizer's rules that see through a spelling (``CAST('1' AS INT)`` is 1), and look at no table.
_RULES = ("ReplaceExpressions", "ConstantFolding", "SimplifyCasts", "BooleanSimplification")
_NUMBERS = re.compile(r"#\d+L?")
_OPTIMIZED = re.compile(r"(?s)== Optimized Logical Plan ==\n(.*?)\n== Physical Plan ==")


def check_alike(work: Work, step: DeterminismStep, frame: DataFrame) -> None:
    """Refuse a query that does not mean the same when it is written again.

    The statements of an incremental refresh hold its expressions as they are written again: by this they are known
    to mean what the owner wrote. As a rule a comparison of the analysed queries tells, which reads no table.

    Args:
        work: The run's.
        step: Holds the query in both spellings.
        frame: The query as its owner wrote it.

    Raises:
        IncrementalRefusedError: Code ``written-otherwise``.
    """
    again = work.query(step.again)
    if frame.sameSemantics(again):
        return
    alike = _same_text(work, step) if work.jvm is None else _same_plan(work, frame, again)
    if not alike:
        message = "a part of the query would mean something else in the statements of an incremental refresh"
        raise IncrementalRefusedError("written-otherwise", message)


def _same_plan(work: Work, frame: Any, again: Any) -> bool:
    rules = [getattr(work.jvm.org.apache.spark.sql.catalyst.optimizer, name) for name in _RULES]
    one, other = (item._jdf.queryExecution() for item in (frame, again))
    plans = [one.analyzed(), other.analyzed()]
    for rule in rules:
        plans = [rule.apply(plan) for plan in plans]
    return bool(plans[0].sameResult(plans[1]) or one.optimizedPlan().sameResult(other.optimizedPlan()))


def _same_text(work: Work, step: DeterminismStep) -> bool:
    """Compare the optimized plans as text, with their columns numbered anew: over Connect there is no more of them."""
    texts = []
    with work.setting("spark.sql.debug.maxToStringFields", str(2**31 - 1)):
        for sql in (step.query, step.again):
            plan = _OPTIMIZED.search(str(work.query(f"EXPLAIN EXTENDED {sql}").collect()[0][0]))
            texts.append(_renumbered(plan[1]) if plan else "")
    return bool(texts[0]) and texts[0] == texts[1]


def _renumbered(plan: str) -> str:
    numbers: dict[str, str] = {}
    return _NUMBERS.sub(lambda found: numbers.setdefault(found[0].rstrip("L"), f"#{len(numbers)}"), plan)
