# SPDX-License-Identifier: Apache-2.0
"""Rewrite generators of several columns in a SELECT list as LATERAL VIEW, and GROUP BY with a time window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from airflow_mv.ivm import functions, ir
from airflow_mv.ivm.model import RefusedError
from airflow_mv.spec.reasons import Code

_VIEW, _COLUMN = "__generated", "__g"
_OUTER = {"_ExplodeOuter": exp.Explode, "ExplodeOuter": exp.Explode, "PosexplodeOuter": exp.Posexplode}
#: The name of the column of GROUP BY window(…), and its fields.
WINDOW, _FIELDS = "window", ("start", "end")


def with_lateral_view(node: exp.Select) -> exp.Select:
    """Move a generator of several columns from a SELECT's list to its FROM.

    A SELECT list has at most one generator. It runs after WHERE, which cannot name its columns.
    """
    position = next((at for at, item in enumerate(node.expressions) if _columns(item)), None)
    clauses = ("group", "having", "windows")
    if position is None or not node.args.get("from_") or any(node.args.get(name) for name in clauses):
        return node
    if any(isinstance(item, exp.Star) or functions_of_groups(item) for item in node.expressions):
        return node
    result = node.copy()
    item = result.expressions[position]
    names = _columns(item)
    call = item.this if isinstance(item, exp.Aliases) else item
    plain = _OUTER.get(type(call).__name__)
    owns = [f"{_COLUMN}{number}" for number in range(len(names))]
    alias = exp.TableAlias(this=_name(_VIEW), columns=[_name(own) for own in owns])
    made = plain(this=call.this.copy()) if plain else call.copy()
    lateral = exp.Lateral(this=made, view=True, outer=bool(plain), alias=alias)
    result.set("laterals", [*(result.args.get("laterals") or ()), lateral])
    columns = [
        exp.alias_(exp.column(_name(own), _name(_VIEW)), _name(name)) for own, name in zip(owns, names, strict=True)
    ]
    result.set("expressions", [*result.expressions[:position], *columns, *result.expressions[position + 1 :]])
    return result


def functions_of_groups(item: exp.Expr) -> bool:
    """Whether a column of a SELECT list has an aggregate or a window function."""
    return any(True for _ in functions.aggregates(item)) or item.find(exp.Window) is not None


def _name(name: str) -> exp.Identifier:
    return exp.to_identifier(name, quoted=True)


def _columns(item: exp.Expr) -> list[str]:
    """Return the names of a generator's columns; none if it has one column, or if the text does not show the names."""
    if isinstance(item, exp.Aliases):
        return [name.name for name in item.expressions] if functions.is_generator(item.this) else []
    if isinstance(item, exp.Posexplode):
        return ["pos", "col"]
    if isinstance(item, exp.Stack) and item.this.name.isdecimal() and int(item.this.name) > 0:
        return [f"col{number}" for number in range(-(-len(item.expressions) // int(item.this.name)))]
    if isinstance(item, exp.Anonymous) and item.name.lower() == "json_tuple":
        return [f"c{number}" for number in range(len(item.expressions) - 1)]
    return []


# ------------------------------------------------------------------------------------ time windows
def time_window(group: exp.Expr | None) -> exp.Expr | None:
    """Return the call of ``window(…)`` in a GROUP BY.

    Raises:
        RefusedError: The GROUP BY has a session window or two time windows.
    """
    calls = list(group.find_all(exp.Anonymous)) if group is not None else []
    if any(call.name.lower() == "session_window" for call in calls):
        message = "session_window: a new row may join sessions that are stored as two"
        raise RefusedError(Code.UNSUPPORTED_OPERATOR, message)
    found = [call for call in calls if call.name.lower() == WINDOW]
    if any(call != found[0] for call in found):
        raise RefusedError(Code.UNSUPPORTED_OPERATOR, "GROUP BY has two time windows")
    return found[0] if found else None


def grouped_below(block: ir.Block, call: exp.Expr, alias: str) -> ir.Block:
    """Rewrite a block that groups by a time window: put the window into a derived table, as a column.

    Args:
        block: The block.
        call: The resolved call of ``window(…)``, which is a key.
        alias: A name for the derived table.

    Raises:
        RefusedError: A subquery stands above the groups.
    """
    grouping = block.grouping
    above = [block.having, *(item.value for item in block.outputs)]
    if grouping is None or any(ir.marks(item, block) for item in above):
        raise RefusedError(Code.UNSUPPORTED_OPERATOR, "a subquery beside GROUP BY window() is not supported")
    columns: dict[exp.Expr, str] = {}
    window = ir.column(alias, WINDOW)

    def moved(node: exp.Expr) -> exp.Expr | None:
        if node == call:
            return window.copy()
        if isinstance(node, exp.Column):
            return ir.column(alias, columns.setdefault(node, f"{_COLUMN}{len(columns)}"))
        return None

    def change(value: exp.Expr) -> exp.Expr:
        return ir.substitute(value, moved)

    outputs = tuple(replace(item, value=change(item.value)) for item in block.outputs)
    having = change(block.having) if block.having is not None else None
    keys = tuple(change(key) for key in grouping.keys)
    if grouping.sets is None and _only_fields(window, [having, *(item.value for item in outputs)]):
        parts = (exp.Dot(this=window.copy(), expression=_name(field)) for field in _FIELDS)
        keys = (*(key for key in keys if key != window), *parts)
    inner = ir.Block(
        (*(ir.Output(name, column) for column, name in columns.items()), ir.Output(WINDOW, call.copy())),
        block.relations,
        block.laterals,
        block.where,
        nested=block.nested,
    )
    return ir.Block(
        outputs,
        (ir.Relation(alias, inner),),
        grouping=replace(grouping, keys=keys),
        having=having,
        distinct=block.distinct,
    )


def _only_fields(window: exp.Expr, values: Sequence[exp.Expr | None]) -> bool:
    """Whether only the window's start and end are read: rows that share both share the window."""
    found = [node for value in values if value is not None for node in value.find_all(exp.Column) if node == window]
    return all(isinstance(node.parent, exp.Dot) and node.parent.expression.name in _FIELDS for node in found)
