# SPDX-License-Identifier: Apache-2.0
"""Resolve a parsed query into the normal form of :mod:`airflow_mv.core.ivm.ir`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product

from sqlglot import exp

from airflow_mv.core.ivm import functions, ir
from airflow_mv.core.ivm.functions import VOLATILE
from airflow_mv.core.ivm.ir import BaseRelation, Grouping, RefusedError
from airflow_mv.core.ivm.regeneration import read
from airflow_mv.core.script import METADATA_COLUMNS
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.reasons import Code
from airflow_mv.core.sql.query import NestedView, fold, table_identifier
from airflow_mv.errors import InvalidIdentifierError
from airflow_mv.foundation.words import did_you_mean

MAX_BLOCKS = 400

_ORDER = ("order", "sort", "cluster", "distribute")
_SELECT = ("expressions", "from_", "joins", "laterals", "where", "group", "having", "windows", "distinct", "hint")
_SET_OPERATORS: Mapping[type[exp.Expr], ir.SetOperator] = {
    exp.Union: "UNION",
    exp.Intersect: "INTERSECT",
    exp.Except: "EXCEPT",
}

#: Words that a call may take in place of a value, where sqlglot may read a column.
_UNITS = frozenset(
    f"{unit}{end}"
    for unit in "year quarter month week day hour minute second millisecond microsecond dayofyear".split()  # noqa: SIM905
    for end in ("", "s")
)

#: A query and its columns, as other queries can name them.
Resolved = tuple[ir.Tree, Sequence[str | None]]


class UnknownNameError(RefusedError):
    """A column or a field of a struct that Spark would not find: all names of the place are known.

    Args:
        name: The part that is not found.
        known: The names that are there.
    """

    def __init__(self, message: str, name: str, known: Sequence[str]) -> None:
        super().__init__(Code.UNRESOLVED_NAME, message + did_you_mean(name, known))
        self.name = name
        #: Where the name begins in the text of the view's query; ``None`` if it is elsewhere or unknown.
        self.place: int | None = None

    def found_at(self, node: exp.Expr) -> None:
        """Note the place of the name, unless it is noted."""
        starts = [item.meta["start"] for item in node.find_all(exp.Identifier) if "start" in item.meta]
        self.place = min(starts, default=None) if self.place is None else self.place


class Resolver:
    """Resolves the query of one view, and records the columns that it reads of each base table."""

    def __init__(self, relations: Sequence[BaseRelation], views: Mapping[Identifier, NestedView]) -> None:
        self.bases = {relation.identifier: relation for relation in relations}
        self.views = views
        #: The base table behind each alias.
        self.tables: dict[str, Identifier] = {}
        self._aliases: set[str] = set()
        self._nested: dict[str, ir.Nested] = {}
        self._blocks = 0

    def alias(self, wanted: str) -> str:
        """Return an alias that is unique in the whole query."""
        if wanted.startswith(GENERATED):
            wanted = f"r{wanted}"
        name, number = wanted, 1
        while fold(name) in self._aliases:
            number += 1
            name = f"{wanted}_{number}"
        self._aliases.add(fold(name))
        return name

    # ------------------------------------------------------------------------------- queries
    def query(self, node: exp.Expr, environment: Environment, parent: NameScope | None) -> Resolved:
        """Resolve a query.

        Args:
            node: The query in sqlglot's tree.
            environment: The tables, views and CTEs that names stand for.
            parent: The scope of the outer query, for a subquery. A derived table has none, so it cannot name outer
                columns here; in Spark it can.

        Raises:
            RefusedError: The query has an unsupported part or an ambiguous name.
        """
        if parent is not None:
            environment = replace(environment, in_subquery=True)
        scope = NameScope(parent, is_whole=parent is not None or not environment.in_subquery)
        if isinstance(node, exp.Subquery):
            allow(node, "this", "with_", *_ORDER)
            return self.query(node.this, with_ctes(node, environment), parent)
        if isinstance(node, exp.SetOperation):
            return self._compound(node, with_ctes(node, environment), parent)
        if isinstance(node, exp.Values):
            return self._star(exp.Select(from_=exp.From(this=node)), environment, scope)
        if isinstance(node, exp.Select):
            return self._select(node, with_ctes(node, environment), scope)
        raise RefusedError(Code.UNSUPPORTED_OPERATOR, f"{type(node).__name__.upper()} is not supported as a query")

    def _star(self, node: exp.Select, environment: Environment, scope: NameScope) -> Resolved:
        node.set("expressions", [exp.Star()])
        return self._select(node, environment, scope)

    def _compound(self, node: exp.SetOperation, environment: Environment, parent: NameScope | None) -> Resolved:
        allow(node, "this", "expression", "distinct", "with_", *_ORDER)
        left, written = self.query(node.this, environment, parent)
        right, others = self.query(node.expression, environment, parent)
        if len(written) != len(others):
            raise RefusedError(Code.UNREADABLE, "the two sides of a set operator have different numbers of columns")
        operator = next(name for kind, name in _SET_OPERATORS.items() if isinstance(node, kind))
        return ir.Compound(operator, distinct=bool(node.args.get("distinct")), left=left, right=right), written

    def _select(self, node: exp.Select, environment: Environment, scope: NameScope) -> Resolved:
        allow(node, *_SELECT, "with_", *_ORDER)
        self._blocks += 1
        if self._blocks > MAX_BLOCKS:
            message = f"with its CTEs and views expanded the query has more than {MAX_BLOCKS} SELECTs"
            raise RefusedError(Code.TOO_LARGE, message)
        node = with_lateral_view(_with_named_windows(node))
        window = time_window(node.args.get("group"))
        clause = FromClause(self, environment, scope, [])
        if from_ := node.args.get("from_"):
            clause.read(from_.this, node.args.get("joins") or ())
        laterals = tuple(clause.lateral(item) for item in node.args.get("laterals") or ())
        where = self._clause(node, "where", scope, environment)
        scope.window = self.expression(window, scope, environment) if window is not None else None
        fields = self._fields(node, scope, environment)
        keys = self._grouping(node, fields, scope, environment)
        having = self._having(node, fields, scope, environment)
        outputs = unique(fields)
        held = [*(item.on for item in clause.relations), *laterals, where, having, *(item.value for item in outputs)]
        block = ir.Block(
            outputs=outputs,
            relations=tuple(clause.relations),
            laterals=laterals,
            where=where,
            grouping=keys,
            having=having,
            distinct=_distinct(node),
            nested=self._taken(held),
        )
        if scope.window is not None:
            block = grouped_below(block, scope.window, self.alias("windowed"))
        return block, [item.name for item in fields]

    def _clause(self, node: exp.Select, name: str, scope: NameScope, environment: Environment) -> exp.Expr | None:
        clause = node.args.get(name)
        return self.expression(clause.this, scope, environment) if clause is not None else None

    # --------------------------------------------------------------------------- SELECT list
    def _fields(self, node: exp.Select, scope: NameScope, environment: Environment) -> list[Field]:
        fields: list[Field] = []
        for item in node.expressions:
            if _is_star(item):
                fields += _starred(item, scope)
                continue
            value = self.expression(item.unalias(), scope, environment)
            name = item.alias if isinstance(item, exp.Alias) else self._implied_name(item, value)
            fields.append(Field(name, value))
            if isinstance(item, exp.Alias):
                scope.earlier.append(fields[-1])
        scope.earlier = []
        return fields

    def _implied_name(self, item: exp.Expr, value: exp.Expr) -> str | None:
        """Return the name that Spark gives a column without AS, if queries may refer to it."""
        if isinstance(item, exp.Aliases) or functions.is_generator(value):
            if isinstance(value, exp.Explode) and self._is_array(value.this):
                return "col"
            if isinstance(value, exp.Anonymous) and value.name.lower() == WINDOW:
                return WINDOW
            message = "name the columns of a generator: write LATERAL VIEW … AS"
            raise RefusedError(Code.UNSUPPORTED_OPERATOR, message)
        inner = item.unnest()
        if isinstance(inner, exp.Cast):
            inner = inner.this.unnest()
        names = chain(inner)
        return names[-1] if names else None

    def _is_array(self, value: exp.Expr) -> bool:
        """Whether an expression is an array, by the base tables' types. For a map the columns would differ."""
        if not isinstance(value, exp.Column) or value.table not in self.tables:
            return isinstance(value, exp.Array | exp.Split)
        types = dict(self.bases[self.tables[value.table]].columns)
        return types[value.name].lower().startswith("array<")

    def _grouping(
        self, node: exp.Select, fields: list[Field], scope: NameScope, environment: Environment
    ) -> ir.Grouping | None:
        group = node.args.get("group")
        if group is None:
            return None
        if group.args.get("all") and not group.expressions:
            return _group_by_all(fields)

        def key(written: exp.Expr) -> exp.Expr:
            if isinstance(written, exp.Literal) and not written.is_string:
                return _ordinal(written, fields)
            names = chain(written)
            if names is not None and scope.own(names) is None and not scope.may_be_metadata(names):
                found = NameScope(None, star=fields).own(names)
                if found is not None:
                    return found
            return self.expression(written, scope, environment)

        keys = grouping(group, key)
        if not keys.keys or any(item.find(exp.Window) for item in keys.keys):
            message = "GROUP BY a window function, or without a key, is not supported"
            raise RefusedError(Code.UNSUPPORTED_OPERATOR, message)
        return keys

    def _having(
        self, node: exp.Select, fields: list[Field], scope: NameScope, environment: Environment
    ) -> exp.Expr | None:
        having = node.args.get("having")
        if having is None:
            return None
        output = NameScope(None, star=fields)

        def alias(written: exp.Expr) -> exp.Expr | None:
            names = chain(written)
            found = output.own(names) if names is not None else None
            own = scope.own(names) if names is not None and found is not None else None
            if found is not None and own is not None and own != found:
                message = f"{'.'.join(names or ())} in HAVING may mean a column of SELECT or one of FROM"
                raise RefusedError(Code.UNRESOLVED_NAME, message)
            return exp.Paren(this=found) if found is not None else None

        return self.expression(having.this, scope, environment, first=alias)

    # --------------------------------------------------------------------------- expressions
    def expression(
        self,
        node: exp.Expr,
        scope: NameScope,
        environment: Environment,
        first: Callable[[exp.Expr], exp.Expr | None] | None = None,
    ) -> exp.Expr:
        """Resolve an expression: columns, functions and subqueries.

        Args:
            node: The expression in sqlglot's tree.
            scope: The scope in which columns are resolved.
            environment: The tables, views and CTEs that names stand for.
            first: Resolves some names before the scope is used.

        Raises:
            RefusedError: The expression has an unsupported part or an ambiguous name.
        """

        def find(part: exp.Expr) -> exp.Expr | None:
            if first is not None and (found := first(part)) is not None:
                return found
            names = chain(part)
            if names is not None:
                return self._named(part, names, scope, environment)
            if isinstance(part, exp.Exists | exp.In | exp.Query) and (mark := self._subquery(part, scope, environment)):
                return mark
            self._check(part)
            return None

        return ir.substitute(node, find)

    def _named(self, part: exp.Expr, names: Sequence[str], scope: NameScope, environment: Environment) -> exp.Expr:
        """Resolve a column, and the fields of structs after it."""
        try:
            found = scope.resolve(names)
            self._check_fields(found)
        except UnknownNameError as error:
            if not environment.views and not _is_word_of_a_call(part, names):
                error.found_at(part)
            raise
        return found

    def _check_fields(self, found: exp.Expr) -> None:
        """Refuse a field that the struct does not have, if the struct is of a base table.

        Raises:
            UnknownNameError: There is no such field.
        """
        fields: list[str] = []
        while isinstance(found, exp.Dot):
            fields.insert(0, found.expression.name)
            found = found.this.unnest()
        if not fields or not isinstance(found, exp.Column) or found.table not in self.tables:
            return
        written = dict(self.bases[self.tables[found.table]].columns)[found.name]
        kind = exp.DataType.build(written, dialect="spark")
        for name in fields:
            while kind.this == exp.DType.ARRAY and kind.expressions:  # a field of each element
                kind = kind.expressions[0]
            if kind.this != exp.DType.STRUCT:
                return
            kinds = {fold(item.name): item for item in kind.expressions}
            if fold(name) not in kinds:
                message = f"{found.name} has no field {name}"
                raise UnknownNameError(message, name, [item.name for item in kind.expressions])
            kind = kinds[fold(name)].args["kind"]

    def check_functions(self, node: exp.Expr) -> None:
        """Refuse functions and other parts of an expression that are not supported or not deterministic.

        Raises:
            RefusedError: There is one.
        """
        for part in node.walk():
            self._check(part)

    def _check(self, part: exp.Expr) -> None:
        if isinstance(part, exp.Func):
            functions.check(part)
        if isinstance(part, exp.Collate) or (isinstance(part, exp.DataType) and part.args.get("collate")):
            raise RefusedError(Code.UNSUPPORTED_OPERATOR, "COLLATE: texts that compare as equal may differ")
        if isinstance(part, exp.Lambda):
            check_variables(part)
        if isinstance(part, exp.Dot) and isinstance(part.expression, exp.Func):
            raise RefusedError(Code.UNKNOWN_FUNCTION, f"{part.sql(dialect='spark')[:60]} is a user's function")
        if isinstance(part, exp.Star) and not _counts_rows(part):
            raise RefusedError(Code.UNSUPPORTED_OPERATOR, "* in an expression is not supported")
        if isinstance(part, exp.Any | exp.All) and not isinstance(part.parent, exp.Like | exp.ILike):
            raise RefusedError(Code.UNSUPPORTED_OPERATOR, "ANY and ALL are not supported: write bool_or() or IN")
        if isinstance(part, exp.Placeholder | exp.Parameter | exp.SessionParameter):
            raise RefusedError(Code.UNREADABLE, f"the parameter {part.sql(dialect='spark')} has no value")

    def _subquery(self, part: exp.Expr, scope: NameScope, environment: Environment) -> exp.Expr | None:
        if isinstance(part, exp.Exists):
            kind, query, operands = "EXISTS", part.this, []
            if not isinstance(query, exp.Query):
                return None
        elif isinstance(part, exp.In):
            kind, query, operands = "IN", part.args.get("query"), _operands(part.this)
            if query is None:
                return None
        elif isinstance(part, exp.Subquery):
            kind, query, operands = "SCALAR", part, []
        else:
            message = f"a subquery in this place is not supported: {part.sql(dialect='spark')[:60]}"
            raise RefusedError(Code.UNSUPPORTED_OPERATOR, message)
        below = NameScope(scope)
        tree, _ = self.query(query, environment, below)
        resolved = [self.expression(operand, scope, environment) for operand in operands]
        mark = f"__nested_{len(self._nested)}"
        self._nested[mark] = ir.Nested(mark, kind, tree, frozenset(below.outer))  # type: ignore[arg-type]
        return exp.Anonymous(this=mark, expressions=resolved)

    def _taken(self, expressions: Sequence[exp.Expr | None]) -> tuple[ir.Nested, ...]:
        found = [
            call.name
            for item in expressions
            if item is not None
            for call in item.find_all(exp.Anonymous)
            if call.name in self._nested
        ]
        return tuple(self._nested[mark] for mark in dict.fromkeys(found))

    def used_columns(self, tree: ir.Tree) -> dict[Identifier, tuple[str, ...]]:
        """Return the columns that a resolved query reads of each base table, in the table's order."""
        used: dict[Identifier, set[str]] = {identifier: set() for identifier in self.bases}

        def note(expression: exp.Expr) -> exp.Expr:
            for item in expression.find_all(exp.Column):
                if item.table in self.tables:
                    used[self.tables[item.table]].add(item.name)
            return expression

        ir.rewrite(tree, note)
        return {
            identifier: tuple(name for name, _ in base.columns if name in used[identifier])
            for identifier, base in self.bases.items()
        }

    def joined_columns(self, tree: ir.Tree) -> dict[Identifier, tuple[str, ...]]:
        """Return the columns of each base table that a resolved query equates with columns of other relations."""
        joined: dict[Identifier, set[str]] = {identifier: set() for identifier in self.bases}

        def note(expression: exp.Expr) -> exp.Expr:
            for item in expression.find_all(exp.EQ, exp.NullSafeEQ):
                sides = (item.left.unnest(), item.right.unnest())
                one, other = (side if isinstance(side, exp.Column) else None for side in sides)
                if one is not None and other is not None and one.table != other.table:
                    for side in (one, other):
                        if side.table in self.tables:
                            joined[self.tables[side.table]].add(side.name)
            return expression

        ir.rewrite(tree, note)
        return {identifier: tuple(sorted(names)) for identifier, names in joined.items()}

    def take_nested(self, relations: Sequence[ir.Relation]) -> tuple[ir.Nested, ...]:
        """Return the subqueries in the conditions of joins."""
        return self._taken([relation.on for relation in relations])


# ------------------------------------------------------------------------------------ small parts
def _is_word_of_a_call(part: exp.Expr, names: Sequence[str]) -> bool:
    """Whether a name without a column may be no column: a unit of time in a call, or the name of an argument."""
    parent = part.parent
    in_call = isinstance(parent, exp.Func) and not isinstance(parent, exp.AggFunc)
    return len(names) == 1 and (
        (in_call and names[0].lower() in _UNITS)
        or names[0].lower() == "grouping__id"
        or isinstance(parent, exp.Kwarg | exp.PropertyEQ | exp.Lambda)
    )


def _counts_rows(star: exp.Star) -> bool:
    """Whether a star is that of ``count(*)``. In any other call it stands for columns, and their NULLs matter."""
    call = star.parent
    return isinstance(call, exp.Count) and call.this is star and not call.expressions and not any(star.args.values())


def _operands(node: exp.Expr) -> list[exp.Expr]:
    inner = node.unnest() if isinstance(node, exp.Paren) else node
    return list(inner.expressions) if isinstance(inner, exp.Tuple) else [inner]


def _is_star(item: exp.Expr) -> bool:
    return isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star))


def _starred(item: exp.Expr, scope: NameScope) -> list[Field]:
    star = item.this if isinstance(item, exp.Column) else item
    allow(star, "except_")
    fields = list(scope.star)
    if isinstance(item, exp.Column):
        fields = list(scope.fields_of([part.name for part in item.parts[:-1]]))
    for excluded in star.args.get("except_") or ():
        names = chain(excluded) or [excluded.name]
        value = scope.own(names)
        kept = [entry for entry in fields if entry.value != value]
        if len(kept) != len(fields) - 1:
            raise RefusedError(Code.UNRESOLVED_NAME, f"EXCEPT ({'.'.join(names)}) does not match exactly one column")
        fields = kept
    if not fields:
        raise RefusedError(Code.UNRESOLVED_NAME, "* expands to no column")
    return fields


def _distinct(node: exp.Select) -> bool:
    distinct = node.args.get("distinct")
    if distinct is not None and distinct.args.get("on"):
        raise RefusedError(Code.UNSUPPORTED_OPERATOR, "DISTINCT ON is not supported")
    return distinct is not None


def _ordinal(written: exp.Literal, fields: Sequence[Field]) -> exp.Expr:
    position = int(written.name) if written.name.isdecimal() else 0
    if not 1 <= position <= len(fields):
        raise RefusedError(Code.UNREADABLE, f"GROUP BY {written.name}: the SELECT list has {len(fields)} columns")
    return fields[position - 1].value.copy()


def _group_by_all(fields: Sequence[Field]) -> ir.Grouping | None:
    keys = [item.value for item in fields if not list(functions.aggregates(item.value))]
    for item in fields:
        calls = list(functions.aggregates(item.value))
        below = {id(column) for call in calls for column in call.find_all(exp.Column)}
        bare = [column for column in item.value.find_all(exp.Column) if id(column) not in below]
        if calls and any(column not in keys for column in bare):
            message = "GROUP BY ALL with a column that mixes aggregates and others: write the keys"
            raise RefusedError(Code.UNSUPPORTED_OPERATOR, message)
    return ir.Grouping(tuple(dict.fromkeys(keys))) if keys else None


def _with_named_windows(node: exp.Select) -> exp.Select:
    """Replace the names of windows by their definitions."""
    named = {fold(item.name): item for item in node.args.get("windows") or ()}
    if not any(isinstance(item.args.get("alias"), exp.Identifier) for item in node.find_all(exp.Window)):
        return node
    result = node.copy()
    for window in list(result.find_all(exp.Window)):
        alias = window.args.get("alias")
        if alias is None or window.find_ancestor(exp.Select) is not result:
            continue
        definition = named.get(fold(alias.name))
        own = any(window.args.get(name) for name in ("partition_by", "order", "spec"))
        if definition is None or own or definition.args.get("alias"):
            message = f"window {alias.name} is not supported here: write it after OVER"
            raise RefusedError(Code.UNSUPPORTED_OPERATOR, message)
        window.set("alias", None)
        for name in ("partition_by", "order", "spec"):
            value = definition.args.get(name)
            copied = [item.copy() for item in value] if isinstance(value, list) else value and value.copy()
            window.set(name, copied)
    return result


_KINDS: Mapping[tuple[str, str], ir.JoinKind] = {
    ("", ""): "INNER",
    ("", "INNER"): "INNER",
    ("", "CROSS"): "INNER",
    ("LEFT", ""): "LEFT",
    ("LEFT", "OUTER"): "LEFT",
    ("RIGHT", ""): "RIGHT",
    ("RIGHT", "OUTER"): "RIGHT",
    ("FULL", ""): "FULL",
    ("FULL", "OUTER"): "FULL",
    ("LEFT", "SEMI"): "SEMI",
    ("", "SEMI"): "SEMI",
    ("LEFT", "ANTI"): "ANTI",
    ("", "ANTI"): "ANTI",
}
_REFUSED_CLAUSES = {
    "limit": "LIMIT: whether a row is in the result depends on all others",
    "offset": "OFFSET: whether a row is in the result depends on all others",
    "sample": "TABLESAMPLE: which rows it reads depends on how they are stored",
    "pivots": "PIVOT and UNPIVOT are not supported: write the aggregates themselves",
    "qualify": "QUALIFY is not supported: put the window function in a subquery",
}
_GENERATED = {exp.Explode: ("col",), exp.Posexplode: ("pos", "col")}


@dataclass(frozen=True, slots=True)
class Cte:
    """A CTE, and the environment in which it was defined and its names are resolved."""

    query: exp.Expr
    columns: tuple[str, ...]
    environment: Environment


@dataclass(frozen=True, slots=True)
class Environment:
    """The tables, views and CTEs that names in a query stand for."""

    catalog: str
    namespace: tuple[str, ...]
    ctes: Mapping[str, Cte]
    views: tuple[Identifier, ...] = ()
    #: Whether the names are in a subquery, at any depth.
    in_subquery: bool = False


def allow(node: exp.Expr, *allowed: str) -> None:
    """Refuse all clauses but the allowed ones.

    Raises:
        RefusedError: There is another clause.
    """
    for name, value in node.args.items():
        if value and name not in allowed:
            message = _REFUSED_CLAUSES.get(name, f"the clause {name.strip('_').upper()} is not supported here")
            raise RefusedError(Code.UNSUPPORTED_OPERATOR, message)


def with_ctes(node: exp.Expr, environment: Environment) -> Environment:
    """Return the environment with the CTEs of a query's WITH added.

    Raises:
        RefusedError: The WITH is recursive.
    """
    with_ = node.args.get("with_")
    if with_ is None:
        return environment
    if with_.args.get("recursive"):
        raise RefusedError(Code.UNSUPPORTED_OPERATOR, "a recursive WITH is not supported")
    for cte in with_.expressions:
        columns = tuple(item.name for item in cte.args["alias"].args.get("columns") or ())
        ctes = {**environment.ctes, fold(cte.alias): Cte(cte.this, columns, environment)}
        environment = replace(environment, ctes=ctes)
    return environment


@dataclass(slots=True)
class FromClause:
    """Reads one FROM clause, left to right, and fills the scope of its SELECT."""

    resolver: Resolver
    environment: Environment
    scope: NameScope
    relations: list[ir.Relation]
    #: A comma has a lower precedence than JOIN, but sqlglot reads both a comma and CROSS JOIN alike.
    crossed: bool = False

    def read(self, first: exp.Expr, joins: Sequence[exp.Join]) -> None:
        """Read the first relation and all joined relations."""
        relation, visible = self._relation(first)
        self.relations.append(relation)
        self.scope.add(visible)
        for join in joins:
            self._join(join)

    def lateral(self, node: exp.Lateral) -> exp.Lateral:
        """Read a LATERAL VIEW."""
        alias = node.args.get("alias")
        columns = [item.name for item in (alias.args.get("columns") or ())] if alias else []
        columns = columns or list(_GENERATED.get(type(node.this), ()))
        if not columns or not node.args.get("view"):
            message = "name the columns of LATERAL VIEW; LATERAL before a subquery is not supported"
            raise RefusedError(Code.UNSUPPORTED_OPERATOR, message)
        name = self.resolver.alias("exploded")  # sqlglot does not quote this name
        call = self.resolver.expression(node.this, self.scope, self.environment)
        fields = tuple(Field(item, ir.column(name, item)) for item in columns)
        self.scope.add(Visible((fold(alias.name),) if alias and alias.name else (), fields))
        return exp.Lateral(this=call, view=True, outer=node.args.get("outer"), alias=_alias(name, columns))

    # ---------------------------------------------------------------------------------- joins
    def _join(self, node: exp.Join) -> None:
        allow(node, "this", "on", "side", "kind", "using", "method")
        kind = _KINDS.get((node.side.upper(), node.kind.upper()))
        method = (node.args.get("method") or "").upper()
        if kind is None or method not in ("", "NATURAL"):
            raise RefusedError(Code.UNSUPPORTED_OPERATOR, f"{node.sql(dialect='spark')[:60]} is not supported")
        using = [item.name for item in node.args.get("using") or ()]
        if self.crossed and (kind in ("RIGHT", "FULL") or using or method):
            message = "a comma or CROSS JOIN before RIGHT, FULL, USING or NATURAL: put one of the two in a subquery"
            raise RefusedError(Code.UNSUPPORTED_OPERATOR, message)
        self.crossed = self.crossed or (node.kind.upper() == "CROSS" or (node.args.get("on") is None and not using))
        relation, visible = self._relation(node.this)
        if method or using:
            self.crossed = self.crossed and not method
            try:
                on = self._merge(visible, kind, using, natural=bool(method))
            except UnknownNameError as error:
                if not self.environment.views:
                    error.found_at(next(item for item in node.args["using"] if item.name == error.name))
                raise
        else:
            on = self._on(node, visible, kind)
        self.relations.append(replace(relation, join=kind, on=on))

    def _on(self, node: exp.Join, visible: Visible, kind: ir.JoinKind) -> exp.Expr | None:
        before = len(self.scope.star)
        self.scope.add(visible)
        on = node.args.get("on")
        resolved = self.resolver.expression(on, self.scope, self.environment) if on is not None else None
        if kind in ("SEMI", "ANTI"):
            self.scope.relations.pop()
            del self.scope.star[before:]
        return resolved

    def _merge(self, right: Visible, kind: ir.JoinKind, using: list[str], *, natural: bool) -> exp.Expr | None:
        """Join by columns of equal names, which appear first and only once."""
        left = list(self.scope.star)
        others = {fold(item.name) for item in right.fields if item.name}
        wanted = [item.name for item in left if item.name and fold(item.name) in others] if natural else using
        merged, conditions, used = [], [], set()
        for name in wanted:
            one = NameScope(None, star=left).own([name])
            other = NameScope(None, star=list(right.fields)).own([name])
            if one is None or other is None:
                raise self._unknown_in_join(name, left, right)
            if fold(name) in used:
                raise RefusedError(Code.UNRESOLVED_NAME, f"column {name} of the join is ambiguous")
            used.add(fold(name))
            conditions.append(exp.EQ(this=one, expression=other))
            merged.append(Field(name, _merged(one, other, kind)))
        self.scope.merged = True
        if kind not in ("SEMI", "ANTI"):
            self.scope.relations.append(right)
            rest = [item for item in [*left, *right.fields] if item.name is None or fold(item.name) not in used]
            self.scope.star = [*merged, *rest]
        return ir.both(*conditions)

    @staticmethod
    def _unknown_in_join(name: str, left: Sequence[Field], right: Visible) -> UnknownNameError:
        sides = [{item.name for item in fields if item.name is not None} for fields in (left, right.fields)]
        return UnknownNameError(
            f"the two sides of the join have no common column {name}", name, sorted(sides[0] & sides[1])
        )

    # ------------------------------------------------------------------------------ relations
    def _relation(self, node: exp.Expr) -> tuple[ir.Relation, Visible]:
        if isinstance(node, exp.Subquery):
            allow(node, "this", "alias", "with_")
            inner = node.this
            if isinstance(inner, exp.Table | exp.Values) or (
                isinstance(inner, exp.Subquery) and inner.args.get("joins")
            ):
                return self._parentheses(node, inner)
            environment = with_ctes(node, self.environment)
            return self._derived(node, *self.resolver.query(inner, environment, None), default=())
        if isinstance(node, exp.Values):
            return self._values(node)
        if isinstance(node, exp.Table) and not isinstance(node.this, exp.Func):
            allow(node, "this", "db", "catalog", "alias", "version")
            return self._table(node)
        raise RefusedError(Code.UNSUPPORTED_OPERATOR, f"{node.sql(dialect='spark')[:60]} in FROM is not supported")

    def _parentheses(self, node: exp.Subquery, inner: exp.Expr) -> tuple[ir.Relation, Visible]:
        """Read ``(a JOIN b)`` as a derived table whose columns can still be named by their relations."""
        bare = inner.copy()
        bare.set("joins", None)
        joins = list(inner.args.get("joins") or ())
        if not joins and not node.alias:
            return self._relation(bare)
        names = NameScope(None, is_whole=not self.environment.in_subquery)
        below = FromClause(self.resolver, self.environment, names, [])
        below.read(bare, joins)
        if below.scope.merged:
            raise RefusedError(Code.UNSUPPORTED_OPERATOR, "USING or NATURAL in parentheses is not supported")
        outputs = unique([Field(item.name, item.value) for item in below.scope.star])
        block = ir.Block(outputs, tuple(below.relations), nested=self.resolver.take_nested(below.relations))
        written = [item.name for item in below.scope.star]
        if node.alias:
            return self._derived(node, block, written, default=())
        name = self.resolver.alias("joined")
        moved = {output.value: ir.column(name, output.name) for output in outputs}
        visible = [
            Visible(item.path, tuple(Field(entry.name, moved[entry.value]) for entry in item.fields))
            for item in below.scope.relations
        ]
        for item in visible[:-1]:
            self.scope.relations.append(item)
            self.scope.star.extend(item.fields)
        return ir.Relation(name, block), visible[-1]

    def _derived(
        self, node: exp.Expr, tree: ir.Tree, written: Sequence[str | None], *, default: tuple[str, ...]
    ) -> tuple[ir.Relation, Visible]:
        alias = node.args.get("alias")
        path = (alias.name,) if alias is not None and alias.name else default
        name = self.resolver.alias(path[-1] if path else "derived")
        values = [ir.column(name, item) for item in ir.names(tree)]
        return ir.Relation(name, tree), _visible(path, _renamed(written, alias), values)

    def _values(self, node: exp.Values) -> tuple[ir.Relation, Visible]:
        allow(node, "expressions", "alias")
        if node.find(exp.Column, exp.Query):
            raise RefusedError(Code.UNSUPPORTED_OPERATOR, "VALUES is supported with constants only")
        self.resolver.check_functions(node)
        first = node.expressions[0]
        width = len(first.expressions) if isinstance(first, exp.Tuple) else 1
        alias = node.args.get("alias")
        columns = tuple(f"col{index + 1}" for index in range(width))
        path = (alias.name,) if alias is not None and alias.name else ()
        name = self.resolver.alias(path[0] if path else "rows")
        bare = node.copy()
        bare.set("alias", None)
        values = [ir.column(name, item) for item in columns]
        return ir.Relation(name, ir.Rows(bare, columns)), _visible(path, _renamed(columns, alias), values)

    def _table(self, node: exp.Table) -> tuple[ir.Relation, Visible]:
        parts = tuple(part.name for part in node.parts)
        cte = self.environment.ctes.get(fold(parts[0])) if len(parts) == 1 else None
        if cte is not None:
            tree, written = self.resolver.query(cte.query, cte.environment, None)
            renamed = _replaced(written, cte.columns)
            return self._derived(node, tree, renamed, default=parts)
        try:
            identifier = table_identifier(node, self.environment.catalog, self.environment.namespace)
        except InvalidIdentifierError as error:
            raise RefusedError(Code.UNREADABLE, str(error)) from error
        view = self.resolver.views.get(identifier)
        if view is not None:
            return self._view(node, view)
        return self._base(node, identifier)

    def _view(self, node: exp.Table, view: NestedView) -> tuple[ir.Relation, Visible]:
        if view.identifier in self.environment.views:
            raise RefusedError(Code.UNREADABLE, f"views read each other in a cycle: {view.identifier}")
        path = (*self.environment.views, view.identifier)
        environment = Environment(view.query.default_catalog, view.query.default_namespace, {}, path)
        tree, written = self.resolver.query(read(view.query), environment, None)
        renamed = _replaced(written, view.columns)
        return self._derived(node, tree, renamed, default=view.identifier.parts)

    def _base(self, node: exp.Table, identifier: Identifier) -> tuple[ir.Relation, Visible]:
        base = self.resolver.bases.get(identifier)
        if base is None:
            raise RefusedError(Code.UNRESOLVED_NAME, f"{identifier} is not among the base tables")
        alias = node.args.get("alias")
        written = (identifier.selects_from or identifier) if node.args.get("version") else identifier
        path = (alias.name,) if alias is not None and alias.name else written.parts
        name = self.resolver.alias(path[-1])
        self.resolver.tables[name] = identifier
        columns, types = (tuple(item[at] for item in base.columns) for at in (0, 1))
        visible = _visible(path, _renamed(columns, alias), [ir.column(name, item) for item in columns])
        return ir.Relation(name, ir.Base(base.name, columns, types, base.changed, gathers=base.gathers)), visible


def unique(fields: Sequence[Field]) -> tuple[ir.Output, ...]:
    """Return columns with unique names: duplicate and missing names are replaced."""
    taken = {fold(item.name) for item in fields if item.name}
    seen: set[str] = set()
    outputs = []
    for index, item in enumerate(fields):
        name = item.name
        if name is None or fold(name) in seen:
            name = f"_c{index}"
            while fold(name) in taken | seen:
                name += "_"
        seen.add(fold(name))
        outputs.append(ir.Output(name, item.value))
    return tuple(outputs)


def _merged(left: exp.Expr, right: exp.Expr, kind: ir.JoinKind) -> exp.Expr:
    if kind == "FULL":
        return exp.Coalesce(this=left.copy(), expressions=[right.copy()])
    return right.copy() if kind == "RIGHT" else left.copy()


def _renamed(written: Sequence[str | None], alias: exp.Expr | None) -> Sequence[str | None]:
    names = [item.name for item in (alias.args.get("columns") or ())] if alias is not None else []
    return _replaced(written, names)


def _replaced(written: Sequence[str | None], names: Sequence[str]) -> Sequence[str | None]:
    if not names:
        return written
    if len(names) != len(written):
        raise RefusedError(Code.UNRESOLVED_NAME, f"{len(names)} names are given for {len(written)} columns")
    return names


def _visible(path: Sequence[str], written: Sequence[str | None], values: Sequence[exp.Expr]) -> Visible:
    fields = tuple(Field(name, value) for name, value in zip(written, values, strict=True))
    return Visible(tuple(map(fold, path)), fields)


def _alias(name: str, columns: Sequence[str]) -> exp.TableAlias:
    return exp.TableAlias(
        this=exp.to_identifier(name, quoted=True),
        columns=[exp.to_identifier(item, quoted=True) for item in columns],
    )


# ----------------------------------------------------- Resolve column names as Spark does. Ambiguous names are refused


#: With what the aliases begin that an incremental refresh adds to a query.
GENERATED = "__"


@dataclass(frozen=True, slots=True)
class Field:
    """A column that a query can name. ``name`` is ``None`` if Spark generates the name."""

    name: str | None
    value: exp.Expr


@dataclass(frozen=True, slots=True)
class Visible:
    """A relation that a query can name, by one or more last parts of its path."""

    path: tuple[str, ...]
    fields: tuple[Field, ...]


@dataclass(slots=True)
class NameScope:
    """The names of one SELECT."""

    parent: NameScope | None
    #: Whether Spark knows no more names here. It does in a derived table of a subquery: the outer query's.
    is_whole: bool = True
    relations: list[Visible] = field(default_factory=list)
    #: The columns of ``*``, among which names without a relation are resolved.
    star: list[Field] = field(default_factory=list)
    #: Earlier columns of the same SELECT list, which later ones may name.
    earlier: list[Field] = field(default_factory=list)
    #: Whether a join by USING or NATURAL hides columns, which makes ``t.*`` ambiguous.
    merged: bool = False
    #: The time window in GROUP BY, which Spark names ``window``.
    window: exp.Expr | None = None
    #: Aliases of outer relations that were named.
    outer: set[str] = field(default_factory=set)

    def add(self, visible: Visible) -> None:
        """Add a relation to the right of the present ones."""
        self.relations.append(visible)
        self.star.extend(visible.fields)

    def resolve(self, parts: Sequence[str]) -> exp.Expr:
        """Resolve a name, with struct fields after it.

        Raises:
            RefusedError: The name is unknown or ambiguous.
        """
        scope: NameScope | None = self
        found = self.own(parts)
        if found is None and self.may_be_metadata(parts):
            message = f"{'.'.join(parts)} may be read as Iceberg's metadata column of this name: rename it"
            raise RefusedError(Code.UNRESOLVED_NAME, message)
        if found is None:
            found = self._window(parts) or self._earlier(parts)
        while found is None and scope is not None and scope.parent is not None:
            scope = scope.parent
            found = scope.own(parts)
        if found is None:
            raise self._unresolved(parts)
        self._record(found, scope)
        return found

    def own(self, parts: Sequence[str]) -> exp.Expr | None:
        """Resolve a name among this SELECT's own relations."""
        path = tuple(map(fold, parts))
        for length in range(len(path) - 1, 0, -1):
            fields = [
                item
                for relation in self.relations
                if relation.path[-length:] == path[:length]
                for item in relation.fields
            ]
            found = _only(fields, path[length], parts)
            if found is not None:
                return _with_fields(found, parts[length + 1 :])
        found = _only(self.star, path[0], parts)
        return _with_fields(found, parts[1:]) if found is not None else None

    def may_be_metadata(self, parts: Sequence[str]) -> bool:
        """Whether a name that no relation has may be one of the columns that Iceberg adds to each table."""
        return bool(self.relations) and not METADATA_COLUMNS.isdisjoint(map(fold, parts))

    def _window(self, parts: Sequence[str]) -> exp.Expr | None:
        if self.window is None or fold(parts[0]) != "window" or len(parts) > 2:
            return None
        return _with_fields(self.window.copy(), [fold(name) for name in parts[1:]])

    def _earlier(self, parts: Sequence[str]) -> exp.Expr | None:
        found = _only(self.earlier, fold(parts[0]), parts)
        if found is None:
            return None
        if found.find(exp.Window) or found.find(exp.UDTF):
            message = f"another column of the SELECT list refers to {parts[0]}: compute {parts[0]} in a subquery"
            raise RefusedError(Code.UNSUPPORTED_OPERATOR, message)
        return _with_fields(exp.Paren(this=found), parts[1:])

    def _record(self, found: exp.Expr, owner: NameScope | None) -> None:
        if owner is self:
            return
        names = {item.table for item in found.find_all(exp.Column)}
        folded = set(map(fold, names))
        scope: NameScope | None = self
        while scope is not None and scope is not owner:
            if any(item.name is not None and fold(item.name) in folded for item in scope._visible()):
                # Spark reads alias.column as a field of the inner struct column.
                message = f"{', '.join(sorted(names))} is an outer relation and a column of a subquery: rename one"
                raise RefusedError(Code.UNRESOLVED_NAME, message)
            scope.outer |= names
            scope = scope.parent

    def _unresolved(self, parts: Sequence[str]) -> RefusedError:
        if len(parts) == 1 and parts[0].lower() in VOLATILE:
            return RefusedError(Code.NOT_DETERMINISTIC, f"{parts[0]} may return another value at each refresh")
        scope: NameScope | None = self
        of_relation: list[str] = []
        others: list[str] = []
        is_whole = True
        while scope is not None:
            is_whole = is_whole and scope.is_whole
            for item in scope.relations:
                names = [field.name for field in item.fields if field.name is not None]
                others += [*item.path[-1:], *names]
                of_relation += names if len(parts) > 1 and item.path[-1:] == (fold(parts[-2]),) else []
            others += [item.name for item in scope._visible() if item.name is not None]
            scope = scope.parent
        message = f"cannot resolve the column {'.'.join(parts)}"
        if not is_whole:
            return RefusedError(Code.UNRESOLVED_NAME, message)
        has_relation, known = bool(of_relation) or len(parts) == 1, of_relation or others
        return UnknownNameError(message, parts[-1] if has_relation else parts[0], known)

    def _visible(self) -> Iterator[Field]:
        yield from (item for relation in self.relations for item in relation.fields)
        yield from self.star
        yield from self.earlier

    def fields_of(self, parts: Sequence[str]) -> tuple[Field, ...]:
        """Return the columns of ``t.*``.

        Raises:
            RefusedError: It is ambiguous.
        """
        path = tuple(map(fold, parts))
        found = [relation for relation in self.relations if relation.path[-len(path) :] == path]
        if len(found) != 1 or self.merged:
            raise RefusedError(Code.UNRESOLVED_NAME, f"{'.'.join(parts)}.* is ambiguous")
        return found[0].fields


def chain(node: exp.Expr) -> list[str] | None:
    """Return the parts of a column's name with its struct fields, ``None`` for any other expression."""
    if isinstance(node, exp.Column) and not isinstance(node.this, exp.Star):
        return [part.name for part in node.parts]
    if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Identifier):
        before = chain(node.this)
        return None if before is None else [*before, node.expression.name]
    return None


def check_variables(node: exp.Lambda) -> None:
    """Refuse a lambda function with two spellings of a variable: sqlglot reads the second one as a column.

    Raises:
        RefusedError: There is such a variable.
    """
    own = {fold(item.name) for item in node.expressions}
    for column in node.this.find_all(exp.Column):
        name = column.parts[0].name
        if fold(name) in own:
            message = f"the lambda variable {name} is written in upper and lower case: use one spelling"
            raise RefusedError(Code.UNRESOLVED_NAME, message)


def check_captures(expression: exp.Expr) -> None:
    """Refuse a resolved expression in which a variable of a lambda function has the name of a relation.

    Spark would read the relation's columns as fields of the variable.

    Raises:
        RefusedError: There is such a variable, or one that begins like the aliases of an incremental refresh.
    """
    for node in expression.find_all(exp.Lambda):
        aliases = {fold(column.table) for column in node.this.find_all(exp.Column)}
        for name in (item.name for item in node.expressions):
            if fold(name) in aliases or name.startswith(GENERATED):
                message = f"{name} is a variable of a lambda function and the name of a relation: rename the variable"
                raise RefusedError(Code.UNRESOLVED_NAME, message)


def _only(fields: Sequence[Field], name: str, written: Sequence[str]) -> exp.Expr | None:
    found = [item.value for item in fields if item.name is not None and fold(item.name) == name]
    if not found:
        return None
    if any(item != found[0] for item in found):
        raise RefusedError(Code.UNRESOLVED_NAME, f"{'.'.join(written)} is ambiguous: write it with its table's alias")
    return found[0].copy()


def _with_fields(value: exp.Expr, fields: Sequence[str]) -> exp.Expr:
    for name in fields:
        value = exp.Dot(this=value, expression=exp.to_identifier(name, quoted=True))
    return value


# ----------------------------------------------------------------- Split a GROUP BY clause into keys and grouping sets


MAX_SETS = 64

_Sets = list[tuple[exp.Expr, ...]]


def grouping(group: exp.Group, key: Callable[[exp.Expr], exp.Expr]) -> Grouping:
    """Read a GROUP BY clause other than ``GROUP BY ALL``.

    Args:
        group: The clause.
        key: Resolves one written key.

    Raises:
        RefusedError: It has more than :data:`MAX_SETS` grouping sets, or an unknown form.
    """
    written = list(group.expressions)
    if group.args.get("totals") or group.args.get("all"):
        raise RefusedError(Code.UNSUPPORTED_OPERATOR, "this form of GROUP BY is not supported")
    legacy = [*(group.args.get("rollup") or ()), *(group.args.get("cube") or ())]
    explicit = group.args.get("grouping_sets") or ()
    if legacy and not legacy[0].expressions:
        factors = [_rolled(legacy[0], [(item,) for item in written])]
    elif explicit and written:
        factors = [_sets(item) for item in explicit]
    else:
        factors = [_sets(item) for item in [*written, *legacy, *explicit]]
    plain = not legacy and not explicit and not any(isinstance(item, _COMPOSED) for item in written)
    return _numbered(factors, key, plain=plain)


_COMPOSED = (exp.GroupingSets, exp.Rollup, exp.Cube)


def _sets(item: exp.Expr) -> _Sets:
    if isinstance(item, exp.GroupingSets):
        return [chosen for inner in item.expressions for chosen in _sets(inner)]
    if isinstance(item, exp.Rollup | exp.Cube):
        return _rolled(item, [_tuple(inner) for inner in item.expressions])
    return [_tuple(item)]


def _rolled(item: exp.Expr, parts: Sequence[tuple[exp.Expr, ...]]) -> _Sets:
    lengths = range(len(parts), -1, -1)
    if isinstance(item, exp.Rollup):
        return [sum(parts[:length], ()) for length in lengths]
    if 2 ** len(parts) > MAX_SETS:
        raise _too_many()
    return [sum(chosen, ()) for length in lengths for chosen in combinations(parts, length)]


def _tuple(item: exp.Expr) -> tuple[exp.Expr, ...]:
    if isinstance(item, exp.Tuple):
        return tuple(item.expressions)
    return (item.unnest(),) if isinstance(item, exp.Paren) else (item,)


def _numbered(factors: Sequence[_Sets], key: Callable[[exp.Expr], exp.Expr], *, plain: bool) -> Grouping:
    keys: list[exp.Expr] = []
    numbered: list[list[tuple[int, ...]]] = []
    for factor in factors:
        numbered.append([tuple(_position(keys, key(item)) for item in chosen) for chosen in factor])
    count = 1
    for factor_sets in numbered:
        count *= len(factor_sets)
    if count > MAX_SETS:
        raise _too_many()
    sets = tuple(tuple(dict.fromkeys(sum(combined, ()))) for combined in product(*numbered))
    return Grouping(tuple(keys), None if plain else sets)


def _position(keys: list[exp.Expr], key: exp.Expr) -> int:
    if key not in keys:
        keys.append(key)
    return keys.index(key)


def _too_many() -> RefusedError:
    return RefusedError(Code.TOO_LARGE, f"GROUP BY has more than {MAX_SETS} grouping sets")


# ------------- Rewrite generators of several columns in a SELECT list as LATERAL VIEW, and GROUP BY with a time window


_VIEW, _COLUMN = "__generated", "__g"
_OUTER = {"_ExplodeOuter": exp.Explode, "ExplodeOuter": exp.Explode, "PosexplodeOuter": exp.Posexplode}
#: The name of the column of GROUP BY window(…), and its fields.
WINDOW, _FIELDS = "window", ("start", "end")


def with_lateral_view(node: exp.Select) -> exp.Select:
    """Move a generator of several columns from a SELECT's list to its FROM.

    A SELECT list has at most one generator. It runs after WHERE, which cannot name its columns.
    """
    position = next((at for at, item in enumerate(node.expressions) if _columns(item)), None)
    clauses = ("group", "having", "windows")
    if position is None or not node.args.get("from_") or any(node.args.get(name) for name in clauses):
        return node
    if any(isinstance(item, exp.Star) or functions_of_groups(item) for item in node.expressions):
        return node
    result = node.copy()
    item = result.expressions[position]
    names = _columns(item)
    call = item.this if isinstance(item, exp.Aliases) else item
    plain = _OUTER.get(type(call).__name__)
    owns = [f"{_COLUMN}{number}" for number in range(len(names))]
    alias = exp.TableAlias(this=_name(_VIEW), columns=[_name(own) for own in owns])
    made = plain(this=call.this.copy()) if plain else call.copy()
    lateral = exp.Lateral(this=made, view=True, outer=bool(plain), alias=alias)
    result.set("laterals", [*(result.args.get("laterals") or ()), lateral])
    columns = [
        exp.alias_(exp.column(_name(own), _name(_VIEW)), _name(name)) for own, name in zip(owns, names, strict=True)
    ]
    result.set("expressions", [*result.expressions[:position], *columns, *result.expressions[position + 1 :]])
    return result


def functions_of_groups(item: exp.Expr) -> bool:
    """Whether a column of a SELECT list has an aggregate or a window function."""
    return any(True for _ in functions.aggregates(item)) or item.find(exp.Window) is not None


def _name(name: str) -> exp.Identifier:
    return exp.to_identifier(name, quoted=True)


def _columns(item: exp.Expr) -> list[str]:
    """Return the names of a generator's columns; none if it has one column, or if the text does not show the names."""
    if isinstance(item, exp.Aliases):
        return [name.name for name in item.expressions] if functions.is_generator(item.this) else []
    if isinstance(item, exp.Posexplode):
        return ["pos", "col"]
    name = item.name.lower() if isinstance(item, exp.Anonymous) else ""
    if name == "stack":
        rows, *values = item.expressions
        count = int(rows.name) if rows.name.isdecimal() else 0
        return [f"col{number}" for number in range(-(-len(values) // count))] if count else []
    if name == "json_tuple":
        return [f"c{number}" for number in range(len(item.expressions) - 1)]
    return []


# ------------------------------------------------------------------------------------ time windows
def time_window(group: exp.Expr | None) -> exp.Expr | None:
    """Return the call of ``window(…)`` in a GROUP BY.

    Raises:
        RefusedError: The GROUP BY has a session window or two time windows.
    """
    calls = list(group.find_all(exp.Anonymous)) if group is not None else []
    if any(call.name.lower() == "session_window" for call in calls):
        message = "session_window: a new row may join two stored sessions into one"
        raise RefusedError(Code.UNSUPPORTED_OPERATOR, message)
    found = [call for call in calls if call.name.lower() == WINDOW]
    if any(call != found[0] for call in found):
        raise RefusedError(Code.UNSUPPORTED_OPERATOR, "GROUP BY has two time windows")
    return found[0] if found else None


def grouped_below(block: ir.Block, call: exp.Expr, alias: str) -> ir.Block:
    """Rewrite a block that groups by a time window: put the window into a derived table, as a column.

    Args:
        call: The resolved call of ``window(…)``, which is a key.
        alias: A name for the derived table.

    Raises:
        RefusedError: A subquery stands above the groups.
    """
    grouping = block.grouping
    above = [block.having, *(item.value for item in block.outputs)]
    if grouping is None or any(ir.marks(item, block) for item in above):
        raise RefusedError(Code.UNSUPPORTED_OPERATOR, "a subquery beside GROUP BY window() is not supported")
    columns: dict[exp.Expr, str] = {}
    window = ir.column(alias, WINDOW)

    def moved(node: exp.Expr) -> exp.Expr | None:
        if node == call:
            return window.copy()
        if isinstance(node, exp.Column):
            return ir.column(alias, columns.setdefault(node, f"{_COLUMN}{len(columns)}"))
        return None

    def change(value: exp.Expr) -> exp.Expr:
        return ir.substitute(value, moved)

    outputs = tuple(replace(item, value=change(item.value)) for item in block.outputs)
    having = change(block.having) if block.having is not None else None
    keys = tuple(change(key) for key in grouping.keys)
    if grouping.sets is None and _only_fields(window, [having, *(item.value for item in outputs)]):
        parts = (exp.Dot(this=window.copy(), expression=_name(field)) for field in _FIELDS)
        keys = (*(key for key in keys if key != window), *parts)
    inner = ir.Block(
        (*(ir.Output(name, column) for column, name in columns.items()), ir.Output(WINDOW, call.copy())),
        block.relations,
        block.laterals,
        block.where,
        nested=block.nested,
    )
    return ir.Block(
        outputs,
        (ir.Relation(alias, inner),),
        grouping=replace(grouping, keys=keys),
        having=having,
        distinct=block.distinct,
    )


def _only_fields(window: exp.Expr, values: Sequence[exp.Expr | None]) -> bool:
    """Whether only the window's start and end are read: rows that share both share the window."""
    found = [node for value in values if value is not None for node in value.find_all(exp.Column) if node == window]
    return all(isinstance(node.parent, exp.Dot) and node.parent.expression.name in _FIELDS for node in found)
