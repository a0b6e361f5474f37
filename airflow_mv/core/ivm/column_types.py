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

from airflow_mv.core.ivm import functions, ir
from airflow_mv.core.ivm.functions import DECIMAL, MAX_PRECISION, classes, fixed_types

Names = Mapping[tuple[str, str], str | None]
_Decimal = tuple[int, int]

_LEAST_SCALE = 6
#: Integers, narrowest first, each with the digits of its largest value.
DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
_INTEGERS = list(DIGITS)
_LARGEST_INT, _LARGEST_BIGINT = 2**31 - 1, 2**63 - 1
#: The type of NULL, which takes any other type.
VOID = "void"
#: The types without parts, but the decimals.
PLAIN = frozenset({*DIGITS, "float", "double", "boolean", "string", "date", "timestamp", "timestamp_ntz", "binary"})

#: Calls whose type does not depend on their arguments.
_FIXED: Mapping[type[exp.Expr], str] = {
    **fixed_types(),
    exp.IntDiv: "bigint",
    exp.AtTimeZone: "timestamp",
    exp.FromTimeZone: "timestamp",
    exp.Predicate: "boolean",
    exp.Connector: "boolean",
    exp.Not: "boolean",
    exp.Boolean: "boolean",
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
    exp.WeekOfYear: "int",
    exp.Hour: "int",
    exp.Minute: "int",
    exp.Second: "int",
    exp.Length: "int",
    exp.Ntile: "int",
    exp.Sqrt: "double",
    exp.Pow: "double",
    exp.Exp: "double",
    exp.Ln: "double",
    exp.PercentRank: "double",
    exp.CumeDist: "double",
    exp.TsOrDsAdd: "date",
    exp.AddMonths: "date",
    exp.LastDay: "date",
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
_SAME: tuple[type[exp.Expr], ...] = (
    *(exp.Paren, exp.Neg, exp.Abs, exp.Nullif),
    *classes(returns="argument"),
)
_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod)
#: Functions that sqlglot does not know.
_OTHERS = {"to_date": "date", "trunc": "date", "date_trunc": "timestamp", "date_format": "string"}
_UNITS_OF_DATES = frozenset({"YEAR", "YEARS", "MONTH", "MONTHS", "WEEK", "WEEKS", "DAY", "DAYS"})
_PARTS_OF_A_DATE = frozenset({"YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE"})


def column_types(tree: ir.Tree) -> tuple[str | None, ...]:
    """Return the Spark type of each column of a query; ``None`` where it is not certain.

    Args:
        tree: The query in normal form.
    """
    return TypedBlock.of_tree(tree, {})


class TypedBlock:
    """One SELECT, and the types of the columns that its expressions name.

    Args:
        block: The SELECT.
        outer: The types of the columns of outer queries, for a subquery.
    """

    def __init__(self, block: ir.Block, outer: Names) -> None:
        self.block = block
        self.names: dict[tuple[str, str], str | None] = dict(outer)
        for relation in block.relations:
            source = relation.source
            types: Iterable[str | None] = ()
            if isinstance(source, ir.Base):
                types = source.types
            elif isinstance(source, ir.Block | ir.Compound):
                types = self.of_tree(source, {})
            self.names |= {(relation.alias, name): kind for name, kind in zip(ir.names(source), types, strict=False)}
        self.nested = {nested.mark: nested for nested in block.nested}

    @classmethod
    def of_tree(cls, tree: ir.Tree, outer: Names) -> tuple[str | None, ...]:
        """Return the type of each column of a query."""
        if isinstance(tree, ir.Block):
            return cls(tree, outer).outputs()
        sides = zip(cls.of_tree(tree.left, outer), cls.of_tree(tree.right, outer), strict=True)
        return tuple(common_type(pair) for pair in sides)

    def outputs(self) -> tuple[str | None, ...]:
        """Return the type of each column of the SELECT."""
        return tuple(self.type_of(item.value) for item in self.block.outputs)

    def type_of(self, value: exp.Expr) -> str | None:
        """Return the type of an expression."""
        kind = next((kind for cls, kind in _FIXED.items() if isinstance(value, cls)), None)
        if kind is not None:
            return kind
        rule = next((rule for classes, rule in _RULES if isinstance(value, classes)), None)
        return None if rule is None else rule(self, value)

    def column(self, value: exp.Expr) -> str | None:
        """Return the type of a column."""
        return self.names.get((value.args["table"].name if value.args.get("table") else "", value.name))

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
        return common_type(self.type_of(part) for part in given)

    def sum(self, value: exp.Expr) -> str | None:
        """Return the type of a sum."""
        inner = value.this.expressions[0] if isinstance(value.this, exp.Distinct) else value.this
        kind = self.type_of(inner)
        if kind in DIGITS:
            return "bigint"
        decimal = decimal_of(kind)
        if decimal is not None:
            return _written(min(decimal[0] + 10, MAX_PRECISION), decimal[1])
        return "double" if kind in ("float", "double") else None

    def average(self, value: exp.Expr) -> str | None:
        """Return the type of an average."""
        return self._mean(self.type_of(value.this))

    @staticmethod
    def _mean(kind: str | None) -> str | None:
        decimal = decimal_of(kind)
        if decimal is not None:
            return _written(min(decimal[0] + 4, MAX_PRECISION), min(decimal[1] + 4, MAX_PRECISION))
        return "double" if kind in (*DIGITS, "float", "double") else None

    def arithmetic(self, value: exp.Expr) -> str | None:
        """Return the type of ``+ - * / %``."""
        if isinstance(value.expression, exp.Interval):
            return self._moved(value)
        left, right = self.type_of(value.this), self.type_of(value.expression)
        if left == "date" and isinstance(value, exp.Add | exp.Sub):
            return "date" if right in ("tinyint", "smallint", "int") else None
        if "double" in (left, right):
            return "double" if is_number(left) and is_number(right) else None
        if left in DIGITS and right in DIGITS:
            return "double" if isinstance(value, exp.Div) else common_type((left, right))
        one, other = _as_decimal(value.this, left), _as_decimal(value.expression, right)
        return None if one is None or other is None else _of_decimals(value, one, other)

    def _moved(self, value: exp.Expr) -> str | None:
        """Return the type of a date plus or minus an interval."""
        whole = value.expression.text("unit").upper() in _UNITS_OF_DATES
        return "date" if whole and self.type_of(value.this) == "date" else None

    def rounded(self, value: exp.Expr) -> str | None:
        """Return the type of ROUND to a number of decimal places that is not negative."""
        kind, places = self.type_of(value.this), value.args.get("decimals")
        decimal = decimal_of(kind)
        if places is not None and not re.fullmatch(r"\d+", places.name if isinstance(places, exp.Literal) else ""):
            return None
        if decimal is None:
            return kind if kind == "double" else None
        precision, scale = decimal
        kept = min(scale, int(places.name) if places is not None else 0)
        return _written(min(precision - scale + 1 + kept, MAX_PRECISION), kept)

    def whole(self, value: exp.Expr) -> str | None:
        """Return the type of CEIL and FLOOR without a number of decimal places."""
        kind = self.type_of(value.this)
        decimal = decimal_of(kind)
        if decimal is not None:
            return _written(min(decimal[0] - decimal[1] + 1, MAX_PRECISION), 0)
        return "bigint" if kind in ("bigint", "double") else None

    def cast(self, value: exp.Expr) -> str | None:
        """Return the type that a value is cast to."""
        return _plain_name(value.args["to"])

    def nested_part(self, value: exp.Expr) -> str | None:
        """Return the type of a field, an element or a value of a map; ``None`` if it has parts itself."""
        kind = self._nested_type(value)
        return None if kind is None else _plain_name(kind)

    def column_kind(self, value: exp.Expr) -> str | None:
        """Return the type of a column, or of a part of one, with all of its own parts."""
        kind = self._nested_type(value)
        return None if kind is None else str(kind.sql(dialect="spark"))

    def _nested_type(self, value: exp.Expr) -> exp.DataType | None:
        value = value.unnest()
        if isinstance(value, exp.Column):
            written = self.column(value)
            return None if written is None else exp.DataType.build(written, dialect="spark")
        if not isinstance(value, exp.Dot | exp.Bracket) or (kind := self._nested_type(value.this)) is None:
            return None
        if isinstance(value, exp.Bracket):
            return kind.expressions[-1] if kind.this in (exp.DType.ARRAY, exp.DType.MAP) and kind.expressions else None
        if kind.this != exp.DType.STRUCT:
            return None
        named = [item for item in kind.expressions if item.name.lower() == value.expression.name.lower()]
        return named[0].args.get("kind") if len(named) == 1 else None

    def literal(self, value: exp.Expr) -> str | None:
        """Return the type of a literal."""
        if value.is_string:
            return "string"
        if re.fullmatch(r"\d+", value.name) and int(value.name) <= _LARGEST_BIGINT:
            return "int" if int(value.name) <= _LARGEST_INT else "bigint"
        decimal = _decimal_literal(value)
        return _written(*decimal) if decimal else None

    def text(self, value: exp.Expr) -> str | None:
        """Return the type of a call that returns a string for strings."""
        parts = [part for part in value.iter_expressions() if not isinstance(part, exp.Literal)]
        return "string" if all(self.type_of(part) == "string" for part in parts) else None

    def part_of_time(self, value: exp.Expr) -> str | None:
        """Return the type of EXTRACT."""
        return "int" if value.name.upper() in _PARTS_OF_A_DATE else None

    def call(self, value: exp.Expr) -> str | None:
        """Return the type of a subquery, for which a call stands, or of a function that sqlglot does not know."""
        nested = self.nested.get(value.name)
        if nested is None:
            name = value.name.lower()
            return self._mean(self.type_of(value.expressions[0])) if name == "mean" else _OTHERS.get(name)
        return self.of_tree(nested.tree, self.names)[0] if nested.kind == "SCALAR" else "boolean"

    def window(self, value: exp.Expr) -> str | None:
        """Return the type of a window function."""
        return self.type_of(functions.window_function(value)) if isinstance(value, exp.Window) else None


_Rule = Callable[[TypedBlock, exp.Expr], str | None]
_RULES: tuple[tuple[tuple[type[exp.Expr], ...], _Rule], ...] = (
    ((exp.Column,), TypedBlock.column),
    (_SAME, TypedBlock.first),
    ((exp.Filter,), TypedBlock.first),
    ((exp.Case, exp.If, exp.Coalesce, exp.Greatest, exp.Least), TypedBlock.widest),
    ((exp.Sum,), TypedBlock.sum),
    ((exp.Avg,), TypedBlock.average),
    (_ARITHMETIC, TypedBlock.arithmetic),
    ((exp.Cast, exp.TryCast), TypedBlock.cast),
    ((exp.Dot, exp.Bracket), TypedBlock.nested_part),
    ((exp.Literal,), TypedBlock.literal),
    ((exp.Concat, exp.DPipe, exp.Substring), TypedBlock.text),
    ((exp.Extract,), TypedBlock.part_of_time),
    ((exp.Round,), TypedBlock.rounded),
    ((exp.Ceil, exp.Floor), TypedBlock.whole),
    ((exp.Anonymous,), TypedBlock.call),
    ((exp.Window,), TypedBlock.window),
)


def _plain_name(to: exp.Expr) -> str | None:
    """Return a type as a column has it; ``None`` for one that has parts."""
    kind: str = to.sql(dialect="spark").lower()
    if kind == "decimal":
        return _written(10, 0)
    decimal = decimal_of(kind)
    return _written(*decimal) if decimal else kind if kind in PLAIN else None


def is_number(kind: str | None) -> bool:
    """Whether a type is one of numbers."""
    return kind in DIGITS or kind in ("float", "double") or decimal_of(kind) is not None


def decimal_of(kind: str | None) -> _Decimal | None:
    """Return precision and scale of a decimal type."""
    found = DECIMAL.fullmatch(kind or "")
    return (int(found[1]), int(found[2])) if found else None


def _written(precision: int, scale: int) -> str:
    return f"decimal({precision}, {scale})"


def _decimal_literal(value: exp.Expr) -> _Decimal | None:
    """Return precision and scale of a number's text, such as ``0.06``: (2, 2)."""
    found = re.fullmatch(r"(\d*)\.?(\d*)", value.name)
    if found is None or value.is_string:
        return None
    digits, scale = len((found[1] + found[2]).lstrip("0")), len(found[2])
    return max(digits, scale, 1), scale


def _as_decimal(value: exp.Expr, kind: str | None) -> _Decimal | None:
    """Return the decimal type as which a number takes part in arithmetic with decimals."""
    inner = value.unnest()
    if isinstance(inner, exp.Neg):  # Spark reads the sign as a part of the literal
        inner = inner.this
    if isinstance(inner, exp.Literal):
        return _decimal_literal(inner)
    return (DIGITS[kind], 0) if kind in DIGITS else decimal_of(kind)


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
    if precision > MAX_PRECISION:
        scale = max(MAX_PRECISION - (precision - scale), min(scale, _LEAST_SCALE))
    return _written(min(precision, MAX_PRECISION), scale)


def common_type(kinds: Iterable[str | None]) -> str | None:
    """Return the type of a value that is one of several types.

    Args:
        kinds: The types.
    """
    given = list(kinds)
    return reduce(_wider, given) if given else None


def _wider(left: str | None, right: str | None) -> str | None:
    if VOID in (left, right):
        return right if left == VOID else left
    if left == right or left is None or right is None:
        return left if left == right else None
    if left in DIGITS and right in DIGITS:
        return max(left, right, key=_INTEGERS.index)
    if "double" in (left, right):
        return "double" if all(map(is_number, (left, right))) else None
    one, other = ((DIGITS[kind], 0) if kind in DIGITS else decimal_of(kind) for kind in (left, right))
    if one is None or other is None:
        return None
    scale, whole = max(one[1], other[1]), max(one[0] - one[1], other[0] - other[1])
    return _written(whole + scale, scale) if whole + scale <= MAX_PRECISION else None
