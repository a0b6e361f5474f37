# SPDX-License-Identifier: Apache-2.0
"""Find the rows of a query that may have changed, with one rule for each operator.

A rule returns queries. Together they contain every row value whose number of copies differs between the old and the
new result. They may contain other rows too, and a row more than once. ``wanted`` lists the columns to return, by
position: fewer columns are cheaper. Changes of columns that are not wanted count as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeGuard, TypeVar

from sqlglot import exp

from airflow_mv.core.ivm import functions, ir
from airflow_mv.core.ivm.delta_terms import Context, relation_terms, used_of
from airflow_mv.core.ivm.determinism import is_certain, nondeterminism, without_inexact
from airflow_mv.core.ivm.ir import RefusedError, Replaced
from airflow_mv.core.ivm.render import near_of, reads_of, statement
from airflow_mv.core.ivm.subqueries import above, aggregated, constant_changed, has_windows, subquery_terms
from airflow_mv.core.spec.reasons import Code

#: Groups and partitions of both versions count, because an old one may no longer exist.
VERSIONS: tuple[ir.Version, ...] = ("old", "new")

_NOT_COMPARABLE = ("map<", "variant", "geometry", "geography")
_Item = TypeVar("_Item")


def changed(tree: ir.Tree, wanted: Sequence[int], context: Context) -> list[ir.Tree]:
    """Return queries for all rows of a query that may have changed; none if it has not changed.

    Args:
        tree: The query; changed tables in it have no version.
        wanted: Positions of the columns to return.
        context: The context of the derivation.

    Raises:
        RefusedError: The query has a part for which there is no rule.
    """
    if not ir.touched(tree):
        return []
    if isinstance(tree, ir.Compound):
        return compound(tree, wanted, context)
    if aggregated(tree) and has_windows(tree):
        return changed(split(tree, context.fresh("grouped")), wanted, context)
    if aggregated(tree):
        return (
            global_aggregate(tree, wanted, context)
            if tree.grouping is None
            else grouped(tree, tree.grouping, wanted, context)
        )
    if has_windows(tree):
        return windowed(tree, wanted, context)
    return plain(tree, wanted, context)


def compound(tree: ir.Compound, wanted: Sequence[int], context: Context) -> list[ir.Tree]:
    """R2: a row of a set operator's result changes only if an equal row changes on one side."""
    columns = _pick(ir.names(tree), wanted)
    result: list[ir.Tree] = []
    for side in (tree.left, tree.right):
        found = changed(side, wanted, context) or [no_rows(side, wanted, context)]
        # Merged one by one the sides could get another type: text and date give a date, text and timestamp a timestamp.
        found = [ir.union(found)] if isinstance(side, ir.Compound) else found
        result += [ir.named(item, columns) for item in found]
    return result


def no_rows(tree: ir.Tree, wanted: Sequence[int], context: Context) -> ir.Block:
    """Return a query without rows, which gives its column types to the UNION ALL that it is added to."""
    alias = context.fresh("typed")
    names = ir.names(tree)
    outputs = tuple(ir.Output(names[index], ir.column(alias, names[index])) for index in wanted)
    return ir.Block(outputs, (ir.Relation(alias, ir.tree_at(tree, "new")),), where=exp.false())


def plain(block: ir.Block, wanted: Sequence[int], context: Context) -> list[ir.Tree]:
    """R3, R11, R16: projection, filter, joins, DISTINCT and LATERAL VIEW keep the rule of their input.

    A change may lie in a column that is not wanted, such as a subquery in the SELECT list. That column is removed last.
    """
    dependent = [index for index, item in enumerate(block.outputs) if _is_touched(item, block) and index not in wanted]
    shown = _pick(block.outputs, (*wanted, *dependent))
    found = terms(ir.selecting(block, shown), context)
    if not dependent:
        return list(found)
    return [ir.with_used_nested(replace(term, outputs=term.outputs[: len(wanted)])) for term in found]


def _is_touched(output: ir.Output, block: ir.Block) -> bool:
    return any(ir.touched(item.tree) for item in ir.marks(output.value, block))


def grouped(block: ir.Block, grouping: ir.Grouping, wanted: Sequence[int], context: Context) -> list[ir.Tree]:
    """R8, R9, R14: groups with a changed input row, in both versions, because old groups may no longer exist."""
    affected = affected_keys(block, grouping.keys, context)
    if not affected:
        return []
    if grouping.sets is not None:
        affected = [_in_sets(affected, grouping, context)]
    return keyed(block, grouping.keys, affected, wanted, context)


def global_aggregate(block: ir.Block, wanted: Sequence[int], context: Context) -> list[ir.Tree]:
    """R10: the only row, old and new, if an input row changed."""
    if not affected_keys(block, (ir.one(),), context):
        return []
    row = _without(block, wanted)
    return [ir.tree_at(row, "old"), ir.tree_at(row, "new")]


def windowed(block: ir.Block, wanted: Sequence[int], context: Context) -> list[ir.Tree]:
    """R12: partitions with a changed input row. Windows with different partitions use the keys that they share."""
    keys = common_partition(block)
    if not keys:
        message = "the windows have no PARTITION BY column in common: a changed row may change every other row"
        raise RefusedError(Code.WHOLE_RESULT, message)
    affected = affected_keys(block, keys, context)
    return keyed(block, keys, affected, wanted, context) if affected else []


def base(relation: ir.Relation, context: Context, columns: frozenset[str]) -> ir.Source | None:
    """R1: the rows of a table's change; R15: the rule of a derived table's own query."""
    source = relation.source
    if isinstance(source, ir.Base):
        return replace(source, version="delta")
    if isinstance(source, ir.Rows | ir.Named):
        return None
    names = ir.names(source)
    wanted = [index for index, name in enumerate(names) if name in columns] or [0]
    found = changed(source, wanted, context)
    return ir.union(found, _pick(names, wanted)) if found else None


# -------------------------------------------------------------------------------------- building
def terms(block: ir.Block, context: Context) -> list[ir.Block]:
    """Return the terms of a block's FROM and WHERE, with the block's columns."""
    block = without_inexact(block)
    found = relation_terms(block, lambda relation, columns: base(relation, context, columns), context, relaxed)
    result = [term for _, term in found]
    return result + list(subquery_terms(block, terms, changed, context))


def affected_keys(block: ir.Block, keys: Sequence[exp.Expr], context: Context) -> list[ir.Tree]:
    """Return the keys, named ``__k0`` and so on, of groups or partitions that may have changed.

    R9: a changed subquery above the groups may change all groups.
    """
    outputs = [ir.Output(f"__k{index}", key) for index, key in enumerate(keys)]
    inputs = ir.selecting(block, outputs)
    result: list[ir.Tree] = list(terms(inputs, context))
    for nested in above(block):
        every = ir.block_at(inputs, "new")
        if nested.outer or nested.kind == "IN":
            result.append(every)
            continue
        condition, marks = constant_changed(nested, context)
        if condition is not None:
            where = ir.both(every.where, condition)
            result.append(replace(every, where=where, nested=(*every.nested, *marks)))
    return result


def keyed(
    block: ir.Block, keys: Sequence[exp.Expr], affected: Sequence[ir.Tree], wanted: Sequence[int], context: Context
) -> list[ir.Tree]:
    """Return the rows of a block with the given keys, in both versions; only the keys if no other column is wanted."""
    values = [output.value for output in _pick(block.outputs, wanted)]
    columns = [output.name for output in _pick(block.outputs, wanted)]
    if all(value in keys for value in values):
        return [_only_keys(affected, [list(keys).index(value) for value in values], columns, context)]
    hidden = tuple(ir.Output(f"__k{index}", key.copy()) for index, key in enumerate(keys))
    rows = replace(block, outputs=(*_pick(block.outputs, wanted), *hidden), distinct=False)
    wider = without_inexact(rows)
    # Aggregates and windows need exactly these rows, so HAVING is applied afterwards.
    rows = replace(rows, having=wider.having) if any(map(_of_several_rows, values)) else wider
    return [_matching(ir.with_used_nested(rows), version, columns, affected, context) for version in VERSIONS]


def _of_several_rows(value: exp.Expr) -> bool:
    return any(functions.windows(value)) or any(functions.aggregates(value))


def _matching(
    rows: ir.Block, version: ir.Version, columns: Sequence[str], affected: Sequence[ir.Tree], context: Context
) -> ir.Block:
    left, right = context.fresh("rows"), context.fresh("keys")
    union = ir.union(affected)
    pairs = [ir.same(ir.column(left, name), ir.column(right, name)) for name in ir.names(union)]
    return ir.Block(
        tuple(ir.Output(name, ir.column(left, name)) for name in columns),
        (ir.Relation(left, ir.at(rows, version)), ir.Relation(right, union, "SEMI", ir.both(*pairs), small=True)),
    )


def _only_keys(
    affected: Sequence[ir.Tree], positions: Sequence[int], columns: Sequence[str], context: Context
) -> ir.Block:
    alias = context.fresh("keys")
    outputs = [ir.Output(name, ir.column(alias, f"__k{index}")) for name, index in zip(columns, positions, strict=True)]
    return ir.Block(tuple(outputs), (ir.Relation(alias, ir.union(affected)),))


def _in_sets(affected: Sequence[ir.Tree], grouping: ir.Grouping, context: Context) -> ir.Block:
    """R14: the keys as the grouping sets return them, with NULL for keys that are not in a set."""
    alias = context.fresh("keys")
    outputs = tuple(ir.Output(f"__k{index}", ir.column(alias, f"__k{index}")) for index in range(len(grouping.keys)))
    shown = replace(grouping, keys=tuple(output.value for output in outputs))
    return ir.Block(outputs, (ir.Relation(alias, ir.union(affected)),), grouping=shown)


def _without(block: ir.Block, wanted: Sequence[int]) -> ir.Block:
    return ir.with_used_nested(replace(block, outputs=_pick(block.outputs, wanted), distinct=False))


def _pick(items: Sequence[_Item], wanted: Sequence[int]) -> tuple[_Item, ...]:
    return tuple(items[index] for index in wanted)


def split(block: ir.Block, alias: str) -> ir.Block:
    """Split a block: return one with its windows only, over a derived table with its groups.

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
    """Return the aggregates of an expression, including their FILTER and similar clauses, and grouping()."""
    found = []
    for call in functions.aggregates(value):
        whole: exp.Expr = call
        while isinstance(whole.parent, exp.Filter | exp.IgnoreNulls | exp.RespectNulls | exp.WithinGroup):
            whole = whole.parent
        found.append(whole)
    return found


# ------------------------------------------- keys of a query's own columns


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


# ---------------------------- Strategy C (replace-keys): replace the rows of all keys that may have changed


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
