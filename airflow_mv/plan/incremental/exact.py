# SPDX-License-Identifier: Apache-2.0
"""Which sums come out the same in any order of the rows: those of whole numbers and of decimals."""

from __future__ import annotations

import re
from typing import Literal

from sqlglot import exp

from airflow_mv.plan.incremental import ir

Exact = Literal["whole", "decimal"]

_WHOLE = {"tinyint", "smallint", "int", "integer", "bigint", "long", "short", "byte"}
_NUMBER = re.compile(r"\d+(\.\d+)?")
_LIKE_ARGUMENTS = (exp.Paren, exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Coalesce, exp.Sum, exp.Min, exp.Max)


def is_exact_sum(call: exp.Expr, block: ir.Block) -> bool:
    """Whether an aggregate is a sum or an average that the order of the rows cannot change.

    An average of whole numbers is one of doubles in Spark.

    Args:
        call: The aggregate, in the block.
        block: Where its columns are from.
    """
    if isinstance(call, exp.Sum):
        return _kind(call.this, block) is not None
    return isinstance(call, exp.Avg) and _kind(call.this, block) == "decimal"


def _kind(value: exp.Expr, block: ir.Block) -> Exact | None:
    """Return what kind of exact number an expression is; ``None``: it may be another."""
    if isinstance(value, exp.Column):
        return _column_kind(value, block)
    if isinstance(value, exp.Filter | exp.Window):
        return _kind(value.this, block)
    if isinstance(value, exp.Avg):
        return "decimal" if _kind(value.this, block) == "decimal" else None
    if isinstance(value, exp.Case):
        branches = [*(branch.args["true"] for branch in value.args["ifs"]), value.args.get("default")]
        return _together([branch for branch in branches if branch is not None], block)
    if isinstance(value, _LIKE_ARGUMENTS):
        return _together(list(value.iter_expressions()), block)
    return _written_kind(value)


def _written_kind(value: exp.Expr) -> Exact | None:
    """Return the kind of what no column decides."""
    if isinstance(value, exp.Literal) and not value.is_string and _NUMBER.fullmatch(value.name):
        return "decimal" if "." in value.name else "whole"
    if isinstance(value, exp.Cast):
        return _named_kind(value.to.sql(dialect="spark"))
    return "whole" if isinstance(value, exp.Count) else None


def _together(values: list[exp.Expr], block: ir.Block) -> Exact | None:
    kinds = [_kind(value, block) for value in values if not isinstance(value, exp.Null)]
    if not kinds or None in kinds:
        return None
    return "decimal" if "decimal" in kinds else "whole"


def _column_kind(column: exp.Column, block: ir.Block) -> Exact | None:
    relation = next((item for item in block.relations if item.alias == column.table), None)
    return _source_kind(relation.source, column.name) if relation is not None else None


def _source_kind(source: ir.Source, name: str) -> Exact | None:
    if isinstance(source, ir.Base):
        return _named_kind(source.types[source.columns.index(name)])
    if isinstance(source, ir.Block):
        value = next((item.value for item in source.outputs if item.name == name), None)
        return _kind(value, source) if value is not None else None
    if isinstance(source, ir.Compound):
        position = ir.names(source).index(name)
        sides = {_source_kind(side, ir.names(side)[position]) for side in (source.left, source.right)}
        return sides.pop() if len(sides) == 1 else None
    return None


def _named_kind(kind: str) -> Exact | None:
    kind = kind.lower()
    if kind in _WHOLE:
        return "whole"
    return "decimal" if kind.startswith("decimal") else None
