# SPDX-License-Identifier: Apache-2.0
"""Delta terms for the subqueries of a WHERE clause or a SELECT list: R6 and R7."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from sqlglot import exp

from airflow_mv.core.ivm import functions, ir
from airflow_mv.core.ivm.delta_terms import Context
from airflow_mv.core.ivm.ir import RefusedError
from airflow_mv.core.spec.reasons import Code

#: Returns the terms of a block's FROM and WHERE.
Terms = Callable[[ir.Block, Context], list[ir.Block]]
#: Returns queries for the rows of a query that may have changed.
Changed = Callable[[ir.Tree, Sequence[int], Context], list[ir.Tree]]


def subquery_terms(block: ir.Block, terms: Terms, changed: Changed, context: Context) -> Iterator[ir.Block]:
    """R6: yield the rows for which the result of a subquery may have changed.

    Relations and the subqueries before this one are new; the subqueries after it are old.
    """
    if any(ir.touched(item.tree) for relation in block.relations for item in ir.marks(relation.on, block)):
        raise RefusedError(Code.UNSUPPORTED_OPERATOR, "a subquery in ON is not supported: move it to WHERE")
    for index, nested in enumerate(block.nested):
        if not ir.touched(nested.tree):
            continue
        condition, conditions = affected(block, nested, terms, changed, context)
        if condition is None:
            continue
        for version in _versions(block, nested):
            yield _term(block, index, version, condition, conditions)


def _versions(block: ir.Block, nested: ir.Nested) -> tuple[ir.Version | None, ...]:
    """Return the versions that matter; ``None`` if the condition with the subquery can be omitted."""
    others = [*block.laterals, *(item.value for item in block.outputs)]
    elsewhere = any(nested in ir.marks(expression, block) for expression in others)
    return ("old", "new") if elsewhere else (None,)


def _term(
    block: ir.Block, index: int, version: ir.Version | None, condition: exp.Expr, conditions: Sequence[ir.Nested]
) -> ir.Block:
    nested = [
        ir.nested_at(item, "new" if position < index else "old")
        for position, item in enumerate(block.nested)
        if position != index
    ]
    where = ir.conjuncts(block.where)
    if version is None:
        where = [item for item in where if block.nested[index] not in ir.marks(item, block)]
    else:
        nested.append(ir.nested_at(block.nested[index], version))
    relations = tuple(replace(item, source=ir.at(item.source, "new")) for item in block.relations)
    term = replace(block, relations=relations, where=ir.both(*where, condition), nested=(*nested, *conditions))
    return ir.with_used_nested(term)


# ------------------------------------------------------------------------------------- conditions
def affected(
    block: ir.Block, nested: ir.Nested, terms: Terms, changed: Changed, context: Context
) -> tuple[exp.Expr | None, list[ir.Nested]]:
    """Return a condition, with its subqueries, for the rows of a block for which a subquery may have changed."""
    if nested.kind != "IN" and not nested.outer:
        return constant_changed(nested, context)
    if nested.kind == "IN" and not nested.outer:
        width = len(ir.names(nested.tree))
        trees = changed(nested.tree, range(width), context)
        return _in_condition(block, nested, _as_blocks(trees, context), context)
    inner = nested.tree
    if not isinstance(inner, ir.Block):
        raise RefusedError(Code.UNSUPPORTED_OPERATOR, "a set operator in a correlated subquery is not supported")
    if (aggregated(inner) or has_windows(inner)) and above(inner):
        return exp.true(), []
    keeps_value = nested.kind == "IN" and not aggregated(inner) and not has_windows(inner)
    outputs = inner.outputs if keeps_value else (ir.Output("one", ir.one()),)
    blocks = terms(ir.selecting(inner, outputs), context)
    if keeps_value:
        return _in_condition(block, nested, blocks, context)
    found = [_exists(item, context) for item in blocks]
    return _any([mark for mark, _ in found]), [item for _, item in found]


def constant_changed(nested: ir.Nested, context: Context) -> tuple[exp.Expr | None, list[ir.Nested]]:
    """R7: a subquery without outer columns has one value: compare the old with the new value."""
    old = replace(ir.nested_at(nested, "old"), mark=context.fresh("old"))
    new = replace(ir.nested_at(nested, "new"), mark=context.fresh("new"))
    compared = ir.same(exp.Anonymous(this=old.mark), exp.Anonymous(this=new.mark))
    condition = exp.Not(this=exp.Paren(this=compared))
    if context.skip_constants:
        return None, []
    context.constants.append(ir.Block((ir.Output("changed", condition),), (), nested=(old, new)))
    return condition, [old, new]


def _in_condition(
    block: ir.Block, nested: ir.Nested, blocks: Sequence[ir.Block], context: Context
) -> tuple[exp.Expr | None, list[ir.Nested]]:
    operands, positive = _operands(block, nested)
    conditions: list[exp.Expr] = []
    marks: list[ir.Nested] = []

    def add(item: ir.Block, extra: exp.Expr | None, guard: exp.Expr | None) -> None:
        values = ir.selecting(replace(item, where=ir.both(item.where, extra)), [ir.Output("one", ir.one())])
        mark, found = _exists(values, context)
        conditions.append(exp.Paren(this=exp.And(this=guard.copy(), expression=mark)) if guard is not None else mark)
        marks.append(found)

    for item in blocks:
        values = [output.value for output in item.outputs]
        pairs = [_equal(value, operand) for value, operand in zip(values, operands, strict=True)]
        if positive or len(operands) == 1:
            add(item, ir.both(*pairs), None)
        if not positive and len(operands) > 1:
            add(item, None, None)
        elif not positive:
            add(item, _is_null(values[0]), None)
            add(item, None, _is_null(operands[0]))
    return _any(conditions), marks


def _operands(block: ir.Block, nested: ir.Nested) -> tuple[list[exp.Expr], bool]:
    """Return the operands before IN, and whether NULL has the same effect as false there."""
    for item in ir.conjuncts(block.where):
        inner = item.unnest()
        if isinstance(inner, exp.Anonymous) and inner.name == nested.mark:
            return list(inner.expressions), True
    places = [block.where, *block.laterals, *(output.value for output in block.outputs)]
    for place in places:
        for call in place.find_all(exp.Anonymous) if place is not None else ():
            if call.name == nested.mark:
                return list(call.expressions), False
    raise RefusedError(Code.UNSUPPORTED_OPERATOR, "IN with a subquery is not supported in this place")


def _as_blocks(trees: Sequence[ir.Tree], context: Context) -> list[ir.Block]:
    """Return queries as blocks, so that conditions can be added to their WHERE."""
    if not trees:
        return []
    alias = context.fresh("in")
    tree = ir.union(trees)
    outputs = tuple(ir.Output(name, ir.column(alias, name)) for name in ir.names(tree))
    return [ir.Block(outputs, (ir.Relation(alias, tree),))]


def _exists(block: ir.Block, context: Context) -> tuple[exp.Expr, ir.Nested]:
    mark = context.fresh("exists")
    return exp.Anonymous(this=mark), ir.Nested(mark, "EXISTS", block, frozenset())


def _any(conditions: Sequence[exp.Expr]) -> exp.Expr | None:
    return exp.Paren(this=ir.either(*conditions)) if conditions else None


def _equal(left: exp.Expr, right: exp.Expr) -> exp.Expr:
    return exp.EQ(this=exp.Paren(this=left.copy()), expression=exp.Paren(this=right.copy()))


def _is_null(value: exp.Expr) -> exp.Expr:
    return exp.Is(this=exp.Paren(this=value.copy()), expression=exp.Null())


# ---------------------------------------------------------------------------------------- queries
def aggregated(block: ir.Block) -> bool:
    """Whether a block groups its rows."""
    if block.grouping is not None or block.having is not None:
        return True
    return any(True for output in block.outputs for _ in functions.aggregates(output.value))


def has_windows(block: ir.Block) -> bool:
    """Whether a block has window functions."""
    return any(True for output in block.outputs for _ in functions.windows(output.value))


def above(block: ir.Block) -> list[ir.Nested]:
    """Return the changed subqueries that are evaluated above a block's groups or windows."""
    places = [block.having, *(output.value for output in block.outputs)]
    found = [item for place in places for item in ir.marks(place, block) if ir.touched(item.tree)]
    return list({item.mark: item for item in found}.values())
