# SPDX-License-Identifier: Apache-2.0
"""What a view's query reads, and the query with each base table pinned to a snapshot.

Views cannot be time-travelled, so nested plain views are put in as subqueries, with their own base
tables pinned.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from airflow_mv.errors import InvalidQueryError
from airflow_mv.plan.pinning import Query as Query
from airflow_mv.plan.pinning import Reference as Reference
from airflow_mv.plan.pinning import parse_query as parse_query
from airflow_mv.plan.pinning import query_error, references, shorter_qualifiers, splice
from airflow_mv.script import quote
from airflow_mv.spec.identifiers import Identifier

MAX_VIEW_DEPTH = 64
MAX_PINNED_CHARACTERS = 16 * 1024 * 1024

_TRANSFORM = re.compile(
    r"\s*(?:(?P<name>\w+)\s*\(\s*(?:(?P<width>[0-9]{1,10})\s*,\s*)?(?P<argument>\w+|`(?:[^`]|``)+`)\s*\)"
    r"|(?P<column>\w+|`(?:[^`]|``)+`))\s*"
)
_TIME_TRANSFORMS = {word: f"{unit}s" for unit in ("year", "month", "day", "hour") for word in (unit, f"{unit}s")}
_WIDTH_TRANSFORMS = ("bucket", "truncate")
_MAX_WIDTH = 2**31 - 1
_ESCAPED = re.compile(r"['\\\x00-\x1f\x7f]|\$(?=\{)")


@dataclass(frozen=True, slots=True)
class PinnedTable:
    """A base table and the snapshot to read."""

    identifier: Identifier
    #: ``None``: the table has never been written to.
    snapshot_id: int | None
    #: The name to read it by, as SQL, where that is not its own.
    sql: str | None = None
    #: Whether no filter may reach the scan.
    unfiltered: bool = False


@dataclass(frozen=True, slots=True)
class NestedView:
    """A plain view that a query reads, at one version, which was made at a time in milliseconds since 1970."""

    identifier: Identifier
    sql: str
    columns: tuple[str, ...]
    default_catalog: str
    default_namespace: tuple[str, ...]
    version_id: int
    uuid: str
    version_ms: int = 0


@dataclass(frozen=True, slots=True)
class Dependencies:
    """All that a query reads, directly or through nested views: each once, sorted."""

    tables: tuple[Identifier, ...]
    views: tuple[NestedView, ...]


def base_tables(
    sql: str,
    *,
    default_catalog: str,
    default_namespace: tuple[str, ...],
    load_view: Callable[[Identifier], NestedView | None],
    view: str,
) -> Dependencies:
    """Return the base tables and nested views of a query.

    Args:
        sql: The query.
        default_catalog: The catalog of names with one or two parts.
        default_namespace: The namespace of names with one part.
        load_view: Gives the nested plain view of a name, ``None`` if the name is something else.
            Called once per name.
        view: Whose query it is, for messages.

    Raises:
        InvalidQueryError: A query is not readable, or views are nested in a cycle or too deeply.
    """
    collector = _Collector(load_view)
    collector.visit(sql, default_catalog, default_namespace, (view,))
    views = [found for found in collector.names.values() if found is not None]
    return Dependencies(
        tuple(sorted(name for name, found in collector.names.items() if found is None)),
        tuple(sorted(views, key=lambda item: item.identifier)),
    )


def pin_query(
    sql: str,
    *,
    default_catalog: str,
    default_namespace: tuple[str, ...],
    tables: Mapping[Identifier, PinnedTable],
    views: Mapping[Identifier, NestedView],
    view: str,
) -> str:
    """Return the query reading each base table at its snapshot; all else is the user's own text.

    Args:
        sql: The query.
        default_catalog: The catalog of names with one or two parts.
        default_namespace: The namespace of names with one part.
        tables: The snapshot of each base table.
        views: The nested plain views.
        view: Whose query it is, for messages.

    Raises:
        InvalidQueryError: A query is not readable, names something that is in neither mapping, or
            grows beyond bounds by its nested views.
    """
    return _Pinner(tables, views).visit(sql, default_catalog, default_namespace, (view,))


def pinned_table(identifier: Identifier, snapshot_id: int | None) -> str:
    """Return a table at a snapshot, as it is written after FROM; columns keep their qualified names.

    Args:
        identifier: The table.
        snapshot_id: The snapshot, or ``None`` for a table that was never written to: no rows.
    """
    return _at_snapshot(identifier.sql(), snapshot_id, alias="")


def expand_view(sql: str, columns: tuple[str, ...], name: str) -> str:
    """Return a nested view as it is written after FROM, with or without an alias after it.

    Args:
        sql: The view's pinned query.
        columns: Its column names, by position.
        name: What columns call the view where the user gave no alias.
    """
    # A relation in parentheses lets TABLESAMPLE and an alias follow, and shows its inner name without one.
    return f"((\n{sql}\n) AS {quote(name)}({', '.join(map(quote, columns))}))"


def partition_transform(text: str, columns: Collection[str] | None = None) -> str:
    """Check one partition field, such as ``days(ts)``, and return it with its column quoted.

    Args:
        text: A column, or ``years``, ``months``, ``days``, ``hours`` of a column, or ``bucket`` or
            ``truncate`` of a width and a column.
        columns: The columns there are, where they are known.

    Raises:
        InvalidQueryError: It is nothing of these.
    """
    match = _TRANSFORM.fullmatch(text)
    if match is None:
        raise _no_transform(text)
    column = _known_column(match["argument"] or match["column"], columns, text)
    if match["name"] is None:
        return column
    name, width = match["name"].lower(), match["width"]
    if name in _TIME_TRANSFORMS and width is None:
        return f"{_TIME_TRANSFORMS[name]}({column})"
    if name in _WIDTH_TRANSFORMS and width is not None and 0 < int(width) <= _MAX_WIDTH:
        return f"{name}({int(width)}, {column})"
    raise _no_transform(text)


def string_literal(text: str) -> str:
    """Return a Spark string literal that means exactly the text.

    Raises:
        InvalidQueryError: The text holds half a surrogate pair, which Spark cannot store.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidQueryError(f"{text!r} is no Unicode text") from error
    return "'" + _ESCAPED.sub(_escaped, text) + "'"


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    return f"\\{character}" if character in "'\\" else f"\\u{ord(character):04x}"


# ------------------------------------------------------------------------------------------ walks
@dataclass(slots=True)
class _Collector:
    """Walks nested views once each."""

    load_view: Callable[[Identifier], NestedView | None]
    names: dict[Identifier, NestedView | None] = field(default_factory=dict)
    heights: dict[Identifier, int] = field(default_factory=dict)

    def visit(self, sql: str, catalog: str, namespace: tuple[str, ...], path: tuple[str, ...]) -> int:
        """Collect what a query reads; return how many views deep it is."""
        query = parse_query(sql, view=_label(path))
        height = 0
        for reference in references(query, default_catalog=catalog, default_namespace=namespace):
            name = reference.identifier
            _check_path(query, reference, path)
            if name not in self.names:
                self.names[name] = self.load_view(name)
            nested = self.names[name]
            if nested is None:
                continue
            if name not in self.heights:
                below = (*path, str(name))
                self.heights[name] = self.visit(nested.sql, nested.default_catalog, nested.default_namespace, below)
            height = max(height, self.heights[name] + 1)
            if height > MAX_VIEW_DEPTH:
                raise _too_deep(query, reference)
        return height


@dataclass(slots=True)
class _Pinner:
    """Pins nested views once each."""

    tables: Mapping[Identifier, PinnedTable]
    views: Mapping[Identifier, NestedView]
    done: dict[Identifier, str] = field(default_factory=dict)

    def visit(self, sql: str, catalog: str, namespace: tuple[str, ...], path: tuple[str, ...]) -> str:
        """Return a query with its tables pinned."""
        query = parse_query(sql, view=_label(path))
        edits: dict[tuple[int, int], str] = {}
        for reference in references(query, default_catalog=catalog, default_namespace=namespace):
            text, renamed = self._replacement(query, reference, path)
            edits[reference.span] = text
            if renamed and not reference.aliased:
                edits |= shorter_qualifiers(query, reference)
        if len(query.text) + sum(map(len, edits.values())) > MAX_PINNED_CHARACTERS:
            message = f"view {query.view}: its nested views make a query of over {MAX_PINNED_CHARACTERS} characters"
            raise InvalidQueryError(message)
        return splice(query.text, edits)

    def _replacement(self, query: Query, reference: Reference, path: tuple[str, ...]) -> tuple[str, bool]:
        """Return what to read instead, and whether columns can call it by one part only."""
        name = reference.identifier
        if table := self.tables.get(name):
            if table.unfiltered and table.snapshot_id is not None:
                return _unfiltered(table), True
            if table.sql is None:
                return pinned_table(name, table.snapshot_id), False
            return _at_snapshot(table.sql, table.snapshot_id, alias=f" AS {quote(name.name)}"), True
        nested = self.views.get(name)
        if nested is None:
            raise query_error(query.text, reference.start, f"no snapshot of {name} is given", query.view)
        _check_path(query, reference, path)
        if name not in self.done:
            below = (*path, str(name))
            self.done[name] = self.visit(nested.sql, nested.default_catalog, nested.default_namespace, below)
        return expand_view(self.done[name], nested.columns, name.name), True


def _at_snapshot(name: str, snapshot_id: int | None, *, alias: str) -> str:
    """Return a relation that, in parentheses where need be, lets TABLESAMPLE and an alias follow."""
    if snapshot_id is None:
        return f"({name} TABLESAMPLE (0 ROWS){alias})"
    pinned = f"{name} VERSION AS OF {snapshot_id}{alias}"
    return f"({pinned})" if alias else pinned


def _unfiltered(table: PinnedTable) -> str:
    """Return a table at a snapshot as a subquery through which Spark pushes no filter.

    Iceberg binds the names in a filter to the table's current columns, also for a scan of an older snapshot: where a
    name has come to mean another column, it would skip files by the statistics of that one. Spark keeps all filters
    above one that is not deterministic.
    """
    pinned = _at_snapshot(table.sql or table.identifier.sql(), table.snapshot_id, alias="")
    return f"((SELECT * FROM {pinned} WHERE spark_partition_id() >= 0) AS {quote(table.identifier.name)})"


def _label(path: tuple[str, ...]) -> str:
    return path[0] if len(path) == 1 else f"{path[0]}, nested view {path[-1]}"


def _check_path(query: Query, reference: Reference, path: tuple[str, ...]) -> None:
    name = str(reference.identifier)
    if name in path:
        cycle = " -> ".join([*path[path.index(name) :], name])
        raise query_error(query.text, reference.start, f"views read each other in a cycle: {cycle}", query.view)
    if len(path) > MAX_VIEW_DEPTH + 1:
        raise _too_deep(query, reference)


def _too_deep(query: Query, reference: Reference) -> InvalidQueryError:
    message = f"views are nested more than {MAX_VIEW_DEPTH} deep here"
    return query_error(query.text, reference.start, message, query.view)


# ----------------------------------------------------------------------------- partition transforms
def _known_column(written: str, columns: Collection[str] | None, text: str) -> str:
    name = written[1:-1].replace("``", "`") if written.startswith("`") else written
    if columns is None:
        return quote(name)
    if name in columns:
        return quote(name)
    for column in columns:
        if column.lower() == name.lower():
            return quote(column)
    raise InvalidQueryError(f"partition field {text!r}: there is no column {name!r}; there are {', '.join(columns)}")


def _no_transform(text: str) -> InvalidQueryError:
    return InvalidQueryError(
        f"partition field {text!r}: write a column, years(c), months(c), days(c), hours(c), "
        f"bucket(number, c) or truncate(number, c)"
    )
