# SPDX-License-Identifier: Apache-2.0
"""Where aggregates, windows and subqueries may be in a query, so that Spark surely accepts it."""

from __future__ import annotations

from sqlglot import exp

from airflow_mv.ivm import functions, ir
from airflow_mv.ivm.model import RefusedError
from airflow_mv.spec.reasons import Code

#: Functions that only windows have.
RANKS = (exp.RowNumber, exp.Rank, exp.DenseRank, exp.PercentRank, exp.CumeDist)
_SHOWN = 80


def uncertain(what: str) -> RefusedError:
    """Return the error for something that is not certain.

    Args:
        what: The thing.
    """
    return RefusedError(Code.UNSUPPORTED_OPERATOR, f"{what} is not certain without Spark")


def shown_text(value: exp.Expr) -> str:
    """Return an expression's text, shortened.

    Args:
        value: The expression.
    """
    text = " ".join(value.sql(dialect="spark").split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def check_calls(block: ir.Block) -> None:
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
        raise uncertain("HAVING without groups")
    _check_grouping_calls(shown, block.grouping)


def _check_grouping_calls(values: list[exp.Expr], grouping: ir.Grouping | None) -> None:
    keys = grouping.keys if grouping is not None and grouping.sets is not None else ()
    for call in (found for value in values for found in value.find_all(exp.Grouping)):
        if any(item not in keys for item in call.expressions):
            raise uncertain(shown_text(call))


def _check_nested(value: exp.Expr, *, aggregates: bool, windows: bool) -> None:
    if isinstance(value, exp.Window):
        if not windows:
            raise uncertain(shown_text(value))
        inner = functions.window_function(value)
        parts = [*inner.iter_expressions(), *(item for item in value.iter_expressions() if item is not value.this)]
        for part in parts:
            _check_nested(part, aggregates=aggregates, windows=False)
        return
    if functions.is_aggregate(value):
        if not aggregates or isinstance(value, RANKS):
            raise uncertain(shown_text(value))
        aggregates = windows = False
    for part in value.iter_expressions():
        _check_nested(part, aggregates=aggregates, windows=windows)


def _check_grouped(value: exp.Expr, keys: tuple[exp.Expr, ...]) -> None:
    """Refuse a column that is neither a key nor below an aggregate."""
    if value in keys or value.unnest() in keys or isinstance(value, exp.Grouping):
        return
    if isinstance(value, exp.Window):
        inner = functions.window_function(value)
        parts = [*inner.iter_expressions(), *(item for item in value.iter_expressions() if item is not value.this)]
    elif functions.is_aggregate(value):
        return
    elif isinstance(value, exp.Column):
        raise uncertain(f"{shown_text(value)} beside aggregates")
    else:
        parts = list(value.iter_expressions())
    for part in parts:
        _check_grouped(part, keys)


def check_subqueries(block: ir.Block) -> None:
    """Refuse subqueries where Spark may not take them.

    Raises:
        RefusedError: There is one.
    """
    conditions = {nested.mark for value in (block.where, block.having) for nested in ir.marks(value, block)}
    for nested in block.nested:
        if nested.kind != "SCALAR" and nested.mark not in conditions:
            raise uncertain(f"{nested.kind} in this place")
        if nested.outer:
            _check_correlated(nested, in_where=nested.mark in {item.mark for item in ir.marks(block.where, block)})


def _check_correlated(nested: ir.Nested, *, in_where: bool) -> None:
    """Refuse a subquery that names outer columns in another place than its own WHERE, or with other comparisons."""
    inner = nested.tree
    fits = in_where and isinstance(inner, ir.Block) and inner.grouping is None and inner.having is None
    if not fits or not isinstance(inner, ir.Block) or any(item.outer & nested.outer for item in inner.nested):
        raise uncertain("a subquery that names outer columns here")
    values = [item.value for item in inner.outputs]
    aggregated = [any(True for _ in functions.aggregates(value)) for value in values]
    elsewhere = [*values, *(item.on for item in inner.relations)]
    if any(ir.aliases(value, inner) & nested.outer for value in elsewhere if value is not None):
        raise uncertain("a subquery that names outer columns outside of its WHERE")
    if nested.kind != "SCALAR":
        if any(aggregated) or inner.distinct or any(value.find(exp.Window) for value in values):
            raise uncertain("a subquery that names outer columns and aggregates")
        return
    equalities = all(_is_equality(part, nested.outer) for part in ir.conjuncts(inner.where))
    if not all(aggregated) or not equalities:
        raise uncertain("a scalar subquery that names outer columns")


def _is_equality(condition: exp.Expr, outer: frozenset[str]) -> bool:
    """Whether a condition names no outer column, or equates outer with inner ones."""
    named = {column.table for column in condition.find_all(exp.Column)}
    if not named & outer:
        return True
    if not isinstance(condition, exp.EQ):
        return False
    sides = [{column.table for column in side.find_all(exp.Column)} for side in (condition.left, condition.right)]
    return any(one <= outer and not other & outer for one, other in (sides, sides[::-1]))
