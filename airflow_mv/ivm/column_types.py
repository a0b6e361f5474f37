# SPDX-License-Identifier: Apache-2.0
"""Determine the types that Spark will give a query's columns, without Spark.

A type is returned only if it is certain; ``None`` stands for any other. Sources: Spark's documentation "ANSI
Compliance" (type coercion), its ``DecimalPrecision`` (arithmetic of decimals), and the result types of its aggregates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import reduce

from sqlglot import exp

from airflow_mv.ivm import functions, ir

_Names = Mapping[tuple[str, str], str | None]
_Decimal = tuple[int, int]

_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")
_MAX, _LEAST_SCALE = 38, 6
#: Integers, narrowest first, each with the digits of its largest value.
_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
_INTEGERS = list(_DIGITS)
_LARGEST_INT = 2**31 - 1
_PLAIN = frozenset({*_DIGITS, "float", "double", "boolean", "string", "date", "timestamp", "timestamp_ntz", "binary"})

#: Calls whose type does not depend on their arguments.
_FIXED: Mapping[type[exp.Expr], str] = {
    exp.Count: "bigint",
    exp.CountIf: "bigint",
    exp.ApproxDistinct: "bigint",
    exp.IntDiv: "bigint",
    exp.LogicalAnd: "boolean",
    exp.LogicalOr: "boolean",
    exp.Predicate: "boolean",
    exp.Connector: "boolean",
    exp.Not: "boolean",
    exp.Boolean: "boolean",
    exp.Stddev: "double",
    exp.StddevSamp: "double",
    exp.StddevPop: "double",
    exp.Variance: "double",
    exp.VariancePop: "double",
    exp.RowNumber: "int",
    exp.Rank: "int",
    exp.DenseRank: "int",
    exp.Year: "int",
    exp.Quarter: "int",
    exp.Month: "int",
    exp.Day: "int",
    exp.DayOfMonth: "int",
    exp.DayOfWeek: "int",
    exp.DayOfYear: "int",
    exp.Length: "int",
    exp.DateDiff: "int",
    exp.Date: "date",
    exp.TsOrDsToDate: "date",
    exp.DateFromParts: "date",
    exp.TimestampTrunc: "timestamp",
    exp.Upper: "string",
    exp.Lower: "string",
    exp.Trim: "string",
}
#: Calls that return one of their arguments.
_SAME = (exp.Paren, exp.Neg, exp.Min, exp.Max, exp.First, exp.Last, exp.FirstValue, exp.LastValue, exp.AnyValue)
_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod)
_PARTS_OF_A_DATE = frozenset({"YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE"})


def column_types(tree: ir.Tree) -> tuple[str | None, ...]:
    """Return the Spark type of each column of a query; ``None`` where it is not certain.

    Args:
        tree: The query in normal form.
    """
    return _of_tree(tree, {})


def _of_tree(tree: ir.Tree, outer: _Names) -> tuple[str | None, ...]:
    if isinstance(tree, ir.Block):
        block = _TypedBlock(tree, outer)
        return tuple(block.type_of(item.value) for item in tree.outputs)
    sides = zip(_of_tree(tree.left, outer), _of_tree(tree.right, outer), strict=True)
    return tuple(_common(pair) for pair in sides)


class _TypedBlock:
    """One SELECT, and the types of the columns that its expressions name."""

    def __init__(self, block: ir.Block, outer: _Names) -> None:
        self._names: dict[tuple[str, str], str | None] = dict(outer)
        for relation in block.relations:
            source = relation.source
            types: Iterable[str | None] = ()
            if isinstance(source, ir.Base):
                types = source.types
            elif isinstance(source, ir.Block | ir.Compound):
                types = _of_tree(source, {})
            self._names |= {(relation.alias, name): kind for name, kind in zip(ir.names(source), types, strict=False)}
        self._nested = {nested.mark: nested for nested in block.nested}

    def type_of(self, value: exp.Expr) -> str | None:
        """Return the type of an expression."""
        kind = next((kind for cls, kind in _FIXED.items() if isinstance(value, cls)), None)
        if kind is not None:
            return kind
        rule = next((rule for classes, rule in _RULES if isinstance(value, classes)), None)
        return None if rule is None else rule(self, value)

    def column(self, value: exp.Expr) -> str | None:
        """Return the type of a column."""
        return self._names.get((value.args["table"].name if value.args.get("table") else "", value.name))

    def first(self, value: exp.Expr) -> str | None:
        """Return the type of a call's first argument."""
        return self.type_of(value.this)

    def widest(self, value: exp.Expr) -> str | None:
        """Return the type of a call that returns one of several values."""
        if isinstance(value, exp.Case | exp.If):
            branches = value.args.get("ifs") or [value]
            parts = [branch.args.get("true") for branch in branches]
            parts.append(value.args.get("default") or value.args.get("false"))
        else:
            parts = [value.this, *value.expressions]
        given = [part for part in parts if part is not None and not isinstance(part.unnest(), exp.Null)]
        return _common(self.type_of(part) for part in given)

    def sum(self, value: exp.Expr) -> str | None:
        """Return the type of a sum."""
        inner = value.this.expressions[0] if isinstance(value.this, exp.Distinct) else value.this
        kind = self.type_of(inner)
        if kind in _DIGITS:
            return "bigint"
        decimal = _decimal(kind)
        if decimal is not None:
            return _written(min(decimal[0] + 10, _MAX), decimal[1])
        return "double" if kind in ("float", "double") else None

    def average(self, value: exp.Expr) -> str | None:
        """Return the type of an average."""
        kind = self.type_of(value.this)
        decimal = _decimal(kind)
        if decimal is not None:
            return _written(min(decimal[0] + 4, _MAX), min(decimal[1] + 4, _MAX))
        return "double" if kind in (*_DIGITS, "float", "double") else None

    def arithmetic(self, value: exp.Expr) -> str | None:
        """Return the type of ``+ - * / %``."""
        left, right = self.type_of(value.this), self.type_of(value.expression)
        if "double" in (left, right):
            return (
                "double"
                if all(kind in (*_DIGITS, "float", "double") or _decimal(kind) for kind in (left, right))
                else None
            )
        if left in _DIGITS and right in _DIGITS:
            return "double" if isinstance(value, exp.Div) else _common((left, right))
        one, other = _as_decimal(value.this, left), _as_decimal(value.expression, right)
        return None if one is None or other is None else _of_decimals(value, one, other)

    def cast(self, value: exp.Expr) -> str | None:
        """Return the type that a value is cast to."""
        kind: str = value.args["to"].sql(dialect="spark").lower()
        if kind == "decimal":
            return _written(10, 0)
        decimal = _decimal(kind)
        return _written(*decimal) if decimal else kind if kind in _PLAIN else None

    def literal(self, value: exp.Expr) -> str | None:
        """Return the type of a literal."""
        if value.is_string:
            return "string"
        if re.fullmatch(r"\d+", value.name):
            return "int" if int(value.name) <= _LARGEST_INT else "bigint"
        decimal = _decimal_of(value)
        return _written(*decimal) if decimal else None

    def text(self, value: exp.Expr) -> str | None:
        """Return the type of a call that returns a string for strings."""
        parts = [part for part in value.iter_expressions() if not isinstance(part, exp.Literal)]
        return "string" if all(self.type_of(part) == "string" for part in parts) else None

    def part_of_time(self, value: exp.Expr) -> str | None:
        """Return the type of EXTRACT."""
        return "int" if value.name.upper() in _PARTS_OF_A_DATE else None

    def subquery(self, value: exp.Expr) -> str | None:
        """Return the type of a subquery, for which a call stands."""
        nested = self._nested.get(value.name)
        if nested is None:
            return None
        return _of_tree(nested.tree, self._names)[0] if nested.kind == "SCALAR" else "boolean"

    def window(self, value: exp.Expr) -> str | None:
        """Return the type of a window function."""
        return self.type_of(functions.window_function(value)) if isinstance(value, exp.Window) else None


_Rule = Callable[[_TypedBlock, exp.Expr], str | None]
_RULES: tuple[tuple[tuple[type[exp.Expr], ...], _Rule], ...] = (
    ((exp.Column,), _TypedBlock.column),
    (_SAME, _TypedBlock.first),
    ((exp.Filter,), _TypedBlock.first),
    ((exp.Case, exp.If, exp.Coalesce, exp.Greatest, exp.Least), _TypedBlock.widest),
    ((exp.Sum,), _TypedBlock.sum),
    ((exp.Avg,), _TypedBlock.average),
    (_ARITHMETIC, _TypedBlock.arithmetic),
    ((exp.Cast, exp.TryCast), _TypedBlock.cast),
    ((exp.Literal,), _TypedBlock.literal),
    ((exp.Concat, exp.DPipe, exp.Substring), _TypedBlock.text),
    ((exp.Extract,), _TypedBlock.part_of_time),
    ((exp.Anonymous,), _TypedBlock.subquery),
    ((exp.Window,), _TypedBlock.window),
)


def _decimal(kind: str | None) -> _Decimal | None:
    found = _DECIMAL.fullmatch(kind or "")
    return (int(found[1]), int(found[2])) if found else None


def _written(precision: int, scale: int) -> str:
    return f"decimal({precision}, {scale})"


def _decimal_of(value: exp.Expr) -> _Decimal | None:
    """Return precision and scale of a number's text, such as ``0.06``: (2, 2)."""
    found = re.fullmatch(r"(\d*)\.?(\d*)", value.name)
    if found is None or value.is_string:
        return None
    digits, scale = len((found[1] + found[2]).lstrip("0")), len(found[2])
    return max(digits, scale, 1), scale


def _as_decimal(value: exp.Expr, kind: str | None) -> _Decimal | None:
    """Return the decimal type as which a number takes part in arithmetic with decimals."""
    inner = value.unnest()
    if isinstance(inner, exp.Literal):
        return _decimal_of(inner)
    return (_DIGITS[kind], 0) if kind in _DIGITS else _decimal(kind)


def _of_decimals(value: exp.Expr, one: _Decimal, other: _Decimal) -> str:
    (p1, s1), (p2, s2) = one, other
    if isinstance(value, exp.Mul):
        precision, scale = p1 + p2 + 1, s1 + s2
    elif isinstance(value, exp.Div):
        scale = max(_LEAST_SCALE, s1 + p2 + 1)
        precision = p1 - s1 + s2 + scale
    elif isinstance(value, exp.Mod):
        scale = max(s1, s2)
        precision = min(p1 - s1, p2 - s2) + scale
    else:
        scale = max(s1, s2)
        precision = max(p1 - s1, p2 - s2) + scale + 1
    if precision > _MAX:
        scale = max(_MAX - (precision - scale), min(scale, _LEAST_SCALE))
    return _written(min(precision, _MAX), scale)


def _common(kinds: Iterable[str | None]) -> str | None:
    """Return the type of a value that is one of several types."""
    given = list(kinds)
    return reduce(_wider, given) if given else None


def _wider(left: str | None, right: str | None) -> str | None:
    if left == right or left is None or right is None:
        return left if left == right else None
    if left in _DIGITS and right in _DIGITS:
        return max(left, right, key=_INTEGERS.index)
    one, other = ((_DIGITS[kind], 0) if kind in _DIGITS else _decimal(kind) for kind in (left, right))
    if one is None or other is None:
        return None
    scale, whole = max(one[1], other[1]), max(one[0] - one[1], other[0] - other[1])
    return _written(whole + scale, scale) if whole + scale <= _MAX else None
