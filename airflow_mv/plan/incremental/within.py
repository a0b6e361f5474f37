# SPDX-License-Identifier: Apache-2.0
"""A query's rows in an interval: the condition on an output column as one on the base column that it shows."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from airflow_mv.plan.incremental import ir
from airflow_mv.plan.incremental.subqueries import aggregated, has_windows

_TYPES = {"date": exp.DType.DATE, "timestamp": exp.DType.TIMESTAMPNTZ, "timestamptz": exp.DType.TIMESTAMPNTZ}


def within(tree: ir.Tree, position: int, start: str, end: str, kind: str) -> ir.Tree:
    """Return a query for the rows of which one column lies in an interval, the condition as far below as it may go.

    Where it may not go down to a base table, it is left out: the query then has more rows than asked for.

    Args:
        tree: The query.
        position: The column.
        start: The interval's start, as the text of a literal in UTC.
        end: Its end, excluded.
        kind: The column's Iceberg type: ``date``, ``timestamp`` or ``timestamptz``.
    """
    if isinstance(tree, ir.Compound):
        # A condition on each row alone goes through every set operator.
        left, right = (within(side, position, start, end, kind) for side in (tree.left, tree.right))
        return replace(tree, left=left, right=right)
    value = tree.outputs[position].value
    if not isinstance(value, exp.Column) or not _may_go_below(tree, value):
        return tree
    relation = next((item for item in tree.relations if item.alias == value.table), None)
    if relation is None:
        return tree
    source = relation.source
    if isinstance(source, ir.Block | ir.Compound):
        inner = within(source, ir.names(source).index(value.name), start, end, kind)
        relations = tuple(replace(item, source=inner) if item is relation else item for item in tree.relations)
        return replace(tree, relations=relations)
    low = exp.GTE(this=value.copy(), expression=exp.cast(exp.Literal.string(start), _TYPES[kind]))
    high = exp.LT(this=value.copy(), expression=exp.cast(exp.Literal.string(end), _TYPES[kind]))
    return replace(tree, where=ir.both(tree.where, low, high))


def _may_go_below(block: ir.Block, value: exp.Column) -> bool:
    """Whether leaving out rows by this column leaves the block's other rows as they are."""
    if has_windows(block) or any(item.join not in ("INNER", "CROSS") for item in block.relations):
        return False
    if not aggregated(block):
        return True
    return block.grouping is not None and block.grouping.sets is None and value in block.grouping.keys
