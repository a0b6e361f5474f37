# SPDX-License-Identifier: Apache-2.0
"""What a row of a base table must be like to matter to a query, as far as plain comparisons say it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from sqlglot import exp

from airflow_mv.plan.incremental import ir

_OPERATORS: Mapping[type[exp.Expr], str] = {exp.EQ: "=", exp.GT: ">", exp.GTE: ">=", exp.LT: "<", exp.LTE: "<="}
_TURNED = {"=": "=", ">": "<", ">=": "<=", "<": ">", "<=": ">="}


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
    kind: Literal["number", "text", "date"]

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


def _literal(node: exp.Expr) -> tuple[str, Literal["number", "text", "date"]] | None:
    if isinstance(node, exp.Neg):
        inner = _literal(node.this)
        return (f"-{inner[0]}", "number") if inner and inner[1] == "number" else None
    if isinstance(node, exp.Literal):
        return str(node.this), "text" if node.is_string else "number"
    if isinstance(node, exp.Cast) and node.to.is_type(exp.DType.DATE) and isinstance(node.this, exp.Literal):
        return (str(node.this.this), "date") if node.this.is_string else None
    return None
