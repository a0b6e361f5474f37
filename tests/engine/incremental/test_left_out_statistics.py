# SPDX-License-Identifier: Apache-2.0
"""Filters give the same rows in each mode, whatever the statistics of data files leave out: NaN, bounds, counts."""

from __future__ import annotations

import random

import pytest

from tests.engine.incremental.test_zeros import bag
from tests.engine.support import Lake

METRICS = ("full", "truncate(2)", "counts", "none")
#: Values by column, as SQL: NaN, zeros of both signs, NULL and the extremes of each type.
VALUES = {
    "f": ("CAST('NaN' AS FLOAT)", "-0.0F", "0.0F", "7.5F", "3.4028234E38F", "CAST('-Infinity' AS FLOAT)", "NULL"),
    "d": ("double('NaN')", "-0.0D", "0.0D", "7.5D", "-1.7976931348623157E308D", "double('Infinity')", "NULL"),
    "st": ("struct(double('NaN') AS x)", "struct(-0.0D AS x)", "struct(0.0D AS x)", "struct(7.5D AS x)", "NULL"),
    "i": ("2147483647", "CAST(-2147483648 AS INT)", "0", "7", "NULL"),
    "p": ("99999.99BD", "-99999.99BD", "0BD", "7.5BD", "NULL"),
    "s": (
        "''",
        "'zz'",
        "'zzzzzzzzzzzzzzzzzzzz'",
        "'zzzzzzzzzzzzzzzzzzzzz'",
        "'\U0010ffff\U0010ffff\U0010ffff'",
        "NULL",
    ),
    "at": (
        "TIMESTAMP '0001-01-01 00:00:00'",
        "TIMESTAMP '9999-12-31 23:59:59.999999'",
        "TIMESTAMP '2024-10-27 00:30:00'",
        "NULL",
    ),
}
#: Files whose bounds say otherwise of NaN and of zeros than Spark.
FILES = (("1.0D", "double('NaN')"), ("-0.0D",), ("9.0D", "double('NaN')"))
FILTERS = (
    *("f > 7", "f >= 0", "f < 0", "f = 0", "f = float('NaN')", "NOT f <= 7", "d > 7", "d <= 0", "d = 0", "s < 'a'"),
    *("d BETWEEN 0 AND 8", "i > 7", "i = 2147483647", "i < 0", "p >= 99999.99", "p < 0", "s > 'zzz'", "s = 'zz'"),
    *("to_date(at) > DATE '2024-10-26'", "date_format(at, 'yyyy-MM') < '2024-10'", "NOT d > 7 OR f < 0", "d > f"),
    *("nullif(d, 7.5D) IS NULL", "equal_null(f, 0F)", "st.x = 0", "NOT st.x < 7"),
)  # fmt: skip
PROMOTED = (
    "ALTER TABLE {ns}.t ALTER COLUMN i TYPE bigint",
    "ALTER TABLE {ns}.t ALTER COLUMN f TYPE double",
    "ALTER TABLE {ns}.t ALTER COLUMN p TYPE decimal(18, 2)",
)


def rows(chance: random.Random, first: int) -> str:
    """An insert of a file with few values for each column, so that some files have only NaN, or only NULL."""
    few = {name: chance.sample(values, chance.choice((1, 2, 3))) for name, values in VALUES.items()}
    lines = [f"({first + at}, {', '.join(chance.choice(few[name]) for name in VALUES)})" for at in range(4)]
    return f"INSERT INTO {{ns}}.t VALUES {', '.join(lines)}"


def floats(*values: str) -> str:
    """An insert of a file with these floating-point values."""
    lines = (f"(0, CAST({value} AS FLOAT), {value}, struct({value} AS x))" for value in values)
    return f"INSERT INTO {{ns}}.t (id, f, d, st) VALUES {', '.join(lines)}"


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))])
def test_filters_pass_the_same_rows_in_each_mode(lake: Lake, seed: int) -> None:
    """Incremental and full refreshes, before and after a compaction, and a filter over rows that are in no file."""
    chance = random.Random(seed)
    lake.spark.conf.set("spark.sql.session.timeZone", "UTC")
    lake.run(
        "CREATE TABLE {ns}.t (id int, f float, d double, st struct<x: double>, i int, p decimal(7, 2), s string, "
        "at timestamp) USING iceberg "
        f"TBLPROPERTIES ('write.metadata.metrics.default' = '{METRICS[seed % len(METRICS)]}')",
        *(floats(*values) for values in FILES),
        *(rows(chance, 10 * number) for number in range(3)),
    )
    chosen = [*chance.sample(FILTERS, 6 if seed else 3), "f > 7", "d = 0", "st.x > 7"]
    properties = {"airflow-mv.incremental-up-to": "1000000"}
    for number, text in enumerate(chosen):
        sql = f"SELECT id, d, s FROM {{ns}}.t WHERE {text}"
        lake.create(f"v{number}", sql, refresh_strategy="incremental", properties=properties)
        lake.refresh(f"v{number}")
    lake.run(*(floats(*values) for values in FILES), *(rows(chance, 100 + 10 * number) for number in range(4)))
    found = {}
    for number in range(len(chosen)):
        lake.refresh(f"v{number}")
        found[number] = bag(lake.stored(f"v{number}").to_pylist())
    lake.spark.createDataFrame(lake.sql("SELECT * FROM {ns}.t").toArrow()).createOrReplaceTempView("held")
    for number, text in enumerate(chosen):
        wanted = bag(lake.sql(f"SELECT id, d, s FROM held WHERE {text}").toArrow().to_pylist())
        assert found[number] == wanted, text
    compacted = f"table => '{lake.namespace}.t', options => map('rewrite-all', 'true')"
    lake.run(*PROMOTED, f"CALL {lake.catalog.name}.system.rewrite_data_files({compacted})")
    lake.spark.createDataFrame(lake.sql("SELECT * FROM {ns}.t").toArrow()).createOrReplaceTempView("held")
    for number, text in enumerate(chosen):
        lake.refresh(f"v{number}", full=True)
        wanted = bag(lake.sql(f"SELECT id, d, s FROM held WHERE {text}").toArrow().to_pylist())
        assert bag(lake.stored(f"v{number}").to_pylist()) == wanted, text
