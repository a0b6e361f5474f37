# SPDX-License-Identifier: Apache-2.0
"""Find the nondeterministic columns of a query: those that may differ when it runs again on the same rows.

Stored rows are found by their keys, so a key must be deterministic. These values are not:

* a floating-point sum: the order of the rows decides its last digits;
* a value chosen among several, such as ``first`` or ``max_by`` with ties;
* a number that is given to tied rows, such as ``row_number()``.

A condition on a chosen value decides which rows exist, and is refused. A condition on a number, such as
``row_number() = 1``, is supported, but the other columns of the row are then chosen values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Flag, auto
from functools import cached_property, reduce
from operator import or_

from sqlglot import exp

from airflow_mv.core.ivm import functions, ir
from airflow_mv.core.ivm.column_types import DIGITS, TypedBlock, decimal_of
from airflow_mv.core.ivm.ir import RefusedError
from airflow_mv.core.ivm.subqueries import aggregated, has_windows
from airflow_mv.core.spec.reasons import Code


class Nondeterminism(Flag):
    """Why a column may have other values in another run."""

    NONE = 0
    #: An aggregate over values of an unknown type: it is exact unless its own type is floating-point.
    SUMMED = auto()
    #: Computed from such an aggregate, so that its own type does not show whether it is exact.
    INEXACT = auto()
    #: A number that is given to rows that may tie.
    NUMBER = auto()
    #: A column beside such a number: any of the tied rows may get the number.
    BESIDE = auto()
    #: A choice among several correct values.
    CHOSEN = auto()


_UNSURE = Nondeterminism.CHOSEN | Nondeterminism.NUMBER
_INEXACT = Nondeterminism.SUMMED | Nondeterminism.INEXACT

_Names = Mapping[tuple[str, str], Nondeterminism]


def nondeterminism(tree: ir.Tree) -> tuple[Nondeterminism, ...]:
    """Return the nondeterminism of each column of a query.

    Raises:
        RefusedError: A chosen value decides which rows exist.
    """
    return _analysed(tree, {})[0]


def is_nondeterministic(tree: ir.Tree) -> bool:
    """Whether another run of a query may return other values, or more or fewer rows.

    Raises:
        RefusedError: A chosen value decides which rows exist.
    """
    found, is_inexact_count = _analysed(tree, {})
    return any(found) or is_inexact_count


def _analysed(tree: ir.Tree, outer: _Names) -> tuple[tuple[Nondeterminism, ...], bool]:
    """Return the nondeterminism of each column, and whether an inexact value decides which or how many rows exist."""
    if isinstance(tree, ir.Block):
        block = _AnalysedBlock(tree, outer)
        found = block.of_columns()
        return found, block.is_inexact_count(found)
    (left, left_count), (right, right_count) = _analysed(tree.left, outer), _analysed(tree.right, outer)
    joined = tuple(one | other for one, other in zip(left, right, strict=True))
    if tree.operator != "UNION" and any(flags & Nondeterminism.CHOSEN for flags in joined):
        raise _refused(f"{tree.operator} of an arbitrarily chosen value")
    compares = tree.distinct or tree.operator != "UNION"
    return joined, left_count or right_count or (compares and (_is_open(left) or _is_open(right)))


def is_certain(flags: Nondeterminism, kind: str) -> bool:
    """Whether another run gives a column the same values.

    Args:
        kind: Its Spark type.
    """
    return not flags & (_UNSURE | Nondeterminism.INEXACT) and not (Nondeterminism.SUMMED in flags and is_floating(kind))


def without_inexact(block: ir.Block) -> ir.Block:
    """Return a block without its own conditions on inexact values, so that it has the rows of all possible runs.

    Conditions with a subquery stay, because they are needed to find the rows for which the subquery's result differs.

    Raises:
        RefusedError: Relations are joined by such a value.
    """
    looked = _AnalysedBlock(block, {})

    def exact(condition: exp.Expr | None) -> exp.Expr | None:
        return ir.both(*(item for item in ir.conjuncts(condition) if not looked.asks_inexactly(item)))

    for relation in block.relations:
        if relation.join not in ("INNER", "SEMI") and looked.is_inexact(relation.on):
            raise _refused(f"the {relation.join} join of {relation.alias} tests a floating-point sum")
    relations = tuple(replace(item, on=exact(item.on)) for item in block.relations)
    found = replace(block, relations=relations, where=exact(block.where), having=exact(block.having))
    return ir.with_used_nested(found)


def check_certain(tree: ir.Tree, kinds: Sequence[str]) -> None:
    """Refuse a query whose removed rows may not be found among the stored rows.

    Args:
        kinds: Spark types of its columns.

    Raises:
        RefusedError: Another run may give a column other values.
    """
    found, is_inexact_count = _analysed(tree, {})
    if is_inexact_count:
        raise _refused("a floating-point sum decides which rows exist")
    for name, flags, kind in zip(ir.names(tree), found, kinds, strict=True):
        if not is_certain(flags, kind):
            raise _refused(f"column {name} has an arbitrarily chosen value, or a floating-point sum")


def is_floating(kind: str) -> bool:
    """Whether the last digits of a sum of this type depend on the order of additions."""
    return "float" in kind.lower() or "double" in kind.lower()


class _AnalysedBlock:
    """One SELECT, and the nondeterminism of the columns that its expressions name."""

    def __init__(self, block: ir.Block, outer: _Names) -> None:
        self.block = block
        self.names: dict[tuple[str, str], Nondeterminism] = dict(outer)
        self.is_fed_inexactly = False
        for relation in block.relations:
            if isinstance(relation.source, ir.Block | ir.Compound):
                found, is_inexact_count = _analysed(relation.source, {})
                pairs = zip(ir.names(relation.source), found, strict=True)
                self.names |= {(relation.alias, name): flags for name, flags in pairs}
                self.is_fed_inexactly |= is_inexact_count
        self._condition_numbers()
        self._nested = {nested.mark: _of_nested(nested, self.names) for nested in block.nested}
        if block.laterals:  # they may contain subqueries, and be named by other expressions
            self._name_laterals()
            self._nested = {nested.mark: _of_nested(nested, self.names) for nested in block.nested}
        conditions = (relation.on for relation in block.relations)
        self.is_fed_inexactly |= self.is_inexact(block.where, *block.laterals, *conditions)

    @cached_property
    def _types(self) -> TypedBlock:
        return TypedBlock(self.block, {})

    def is_inexact(self, *parts: exp.Expr | None) -> bool:
        """Whether another run may give another value to one of the expressions over the block's relations."""
        return bool(self._together(part for part in parts if part is not None) & _INEXACT)

    def asks_inexactly(self, condition: exp.Expr) -> bool:
        """Whether a condition without a subquery tests an inexact value.

        Raises:
            RefusedError: The condition joins relations by it.
        """
        if ir.marks(condition, self.block) or not self.is_inexact(condition):
            return False
        if isinstance(condition.unnest(), exp.EQ | exp.NullSafeEQ) and len(ir.aliases(condition, self.block)) > 1:
            raise _refused(f"{condition.sql(dialect='spark')[:60]} joins by a floating-point sum")
        return True

    def is_inexact_count(self, found: tuple[Nondeterminism, ...]) -> bool:
        """Whether an inexact value decides which or how many rows exist.

        Args:
            found: The nondeterminism of the outputs.
        """
        decides = self.is_fed_inexactly or self.is_inexact(self.block.having, *self._group_keys())
        return decides or (self.block.distinct and _is_open(found))

    def of_columns(self) -> tuple[Nondeterminism, ...]:
        """Return the nondeterminism of the outputs, after a check of the conditions."""
        for condition in self._conditions():
            if self._of(condition) & Nondeterminism.CHOSEN:
                raise _refused(f"{condition.sql(dialect='spark')[:60]} tests an arbitrarily chosen value")
        found = [self._of(output.value) for output in self.block.outputs]
        if self.is_inexact(*self._group_keys()):
            found = [flags | Nondeterminism.INEXACT for flags in found]  # the groups themselves may differ
        if has_windows(self.block):
            found = self._beside(found)
        return tuple(found)

    def _conditions(self) -> Iterator[exp.Expr]:
        block = self.block
        yield from (item for item in (block.where, block.having) if item is not None)
        yield from (relation.on for relation in block.relations if relation.on is not None)
        yield from block.laterals
        yield from self._group_keys()
        for output in block.outputs:
            for window in functions.windows(output.value):
                yield from window.args.get("partition_by") or ()

    def _group_keys(self) -> tuple[exp.Expr, ...]:
        return self.block.grouping.keys if self.block.grouping is not None else ()

    def _name_laterals(self) -> None:
        """Give the columns of a LATERAL VIEW the nondeterminism of its arguments."""
        for lateral in self.block.laterals:
            flags = self._of(lateral.this)
            alias = lateral.args["alias"]
            self.names |= {(alias.name, column.name): flags for column in alias.args["columns"]}

    def _condition_numbers(self) -> None:
        """If a condition tests a number, treat the columns beside it as chosen values, and the other way round."""
        tested: dict[str, Nondeterminism] = {}
        for condition in self._conditions():
            for column in condition.find_all(exp.Column):
                flags = self.names.get((column.table, column.name), Nondeterminism.NONE)
                tested[column.table] = tested.get(column.table, Nondeterminism.NONE) | flags
        for alias in {alias for nested in self.block.nested for alias in nested.outer}:
            found = [flags for (owner, _), flags in self.names.items() if owner == alias]
            tested[alias] = reduce(or_, found, tested.get(alias, Nondeterminism.NONE))
        for (alias, name), flags in list(self.names.items()):
            seen = tested.get(alias, Nondeterminism.NONE)
            other = (Nondeterminism.BESIDE in flags and Nondeterminism.NUMBER in seen) or (
                Nondeterminism.NUMBER in flags and Nondeterminism.BESIDE in seen
            )
            if other:
                self.names[alias, name] = flags | Nondeterminism.CHOSEN

    def _of(self, value: exp.Expr) -> Nondeterminism:
        """Return the nondeterminism of an expression."""
        inner = value.unnest()
        if isinstance(inner, exp.Column):
            return self.names.get((inner.table, inner.name), Nondeterminism.NONE)
        if isinstance(inner, exp.Window):
            return self._window(inner)
        if functions.is_aggregate(inner):
            return self._aggregate(inner)
        if isinstance(inner, exp.Filter | exp.WithinGroup) and functions.is_aggregate(inner.this):
            return self._aggregate(inner.this, self._of(inner.expression))
        result = Nondeterminism.NONE
        for child in inner.iter_expressions():
            result |= self._of(child)
        if isinstance(inner, exp.Anonymous):
            result |= self._nested.get(inner.name, Nondeterminism.NONE)
        if Nondeterminism.SUMMED in result:
            result |= Nondeterminism.INEXACT
        return _mixed(result)

    def _aggregate(self, call: exp.Expr, beside: Nondeterminism = Nondeterminism.NONE) -> Nondeterminism:
        """Return the nondeterminism of an aggregate; ``beside`` is that of its FILTER, order or window."""
        below = beside | self._together(call.iter_expressions())
        if Nondeterminism.NUMBER in below:
            below |= Nondeterminism.CHOSEN
        if self.is_fed_inexactly or beside & _INEXACT or (below & _INEXACT and isinstance(call, exp.ApproxDistinct)):
            below |= Nondeterminism.INEXACT
        below &= ~(Nondeterminism.NUMBER | Nondeterminism.BESIDE)
        if functions.is_arbitrary(call):
            return below | Nondeterminism.CHOSEN
        if functions.is_exact(call) or is_exact_sum(call, self._types):
            return below
        return below | (Nondeterminism.INEXACT if functions.is_average(call) else Nondeterminism.SUMMED)

    def _window(self, window: exp.Window) -> Nondeterminism:
        call = functions.window_function(window)
        is_numbering = functions.is_numbering(call)
        is_place = is_numbering or functions.is_rank(call)
        result = self._of(window.this) if not is_numbering else Nondeterminism.NONE
        beside = self._together(child for child in window.iter_expressions() if child is not window.this)
        result |= beside & (Nondeterminism.CHOSEN | Nondeterminism.BESIDE)
        if Nondeterminism.NUMBER in beside:
            result |= Nondeterminism.NUMBER if is_place else Nondeterminism.CHOSEN
        if beside & _INEXACT or self.is_fed_inexactly or self.is_inexact(self.block.having):
            # In another run other rows may tie, or the window may have other rows.
            result |= Nondeterminism.INEXACT | (Nondeterminism.NUMBER if is_place else Nondeterminism.NONE)
        order, spec = window.args.get("order"), window.args.get("spec")
        by_rows = spec is not None and (spec.args.get("kind") or "").upper() == "ROWS"
        if order is None and by_rows:
            return result | Nondeterminism.CHOSEN
        if order is None or functions.is_rank(call):
            return result
        if self._is_total(window):
            # Tied rows are equal here, but a value that was chosen before the ordering may still differ.
            below = beside | self._together(call.iter_expressions())
            return result if below & Nondeterminism.CHOSEN and not is_numbering else result & ~Nondeterminism.CHOSEN
        if is_numbering:
            return result | Nondeterminism.NUMBER
        return result | Nondeterminism.CHOSEN if by_rows else result

    def _together(self, parts: Iterable[exp.Expr]) -> Nondeterminism:
        return reduce(or_, (self._of(part) for part in parts), Nondeterminism.NONE)

    def _is_total(self, window: exp.Window) -> bool:
        """Whether tied rows are equal in all columns that the block returns."""
        order = [item.this for item in window.args["order"].expressions]
        listed = [*order, *(window.args.get("partition_by") or ())]
        grouping = self.block.grouping
        if grouping is not None and grouping.sets is None and all(key in listed for key in grouping.keys):
            return True  # each row is a separate group
        if self.block.laterals or aggregated(self.block):
            return False
        shown = [column for output in self.block.outputs for column in output.value.find_all(exp.Column)]
        subqueries = [item for output in self.block.outputs for item in ir.marks(output.value, self.block)]
        return not subqueries and all(column in listed for column in shown)

    def _beside(self, found: list[Nondeterminism]) -> list[Nondeterminism]:
        """Mark the columns beside a number, except the keys that all rows of a partition share."""
        if not any(Nondeterminism.NUMBER in flags for flags in found):
            return found
        windows = [window for output in self.block.outputs for window in functions.windows(output.value)]
        lists = [window.args.get("partition_by") or [] for window in windows]
        result = []
        for output, flags in zip(self.block.outputs, found, strict=True):
            is_key = all(output.value in keys for keys in lists)
            result.append(flags if is_key or Nondeterminism.NUMBER in flags else flags | Nondeterminism.BESIDE)
        return result


def _is_open(found: Iterable[Nondeterminism]) -> bool:
    """Whether another run may give other rows of these columns."""
    return bool(_mixed(reduce(or_, found)) & (Nondeterminism.CHOSEN | _INEXACT))


def _of_nested(nested: ir.Nested, outer: _Names) -> Nondeterminism:
    """Return the nondeterminism of a subquery's value, or of an IN or EXISTS over its rows."""
    found, is_inexact_count = _analysed(nested.tree, outer)
    count = Nondeterminism.INEXACT if is_inexact_count else Nondeterminism.NONE
    if nested.kind == "SCALAR":
        return found[0] | count
    together = _mixed(reduce(or_, found, count))
    return (together & Nondeterminism.CHOSEN) | (Nondeterminism.INEXACT if together & _INEXACT else Nondeterminism.NONE)


def _mixed(flags: Nondeterminism) -> Nondeterminism:
    both = Nondeterminism.NUMBER in flags and Nondeterminism.BESIDE in flags
    return flags | Nondeterminism.CHOSEN if both else flags


def _refused(what: str) -> RefusedError:
    return RefusedError(Code.NOT_DETERMINISTIC, f"{what}: a second run may return other rows")


#: Spark computes averages of decimals with up to so many digits with doubles, whose sums are exact up to 2^53 only.
DIGITS_OF_DOUBLES = 15
#: Additional digits in the type of an average, compared with its argument.
_ADDED_BY_AVERAGE = 4


def is_exact_sum(call: exp.Expr, types: TypedBlock) -> bool:
    """Whether an aggregate is a sum or an average that the order of the rows cannot change.

    An average of whole numbers is one of doubles in Spark.

    Args:
        types: The types of the columns that it names.
    """
    if not isinstance(call, exp.Sum | exp.Avg):
        return False
    kind = types.type_of(call.this)
    decimal = decimal_of(kind)
    if decimal is None or isinstance(call, exp.Sum):
        return isinstance(call, exp.Sum) and (decimal is not None or kind in DIGITS)
    return decimal[0] + _ADDED_BY_AVERAGE > DIGITS_OF_DOUBLES
