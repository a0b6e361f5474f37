# SPDX-License-Identifier: Apache-2.0
"""A type that is determined without Spark is the type that Spark's analyser gives. No job runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from pyspark.sql import SparkSession

from airflow_mv.common.queries import use_of
from airflow_mv.core.ivm import BaseRelation
from airflow_mv.core.ivm.column_types import column_types
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.reasons import Reason
from tests.core.ivm.lab import parsed
from tests.core.ivm.tpch import QUERIES

COLUMNS = {
    "i1": "tinyint", "i2": "smallint", "i4": "int", "i8": "bigint", "f4": "float", "f8": "double", "d9": "decimal(9,2)",
    "d20": "decimal(20,0)", "d38": "decimal(38,10)", "s": "string", "b": "boolean", "d": "date", "t": "timestamp",
    "n": "timestamp_ntz", "y": "binary",
}  # fmt: skip
_NUMBERS = [name for name, kind in COLUMNS.items() if name[0] in "ifd" and kind != "date"]
SCALARS = (
    *(f"{one} {sign} {other}" for one, other in product(_NUMBERS, _NUMBERS) for sign in "+-*/%"),
    *(f"{number} {sign} {one}" for number in ("1", "100", "0.06", "3000000000") for one in _NUMBERS for sign in "+*/"),
    *(f"coalesce({one}, {other})" for one, other in product(_NUMBERS, _NUMBERS)),
    *(f"CASE WHEN b THEN {one} ELSE 0 END" for one in _NUMBERS),
    *("i4 DIV i8", "i4 = 1 AND s LIKE 'a%'", "NOT b", "s IN ('a')", "year(d)", "extract(MONTH FROM t)", "day(t)"),
    *("date_trunc('day', t)", "date_trunc('day', n)", "CAST(t AS DATE)", "date(t)", "make_date(i4, i4, i4)", "-i4"),
    *("concat(s, 'x')", "s || s", "upper(s)", "substring(s, 1, 2)", "length(s)", "trim(s)", "CAST(s AS DECIMAL)"),
    *("CAST(i4 AS DECIMAL(12, 3))", "try_cast(s AS INT)", "datediff(d, d)", "1.50", "'a'", "if(b, i4, i8)"),
    *("nullif(i4, 1)", "greatest(i4, i8)", "quarter(d)", "to_date(s)", "round(d9, 1)", "abs(i4)", "DATE '2020-01-01'"),
    *("row_number() OVER (ORDER BY i4)", "sum(i4) OVER (PARTITION BY s)", "(SELECT max(d9) FROM v)"),
)
AGGREGATES = (
    *(f"{call}({one})" for call in ("sum", "avg", "min", "max", "count", "stddev", "first") for one in _NUMBERS),
    *(f"sum({one} * (1 - d9))" for one in _NUMBERS),
    *("count_if(b)", "bool_and(b)", "avg(i4 + 0.5)", "sum(DISTINCT i4)", "sum(d9) FILTER (WHERE b)"),
    *("approx_count_distinct(s)", "min(s)"),
)
TPCH = {
    "customer": "c_custkey bigint, c_name string, c_address string, c_nationkey int, c_phone string, "
    "c_acctbal decimal(15,2), c_mktsegment string, c_comment string",
    "lineitem": "l_orderkey bigint, l_partkey bigint, l_suppkey bigint, l_linenumber bigint, l_quantity decimal(15,2), "
    "l_extendedprice decimal(15,2), l_discount decimal(15,2), l_tax decimal(15,2), l_returnflag string, "
    "l_linestatus string, l_shipdate date, l_commitdate date, l_receiptdate date, l_shipinstruct string, "
    "l_shipmode string, l_comment string",
    "nation": "n_nationkey int, n_name string, n_regionkey int, n_comment string",
    "orders": "o_orderkey bigint, o_custkey bigint, o_orderstatus string, o_totalprice decimal(15,2), "
    "o_orderdate date, o_orderpriority string, o_clerk string, o_shippriority int, o_comment string",
    "part": "p_partkey bigint, p_name string, p_mfgr string, p_brand string, p_type string, p_size int, "
    "p_container string, p_retailprice decimal(15,2), p_comment string",
    "partsupp": "ps_partkey bigint, ps_suppkey bigint, ps_availqty bigint, ps_supplycost decimal(15,2), "
    "ps_comment string",
    "region": "r_regionkey int, r_name string, r_comment string",
    "supplier": "s_suppkey bigint, s_name string, s_address string, s_nationkey int, s_phone string, "
    "s_acctbal decimal(15,2), s_comment string",
}


def relations(tables: Mapping[str, Sequence[tuple[str, str]]]) -> list[BaseRelation]:
    """The tables as the algebra takes them."""
    return [
        BaseRelation(Identifier("lake", ("db",), name), f"t{number}", tuple(columns), True)
        for number, (name, columns) in enumerate(tables.items())
    ]


def _relations(tables: dict[str, str]) -> list[BaseRelation]:
    split = {name: [item.split(" ", 1) for item in written.split(", ")] for name, written in tables.items()}
    return relations({name: [(column, kind) for column, kind in columns] for name, columns in split.items()})


def _known(tables: dict[str, str], sql: str) -> list[str | None]:
    """Return the types of a query's columns that are determined without Spark."""
    found = use_of(parsed(sql), _relations(tables), {}, lambda _, tree, __: column_types(tree))
    return [] if isinstance(found, Reason) else [kind and kind.replace(" ", "") for kind in found]


def _of_spark(spark: SparkSession, sql: str) -> list[str]:
    return [field.dataType.simpleString() for field in spark.sql(sql).schema.fields]


def test_types_are_those_of_spark(spark: SparkSession) -> None:
    """Arithmetic of all pairs of numeric types, aggregates, calls; of the queries of TPC-H all types are known."""
    tables = {"v": ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items()), **TPCH}
    for name, columns in tables.items():
        spark.createDataFrame([], columns).createOrReplaceTempView(name)
    try:
        for group in (SCALARS, AGGREGATES):
            kinds = {call: kind for call in group for kind in _known(tables, f"SELECT {call} AS x FROM v") if kind}
            assert len(kinds) > len(group) * 0.8, sorted(set(group) - set(kinds))
            listed = ", ".join(f"{call} AS c{number}" for number, call in enumerate(kinds))
            assert dict(zip(kinds, _of_spark(spark, f"SELECT {listed} FROM v"), strict=True)) == kinds
        for sql in QUERIES.values():
            assert _known(tables, sql) == _of_spark(spark, sql), sql
    finally:
        for name in tables:
            spark.catalog.dropTempView(name)
