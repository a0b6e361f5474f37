# SPDX-License-Identifier: Apache-2.0
"""Find the key columns of a query: those that its rows are grouped or partitioned by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from airflow_mv.core.ivm import functions, ir
from airflow_mv.core.ivm.delta_terms import used_of
from airflow_mv.core.ivm.subqueries import aggregated, has_windows


def own_keys(block: ir.Block) -> Sequence[exp.Expr]:
    """Return the expressions by which a block groups or partitions its rows; empty if it does neither."""
    if aggregated(block):
        return block.grouping.keys if block.grouping is not None and not has_windows(block) else ()
    return common_partition(block) if has_windows(block) else ()


def common_partition(block: ir.Block) -> tuple[exp.Expr, ...]:
    """Return the expressions by which every window of a block is partitioned."""
    lists = [
        window.args.get("partition_by") or [] for output in block.outputs for window in functions.windows(output.value)
    ]
    return tuple(item for item in dict.fromkeys(lists[0]) if all(item in other for other in lists[1:]))


def visible_keys(block: ir.Block) -> tuple[int, ...]:
    """Return the columns, by position, that are the keys of a query; empty if some keys are not visible.

    A query without keys of its own has those of its only changed relation, if that groups or partitions.
    """
    keys = own_keys(block) or _keys_below(block)
    found = [next((i for i, item in enumerate(block.outputs) if item.value == key), None) for key in keys]
    visible = [index for index in found if index is not None]
    return tuple(dict.fromkeys(visible)) if len(visible) == len(found) else ()


def _keys_below(block: ir.Block) -> Sequence[exp.Expr]:
    changed = [item for item in block.relations if ir.touched(item.source)]
    if aggregated(block) or has_windows(block) or len(changed) != 1 or any(ir.touched(n.tree) for n in block.nested):
        return ()
    source = changed[0].source
    if not isinstance(source, ir.Block) or _is_optional(block, block.relations.index(changed[0])):
        return ()
    names = ir.names(source)
    return [ir.column(changed[0].alias, names[index]) for index in visible_keys(source)]


def _is_optional(block: ir.Block, index: int) -> bool:
    """Whether an outer join makes the relation's columns NULL in unmatched rows: too many rows would share that key."""
    if index and block.relations[index].join in ("LEFT", "FULL"):
        return True
    return any(item.join in ("RIGHT", "FULL") for item in block.relations[index + 1 :])


def is_not_null(block: ir.Block, index: int) -> bool:
    """Whether a column is provably never NULL, because a condition that every row satisfies compares it."""
    value = block.outputs[index].value
    if isinstance(value, exp.Count):
        return True
    if block.grouping is not None and block.grouping.sets is not None:
        return False
    conditions = ir.conjuncts(block.where)
    if all(item.join in ("INNER", "SEMI") for item in block.relations):
        conditions += [part for item in block.relations for part in ir.conjuncts(item.on)]
    return isinstance(value, exp.Column) and any(_needs(condition.unnest(), value) for condition in conditions)


def has_value(block: ir.Block, value: exp.Expr, not_null: Mapping[str, frozenset[str]]) -> bool:
    """Whether an expression is provably not NULL in any row of a block's FROM and WHERE, in ANSI mode.

    Args:
        value: An expression over its relations.
        not_null: The columns that are never NULL, by the base table's name.
    """
    if isinstance(value, exp.Literal):
        return True
    if isinstance(value, exp.Column):
        index = next((index for index, item in enumerate(block.relations) if item.alias == value.table), None)
        if index is None or _is_optional(block, index):
            return False
        source = block.relations[index].source
        return isinstance(source, ir.Base) and value.name in not_null.get(source.name, frozenset())
    parts: list[exp.Expr | None] = []
    if isinstance(value, exp.Paren | exp.Neg):
        parts = [value.this]
    elif isinstance(value, exp.Add | exp.Sub | exp.Mul):
        parts = [value.left, value.right]
    elif isinstance(value, exp.Case):
        parts = [*(branch.args["true"] for branch in value.args["ifs"]), value.args.get("default")]
    return bool(parts) and all(part is not None and has_value(block, part, not_null) for part in parts)


def _needs(condition: exp.Expr, value: exp.Expr) -> bool:
    """Whether a condition is true only if an expression is not NULL."""
    if isinstance(condition, exp.Not):
        inner = condition.this.unnest()
        return isinstance(inner, exp.Is) and inner.this == value and isinstance(inner.expression, exp.Null)
    if isinstance(condition, exp.EQ | exp.NEQ | exp.GT | exp.GTE | exp.LT | exp.LTE | exp.Like):
        return value in (condition.left, condition.right)
    return isinstance(condition, exp.Between | exp.In) and condition.this == value


def relaxed(block: ir.Block, relation: ir.Relation) -> ir.Block:
    """Return a block without the conditions that need other columns of a relation than its keys.

    The block has more rows, but then the change of the relation is its changed keys, and its groups are not read.
    """
    source = relation.source
    if not isinstance(source, ir.Block):
        return block
    names = ir.names(source)
    keys = {names[index] for index in visible_keys(source)}
    if not keys or not used_of(replace(block, where=None), relation.alias) <= keys:
        return block
    kept = [
        condition
        for condition in ir.conjuncts(block.where)
        if used_of(_alone(condition, block), relation.alias) <= keys
    ]
    return ir.with_used_nested(replace(block, where=ir.both(*kept)))


def _alone(condition: exp.Expr, block: ir.Block) -> ir.Block:
    return ir.Block((ir.Output("condition", condition),), (), nested=ir.marks(condition, block))
