# SPDX-License-Identifier: Apache-2.0
"""Windows over aggregates, taken apart: the groups become a derived table below the windows."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from airflow_mv.plan.incremental import functions, ir


def split(block: ir.Block, alias: str) -> ir.Block:
    """Return a block with windows only, over a derived table that groups.

    Args:
        block: A block that has both.
        alias: A name for the derived table.
    """
    held: dict[exp.Expr, str] = {}
    if block.grouping is not None:
        for key in block.grouping.keys:
            held.setdefault(key, f"__g{len(held)}")
    for output in block.outputs:
        for part in _aggregates(output.value):
            held.setdefault(part, f"__g{len(held)}")

    def above(node: exp.Expr) -> exp.Expr | None:
        name = held.get(node)
        return ir.column(alias, name) if name is not None else None

    inner = replace(block, outputs=tuple(ir.Output(name, part.copy()) for part, name in held.items()), distinct=False)
    outputs = tuple(ir.Output(output.name, ir.substitute(output.value, above)) for output in block.outputs)
    # Correlated subqueries in the SELECT list name keys, which now come from the derived table.
    nested = tuple(
        replace(item, tree=ir.rewrite(item.tree, lambda expression: ir.substitute(expression, above)))
        for item in block.nested
    )
    outer = ir.Block(outputs, (ir.Relation(alias, ir.with_used_nested(inner)),), distinct=block.distinct, nested=nested)
    return ir.with_used_nested(outer)


def _aggregates(value: exp.Expr) -> list[exp.Expr]:
    """Return the aggregates of an expression, with FILTER and the like around them, and grouping()."""
    found = []
    for call in functions.aggregates(value):
        whole: exp.Expr = call
        while isinstance(whole.parent, exp.Filter | exp.IgnoreNulls | exp.RespectNulls | exp.WithinGroup):
            whole = whole.parent
        found.append(whole)
    return found
