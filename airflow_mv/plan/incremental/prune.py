# SPDX-License-Identifier: Apache-2.0
"""Columns of derived tables that nothing reads are left out, so that a change in them is no change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from airflow_mv.plan.incremental import functions, ir
from airflow_mv.plan.incremental.subqueries import aggregated
from airflow_mv.plan.incremental.telescope import used_of


def pruned(tree: ir.Tree) -> ir.Tree:
    """Return a query with the same columns, of which the derived tables have only columns that are read."""
    return _pruned(tree, frozenset(range(len(ir.names(tree)))))


def _pruned(tree: ir.Tree, kept: frozenset[int]) -> ir.Tree:
    if isinstance(tree, ir.Compound):
        return replace(tree, left=_pruned(tree.left, kept), right=_pruned(tree.right, kept))
    outputs = tuple(item for index, item in enumerate(tree.outputs) if index in kept)
    block = ir.with_used_nested(replace(tree, outputs=outputs))
    block = replace(block, nested=tuple(_nested(item) for item in block.nested))
    return replace(block, relations=tuple(_relation(block, item) for item in block.relations))


def _relation(block: ir.Block, relation: ir.Relation) -> ir.Relation:
    source = relation.source
    if not isinstance(source, ir.Block | ir.Compound):
        return relation
    read = used_of(block, relation.alias)
    wanted = [index for index, name in enumerate(ir.names(source)) if name in read]
    return replace(relation, source=_pruned(source, _kept(source, wanted)))


def _nested(nested: ir.Nested) -> ir.Nested:
    tree = nested.tree
    if nested.kind == "EXISTS" and isinstance(tree, ir.Block) and not aggregated(tree):
        makes_rows = tuple(output for output in tree.outputs if _makes_rows(output))
        tree = replace(tree, outputs=makes_rows or (ir.Output("one", ir.one()),), distinct=False)
    return replace(nested, tree=pruned(tree))


def _kept(tree: ir.Tree, wanted: Iterable[int]) -> frozenset[int]:
    """Return the columns that must stay, so that the rows stay what they are."""
    everything = frozenset(range(len(ir.names(tree))))
    if isinstance(tree, ir.Compound):
        if tree.operator != "UNION" or tree.distinct:
            return everything
        left = _kept(tree.left, wanted)
        right = _kept(tree.right, left)
        return right if right == left else _kept(tree, right)
    if tree.distinct:
        return everything
    makes_rows = {index for index, output in enumerate(tree.outputs) if _makes_rows(output)}
    kept = frozenset(wanted) | makes_rows
    if aggregated(tree) and tree.grouping is None:
        calls = [
            index for index, item in enumerate(tree.outputs) if any(True for _ in functions.aggregates(item.value))
        ]
        if calls and not kept & set(calls):
            kept |= {calls[0]}
    return kept or frozenset({0})


def _makes_rows(output: ir.Output) -> bool:
    """Whether a column decides how many rows there are: a generator of nothing gives none."""
    return any(functions.is_generator(node) for node in output.value.walk())
