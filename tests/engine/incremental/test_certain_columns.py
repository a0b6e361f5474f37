# SPDX-License-Identifier: Apache-2.0
"""Columns that are certain without Spark are those that Spark gives: name, type and comment. No job runs.

Whatever is certain must also be accepted by Spark. So queries are changed at random, which makes many of them wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from airflow_mv.core.spec.reasons import Reason
from airflow_mv.errors import InvalidQueryError
from airflow_mv.extras.columns.certain import certain_output
from tests.core.ivm import tpcds
from tests.core.ivm.lab import Lab, parsed
from tests.core.ivm.tpch import QUERIES
from tests.core.ivm.versions import spark_type
from tests.engine.incremental import schemas, views
from tests.engine.incremental.test_column_types import AGGREGATES, COLUMNS, SCALARS, TPCH, relations

_NAME = re.compile(r"\b[a-z]\w*\b")
#: Name, Spark type, and comment of a column.
_Column = tuple[str, str, str | None]


class Differential:
    """Compares columns for tables, which are empty.

    Args:
        spark: The session.
        tables: Columns with their types in Spark's syntax, by table.
    """

    def __init__(self, spark: SparkSession, tables: Mapping[str, str]) -> None:
        self._spark = spark
        found = {name: spark.createDataFrame([], columns).schema for name, columns in tables.items()}
        self.columns = [field.name for schema in found.values() for field in schema.fields]
        for name, schema in found.items():
            fields = [
                StructField(item.name, item.dataType, True, {"comment": f"{name}.{item.name}"}) for item in schema
            ]
            spark.createDataFrame([], StructType(fields)).createOrReplaceTempView(name)
        self._relations = relations(
            {name: [(item.name, item.dataType.simpleString()) for item in schema] for name, schema in found.items()}
        )
        self.all = self.certain = 0

    def certain_columns(self, sql: str) -> list[_Column] | None:
        """Return the columns of a query; ``None`` if they are not certain. What is refused, Spark refuses."""
        try:
            found = certain_output(parsed(sql), self._relations, {})
        except InvalidQueryError:  # a name that is not there
            with pytest.raises(AnalysisException):
                self.of_spark(sql)
            return None
        if isinstance(found, Reason):
            return None
        return [
            (item.name, item.type.replace(" ", ""), f"{base.name}.{item.origin[1]}" if base and item.origin else None)
            for item, base in found
        ]

    def of_spark(self, sql: str) -> list[_Column]:
        """Return the columns that Spark gives."""
        fields = self._spark.sql(sql).schema.fields
        return [(item.name, item.dataType.simpleString(), item.metadata.get("comment")) for item in fields]

    def check(self, sql: str) -> None:
        """Compare the columns of one query."""
        self.all += 1
        found = self.certain_columns(sql)
        if found is not None:
            self.certain += 1
            assert found == self.of_spark(sql), sql

    def check_changed(self, sql: str, random: Random) -> None:
        """Compare the columns of a query in which one column is replaced by another."""
        places = [item for item in _NAME.finditer(sql) if item[0] in self.columns]
        if places:
            place = random.choice(places)
            self.check(sql[: place.start()] + random.choice(self.columns) + sql[place.end() :])


@contextmanager
def _comparing(spark: SparkSession, tables: Mapping[str, str]) -> Iterator[Differential]:
    try:
        yield Differential(spark, tables)
    finally:
        for name in tables:
            spark.catalog.dropTempView(name)


def _tpcds(folder: Path) -> dict[str, str]:
    lab = Lab([])
    tpcds.load(lab.connection, folder)
    described = {name: lab.connection.execute(f"DESCRIBE {name}").fetchall() for name in tpcds.TABLES}
    lab.connection.close()
    return {name: ", ".join(f"{row[0]} {spark_type(row[1])}" for row in rows) for name, rows in described.items()}


def _compare_random(spark: SparkSession, seeds: range, queries: int) -> tuple[int, int]:
    every = certain = 0
    for seed in seeds:
        random = Random(seed)
        schema = schemas.draw(random)
        with _comparing(spark, {name: schemas.written(columns) for name, columns in schema.items()}) as tables:
            for turn in range(queries):
                sql, _ = views.query(random, seed * queries + turn, schema)
                tables.check(sql)
                tables.check_changed(sql, random)
            every, certain = every + tables.all, certain + tables.certain
    return every, certain


def _compare_tpcds(spark: SparkSession, folder: Path, changes: int) -> None:
    texts, random = tpcds.queries(folder), Random(changes)
    with _comparing(spark, _tpcds(folder)) as tables:
        for number in tpcds.NUMBERS:
            tables.check(texts[number])
        assert tables.certain >= 94, tables.certain
        for _ in range(changes):
            tables.check_changed(texts[random.choice(tpcds.NUMBERS)], random)


def test_columns_are_those_of_spark(spark: SparkSession, tpcds_folder: Path) -> None:
    """Of calls, all of TPC-H, nearly all of TPC-DS, random queries, and changed ones."""
    with _comparing(spark, {"v": ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items()), **TPCH}) as tables:
        for calls, least in ((SCALARS, 0.8), (AGGREGATES, 0.8)):
            certain = [call for call in calls if tables.certain_columns(f"SELECT {call} AS x FROM v")]
            assert len(certain) > len(calls) * least, sorted(set(calls) - set(certain))
            tables.check(f"SELECT {', '.join(f'{call} AS c{number}' for number, call in enumerate(certain))} FROM v")
        assert tables.certain == 2
        for sql in QUERIES.values():
            tables.check(sql)
        assert tables.certain == 2 + len(QUERIES)
    _compare_tpcds(spark, tpcds_folder, changes=20)
    every, certain = _compare_random(spark, range(4), queries=15)
    assert every > certain > every // 5


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_columns_are_those_of_spark_for_many_queries(spark: SparkSession, tpcds_folder: Path) -> None:
    """The same with thousands of changed and random queries."""
    _compare_tpcds(spark, tpcds_folder, changes=2000)
    print(_compare_random(spark, range(100, 200), queries=40))


def test_a_value_of_a_map_is_certain_by_a_key_of_its_type(spark: SparkSession) -> None:
    """A key that Spark would have to cast is left to Spark."""
    maps = "k int, m map<string, int>, n map<string, struct<a: int, b: string>>, i map<int, string>"
    with _comparing(spark, {"r": f"{maps}, l array<map<string, date>>"}) as tables:
        for value in ("m['x']", "n['x'].b", "l[0]['x']", "element_at(m, 'x')"):
            assert tables.certain_columns(f"SELECT k, {value} AS v FROM r"), value
            tables.check(f"SELECT k, {value} AS v FROM r")
            tables.check(f"SELECT {value} AS v, count(*) AS c FROM r WHERE {value} IS NOT NULL GROUP BY {value}")
        assert tables.certain == 8
        for value in ("m[1]", "i['1']", "n['x']", "m[k]"):
            assert tables.certain_columns(f"SELECT {value} AS v FROM r") is None, value
