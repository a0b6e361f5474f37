# SPDX-License-Identifier: Apache-2.0
"""Strategy B (merge): combine the stored row of each group with the change of its input.

Only the view's own columns are stored. The view must therefore have a count that shows when a group has no rows left,
and a count for each sum that shows when no values are left. Of a query without aggregates the stored copies of each
row value are combined with the change, which is correct for linear queries only. The query itself does not run, which
saves expensive joins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from airflow_mv.core.ivm import functions, ir
from airflow_mv.core.ivm.affected_keys import has_value, is_comparable, is_not_null
from airflow_mv.core.ivm.append import copies, weighted, weighted_terms
from airflow_mv.core.ivm.column_types import TypedBlock
from airflow_mv.core.ivm.delta_terms import Context
from airflow_mv.core.ivm.determinism import DIGITS_OF_DOUBLES, check_certain, is_nondeterministic
from airflow_mv.core.ivm.functions import DECIMAL, MAX_PRECISION, Merge, argument_of, known
from airflow_mv.core.ivm.ir import BaseRelation, Merged, RefusedError
from airflow_mv.core.ivm.render import sql, statement
from airflow_mv.core.ivm.subqueries import aggregated, has_windows
from airflow_mv.core.script import WEIGHT
from airflow_mv.core.spec.reasons import Code


def merged(
    tree: ir.Tree, output: Sequence[tuple[str, str]], relations: Sequence[BaseRelation], *, broadcast: bool
) -> Merged:
    """Return the merge of a query.

    Args:
        output: Name and Spark type of each of its columns.
        broadcast: Whether to hint that the change is small.

    Raises:
        RefusedError: The stored rows and the change do not determine the new rows.
    """
    if not isinstance(tree, ir.Block) or not aggregated(tree) or tree.distinct:
        raise RefusedError(Code.NOT_ADDITIVE, "the outermost query is not a single aggregation")
    if has_windows(tree):
        raise RefusedError(Code.NOT_ADDITIVE, "a window over the groups: a changed group may change the rows of others")
    if tree.having is not None:
        raise RefusedError(Code.NOT_ADDITIVE, "HAVING: a group that it removed is not stored, and may pass it later")
    if tree.grouping is not None and tree.grouping.sets is not None:
        raise RefusedError(Code.NOT_ADDITIVE, "grouping sets: a stored NULL may be a key or mark a subtotal")
    appended_only = _only_appended(relations)
    not_null = {relation.name: relation.not_null for relation in relations}
    columns = _Columns.of(tree, output, not_null, appended_only=appended_only)
    signed = statement(_signed(tree, columns), broadcast=broadcast)
    for index in columns.derived:  # report what cannot be derived before missing counts, which would not help
        if isinstance(value := columns.values[index], exp.Avg):
            _check_exact(tree, value, output[index][1])
        else:
            _derived(columns, index)
    columns.check_counts(appended_only=appended_only)
    combined = _combined(columns, appended_only=appended_only)
    return Merged(
        keys=tuple(output[index][0] for index in columns.keys),
        signed=signed.sql,
        template=sql(combined),
        not_null=tuple(is_not_null(tree, index) for index in columns.keys),
        reads=signed.reads,
        near=signed.near,
    )


def _only_appended(relations: Sequence[BaseRelation]) -> bool:
    return all(relation.appended_only for relation in relations if relation.changed)


@dataclass(frozen=True, slots=True)
class _Columns:
    """The view's columns by kind, each as its position."""

    output: tuple[tuple[str, str], ...]
    values: tuple[exp.Expr, ...]
    #: Position of each key column, and the index of its key in GROUP BY.
    keys: dict[int, int]
    parts: dict[int, AggregatePart]
    #: Functions of the other columns.
    derived: tuple[int, ...]
    #: Arguments of aggregates that are never NULL, so that there are as many values as rows.
    in_every_row: tuple[exp.Expr, ...]

    @classmethod
    def of(
        cls,
        block: ir.Block,
        output: Sequence[tuple[str, str]],
        not_null: Mapping[str, frozenset[str]],
        *,
        appended_only: bool,
    ) -> _Columns:
        wanted = list(block.grouping.keys) if block.grouping is not None else []
        keys: dict[int, int] = {}
        parts: dict[int, AggregatePart] = {}
        derived: list[int] = []
        for index, item in enumerate(block.outputs):
            if item.value in wanted:
                keys[index] = wanted.index(item.value)
            elif _is_one_call(item.value) and not isinstance(item.value, exp.Avg):
                parts[index] = part(item.value, output[index][1], appended_only=appended_only)
            else:
                derived.append(index)
        shown = {wanted[number] for index, number in keys.items() if is_comparable(output[index][1])}
        hidden = [written(key) for key in wanted if key not in shown]
        if hidden:
            message = f"GROUP BY {', '.join(hidden)}: no column of the view has this key, or it cannot be compared"
            raise RefusedError(Code.NO_KEYS, message)
        values = tuple(item.value for item in block.outputs)
        arguments = [item.argument for item in parts.values() if item.argument is not None]
        in_every_row = tuple(item for item in arguments if has_value(block, item, not_null))
        return cls(tuple(output), values, keys, parts, tuple(derived), in_every_row)

    def name(self, index: int) -> str:
        """Return a column's name."""
        return self.output[index][0]

    def row_count(self) -> int | None:
        """Return the column that counts the rows of a group."""
        return next((index for index, item in self.parts.items() if item.is_row_count), None)

    def count_of(self, argument: exp.Expr | None) -> int | None:
        """Return the column that counts the values of a sum, if there is one."""
        for index, item in self.parts.items():
            if isinstance(item.call, exp.Count) and item.argument == argument:
                return index
        return self.row_count() if argument in self.in_every_row else None

    def sum_of(self, argument: exp.Expr) -> int | None:
        """Return the column with the sum of an average's values, if there is one."""
        found = (
            index for index, item in self.parts.items() if isinstance(item.call, exp.Sum) and item.argument == argument
        )
        return next(found, None)

    def check_counts(self, *, appended_only: bool) -> None:
        """Refuse a view without the counts and sums that its groups, sums and averages need.

        Raises:
            RefusedError: The message names all missing columns.
        """
        averages = [value.this for value in self.values if isinstance(value, exp.Avg)]
        sums = (
            []
            if appended_only
            else [item.argument for item in self.parts.values() if item.merge.is_null_without_values]
        )
        wanted = [f"sum({written(item)})" for item in averages if self.sum_of(item) is None]
        uncounted = [item for item in (*sums, *averages) if item is not None and self.count_of(item) is None]
        sometimes = [item for item in uncounted if item not in self.in_every_row]
        wanted += [f"count({written(item)})" for item in sometimes]
        by_rows = len(sometimes) < len(uncounted) or (bool(self.keys) and not appended_only)
        wanted += ["count(*)"] if by_rows and self.row_count() is None else []
        if wanted:
            why = "without it a merge cannot detect that a group, or a sum, has no values left"
            why = "an average is computed from its sum and its count" if appended_only else why
            also = " (count(*) is enough for columns that are declared NOT NULL)" if sometimes else ""
            raise RefusedError(
                Code.NO_VISIBLE_COUNT, f"add {', '.join(dict.fromkeys(wanted))} to the view{also}: {why}"
            )


def _is_one_call(value: exp.Expr) -> bool:
    inner = value.this if isinstance(value, exp.Filter) else value
    return functions.is_aggregate(inner)


# ----------------------------------------------------------------------------------------- signed
def _signed(block: ir.Block, columns: _Columns) -> ir.Block:
    """Return the partial aggregates of the change."""
    context = Context()
    keys = block.grouping.keys if block.grouping is not None else ()
    arguments = {index: item.argument or ir.one() for index, item in columns.parts.items()}
    inputs = [ir.Output(f"__k{number}", key) for number, key in enumerate(keys)]
    inputs += [ir.Output(f"__a{index}", value) for index, value in arguments.items()]
    below = ir.selecting(block, inputs)
    terms = weighted_terms(below, context)
    if is_nondeterministic(below):
        message = "an aggregated value, or a key, may differ when the query runs again"
        raise RefusedError(Code.NOT_DETERMINISTIC, message)
    if not terms:
        raise RefusedError(Code.NOT_ADDITIVE, "no base table has changed")
    alias = context.fresh("change")
    weight = ir.weight(alias)
    change = ir.Relation(alias, ir.union(terms))
    by_copy = any(item.merge.needs_copies(item.kind) for item in columns.parts.values())
    outputs = []
    for index, (name, kind) in enumerate(columns.output):
        value: exp.Expr = exp.cast(exp.Null(), exp.DataType.build(kind, dialect="spark"))
        if index in columns.keys:
            value = ir.column(alias, f"__k{columns.keys[index]}")
        elif index in columns.parts:
            item = columns.parts[index]
            factor = _factor(weight, item.merge.weight, by_copy=by_copy)
            value = item.merge.partial(item.call, ir.column(alias, f"__a{index}"), factor, item.kind)
        outputs.append(ir.Output(name, value))
    grouping = ir.Grouping(tuple(ir.column(alias, f"__k{number}") for number in range(len(keys)))) if keys else None
    return ir.Block(
        tuple(outputs), (change,), laterals=(copies(weight, context),) if by_copy else (), grouping=grouping
    )


def _factor(weight: exp.Expr, kind: str, *, by_copy: bool) -> exp.Expr:
    """Return the number of copies of a row, as an integer of a type."""
    if by_copy:
        came = exp.GT(this=weight.copy(), expression=exp.Literal.number(0))
        return exp.Case(ifs=[exp.If(this=came, true=ir.one())], default=exp.Neg(this=ir.one()))
    return exp.cast(weight.copy(), kind)


# --------------------------------------------------------------------------------------- combined
def _combined(columns: _Columns, *, appended_only: bool) -> ir.Block:
    """Return the new rows, from the stored ones and the partial aggregates."""
    kept = [index for index in range(len(columns.output)) if index not in columns.derived]
    both = ir.union([_reading(name, columns, kept) for name in ("__stored", "__delta")])
    inner = [_merged_column(columns, index, appended_only=appended_only) for index in kept]
    keys = tuple(ir.column("__both", columns.name(index)) for index in columns.keys)
    having = _end_of_group(columns) if keys and not appended_only else None
    grouped = ir.Block(
        tuple(inner), (ir.Relation("__both", both),), grouping=ir.Grouping(keys) if keys else None, having=having
    )
    outputs = []
    for index, (name, _) in enumerate(columns.output):
        value = _derived(columns, index) if index in columns.derived else ir.column("__merged", name)
        outputs.append(ir.Output(name, value))
    return ir.Block(tuple(outputs), (ir.Relation("__merged", grouped),))


def _end_of_group(columns: _Columns) -> exp.Expr | None:
    """Return the condition for a group that still has rows."""
    rows = columns.row_count()
    if rows is None:
        return None
    total = exp.Sum(this=ir.column("__both", columns.name(rows)))
    return exp.NEQ(this=total, expression=exp.Literal.number(0))


def _reading(name: str, columns: _Columns, kept: Sequence[int]) -> ir.Block:
    outputs = tuple(ir.Output(columns.name(index), ir.column("__rows", columns.name(index))) for index in kept)
    table = ir.Named(name)
    return ir.Block(outputs, (ir.Relation("__rows", table),))


def _merged_column(columns: _Columns, index: int, *, appended_only: bool) -> ir.Output:
    name, kind = columns.output[index]
    column = ir.column("__both", name)
    if index in columns.keys:
        return ir.Output(name, column)
    item = columns.parts[index]
    value = item.merge.combined(item.call, column)
    if item.merge.is_null_without_values and not appended_only:
        count = exp.Sum(this=ir.column("__both", columns.name(_there(columns.count_of(item.argument)))))
        some = exp.NEQ(this=count, expression=exp.Literal.number(0))
        value = exp.Case(ifs=[exp.If(this=some, true=value)])
    return ir.Output(name, exp.cast(value, exp.DataType.build(kind, dialect="spark")))


def _derived(columns: _Columns, index: int) -> exp.Expr:
    """Return a derived column, computed from the new values of other columns."""
    shown = {columns.values[other]: columns.name(other) for other in (*columns.keys, *columns.parts)}

    def find(node: exp.Expr) -> exp.Expr | None:
        if node in shown:
            return ir.column("__merged", shown[node])
        if isinstance(node, exp.Avg):
            return _average(columns, node, index)
        if functions.is_aggregate(node) or isinstance(node, exp.Column | exp.Anonymous | exp.Filter):
            message = f"{columns.name(index)} is computed from {written(node)}, which is not a column of the view"
            raise RefusedError(Code.NOT_ADDITIVE, message)
        return None

    return ir.substitute(columns.values[index], find)


def _average(columns: _Columns, node: exp.Avg, index: int) -> exp.Expr:
    if node is not columns.values[index] and node != columns.values[index]:
        raise RefusedError(Code.NOT_ADDITIVE, "avg() within an expression cannot be merged")
    name, kind = columns.output[_there(columns.sum_of(node.this))]
    count = ir.column("__merged", columns.name(_there(columns.count_of(node.this))))
    return average((ir.column("__merged", name), kind), count, columns.output[index][1])


def _check_exact(block: ir.Block, call: exp.Avg, kind: str) -> None:
    """Refuse an average of doubles whose sum may be rounded: Spark converts whole numbers before it adds them.

    Raises:
        RefusedError: The argument is not certain to be an integer of at most 32 bits.
    """
    argument = TypedBlock(block, {}).type_of(call.this)
    if kind.lower() == "double" and argument not in _EXACT_AS_DOUBLES:
        message = f"{written(call)} adds doubles, which round sums above 2^53: only those of int and smaller are merged"
        raise RefusedError(Code.NOT_ADDITIVE, message)


def _there(index: int | None) -> int:
    """Return the position of a column that :meth:`_Columns.check_counts` has found."""
    if index is None:
        raise RefusedError(Code.NO_VISIBLE_COUNT, "the view has no column with a count that a merge needs")
    return index


#: Additional digits that a quotient needs, so that rounding twice gives the same as rounding once.
_SPARE_DIGITS = 9
#: Characters of an expression in a message.
_SHOWN = 90
#: Some four million of the largest ones add up to 2^53.
_EXACT_AS_DOUBLES = ("tinyint", "smallint", "int")


@dataclass(frozen=True, slots=True)
class AggregatePart:
    """One aggregate among a view's columns, split into its parts."""

    call: exp.Expr
    #: The aggregated expression; ``None`` for whole rows.
    argument: exp.Expr | None
    #: The column's Spark type.
    kind: str
    merge: Merge

    @property
    def is_row_count(self) -> bool:
        """Whether it counts the rows of the group."""
        return isinstance(self.call, exp.Count) and self.argument is None


def part(value: exp.Expr, kind: str, *, appended_only: bool) -> AggregatePart:
    """Split an aggregate into its parts.

    Args:
        value: A column of the view that is one call, perhaps with FILTER.
        kind: The column's Spark type.
        appended_only: Whether rows were only added.

    Raises:
        RefusedError: The change and the stored value do not determine the new value.
    """
    call, condition = (value.this, value.expression.this) if isinstance(value, exp.Filter) else (value, None)
    merge, argument = known(call).merge, argument_of(call)
    if merge is None or isinstance(call.this, exp.Distinct) or call.expressions or call.args.get("having"):
        raise RefusedError(Code.NOT_ADDITIVE, f"{written(value)} needs all rows of its group")
    if not (appended_only or merge.removes):
        raise RefusedError(Code.NOT_ADDITIVE, f"{written(call)} cannot be updated after rows were deleted")
    if isinstance(call, exp.Count) and argument is None and condition is not None:
        return part(exp.CountIf(this=condition), kind, appended_only=appended_only)
    merge.check(kind)
    return AggregatePart(call, _filtered(argument, condition), kind, merge)


def average(total: tuple[exp.Expr, str], count: exp.Expr, kind: str) -> exp.Expr:
    """Return an average as Spark computes it from a sum and a count.

    Args:
        total: The sum, and its Spark type.
        count: How many values there are.
        kind: Spark type of the average.

    Raises:
        RefusedError: Spark might round the average differently.
    """
    value, total_kind = total
    decimal, shown = DECIMAL.fullmatch(total_kind.lower()), DECIMAL.fullmatch(kind.lower())
    if decimal and shown and int(shown[1]) <= DIGITS_OF_DOUBLES:
        # Spark computes the average of short decimals with doubles, which round a half differently.
        power = exp.Literal.number(10 ** int(decimal[2]))
        digits = _cast(exp.Mul(this=exp.Paren(this=value.copy()), expression=power), "DOUBLE")
        mean = exp.Div(this=digits, expression=_cast(count, "DOUBLE"), typed=False, safe=False)
        divided = exp.Div(this=mean, expression=_cast(power, "DOUBLE"), typed=False, safe=False)
    elif decimal and shown:
        precision, scale = int(decimal[1]), int(decimal[2])
        quotient_scale = max(MAX_PRECISION - (precision - scale), 6)
        if precision + 21 <= MAX_PRECISION:
            quotient_scale = scale + 21
        if quotient_scale - int(shown[2]) < _SPARE_DIGITS:
            message = f"an average of type {kind} might be rounded differently than by a full refresh"
            raise RefusedError(Code.NOT_ADDITIVE, message)
        divided = exp.Div(this=value.copy(), expression=_cast(count, "DECIMAL(20, 0)"), typed=False, safe=False)
    elif total_kind.lower() == "bigint" and kind.lower() == "double":
        divided = exp.Div(this=_cast(value, "DOUBLE"), expression=_cast(count, "DOUBLE"), typed=False, safe=False)
    else:
        raise RefusedError(Code.NOT_ADDITIVE, f"an average of type {kind} cannot be merged")
    some = exp.GT(this=count.copy(), expression=exp.Literal.number(0))
    return _cast(exp.Case(ifs=[exp.If(this=some, true=divided)]), kind)


def _filtered(argument: exp.Expr | None, condition: exp.Expr | None) -> exp.Expr | None:
    if condition is None or argument is None:
        return argument
    return exp.Case(ifs=[exp.If(this=condition.copy(), true=argument.copy())])


def _cast(value: exp.Expr, kind: str) -> exp.Expr:
    return exp.cast(value.copy(), exp.DataType.build(kind, dialect="spark"))


def written(value: exp.Expr) -> str:
    """Return an expression for messages: columns without their relations, and a long text shortened."""
    bare = value.transform(lambda node: exp.column(node.name) if isinstance(node, exp.Column) else node)
    text = bare.sql(dialect="spark")
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


# -------------------------------------------------------------------------- rows without aggregates


def merged_rows(tree: ir.Tree, output: Sequence[tuple[str, str]], *, broadcast: bool) -> Merged:
    """Return the merge of a query, with all columns as keys.

    Args:
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
        template=sql(_combined_rows(output, context)),
        not_null=tuple(isinstance(tree, ir.Block) and is_not_null(tree, index) for index in range(len(names))),
        reads=signed.reads,
        near=signed.near,
    )


def _combined_rows(output: Sequence[tuple[str, str]], context: Context) -> ir.Block:
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
