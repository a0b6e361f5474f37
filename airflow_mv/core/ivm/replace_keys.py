# SPDX-License-Identifier: Apache-2.0
"""Strategy C (replace-keys): replace the rows of all keys that may have changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

from sqlglot import exp

from airflow_mv.core.ivm import ir
from airflow_mv.core.ivm.affected_keys import affected_keys, changed, is_not_null, visible_keys
from airflow_mv.core.ivm.delta_terms import Context
from airflow_mv.core.ivm.determinism import is_certain, nondeterminism
from airflow_mv.core.ivm.ir import RefusedError, Replaced
from airflow_mv.core.ivm.render import near_of, reads_of, statement
from airflow_mv.core.ivm.subqueries import aggregated
from airflow_mv.core.spec.reasons import Code

_NOT_COMPARABLE = ("map<", "variant", "geometry", "geography")


def replaced(tree: ir.Tree, output: Sequence[tuple[str, str]], *, broadcast: bool) -> Replaced:
    """Return the replacement of the affected keys.

    Args:
        output: Name and Spark type of each of its columns.
        broadcast: Whether to hint that the change and its keys are small.

    Raises:
        RefusedError: There is no rule for the query, or no column can be a key.
    """
    positions = keys(tree, output)
    context = Context()
    affected = statement(_select(tree, positions, context), broadcast=broadcast)
    constants = [statement(block) for block in context.constants]
    cheaper = None
    if constants:
        cheaper = statement(_select(tree, positions, Context(skip_constants=True)), broadcast=broadcast)
    return Replaced(
        keys=tuple(output[index][0] for index in positions),
        affected=affected.sql,
        not_null=tuple(isinstance(tree, ir.Block) and is_not_null(tree, index) for index in positions),
        reads=reads_of(affected, cheaper, *constants),
        constants=tuple(item.sql for item in constants),
        affected_unless_constants=cheaper.sql if cheaper else None,
        near=near_of(affected, cheaper, *constants),
    )


def keys(tree: ir.Tree, output: Sequence[tuple[str, str]]) -> tuple[int, ...]:
    """Choose the key columns, by position: those that the rows are grouped by, or all comparable columns.

    Any choice is correct. With fewer rows for each key, less is rewritten. An aggregate without GROUP BY needs no key.

    Raises:
        RefusedError: No column can be compared.
    """
    flags = nondeterminism(tree)
    if _is_one_group(tree):
        return ()
    comparable = [index for index, (_, kind) in enumerate(output) if is_comparable(kind)]
    found = visible_keys(tree) if isinstance(tree, ir.Block) else ()
    if found and all(index in comparable and not flags[index] for index in found):
        return found
    certain = [index for index in comparable if is_certain(flags[index], output[index][1])]
    if not certain:
        message = "no column identifies the stored rows: add one that the query groups or partitions by"
        raise RefusedError(Code.NO_KEYS, message)
    return tuple(certain)


def is_comparable(kind: str) -> bool:
    """Whether Spark can compare values of a type with ``<=>``."""
    return not any(word in kind.lower() for word in _NOT_COMPARABLE)


def _is_one_group(tree: ir.Tree) -> TypeGuard[ir.Block]:
    return isinstance(tree, ir.Block) and aggregated(tree) and tree.grouping is None


def _select(tree: ir.Tree, positions: Sequence[int], context: Context) -> ir.Block:
    if _is_one_group(tree):
        return _reached(tree, context)
    names = ir.names(tree)
    columns = [names[index] for index in positions]
    found = changed(tree, positions, context)
    if not found:
        alias = context.fresh("none")
        outputs = tuple(ir.Output(name, ir.column(alias, name)) for name in columns)
        empty = ir.Block(outputs, (ir.Relation(alias, ir.tree_at(tree, "new")),))
        return replace(empty, where=exp.false())
    alias = context.fresh("changed")
    outputs = tuple(ir.Output(name, ir.column(alias, name)) for name in columns)
    return ir.Block(outputs, (ir.Relation(alias, ir.union(found, columns)),), distinct=True)


def _reached(block: ir.Block, context: Context) -> ir.Block:
    """Return a query that has rows if a change affects the only group of a block."""
    found = affected_keys(block, (ir.one(),), context)
    if not found:
        return ir.Block((ir.Output("reached", ir.one()),), (), where=exp.false())
    alias = context.fresh("changed")
    return ir.Block((ir.Output("reached", ir.column(alias, "__k0")),), (ir.Relation(alias, ir.union(found)),))
