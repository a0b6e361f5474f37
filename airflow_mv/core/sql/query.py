# SPDX-License-Identifier: Apache-2.0
"""Parse a view's query, find the tables and views that it reads, and pin each base table to a snapshot.

Views do not support time travel, so nested plain views are expanded as subqueries, with their own base tables pinned.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from sqlglot import ParseError, Token, TokenError, TokenType, exp

from airflow_mv.core.spec.choices import TRANSPILE_PROPERTY
from airflow_mv.core.spec.identifiers import BY_FORMAT, METASTORE, Identifier, Selector, kind_of, quote
from airflow_mv.core.spec.times import parse_time
from airflow_mv.core.spec.view import DIALECT, ViewMetadata
from airflow_mv.core.sql.dialect import (
    PARSER_FAULTS,
    AsWritten,
    AsWrittenParser,
    BoundedParser,
    TooManyStepsError,
    tokenized,
    with_names,
)
from airflow_mv.core.sql.translation import for_spark
from airflow_mv.errors import InvalidIdentifierError, InvalidQueryError

MAX_VIEW_DEPTH = 64
MAX_PINNED_CHARACTERS = 16 * 1024 * 1024
#: A condition that all rows pass, below which Spark pushes no filter.
UNFILTERED = "spark_partition_id() >= 0"
_FILTERS = (exp.Where, exp.Having, exp.Qualify, exp.Join)
_ONE = {"float": "1F", "double": "1D"}


@dataclass(frozen=True, slots=True)
class PinnedTable:
    """A base table and the snapshot to read."""

    identifier: Identifier
    #: ``None``: the table has never been written to.
    snapshot_id: int | None
    #: The SQL name to read it by, if it differs from its own.
    sql: str | None = None
    #: Whether no filter may be pushed into the scan.
    unfiltered: bool = False
    #: A condition that all rows pass that matter, in SQL. Spark skips files by it.
    where: str = ""
    #: What to select of it, if that is not ``*``; see :func:`selected`.
    selected: str = ""
    #: Whether ``sql`` names a temporary view that has its rows at the snapshot.
    is_temporary: bool = False


@dataclass(frozen=True, slots=True, order=True)
class Reference:
    """One place in a query's text that names a table or a view.

    Args:
        start: Where it begins.
        end: Where it ends, after a clause of time travel.
        identifier: What it names.
        aliased: Whether it has an alias.
        relation: The name by which columns can be qualified if it has none: without the clause of time travel.
    """

    start: int
    end: int
    identifier: Identifier
    aliased: bool
    relation: Identifier

    @property
    def span(self) -> TextSpan:
        """Where it is."""
        return (self.start, self.end)


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A query that is parsed once. The same value is used from finding dependencies to compiling statements.

    Args:
        text: The text without a final semicolon.
        default_catalog: The catalog of names with one or two parts.
        default_namespace: The namespace of names with one part.
        references: Each place where it names a table or a view, in the order of the text. Names of CTEs and table
            functions are not among them.
        tree: sqlglot's tree. Copy it before changing it.
    """

    text: str
    view: str
    default_catalog: str
    default_namespace: tuple[str, ...]
    references: tuple[Reference, ...]
    tree: exp.Expr = field(repr=False, compare=False)
    tokens: tuple[Token, ...] = field(repr=False, compare=False)

    def identifier(self, table: exp.Table) -> Identifier:
        """Return the full name of a table in the tree, see :func:`table_identifier`."""
        return table_identifier(table, self.default_catalog, self.default_namespace)

    def is_of(self, text: str, default_catalog: str, default_namespace: tuple[str, ...]) -> bool:
        """Whether it is the result of parsing this text in this context."""
        given = (text, default_catalog, default_namespace)
        return (self.text, self.default_catalog, self.default_namespace) == given


@dataclass(frozen=True, slots=True)
class NestedView:
    """A plain view that a query reads, at one version of its metadata file.

    The version's time is in milliseconds since the epoch.
    """

    identifier: Identifier
    query: ParsedQuery
    columns: tuple[str, ...]
    version_id: int
    uuid: str
    version_ms: int = 0
    metadata_location: str = ""


@dataclass(frozen=True, slots=True)
class Dependencies:
    """All that a query reads, directly or through nested views: each once, sorted."""

    tables: tuple[Identifier, ...]
    views: tuple[NestedView, ...]

    @property
    def nested(self) -> dict[Identifier, NestedView]:
        """The nested views by name."""
        return {view.identifier: view for view in self.views}


def names_to_load(query: ParsedQuery, known: Mapping[Identifier, NestedView | None]) -> tuple[Identifier, ...]:
    """Return the names that a query reads and that must be loaded, since they may be nested views.

    Args:
        known: The names loaded so far: the nested plain view, or ``None`` for anything else.
    """
    found: dict[Identifier, None] = {}
    level = [query]
    for _ in range(MAX_VIEW_DEPTH + 2):
        names = [reference.identifier for item in level for reference in item.references]
        level = [view.query for name in dict.fromkeys(names) if name not in found and (view := known.get(name))]
        found |= dict.fromkeys(names)
    return tuple(name for name in found if name not in known)


def base_tables(query: ParsedQuery, known: Mapping[Identifier, NestedView | None]) -> Dependencies:
    """Return the base tables and nested views of a query.

    Args:
        known: The nested plain view of a name; any other name is a base table. See :func:`names_to_load`.

    Raises:
        InvalidQueryError: Views are nested in a cycle or too deeply.
    """
    collector = _Collector(known)
    collector.visit(query, (query.view,))
    views = [found for found in collector.names.values() if found is not None]
    return Dependencies(
        tuple(sorted(name for name, found in collector.names.items() if found is None)),
        tuple(sorted(views, key=lambda item: item.identifier)),
    )


def pin_query(
    query: ParsedQuery, *, tables: Mapping[Identifier, PinnedTable], views: Mapping[Identifier, NestedView]
) -> str:
    """Return the query with each base table at its snapshot. The rest is the user's own text.

    Args:
        tables: The snapshot of each base table.

    Raises:
        InvalidQueryError: The query names something that is in neither mapping, or grows beyond bounds by its nested
            views.
    """
    return _Pinner(tables, views).visit(query, (query.view,))


def pinned_table(identifier: Identifier, snapshot_id: int | None) -> str:
    """Return a table at a snapshot, as written after FROM. Columns keep their qualified names.

    Args:
        snapshot_id: The snapshot, or ``None`` for a table that was never written to: no rows.
    """
    return _at_snapshot(identifier.sql(), snapshot_id, alias="")


def expand_view(sql: str, columns: tuple[str, ...], name: str) -> str:
    """Return a nested view as written after FROM, with or without an alias after it.

    Args:
        sql: The view's pinned query.
        columns: Its column names, by position.
        name: The qualifier of the view's columns, if the user gave no alias.
    """
    # A relation in parentheses lets TABLESAMPLE and an alias follow, and shows its inner name without one.
    return f"((\n{sql}\n) AS {quote(name)}({', '.join(map(quote, columns))}))"


# ------------------------------------------------------------------------------------------ walks
@dataclass(slots=True)
class _Collector:
    """Walks nested views once each."""

    known: Mapping[Identifier, NestedView | None]
    names: dict[Identifier, NestedView | None] = field(default_factory=dict)
    heights: dict[Identifier, int] = field(default_factory=dict)

    def visit(self, query: ParsedQuery, path: tuple[str, ...]) -> int:
        """Collect the tables and views that a query reads; return the depth of nested views."""
        height = 0
        for reference in query.references:
            name = reference.identifier
            _check_path(query, reference, path)
            nested = self.names.setdefault(name, self.known.get(name))
            if nested is None:
                continue
            if name not in self.heights:
                self.heights[name] = self.visit(nested.query, (*path, str(name)))
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

    def visit(self, query: ParsedQuery, path: tuple[str, ...]) -> str:
        """Return a query with its tables pinned."""
        edits: dict[tuple[int, int], str] = {}
        for reference in query.references:
            text, renamed = self._replacement(query, reference, path)
            edits[reference.span] = text
            if renamed and not reference.aliased:
                edits |= shorter_qualifiers(query, reference)
        if len(query.text) + sum(map(len, edits.values())) > MAX_PINNED_CHARACTERS:
            message = f"view {query.view}: its nested views make a query of over {MAX_PINNED_CHARACTERS} characters"
            raise InvalidQueryError(message)
        return splice(query.text, edits)

    def _replacement(self, query: ParsedQuery, reference: Reference, path: tuple[str, ...]) -> tuple[str, bool]:
        """Return the replacement of a reference, and whether columns can name it by one part only."""
        name = reference.identifier
        if table := self.tables.get(name):
            if (table.unfiltered or table.where or table.selected) and table.snapshot_id is not None:
                return _as_subquery(table, reference.relation.name), True
            if table.sql is None:
                return pinned_table(name, table.snapshot_id), False
            return _rows_of(table, alias=f" AS {quote(reference.relation.name)}"), True
        nested = self.views.get(name)
        if nested is None:
            raise query_error(query.text, reference.start, f"no snapshot of {name} is given", query.view)
        _check_path(query, reference, path)
        if name not in self.done:
            self.done[name] = self.visit(nested.query, (*path, str(name)))
        return expand_view(self.done[name], nested.columns, name.name), True


def _at_snapshot(name: str, snapshot_id: int | None, *, alias: str) -> str:
    """Return a relation that can be followed by TABLESAMPLE and an alias, in parentheses if needed."""
    if snapshot_id is None:
        return f"({name} TABLESAMPLE (0 ROWS){alias})"
    pinned = f"{name} VERSION AS OF {snapshot_id}{alias}"
    return f"({pinned})" if alias else pinned


def _rows_of(table: PinnedTable, *, alias: str) -> str:
    """Return the rows of a table at its snapshot, see :func:`_at_snapshot`."""
    name = table.sql or table.identifier.sql()
    if not table.is_temporary:
        return _at_snapshot(name, table.snapshot_id, alias=alias)
    return f"({name}{alias})" if alias else name


def _as_subquery(table: PinnedTable, name: str) -> str:
    """Return a table at a snapshot as a subquery with a condition, or as one through which Spark pushes no filter.

    Iceberg binds the names in a filter to the table's current columns, also for a scan of an older snapshot. If a name
    now means another column, Iceberg would skip files by the statistics of the wrong column. Spark does not push
    filters below a nondeterministic one.
    """
    pinned = _rows_of(table, alias="")
    condition = UNFILTERED if table.unfiltered else table.where
    where = f" WHERE {condition}" if condition else ""
    return f"((SELECT {table.selected or '*'} FROM {pinned}{where}) AS {quote(name)})"


def filtered_floats(queries: Iterable[ParsedQuery], columns: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the columns with floating-point values by which queries may filter rows, and their Spark types.

    No scan may see such a filter. Iceberg and Delta Lake leave NaN out of the bounds of a file, while in Spark NaN is
    larger than any number. They order -0.0 before 0.0, while in Spark both are equal. So they skip files with rows that
    pass, and which ones these are changes with a compaction.

    Args:
        queries: A query and those of its nested views.
        columns: Name and Spark type of each column of a table.
    """
    floats = {name: kind for name, kind in columns if "float" in kind or "double" in kind}
    trees = [query.tree for query in queries] if floats else []
    if not any(tree.find(*_FILTERS) for tree in trees):
        return {}
    if len(trees) > 1 or _renames_by_position(trees[0]):
        return floats
    names = _filtered_names(trees[0])
    return {name: kind for name, kind in floats.items() if name.casefold() in names}


def selected(names: Iterable[str], floats: Mapping[str, str]) -> tuple[str, bool]:
    """Return a list for SELECT by which no scan sees a filter of some columns, and whether it must see none at all.

    The product of a number with 1 is the same value.

    Args:
        floats: See :func:`filtered_floats`.
    """
    names = list(names)
    ones = {name: _ONE[kind] for name, kind in floats.items() if kind in _ONE}
    items = (f"{quote(name)} * {ones[name]} AS {quote(name)}" if name in ones else quote(name) for name in names)
    return ", ".join(items), any(name in floats and name not in ones for name in names)


def _renames_by_position(tree: exp.Expr) -> bool:
    """Whether columns get other names by their position, or are compared by the name of a join alone."""
    if tree.find(exp.SetOperation) or any(alias.columns for alias in tree.find_all(exp.TableAlias)):
        return True
    return any(join.args.get("using") or join.method for join in tree.find_all(exp.Join))


def _filtered_names(tree: exp.Expr) -> set[str]:
    """Return the names in filters, and those in the expressions that have such a name, in lower case."""
    found = {name for node in tree.find_all(*_FILTERS) for name in _names_in(node)}
    named = [(item.alias.casefold(), _names_in(item.this)) for item in tree.find_all(exp.Alias)]
    for item in (item for select in tree.find_all(exp.Select) for item in select.expressions):
        if isinstance(item, exp.Column) and not item.is_star:
            named.append((item.name.casefold(), _names_in(item)))
        elif not isinstance(item, exp.Alias):
            found |= _names_in(item)  # Spark chooses the names
    while more := {name for output, names in named if output in found for name in names} - found:
        found |= more
    return found


def _names_in(node: exp.Expr) -> set[str]:
    return {item.name.casefold() for item in node.find_all(exp.Identifier)}


def _check_path(query: ParsedQuery, reference: Reference, path: tuple[str, ...]) -> None:
    name = str(reference.identifier)
    if name in path:
        cycle = " -> ".join([*path[path.index(name) :], name])
        raise query_error(query.text, reference.start, f"views read each other in a cycle: {cycle}", query.view)
    if len(path) > MAX_VIEW_DEPTH + 1:
        raise _too_deep(query, reference)


def _too_deep(query: ParsedQuery, reference: Reference) -> InvalidQueryError:
    message = f"views are nested more than {MAX_VIEW_DEPTH} deep here"
    return query_error(query.text, reference.start, message, query.view)


MAX_QUERY_BYTES = 1024 * 1024

#: Start and end (exclusive) of a piece of text, in characters.
TextSpan = tuple[int, int]

_FIRST_WORDS = (TokenType.SELECT, TokenType.WITH, TokenType.FROM, TokenType.VALUES, TokenType.L_PAREN)
_QUERIES = (exp.Query, exp.Values)
#: In a longer text no keyword is tried as a name.
_MAX_TOKENS_OF_HINT = 5000
_STATEMENTS = (exp.DDL, exp.DML, exp.Into, exp.Command, exp.MultitableInserts)
_CALLS_JAVA = frozenset({"reflect", "try_reflect", "java_method"})
#: Functions that may read a file by its path, and their number of arguments without a path.
_READS_FILES = {"from_protobuf": 0, "to_protobuf": 0, "from_avro": 2, "from_xml": 2, "schema_of_xml": 1}
#: Functions of the place where a row is stored or read. Compaction and the number of tasks change their values.
_TELL_PLACES = frozenset(
    {
        "input_file_name",
        "input_file_block_start",
        "input_file_block_length",
        "spark_partition_id",
        "monotonically_increasing_id",
    }
)
_TABLE_FUNCTIONS = frozenset({"range", "explode", "posexplode", "inline", "stack", "json_tuple", "variant_explode"})
_FILE_FORMATS = frozenset({"parquet", "orc", "csv", "json", "text", "xml", "avro", "binaryfile", "delta", "iceberg"})
#: A token as sqlglot prints it in a message, to be replaced by its text.
_TOKEN = re.compile(r"<Token token_type: \S+, text: (.*?), line: \d+, col: \d+, start: \d+, end: \d+, comments: .*?>")
#: A text that is the name of a file, unless it begins like a query.
_FILE_NAME = re.compile(r"[^\r\n;'\"`()]+\.(sql|hql|ddl)(\.j2|\.jinja2?)?", re.IGNORECASE)
_PLAIN_PART = re.compile(r"\w+")
_SNAPSHOT_ID = re.compile(r"[0-9]{1,19}")
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d:\d\d)?)?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TRAVEL = (
    "time travel can be VERSION AS OF a snapshot's id, a branch or a tag in quotes, or TIMESTAMP AS OF a time such as "
    "'2026-01-31 12:00:00' (in UTC, if it has no time zone)"
)
_SUBSTITUTION = re.compile(r"\$\{[^}$\s]+\}")
_LEXEMES = re.compile(
    r"""'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+"|`[^`]*+`|--[^\n]*|/\*.*?\*/|(?P<unclosed>['"`]|/\*)|.""", re.DOTALL
)


def spark_sql(metadata: ViewMetadata, *, view: str) -> str:
    """Return the query of a view in Spark's dialect: as it is stored, or translated if the view's property allows it.

    Raises:
        InvalidMetadataError: The view has no text that can be used.
        UnsupportedError: Its text cannot be translated.
    """
    stored, dialect = metadata.current_version.texts, metadata.properties.get(TRANSPILE_PROPERTY)
    if DIALECT in stored or dialect is None:
        return metadata.sql(view=view)
    return for_spark(stored, dialect, view=view)


def parse_query(
    sql: str,
    *,
    view: str,
    default_catalog: str,
    default_namespace: tuple[str, ...],
    given: Collection[str] = (),
) -> ParsedQuery:
    """Parse one query in Spark's dialect.

    Args:
        default_catalog: The catalog of names with one or two parts.
        default_namespace: The namespace of names with one part.
        given: Names of one part that are not tables, because the statement around the query defines them.

    Raises:
        InvalidQueryError: The text is not a single query, or contains something whose result could not
            be pinned. The message quotes the place.
    """
    text, tokens, tree = _parsed(sql, view)
    found = _references(text, tokens, tree, view, default_catalog, default_namespace, frozenset(map(fold, given)))
    return ParsedQuery(text, view, default_catalog, default_namespace, found, tree, tuple(tokens))


def parse_tree(sql: str, *, view: str) -> exp.Expr:
    """Parse one query in Spark's dialect without regard to its tables.

    Raises:
        InvalidQueryError: As :func:`parse_query`.
    """
    return _parsed(sql, view)[2]


def _parsed(sql: str, view: str) -> tuple[str, list[Token], exp.Expr]:
    _check_text(sql, view)
    tokens = _tokens(sql, view)
    text, tokens = _without_last_semicolons(sql, tokens)
    _check_tokens(text, tokens, view)
    tree = _tree(text, tokens, view)
    if not isinstance(tree, _QUERIES) or tree.find(*_STATEMENTS):
        raise query_error(text, tokens[0].start, "this is not a query: write a SELECT that changes nothing", view)
    _check_relations(text, tree, view)
    _check_functions(text, tree, view)
    return text, tokens, tree


def _references(
    text: str,
    tokens: Sequence[Token],
    tree: exp.Expr,
    view: str,
    default_catalog: str,
    default_namespace: tuple[str, ...],
    given: Collection[str],
) -> tuple[Reference, ...]:
    """Return each place that names a table or a view. Refuse unreadable names and files without snapshots."""
    found = []
    for table in _tables(tree):
        if len(table.parts) == 1 and fold(table.name) in given:
            continue
        start, end = _span(text, table.parts, view)
        parts = tuple(part.name for part in table.parts)
        if len(parts) == 2 and parts[0].lower() in _FILE_FORMATS and "/" in parts[1] and kind_of(parts) is METASTORE:
            raise query_error(text, start, _no_path(parts[0]), view)
        try:
            relation = Identifier.of(parts, default_catalog=default_catalog, default_namespace=default_namespace)
            identifier = table_identifier(table, default_catalog, default_namespace)
        except InvalidIdentifierError as error:
            raise query_error(text, start, str(error), view) from error
        if identifier != relation:
            end = _end_of_travel(text, tokens, end, view)
        found.append(Reference(start, end, identifier, bool(table.alias), relation))
    return tuple(sorted(found))


def _no_path(written: str) -> str:
    if written.lower() in BY_FORMAT:
        return f"the path of a table must be absolute: write {written}.`/path/to/table`"
    return "this reads files by path, which have no snapshots: register them as an Iceberg table"


def table_identifier(table: exp.Table, default_catalog: str, default_namespace: tuple[str, ...]) -> Identifier:
    """Return the full name of a table in a tree.

    A table with a clause of time travel has the name by which Spark reads the same state without the clause, such as
    ``lake.sales.orders.snapshot_id_5`` for ``lake.sales.orders VERSION AS OF 5``.

    Args:
        default_catalog: The catalog of names with one or two parts.
        default_namespace: The namespace of names with one part.

    Raises:
        InvalidIdentifierError: It has no readable name, or the clause is not readable.
    """
    parts = tuple(part.name for part in table.parts)
    name = Identifier.of(parts, default_catalog=default_catalog, default_namespace=default_namespace)
    if table.args.get("when") or (version := table.args.get("version")) is None:
        if table.args.get("when"):
            raise InvalidIdentifierError(_TRAVEL)
        return name
    return Identifier(name.catalog, (*name.namespace, name.name), _selector(version).name)


def _selector(version: exp.Expr) -> Selector:
    """Return what a clause of time travel selects.

    Raises:
        InvalidIdentifierError: It is not VERSION AS OF or TIMESTAMP AS OF a literal.
    """
    value = version.args.get("expression")
    if isinstance(value, exp.Cast) and value.is_type(exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ):
        value = value.this
    if version.args.get("kind") != "AS OF" or not isinstance(value, exp.Literal):
        raise InvalidIdentifierError(_TRAVEL)
    text = str(value.this)
    if version.this == "VERSION":
        # Iceberg tries a number as a snapshot's id only, also in quotes, and then a tag or a branch.
        return Selector("snapshot_id" if _SNAPSHOT_ID.fullmatch(text) else "tag", text)
    if not value.is_string or not _TIMESTAMP.fullmatch(text):
        raise InvalidIdentifierError(_TRAVEL)
    try:
        moment = parse_time(text)
    except ValueError as error:
        raise InvalidIdentifierError(f"{text!r} is not a time: {error}") from None
    return Selector("at_timestamp", str((moment - _EPOCH) // timedelta(milliseconds=1)))


def _end_of_travel(text: str, tokens: Sequence[Token], start: int, view: str) -> int:
    """Return where a clause of time travel ends, after a check that its text is what sqlglot has read.

    Args:
        start: Where the table's name ends.
    """
    following = (token for token in tokens if token.start >= start)
    for token in following:
        if token.token_type is TokenType.STRING or token.token_type is TokenType.NUMBER:
            if text[token.start : token.end + 1].strip("'\"") != token.text:
                break
            return token.end + 1
    raise query_error(text, start, _TRAVEL, view)


def splice(text: str, edits: Mapping[TextSpan, str]) -> str:
    """Return the text with each span replaced."""
    pieces, position = [], 0
    for (start, end), new in sorted(edits.items()):
        pieces += [text[position:start], new]
        position = end
    return "".join([*pieces, text[position:]])


def shorter_qualifiers(query: ParsedQuery, reference: Reference) -> dict[TextSpan, str]:
    """Return edits that shorten column qualifiers: ``orders.x`` for ``lake.sales.orders.x``.

    A subquery that stands in for a table can be named by one part only.

    Args:
        reference: A reference without an alias, which becomes a subquery named like its last part.

    Raises:
        InvalidQueryError: The short name also means something else.
    """
    node = next(item for item in _tables(query.tree) if _span(query.text, item.parts, query.view)[0] == reference.start)
    scope = node.find_ancestor(exp.Select)
    names = [fold(part) for part in reference.relation.parts]
    edits: dict[TextSpan, str] = {}
    for column in scope.find_all(exp.Column) if scope else ():
        chain = chain_of(column)
        for length in range(len(names), 1, -1):
            if len(chain) > length and [fold(part.name) for part in chain[:length]] == names[-length:]:
                edits[_span(query.text, chain[:length], query.view)] = quote(reference.relation.name)
                break
    if edits and not _is_unique(query.tree, node, names):
        message = f"give {reference.relation} an alias: another relation of the query has the same short name"
        raise query_error(query.text, reference.start, message, query.view)
    return edits


def query_error(text: str, offset: int, message: str, view: str) -> InvalidQueryError:
    """Return an error that quotes a place in a query.

    Args:
        offset: Where in it, in characters.
        message: What is wrong there.
    """
    start = text.rfind("\n", 0, offset) + 1
    end = text.find("\n", offset)
    line = text[start : len(text) if end < 0 else end].rstrip("\r")
    first = max(0, offset - start - 80)
    shown = line[first : first + 120]
    before = re.sub(r"\S", " ", shown[: offset - start - first])
    place = f"line {text.count(chr(10), 0, offset) + 1}, column {offset - start + 1}"
    return InvalidQueryError(f"view {view}: {place}: {message}\n    {shown}\n    {before}^")


# --------------------------------------------------------------------------------------- reading
def _check_text(sql: str, view: str) -> None:
    try:
        size = len(sql.encode())
    except UnicodeEncodeError as error:
        raise InvalidQueryError(f"view {view}: character {error.start + 1} of the query is not Unicode text") from error
    if size > MAX_QUERY_BYTES:
        raise InvalidQueryError(f"view {view}: the query has {size} bytes: at most {MAX_QUERY_BYTES} are allowed")
    if match := _SUBSTITUTION.search(sql):
        message = f"Spark would put a setting of its session in place of {match[0]}: write the value itself"
        raise query_error(sql, match.start(), message, view)


def _tokens(sql: str, view: str) -> list[Token]:
    try:
        tokens = tokenized(sql)
    except TokenError as error:
        unclosed = next((match for match in _LEXEMES.finditer(sql) if match["unclosed"]), None)
        if unclosed:
            raise query_error(sql, unclosed.start(), f"{unclosed[0]} is never closed", view) from error
        end = getattr(error, "end", None)  # sqlglot 30.15 has no position of it
        raise query_error(sql, end or 0, "this cannot be parsed", view) from error
    if all(token.token_type is TokenType.SEMICOLON for token in tokens):
        raise InvalidQueryError(f"view {view}: the query is empty")
    return tokens


def _without_last_semicolons(sql: str, tokens: list[Token]) -> tuple[str, list[Token]]:
    count = len(tokens)
    while tokens[count - 1].token_type is TokenType.SEMICOLON:
        count -= 1
    return (sql if count == len(tokens) else sql[: tokens[count].start]), tokens[:count]


def _check_tokens(text: str, tokens: Sequence[Token], view: str) -> None:
    """Refuse text that sqlglot may read differently than Spark, wherever it occurs."""
    if message := _not_a_query(text, tokens[0]):
        raise query_error(text, tokens[0].start, message, view)
    for index, token in enumerate(tokens):
        before = tokens[index - 1].token_type if index else None
        after = tokens[index + 1] if index + 1 < len(tokens) else None
        if message := _refusal(token, before, after):
            raise query_error(text, token.start, message, view)


def _not_a_query(text: str, first: Token) -> str | None:
    begins = first.token_type in _FIRST_WORDS
    if _FILE_NAME.fullmatch(text.strip()) and not (begins and re.search(r"\s", text.strip())):
        return "this is the name of a file, not a query: give --sql-file, or the file's text as sql"
    if begins:
        return None
    mark = " (before it is a byte order mark: read its file as utf-8-sig)" if text.startswith("\ufeff") else ""
    return f"this is not a query: it must begin with SELECT or WITH{mark}"


def _refusal(token: Token, before: TokenType | None, after: Token | None) -> str | None:
    if any(comment.endswith("\\") or "/*+" in comment for comment in token.comments):
        return "a comment near here ends with a backslash or holds a hint: Spark ends it at another place"
    kind, word = token.token_type, token.text.lower()
    is_call = after is not None and after.token_type is TokenType.L_PAREN
    if kind is TokenType.SEMICOLON:
        return "there are several statements: a view has one query"
    if is_call and word in _CALLS_JAVA and kind is not TokenType.STRING:
        return f"{word}() calls any Java code: its result does not depend on snapshots alone"
    if is_call and word in _TELL_PLACES and kind is not TokenType.STRING:
        return f"{word}() depends on where a row is stored or read, which changes while rows do not: remove it"
    if is_call and word == "identifier" and kind is TokenType.VAR:
        return "IDENTIFIER() hides the name of the table: write the name itself"
    return _table_refusal(before, after) if kind is TokenType.TABLE and after is not None else None


def _table_refusal(before: TokenType | None, after: Token) -> str | None:
    if after.token_type is TokenType.L_PAREN:
        return "functions of whole tables are not supported"
    if before is TokenType.L_PAREN and (after.token_type is TokenType.IDENTIFIER or _PLAIN_PART.fullmatch(after.text)):
        return "write SELECT * FROM instead of TABLE"
    return None


class _BoundedParser(BoundedParser, AsWrittenParser):
    """Stops parsing a query that takes too long."""


def _tree(text: str, tokens: list[Token], view: str) -> exp.Expr:
    parser = _BoundedParser(dialect=AsWritten(), error_message_context=len(text))
    try:
        trees = parser.parse(tokens, text)
    except ParseError as error:
        details = error.errors[0]
        description = _in_words(_TOKEN.sub(r"\1", details["description"]))
        place = len(details["start_context"] or "")
        message = f"sqlglot, which parses the query before Spark, fails: {description}{_hint(text, tokens, place)}"
        raise query_error(text, place, message, view) from error
    except TooManyStepsError as error:
        message = "the query takes sqlglot too long to parse: write CROSS JOIN for a JOIN without ON, nest STRUCT less"
        raise InvalidQueryError(f"view {view}: {message}") from error
    except RecursionError as error:
        raise InvalidQueryError(f"view {view}: the query is nested too deeply for sqlglot to read") from error
    except PARSER_FAULTS as error:
        message = f"view {view}: sqlglot, which parses the query before Spark, fails ({error!r})"
        raise InvalidQueryError(message) from error
    if len(trees) != 1 or trees[0] is None:
        raise query_error(text, tokens[0].start, "this is not one query", view)
    if not _has_columns(trees[0]):
        hint = _hint(text, tokens, len(text))
        message = f"sqlglot, which parses the query before Spark, finds a SELECT without columns{hint}"
        raise query_error(text, tokens[0].start, message, view)
    return trees[0]


def _in_words(description: str) -> str:
    """Return sqlglot's description of a fault, without the names of its classes."""
    if found := re.match(r"The number of provided arguments \((\d+)\) .* \((\d+)\)", description):
        return f"the call has {found[1]} arguments, and the function takes at most {found[2]}"
    return "the call lacks an argument" if description.startswith("Required keyword: ") else description


def _has_columns(tree: exp.Expr) -> bool:
    return all(select.expressions for select in tree.find_all(exp.Select))


def _hint(text: str, tokens: Sequence[Token], place: int) -> str:
    """Return what to do if a keyword before a place is the reason that sqlglot fails there."""
    if len(tokens) > _MAX_TOKENS_OF_HINT:
        return ""
    for word, changed in with_names(tokens, place):
        with suppress(ParseError, TooManyStepsError, RecursionError, *PARSER_FAULTS):
            trees = _BoundedParser(dialect=AsWritten()).parse(changed, text)
            if len(trees) == 1 and isinstance(trees[0], _QUERIES) and _has_columns(trees[0]):
                return f". If {word} is a name here, write `{word}` in backticks"
    return ""


def _check_relations(text: str, tree: exp.Expr, view: str) -> None:
    if script := tree.find(exp.QueryTransform):
        message = "TRANSFORM … USING runs a program: its result belongs to no snapshot"
        raise query_error(text, start_of(script), message, view)
    for node in tree.find_all(exp.Table, exp.Lateral):
        function = node.this
        if isinstance(node, exp.Lateral) and not isinstance(function, (exp.Func, exp.Subquery, exp.Values)):
            raise query_error(
                text,
                start_of(node),
                "LATERAL is not followed by a subquery: remove it, or put the name in backticks",
                view,
            )
        if not isinstance(function, exp.Func):
            continue
        name = (function.name if isinstance(function, exp.Anonymous) else function.sql_name()).lower()
        if name.removesuffix("_outer") not in _TABLE_FUNCTIONS or node.args.get("db"):
            known = ", ".join(sorted(_TABLE_FUNCTIONS))
            message = f"the table function {name}() reads data without snapshots: only {known} are allowed"
            raise query_error(text, start_of(node), message, view)


def _check_functions(text: str, tree: exp.Expr, view: str) -> None:
    for call in tree.find_all(exp.Anonymous):
        name = call.name.lower()
        if len(call.expressions) > _READS_FILES.get(name, len(call.expressions)):
            message = f"with these arguments {name}() may read a file by path, with the rights of Spark's driver"
            raise query_error(text, start_of(call), message, view)


def start_of(node: exp.Expr) -> int:
    """Return the first known place at or below a node, or the text's start."""
    return min((int(item.meta["start"]) for item in node.walk() if "start" in item.meta), default=0)


# ------------------------------------------------------------------------------------ references
def _tables(tree: exp.Expr) -> Iterator[exp.Table]:
    for table in tree.find_all(exp.Table):
        names_nothing = isinstance(table.this, exp.Func | exp.Values) or isinstance(table.parent, exp.JoinHint)
        if not names_nothing and cte_of(table) is None:
            yield table


def cte_of(table: exp.Table) -> exp.CTE | None:
    """Return the CTE that a name means: the one of the innermost WITH that defines it before this place."""
    if len(table.parts) > 1:
        return None
    name = fold(table.name)
    child: exp.Expr = table
    definition: exp.Expr | None = None
    while (parent := child.parent) is not None:
        if isinstance(child, exp.CTE):
            definition = child
        with_ = parent.args.get("with_")
        for cte in [] if with_ is None else _visible(with_, definition if child is with_ else None):
            if fold(cte.alias) == name:
                return cte
        child = parent
    return None


def _visible(with_: exp.Expr, definition: exp.Expr | None) -> Iterator[exp.CTE]:
    """Yield the CTEs of a WITH that its query, or one of its definitions, can name: the latter only earlier ones."""
    for cte in with_.expressions:
        if cte is not definition or with_.args.get("recursive"):
            yield cte
        if cte is definition:
            return


def _span(text: str, parts: Sequence[exp.Expr], view: str) -> TextSpan:
    """Return the place of a name in the text, after a check that the text there equals the name."""
    for part in parts:
        start, end = part.meta.get("start"), part.meta.get("end")
        written = text[start : end + 1] if start is not None and end is not None else ""
        if written != quote(part.name) and not (written == part.name and _PLAIN_PART.fullmatch(written)):
            message = f"the name part {part.name!r} is not readable here: put each part of the name in backticks"
            raise query_error(text, start or 0, message, view)
    return int(parts[0].meta["start"]), int(parts[-1].meta["end"]) + 1


def chain_of(column: exp.Column) -> list[exp.Expr]:
    """Return all parts of a column's name, including struct fields, which sqlglot keeps outside of the column."""
    chain, node = [*column.parts], column.parent
    while isinstance(node, exp.Dot):
        chain.append(node.expression)
        node = node.parent
    return chain


def _is_unique(tree: exp.Expr, node: exp.Table, names: list[str]) -> bool:
    """Whether a relation's short name means only that relation, or others of the same full name."""
    for alias in tree.find_all(exp.TableAlias):
        if fold(alias.name) == names[-1]:
            return False
    own = [fold(part.name) for part in node.parts]
    others = (table for table in tree.find_all(exp.Table) if not isinstance(table.parent, exp.JoinHint))
    return all(
        fold(table.name) != names[-1] or bool(table.alias) or [fold(part.name) for part in table.parts] == own
        for table in others
    )


def fold(name: str) -> str:
    """Return a form that is equal for names that Java's ``equalsIgnoreCase`` treats as equal."""
    return "".join((upper if len(upper := char.upper()) == 1 else char).lower() for char in name)
