# SPDX-License-Identifier: Apache-2.0
"""Star expansion: a view keeps the columns that it was created with, even if a table gets more columns later.

The earlier columns of a table are not stored but found: they are those of its newest schema with which the query
returns the view's own columns. This also works for views that other programs created. Rows are written by position, so
a query is refused if one of these columns is not there any more: the values of another one would take its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product

from sqlglot import exp

from airflow_mv.errors import InvalidIdentifierError, InvalidQueryError
from airflow_mv.quoting import quote
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.sql.query import NestedView, ParsedQuery, TextSpan, cte_of, parse_query, splice


@dataclass(frozen=True, slots=True)
class ColumnLists:
    """The lists of columns that a base table has had.

    Args:
        readable: Those whose columns can be read by these names, the present one first.
        others: The others, newest first, each with the columns that were dropped or renamed; none if all columns are at
            their places under other names.
    """

    readable: Sequence[tuple[str, ...]]
    others: Mapping[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)

    @property
    def all(self) -> tuple[tuple[str, ...], ...]:
        """Every list."""
        return (*self.readable, *self.others)


#: The lists of columns of each base table.
Schemas = Mapping[Identifier, ColumnLists]
_MOST_TRIES = 200
#: A column without a name; any name of a view's column fits.
_Names = tuple[str | None, ...]


class _UnknownError(Exception):
    """The columns of a ``*`` are not known here; Spark resolves them."""


#: What shows that the columns of a ``*`` are not known; a ``KeyError``: a name with another meaning.
_NOT_KNOWN = (_UnknownError, InvalidIdentifierError, RecursionError, KeyError)


def expand_stars(
    query: ParsedQuery,
    *,
    columns: Sequence[str],
    views: Mapping[Identifier, NestedView],
    schemas: Schemas,
) -> ParsedQuery:
    """Return a view's query with each ``*`` replaced by columns if it would return more than the view's columns.

    The query is unchanged if no ``*`` returns more, or if the columns of a ``*`` cannot be determined.

    Args:
        query: The query.
        columns: The view's columns.
        views: The nested plain views.
        schemas: The columns of base tables; must contain those that a ``*`` stands for.

    Raises:
        InvalidQueryError: A column of a ``*`` was dropped or renamed, and others would take its place.
    """
    if "*" not in query.text:
        return query
    names = _Naming(query, views)
    try:
        tables = names.starred()
        if names.assume({item: schemas[item].readable for item in tables}, columns):
            older = {item for item in tables if names.columns[item] != schemas[item].readable[0]}
            return _edited(query, dict(names.edits(older))) if older else query
        if not names.assume({item: schemas[item].all for item in tables}, columns):
            return query
    except _NOT_KNOWN:
        return query
    gone = [(item, name) for item in tables for name in schemas[item].others.get(names.columns[item], ())]
    if gone:
        what = ", ".join(f"{name} of {item}" for item, name in gone)
        raise InvalidQueryError(
            f"view {query.view}: * in the query stood for columns that their tables do not have under these names at "
            f"the snapshots to read: {what}. Replace the view with the same query, and * stands for the present columns"
        )
    return query


def present_columns(
    query: ParsedQuery,
    *,
    columns: Sequence[str],
    views: Mapping[Identifier, NestedView],
    schemas: Schemas,
) -> Sequence[str]:
    """Return the names of a view's columns if each ``*`` stands for the present columns.

    Names that were chosen for the view stay, if the query still returns as many columns.

    Args:
        query: The query.
        columns: The view's columns so far.
        views: The nested plain views.
        schemas: As for :func:`expand_stars`.
    """
    names = _Naming(query, views)
    try:
        tables = names.starred()
        names.columns = {item: schemas[item].readable[0] for item in tables}
        present = names.of_query(query.tree)
        known = [name for name in present if name is not None]
        if len(known) < len(present) or _agree(present, columns):
            return columns
        own = names.assume({item: schemas[item].all for item in tables}, columns)
    except _NOT_KNOWN:
        return columns
    return known if own or len(known) != len(columns) else columns


def _edited(query: ParsedQuery, edits: Mapping[TextSpan, str]) -> ParsedQuery:
    return parse_query(
        splice(query.text, edits),
        view=query.view,
        default_catalog=query.default_catalog,
        default_namespace=query.default_namespace,
    )


def _agree(found: _Names, wanted: Sequence[str]) -> bool:
    pairs = zip(found, wanted, strict=False)
    return len(found) == len(wanted) and all(name is None or name.lower() == want.lower() for name, want in pairs)


def _stars(tree: exp.Expr) -> Iterator[tuple[exp.Select, exp.Expr]]:
    """Yield each ``*`` and ``x.*`` among the columns of a SELECT, with the SELECT. Columns in EXISTS do not matter."""
    for select in tree.find_all(exp.Select):
        for item in [] if isinstance(select.parent, exp.Exists) else select.expressions:
            if item.is_star and isinstance(item, exp.Star | exp.Column):
                yield select, item


@dataclass(frozen=True, slots=True)
class _Relation:
    """One relation of a FROM clause: its qualifier, its node, and the names given to its columns."""

    alias: str
    node: exp.Expr
    given: tuple[str, ...] = ()


@dataclass(slots=True)
class _Naming:
    """Finds the names of columns, under an assumption about the tables' columns."""

    query: ParsedQuery
    views: Mapping[Identifier, NestedView]
    columns: Mapping[Identifier, tuple[str, ...]] = field(default_factory=dict)

    # -------------------------------------------------------------------------------- expansion
    def starred(self) -> list[Identifier]:
        """Return the base tables that stand behind a ``*``, sorted."""
        return sorted({item for select, star in _stars(self.query.tree) for item in self.behind(select, star)})

    def assume(self, lists: Mapping[Identifier, Sequence[tuple[str, ...]]], wanted: Sequence[str]) -> bool:
        """Assume the first columns of tables with which the query returns the wanted ones, if there are any."""
        for chosen in islice(product(*lists.values()), _MOST_TRIES):
            self.columns = dict(zip(lists, chosen, strict=True))
            if _agree(self.of_query(self.query.tree), wanted):
                return True
        return False

    def behind(self, select: exp.Select, star: exp.Expr) -> Iterator[Identifier]:
        """Yield the base tables that a ``*`` stands for."""
        for relation in self._covered(select, star):
            if (identifier := self._base(relation)) is not None:
                yield identifier

    def edits(self, older: set[Identifier]) -> Iterator[tuple[TextSpan, str]]:
        """Yield the replacement of each ``*`` that stands for one of some tables."""
        for select, star in _stars(self.query.tree):
            relations = self._covered(select, star)
            bases = [self._base(item) for item in relations]
            if not older.intersection(item for item in bases if item is not None):
                continue
            names = [item.alias.lower() for item in relations]
            if "" in names or len(set(names)) < len(names):
                raise _UnknownError  # a column of one of them could not be named
            pieces = []
            for relation, base in zip(relations, bases, strict=True):
                listed = self.columns[base] if base is not None and base in older else ("*",)
                marks = [item if item == "*" else quote(item) for item in listed]
                pieces += [f"{quote(relation.alias)}.{item}" for item in marks]
            yield _span_of(star), ", ".join(pieces)

    def _covered(self, select: exp.Select, star: exp.Expr) -> list[_Relation]:
        inner = star if isinstance(star, exp.Star) else star.this
        if any(inner.args.values()):
            raise _UnknownError  # EXCEPT, REPLACE and the like
        relations = list(_relations(select))
        if isinstance(star, exp.Star):
            return relations
        found = [item for item in relations if item.alias.lower() == _parts(star)[-2].name.lower()]
        if len(found) != 1:
            raise _UnknownError  # a struct's fields, a relation of an outer query, or an ambiguous name
        return found

    # -------------------------------------------------------------------------------- names of columns
    def of_query(self, node: exp.Expr) -> _Names:
        """Return the names of a query's columns."""
        if isinstance(node, exp.Subquery):
            return self.of_query(node.this)
        if isinstance(node, exp.SetOperation):
            return self.of_query(node.this)
        if not isinstance(node, exp.Select):
            raise _UnknownError
        names: list[str | None] = []
        for item in node.expressions:
            if item.is_star and isinstance(item, exp.Star | exp.Column):
                for relation in self._covered(node, item):
                    names += self._of_relation(relation)
            else:
                names.append(item.alias_or_name or None)
        return tuple(names)

    def _of_relation(self, relation: _Relation) -> _Names:
        if relation.given:
            return relation.given
        node = relation.node
        if isinstance(node, exp.Subquery):
            return self.of_query(node)
        if isinstance(node, exp.Table):
            if (cte := cte_of(node)) is not None:
                return tuple(item.name for item in cte.args["alias"].columns) or self.of_query(cte.this)
            identifier = self.query.identifier(node)
            if identifier in self.views:
                return self.views[identifier].columns
            return self.columns[identifier]
        raise _UnknownError

    def _base(self, relation: _Relation) -> Identifier | None:
        """Return the base table that a relation is."""
        node = relation.node
        if not isinstance(node, exp.Table) or cte_of(node) is not None:
            return None
        identifier = self.query.identifier(node)
        if identifier in self.views:
            return None
        if relation.given:
            raise _UnknownError  # columns that were renamed by position
        return identifier


def _relations(select: exp.Select) -> Iterator[_Relation]:
    """Yield the relations that a ``*`` stands for, in order."""
    if (from_ := select.args.get("from_")) is None:
        raise _UnknownError
    yield _relation(from_.this)
    for join in select.args.get("joins") or ():
        if join.args.get("using") or join.args.get("method"):
            raise _UnknownError  # columns of both sides come first, and once
        if join.kind.upper() not in ("SEMI", "ANTI"):
            yield _relation(join.this)
    for lateral in select.args.get("laterals") or ():
        yield _relation(lateral)


def _relation(node: exp.Expr) -> _Relation:
    known = isinstance(node, exp.Table) and not isinstance(node.this, exp.Func)
    known = known or (isinstance(node, exp.Subquery) and isinstance(node.this, exp.Query))
    known = known or (isinstance(node, exp.Lateral) and bool(node.args.get("view")))
    if not known or node.args.get("pivots") or node.args.get("joins"):
        raise _UnknownError
    alias = node.args.get("alias")
    given = tuple(item.name for item in alias.columns) if alias is not None else ()
    if isinstance(node, exp.Lateral) and not given:
        raise _UnknownError
    return _Relation(node.alias_or_name, node, given)


def _parts(star: exp.Expr) -> Sequence[exp.Expr]:
    return star.parts if isinstance(star, exp.Column) else [star]


def _span_of(star: exp.Expr) -> TextSpan:
    last = star if isinstance(star, exp.Star) else star.this
    first = last if isinstance(star, exp.Star) else _parts(star)[0]
    if "start" not in first.meta or "end" not in last.meta:
        raise _UnknownError
    return int(first.meta["start"]), int(last.meta["end"]) + 1
