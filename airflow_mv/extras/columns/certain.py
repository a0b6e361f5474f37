# SPDX-License-Identifier: Apache-2.0
"""Determine the columns that Spark will give a query, without Spark, if everything in the query is certain.

:mod:`airflow_mv.core.ivm.column_types` knows the types of a query that is known to be valid. Here it is also known that
Spark will accept the query: each expression has operands that Spark takes, and aggregates, windows and subqueries are
where they may be. Whatever is not listed here is not certain, and is refused: then Spark has to be asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from airflow_mv.common.queries import use_of
from airflow_mv.core.ivm import BaseRelation, functions, ir
from airflow_mv.core.ivm.column_types import DIGITS, PLAIN, VOID, Names, TypedBlock, decimal_of, is_number
from airflow_mv.core.ivm.functions import Operands, classes
from airflow_mv.core.ivm.ir import RefusedError
from airflow_mv.core.ivm.resolve import Resolver
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.reasons import Code, Reason
from airflow_mv.core.spec.times import parse_date
from airflow_mv.core.sql.query import NestedView, ParsedQuery, fold

#: Functions that only windows have.
_RANKS = (exp.RowNumber, *functions.RANKS)
_SHOWN = 80
_DATES = frozenset({"date", "timestamp", "timestamp_ntz"})
_TIMES = frozenset({"timestamp", "timestamp_ntz"})
_TEXT, _TRUTH, _WHOLE = frozenset({"string"}), frozenset({"boolean"}), frozenset(DIGITS)
#: Numbers that Spark reads together with their sign.
_SIGNED = frozenset({str(2**31), str(2**63)})
#: The types to which a value can be cast. A timestamp's type depends on a setting of the session.
_CASTS: Mapping[str, frozenset[str]] = {
    "string": PLAIN - _TIMES - {"binary"},
    "date": frozenset({"date", "string"}),
    "timestamp": frozenset({"string", "date"}),
    "timestamp_ntz": frozenset({"string", "date"}),
    "boolean": frozenset({"boolean", "string"}),
    VOID: PLAIN - _TIMES,
}


@dataclass(frozen=True, slots=True)
class CertainColumn:
    """A column of a query.

    Args:
        type: Its Spark type.
        origin: The alias and the column of the base table whose value it shows, and whose comment Spark gives it.
    """

    name: str
    type: str
    origin: tuple[str, str] | None


def certain_output(
    query: ParsedQuery,
    relations: Sequence[BaseRelation],
    views: Mapping[Identifier, NestedView],
    names: Sequence[str] | None = None,
) -> tuple[tuple[CertainColumn, Identifier | None], ...] | Reason:
    """Return the columns of a query, each with the base table that its ``origin`` is in, if Spark surely agrees.

    Args:
        relations: Its base tables, those of nested views too.
        names: The names of its columns; by default the query's own.

    Returns:
        The columns; or what is not certain without Spark.

    Raises:
        InvalidQueryError: Spark would not find a column, or a field of a struct.
    """

    def build(
        resolver: Resolver, tree: ir.Tree, written: Sequence[str | None]
    ) -> tuple[tuple[CertainColumn, Identifier | None], ...]:
        for each in (query, *(view.query for view in views.values())):
            check_left_out(each.tree)
        if names is not None and len(names) != len(written):
            raise RefusedError(
                Code.UNREADABLE, f"the query has {len(written)} columns, and there are {len(names)} names"
            )
        found = certain_columns(tree, tuple(written if names is None else names))
        return tuple((item, resolver.tables[item.origin[0]] if item.origin else None) for item in found)

    return use_of(query, relations, views, build, strict=True)


def certain_columns(tree: ir.Tree, names: tuple[str | None, ...]) -> tuple[CertainColumn, ...]:
    """Return the columns of a query.

    Args:
        tree: The query in normal form.
        names: The names of its columns; ``None`` for one that Spark chooses.

    Raises:
        RefusedError: Something is not certain. The message says what.
    """
    known = [name for name in names if name is not None]
    if len(known) < len(names):
        raise _uncertain("the name of a column that has no AS")
    if len({fold(name) for name in known}) < len(known):
        raise _uncertain("the query, which has two columns of one name,")
    types = CertainBlock.of_tree(tree, {})
    return tuple(
        CertainColumn(name, _shown(name, kind), _origin(tree, place))
        for place, (name, kind) in enumerate(zip(known, types, strict=True))
    )


def check_left_out(tree: exp.Expr) -> None:
    """Refuse what the normal form leaves out, if it is not certain that Spark accepts it.

    Args:
        tree: The query in sqlglot's tree.

    Raises:
        RefusedError: There is a WITH that is not used, or an ORDER BY by other things than columns of its SELECT.
    """
    ctes = list(tree.find_all(exp.CTE))
    if len({fold(cte.alias) for cte in ctes}) < len(ctes):
        raise _uncertain("two WITH of one name")
    for cte in ctes:
        tables = (table for table in tree.find_all(exp.Table) if fold(table.name) == fold(cte.alias))
        if all(table.find_ancestor(exp.CTE) is cte for table in tables):
            raise _uncertain(f"WITH {cte.alias}, which is not used,")
    for order in tree.find_all(exp.Order, exp.Sort, exp.Cluster, exp.Distribute):
        select = order.parent
        if isinstance(select, exp.Window):
            continue
        names = {fold(item.alias_or_name) for item in select.expressions} if isinstance(select, exp.Select) else set()
        keys = [item.this if isinstance(item, exp.Ordered) else item for item in order.expressions]
        if not all(isinstance(key, exp.Column) and not key.table and fold(key.name) in names for key in keys):
            raise _uncertain(_shown_text(order))


def _shown(name: str, kind: str | None) -> str:
    if kind is None or kind == VOID or not _is_plain(kind):
        raise _uncertain(f"the type of column {name}")
    return kind


def _is_plain(kind: str | None) -> bool:
    return kind in PLAIN or decimal_of(kind) is not None


def _origin(tree: ir.Tree, place: int) -> tuple[str, str] | None:
    """Return the column of a base table that a column of a query shows."""
    if isinstance(tree, ir.Compound):
        left, both = (CertainBlock.of_tree(each, {})[place] for each in (tree.left, tree))
        return _origin(tree.left, place) if left == both else None  # otherwise Spark casts it
    value = tree.outputs[place].value.unnest()
    if not isinstance(value, exp.Column):
        return None
    relation = next((item for item in tree.relations if item.alias == value.table), None)
    if relation is None:
        return None
    if isinstance(relation.source, ir.Base):
        return relation.alias, value.name
    if isinstance(relation.source, ir.Block | ir.Compound):
        return _origin(relation.source, ir.names(relation.source).index(value.name))
    return None


class CertainBlock(TypedBlock):
    """One SELECT with only certain parts."""

    def __init__(self, block: ir.Block, outer: Names) -> None:
        super().__init__(block, outer)
        self._known: dict[int, str] = {}

    @classmethod
    def of_tree(cls, tree: ir.Tree, outer: Names) -> tuple[str | None, ...]:
        """Return the type of each column of a query.

        Raises:
            RefusedError: Something is not certain.
        """
        types = super().of_tree(tree, outer)
        if None in types:
            raise _uncertain(f"the type of column {types.index(None) + 1} of a set operator")
        return types

    def outputs(self) -> tuple[str | None, ...]:
        """Return the type of each column of the SELECT.

        Raises:
            RefusedError: Something is not certain.
        """
        block = self.block
        if block.laterals:
            raise _uncertain("LATERAL VIEW")
        for condition in (*(item.on for item in block.relations), block.where, block.having):
            if condition is not None and self.type_of(condition) != "boolean":
                raise _uncertain(_shown_text(condition))
        _check_calls(block)
        _check_subqueries(block)
        keys = block.grouping.keys if block.grouping is not None else ()
        for key in keys:
            if not _is_plain(self.type_of(key)):
                raise _uncertain(f"GROUP BY {_shown_text(key)}")
        types = super().outputs()
        if block.distinct and not all(kind == VOID or _is_plain(kind) for kind in types):
            raise _uncertain("DISTINCT")
        return types

    def type_of(self, value: exp.Expr) -> str | None:
        """Return the type of an expression.

        Raises:
            RefusedError: It is not certain, or it is not certain that Spark accepts the operands.
        """
        if isinstance(value, exp.Null):
            return VOID
        if id(value) not in self._known:
            allowed = _OPERANDS.get(type(value))
            kind = super().type_of(value) if allowed is not None and allowed(self, value) else None
            if kind is None:
                raise _uncertain(_shown_text(value))
            self._known[id(value)] = kind
        return self._known[id(value)]

    def all_of(self, value: exp.Expr, wanted: frozenset[str]) -> bool:
        """Whether all operands have certain types."""
        return all(self.type_of(item) in wanted for item in _operands(value))

    def numbers(self, value: exp.Expr) -> bool:
        """Whether all operands are numbers."""
        return all(is_number(self.type_of(item)) for item in _operands(value))

    def comparable(self, value: exp.Expr) -> bool:
        """Whether the operands can be compared with each other."""
        kinds = [self.type_of(item) for item in _operands(value)]
        return all(_can_compare(kinds[0], kind) for kind in kinds[1:])

    def arithmetic_fits(self, value: exp.Expr) -> bool:
        """Whether arithmetic is that of numbers, or of a date and an interval."""
        if isinstance(value.args.get("expression"), exp.Interval):
            amount = value.expression.this
            return isinstance(value, exp.Add | exp.Sub) and isinstance(amount, exp.Literal) and amount.name.isdigit()
        return self.numbers(value) or self.type_of(value.this) == "date"

    def cast_fits(self, value: exp.Expr) -> bool:
        """Whether a value can be cast."""
        to, kind = self.cast(value), self.type_of(value.this)
        if value.args.get("format") or to is None:
            return False
        if to == "date" and isinstance(value.this, exp.Literal):
            return value.this.is_string and _is_date(value.this.name)
        if is_number(kind):
            return is_number(to) or to == "string"
        target = "int" if decimal_of(to) else to
        return target in _CASTS.get(kind or "", frozenset())

    def branches_fit(self, value: exp.Expr) -> bool:
        """Whether the conditions of CASE or IF are conditions, or values that can be compared with the first one."""
        conditions = [branch.this for branch in value.args.get("ifs") or [value]]
        subject = value.this if isinstance(value, exp.Case) else None
        if subject is None:
            return all(self.type_of(item) == "boolean" for item in conditions)
        return all(_can_compare(self.type_of(subject), self.type_of(item)) for item in conditions)

    def counted(self, value: exp.Expr) -> bool:
        """Whether a count's arguments are known."""
        items = [item for item in _operands(value) if not isinstance(item, exp.Star)]
        return all(self.type_of(item) for item in items)

    def subquery_fits(self, value: exp.Expr) -> bool:
        """Whether a call is a subquery, or one of the known functions with its arguments."""
        nested = self.nested.get(value.name)
        if nested is None:
            rule = _CALLS.get(value.name.lower())
            return rule is not None and rule(self, value)
        inner = self.of_tree(nested.tree, self.names)
        if nested.kind == "IN":
            kinds = [self.type_of(item) for item in value.expressions]
            return len(kinds) == len(inner) and all(map(_can_compare, kinds, inner))
        return nested.kind == "EXISTS" or len(inner) == 1

    def window_fits(self, value: exp.Expr) -> bool:
        """Whether a window function has the parts that it needs, and a frame that Spark takes."""
        call, spec, order = value.this, value.args.get("spec"), value.args.get("order")
        ranks = isinstance(call, _RANKS)
        if not ranks and (not isinstance(call, _WINDOWED) or isinstance(call.this, exp.Distinct)):
            return False
        parts = [*(value.args.get("partition_by") or ()), *(item.this for item in (order.expressions if order else ()))]
        if (ranks and (order is None or spec is not None)) or value.args.get("alias") or value.args.get("first"):
            return False
        return (spec is None or _is_frame(spec)) and all(_is_plain(self.type_of(item)) for item in parts)


def _operands(value: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the expressions on which a call works, not its options."""
    for name in ("this", "low", "high", "expression", "expressions", "start", "length"):
        given = value.args.get(name)
        for item in given if isinstance(given, list) else [given]:
            if isinstance(item, exp.Distinct):
                yield from item.expressions
            elif isinstance(item, exp.Expr):
                yield item


def _can_compare(one: str | None, other: str | None) -> bool:
    if VOID in (one, other) or one == other:
        return (_is_plain(one) or one == VOID) and (_is_plain(other) or other == VOID)
    if is_number(one) and is_number(other):
        return True
    pair = {one, other}
    return pair <= _DATES or pair <= {"string", "date"} or (pair <= {"string", *_TIMES})


def _is_date(text: str) -> bool:
    try:
        parse_date(text)
    except ValueError:
        return False
    return len(text) == len("2020-01-01")


def _is_frame(spec: exp.Expr) -> bool:
    """Whether a frame is ROWS between the ends of the partition, the current row, or a number of rows."""
    edges = [spec.args.get(name) for name in ("start", "end")]
    simple = all(edge in ("UNBOUNDED", "CURRENT ROW", None) for edge in edges)
    return spec.text("kind").upper() == "ROWS" and simple and not spec.args.get("exclude")


# -------------------------------------------------------------------------------------- operands
_Check = Callable[[CertainBlock, exp.Expr], bool]
_WINDOWED = (exp.Sum, exp.Avg, exp.Count, exp.Min, exp.Max)


def _any(block: CertainBlock, value: exp.Expr) -> bool:
    return all(block.type_of(item) for item in _operands(value))


def _plain(block: CertainBlock, value: exp.Expr) -> bool:
    return all(_is_plain(block.type_of(item)) for item in _operands(value))


def _only(wanted: frozenset[str]) -> _Check:
    return lambda block, value: block.all_of(value, wanted)


def _bare(rule: _Check) -> _Check:
    """Return a rule for calls that have no option besides their operand."""
    return lambda block, value: {key for key, given in value.args.items() if given} <= {"this"} and rule(block, value)


def _leaf(block: CertainBlock, value: exp.Expr) -> bool:  # noqa: ARG001 (a rule's)
    return True


def _is_fits(block: CertainBlock, value: exp.Expr) -> bool:
    if isinstance(value.expression, exp.Boolean):
        return block.type_of(value.this) == "boolean"
    return isinstance(value.expression, exp.Null) and block.type_of(value.this) is not None


def _in_fits(block: CertainBlock, value: exp.Expr) -> bool:
    return {key for key, given in value.args.items() if given} == {"this", "expressions"} and block.comparable(value)


def _between_fits(block: CertainBlock, value: exp.Expr) -> bool:
    return not value.args.get("symmetric") and block.comparable(value)


def _negative_fits(block: CertainBlock, value: exp.Expr) -> bool:
    return block.numbers(value) and value.this.name not in _SIGNED


def _filtered_fits(block: CertainBlock, value: exp.Expr) -> bool:
    aggregate = functions.is_aggregate(value.this)
    return aggregate and block.type_of(value.expression.this) == "boolean"


def _substring_fits(block: CertainBlock, value: exp.Expr) -> bool:
    text, *numbers = _operands(value)
    return block.type_of(text) == "string" and all(block.type_of(item) in ("int", "smallint") for item in numbers)


def _extract_fits(block: CertainBlock, value: exp.Expr) -> bool:
    kind = block.type_of(value.expression)
    return kind in _TIMES or (kind == "date" and value.name.upper() in _OF_DATES)


def _days_fit(block: CertainBlock, value: exp.Expr) -> bool:
    if value.text("unit").upper() not in ("", "DAY") or block.type_of(value.this) not in _DATES:
        return False
    return block.type_of(value.expression) in ("int", "smallint")


def _difference_fits(block: CertainBlock, value: exp.Expr) -> bool:
    return not value.args.get("unit") and block.all_of(value, _DATES)


def _several(block: CertainBlock, value: exp.Expr) -> bool:
    return _any(block, value) and len(list(_operands(value))) > 1


def _withshown_text(wanted: frozenset[str], text: int) -> _Check:
    """Return a rule for a call whose argument at a position is a text, and the others of certain types."""

    def fits(block: CertainBlock, value: exp.Expr) -> bool:
        given = value.expressions
        if len(given) != 2 or not given[text].is_string:
            return False
        return block.type_of(given[1 - text]) in wanted

    return fits


def _access_fits(block: CertainBlock, value: exp.Expr) -> bool:
    """Whether fields are of structs, indexes of lists are numbers, and keys of maps are texts that need no cast."""
    while isinstance(value, exp.Dot | exp.Bracket):
        if isinstance(value, exp.Bracket):
            index = value.expressions[0] if len(value.expressions) == 1 else None
            if not isinstance(index, exp.Literal) or not _index_fits(index, block.column_kind(value.this)):
                return False
        value = value.this.unnest()
    return isinstance(value, exp.Column)


def _index_fits(index: exp.Literal, of: str | None) -> bool:
    kind = (of or "").lower()
    if index.is_string:
        return kind.startswith("map<string,")
    return kind.startswith("array<") and index.name.isdigit()


def _zone_fits(block: CertainBlock, value: exp.Expr) -> bool:
    zone, moment = value.args.get("zone"), value.this
    moment = moment.this if isinstance(moment, exp.Cast) else moment  # sqlglot adds it
    return isinstance(zone, exp.Literal) and zone.is_string and block.type_of(moment) == "timestamp"


def _one(wanted: frozenset[str]) -> _Check:
    return lambda block, value: len(value.expressions) == 1 and block.all_of(value, wanted)


_OF_DATES = frozenset({"YEAR", "QUARTER", "MONTH", "WEEK", "DAY"})
_PARTS = (exp.Year, exp.Quarter, exp.Month, exp.Day, exp.DayOfMonth, exp.DayOfWeek, exp.DayOfYear, exp.WeekOfYear)
_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ)
_NUMERIC = (exp.Sqrt, exp.Pow, exp.Exp, exp.Ln)
_AGGREGATED: Mapping[Operands, _Check] = {
    Operands.VALUES: CertainBlock.counted,
    Operands.PLAIN_VALUES: _bare(_plain),
    Operands.NUMBERS: _bare(CertainBlock.numbers),
    Operands.CONDITION: _bare(_only(_TRUTH)),
    Operands.GROUPING_KEYS: _any,
}
_OPERANDS: Mapping[type[exp.Expr], _Check] = {
    **dict.fromkeys((exp.Column, exp.Literal, exp.Boolean), _leaf),
    **dict.fromkeys(_RANKS, _leaf),
    exp.Paren: _any,
    **dict.fromkeys((exp.Dot, exp.Bracket), _access_fits),
    **dict.fromkeys((exp.AtTimeZone, exp.FromTimeZone), _zone_fits),
    exp.Neg: _negative_fits,
    **dict.fromkeys((exp.Not, exp.And, exp.Or), _only(_TRUTH)),
    **dict.fromkeys((*_COMPARISONS, exp.Nullif), CertainBlock.comparable),
    exp.Is: _is_fits,
    exp.In: _in_fits,
    exp.Between: _between_fits,
    **dict.fromkeys((exp.Like, exp.ILike, exp.RegexpLike, exp.DPipe), _only(_TEXT)),
    **dict.fromkeys((exp.Case, exp.If), CertainBlock.branches_fit),
    exp.Coalesce: _any,
    **dict.fromkeys((exp.Greatest, exp.Least), _several),
    **dict.fromkeys((exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod), CertainBlock.arithmetic_fits),
    exp.IntDiv: _only(_WHOLE),
    exp.Abs: _bare(CertainBlock.numbers),
    **dict.fromkeys(_NUMERIC, CertainBlock.numbers),
    **{call: rule for operands, rule in _AGGREGATED.items() for call in classes(operands=operands)},
    exp.Filter: _filtered_fits,
    exp.Window: CertainBlock.window_fits,
    exp.Anonymous: CertainBlock.subquery_fits,
    **dict.fromkeys((exp.Cast, exp.TryCast), CertainBlock.cast_fits),
    **dict.fromkeys((exp.TsOrDsToDate, exp.LastDay), _bare(_only(_DATES))),
    **dict.fromkeys(_PARTS, _bare(_only(frozenset({"date"})))),
    **dict.fromkeys((exp.Hour, exp.Minute, exp.Second), _bare(_only(_TIMES))),
    **dict.fromkeys((exp.TsOrDsAdd, exp.AddMonths), _days_fit),
    exp.DateDiff: _difference_fits,
    exp.Extract: _extract_fits,
    **dict.fromkeys((exp.Upper, exp.Lower, exp.Trim, exp.Length), _bare(_only(_TEXT))),
    exp.Concat: _only(_TEXT),
    exp.Substring: _substring_fits,
    exp.Round: CertainBlock.numbers,
    **dict.fromkeys((exp.Ceil, exp.Floor), _bare(CertainBlock.numbers)),
}
_CALLS: Mapping[str, _Check] = {
    "mean": lambda block, value: len(value.expressions) == 1 and block.numbers(value),
    "to_date": _one(_DATES),
    "date_trunc": _withshown_text(_DATES, 0),
    "trunc": _withshown_text(_DATES, 1),
    "date_format": _withshown_text(_DATES, 1),
}


# -------------------------------------------------- where aggregates, windows and subqueries may be


def _uncertain(what: str) -> RefusedError:
    """Return the error for something that is not certain."""
    return RefusedError(Code.UNSUPPORTED_OPERATOR, f"{what} cannot be resolved without Spark")


def _shown_text(value: exp.Expr) -> str:
    """Return an expression's text, shortened.

    Args:
        value: The expression.
    """
    text = " ".join(value.sql(dialect="spark").split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _check_calls(block: ir.Block) -> None:
    """Refuse aggregates and windows where Spark does not take them, and columns that are not grouped by.

    Raises:
        RefusedError: There is one, or it is not certain.
    """
    keys = block.grouping.keys if block.grouping is not None else ()
    for value in (block.where, *(item.on for item in block.relations), *keys):
        if value is not None:
            _check_nested(value, aggregates=False, windows=False)
    shown = [item.value for item in block.outputs]
    for value in shown:
        _check_nested(value, aggregates=True, windows=True)
    if block.having is not None:
        _check_nested(block.having, aggregates=True, windows=False)
        shown.append(block.having)
    if block.grouping is not None or any(True for item in shown for _ in functions.aggregates(item)):
        for value in shown:
            _check_grouped(value, keys)
    elif block.having is not None:
        raise _uncertain("HAVING without groups")
    _check_grouping_calls(shown, block.grouping)


def _check_grouping_calls(values: list[exp.Expr], grouping: ir.Grouping | None) -> None:
    keys = grouping.keys if grouping is not None and grouping.sets is not None else ()
    for call in (found for value in values for found in value.find_all(exp.Grouping)):
        if any(item not in keys for item in call.expressions):
            raise _uncertain(_shown_text(call))


def _check_nested(value: exp.Expr, *, aggregates: bool, windows: bool) -> None:
    if isinstance(value, exp.Window):
        if not windows:
            raise _uncertain(_shown_text(value))
        for part in functions.window_parts(value):
            _check_nested(part, aggregates=aggregates, windows=False)
        return
    if functions.is_aggregate(value):
        if not aggregates or isinstance(value, _RANKS):
            raise _uncertain(_shown_text(value))
        aggregates = windows = False
    for part in value.iter_expressions():
        _check_nested(part, aggregates=aggregates, windows=windows)


def _check_grouped(value: exp.Expr, keys: tuple[exp.Expr, ...]) -> None:
    """Refuse a column that is neither a key nor below an aggregate."""
    if value in keys or value.unnest() in keys or isinstance(value, exp.Grouping):
        return
    if isinstance(value, exp.Window):
        parts = functions.window_parts(value)
    elif functions.is_aggregate(value):
        return
    elif isinstance(value, exp.Column):
        raise _uncertain(f"{_shown_text(value)} beside aggregates")
    else:
        parts = list(value.iter_expressions())
    for part in parts:
        _check_grouped(part, keys)


def _check_subqueries(block: ir.Block) -> None:
    """Refuse subqueries where Spark may not take them.

    Raises:
        RefusedError: There is one.
    """
    conditions = {nested.mark for value in (block.where, block.having) for nested in ir.marks(value, block)}
    for nested in block.nested:
        if nested.kind != "SCALAR" and nested.mark not in conditions:
            raise _uncertain(f"{nested.kind} in this place")
        if nested.outer:
            _check_correlated(nested, in_where=nested.mark in {item.mark for item in ir.marks(block.where, block)})


def _check_correlated(nested: ir.Nested, *, in_where: bool) -> None:
    """Refuse a subquery that names outer columns in another place than its own WHERE, or with other comparisons."""
    inner = nested.tree
    fits = in_where and isinstance(inner, ir.Block) and inner.grouping is None and inner.having is None
    if not fits or not isinstance(inner, ir.Block) or any(item.outer & nested.outer for item in inner.nested):
        raise _uncertain("a subquery that names outer columns here")
    values = [item.value for item in inner.outputs]
    aggregated = [any(True for _ in functions.aggregates(value)) for value in values]
    elsewhere = [*values, *(item.on for item in inner.relations)]
    if any(ir.aliases(value, inner) & nested.outer for value in elsewhere if value is not None):
        raise _uncertain("a subquery that names outer columns outside of its WHERE")
    if nested.kind != "SCALAR":
        if any(aggregated) or inner.distinct or any(value.find(exp.Window) for value in values):
            raise _uncertain("a subquery that names outer columns and aggregates")
        return
    equalities = all(_is_equality(part, nested.outer) for part in ir.conjuncts(inner.where))
    if not all(aggregated) or not equalities:
        raise _uncertain("a scalar subquery that names outer columns")


def _is_equality(condition: exp.Expr, outer: frozenset[str]) -> bool:
    """Whether a condition names no outer column, or equates outer with inner ones."""
    named = {column.table for column in condition.find_all(exp.Column)}
    if not named & outer:
        return True
    if not isinstance(condition, exp.EQ):
        return False
    sides = [{column.table for column in side.find_all(exp.Column)} for side in (condition.left, condition.right)]
    return any(one <= outer and not other & outer for one, other in (sides, sides[::-1]))
