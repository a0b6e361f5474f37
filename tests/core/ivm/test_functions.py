# SPDX-License-Identifier: Apache-2.0
"""Each function is classified: an aggregate taken for a scalar function would give wrong rows."""

from __future__ import annotations

import pytest
import sqlglot

from airflow_mv.core.ivm import BaseRelation, IncrementalQuery, functions
from airflow_mv.core.ivm.ir import RefusedError
from airflow_mv.core.ivm.regeneration import write
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.reasons import Code, Reason
from tests.core.ivm.lab import parsed

#: Spark 4.1's aggregates, as its function registry groups them; ``any`` is refused.
AGGREGATES = """
    any_value approx_count_distinct approx_percentile approx_top_k approx_top_k_accumulate approx_top_k_combine
    array_agg avg bit_and bit_or bit_xor bitmap_and_agg bitmap_construct_agg bitmap_or_agg bool_and bool_or
    collect_list collect_set corr count count_if count_min_sketch covar_pop covar_samp every first first_value
    grouping grouping_id histogram_numeric hll_sketch_agg hll_union_agg kll_merge_agg_bigint kll_merge_agg_double
    kll_merge_agg_float kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float kurtosis last last_value
    listagg max max_by mean median min min_by mode percentile percentile_approx percentile_cont percentile_disc
    regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy
    schema_of_variant_agg skewness some std stddev stddev_pop stddev_samp string_agg sum theta_intersection_agg
    theta_sketch_agg theta_union_agg try_avg try_sum var_pop var_samp variance
""".split()  # noqa: SIM905


@pytest.mark.parametrize("name", AGGREGATES)
def test_every_aggregate_of_spark_is_known(name: str) -> None:
    """With one or two arguments, however sqlglot parses the name, it is an aggregate or is refused."""
    seen = 0
    for arguments in ("a", "a, b"):
        try:
            call = sqlglot.parse_one(f"SELECT {name}({arguments})", read="spark").expressions[0]
        except sqlglot.ParseError:
            continue
        is_two_argument_minimum = name in ("min", "max") and arguments == "a, b"  # Spark refuses it
        assert is_two_argument_minimum or functions.is_aggregate(call)
        functions.check(call)
        seen += 1
    assert seen


@pytest.mark.parametrize("name", sorted(functions.VOLATILE))
def test_every_volatile_function_is_refused(name: str) -> None:
    """With and without arguments, as far as sqlglot parses the call."""
    for arguments in ("", "a", "a, b"):
        try:
            call = sqlglot.parse_one(f"SELECT {name}({arguments})", read="spark").expressions[0]
        except sqlglot.ParseError:
            continue
        with pytest.raises(RefusedError):
            functions.check(call)


@pytest.mark.parametrize(("written", "meant"), [("cuont(*)", "count"), ("uper(k)", "upper"), ("st_area(k)", None)])
def test_a_misspelled_function_is_refused_with_the_name_that_may_be_meant(written: str, meant: str | None) -> None:
    call = sqlglot.parse_one(f"SELECT {written}", read="spark").expressions[0]
    with pytest.raises(RefusedError, match=r"\(\) is not a known built-in function") as refused:
        functions.check(call)
    assert (f"(did you mean {meant}?)" in str(refused.value)) == (meant is not None)


def test_a_call_that_sqlglot_cannot_write_is_refused_with_a_reason() -> None:
    """sqlglot parses the call but fails to write it; the plan failed with the library's TypeError."""
    table = BaseRelation(Identifier("lake", ("db",), "r"), "t0", (("k", "string"),), changed=True, appended_only=True)
    found = IncrementalQuery.analyse(
        parsed("SELECT j_s_o_n_object(k) AS x FROM r"), [table], output=[("x", "string")], views={}
    )
    assert isinstance(found, Reason)
    assert found.code == Code.UNREADABLE


def test_an_argument_that_cannot_be_regenerated_is_refused_with_a_reason() -> None:
    """sqlglot only logged a warning and omitted the argument."""
    with pytest.raises(RefusedError):
        write(sqlglot.parse_one("SELECT to_char(k, '999')", read="spark"))
