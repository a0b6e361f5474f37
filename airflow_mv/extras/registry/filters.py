# SPDX-License-Identifier: Apache-2.0
"""Filters on the registry's rows, as Iceberg expressions. Those on partition columns skip whole files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from datetime import datetime
from typing import Any

from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    BoundPredicate,
    EqualTo,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
    Or,
)
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import bind
from pyparsing import ParseException

from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.errors import InvalidQueryError
from airflow_mv.extras.registry.homes import schema_of
from airflow_mv.extras.registry.model import Kind, month_of
from airflow_mv.foundation.redaction import shortened

Filter = BooleanExpression
#: Makes a filter on one column.
_Make = Callable[..., BooleanExpression]
_EQUAL: _Make = EqualTo
_AT_LEAST: _Make = GreaterThanOrEqual
_AT_MOST: _Make = LessThanOrEqual
_BEFORE: _Make = LessThan
_ONE_OF: _Make = In


def all_rows() -> Filter:
    """Return the filter that all rows pass."""
    return AlwaysTrue()


def equal(**values: str) -> Filter:
    """Return a filter for the values of columns."""
    return both(*(_EQUAL(name, value) for name, value in values.items()))


def one_of(column: str, values: Collection[str]) -> Filter:
    """Return a filter for a column that has one of these values."""
    return _ONE_OF(column, set(values))


def between(column: str, first: datetime, last: datetime) -> Filter:
    """Return a filter for a time, both ends included."""
    return both(_AT_LEAST(column, first.isoformat()), _AT_MOST(column, last.isoformat()))


def refreshed_since(moment: datetime) -> Filter:
    """Return a filter for the refreshes that were published since a time."""
    return both(_AT_LEAST("month", month_of(moment)), _AT_LEAST("refreshed_at", moment.isoformat()))


def before_month(month: str) -> Filter:
    """Return a filter for the refreshes that were published before a month, like ``2026-11``."""
    return _BEFORE("month", month)


def of_view(view: Identifier) -> Filter:
    """Return a filter for the rows of one view."""
    return equal(catalog=view.catalog, namespace=".".join(view.namespace), view=str(view))


def parse_filter(text: str, kind: Kind[Any], *, only_keys: bool = False) -> Filter:
    """Read a filter, such as ``view = 'lake.sales.daily' AND month >= '2026-11'``, in pyiceberg's syntax.

    Args:
        kind: The component whose columns it names.
        only_keys: Whether it may name only partition columns and the key.

    Raises:
        InvalidQueryError: It is no filter, names another column, or compares a column with a value of another type.
    """
    try:
        found = parse(text)
        names = set(_columns(bind(schema_of(kind), found, case_sensitive=True)))
    except ParseException as error:
        place = f"at character {error.loc + 1}: {shortened(text[error.loc :], 40)!r} was not expected"
        raise InvalidQueryError(f"the filter is not valid {place}. Example: {_example(kind)}") from None
    except (ValueError, TypeError, NotImplementedError) as error:
        columns = ", ".join(kind.model.model_fields)
        why = shortened(str(error), 200)
        raise InvalidQueryError(
            f"the filter does not fit the component {kind.name}: {why}. Its columns are {columns}; a time is written "
            "like '2026-11-01T00:00:00+00:00'"
        ) from None
    keys = {*kind.partitions, kind.key}
    if only_keys and (others := sorted(names - keys)):
        raise InvalidQueryError(
            f"the filter names {', '.join(others)}, but rows of the component {kind.name} are deleted by their keys: "
            f"{', '.join((*kind.partitions, kind.key))}"
        )
    return found


def _example(kind: Kind[Any]) -> str:
    return f"{kind.partitions[0]} = 'lake' AND {kind.key} = '…'"


def _columns(expression: Any) -> Iterator[str]:
    """Yield the names of the columns of a bound filter."""
    match expression:
        case And() | Or():
            yield from _columns(expression.left)
            yield from _columns(expression.right)
        case Not():
            yield from _columns(expression.child)
        case BoundPredicate():
            yield expression.term.ref().field.name


def both(*filters: Any) -> Filter:
    """Return the filter that rows pass which pass all of these."""
    found: Filter = AlwaysTrue()
    for item in filters:
        found = And(found, item)
    return found
