# SPDX-License-Identifier: Apache-2.0
"""The columns of a query: their types in Spark SQL, what ``*`` stands for, and the names that a query uses.

Source: Iceberg ``format/spec.md``, "Schemas and Data Types", and Iceberg's Spark type conversion.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from typing import Any

from sqlglot import exp

from airflow_mv.core.script import METADATA_COLUMNS
from airflow_mv.core.spec.identifiers import Identifier, quote
from airflow_mv.core.spec.table_metadata import TableMetadata
from airflow_mv.core.sql.query import (
    NestedView,
    ParsedQuery,
    TextSpan,
    chain_of,
    cte_of,
    parse_query,
    query_error,
    splice,
    start_of,
)
from airflow_mv.errors import InvalidIdentifierError, InvalidQueryError

_NAMES = {
    "long": "bigint",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    "timestamp_ns": "timestamp_ntz",
    "timestamptz_ns": "timestamp",
    "uuid": "string",
}
#: Accesses to a nested field, from the outside in: the name of a field, or a key; ``None`` for an index or another key.
Accesses = tuple[str | None, ...]
#: Keys that do not change what a field is.
_BESIDE = ("doc", "required", "element-required", "value-required")
#: Types of format version 3 that pyiceberg 0.12 does not read, or not with all their parameters.
_UNKNOWN_TYPES = ("variant", "geometry", "geography")


def spark_type(stored: str | Mapping[str, Any]) -> str:
    """Return a type of an Iceberg schema as Spark SQL writes it.

    Args:
        stored: A type as table metadata holds it: a name, or an object for struct, list and map.
    """
    if isinstance(stored, str):
        return "binary" if stored.startswith("fixed[") else _NAMES.get(stored, stored)
    kind = stored.get("type")
    if kind == "struct":
        fields = ", ".join(f"{quote(str(item['name']))}: {spark_type(item['type'])}" for item in stored["fields"])
        return f"struct<{fields}>"
    if kind == "list":
        return f"array<{spark_type(stored['element'])}>"
    if kind == "map":
        return f"map<{spark_type(stored['key'])}, {spark_type(stored['value'])}>"
    return str(kind)


def rebound_columns(then: Mapping[str, Any], now: Mapping[str, Any]) -> frozenset[str]:
    """Return the columns of an older schema whose name, or a nested field's name, now means another field or none.

    Args:
        then: A stored schema.
    """
    current = dict(_paths(now.get("fields", ()), ()))
    return frozenset(path[0] for path, identity in _paths(then.get("fields", ()), ()) if current.get(path) != identity)


def is_same_for(then: Mapping[str, Any], now: Mapping[str, Any], uses: Collection[Accesses]) -> bool:
    """Whether a column of two schemas is the same one for a query, by field ids and types: for each part that it reads.

    Args:
        then: The stored field of the column in one schema.
        now: The field in the other one.
        uses: What the query reads of it, see :func:`airflow_mv.core.sql.types.uses_of_column`.
    """
    return then.get("id") == now.get("id") and all(_is_same(then["type"], now["type"], accesses) for accesses in uses)


def _is_same(then: Any, now: Any, accesses: Accesses) -> bool:
    """Whether accesses lead to the same fields of the same type. Where that is not certain, all of it is compared."""
    nested = isinstance(then, Mapping) and isinstance(now, Mapping) and then.get("type") == now.get("type")
    if not accesses or not nested:
        return bool(_bare(then) == _bare(now))
    name, *rest = accesses
    kind = then.get("type")
    if kind == "map":
        keys = [(item.get("key-id"), _bare(item.get("key")), item.get("value-id")) for item in (then, now)]
        return keys[0] == keys[1] and _is_same(then["value"], now["value"], tuple(rest))
    if kind == "list":
        # A field's name takes the field of each element.
        inner = accesses if name is not None else tuple(rest)
        return then.get("element-id") == now.get("element-id") and _is_same(then["element"], now["element"], inner)
    fields = [[item for item in stored["fields"] if str(item["name"]).casefold() == name] for stored in (then, now)]
    if kind != "struct" or any(len(found) != 1 for found in fields):
        return bool(_bare(then) == _bare(now))
    (one,), (other,) = fields
    return one.get("id") == other.get("id") and _is_same(one["type"], other["type"], tuple(rest))


def _bare(stored: Any) -> Any:
    """Return a stored type without comments and nullability."""
    if isinstance(stored, Mapping):
        return {key: _bare(item) for key, item in stored.items() if key not in _BESIDE}
    return [_bare(item) for item in stored] if isinstance(stored, list | tuple) else stored


def _paths(fields: Iterable[Mapping[str, Any]], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield the path of names to each item, and its id."""
    for item in fields:
        path = (*above, str(item["name"]))
        yield path, item.get("id")
        yield from _within(item["type"], path)


def _within(stored: str | Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    if isinstance(stored, str):
        return
    if stored.get("type") == "struct":
        yield from _paths(stored["fields"], path)
    for part in ("element", "key", "value"):
        if part in stored:
            yield (*path, part), stored.get(f"{part}-id")
            yield from _within(stored[part], (*path, part))


def columns_of(schema: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return name and Spark type of each top-level column of a stored schema, in order."""
    return tuple((str(field["name"]), spark_type(field["type"])) for field in schema.get("fields", []))


def required_columns(schema: Mapping[str, Any]) -> frozenset[str]:
    """Return the columns of a stored schema that are NOT NULL."""
    return frozenset(str(field["name"]) for field in schema.get("fields", []) if field.get("required"))


def unknown_type(table: TableMetadata) -> str | None:
    """Return the first type of a column with which pyiceberg cannot read the table's metadata.

    Args:
        table: The table. Its earlier schemas count too, because pyiceberg reads them.
    """
    types = (kind for schema in (table.current_schema, *table.schemas) for kind in _type_names(schema))
    return next((kind for kind in types if kind.startswith(_UNKNOWN_TYPES)), None)


def _type_names(kind: Any) -> Iterator[str]:
    if isinstance(kind, str):
        yield kind.lower()
    elif isinstance(kind, Mapping):
        inner = [field.get("type") for field in kind.get("fields", ()) if isinstance(field, Mapping)]
        for item in (*inner, *(kind.get(name) for name in ("element", "key", "value"))):
            yield from _type_names(item)


# ---------- Star expansion: a view keeps the columns that it was created with, even if a table gets more columns later
# The earlier columns of a table are not stored but found: they are those of its newest schema with which the query
# returns the view's own columns. This also works for views that other programs created. Rows are written by
# position, so a query is refused if one of these columns no longer exists: the values of another one would
# take its place.


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
_MAX_TRIES = 200
#: A column without a name; any name of a view's column fits.
_Names = tuple[str | None, ...]


class _UnknownError(Exception):
    """The columns of a ``*`` are unknown here; Spark resolves them."""


#: Errors after which the columns of a ``*`` are unknown; a ``KeyError``: a name with another meaning.
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
        columns: The view's columns so far.
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
        for chosen in islice(product(*lists.values()), _MAX_TRIES):
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


# --------------------------------- Which columns a query names, and what it reads of them, as far as its text shows it


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
    stars = [*_star_columns(query)]
    covered = any(_covers(star, own) for star in stars) and wanted in {name.casefold() for name in output}
    joins = [*query.tree.find_all(exp.Join)]
    used = any(name.name.casefold() == wanted for join in joins for name in join.args.get("using") or ())
    # As the argument of a function, a key of a join or of a pivot, it may be the column as a whole.
    hidden = any(not isinstance(star.parent, exp.Select | exp.Column) for star in stars)
    hidden = hidden or any(join.method.upper() == "NATURAL" for join in joins) or query.tree.find(exp.Pivot) is not None
    if covered or used or (found and hidden):
        found.add(())
    return frozenset(found)


def _star_columns(query: ParsedQuery) -> Iterator[exp.Star]:
    """Yield each ``*`` that stands for columns; that of ``count(*)`` does not."""
    return (star for star in query.tree.find_all(exp.Star) if not isinstance(star.parent, exp.Count))


def _accesses(
    query: ParsedQuery, column: exp.Column, wanted: str, above: frozenset[str] = frozenset()
) -> Iterator[Accesses]:
    """Yield the accesses to nested fields that follow a column's name; of an exploded column, those to its elements.

    Args:
        column: An occurrence of the name.
        wanted: The name in lower case.
        above: The exploded columns whose elements have the name.
    """
    parts = _name_parts(column)
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
    if element is None or element in above or any(_star_columns(query)):
        yield tuple(path)
        return
    uses = [item for item in query.tree.find_all(exp.Column) if element in _name_parts(item)]
    if not uses:
        yield ()
    for use in uses:
        yield from ((*path, None, *inner) for inner in _accesses(query, use, element, above))


def _name_parts(column: exp.Column) -> list[str]:
    return [part.name.casefold() for part in column.parts]


def _name_of_elements(generator: exp.Expr | None) -> str | None:
    """Return the name that a LATERAL VIEW gives to the elements, or to the values of a map; ``None`` if it is none."""
    lateral = generator.parent if isinstance(generator, exp.Explode | exp.Posexplode) else None
    alias = lateral.args.get("alias") if isinstance(lateral, exp.Lateral) else None
    columns = alias.columns if isinstance(alias, exp.TableAlias) else []
    return columns[-1].name.casefold() if columns else None


def _access(node: exp.Expr) -> list[str | None] | None:
    """Return the access to a part of an expression: a field's name, or ``None`` for another key or index."""
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
    parts = _name_parts(node)
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
    (:func:`airflow_mv.core.job.analysis.check_reads`).

    Args:
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
    message = f"{name.name} is a metadata column of Iceberg. Compaction changes its values but not the rows: remove it"
    return query_error(text, start_of(name), message, view)
