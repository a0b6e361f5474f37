# SPDX-License-Identifier: Apache-2.0
"""Classify function calls: aggregate, scalar, volatile, or unknown.

sqlglot classifies most of Spark's built-in functions; this module lists the others. A function that neither of them
knows may be a user-defined aggregate, and is refused.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from airflow_mv.core.ivm.ir import RefusedError
from airflow_mv.core.spec.reasons import Code
from airflow_mv.core.sql.dialect import KEPT

_AGGREGATES = frozenset(
    """
    bitmap_and_agg count_min_sketch every histogram_numeric hll_sketch_agg hll_union_agg kll_merge_agg_bigint
    kll_merge_agg_double kll_merge_agg_float kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float
    mean schema_of_variant_agg some std theta_intersection_agg theta_sketch_agg theta_union_agg try_avg try_sum
    """.split()  # noqa: SIM905
)
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
GENERATORS = (exp.UDTF, exp.Explode, exp.Posexplode, exp.Inline, exp.Stack)
#: window() is a generator too: a sliding window returns several rows, and a NULL time returns none.
_GENERATOR_NAMES = frozenset({"inline_outer", "json_tuple", "variant_explode", "variant_explode_outer", "window"})
#: Their value depends on the order of the rows, or on a random or approximate internal state.
_ARBITRARY = (
    exp.First,
    exp.Last,
    exp.FirstValue,
    exp.LastValue,
    exp.NthValue,
    exp.AnyValue,
    exp.ArrayAgg,
    exp.ArrayUniqueAgg,
    exp.GroupConcat,
    exp.Mode,
    exp.ArgMax,
    exp.ArgMin,
    exp.Lag,
    exp.Lead,
    exp.ApproxQuantile,
    exp.ApproxTopK,
    exp.ApproxTopKAccumulate,
    exp.ApproxTopKCombine,
)
#: Aggregates whose value never depends on the order of the rows, for any type.
_EXACT = (exp.Count, exp.CountIf, exp.Min, exp.Max, exp.LogicalAnd, exp.LogicalOr, exp.Grouping, exp.GroupingId)
_RANKS = (exp.Rank, exp.DenseRank, exp.PercentRank, exp.CumeDist)
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
        raise RefusedError(Code.NOT_DETERMINISTIC, f"{written} may give another value at each refresh")
    if isinstance(call, exp.Cast) and isinstance(call.this, exp.Literal) and _is_now(call):
        raise RefusedError(Code.NOT_DETERMINISTIC, f"{call.sql(dialect='spark')} is another time at each refresh")
    if isinstance(call, exp.Anonymous) and name not in _AGGREGATES | _SCALARS | KEPT | _GENERATOR_NAMES:
        message = f"{name}() is not a known built-in function: it might be an aggregate, or not deterministic"
        raise RefusedError(Code.UNKNOWN_FUNCTION, message)


def _is_now(cast: exp.Cast) -> bool:
    """Whether Spark reads a cast as the current date or time: ``DATE 'today'``, ``CAST('now' AS TIMESTAMP)``."""
    words = cast.name.lower().split()
    return bool(words) and words[0] in _TIMES_OF_TODAY and cast.to.this in exp.DataType.TEMPORAL_TYPES


def is_aggregate(node: exp.Expr) -> bool:
    """Whether a node is a call of an aggregate (or a function that only windows have)."""
    if isinstance(node, exp.Anonymous):
        return node.name.lower() in _AGGREGATES
    return isinstance(node, exp.AggFunc | exp.RowNumber)


def is_generator(node: exp.Expr) -> bool:
    """Whether a node makes several rows of one row."""
    if isinstance(node, exp.Anonymous):
        return node.name.lower() in _GENERATOR_NAMES
    return isinstance(node, GENERATORS) and not isinstance(node, exp.Lateral)


def is_arbitrary(node: exp.Expr) -> bool:
    """Whether an aggregate's value is a choice among several correct ones."""
    if isinstance(node, exp.Anonymous):
        return node.name.lower() in _AGGREGATES - {"every", "some", "mean", "std", "try_avg"}
    return isinstance(node, _ARBITRARY)


def is_exact(node: exp.Expr) -> bool:
    """Whether an aggregate's value is the same for any order of the rows, even with floating-point values."""
    if isinstance(node, exp.Anonymous):
        return node.name.lower() in {"every", "some"}
    return isinstance(node, _EXACT + _RANKS)


def is_average(node: exp.Expr) -> bool:
    """Whether a node is an average. Its type does not show if it is exact: Spark averages short decimals as doubles."""
    if isinstance(node, exp.Anonymous):
        return node.name.lower() in {"mean", "try_avg"}
    return isinstance(node, exp.Avg)


def is_rank(node: exp.Expr) -> bool:
    """Whether a window function gives tied rows the same value."""
    return isinstance(node, _RANKS)


def is_numbering(node: exp.Expr) -> bool:
    """Whether a window function numbers the rows, with tied rows in any order."""
    return isinstance(node, _NUMBERINGS)


def aggregates(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the aggregates of an expression: not window functions themselves, but the aggregates in their arguments."""
    if isinstance(node, exp.Window):
        inner = window_function(node)
        for child in [*inner.iter_expressions(), *(c for c in node.iter_expressions() if c is not node.this)]:
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
