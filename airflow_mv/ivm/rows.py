# SPDX-License-Identifier: Apache-2.0
"""Strategy B for rows: combine the stored copies of each added or removed row value with the change.

This is correct for linear queries only. The query itself does not run, which saves expensive joins.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlglot import exp

from airflow_mv.ivm import ir
from airflow_mv.ivm.append import copies, weighted
from airflow_mv.ivm.delta_terms import Context
from airflow_mv.ivm.determinism import check_certain
from airflow_mv.ivm.keys import is_not_null
from airflow_mv.ivm.model import Merged, RefusedError
from airflow_mv.ivm.render import sql, statement
from airflow_mv.ivm.replace_keys import is_comparable
from airflow_mv.script import WEIGHT
from airflow_mv.spec.reasons import Code


def merged_rows(tree: ir.Tree, output: Sequence[tuple[str, str]], *, broadcast: bool) -> Merged:
    """Return the merge of a query, with all columns as keys.

    Args:
        tree: The view's query.
        output: Name and Spark type of each of its columns.
        broadcast: Whether to hint that the change is small.

    Raises:
        RefusedError: An operator is not linear, a column cannot be compared, or nothing has changed.
    """
    for name, kind in output:
        if not is_comparable(kind):
            raise RefusedError(Code.NO_KEYS, f"column {name} of type {kind} cannot be compared")
    context = Context()
    terms = weighted(tree, context)
    check_certain(tree, [kind for _, kind in output])
    if not terms:
        raise RefusedError(Code.NOT_LINEAR, "no base table has changed")
    names = [name for name, _ in output]
    changes = ir.union(terms, [*names, WEIGHT])
    signed = statement(_summed(changes, output, context.fresh("change"), exp.NEQ), broadcast=broadcast)
    return Merged(
        keys=tuple(names),
        signed=signed.sql,
        template=sql(_combined(output, context)),
        not_null=tuple(isinstance(tree, ir.Block) and is_not_null(tree, index) for index in range(len(names))),
        reads=signed.reads,
        near=signed.near,
    )


def _combined(output: Sequence[tuple[str, str]], context: Context) -> ir.Block:
    stored = ir.Block(
        (*_columns(output, "__rows"), ir.Output(WEIGHT, ir.one())), (ir.Relation("__rows", ir.Named("__stored")),)
    )
    change = ir.Block(
        (*_columns(output, "__rows"), ir.Output(WEIGHT, ir.weight("__rows"))),
        (ir.Relation("__rows", ir.Named("__delta")),),
    )
    summed = _summed(ir.union([stored, change]), output, "__both", exp.GT)
    return ir.Block(
        _columns(output, "__merged"),
        (ir.Relation("__merged", summed),),
        laterals=(copies(ir.weight("__merged"), context),),
    )


def _summed(rows: ir.Tree, output: Sequence[tuple[str, str]], alias: str, test: type[exp.Binary]) -> ir.Block:
    """Return each row value once with the sum of its weights, if the sum passes a comparison with 0.

    Spark groups -0.0 and 0.0 together, also within arrays and structs, and returns 0.0. Their texts differ.
    """
    total = exp.Sum(this=ir.weight(alias))
    columns = tuple(ir.column(alias, name) for name, _ in output)
    floats = [column for column, (_, kind) in zip(columns, output, strict=True) if _has_float(kind)]
    texts = tuple(exp.cast(column.copy(), "STRING") for column in floats)
    values = (exp.Min(this=column.copy()) if column in floats else column for column in columns)
    named = tuple(ir.Output(name, value) for (name, _), value in zip(output, values, strict=True))
    return ir.Block(
        (*named, ir.Output(WEIGHT, exp.cast(total, "INT"))),
        (ir.Relation(alias, rows),),
        grouping=ir.Grouping((*columns, *texts)),
        having=test(this=total.copy(), expression=exp.Literal.number(0)),
    )


def _has_float(kind: str) -> bool:
    return re.search(r"\b(float|double)\b", kind.lower()) is not None


def _columns(output: Sequence[tuple[str, str]], alias: str) -> tuple[ir.Output, ...]:
    return tuple(ir.Output(name, ir.column(alias, name)) for name, _ in output)
