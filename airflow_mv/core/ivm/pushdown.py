# SPDX-License-Identifier: Apache-2.0
"""Conditions on the rows of base tables that are relevant to a query.

``filters`` returns plain comparisons, which are tested against file statistics. ``conditions`` returns the complete
conditions as SQL, which are tested against rows. At any snapshot the query has the same result over the matching rows
as over all rows. A change may therefore be read through such a condition: an update that makes a row match is an
added row, and one that makes it no longer match is a removed row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from airflow_mv.core.ivm import functions, ir
from airflow_mv.core.ivm.delta_terms import used_of
from airflow_mv.core.ivm.determinism import is_floating
from airflow_mv.core.ivm.ir import Comparison, LiteralKind
from airflow_mv.core.ivm.monotone import Monotone, as_timestamp, constant, monotone, text_of
from airflow_mv.core.ivm.regeneration import write
from airflow_mv.core.ivm.subqueries import aggregated, has_windows
from airflow_mv.core.sql.query import fold

_OPERATORS: Mapping[type[exp.Expr], str] = {exp.EQ: "=", exp.GT: ">", exp.GTE: ">=", exp.LT: "<", exp.LTE: "<="}
_TURNED = {"=": "=", ">": "<", ">=": "<=", "<": ">", "<=": ">="}
#: A session's time zone is UTC, so that a timestamp with a zone is written as one without.
_CAST_LITERALS: Mapping[object, LiteralKind] = {
    exp.DType.DATE: "date",
    exp.DType.TIMESTAMPNTZ: "timestamp",
    exp.DType.TIMESTAMPTZ: "timestamp",
}
#: A task would need more time to read a longer condition than to read its rows.
_MAX_LENGTH = 20_000


def filters(tree: ir.Tree) -> dict[str, list[tuple[Comparison, ...]]]:
    """Return for each base table the comparisons that relevant rows satisfy, one tuple for each occurrence.

    They follow from :func:`conditions`. An occurrence without comparisons has an empty tuple: all rows may be relevant.
    """
    found: dict[str, list[tuple[Comparison, ...]]] = {}
    for base, condition in _required(tree, ()):
        types = dict(zip(base.columns, base.types, strict=True))
        read = [item for part in ir.conjuncts(condition) for item in _comparisons(part, types)]
        found.setdefault(base.name, []).append(tuple(dict.fromkeys(read)))
    return found


def _comparisons(condition: exp.Expr, types: Mapping[str, str]) -> tuple[Comparison, ...]:
    """Return the comparisons of a column that follow from a condition on a table's columns of these Spark types."""
    condition = condition.unnest()
    if isinstance(condition, exp.Between):
        value, ends = condition.this, (("low", exp.GTE), ("high", exp.LTE))
        parts = [kind(this=value.copy(), expression=condition.args[end].copy()) for end, kind in ends]
        return tuple(item for part in parts for item in _comparisons(part, types))
    operator = _OPERATORS.get(type(condition))
    if operator is None:
        return ()
    left, right = condition.this.unnest(), condition.expression.unnest()
    if _literal(right) is None:
        left, right, operator = right, left, _TURNED[operator]
    literal = _literal(right)
    if literal is None:
        return ()
    found = monotone(left, lambda column: types.get(column.name))
    if isinstance(left, exp.Column) and (found is None or found.kind == literal[1]):
        return (Comparison(left.name, operator, *literal),)
    return () if found is None else _of_column(found, operator, *literal)


def _of_column(found: Monotone, operator: str, text: str, literal: LiteralKind) -> tuple[Comparison, ...]:
    """Return the comparisons of a column that follow from one of a monotone expression."""
    if found.kind == "date" and literal == "timestamp":
        return _of_column(as_timestamp(found), operator, text, literal)
    value = constant(found.kind, text, literal)
    if literal == "text" and found.kind == "timestamp":  # also if Spark compares it as a text
        value, operator = None if "." in text else value, ">=" if operator == ">" else operator
    if value is None:
        return ()
    bounds = zip((">=", "<"), found.preimage(operator, value), strict=True)
    kind, name = found.source, found.column.name
    years = found.kind == "text"
    return tuple(Comparison(name, sign, text_of(at, kind), kind, years) for sign, at in bounds if at is not None)


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
    """Return for each base table a condition that all relevant rows satisfy; no entry if all rows may be relevant.

    The condition uses the table's unqualified column names. NULL counts as false, as in WHERE. For a table that is
    read more than once it is the OR of the conditions of its occurrences. Comparisons of floating-point columns are
    left out, see :func:`airflow_mv.core.sql.query.filtered_floats`.
    """
    found: dict[str, list[exp.Expr | None]] = {}
    for base, condition in _required(tree, ()):
        found.setdefault(base.name, []).append(_without_floats(condition, base))
    result: dict[str, str] = {}
    for name, every in found.items():
        given = list(dict.fromkeys(condition for condition in every if condition is not None))
        if None not in every:
            text = write(ir.either(*given))
            result |= {name: text} if len(text) <= _MAX_LENGTH else {}
    return result


def _without_floats(condition: exp.Expr | None, base: ir.Base) -> exp.Expr | None:
    kinds = zip(base.columns, base.types, strict=True)
    floats = {fold(name) for name, kind in kinds if is_floating(kind)}
    names = ((part, {fold(item.name) for item in part.find_all(exp.Column)}) for part in ir.conjuncts(condition))
    return ir.both(*(part for part, found in names if not found & floats))


def _required(tree: ir.Tree, given: Sequence[exp.Expr]) -> Iterator[tuple[ir.Base, exp.Expr | None]]:
    """Yield each occurrence of a base table and its condition.

    Args:
        given: Conditions that the query's relevant rows satisfy, over its unqualified column names.
    """
    if isinstance(tree, ir.Compound):
        # Only in a union does the condition apply to each row on its own.
        below = [item for item in given if _means_the_same_below(item, tree)]
        yield from _required(tree.left, below)
        moved = [_moved(item, ir.names(tree), ir.names(tree.right)) for item in below]
        yield from _required(tree.right, moved)
        return
    outer = _inlined(given, tree)
    for index, relation in enumerate(tree.relations):
        own = [_bare(item) for item in _conditions(tree, index, outer) if _is_of(item, relation.alias, tree)]
        if isinstance(relation.source, ir.Base):
            yield relation.source, ir.both(*own)
        elif isinstance(relation.source, ir.Block | ir.Compound):
            yield from _required(relation.source, own)
    for nested in tree.nested:
        yield from _required(nested.tree, ())


def _conditions(block: ir.Block, index: int, outer: Sequence[exp.Expr]) -> list[exp.Expr]:
    """Return conditions that a relation's row must satisfy to be part of a row of the block, or to exclude one."""
    relations = block.relations
    later = any(item.join in ("RIGHT", "FULL") for item in relations[index + 1 :])
    own = relations[index].join
    of_join = ir.conjuncts(relations[index].on) if own != "FULL" and own != "RIGHT" else []
    if later or own in ("LEFT", "FULL", "SEMI", "ANTI"):
        # An unmatched row has NULL instead, so the conditions of WHERE do not apply to the relation's own rows.
        return of_join if not later else []
    inner = [part for item in relations[1:] if item.join == "INNER" for part in ir.conjuncts(item.on)]
    return [*ir.conjuncts(block.where), *inner, *outer]


def _inlined(given: Sequence[exp.Expr], block: ir.Block) -> list[exp.Expr]:
    """Return conditions on a block's columns as conditions on the expressions that compute them."""
    if aggregated(block) or has_windows(block):
        return []
    values = {output.name: output.value for output in block.outputs}

    def value(node: exp.Expr) -> exp.Expr | None:
        return exp.Paren(this=values[node.name].copy()) if isinstance(node, exp.Column) else None

    return [ir.substitute(item, value) for item in given]


def _means_the_same_below(condition: exp.Expr, tree: ir.Compound) -> bool:
    """Whether a condition on a set operator's rows can be applied to its sides, which it may cast to other types."""
    names = ir.names(tree)
    positions = [names.index(column.name) for column in condition.find_all(exp.Column)]
    return tree.operator == "UNION" and all(_type_of(tree, position) for position in positions)


def _type_of(source: ir.Source, position: int) -> str | None:
    """Return the type of a column that is an unchanged column of a base table; ``None`` if unknown."""
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
    """Whether a condition depends only on the columns of one relation, and means the same without its alias."""
    columns = list(condition.find_all(exp.Column))
    if not columns or any(column.table != alias for column in columns) or ir.marks(condition, block):
        return False
    variables = {fold(item.name) for item in condition.find_all(exp.Lambda) for item in item.expressions}
    if any(fold(column.name) in variables for column in columns):
        return False
    return not any(functions.is_generator(node) for node in condition.walk())


def _bare(condition: exp.Expr) -> exp.Expr:
    return ir.substitute(condition, lambda node: _named(node.name) if isinstance(node, exp.Column) else None)


def _named(name: str) -> exp.Column:
    return exp.Column(this=exp.to_identifier(name, quoted=True))


_TYPES = {"date": exp.DType.DATE, "timestamp": exp.DType.TIMESTAMPNTZ, "timestamptz": exp.DType.TIMESTAMPNTZ}


def within(tree: ir.Tree, position: int, start: str, end: str, kind: str) -> ir.Tree:
    """Return a query for the rows whose column lies in an interval, with the condition pushed down as far as possible.

    If it cannot be pushed down to a base table, it is omitted: the query then also returns other rows.

    Args:
        start: The interval's start, as the text of a literal in UTC.
        end: Its end, excluded.
        kind: The column's Iceberg type: ``date``, ``timestamp`` or ``timestamptz``.
    """
    value = _named("value")
    low = exp.GTE(this=value.copy(), expression=exp.cast(exp.Literal.string(start), _TYPES[kind]))
    high = exp.LT(this=value.copy(), expression=exp.cast(exp.Literal.string(end), _TYPES[kind]))
    return _restricted(tree, position, (low, high))


def _restricted(tree: ir.Tree, position: int, given: Sequence[exp.Expr]) -> ir.Tree:
    """Return a query for rows that pass conditions on one column, which is the only column in the conditions."""
    if isinstance(tree, ir.Compound):
        # A condition on each row alone goes through every set operator.
        left, right = (_restricted(side, position, given) for side in (tree.left, tree.right))
        return replace(tree, left=left, right=right)
    value = tree.outputs[position].value
    column = only_column(value)
    relation = next((item for item in tree.relations if column is not None and item.alias == column.table), None)
    if column is None or relation is None or not _may_go_below(tree, value):
        return tree
    if not _is_of(_without_windows(value), relation.alias, tree):
        return tree
    conditions = [ir.substitute(item, lambda node: _replaced(node, value)) for item in given]
    source = relation.source
    if not isinstance(source, ir.Block | ir.Compound):
        return replace(tree, where=ir.both(tree.where, *conditions))
    inner = _restricted(source, ir.names(source).index(column.name), conditions)
    relations = tuple(replace(item, source=inner) if item is relation else item for item in tree.relations)
    return replace(tree, relations=relations)


def _without_windows(value: exp.Expr) -> exp.Expr:
    """Return a value with the time instead of the windows of time that it is in: no other row has these windows."""
    return ir.substitute(value, lambda node: node.expressions[0].copy() if _is_time_window(node) else None)


def _is_time_window(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and node.name.lower() == "window" and bool(node.expressions)


def _replaced(node: exp.Expr, value: exp.Expr) -> exp.Expr | None:
    return value.copy() if isinstance(node, exp.Column) else None


def only_column(value: exp.Expr) -> exp.Column | None:
    """Return the column of an expression with one column."""
    columns = list(value.find_all(exp.Column))
    return columns[0] if len(columns) == 1 else None


def _may_go_below(block: ir.Block, value: exp.Expr) -> bool:
    """Whether the block's other rows stay the same if rows are filtered by this value."""
    if has_windows(block) or any(item.join != "INNER" for item in block.relations):
        return False
    if not aggregated(block):
        return True
    if block.grouping is None or block.grouping.sets is not None:
        return False
    keys = block.grouping.keys
    return ir.substitute(value, lambda node: ir.one() if node in keys else None).find(exp.Column) is None


def pruned(tree: ir.Tree) -> ir.Tree:
    """Return a query with the same columns, whose derived tables have only the columns that are read."""
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
    """Return the columns that must be kept, so that the rows do not change."""
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
    """Whether a column decides the number of rows, as a generator does."""
    return any(functions.is_generator(node) for node in output.value.walk())
