# SPDX-License-Identifier: Apache-2.0
"""Which sums come out the same in any order of the rows: those of whole numbers and of decimals."""

from __future__ import annotations

import re

from sqlglot import exp

from airflow_mv.plan.incremental import ir

#: Digits that a decimal number has at least; 0: a whole number.
Exact = int
#: Spark makes the average of shorter decimals of doubles, whose sum is exact up to 2^53 only.
_AVERAGED_AS_DECIMALS = 12

_WHOLE = {"tinyint", "smallint", "int", "integer", "bigint", "long", "short", "byte"}
_DECIMAL = re.compile(r"decimal(?:\(\s*(\d+))?")
_NUMBER = re.compile(r"\d+(\.\d+)?")
_LIKE_ARGUMENTS = (exp.Paren, exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Coalesce, exp.Min, exp.Max)


def is_exact_sum(call: exp.Expr, block: ir.Block) -> bool:
    """Whether an aggregate is a sum or an average that the order of the rows cannot change.

    An average of whole numbers is one of doubles in Spark.

    Args:
        call: The aggregate, in the block.
        block: Where its columns are from.
    """
    if isinstance(call, exp.Sum):
        return _kind(call.this, block) is not None
    return isinstance(call, exp.Avg) and (_kind(call.this, block) or 0) >= _AVERAGED_AS_DECIMALS


def _kind(value: exp.Expr, block: ir.Block) -> Exact | None:
    """Return what kind of exact number an expression is; ``None``: it may be another."""
    if isinstance(value, exp.Column):
        return _column_kind(value, block)
    if isinstance(value, exp.Filter | exp.Window):
        return _kind(value.this, block)
    if isinstance(value, exp.Sum | exp.Avg):
        return _added_kind(value, block)
    if isinstance(value, exp.Case):
        branches = [*(branch.args["true"] for branch in value.args["ifs"]), value.args.get("default")]
        return _together([branch for branch in branches if branch is not None], block)
    if isinstance(value, _LIKE_ARGUMENTS):
        return _together(list(value.iter_expressions()), block, adds=isinstance(value, exp.Mul))
    return _written_kind(value)


def _added_kind(call: exp.Sum | exp.Avg, block: ir.Block) -> Exact | None:
    kind = _kind(call.this, block)
    if isinstance(call, exp.Sum):
        return kind + 10 if kind else kind
    return kind or None


def _written_kind(value: exp.Expr) -> Exact | None:
    """Return the kind of what no column decides."""
    if isinstance(value, exp.Literal) and not value.is_string and _NUMBER.fullmatch(value.name):
        return 1 if "." in value.name else 0
    if isinstance(value, exp.Cast):
        return _named_kind(value.to.sql(dialect="spark"))
    return 0 if isinstance(value, exp.Count) else None


def _together(values: list[exp.Expr], block: ir.Block, *, adds: bool = False) -> Exact | None:
    kinds = [_kind(value, block) for value in values if not isinstance(value, exp.Null)]
    known = [kind for kind in kinds if kind is not None]
    if not known or len(known) < len(kinds):
        return None
    return sum(known) if adds else max(known)


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
        known = [side for side in sides if side is not None]
        return max(known) if len(known) == len(sides) and all(known) == any(known) else None
    return None


def _named_kind(kind: str) -> Exact | None:
    kind = kind.lower()
    if kind in _WHOLE:
        return 0
    decimal = _DECIMAL.match(kind)
    return int(decimal[1] or 10) if decimal else None
