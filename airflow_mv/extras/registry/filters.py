# SPDX-License-Identifier: Apache-2.0
"""Filters on the registry's rows, as Iceberg expressions. Those on partition columns skip whole files."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any

from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.extras.registry.model import month_of

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


def both(*filters: Any) -> Filter:
    """Return the filter that rows pass which pass all of these."""
    found: Filter = AlwaysTrue()
    for item in filters:
        found = And(found, item)
    return found
