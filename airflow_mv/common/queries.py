# SPDX-License-Identifier: Apache-2.0
"""A view's query: its text in each dialect, and its normal form for other questions than how to refresh it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from airflow_mv.core.ivm import BaseRelation, ir
from airflow_mv.core.ivm.incremental_query import normal_form, unless_refused
from airflow_mv.core.ivm.resolve import Resolver, UnknownNameError
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.reasons import Reason
from airflow_mv.core.spec.view import DIALECT, ViewMetadata
from airflow_mv.core.sql.query import NestedView, ParsedQuery, query_error, spark_sql
from airflow_mv.errors import MaterializedViewError

_Plan = TypeVar("_Plan")


def texts_of(metadata: ViewMetadata, *, view: str) -> dict[str, str]:
    """Return a view's query by dialect: the one that Spark runs, if there is one, and each text that is stored."""
    found = metadata.current_version.texts
    with suppress(MaterializedViewError):
        return {DIALECT: spark_sql(metadata, view=view), **found}
    return found


def use_of(
    query: ParsedQuery,
    relations: Sequence[BaseRelation],
    views: Mapping[Identifier, NestedView],
    use: Callable[[Resolver, ir.Tree, Sequence[str | None]], _Plan],
    *,
    strict: bool = False,
) -> _Plan | Reason:
    """Return what a function makes of a query in normal form.

    Args:
        relations: Its base tables, those of nested views too.
        use: Takes the normal form and the name of each column, ``None`` for one that Spark chooses.
        strict: Whether an unknown name is an error, because the relations have all columns that a refresh would read.

    Returns:
        Its result; or why the query cannot be analysed.

    Raises:
        InvalidQueryError: With ``strict``: Spark would not find a column or a field. The message has the place.
    """

    def build() -> _Plan:
        resolver = Resolver(relations, views)
        return use(resolver, *normal_form(resolver, query))

    return unless_refused(lambda: _located(query, build) if strict else build())


def _located(query: ParsedQuery, build: Callable[[], _Plan]) -> _Plan:
    """Turn an unknown name into an error that quotes its place."""
    try:
        return build()
    except UnknownNameError as error:
        if error.place is None:
            raise
        raise query_error(query.text, error.place, error.reason.message, query.view) from None
