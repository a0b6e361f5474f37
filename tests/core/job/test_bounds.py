# SPDX-License-Identifier: Apache-2.0
"""Bounds from the statistics of appended files: no row is lost, and files of the other side of a join are skipped."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import FixedType, NestedField, UUIDType
from pyspark.sql import SparkSession

from airflow_mv.core.job.context import JobContext
from airflow_mv.core.job.delta import make_delta
from airflow_mv.core.script import DeltaStep
from tests.core.job.changing import VIEW, Table, make_table, quick
from tests.core.job.conftest import Lake

__all__ = ["quick"]  # a fixture

KEYS = {
    "i": "INT",
    "l": "BIGINT",
    "d": "DATE",
    "n": "DECIMAL(20, 3)",
    "t": "TIMESTAMP",
    "o": "TIMESTAMP_NTZ",
    "s": "STRING",
    "f": "DOUBLE",
    "b": "BINARY",
    "y": "BOOLEAN",
}
#: A row for each number: some columns are sometimes NULL, some texts are longer than what statistics keep.
ROWS = """SELECT if(id % 3 = 0, null, CAST(id AS INT)), -id, date_add(DATE'1969-12-30', CAST(id AS INT)), id / 7.0,
    timestamp_micros(id * 1000003 - 9000000000), TIMESTAMP_NTZ'1900-01-01' + make_interval(0, 0, 0, CAST(id AS INT)),
    concat('it''s \\\\ a "longer" text? ', char(1000 + id)), id / 3, encode(string(id), 'UTF-8'), id % 2 = 0
    FROM range({}, {})"""


def table_of_keys(spark: SparkSession, lake: Lake, name: str) -> Table:
    """A table with a column of each type, and one file."""
    table = make_table(spark, f"{lake.name}.sales.{name}", (2, "merge-on-read"), ", ".join(map(" ".join, KEYS.items())))
    table.run(f"INSERT INTO {{t}} {ROWS.format(0, 5)}")
    return table


def scans(spark: SparkSession, sql: str) -> dict[str, str]:
    """The filters of each table's scan, by the table's name."""
    spark.conf.set("spark.sql.maxPlanStringLength", "100000")
    (plan,) = spark.sql(f"EXPLAIN {sql}").collect()[0]
    return dict(re.findall(r"IcebergScan\(table=\S+\.(\w+), .*?filters=(.*?), runtimeFilters", plan))


def added(table: Table, joined: tuple[str, ...]) -> object:
    """The change since the first snapshot."""
    return table.delta(table.snapshots[0], table.head, tuple(KEYS), "append", joined=joined)[0]


@pytest.mark.parametrize(
    "properties",
    [
        "'write.metadata.metrics.default' = 'truncate(1)'",
        "'write.metadata.metrics.column.l' = 'none'",
        "'write.format.default' = 'orc'",
        *(
            pytest.param(properties, marks=pytest.mark.slow)
            for properties in (
                "",
                "'write.metadata.metrics.default' = 'full'",
                "'write.metadata.metrics.default' = 'counts'",
                "'write.metadata.metrics.default' = 'none'",
                "'write.format.default' = 'avro'",
            )
        ),
    ],
)
def test_no_added_row_is_lost(spark: SparkSession, lake: Lake, properties: str) -> None:
    """With any kind of statistics in the files: full, truncated, or none."""
    table = table_of_keys(spark, lake, "k")
    if properties:
        table.run(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({properties})")
    table.run(f"INSERT INTO {{t}} {ROWS.format(40, 60)}", f"INSERT INTO {{t}} {ROWS.format(-20, -2)}")
    table.run("INSERT INTO {t} (f) VALUES (1.5)", "INSERT INTO {t} (i, f) VALUES (2147483647, double('NaN'))")
    assert added(table, tuple(KEYS)) == table.change(table.snapshots[0], table.head, tuple(KEYS))


def test_a_type_without_a_spark_equivalent_has_no_bounds(spark: SparkSession, lake: Lake) -> None:
    """In Spark a UUID is text, with another order."""
    schema = Schema(NestedField(1, "u", UUIDType(), required=False), NestedField(2, "x", FixedType(2), required=False))
    catalog = SqlCatalog(lake.name, **lake.properties)
    catalog.create_table("sales.u", schema=schema)
    catalog.engine.dispose()
    table = Table(spark, f"{lake.name}.sales.u")
    table.run(*(f"INSERT INTO {{t}} VALUES ('{first}0000000-0000-4000-8000-000000000000', X'00FF')" for first in "18f"))
    found = table.delta(table.snapshots[0], table.head, ("u", "x"), "append", joined=("u", "x"))[0]
    assert found == table.change(table.snapshots[0], table.head, ("u", "x"))


def test_no_row_is_lost_that_was_added_before_a_column_was_widened(spark: SparkSession, lake: Lake) -> None:
    """The older file has 4 bytes for a column that has 8 now, and a decimal with fewer digits."""
    table = make_table(spark, f"{lake.name}.sales.w", (2, "merge-on-read"), "i INT, n DECIMAL(5, 2)")
    table.run("INSERT INTO {t} VALUES (1, 1.5)", "INSERT INTO {t} VALUES (-7, 2.25)")
    table.run("ALTER TABLE {t} ALTER COLUMN i TYPE BIGINT", "ALTER TABLE {t} ALTER COLUMN n TYPE DECIMAL(20, 2)")
    table.run("INSERT INTO {t} VALUES (5000000000, 123456789012.5)")
    columns = ("i", "n")
    found = table.delta(table.snapshots[0], table.head, columns, "append", joined=columns)[0]
    assert found == table.change(table.snapshots[0], table.head, columns)


def test_the_other_side_of_a_join_is_filtered_by_the_bounds_of_the_added_files(spark: SparkSession, lake: Lake) -> None:
    """Files and row groups outside of these bounds are not read; a column without statistics gives no filter."""
    table, other = table_of_keys(spark, lake, "k"), table_of_keys(spark, lake, "other")
    table.run(f"INSERT INTO {{t}} {ROWS.format(40, 60)}")
    work = JobContext(spark, "none")
    step = DeltaStep(VIEW, table.name, table.snapshots[0], table.head, tuple(KEYS), "append")
    try:
        for joined, wanted in [
            (("l",), "l >= -59, l <= -40"),
            (("d",), "d >= 38, d <= 57"),
            (("n",), "n >= 5.714, n <= 8.429"),
            (("s",), "s >= 'it's \\ a "),
        ]:
            make_delta(work, replace(step, joined=joined))
            join = f"SELECT * FROM {VIEW} AS n JOIN {other.name} AS o ON n.{joined[0]} = o.{joined[0]}"
            assert wanted in scans(spark, join)["other"], joined
            assert spark.sql(join).collect() == []
        make_delta(work, step)
        assert ">=" not in scans(spark, f"SELECT * FROM {VIEW} AS n JOIN {other.name} AS o ON n.l = o.l")["other"]
    finally:
        work.close()
