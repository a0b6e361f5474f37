# SPDX-License-Identifier: Apache-2.0
"""Which columns a query names, and what it reads of them, as far as its text shows it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from sqlglot import exp

from airflow_mv.errors import InvalidIdentifierError, InvalidQueryError
from airflow_mv.script import METADATA_COLUMNS
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.sql.query import ParsedQuery, chain_of, query_error, start_of
from airflow_mv.sql.types import Accesses


def uses_in(
    queries: Iterable[tuple[ParsedQuery, Collection[str]]], table: Identifier, column: str
) -> frozenset[Accesses]:
    """Return what several queries, each with its output columns, read of a column; see :func:`uses_of_column`."""
    return frozenset().union(*(uses_of_column(query, table, column, output) for query, output in queries))


def uses_of_column(query: ParsedQuery, table: Identifier, column: str, output: Collection[str]) -> frozenset[Accesses]:
    """Return what a query may read of a column of a table: the accesses to nested fields; ``()`` for the whole column.

    A name without a qualifier counts for every table of the query. ``*`` counts for the columns that the query returns.
    Case is ignored.

    Args:
        query: The query.
        table: The table.
        column: The column.
        output: The columns that the query returns.

    Returns:
        Nothing if the query does not name the column.
    """
    wanted, own = column.casefold(), {alias.casefold() for alias in _aliases(query, table)}
    if not own:
        return frozenset()
    others = {item.alias_or_name.casefold() for item in query.tree.find_all(exp.Table, exp.Subquery, exp.CTE)} - own
    found = {
        path
        for item in query.tree.find_all(exp.Column)
        if _names(item, wanted, own, others)
        for path in _accesses(query, item, wanted)
    }
    stars = [*_stars(query)]
    covered = any(_covers(star, own) for star in stars) and wanted in {name.casefold() for name in output}
    joins = [*query.tree.find_all(exp.Join)]
    used = any(name.name.casefold() == wanted for join in joins for name in join.args.get("using") or ())
    # As the argument of a function, a key of a join or of a pivot, it may be the column as a whole.
    hidden = any(not isinstance(star.parent, exp.Select | exp.Column) for star in stars)
    hidden = hidden or any(join.method.upper() == "NATURAL" for join in joins) or query.tree.find(exp.Pivot) is not None
    if covered or used or (found and hidden):
        found.add(())
    return frozenset(found)


def _stars(query: ParsedQuery) -> Iterator[exp.Star]:
    """Yield each ``*`` that stands for columns; that of ``count(*)`` does not."""
    return (star for star in query.tree.find_all(exp.Star) if not isinstance(star.parent, exp.Count))


def _accesses(
    query: ParsedQuery, column: exp.Column, wanted: str, above: frozenset[str] = frozenset()
) -> Iterator[Accesses]:
    """Yield the accesses to nested fields that follow a column's name; of an exploded column, those to its elements.

    Args:
        query: The query.
        column: An occurrence of the name.
        wanted: The name in lower case.
        above: The exploded columns whose elements have the name.
    """
    parts = _parts(column)
    if parts.count(wanted) > 1:
        yield ()  # it may be a table's name, a column's or a field's
        return
    node: exp.Expr = column
    path: list[str | None] = list(parts[parts.index(wanted) + 1 :])
    if isinstance(column.this, exp.Star):  # all fields of a struct
        yield tuple(path[:-1])
        return
    while (step := _access(node)) is not None:
        node = node.parent or node
        path += step
    element = _name_of_elements(node.parent)
    above |= {wanted}
    if element is None or element in above or any(_stars(query)):
        yield tuple(path)
        return
    uses = [item for item in query.tree.find_all(exp.Column) if element in _parts(item)]
    if not uses:
        yield ()
    for use in uses:
        yield from ((*path, None, *inner) for inner in _accesses(query, use, element, above))


def _parts(column: exp.Column) -> list[str]:
    return [part.name.casefold() for part in column.parts]


def _name_of_elements(generator: exp.Expr | None) -> str | None:
    """Return the name that a LATERAL VIEW gives to the elements, or to the values of a map; ``None`` if it is none."""
    lateral = generator.parent if isinstance(generator, exp.Explode | exp.Posexplode) else None
    alias = lateral.args.get("alias") if isinstance(lateral, exp.Lateral) else None
    columns = alias.columns if isinstance(alias, exp.TableAlias) else []
    return columns[-1].name.casefold() if columns else None


def _access(node: exp.Expr) -> list[str | None] | None:
    """Return the access of which an expression is the operand: a field's name, or ``None`` for another key or index."""
    parent = node.parent
    if isinstance(parent, exp.Paren):
        return []
    if isinstance(parent, exp.Dot) and parent.this is node and isinstance(parent.expression, exp.Identifier):
        return [parent.expression.name.casefold()]
    if isinstance(parent, exp.Bracket) and parent.this is node and len(parent.expressions) == 1:
        key = parent.expressions[0]
        return [key.name.casefold() if isinstance(key, exp.Literal) and key.is_string else None]
    return None


def _aliases(query: ParsedQuery, table: Identifier) -> Iterator[str]:
    """Yield the names by which a query qualifies the columns of a table."""
    for node in query.tree.find_all(exp.Table):
        try:
            if query.identifier(node) == table:
                yield node.alias_or_name
        except InvalidIdentifierError:
            continue


def _names(node: exp.Column, wanted: str, own: Collection[str], others: Collection[str]) -> bool:
    parts = _parts(node)
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


def refuse_metadata_columns(tree: exp.Expr, text: str, view: str, columns: Collection[str]) -> None:
    """Refuse a query that certainly names a metadata column of Iceberg, because nothing else has the name.

    Where something else has the name, only Spark knows which one is meant
    (:func:`airflow_mv.job.analysis.check_reads`).

    Args:
        tree: The query.
        text: Its text.
        view: For messages.
        columns: All columns of the tables and views that it reads.

    Raises:
        InvalidQueryError: Quotes the place.
    """
    given = {name.casefold() for name in (*columns, *_given_names(tree))}
    wanted = METADATA_COLUMNS - given
    relations = {item.alias_or_name.casefold() for item in tree.find_all(exp.Table, exp.Subquery, exp.CTE)}
    for column in tree.find_all(exp.Column):
        chain = chain_of(column)
        names = [part.name.casefold() for part in chain]
        # After the name of anything but a relation it is the field of a struct.
        own = (at for at, name in enumerate(names) if name in wanted and (at == 0 or names[at - 1] in relations))
        if names[0] not in given and (at := next(own, None)) is not None:
            raise _metadata_column(chain[at], text, view)
    for join in tree.find_all(exp.Join):
        for name in join.args.get("using") or ():
            if name.name.casefold() in wanted:
                raise _metadata_column(name, text, view)


def _given_names(tree: exp.Expr) -> Iterator[str]:
    """Yield the names that a query itself gives to columns and variables."""
    for node in tree.find_all(exp.Alias, exp.Aliases, exp.TableAlias, exp.Lambda, exp.Pivot):
        if isinstance(node, exp.Alias):
            yield node.alias
        elif isinstance(node, exp.Pivot):
            yield from (item.name for item in node.find_all(exp.Identifier))
        else:
            named = node.args.get("columns") if isinstance(node, exp.TableAlias) else node.expressions
            yield from (item.name for item in named or ())


def _metadata_column(name: exp.Expr, text: str, view: str) -> InvalidQueryError:
    message = (
        f"{name.name} is a metadata column of Iceberg, whose values compaction changes while the rows stay the same: "
        "remove it"
    )
    return query_error(text, start_of(name), message, view)


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
