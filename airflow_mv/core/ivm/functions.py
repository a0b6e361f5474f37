# SPDX-License-Identifier: Apache-2.0
"""The properties of functions: which are volatile or unknown, and one entry for each kind of aggregate.

sqlglot classifies most of Spark's built-in functions; this module lists the others. A function that neither of them
knows may be a user-defined aggregate, and is refused. An aggregate that only sqlglot knows is recomputed for whole
groups, and its value counts as certain up to rounding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum, auto

from sqlglot import exp

from airflow_mv.core.ivm.ir import RefusedError
from airflow_mv.core.spec.reasons import Code
from airflow_mv.core.sql.dialect import KEPT

# -------------------------------------------------------------------------------------- aggregates
#: The digits of Spark's largest decimals.
MAX_PRECISION = 38
#: A decimal type: its digits, and how many of them are after the point.
DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")
#: Can hold each BIGINT. Its product with an INT has 31 digits, so that a sum of ten million of them still fits.
_WIDER = "DECIMAL(20, 0)"


class Order(Enum):
    """The effect of the order of the rows on a value."""

    #: Nothing, for any type.
    NOTHING = auto()
    #: The last digits of a floating-point value.
    ROUNDING = auto()
    #: Which of several correct values is returned. The state of a sketch or of a random choice counts as an order.
    CHOICE = auto()


class Operands(Enum):
    """The operands for which Spark certainly accepts a call without options."""

    VALUES = auto()
    PLAIN_VALUES = auto()
    NUMBERS = auto()
    CONDITION = auto()
    GROUPING_KEYS = auto()


class Merge:
    """How ``merge`` computes a new value from the stored value and the change, here for added rows only.

    The function of a group's rows is the function of its values for two parts of them, as for ``max``. Subclasses also
    know removed rows.
    """

    #: Whether rows may be removed.
    removes = False
    #: Whether the value is NULL for a group without values, which the merged value does not show.
    is_null_without_values = False
    #: The Spark type of the number of copies of a row.
    weight = "BIGINT"

    def check(self, kind: str) -> None:
        """Refuse a column's Spark type whose values are not merged.

        Raises:
            RefusedError: They are not.
        """

    def needs_copies(self, kind: str) -> bool:  # noqa: ARG002 (subclasses use it)
        """Return whether each copy of a row must be a row, because a product with their number might overflow."""
        return False

    def partial(self, call: exp.Expr, argument: exp.Expr, weight: exp.Expr, kind: str) -> exp.Expr:  # noqa: ARG002
        """Return the aggregate over the change.

        Args:
            argument: The column that holds the values; of whole rows a constant.
            weight: The signed number of copies.
            kind: The column's Spark type.
        """
        return type(call)(this=argument.copy())

    def combined(self, call: exp.Expr, column: exp.Expr) -> exp.Expr:
        """Return the aggregate over the stored and the partial values."""
        return type(call)(this=column.copy())


class _Sum(Merge):
    removes, is_null_without_values, weight = True, True, "INT"

    def check(self, kind: str) -> None:
        if kind.lower() != "bigint" and not DECIMAL.fullmatch(kind.lower()):
            message = f"a sum of type {kind} cannot be merged: its last digits depend on the order of the rows"
            raise RefusedError(Code.NOT_ADDITIVE, message)

    def needs_copies(self, kind: str) -> bool:
        # A sum of DECIMAL(p, s) is DECIMAL(p + 10, s), and a product with an INT has p + 11 digits: below 38 it fits.
        decimal = DECIMAL.fullmatch(kind.lower())
        return decimal is not None and int(decimal[1]) >= MAX_PRECISION

    def partial(self, call: exp.Expr, argument: exp.Expr, weight: exp.Expr, kind: str) -> exp.Expr:  # noqa: ARG002
        if kind.lower() == "bigint":  # added and removed values may be larger than their difference
            argument = exp.cast(argument.copy(), exp.DataType.build(_WIDER, dialect="spark"))
        if self.needs_copies(kind):
            came = exp.GT(this=weight.copy(), expression=_zero())
            return exp.Sum(this=_case(came, argument, exp.Neg(this=argument.copy())))
        return exp.Sum(this=exp.Mul(this=argument.copy(), expression=weight.copy()))


class _Count(Merge):
    removes = True

    def partial(self, call: exp.Expr, argument: exp.Expr, weight: exp.Expr, kind: str) -> exp.Expr:  # noqa: ARG002
        if argument_of(call) is None:
            return exp.Sum(this=weight.copy())
        present = exp.Not(this=exp.Is(this=argument.copy(), expression=exp.Null()))
        return exp.Sum(this=_case(present, weight, _zero()))

    def combined(self, call: exp.Expr, column: exp.Expr) -> exp.Expr:  # noqa: ARG002
        return exp.Sum(this=column.copy())


class _CountIf(_Count):
    def partial(self, call: exp.Expr, argument: exp.Expr, weight: exp.Expr, kind: str) -> exp.Expr:  # noqa: ARG002
        return exp.Sum(this=_case(argument, weight, _zero()))


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The properties of aggregate functions.

    Args:
        calls: sqlglot's classes of the calls, or their names in lower case where sqlglot has no class.
        order: What the order of the rows decides.
        returns: The Spark type of the value: a name, or ``argument``: that of the first argument. ``None``: by a rule
            of :mod:`airflow_mv.core.ivm.column_types`; without one Spark is asked.
        operands: The operands that are certainly accepted; ``None``: Spark is asked.
        merge: How ``merge`` maintains the value; ``None``: from all rows of a group.
    """

    calls: tuple[type[exp.Expr] | str, ...]
    order: Order = Order.ROUNDING
    returns: str | None = None
    operands: Operands | None = None
    merge: Merge | None = None


#: Ranks are aggregates of a window only.
RANKS = (exp.Rank, exp.DenseRank, exp.PercentRank, exp.CumeDist)
_ORDERED = (exp.First, exp.Last, exp.FirstValue, exp.LastValue, exp.AnyValue, exp.Lag, exp.Lead)
_CHOSEN = (
    *(exp.NthValue, exp.ArrayAgg, exp.ArrayUniqueAgg, exp.GroupConcat, exp.Mode, exp.ArgMax, exp.ArgMin),
    *(exp.ApproxQuantile, exp.ApproxTopK, exp.ApproxTopKAccumulate, exp.ApproxTopKCombine),
)
_DEVIATIONS = (exp.Stddev, exp.StddevSamp, exp.StddevPop, exp.Variance, exp.VariancePop)
_SKETCHES = """
    bitmap_and_agg count_min_sketch histogram_numeric hll_sketch_agg hll_union_agg kll_merge_agg_bigint
    kll_merge_agg_double kll_merge_agg_float kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float
    schema_of_variant_agg theta_intersection_agg theta_sketch_agg theta_union_agg try_sum
"""
AGGREGATES = (
    Aggregate((exp.Count,), Order.NOTHING, "bigint", Operands.VALUES, _Count()),
    Aggregate((exp.CountIf,), Order.NOTHING, "bigint", Operands.CONDITION, _CountIf()),
    Aggregate((exp.Sum,), operands=Operands.NUMBERS, merge=_Sum()),
    Aggregate((exp.Avg,), operands=Operands.NUMBERS),
    Aggregate((exp.Min, exp.Max), Order.NOTHING, "argument", Operands.PLAIN_VALUES, Merge()),
    Aggregate((exp.LogicalAnd, exp.LogicalOr), Order.NOTHING, "boolean", Operands.CONDITION, Merge()),
    Aggregate((exp.BitwiseAndAgg, exp.BitwiseOrAgg), merge=Merge()),
    Aggregate((exp.ApproxDistinct,), Order.ROUNDING, "bigint", Operands.PLAIN_VALUES),
    Aggregate(_DEVIATIONS, Order.ROUNDING, "double", Operands.NUMBERS),
    Aggregate((exp.Grouping,), Order.NOTHING, "tinyint", Operands.GROUPING_KEYS),
    Aggregate((exp.GroupingId, "every", "some"), Order.NOTHING),
    Aggregate(("mean", "std", "try_avg"), Order.ROUNDING),
    Aggregate(_ORDERED, Order.CHOICE, "argument"),
    Aggregate((*_CHOSEN, *_SKETCHES.split()), Order.CHOICE),
)
_BY_CALL: Mapping[type[exp.Expr] | str, Aggregate] = {call: item for item in AGGREGATES for call in item.calls}
#: The names of aggregates that sqlglot has no class for.
NAMES = frozenset(call for call in _BY_CALL if isinstance(call, str))


def known(node: exp.Expr) -> Aggregate:
    """Return the entry of a call's function; for a subclass in sqlglot, the entry of its base class."""
    if isinstance(node, exp.Anonymous):
        return _BY_CALL.get(node.name.lower(), Aggregate(()))
    return next((_BY_CALL[kind] for kind in type(node).__mro__ if kind in _BY_CALL), Aggregate(()))


def classes(*, returns: str | None = None, operands: Operands | None = None) -> tuple[type[exp.Expr], ...]:
    """Return sqlglot's classes of the functions that return a type, or take certain operands."""
    found = [
        item for item in AGGREGATES if (returns and item.returns == returns) or (operands and item.operands is operands)
    ]
    return tuple(call for item in found for call in item.calls if not isinstance(call, str))


def fixed_types() -> dict[type[exp.Expr], str]:
    """Return the Spark types of the functions whose type does not depend on their arguments."""
    return {
        call: item.returns
        for item in AGGREGATES
        if item.returns not in (None, "argument")
        for call in item.calls
        if not isinstance(call, str) and item.returns
    }


def argument_of(call: exp.Expr) -> exp.Expr | None:
    """Return the aggregated expression of a call; ``None`` where it counts whole rows."""
    argument = call.this
    if isinstance(call, exp.Count) and (isinstance(argument, exp.Star | exp.Literal) or argument is None):
        return None
    return argument if isinstance(argument, exp.Expr) else None


def _zero() -> exp.Expr:
    return exp.Literal.number(0)


def _case(condition: exp.Expr, value: exp.Expr, otherwise: exp.Expr) -> exp.Case:
    return exp.Case(ifs=[exp.If(this=condition.copy(), true=value.copy())], default=otherwise.copy())


# ---------------------------------------------------------------------------------------- all functions
_SCALARS = frozenset(
    """
    aes_decrypt array_repeat array_union arrays_overlap bigint bin binary bround btrim cardinality conv crc32
    date_part datepart decimal e expm1 find_in_set forall format_number from_avro from_csv from_protobuf
    from_xml get hash hll_sketch_estimate hll_union hypot is_valid_utf8 is_variant_null isnotnull isnull
    json_array_length kll_sketch_get_n_bigint kll_sketch_get_n_double kll_sketch_get_n_float
    kll_sketch_get_quantile_bigint kll_sketch_get_quantile_double kll_sketch_get_quantile_float
    kll_sketch_get_rank_bigint kll_sketch_get_rank_double kll_sketch_get_rank_float kll_sketch_merge_bigint
    kll_sketch_merge_double kll_sketch_merge_float kll_sketch_to_string_bigint kll_sketch_to_string_double
    kll_sketch_to_string_float log1p luhn_check make_date make_dt_interval make_time make_timestamp_ltz
    make_timestamp_ntz make_valid_utf8 make_ym_interval map_concat map_entries map_filter map_values
    map_zip_with mask nullifzero octet_length parse_json pmod positive printf quote regexp schema_of_avro schema_of_csv
    schema_of_json schema_of_variant schema_of_xml sentences shiftrightunsigned smallint st_asbinary
    st_geogfromwkb st_geomfromwkb st_setsrid st_srid theta_difference theta_intersection theta_sketch_estimate
    theta_union timestamp_micros timestamp_millis timestamp_seconds tinyint to_avro to_csv to_protobuf to_time
    to_timestamp_ltz to_timestamp_ntz to_varchar to_variant_object to_xml transform_keys transform_values
    try_aes_decrypt try_make_interval try_make_timestamp try_make_timestamp_ltz try_make_timestamp_ntz try_mod
    try_parse_json try_parse_url try_to_binary try_to_date try_to_number try_to_time try_to_timestamp
    try_url_decode try_validate_utf8 try_variant_get url_decode url_encode validate_utf8 variant_get weekday
    window_time xpath xpath_boolean xpath_double xpath_float xpath_int xpath_long xpath_number
    xpath_short xpath_string xxhash64 zeroifnull zip_with
    """.split()  # noqa: SIM905
)
#: They can be written without parentheses; sqlglot then reads some of them as columns.
VOLATILE = frozenset(
    """
    aes_encrypt assert_true curdate current_catalog current_database current_date current_schema current_time
    current_timestamp current_timezone current_user input_file_block_length input_file_block_start
    input_file_name localtimestamp monotonically_increasing_id now raise_error rand randn random randstr
    session_user shuffle spark_partition_id try_aes_encrypt uniform user uuid version
    """.split()  # noqa: SIM905
)
_TIMES_OF_TODAY = frozenset({"now", "today", "tomorrow", "yesterday"})
_NOW_WITHOUT_ARGUMENTS = frozenset({"unix_timestamp", "to_unix_timestamp"})
_VOLATILE_CLASSES = (
    exp.Rand,
    exp.Randn,
    exp.Uniform,
    exp.Randstr,
    exp.Uuid,
    exp.Shuffle,
    exp.CurrentTimestamp,
    exp.CurrentDate,
    exp.CurrentTime,
    exp.Localtimestamp,
    exp.CurrentUser,
    exp.SessionUser,
    exp.CurrentCatalog,
    exp.CurrentDatabase,
    exp.CurrentSchema,
    exp.CurrentTimezone,
)
GENERATORS = (exp.UDTF, exp.Explode, exp.Posexplode, exp.Inline)
#: window() is a generator too: a sliding window returns several rows, and a NULL time returns none.
_GENERATOR_NAMES = frozenset(
    {"inline_outer", "json_tuple", "stack", "variant_explode", "variant_explode_outer", "window"}
)
_NUMBERINGS = (exp.RowNumber, exp.Ntile)


def check(call: exp.Expr) -> None:
    """Refuse a call that is volatile or unknown.

    Raises:
        RefusedError: The call is volatile or unknown.
    """
    name = call.name.lower() if isinstance(call, exp.Anonymous) else ""
    if name == "session_window":
        raise RefusedError(Code.UNSUPPORTED_OPERATOR, f"{call.sql(dialect='spark')[:60]} is not supported here")
    no_argument = name in _NOW_WITHOUT_ARGUMENTS and not call.expressions
    if isinstance(call, _VOLATILE_CLASSES) or name in VOLATILE or no_argument:
        written = name or call.sql(dialect="spark")
        raise RefusedError(Code.NOT_DETERMINISTIC, f"{written} may return another value at each refresh")
    if isinstance(call, exp.Cast) and isinstance(call.this, exp.Literal) and _is_now(call):
        raise RefusedError(Code.NOT_DETERMINISTIC, f"{call.sql(dialect='spark')} is the time of the refresh")
    if isinstance(call, exp.Anonymous) and name not in NAMES | _SCALARS | KEPT | _GENERATOR_NAMES:
        near = nearest_function(call)
        meant = f" (did you mean {near}?)" if near else ""
        message = f"{name}() is not a known built-in function{meant}: it might be an aggregate, or not deterministic"
        raise RefusedError(Code.UNKNOWN_FUNCTION, message)


def nearest_function(call: exp.Expr) -> str | None:
    """Return the built-in function of nearly the same name as an unknown one; ``None`` for a known function."""
    name = call.name.lower()
    if not isinstance(call, exp.Anonymous) or name in NAMES | _SCALARS | KEPT | _GENERATOR_NAMES:
        return None
    names = sorted({known.lower() for known in exp.FUNCTION_BY_NAME} | NAMES | _SCALARS)
    found = get_close_matches(name, names, n=1, cutoff=0.75)
    return found[0] if found and found[0] != name else None


def _is_now(cast: exp.Cast) -> bool:
    """Whether Spark reads a cast as the current date or time: ``DATE 'today'``, ``CAST('now' AS TIMESTAMP)``."""
    words = cast.name.lower().split()
    return bool(words) and words[0] in _TIMES_OF_TODAY and cast.to.this in exp.DataType.TEMPORAL_TYPES


def is_aggregate(node: exp.Expr) -> bool:
    """Whether a node is a call of an aggregate (or a function that only windows have)."""
    if isinstance(node, exp.Anonymous):
        return node.name.lower() in NAMES
    return isinstance(node, exp.AggFunc | exp.RowNumber)


def is_generator(node: exp.Expr) -> bool:
    """Whether a node makes several rows of one row."""
    if isinstance(node, exp.Anonymous):
        return node.name.lower() in _GENERATOR_NAMES
    return isinstance(node, GENERATORS) and not isinstance(node, exp.Lateral)


def is_arbitrary(node: exp.Expr) -> bool:
    """Whether an aggregate's value is a choice among several correct ones."""
    return known(node).order is Order.CHOICE


def is_exact(node: exp.Expr) -> bool:
    """Whether an aggregate's value is the same for any order of the rows, even with floating-point values."""
    return known(node).order is Order.NOTHING or is_rank(node)


def is_average(node: exp.Expr) -> bool:
    """Whether a node is an average. Its type does not show if it is exact: Spark averages short decimals as doubles."""
    if isinstance(node, exp.Anonymous):
        return node.name.lower() in {"mean", "try_avg"}
    return isinstance(node, exp.Avg)


def is_rank(node: exp.Expr) -> bool:
    """Whether a window function gives tied rows the same value."""
    return isinstance(node, RANKS)


def is_numbering(node: exp.Expr) -> bool:
    """Whether a window function numbers the rows, with tied rows in any order."""
    return isinstance(node, _NUMBERINGS)


def aggregates(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the aggregates of an expression: not window functions themselves, but the aggregates in their arguments."""
    if isinstance(node, exp.Window):
        for child in window_parts(node):
            yield from aggregates(child)
    elif is_aggregate(node):
        yield node
    else:
        for child in node.iter_expressions():
            yield from aggregates(child)


def windows(node: exp.Expr) -> Iterator[exp.Window]:
    """Yield the window functions of an expression."""
    yield from node.find_all(exp.Window)


def window_function(window: exp.Window) -> exp.Expr:
    """Return the function of a window, without FILTER or IGNORE NULLS around it."""
    inner: exp.Expr = window.this
    while isinstance(inner, exp.Filter | exp.IgnoreNulls | exp.RespectNulls | exp.WithinGroup):
        inner = inner.this
    return inner


def window_parts(window: exp.Window) -> list[exp.Expr]:
    """Return the arguments of a window's function, and the parts of its OVER."""
    over = (child for child in window.iter_expressions() if child is not window.this)
    return [*window_function(window).iter_expressions(), *over]
