# SPDX-License-Identifier: Apache-2.0
"""Which columns of base tables the values of a view's column come from."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from airflow_mv.core.ivm import IncrementalQuery, ir
from airflow_mv.core.ivm.monotone import Monotone, monotone
from airflow_mv.core.ivm.pushdown import only_column
from airflow_mv.core.spec.identifiers import Identifier


def origins(query: IncrementalQuery, column: str) -> Sequence[tuple[Identifier, Monotone]] | None:
    """Return the base tables that a column's values come from, with the monotone function of a column of each.

    Returns:
        ``None`` if unknown.
    """
    position = next(index for index, (name, _) in enumerate(query.output) if name == column)
    found = _origins(query.tree, position, exp.column("value", quoted=True))
    tables = {item.name: item.identifier for item in query.relations}
    return None if found is None else [(tables[name], value) for name, value in found]


def _origins(tree: ir.Tree, position: int, given: exp.Expr) -> list[tuple[str, Monotone]] | None:
    if isinstance(tree, ir.Compound):
        sides = (tree.left, tree.right) if tree.operator == "UNION" else (tree.left,)
        found = [_origins(side, position, given) for side in sides]
        return None if None in found else [item for side in found for item in side or ()]
    value = ir.substitute(given, lambda node: _value(node, tree.outputs[position].value))
    column = only_column(value)
    relation = next((item for item in tree.relations if column is not None and item.alias == column.table), None)
    if column is None or relation is None or ir.marks(value, tree):
        return None
    source = relation.source
    if isinstance(source, ir.Block | ir.Compound):
        return _origins(source, ir.names(source).index(column.name), value)
    if not isinstance(source, ir.Base):
        return None
    types = dict(zip(source.columns, source.types, strict=True))
    found_here = monotone(value, lambda item: types.get(item.name))
    return None if found_here is None else [(source.name, found_here)]


def _value(node: exp.Expr, value: exp.Expr) -> exp.Expr | None:
    return value.copy() if isinstance(node, exp.Column) else None
