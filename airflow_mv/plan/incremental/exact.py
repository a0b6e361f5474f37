# SPDX-License-Identifier: Apache-2.0
"""Which sums come out the same in any order of the rows: those of whole numbers and of decimals."""

from __future__ import annotations

import re

from sqlglot import exp

from airflow_mv.plan.incremental import ir

#: Digits that a decimal number has at least; 0: a whole number.
Digits = int
#: An average of decimals that has no more digits Spark makes of doubles, whose sum is exact up to 2^53 only.
DIGITS_OF_DOUBLES = 15
#: What the type of an average has more than that of its argument.
_ADDED_BY_AVERAGE = 4
#: What the type of a sum of decimals has more than that of its argument.
_ADDED_BY_SUM = 10

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
    if not isinstance(call, exp.Sum | exp.Avg):
        return False
    digits = _Reader().digits(call.this, block)
    return digits is not None and (isinstance(call, exp.Sum) or digits + _ADDED_BY_AVERAGE > DIGITS_OF_DOUBLES)


class _Reader:
    """Reads what expressions are made of, each column of a derived table once."""

    def __init__(self) -> None:
        self._columns: dict[tuple[int, str], Digits | None] = {}

    def digits(self, value: exp.Expr, block: ir.Block) -> Digits | None:
        """Return the digits of an exact number; ``None``: an expression may be another."""
        if isinstance(value, exp.Column):
            relation = next((item for item in block.relations if item.alias == value.table), None)
            return self._of_column(relation.source, value.name) if relation is not None else None
        if isinstance(value, exp.Filter | exp.Window):
            return self.digits(value.this, block)
        if isinstance(value, exp.Sum | exp.Avg):
            return _added(value, self.digits(value.this, block))
        if isinstance(value, exp.Case):
            branches = [*(branch.args["true"] for branch in value.args["ifs"]), value.args.get("default")]
            return self._together([branch for branch in branches if branch is not None], block)
        if isinstance(value, _LIKE_ARGUMENTS):
            return self._together(list(value.iter_expressions()), block, adds=isinstance(value, exp.Mul))
        return _written_digits(value)

    def _together(self, values: list[exp.Expr], block: ir.Block, *, adds: bool = False) -> Digits | None:
        found = [self.digits(value, block) for value in values if not isinstance(value, exp.Null)]
        known = [digits for digits in found if digits is not None]
        if not known or len(known) < len(found):
            return None
        return sum(known) if adds else max(known)

    def _of_column(self, source: ir.Source, name: str) -> Digits | None:
        key = (id(source), name)
        if key not in self._columns:
            self._columns[key] = self._of_source(source, name)
        return self._columns[key]

    def _of_source(self, source: ir.Source, name: str) -> Digits | None:
        if isinstance(source, ir.Base):
            return _digits_of_type(source.types[source.columns.index(name)])
        if isinstance(source, ir.Block):
            value = next((item.value for item in source.outputs if item.name == name), None)
            return self.digits(value, source) if value is not None else None
        if isinstance(source, ir.Compound):
            position = ir.names(source).index(name)
            sides = [self._of_column(side, ir.names(side)[position]) for side in (source.left, source.right)]
            known = [side for side in sides if side is not None]
            alike = all(known) or not any(known)  # a whole number beside a decimal becomes a decimal of more digits
            return max(known) if alike and len(known) == len(sides) else None
        return None


def _added(call: exp.Sum | exp.Avg, digits: Digits | None) -> Digits | None:
    if isinstance(call, exp.Avg):
        return digits or None  # of whole numbers it is a double
    return digits + _ADDED_BY_SUM if digits else digits


def _written_digits(value: exp.Expr) -> Digits | None:
    """Return the digits of what no column decides."""
    if isinstance(value, exp.Literal) and not value.is_string and _NUMBER.fullmatch(value.name):
        return 1 if "." in value.name else 0
    if isinstance(value, exp.Cast):
        return _digits_of_type(value.to.sql(dialect="spark"))
    return 0 if isinstance(value, exp.Count) else None


def _digits_of_type(kind: str) -> Digits | None:
    kind = kind.lower()
    if kind in _WHOLE:
        return 0
    decimal = _DECIMAL.match(kind)
    return int(decimal[1] or 10) if decimal else None
