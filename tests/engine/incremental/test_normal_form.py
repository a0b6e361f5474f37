# SPDX-License-Identifier: Apache-2.0
"""The normal form of a query has the rows of the owner's text, also over only the rows that it says are relevant.

All statements of incremental refreshes are derived from the normal form. Names are the risk: in the owner's text a name
may be that of a column, a struct's field, a table or a lambda function's variable.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from airflow_mv.core.ivm.incremental_query import IncrementalQuery
from airflow_mv.core.ivm.ir import BaseRelation
from airflow_mv.core.ivm.render import sql as to_sql
from airflow_mv.core.job.context import matching
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.sql.query import parse_query
from tests.engine.incremental.checking import differences, plain
from tests.engine.incremental.histories import rows
from tests.engine.incremental.schemas import Schema, draw
from tests.engine.incremental.views import query
from tests.engine.support import Lake

#: Names of tables, aliases and LATERAL VIEWs.
_NAMES = ("r", "s", "u", "x", "y", "g")
_STRUCT = "struct<a: int, b: bigint>"


@pytest.mark.parametrize("seed", [5, pytest.param(6, marks=pytest.mark.slow)])
def test_the_normal_form_means_what_the_owner_wrote(lake: Lake, seed: int) -> None:
    assert _compared(lake.spark, range(seed * 10, seed * 10 + 2), 30)["equal"] > 40


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_normal_form_means_what_the_owner_wrote_at_length(lake: Lake) -> None:
    tally = _compared(lake.spark, range(1000, 1200), 30)
    print(tally)
    assert tally["equal"] > 5000
    assert tally["with conditions"] > 1000


def _compared(spark: SparkSession, seeds: range, queries: int) -> Counter[str]:
    """Compare queries of random schemas, with the tables as temporary views."""
    tally: Counter[str] = Counter()
    for seed in seeds:
        random = Random(seed)
        schema = {name: dict(columns) for name, columns in draw(random).items()}
        for columns in schema.values():
            if random.random() < 0.5:
                columns[random.choice(_NAMES)] = _STRUCT
        relations = _tables(spark, random, schema)
        for turn in range(queries):
            text, _ = query(random, turn, schema)
            tally[_compare(spark, text, relations)] += 1
    tally["equal"] += tally["with conditions"]
    return tally


def _tables(spark: SparkSession, random: Random, schema: Schema) -> list[BaseRelation]:
    relations = []
    for number, (name, columns) in enumerate(schema.items()):
        values = ", ".join(rows(random, columns, 8))
        frame = spark.sql(f"SELECT * FROM VALUES {values} AS t({', '.join(columns)})").localCheckpoint()
        frame.createOrReplaceTempView(name)
        kinds = tuple((field.name, field.dataType.simpleString()) for field in frame.schema)
        relations.append(BaseRelation(Identifier("lake", ("db",), name), f"t{number}", kinds, changed=True))
    return relations


def _compare(spark: SparkSession, text: str, relations: list[BaseRelation]) -> str:
    """Compare one query, and return how far it came."""
    try:
        frame = spark.sql(text)
        want = plain(frame.toArrow())
    except (PySparkException, Py4JJavaError):
        return "refused by Spark"
    if len(set(map(str.lower, frame.columns))) < len(frame.columns):
        return "no view"
    output = [(field.name, field.dataType.simpleString()) for field in frame.schema]
    parsed = parse_query(text, default_catalog="lake", default_namespace=("db",), view="lake.db.v")
    found = IncrementalQuery.analyse(parsed, relations, output=output, views={})
    if not isinstance(found, IncrementalQuery):
        return "refused"
    again = to_sql(found.tree)
    for conditions in ({}, found.conditions):
        for relation in relations:
            kept = matching(spark.table(relation.identifier.name), conditions.get(relation.identifier, ""))
            kept.createOrReplaceTempView(f"{relation.name}__new")
        got = plain(spark.sql(again).toArrow())
        assert not differences(want, got), f"{text}\n{again}\n{conditions}\n{differences(want, got)}"
    return "with conditions" if found.conditions else "equal"
