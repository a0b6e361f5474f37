# SPDX-License-Identifier: Apache-2.0
"""The delta terms of a SELECT's FROM and WHERE: one for each changed relation, then one for each changed subquery.

Term *i* reads the change of relation *i*, the new version of the relations before it and the old version of those
after it. Subqueries come after all relations. Each occurrence of a table is a separate relation. Everything in a term
has a fixed version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from sqlglot import exp

from airflow_mv.core.ivm import ir
from airflow_mv.core.ivm.ir import RefusedError
from airflow_mv.core.spec.reasons import Code

#: Returns the change of a relation with at least the named columns; ``None`` if it never changes.
SourceChange = Callable[[ir.Relation, frozenset[str]], ir.Source | None]
#: Returns a block with at least the rows of another one, which needs fewer columns of a relation's change.
Relax = Callable[[ir.Block, ir.Relation], ir.Block]


@dataclass(slots=True)
class Context:
    """The shared state of one derivation."""

    #: Whether to omit what matters only if a constant changed, see ``constant_changed``.
    skip_constants: bool = False
    #: Conditions without columns that are true if a constant changed.
    constants: list[ir.Block] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)

    def fresh(self, stem: str) -> str:
        """Return a name that is not used in any query."""
        return f"__{stem}{next(self._numbers)}"


def relation_terms(
    block: ir.Block, change: SourceChange, context: Context, relax: Relax | None = None
) -> Iterator[tuple[int, ir.Block]]:
    """R3: yield the term of each changed relation and the relation's position. All subqueries are old."""
    for index, relation in enumerate(block.relations):
        if not ir.touched(relation.source):
            continue
        wider = relax(block, relation) if relax is not None else block
        delta = change(relation, used_of(wider, relation.alias))
        if delta is not None:
            yield index, _term(wider, index, delta, context)


def used_of(block: ir.Block, alias: str) -> frozenset[str]:
    """Return the columns of a relation that a block names."""
    found: set[str] = set()

    def note(expression: exp.Expr) -> exp.Expr:
        found.update(item.name for item in expression.find_all(exp.Column) if item.table == alias)
        return expression

    ir.rewrite(block, note)
    return frozenset(found)


def _term(block: ir.Block, index: int, delta: ir.Source, context: Context) -> ir.Block:
    relations: list[ir.Relation] = []
    for position, relation in enumerate(block.relations):
        source = delta if position == index else ir.at(relation.source, version_beside(position, index))
        relations.append(replace(relation, source=source, small=position == index))
    relations = [_near(relation, relations[index], block) for relation in relations]
    nested = tuple(ir.nested_at(item, "old") for item in block.nested)
    return ordered(_padded(replace(block, relations=tuple(relations), nested=nested), index, context))


def _near(relation: ir.Relation, small: ir.Relation, block: ir.Block) -> ir.Relation:
    """Return a relation of a term, restricted to the rows that match the changed one where only those are joined."""
    source, change = relation.source, small.source
    if not isinstance(source, ir.Base) or not isinstance(change, ir.Base) or not source.gathers or not source.changed:
        return relation
    optional = any(item.join in ("RIGHT", "FULL") for item in block.relations)
    if source.name == change.name or {relation.join, small.join} != {"INNER"} or optional:
        return relation
    inner = [part for item in block.relations if item.join == "INNER" for part in ir.conjuncts(item.on)]
    found = [_match(condition.unnest(), relation, small) for condition in (*inner, *ir.conjuncts(block.where))]
    return replace(relation, source=replace(source, near=tuple(item for item in found if item is not None)))


def _match(condition: exp.Expr, relation: ir.Relation, small: ir.Relation) -> ir.Match | None:
    """Return the match that a condition is, for columns of one type."""
    source, change = relation.source, small.source
    sides = (condition.left, condition.right) if isinstance(condition, exp.EQ) else ()
    for own, other in (sides, sides[::-1]) if sides else ():
        if not isinstance(own, exp.Column) or not isinstance(other, exp.Column):
            continue
        if not isinstance(source, ir.Base) or not isinstance(change, ir.Base):
            continue
        if (own.table, other.table) != (relation.alias, small.alias):
            continue
        kinds, others = (dict(zip(item.columns, item.types, strict=True)) for item in (source, change))
        if own.name in kinds and kinds[own.name] == others.get(other.name):
            return ir.Match(own.name, change.name, other.name)
    return None


def version_beside(position: int, index: int) -> ir.Version:
    """Return the version at which a relation is read in the term of another relation."""
    return "new" if position < index else "old"


# --------------------------------------------------------------------------------------- outer joins
def _padded(block: ir.Block, index: int, context: Context) -> ir.Block:
    """R4, R5: change the joins at and after the changed relation, and add unmatched copies."""
    position = 1
    while position < len(block.relations):
        relation = block.relations[position]
        join, lost = _changed_join(relation.join, position, index)
        block = _with_join(block, position, join)
        if lost:
            aliases = [relation.alias]
            if lost == "LEFT":
                aliases = [item.alias for item in block.relations[:position]]
            block = _with_pad(block, position, frozenset(aliases), context)
            position += 1
        position += 1
    return block


def _changed_join(join: ir.JoinKind, position: int, index: int) -> tuple[ir.JoinKind, str]:
    """Return the join's kind in the term, and the side that is NULL in a padded copy."""
    if index == position:
        if join in ("LEFT", "FULL"):
            return ("INNER" if join == "LEFT" else "RIGHT"), "RIGHT"
        return ("SEMI" if join == "ANTI" else join), ""
    if index < position and join in ("RIGHT", "FULL"):
        return ("INNER" if join == "RIGHT" else "LEFT"), "LEFT"
    return join, ""


def _with_join(block: ir.Block, position: int, join: ir.JoinKind) -> ir.Block:
    relations = list(block.relations)
    relations[position] = replace(relations[position], join=join)
    return replace(block, relations=tuple(relations))


def _with_pad(block: ir.Block, position: int, aliases: frozenset[str], context: Context) -> ir.Block:
    """Double each row after a join: once as it is, once with the columns of some relations NULL."""
    alias = context.fresh("pad")
    zero = ir.Block((ir.Output("b", exp.Literal.number(0)),), ())
    pad = ir.Relation(alias, ir.union([zero, ir.Block((ir.Output("b", ir.one()),), ())]))
    before, after = block.relations[: position + 1], block.relations[position + 1 :]

    def masked(node: exp.Expr) -> exp.Expr | None:
        if not isinstance(node, exp.Column) or node.table not in aliases:
            return None
        condition = exp.EQ(this=ir.column(alias, "b"), expression=exp.Literal.number(0))
        return exp.Case(ifs=[exp.If(this=condition, true=node.copy())])

    def change(expression: exp.Expr) -> exp.Expr:
        return ir.substitute(expression, masked)

    rest = ir.rewrite_block(replace(block, relations=after), change)
    return replace(rest, relations=(*before, pad, *rest.relations))


# --------------------------------------------------------------------------------------- join order
def ordered(block: ir.Block) -> ir.Block:
    """Return a term with its small relation first, then the relations that are joined to those before them.

    Only the leading inner joins can be reordered. Spark joins in the order of the text.
    """
    length = 1
    while length < len(block.relations) and block.relations[length].join == "INNER":
        length += 1
    run, rest = block.relations[:length], block.relations[length:]
    small = next((item for item in run if item.small), None)
    if small is None or length == 1:
        return block
    conditions = [part for item in run for part in ir.conjuncts(item.on)]
    links = [*conditions, *ir.conjuncts(block.where)]
    order, waiting = [small], [item for item in run if item is not small]
    while waiting:
        placed = {item.alias for item in order}
        following = next((item for item in waiting if _linked(item, placed, links, block)), waiting[0])
        waiting.remove(following)
        order.append(following)
    return replace(block, relations=(*_with_conditions(order, conditions, block), *rest))


def _linked(relation: ir.Relation, placed: set[str], links: list[exp.Expr], block: ir.Block) -> bool:
    for link in links:
        named = ir.aliases(link, block)
        joins = isinstance(link.unnest(), exp.EQ) and len(named) > 1 and relation.alias in named
        if joins and named <= placed | {relation.alias}:
            return True
    return False


def _with_conditions(order: list[ir.Relation], conditions: list[exp.Expr], block: ir.Block) -> Iterator[ir.Relation]:
    """Yield relations, each with the conditions that name only it and relations before it."""
    placed: set[str] = set()
    waiting = list(conditions)
    names = {item.alias for item in order}
    for position, relation in enumerate(order):
        placed.add(relation.alias)
        ready = [item for item in waiting if position and ir.aliases(item, block) & names <= placed]
        waiting = [item for item in waiting if item not in ready]
        yield replace(relation, join="INNER", on=ir.both(*ready))


# --------------------------------------------------------------------------------------- linear only
def check_linear(block: ir.Block, index: int) -> None:
    """Refuse a term whose rows cannot be counted: a change in an outer, semi or anti join that affects stored rows.

    Raises:
        RefusedError: There is such a join.
    """
    for position, relation in enumerate(block.relations[1:], start=1):
        loses = relation.join in ("LEFT", "FULL", "SEMI", "ANTI") if position == index else False
        loses = loses or (index < position and relation.join in ("RIGHT", "FULL"))
        if loses:
            message = f"a change on the other side of the {relation.join} join changes rows that are stored already"
            raise RefusedError(Code.NOT_LINEAR, message)
