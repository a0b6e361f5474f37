# SPDX-License-Identifier: Apache-2.0
"""Whether a query names a column of a table, or groups by it, as far as its text shows without any schema."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from sqlglot import exp

from airflow_mv.errors import InvalidIdentifierError
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.sql.query import ParsedQuery


def names_column(query: ParsedQuery, table: Identifier, column: str, output: Collection[str]) -> bool:
    """Whether a query names a column of a table that it reads. Case is ignored.

    A name without a qualifier counts for every table of the query. ``*`` counts for the columns that the query returns.

    Args:
        query: The query.
        table: The table.
        column: The column.
        output: The columns that the query returns.
    """
    wanted, own = column.casefold(), {alias.casefold() for alias in _aliases(query, table)}
    if not own:
        return False
    others = {item.alias_or_name.casefold() for item in query.tree.find_all(exp.Table, exp.Subquery, exp.CTE)} - own
    if any(_names(item, wanted, own, others) for item in query.tree.find_all(exp.Column)):
        return True
    if any(
        name.name.casefold() == wanted
        for join in query.tree.find_all(exp.Join)
        for name in join.args.get("using") or ()
    ):
        return True
    starred = any(_covers(star, own) for star in query.tree.find_all(exp.Star))
    return starred and wanted in {name.casefold() for name in output}


def _aliases(query: ParsedQuery, table: Identifier) -> Iterator[str]:
    """Yield the names by which a query qualifies the columns of a table."""
    for node in query.tree.find_all(exp.Table):
        try:
            if query.identifier(node) == table:
                yield node.alias_or_name
        except InvalidIdentifierError:
            continue


def _names(node: exp.Column, wanted: str, own: Collection[str], others: Collection[str]) -> bool:
    parts = [part.name.casefold() for part in node.parts]
    if wanted not in parts:
        return False
    at = parts.index(wanted)
    qualifiers = parts[:at]
    # A struct's field has its column before it, which is not the name of a relation.
    return not qualifiers or qualifiers[-1] in own or qualifiers[-1] not in others


def _covers(star: exp.Star, own: Collection[str]) -> bool:
    """Whether a ``*`` may stand for the columns of the table; that of ``count(*)`` does not."""
    if isinstance(star.parent, exp.Column):
        return star.parent.table.casefold() in own
    return isinstance(star.parent, exp.Select)


def grouping_columns(query: ParsedQuery, columns: Sequence[str]) -> frozenset[str]:
    """Return the columns of a view that are keys of its query's GROUP BY, as far as the text shows it.

    Args:
        query: The view's query.
        columns: The view's columns, in order.
    """
    tree = query.tree
    group = tree.args.get("group") if isinstance(tree, exp.Select) else None
    shown = tree.expressions if isinstance(tree, exp.Select) else []
    if group is None or set(filter(group.args.get, group.args)) != {"expressions"} or len(shown) != len(columns):
        return frozenset()
    written = {item.sql().lower() for item in group.expressions}
    return frozenset(
        column
        for number, (item, column) in enumerate(zip(shown, columns, strict=True), 1)
        if not written.isdisjoint({item.unalias().sql().lower(), item.alias_or_name.lower(), str(number)})
        and not item.find(exp.AggFunc, exp.Star)
    )
