# SPDX-License-Identifier: Apache-2.0
"""What a row of a base table must be like to matter to a query.

``filters`` gives plain comparisons, to be asked of files' statistics; ``conditions`` gives all of it as SQL, to
be asked of rows. A query over the rows that pass is the query over all rows, at any snapshot: so a change may be
read through such a condition, and an update that moves a row into it or out of it is a row that comes or goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sqlglot import exp

from airflow_mv.plan.incremental import functions, ir
from airflow_mv.plan.incremental.dialect import write
from airflow_mv.plan.incremental.subqueries import aggregated, has_windows

_OPERATORS: Mapping[type[exp.Expr], str] = {exp.EQ: "=", exp.GT: ">", exp.GTE: ">=", exp.LT: "<", exp.LTE: "<="}
_TURNED = {"=": "=", ">": "<", ">=": "<=", "<": ">", "<=": ">="}
LiteralKind = Literal["number", "text", "date", "timestamp"]
_CAST_LITERALS: Mapping[object, LiteralKind] = {exp.DType.DATE: "date", exp.DType.TIMESTAMPNTZ: "timestamp"}
#: A longer condition costs each task more to read than its rows.
_LONGEST = 20_000


@dataclass(frozen=True, slots=True)
class Comparison:
    """A column against a literal.

    Args:
        column: The column.
        operator: ``=``, ``<``, ``<=``, ``>`` or ``>=``.
        value: The literal's text.
        kind: What the literal is.
    """

    column: str
    operator: str
    value: str
    kind: LiteralKind

    def __str__(self) -> str:
        return f"{self.column} {self.operator} {self.value}"


def filters(tree: ir.Tree) -> dict[str, list[tuple[Comparison, ...]]]:
    """Return for each base table the comparisons that hold wherever a row of it matters, one tuple an occurrence.

    An occurrence without any, or inside an outer join, has an empty tuple: every row may matter there.

    Args:
        tree: A query.
    """
    found: dict[str, list[tuple[Comparison, ...]]] = {}
    for name, comparisons in _occurrences(tree):
        found.setdefault(name, []).append(comparisons)
    return found


def _occurrences(tree: ir.Tree) -> Iterator[tuple[str, tuple[Comparison, ...]]]:
    if isinstance(tree, ir.Compound):
        yield from _occurrences(tree.left)
        yield from _occurrences(tree.right)
        return
    inner = all(relation.join in ("INNER", "CROSS") for relation in tree.relations)
    conditions = ir.conjuncts(tree.where) if inner else []
    for relation in tree.relations if inner else ():
        conditions += ir.conjuncts(relation.on)
    for relation in tree.relations:
        source = relation.source
        if isinstance(source, ir.Base):
            read = [_comparison(condition, relation.alias) for condition in conditions]
            yield source.name, tuple(item for item in read if item is not None)
        elif isinstance(source, ir.Block | ir.Compound):
            yield from _occurrences(source)
    for nested in tree.nested:
        yield from _occurrences(nested.tree)


def _comparison(condition: exp.Expr, alias: str) -> Comparison | None:
    while isinstance(condition, exp.Paren):
        condition = condition.this
    operator = _OPERATORS.get(type(condition))
    if operator is None:
        return None
    left, right = condition.this, condition.expression
    if isinstance(right, exp.Column):
        left, right, operator = right, left, _TURNED[operator]
    literal = _literal(right)
    if not isinstance(left, exp.Column) or left.table != alias or literal is None:
        return None
    return Comparison(left.name, operator, *literal)


def _literal(node: exp.Expr) -> tuple[str, LiteralKind] | None:
    if isinstance(node, exp.Neg):
        inner = _literal(node.this)
        return (f"-{inner[0]}", "number") if inner and inner[1] == "number" else None
    if isinstance(node, exp.Literal):
        return str(node.this), "text" if node.is_string else "number"
    if isinstance(node, exp.Cast) and isinstance(node.this, exp.Literal) and node.this.is_string:
        kind = _CAST_LITERALS.get(node.to.this)
        return (str(node.this.this), kind) if kind else None
    return None


# ------------------------------------------------------------------------------------- as SQL
def conditions(tree: ir.Tree) -> dict[str, str]:
    """Return for each base table a condition that every row passes that matters to a query; none: all may matter.

    It is over the table's bare column names. A row that it is NULL for does not pass, as in WHERE. A table that is
    read more than once has the OR of what its occurrences ask for.

    Args:
        tree: A query.
    """
    found: dict[str, list[exp.Expr | None]] = {}
    for name, condition in _required(tree, ()):
        found.setdefault(name, []).append(condition)
    result: dict[str, str] = {}
    for name, every in found.items():
        given = list(dict.fromkeys(condition for condition in every if condition is not None))
        if None not in every:
            text = write(ir.either(*given))
            result |= {name: text} if len(text) <= _LONGEST else {}
    return result


def _required(tree: ir.Tree, given: Sequence[exp.Expr]) -> Iterator[tuple[str, exp.Expr | None]]:
    """Yield each occurrence of a base table and its condition.

    Args:
        tree: A query.
        given: Conditions that its rows must pass to matter, over its columns' names alone.
    """
    if isinstance(tree, ir.Compound):
        # Only a union asks of each row alone whether it passes.
        below = [item for item in given if _means_the_same_below(item, tree)]
        yield from _required(tree.left, below)
        moved = [_moved(item, ir.names(tree), ir.names(tree.right)) for item in below]
        yield from _required(tree.right, moved)
        return
    outer = _inlined(given, tree)
    for index, relation in enumerate(tree.relations):
        own = [_bare(item) for item in _asked(tree, index, outer) if _is_of(item, relation.alias, tree)]
        if isinstance(relation.source, ir.Base):
            yield relation.source.name, ir.both(*own)
        elif isinstance(relation.source, ir.Block | ir.Compound):
            yield from _required(relation.source, own)
    for nested in tree.nested:
        yield from _required(nested.tree, ())


def _asked(block: ir.Block, index: int, outer: Sequence[exp.Expr]) -> list[exp.Expr]:
    """Return conditions without which a relation's row is in no row of the block, nor keeps another one out."""
    relations = block.relations
    later = any(item.join in ("RIGHT", "FULL") for item in relations[index + 1 :])
    own = relations[index].join
    asked = ir.conjuncts(relations[index].on) if own != "FULL" and own != "RIGHT" else []
    if later or own in ("LEFT", "FULL", "SEMI", "ANTI"):
        # Where it finds no partner, NULL stands for it: what WHERE says of that is another matter.
        return asked if not later else []
    inner = [part for item in relations[1:] if item.join == "INNER" for part in ir.conjuncts(item.on)]
    return [*ir.conjuncts(block.where), *inner, *outer]


def _inlined(given: Sequence[exp.Expr], block: ir.Block) -> list[exp.Expr]:
    """Return conditions on a block's columns as conditions on what they are computed from."""
    if aggregated(block) or has_windows(block):
        return []
    values = {output.name: output.value for output in block.outputs}

    def value(node: exp.Expr) -> exp.Expr | None:
        return exp.Paren(this=values[node.name].copy()) if isinstance(node, exp.Column) else None

    return [ir.substitute(item, value) for item in given]


def _means_the_same_below(condition: exp.Expr, tree: ir.Compound) -> bool:
    """Whether a set operator's sides can be asked a condition on its rows: what differs in type it casts first."""
    names = ir.names(tree)
    positions = [names.index(column.name) for column in condition.find_all(exp.Column)]
    return tree.operator == "UNION" and all(_type_of(tree, position) for position in positions)


def _type_of(source: ir.Source, position: int) -> str | None:
    """Return the type of a column where it is a base table's, shown as it is; ``None``: it is not known."""
    if isinstance(source, ir.Compound):
        left, right = (_type_of(side, position) for side in (source.left, source.right))
        return left if left == right else None
    if isinstance(source, ir.Base):
        return source.types[position]
    value = source.outputs[position].value.unnest() if isinstance(source, ir.Block) else None
    if not isinstance(source, ir.Block) or not isinstance(value, exp.Column):
        return None
    relation = next((item for item in source.relations if item.alias == value.table), None)
    if relation is None or value.name not in ir.names(relation.source):
        return None
    return _type_of(relation.source, ir.names(relation.source).index(value.name))


def _moved(condition: exp.Expr, names: Sequence[str], others: Sequence[str]) -> exp.Expr:
    def other(node: exp.Expr) -> exp.Expr | None:
        return _named(others[names.index(node.name)]) if isinstance(node, exp.Column) else None

    return ir.substitute(condition, other)


def _is_of(condition: exp.Expr, alias: str, block: ir.Block) -> bool:
    """Whether a condition names columns of one relation, and nothing else that a row does not tell."""
    columns = list(condition.find_all(exp.Column))
    if not columns or any(column.table != alias for column in columns) or ir.marks(condition, block):
        return False
    return not any(functions.is_generator(node) for node in condition.walk())


def _bare(condition: exp.Expr) -> exp.Expr:
    return ir.substitute(condition, lambda node: _named(node.name) if isinstance(node, exp.Column) else None)


def _named(name: str) -> exp.Column:
    return exp.Column(this=exp.to_identifier(name, quoted=True))
