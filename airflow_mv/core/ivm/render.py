# SPDX-License-Identifier: Apache-2.0
"""Write a query in normal form as Spark SQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sqlglot import exp

from airflow_mv.core.ivm import ir
from airflow_mv.core.ivm.ir import Near, RefusedError
from airflow_mv.core.ivm.regeneration import write
from airflow_mv.core.spec.reasons import Code

MAX_BLOCKS = 3000


@dataclass(frozen=True, slots=True)
class Statement:
    """A query as text, and the relations that it reads.

    Args:
        reads: How often it names each relation.
        near: What the relations with gathered rows must have.
    """

    sql: str
    reads: Mapping[str, int]
    near: Near = frozenset()


def reads_of(*statements: Statement | None) -> Mapping[str, int]:
    """Return how often the statements together name each relation."""
    return sum((Counter(item.reads) for item in statements if item is not None), Counter())


def near_of(*statements: Statement | None) -> Near:
    """Return what the relations with gathered rows must have for all these statements."""
    return frozenset().union(*(item.near for item in statements if item is not None))


def sql(tree: ir.Tree, *, broadcast: bool = False, pretty: bool = True) -> str:
    """Return the text of :func:`statement`."""
    return statement(tree, broadcast=broadcast, pretty=pretty).sql


def statement(tree: ir.Tree, *, broadcast: bool = False, pretty: bool = True) -> Statement:
    """Return a query as Spark SQL. Tables without a version are read at the new one.

    Args:
        broadcast: Whether to hint that the change and its keys are small.
        pretty: Whether to format it with line breaks.

    Raises:
        RefusedError: The query is too large, or a part of it cannot be written.
    """
    if _size(tree, {}) > MAX_BLOCKS:
        raise RefusedError(Code.TOO_LARGE, f"the statement would have more than {MAX_BLOCKS} SELECTs")
    query = render(tree)
    for hint in [] if broadcast else list(query.find_all(exp.Hint)):
        hint.pop()
    reads = Counter(table.name for table in query.find_all(exp.Table))
    near = frozenset((base.name, match) for base in ir.bases(tree) for match in base.near)
    return Statement(write(query, pretty=pretty), reads, near)


def _size(source: ir.Source, known: dict[int, int]) -> int:
    """Return the number of SELECTs of a query. Parts that occur several times are visited once."""
    if not isinstance(source, ir.Block | ir.Compound):
        return 0
    if id(source) not in known:
        below: list[ir.Source] = [source.left, source.right] if isinstance(source, ir.Compound) else []
        if isinstance(source, ir.Block):
            below = [*(item.source for item in source.relations), *(item.tree for item in source.nested)]
        known[id(source)] = 1 + sum(_size(item, known) for item in below)
    return known[id(source)]


def render(tree: ir.Tree) -> exp.Query:
    """Return a query as sqlglot's tree."""
    return _compound(tree) if isinstance(tree, ir.Compound) else _select(tree)


def _compound(tree: ir.Compound) -> exp.Query:
    kind = {"UNION": exp.Union, "INTERSECT": exp.Intersect, "EXCEPT": exp.Except}[tree.operator]
    return kind(this=_operand(tree.left), expression=_operand(tree.right), distinct=tree.distinct)


def _operand(tree: ir.Tree) -> exp.Expr:
    query = render(tree)
    return exp.Subquery(this=query) if isinstance(tree, ir.Compound) else query


def _select(block: ir.Block) -> exp.Select:
    nested = {item.mark: item for item in block.nested}

    def expand(expression: exp.Expr) -> exp.Expr:
        return expression.transform(lambda node: _unmarked(node, nested))

    outputs = [exp.alias_(expand(item.value), item.name, quoted=True) for item in block.outputs]
    select = exp.Select(expressions=outputs)
    if small := [item.alias for item in block.relations if item.small]:
        select.set("hint", _hint(small))
    if block.distinct:
        select.set("distinct", exp.Distinct())
    if block.relations:
        first, *rest = block.relations
        select.set("from_", exp.From(this=_source(first)))
        select.set("joins", [_join(item, expand) for item in rest])
    select.set("laterals", [expand(item) for item in block.laterals])
    if block.grouping is not None:
        select.set("group", _group(block.grouping, expand))
    for name, clause, condition in (("where", exp.Where, block.where), ("having", exp.Having, block.having)):
        if condition is not None:
            select.set(name, clause(this=expand(condition)))
    return select


def _unmarked(node: exp.Expr, nested: dict[str, ir.Nested]) -> exp.Expr:
    item = nested.get(node.name) if isinstance(node, exp.Anonymous) else None
    if item is None:
        return node
    query = render(item.tree)
    if item.kind == "EXISTS":
        return exp.Exists(this=query)
    if item.kind == "SCALAR":
        return exp.Subquery(this=query)
    operands = [operand.transform(lambda inner: _unmarked(inner, nested)) for operand in node.expressions]
    left = exp.Paren(this=operands[0]) if len(operands) == 1 else exp.Tuple(expressions=operands)
    return exp.In(this=left, query=exp.Subquery(this=query))


def _source(relation: ir.Relation) -> exp.Expr:
    source = relation.source
    alias = exp.TableAlias(this=exp.to_identifier(relation.alias, quoted=True))
    if isinstance(source, ir.Base):
        version = (source.version or "new") if source.changed else "new"
        name = exp.to_identifier(f"{source.name}__{'near_' if source.near else ''}{version}", quoted=True)
        return exp.Table(this=name, alias=alias)
    if isinstance(source, ir.Named):
        return exp.Table(this=exp.to_identifier(source.name, quoted=True), alias=alias)
    if isinstance(source, ir.Rows):
        rows = source.sql.copy()
        alias.set("columns", [exp.to_identifier(name, quoted=True) for name in source.columns])
        rows.set("alias", alias)
        return rows
    return exp.Subquery(this=render(source), alias=alias)


def _join(relation: ir.Relation, expand: Callable[[exp.Expr], exp.Expr]) -> exp.Join:
    join = exp.Join(this=_source(relation))
    if relation.join in ("SEMI", "ANTI"):
        join.set("side", "LEFT")
        join.set("kind", relation.join)
    elif relation.join != "INNER":
        join.set("side", relation.join)
    elif relation.on is None:
        join.set("kind", "CROSS")
    if relation.on is not None:
        join.set("on", expand(relation.on))
    elif relation.join != "INNER":
        join.set("on", exp.true())
    return join


def _group(grouping: ir.Grouping, expand: Callable[[exp.Expr], exp.Expr]) -> exp.Group:
    keys = [_no_ordinal(expand(key)) for key in grouping.keys]
    if grouping.sets is None:
        return exp.Group(expressions=keys)
    sets = [exp.Tuple(expressions=[keys[index].copy() for index in chosen]) for chosen in grouping.sets]
    return exp.Group(expressions=[exp.GroupingSets(expressions=sets)])


def _hint(aliases: list[str]) -> exp.Hint:
    names = [exp.to_identifier(alias, quoted=True) for alias in aliases]
    return exp.Hint(expressions=[exp.Anonymous(this="BROADCAST", expressions=names)])


def _no_ordinal(key: exp.Expr) -> exp.Expr:
    """Return a key in a form that Spark does not read as the position of a column."""
    return exp.cast(key, "INT") if isinstance(key, exp.Literal) and key.is_int else key
