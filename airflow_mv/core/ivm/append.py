# SPDX-License-Identifier: Apache-2.0
"""Strategy A (append), and the signed terms of linear operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from airflow_mv.core.ivm import ir
from airflow_mv.core.ivm.affected_keys import no_rows
from airflow_mv.core.ivm.delta_terms import Context, check_linear, relation_terms
from airflow_mv.core.ivm.ir import Appended, BaseRelation, RefusedError
from airflow_mv.core.ivm.render import near_of, reads_of, statement
from airflow_mv.core.ivm.subqueries import aggregated, has_windows
from airflow_mv.core.script import WEIGHT
from airflow_mv.core.spec.reasons import Code


def appended(tree: ir.Tree, relations: Sequence[BaseRelation], *, consolidated: bool, broadcast: bool) -> Appended:
    """Return the rows to insert.

    Args:
        broadcast: Whether to hint that the change is small.
        consolidated: Whether a row of a change table may stand for several copies.

    Raises:
        RefusedError: Rows were removed from a table, or an operator is not linear.
    """
    context = Context()
    found = weighted(tree, context)
    check_appended(relations)
    if consolidated:
        found = [one_by_one(term, context) for term in found]
    terms = [statement(replace(term, outputs=term.outputs[:-1]), broadcast=broadcast) for term in found]
    return Appended(tuple(term.sql for term in terms), reads_of(*terms), near_of(*terms))


def check_appended(relations: Sequence[BaseRelation]) -> None:
    """Refuse changes other than appended rows.

    Raises:
        RefusedError: There are others.
    """
    for relation in relations:
        if relation.changed and not relation.appended_only:
            raise RefusedError(Code.NOT_APPEND_ONLY, f"rows of {relation.identifier} were changed or deleted")


def weighted(tree: ir.Tree, context: Context, *, inner: str = "") -> list[ir.Block]:
    """Return the terms of a linear query's signed change: its columns, then the weight.

    Args:
        context: The context of the whole query.
        inner: Names the part in messages, if it is part of another query.

    Raises:
        RefusedError: An operator is not linear.
    """
    if not ir.touched(tree):
        return []
    if isinstance(tree, ir.Compound):
        if tree.operator != "UNION" or tree.distinct:
            message = f"{tree.operator}: equal rows on the other side decide whether a row is in the result"
            raise RefusedError(Code.NOT_LINEAR, message)
        left, right = (
            weighted(side, context, inner=inner) or [_none(side, context)] for side in (tree.left, tree.right)
        )
        if isinstance(tree.right, ir.Compound):
            right = [_as_one(right, context)]
        columns = (*ir.names(tree), WEIGHT)
        return [ir.named_block(term, columns) for term in (*left, *right)]
    if aggregated(tree) or has_windows(tree) or tree.distinct:
        raise RefusedError(Code.NOT_LINEAR, _reshaping(tree, inner))
    return weighted_terms(tree, context)


def _reshaping(block: ir.Block, inner: str) -> str:
    if has_windows(block):
        return f"a window{inner}: a new row may change the others of its partition"
    if block.distinct:
        return f"DISTINCT{inner}: a new row may already exist"
    if block.grouping is not None:
        return f"GROUP BY{inner}: a new row changes the row of its group"
    return f"an aggregate{inner}: a new row changes the only row"


def weighted_terms(block: ir.Block, context: Context) -> list[ir.Block]:
    """Return the signed terms of a block's FROM and WHERE, with the block's columns and the weight.

    Raises:
        RefusedError: An operator is not linear.
    """
    if any(ir.touched(item.tree) for item in block.nested):
        raise RefusedError(
            Code.NOT_LINEAR, "a subquery in an expression reads a changed table: any row may depend on it"
        )
    result = []
    for index, term in relation_terms(block, lambda relation, _: _delta(relation, context), context):
        check_linear(block, index)
        weight = ir.Output(WEIGHT, ir.weight(block.relations[index].alias))
        result.append(replace(term, outputs=(*term.outputs, weight)))
    return result


def _delta(relation: ir.Relation, context: Context) -> ir.Source | None:
    source = relation.source
    if isinstance(source, ir.Base):
        return replace(source, version="delta")
    if isinstance(source, ir.Rows | ir.Named):
        return None
    found = weighted(source, context, inner=" in a query that it reads from")
    return ir.union(found, (*ir.names(source), WEIGHT)) if found else None


def _as_one(terms: Sequence[ir.Block], context: Context) -> ir.Block:
    """Return a union's terms as one, since separate terms could give the union another column type."""
    alias = context.fresh("side")
    tree = ir.union(terms)
    return ir.Block(
        tuple(ir.Output(name, ir.column(alias, name)) for name in ir.names(tree)), (ir.Relation(alias, tree),)
    )


def _none(side: ir.Tree, context: Context) -> ir.Block:
    empty = no_rows(side, range(len(ir.names(side))), context)
    return replace(empty, outputs=(*empty.outputs, ir.Output(WEIGHT, ir.one())))


def one_by_one(term: ir.Block, context: Context) -> ir.Block:
    """Return a term with one row for each copy, instead of a weight in the last column."""
    return replace(term, laterals=(*term.laterals, copies(term.outputs[-1].value, context)))


def copies(weight: exp.Expr, context: Context) -> exp.Lateral:
    """Return a LATERAL VIEW that repeats each row for each of its copies."""
    numbers = exp.GenerateSeries(start=ir.one(), end=exp.cast(exp.Abs(this=weight.copy()), "INT"))
    alias = exp.TableAlias(
        this=exp.to_identifier(context.fresh("copies")), columns=[exp.to_identifier("__copy", quoted=True)]
    )
    return exp.Lateral(this=exp.Explode(this=numbers), view=True, alias=alias)
