# SPDX-License-Identifier: Apache-2.0
"""Determine the types that Spark will give a query's columns, without Spark.

A type is returned only if it is certain; ``None`` stands for any other. Sources: Spark's documentation "ANSI
Compliance" (type coercion), its ``DecimalPrecision`` (arithmetic of decimals), and the result types of its aggregates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce

from sqlglot import exp

from airflow_mv.core.ivm import functions, ir
from airflow_mv.core.ivm.functions import DECIMAL, MAX_PRECISION, Operands, classes, fixed_types
from airflow_mv.core.ivm.ir import RefusedError
from airflow_mv.core.spec.reasons import Code
from airflow_mv.core.spec.times import parse_date
from airflow_mv.core.sql.query import fold

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
        kind: str = value.args["to"].sql(dialect="spark").lower()
        if kind == "decimal":
            return _written(10, 0)
        decimal = decimal_of(kind)
        return _written(*decimal) if decimal else kind if kind in PLAIN else None

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
    ((exp.Literal,), TypedBlock.literal),
    ((exp.Concat, exp.DPipe, exp.Substring), TypedBlock.text),
    ((exp.Extract,), TypedBlock.part_of_time),
    ((exp.Round,), TypedBlock.rounded),
    ((exp.Ceil, exp.Floor), TypedBlock.whole),
    ((exp.Anonymous,), TypedBlock.call),
    ((exp.Window,), TypedBlock.window),
)


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


# ------------ Determine the columns that Spark will give a query, without Spark, if everything in the query is certain
# ``column_types`` knows the types of a query that is known to be valid. Here it is also known that Spark will
# accept the query: each expression has operands that Spark takes, and aggregates, windows and subqueries are where
# they may be. Whatever is not listed here is not certain, and is refused: then Spark has to be asked.


#: Functions that only windows have.
_RANKS = (exp.RowNumber, *functions.RANKS)
_SHOWN = 80
_DATES = frozenset({"date", "timestamp", "timestamp_ntz"})
_TIMES = frozenset({"timestamp", "timestamp_ntz"})
_TEXT, _TRUTH, _WHOLE = frozenset({"string"}), frozenset({"boolean"}), frozenset(DIGITS)
#: Numbers that Spark reads together with their sign.
_SIGNED = frozenset({str(2**31), str(2**63)})
#: The types to which a value can be cast. A timestamp's type depends on a setting of the session.
_CASTS: Mapping[str, frozenset[str]] = {
    "string": PLAIN - _TIMES - {"binary"},
    "date": frozenset({"date", "string"}),
    "timestamp": frozenset({"string", "date"}),
    "timestamp_ntz": frozenset({"string", "date"}),
    "boolean": frozenset({"boolean", "string"}),
    VOID: PLAIN - _TIMES,
}


@dataclass(frozen=True, slots=True)
class CertainColumn:
    """A column of a query.

    Args:
        type: Its Spark type.
        origin: The alias and the column of the base table whose value it shows, and whose comment Spark gives it.
    """

    name: str
    type: str
    origin: tuple[str, str] | None


def certain_columns(tree: ir.Tree, names: tuple[str | None, ...]) -> tuple[CertainColumn, ...]:
    """Return the columns of a query.

    Args:
        tree: The query in normal form.
        names: The names of its columns; ``None`` for one that Spark chooses.

    Raises:
        RefusedError: Something is not certain. The message says what.
    """
    known = [name for name in names if name is not None]
    if len(known) < len(names):
        raise _uncertain("the name of a column that has no AS")
    if len({fold(name) for name in known}) < len(known):
        raise _uncertain("the query, which has two columns of one name,")
    types = CertainBlock.of_tree(tree, {})
    return tuple(
        CertainColumn(name, _shown(name, kind), _origin(tree, place))
        for place, (name, kind) in enumerate(zip(known, types, strict=True))
    )


def check_left_out(tree: exp.Expr) -> None:
    """Refuse what the normal form leaves out, if it is not certain that Spark accepts it.

    Args:
        tree: The query in sqlglot's tree.

    Raises:
        RefusedError: There is a WITH that is not used, or an ORDER BY by other things than columns of its SELECT.
    """
    ctes = list(tree.find_all(exp.CTE))
    if len({fold(cte.alias) for cte in ctes}) < len(ctes):
        raise _uncertain("two WITH of one name")
    for cte in ctes:
        tables = (table for table in tree.find_all(exp.Table) if fold(table.name) == fold(cte.alias))
        if all(table.find_ancestor(exp.CTE) is cte for table in tables):
            raise _uncertain(f"WITH {cte.alias}, which is not used,")
    for order in tree.find_all(exp.Order, exp.Sort, exp.Cluster, exp.Distribute):
        select = order.parent
        if isinstance(select, exp.Window):
            continue
        names = {fold(item.alias_or_name) for item in select.expressions} if isinstance(select, exp.Select) else set()
        keys = [item.this if isinstance(item, exp.Ordered) else item for item in order.expressions]
        if not all(isinstance(key, exp.Column) and not key.table and fold(key.name) in names for key in keys):
            raise _uncertain(_shown_text(order))


def _shown(name: str, kind: str | None) -> str:
    if kind is None or kind == VOID or not _is_plain(kind):
        raise _uncertain(f"the type of column {name}")
    return kind


def _is_plain(kind: str | None) -> bool:
    return kind in PLAIN or decimal_of(kind) is not None


def _origin(tree: ir.Tree, place: int) -> tuple[str, str] | None:
    """Return the column of a base table that a column of a query shows."""
    if isinstance(tree, ir.Compound):
        left, both = (CertainBlock.of_tree(each, {})[place] for each in (tree.left, tree))
        return _origin(tree.left, place) if left == both else None  # otherwise Spark casts it
    value = tree.outputs[place].value.unnest()
    if not isinstance(value, exp.Column):
        return None
    relation = next((item for item in tree.relations if item.alias == value.table), None)
    if relation is None:
        return None
    if isinstance(relation.source, ir.Base):
        return relation.alias, value.name
    if isinstance(relation.source, ir.Block | ir.Compound):
        return _origin(relation.source, ir.names(relation.source).index(value.name))
    return None


class CertainBlock(TypedBlock):
    """One SELECT of which everything is certain."""

    def __init__(self, block: ir.Block, outer: Names) -> None:
        super().__init__(block, outer)
        self._known: dict[int, str] = {}

    @classmethod
    def of_tree(cls, tree: ir.Tree, outer: Names) -> tuple[str | None, ...]:
        """Return the type of each column of a query.

        Raises:
            RefusedError: Something is not certain.
        """
        types = super().of_tree(tree, outer)
        if None in types:
            raise _uncertain(f"the type of column {types.index(None) + 1} of a set operator")
        return types

    def outputs(self) -> tuple[str | None, ...]:
        """Return the type of each column of the SELECT.

        Raises:
            RefusedError: Something is not certain.
        """
        block = self.block
        if block.laterals:
            raise _uncertain("LATERAL VIEW")
        for condition in (*(item.on for item in block.relations), block.where, block.having):
            if condition is not None and self.type_of(condition) != "boolean":
                raise _uncertain(_shown_text(condition))
        _check_calls(block)
        _check_subqueries(block)
        keys = block.grouping.keys if block.grouping is not None else ()
        for key in keys:
            if not _is_plain(self.type_of(key)):
                raise _uncertain(f"GROUP BY {_shown_text(key)}")
        types = super().outputs()
        if block.distinct and not all(kind == VOID or _is_plain(kind) for kind in types):
            raise _uncertain("DISTINCT")
        return types

    def type_of(self, value: exp.Expr) -> str | None:
        """Return the type of an expression.

        Raises:
            RefusedError: It is not certain, or it is not certain that Spark accepts the operands.
        """
        if isinstance(value, exp.Null):
            return VOID
        if id(value) not in self._known:
            allowed = _OPERANDS.get(type(value))
            kind = super().type_of(value) if allowed is not None and allowed(self, value) else None
            if kind is None:
                raise _uncertain(_shown_text(value))
            self._known[id(value)] = kind
        return self._known[id(value)]

    def all_of(self, value: exp.Expr, wanted: frozenset[str]) -> bool:
        """Whether all operands have certain types."""
        return all(self.type_of(item) in wanted for item in _operands(value))

    def numbers(self, value: exp.Expr) -> bool:
        """Whether all operands are numbers."""
        return all(is_number(self.type_of(item)) for item in _operands(value))

    def comparable(self, value: exp.Expr) -> bool:
        """Whether the operands can be compared with each other."""
        kinds = [self.type_of(item) for item in _operands(value)]
        return all(_can_compare(kinds[0], kind) for kind in kinds[1:])

    def arithmetic_fits(self, value: exp.Expr) -> bool:
        """Whether arithmetic is that of numbers, or of a date and an interval."""
        if isinstance(value.args.get("expression"), exp.Interval):
            amount = value.expression.this
            return isinstance(value, exp.Add | exp.Sub) and isinstance(amount, exp.Literal) and amount.name.isdigit()
        return self.numbers(value) or self.type_of(value.this) == "date"

    def cast_fits(self, value: exp.Expr) -> bool:
        """Whether a value can be cast."""
        to, kind = self.cast(value), self.type_of(value.this)
        if value.args.get("format") or to is None:
            return False
        if to == "date" and isinstance(value.this, exp.Literal):
            return value.this.is_string and _is_date(value.this.name)
        if is_number(kind):
            return is_number(to) or to == "string"
        target = "int" if decimal_of(to) else to
        return target in _CASTS.get(kind or "", frozenset())

    def branches_fit(self, value: exp.Expr) -> bool:
        """Whether the conditions of CASE or IF are conditions, or values that can be compared with the first one."""
        conditions = [branch.this for branch in value.args.get("ifs") or [value]]
        subject = value.this if isinstance(value, exp.Case) else None
        if subject is None:
            return all(self.type_of(item) == "boolean" for item in conditions)
        return all(_can_compare(self.type_of(subject), self.type_of(item)) for item in conditions)

    def counted(self, value: exp.Expr) -> bool:
        """Whether a count's arguments are known."""
        items = [item for item in _operands(value) if not isinstance(item, exp.Star)]
        return all(self.type_of(item) for item in items)

    def subquery_fits(self, value: exp.Expr) -> bool:
        """Whether a call is a subquery, or one of the known functions with its arguments."""
        nested = self.nested.get(value.name)
        if nested is None:
            rule = _CALLS.get(value.name.lower())
            return rule is not None and rule(self, value)
        inner = self.of_tree(nested.tree, self.names)
        if nested.kind == "IN":
            kinds = [self.type_of(item) for item in value.expressions]
            return len(kinds) == len(inner) and all(map(_can_compare, kinds, inner))
        return nested.kind == "EXISTS" or len(inner) == 1

    def window_fits(self, value: exp.Expr) -> bool:
        """Whether a window function has the parts that it needs, and a frame that Spark takes."""
        call, spec, order = value.this, value.args.get("spec"), value.args.get("order")
        ranks = isinstance(call, _RANKS)
        if not ranks and (not isinstance(call, _WINDOWED) or isinstance(call.this, exp.Distinct)):
            return False
        parts = [*(value.args.get("partition_by") or ()), *(item.this for item in (order.expressions if order else ()))]
        if (ranks and (order is None or spec is not None)) or value.args.get("alias") or value.args.get("first"):
            return False
        return (spec is None or _is_frame(spec)) and all(_is_plain(self.type_of(item)) for item in parts)


def _operands(value: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the expressions on which a call works, not its options."""
    for name in ("this", "low", "high", "expression", "expressions", "start", "length"):
        given = value.args.get(name)
        for item in given if isinstance(given, list) else [given]:
            if isinstance(item, exp.Distinct):
                yield from item.expressions
            elif isinstance(item, exp.Expr):
                yield item


def _can_compare(one: str | None, other: str | None) -> bool:
    if VOID in (one, other) or one == other:
        return (_is_plain(one) or one == VOID) and (_is_plain(other) or other == VOID)
    if is_number(one) and is_number(other):
        return True
    pair = {one, other}
    return pair <= _DATES or pair <= {"string", "date"} or (pair <= {"string", *_TIMES})


def _is_date(text: str) -> bool:
    try:
        parse_date(text)
    except ValueError:
        return False
    return len(text) == len("2020-01-01")


def _is_frame(spec: exp.Expr) -> bool:
    """Whether a frame is ROWS between the ends of the partition, the current row, or a number of rows."""
    edges = [spec.args.get(name) for name in ("start", "end")]
    simple = all(edge in ("UNBOUNDED", "CURRENT ROW", None) for edge in edges)
    return spec.text("kind").upper() == "ROWS" and simple and not spec.args.get("exclude")


# -------------------------------------------------------------------------------------- operands
_Check = Callable[[CertainBlock, exp.Expr], bool]
_WINDOWED = (exp.Sum, exp.Avg, exp.Count, exp.Min, exp.Max)


def _any(block: CertainBlock, value: exp.Expr) -> bool:
    return all(block.type_of(item) for item in _operands(value))


def _plain(block: CertainBlock, value: exp.Expr) -> bool:
    return all(_is_plain(block.type_of(item)) for item in _operands(value))


def _only(wanted: frozenset[str]) -> _Check:
    return lambda block, value: block.all_of(value, wanted)


def _bare(rule: _Check) -> _Check:
    """Return a rule for calls that have no option besides their operand."""
    return lambda block, value: {key for key, given in value.args.items() if given} <= {"this"} and rule(block, value)


def _leaf(block: CertainBlock, value: exp.Expr) -> bool:  # noqa: ARG001 (a rule's)
    return True


def _is_fits(block: CertainBlock, value: exp.Expr) -> bool:
    if isinstance(value.expression, exp.Boolean):
        return block.type_of(value.this) == "boolean"
    return isinstance(value.expression, exp.Null) and block.type_of(value.this) is not None


def _in_fits(block: CertainBlock, value: exp.Expr) -> bool:
    return {key for key, given in value.args.items() if given} == {"this", "expressions"} and block.comparable(value)


def _between_fits(block: CertainBlock, value: exp.Expr) -> bool:
    return not value.args.get("symmetric") and block.comparable(value)


def _negative_fits(block: CertainBlock, value: exp.Expr) -> bool:
    return block.numbers(value) and value.this.name not in _SIGNED


def _filtered_fits(block: CertainBlock, value: exp.Expr) -> bool:
    aggregate = functions.is_aggregate(value.this)
    return aggregate and block.type_of(value.expression.this) == "boolean"


def _substring_fits(block: CertainBlock, value: exp.Expr) -> bool:
    text, *numbers = _operands(value)
    return block.type_of(text) == "string" and all(block.type_of(item) in ("int", "smallint") for item in numbers)


def _extract_fits(block: CertainBlock, value: exp.Expr) -> bool:
    kind = block.type_of(value.expression)
    return kind in _TIMES or (kind == "date" and value.name.upper() in _OF_DATES)


def _days_fit(block: CertainBlock, value: exp.Expr) -> bool:
    if value.text("unit").upper() not in ("", "DAY") or block.type_of(value.this) not in _DATES:
        return False
    return block.type_of(value.expression) in ("int", "smallint")


def _difference_fits(block: CertainBlock, value: exp.Expr) -> bool:
    return not value.args.get("unit") and block.all_of(value, _DATES)


def _several(block: CertainBlock, value: exp.Expr) -> bool:
    return _any(block, value) and len(list(_operands(value))) > 1


def _withshown_text(wanted: frozenset[str], text: int) -> _Check:
    """Return a rule for a call whose argument at a position is a text, and the others of certain types."""

    def fits(block: CertainBlock, value: exp.Expr) -> bool:
        given = value.expressions
        if len(given) != 2 or not given[text].is_string:
            return False
        return block.type_of(given[1 - text]) in wanted

    return fits


def _one(wanted: frozenset[str]) -> _Check:
    return lambda block, value: len(value.expressions) == 1 and block.all_of(value, wanted)


_OF_DATES = frozenset({"YEAR", "QUARTER", "MONTH", "WEEK", "DAY"})
_PARTS = (exp.Year, exp.Quarter, exp.Month, exp.Day, exp.DayOfMonth, exp.DayOfWeek, exp.DayOfYear, exp.WeekOfYear)
_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ)
_NUMERIC = (exp.Sqrt, exp.Pow, exp.Exp, exp.Ln)
_AGGREGATED: Mapping[Operands, _Check] = {
    Operands.VALUES: CertainBlock.counted,
    Operands.PLAIN_VALUES: _bare(_plain),
    Operands.NUMBERS: _bare(CertainBlock.numbers),
    Operands.CONDITION: _bare(_only(_TRUTH)),
    Operands.GROUPING_KEYS: _any,
}
_OPERANDS: Mapping[type[exp.Expr], _Check] = {
    **dict.fromkeys((exp.Column, exp.Literal, exp.Boolean), _leaf),
    **dict.fromkeys(_RANKS, _leaf),
    exp.Paren: _any,
    exp.Neg: _negative_fits,
    **dict.fromkeys((exp.Not, exp.And, exp.Or), _only(_TRUTH)),
    **dict.fromkeys((*_COMPARISONS, exp.Nullif), CertainBlock.comparable),
    exp.Is: _is_fits,
    exp.In: _in_fits,
    exp.Between: _between_fits,
    **dict.fromkeys((exp.Like, exp.ILike, exp.RegexpLike, exp.DPipe), _only(_TEXT)),
    **dict.fromkeys((exp.Case, exp.If), CertainBlock.branches_fit),
    exp.Coalesce: _any,
    **dict.fromkeys((exp.Greatest, exp.Least), _several),
    **dict.fromkeys((exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod), CertainBlock.arithmetic_fits),
    exp.IntDiv: _only(_WHOLE),
    exp.Abs: _bare(CertainBlock.numbers),
    **dict.fromkeys(_NUMERIC, CertainBlock.numbers),
    **{call: rule for operands, rule in _AGGREGATED.items() for call in classes(operands=operands)},
    exp.Filter: _filtered_fits,
    exp.Window: CertainBlock.window_fits,
    exp.Anonymous: CertainBlock.subquery_fits,
    **dict.fromkeys((exp.Cast, exp.TryCast), CertainBlock.cast_fits),
    **dict.fromkeys((exp.TsOrDsToDate, exp.LastDay), _bare(_only(_DATES))),
    **dict.fromkeys(_PARTS, _bare(_only(frozenset({"date"})))),
    **dict.fromkeys((exp.Hour, exp.Minute, exp.Second), _bare(_only(_TIMES))),
    **dict.fromkeys((exp.TsOrDsAdd, exp.AddMonths), _days_fit),
    exp.DateDiff: _difference_fits,
    exp.Extract: _extract_fits,
    **dict.fromkeys((exp.Upper, exp.Lower, exp.Trim, exp.Length), _bare(_only(_TEXT))),
    exp.Concat: _only(_TEXT),
    exp.Substring: _substring_fits,
    exp.Round: CertainBlock.numbers,
    **dict.fromkeys((exp.Ceil, exp.Floor), _bare(CertainBlock.numbers)),
}
_CALLS: Mapping[str, _Check] = {
    "mean": lambda block, value: len(value.expressions) == 1 and block.numbers(value),
    "to_date": _one(_DATES),
    "date_trunc": _withshown_text(_DATES, 0),
    "trunc": _withshown_text(_DATES, 1),
    "date_format": _withshown_text(_DATES, 1),
}


# -------------------------------------------------- where aggregates, windows and subqueries may be


def _uncertain(what: str) -> RefusedError:
    """Return the error for something that is not certain."""
    return RefusedError(Code.UNSUPPORTED_OPERATOR, f"{what} is not certain without Spark")


def _shown_text(value: exp.Expr) -> str:
    """Return an expression's text, shortened.

    Args:
        value: The expression.
    """
    text = " ".join(value.sql(dialect="spark").split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _check_calls(block: ir.Block) -> None:
    """Refuse aggregates and windows where Spark does not take them, and columns that are not grouped by.

    Raises:
        RefusedError: There is one, or it is not certain.
    """
    keys = block.grouping.keys if block.grouping is not None else ()
    for value in (block.where, *(item.on for item in block.relations), *keys):
        if value is not None:
            _check_nested(value, aggregates=False, windows=False)
    shown = [item.value for item in block.outputs]
    for value in shown:
        _check_nested(value, aggregates=True, windows=True)
    if block.having is not None:
        _check_nested(block.having, aggregates=True, windows=False)
        shown.append(block.having)
    if block.grouping is not None or any(True for item in shown for _ in functions.aggregates(item)):
        for value in shown:
            _check_grouped(value, keys)
    elif block.having is not None:
        raise _uncertain("HAVING without groups")
    _check_grouping_calls(shown, block.grouping)


def _check_grouping_calls(values: list[exp.Expr], grouping: ir.Grouping | None) -> None:
    keys = grouping.keys if grouping is not None and grouping.sets is not None else ()
    for call in (found for value in values for found in value.find_all(exp.Grouping)):
        if any(item not in keys for item in call.expressions):
            raise _uncertain(_shown_text(call))


def _check_nested(value: exp.Expr, *, aggregates: bool, windows: bool) -> None:
    if isinstance(value, exp.Window):
        if not windows:
            raise _uncertain(_shown_text(value))
        for part in functions.window_parts(value):
            _check_nested(part, aggregates=aggregates, windows=False)
        return
    if functions.is_aggregate(value):
        if not aggregates or isinstance(value, _RANKS):
            raise _uncertain(_shown_text(value))
        aggregates = windows = False
    for part in value.iter_expressions():
        _check_nested(part, aggregates=aggregates, windows=windows)


def _check_grouped(value: exp.Expr, keys: tuple[exp.Expr, ...]) -> None:
    """Refuse a column that is neither a key nor below an aggregate."""
    if value in keys or value.unnest() in keys or isinstance(value, exp.Grouping):
        return
    if isinstance(value, exp.Window):
        parts = functions.window_parts(value)
    elif functions.is_aggregate(value):
        return
    elif isinstance(value, exp.Column):
        raise _uncertain(f"{_shown_text(value)} beside aggregates")
    else:
        parts = list(value.iter_expressions())
    for part in parts:
        _check_grouped(part, keys)


def _check_subqueries(block: ir.Block) -> None:
    """Refuse subqueries where Spark may not take them.

    Raises:
        RefusedError: There is one.
    """
    conditions = {nested.mark for value in (block.where, block.having) for nested in ir.marks(value, block)}
    for nested in block.nested:
        if nested.kind != "SCALAR" and nested.mark not in conditions:
            raise _uncertain(f"{nested.kind} in this place")
        if nested.outer:
            _check_correlated(nested, in_where=nested.mark in {item.mark for item in ir.marks(block.where, block)})


def _check_correlated(nested: ir.Nested, *, in_where: bool) -> None:
    """Refuse a subquery that names outer columns in another place than its own WHERE, or with other comparisons."""
    inner = nested.tree
    fits = in_where and isinstance(inner, ir.Block) and inner.grouping is None and inner.having is None
    if not fits or not isinstance(inner, ir.Block) or any(item.outer & nested.outer for item in inner.nested):
        raise _uncertain("a subquery that names outer columns here")
    values = [item.value for item in inner.outputs]
    aggregated = [any(True for _ in functions.aggregates(value)) for value in values]
    elsewhere = [*values, *(item.on for item in inner.relations)]
    if any(ir.aliases(value, inner) & nested.outer for value in elsewhere if value is not None):
        raise _uncertain("a subquery that names outer columns outside of its WHERE")
    if nested.kind != "SCALAR":
        if any(aggregated) or inner.distinct or any(value.find(exp.Window) for value in values):
            raise _uncertain("a subquery that names outer columns and aggregates")
        return
    equalities = all(_is_equality(part, nested.outer) for part in ir.conjuncts(inner.where))
    if not all(aggregated) or not equalities:
        raise _uncertain("a scalar subquery that names outer columns")


def _is_equality(condition: exp.Expr, outer: frozenset[str]) -> bool:
    """Whether a condition names no outer column, or equates outer with inner ones."""
    named = {column.table for column in condition.find_all(exp.Column)}
    if not named & outer:
        return True
    if not isinstance(condition, exp.EQ):
        return False
    sides = [{column.table for column in side.find_all(exp.Column)} for side in (condition.left, condition.right)]
    return any(one <= outer and not other & outer for one, other in (sides, sides[::-1]))
