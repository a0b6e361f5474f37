# SPDX-License-Identifier: Apache-2.0
"""Aggregates of which a change and the stored value give the new value."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqlglot import exp

from airflow_mv.plan.incremental.exact import DIGITS_OF_DOUBLES
from airflow_mv.plan.incremental.model import RefusedError
from airflow_mv.plan.reasons import Code

_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")
_MAX_PRECISION = 38
#: Holds each BIGINT. Its product with an INT has 31 digits: ten million times the largest is a sum that fits.
_WIDER = "DECIMAL(20, 0)"
#: Digits that a quotient must have beyond those shown, so that rounding twice cannot differ from once.
_SPARE_DIGITS = 9
#: Characters of an expression in a message.
_SHOWN = 90
_SEMIGROUPS = (exp.Min, exp.Max, exp.LogicalAnd, exp.LogicalOr, exp.BitwiseAndAgg, exp.BitwiseOrAgg)


@dataclass(frozen=True, slots=True)
class Part:
    """One aggregate among a view's columns, taken apart."""

    call: exp.Expr
    #: What it aggregates; ``None``: whole rows.
    argument: exp.Expr | None
    #: Each copy of a row must be a row of its own: a product with the weight might not fit.
    needs_copies: bool = False
    #: The change is summed up in a wider type: what comes and goes may be more than what is left.
    widened: bool = False

    @property
    def is_row_count(self) -> bool:
        """Whether it counts the rows of the group."""
        return isinstance(self.call, exp.Count) and self.argument is None

    @property
    def is_sum(self) -> bool:
        """Whether it is a sum, which is NULL where no value is left."""
        return isinstance(self.call, exp.Sum)

    def partial(self, argument: exp.Expr, weight: exp.Expr) -> exp.Expr:
        """Return the aggregate over the change.

        Args:
            argument: The column that holds the values.
            weight: The column that holds how many copies came or went.
        """
        zero = exp.Literal.number(0)
        if isinstance(self.call, exp.Count):
            if self.argument is None:
                return exp.Sum(this=weight.copy())
            present = exp.Not(this=exp.Is(this=argument.copy(), expression=exp.Null()))
            return exp.Sum(this=_case(present, weight, zero))
        if isinstance(self.call, exp.CountIf):
            return exp.Sum(this=_case(argument, weight, zero))
        if not isinstance(self.call, exp.Sum):
            return type(self.call)(this=argument.copy())
        if self.widened:
            argument = _cast(argument, _WIDER)
        if self.needs_copies:
            came = exp.GT(this=weight.copy(), expression=zero)
            return exp.Sum(this=_case(came, argument, exp.Neg(this=argument.copy())))
        return exp.Sum(this=exp.Mul(this=argument.copy(), expression=weight.copy()))

    def combined(self, column: exp.Expr) -> exp.Expr:
        """Return the aggregate over the stored and the partial values."""
        counts = isinstance(self.call, exp.Count | exp.CountIf | exp.Sum)
        return exp.Sum(this=column.copy()) if counts else type(self.call)(this=column.copy())


def part(value: exp.Expr, kind: str, *, appended_only: bool) -> Part:
    """Take an aggregate apart.

    Args:
        value: A column of the view that is one call, perhaps with FILTER.
        kind: The column's Spark type.
        appended_only: Whether rows only came.

    Raises:
        RefusedError: The change and the stored value do not give the new value.
    """
    call, condition = (value.this, value.expression.this) if isinstance(value, exp.Filter) else (value, None)
    argument = _argument(call)
    if isinstance(call, exp.Count) and not isinstance(call.this, exp.Distinct) and not call.expressions:
        if argument is None and condition is not None:
            return Part(exp.CountIf(this=condition), condition)
        return Part(call, _filtered(argument, condition))
    if isinstance(call, exp.CountIf | exp.Sum) and not isinstance(call.this, exp.Distinct):
        if not isinstance(call, exp.Sum):
            return Part(call, _filtered(argument, condition))
        widened = kind.lower() == "bigint"
        return Part(call, _filtered(argument, condition), _needs_copies(kind), widened)
    if isinstance(call, _SEMIGROUPS) and not isinstance(call.this, exp.Distinct) and not call.args.get("having"):
        if appended_only:
            return Part(call, _filtered(argument, condition))
        message = f"{written(call)} cannot forget rows that went"
        raise RefusedError(Code.NOT_ADDITIVE, message)
    raise RefusedError(Code.NOT_ADDITIVE, f"{written(value)} needs all rows of its group")


def average(total: tuple[exp.Expr, str], count: exp.Expr, kind: str) -> exp.Expr:
    """Return an average as Spark computes it from a sum and a count.

    Args:
        total: The sum, and its Spark type.
        count: How many values there are.
        kind: Spark type of the average.

    Raises:
        RefusedError: The quotient might be rounded otherwise.
    """
    value, total_kind = total
    decimal, shown = _DECIMAL.fullmatch(total_kind.lower()), _DECIMAL.fullmatch(kind.lower())
    if decimal and shown and int(shown[1]) <= DIGITS_OF_DOUBLES:
        # Spark makes the average of short decimals of doubles, which rounds a half otherwise.
        power = exp.Literal.number(10 ** int(decimal[2]))
        digits = _cast(exp.Mul(this=exp.Paren(this=value.copy()), expression=power), "DOUBLE")
        mean = exp.Div(this=digits, expression=_cast(count, "DOUBLE"), typed=False, safe=False)
        divided = exp.Div(this=mean, expression=_cast(power, "DOUBLE"), typed=False, safe=False)
    elif decimal and shown:
        precision, scale = int(decimal[1]), int(decimal[2])
        quotient_scale = max(_MAX_PRECISION - (precision - scale), 6)
        if precision + 21 <= _MAX_PRECISION:
            quotient_scale = scale + 21
        if quotient_scale - int(shown[2]) < _SPARE_DIGITS:
            raise RefusedError(Code.NOT_ADDITIVE, "an average of such wide decimals might be rounded otherwise")
        divided = exp.Div(this=value.copy(), expression=_cast(count, "DECIMAL(20, 0)"), typed=False, safe=False)
    elif total_kind.lower() == "bigint" and kind.lower() == "double":
        divided = exp.Div(this=_cast(value, "DOUBLE"), expression=_cast(count, "DOUBLE"), typed=False, safe=False)
    else:
        raise RefusedError(Code.NOT_ADDITIVE, f"an average of type {kind} is not maintained")
    some = exp.GT(this=count.copy(), expression=exp.Literal.number(0))
    return _cast(exp.Case(ifs=[exp.If(this=some, true=divided)]), kind)


def _argument(call: exp.Expr) -> exp.Expr | None:
    argument = call.this
    if isinstance(call, exp.Count) and (isinstance(argument, exp.Star | exp.Literal) or argument is None):
        return None
    return argument if isinstance(argument, exp.Expr) else None


def _filtered(argument: exp.Expr | None, condition: exp.Expr | None) -> exp.Expr | None:
    if condition is None or argument is None:
        return argument
    return exp.Case(ifs=[exp.If(this=condition.copy(), true=argument.copy())])


def _needs_copies(kind: str) -> bool:
    if kind.lower() == "bigint":
        return False
    decimal = _DECIMAL.fullmatch(kind.lower())
    if decimal is None:
        message = f"a sum of type {kind} is never added to: its last digits depend on the order of the rows"
        raise RefusedError(Code.NOT_ADDITIVE, message)
    # A sum of DECIMAL(p, s) is DECIMAL(p + 10, s), and a product with an INT has p + 11 digits: below 38 it fits.
    return int(decimal[1]) >= _MAX_PRECISION


def _case(condition: exp.Expr, value: exp.Expr, otherwise: exp.Expr) -> exp.Case:
    return exp.Case(ifs=[exp.If(this=condition.copy(), true=value.copy())], default=otherwise.copy())


def _cast(value: exp.Expr, kind: str) -> exp.Expr:
    return exp.cast(value.copy(), exp.DataType.build(kind, dialect="spark"))


def written(value: exp.Expr) -> str:
    """Return an expression as people write it: columns by their bare names, and not all of a long one."""
    bare = value.transform(lambda node: exp.column(node.name) if isinstance(node, exp.Column) else node)
    text = bare.sql(dialect="spark")
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
