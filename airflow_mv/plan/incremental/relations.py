# SPDX-License-Identifier: Apache-2.0
"""FROM clauses as written, put into normal form: tables, CTEs, nested views, joins, LATERAL VIEWs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlglot import exp

from airflow_mv.errors import InvalidIdentifierError
from airflow_mv.plan.incremental import ir
from airflow_mv.plan.incremental.model import RefusedError
from airflow_mv.plan.incremental.reading import read
from airflow_mv.plan.incremental.scope import Field, Scope, Visible, fold
from airflow_mv.plan.query import NestedView
from airflow_mv.plan.reasons import Code
from airflow_mv.spec.identifiers import Identifier

if TYPE_CHECKING:
    from airflow_mv.plan.incremental.resolve import Resolver

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
    """A CTE and where it was defined: its own names are those that were visible there."""

    query: exp.Expr
    columns: tuple[str, ...]
    environment: Environment


@dataclass(frozen=True, slots=True)
class Environment:
    """What the names of tables mean in a query."""

    catalog: str
    namespace: tuple[str, ...]
    ctes: Mapping[str, Cte]
    views: tuple[Identifier, ...] = ()


def allow(node: exp.Expr, *allowed: str) -> None:
    """Refuse a clause that is not among those allowed.

    Raises:
        RefusedError: There is one.
    """
    for name, value in node.args.items():
        if value and name not in allowed:
            message = _REFUSED_CLAUSES.get(name, f"the clause {name.strip('_').upper()} is not supported here")
            raise RefusedError(Code.UNSUPPORTED_OPERATOR, message)


def with_ctes(node: exp.Expr, environment: Environment) -> Environment:
    """Return the names that a query's WITH adds to those there are.

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
    scope: Scope
    relations: list[ir.Relation]
    #: A comma binds less than JOIN, and sqlglot does not tell it from CROSS JOIN.
    crossed: bool = False

    def read(self, first: exp.Expr, joins: Sequence[exp.Join]) -> None:
        """Read the first relation and all those joined to it."""
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
            on = self._merge(visible, kind, using, natural=bool(method))
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
        """Join by equal names: the columns come first and once."""
        left = list(self.scope.star)
        others = {fold(item.name) for item in right.fields if item.name}
        wanted = [item.name for item in left if item.name and fold(item.name) in others] if natural else using
        merged, conditions, used = [], [], set()
        for name in wanted:
            one = Scope(None, star=left).own([name])
            other = Scope(None, star=list(right.fields)).own([name])
            if one is None or other is None or fold(name) in used:
                raise RefusedError(Code.UNRESOLVED_NAME, f"column {name} of the join is in doubt")
            used.add(fold(name))
            conditions.append(exp.EQ(this=one, expression=other))
            merged.append(Field(name, _merged(one, other, kind)))
        self.scope.merged = True
        if kind not in ("SEMI", "ANTI"):
            self.scope.relations.append(right)
            rest = [item for item in [*left, *right.fields] if item.name is None or fold(item.name) not in used]
            self.scope.star = [*merged, *rest]
        return ir.both(*conditions)

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
            allow(node, "this", "db", "catalog", "alias")
            return self._table(node)
        raise RefusedError(Code.UNSUPPORTED_OPERATOR, f"{node.sql(dialect='spark')[:60]} in FROM is not supported")

    def _parentheses(self, node: exp.Subquery, inner: exp.Expr) -> tuple[ir.Relation, Visible]:
        """Read ``(a JOIN b)``: a derived table whose columns keep their relations' names."""
        bare = inner.copy()
        bare.set("joins", None)
        joins = list(inner.args.get("joins") or ())
        if not joins and not node.alias:
            return self._relation(bare)
        below = FromClause(self.resolver, self.environment, Scope(None), [])
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
            raise RefusedError(Code.UNSUPPORTED_OPERATOR, "VALUES of other things than constants is not supported")
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
            identifier = Identifier.of(
                parts, default_catalog=self.environment.catalog, default_namespace=self.environment.namespace
            )
        except InvalidIdentifierError as error:
            raise RefusedError(Code.UNREADABLE, str(error)) from error
        view = self.resolver.views.get(identifier)
        if view is not None:
            return self._view(node, view)
        return self._base(node, identifier)

    def _view(self, node: exp.Table, view: NestedView) -> tuple[ir.Relation, Visible]:
        if view.identifier in self.environment.views:
            raise RefusedError(Code.UNREADABLE, f"views read each other in a cycle: {view.identifier}")
        query = read(view.sql, str(view.identifier))
        path = (*self.environment.views, view.identifier)
        environment = Environment(view.default_catalog, view.default_namespace, {}, path)
        tree, written = self.resolver.query(query, environment, None)
        renamed = _replaced(written, view.columns)
        return self._derived(node, tree, renamed, default=view.identifier.parts)

    def _base(self, node: exp.Table, identifier: Identifier) -> tuple[ir.Relation, Visible]:
        base = self.resolver.bases.get(identifier)
        if base is None:
            raise RefusedError(Code.UNRESOLVED_NAME, f"{identifier} is not among the base tables")
        alias = node.args.get("alias")
        path = (alias.name,) if alias is not None and alias.name else identifier.parts
        name = self.resolver.alias(path[-1])
        self.resolver.tables[name] = identifier
        columns, types = (tuple(item[at] for item in base.columns) for at in (0, 1))
        visible = _visible(path, _renamed(columns, alias), [ir.column(name, item) for item in columns])
        return ir.Relation(name, ir.Base(base.name, columns, types, base.changed)), visible


def unique(fields: Sequence[Field]) -> tuple[ir.Output, ...]:
    """Return columns with names of their own where two have the same, or none."""
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
