# SPDX-License-Identifier: Apache-2.0
"""The stored rows equal the query's rows at the recorded snapshots, as computed by another engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.engine.fixtures import new_lake
from tests.engine.support import Lake, multiset, recomputed


@dataclass(frozen=True)
class Case:
    """A query in Spark's syntax, and in DuckDB's if it differs."""

    name: str
    spark: str
    duckdb: str | None = None
    rows: int | None = None
    options: dict[str, Any] = field(default_factory=dict)


CASES = [
    Case(
        "join",
        "SELECT o.id, c.country, o.amount FROM {ns}.orders o JOIN {ns}.customers c ON o.customer = c.name",
    ),
    Case(
        "outer_join_with_nulls_and_equal_rows",
        "SELECT c.country, o.note FROM {ns}.customers c LEFT JOIN {ns}.orders o ON o.customer = c.name AND o.id > 1",
    ),
    Case(
        "decimals",
        "SELECT customer, count(*) AS n, count(note) AS notes, sum(amount) AS total, max(amount) AS most, "
        "CAST(avg(amount) AS DECIMAL(16, 6)) AS mean FROM {ns}.orders GROUP BY customer",
    ),
    Case(
        "timestamps_in_partitions",
        "SELECT date_trunc('hour', placed) AS hour, max(seen) AS latest, CAST(min(placed) AS DATE) AS day, "
        "count(*) AS n FROM {ns}.orders GROUP BY date_trunc('hour', placed)",
        "SELECT CAST(date_trunc('hour', placed) AS TIMESTAMPTZ) AS hour, max(seen) AS latest, "
        "CAST(min(placed) AS DATE) AS day, count(*) AS n FROM orders GROUP BY date_trunc('hour', placed)",
        options={"partition_by": ["days(hour)"]},
    ),
    Case(
        "nested_types_in_buckets",
        "SELECT name, tags, home, home.city AS city, map('city', home.city) AS place FROM {ns}.customers",
        "SELECT name, tags, home, home.city AS city, MAP {'city': home.city} AS place FROM customers",
        options={"partition_by": ["bucket(4, name)", "city"]},
    ),
    Case(
        "unicode_columns",
        "SELECT `Größe` * 2 AS `größe in m²`, `名前` AS `a b;c``d`, 'it\\'s; -- not' AS `select` FROM {ns}.odd",
        """SELECT "Größe" * 2 AS "größe in m²", "名前" AS "a b;c`d", 'it''s; -- not' AS "select" FROM odd""",
    ),
    Case("empty_result", "SELECT id, amount FROM {ns}.orders WHERE amount < 0", rows=0),
    Case("empty_base_table", "SELECT count(*) AS n, sum(amount) AS total FROM {ns}.never_written", rows=1),
    Case(
        "rows_of_an_empty_base_table",
        "SELECT id FROM {ns}.orders UNION ALL SELECT id FROM {ns}.never_written",
    ),
    Case(
        "common_table_expressions_and_windows",
        "WITH orders AS (SELECT * FROM {ns}.orders WHERE amount IS NOT NULL) "
        "SELECT id, row_number() OVER (PARTITION BY customer ORDER BY id) AS number, "
        "(SELECT count(*) FROM {ns}.customers) AS customers FROM orders -- the end",
        "SELECT id, row_number() OVER (PARTITION BY customer ORDER BY id) AS number, "
        "(SELECT count(*) FROM customers) AS customers FROM orders WHERE amount IS NOT NULL",
    ),
]


@pytest.fixture(scope="module")
def shop(lake_folder: Any) -> Lake:
    """Base tables with nulls, equal rows, several commits, odd names and odd types."""
    lake = new_lake(lake_folder)
    lake.table(
        "orders",
        "id bigint, customer varchar, amount decimal(12, 2), placed timestamp, seen timestamptz, note varchar",
        "(1, 'ann', 10.50, '2024-02-29 10:15:00.123456', '2024-02-29 10:15:00+02', 'x'), "
        "(1, 'ann', 10.50, '2024-02-29 10:15:00.123456', '2024-02-29 10:15:00+02', 'x')",
        "(2, 'bob', 99999999.99, '2024-03-01 00:00:00', '2024-03-01 00:00:00+00', NULL), "
        "(3, NULL, NULL, NULL, NULL, '')",
        "(4, 'bob', 0.01, '1969-12-31 23:59:59', '1969-12-31 23:59:59+00', 'ü')",
    )
    lake.table(
        "customers",
        "name varchar, country varchar, tags varchar[], home struct(city varchar, zip integer)",
        "('ann', 'DE', ['a', NULL], {'city': 'Köln', 'zip': 50667}), ('bob', NULL, [], NULL), "
        "('cid', 'FR', NULL, {'city': 'Nice', 'zip': NULL})",
    )
    lake.table("odd", '"Größe" double, "名前" varchar', "(1.5, '山'), (NULL, '''')")
    lake.table("never_written", "id bigint, amount decimal(12, 2)")
    return lake


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_i06_a_full_refresh_equals_an_independent_recompute(shop: Lake, case: Case) -> None:
    """They are compared as multisets at the recorded snapshots; rows that were committed later do not matter."""
    shop.create(case.name, case.spark, **case.options)
    result = shop.refresh(case.name)
    shop.insert("orders", "(9, 'ann', 1, NULL, NULL, 'late')")
    stored = shop.stored(case.name)
    expected = recomputed(shop, case.name, case.duckdb or case.spark.replace("{ns}.", ""))

    assert multiset(stored) == expected
    assert result.outcome == "refreshed"
    assert result.rows_written == stored.num_rows
    if case.rows is not None:
        assert stored.num_rows == case.rows


def test_a_refresh_replaces_all_partitions_including_those_without_new_rows(shop: Lake) -> None:
    """A full refresh must not leave rows of an old partition."""
    shop.table("moving", "day date, n int", "('2024-01-01', 1), ('2024-01-02', 2)")
    shop.create("by_day", "SELECT day, n FROM {ns}.moving WHERE n > 1", partition_by=["day"])
    shop.refresh("by_day")
    shop.files.load_table((shop.namespace, "moving")).delete("n = 2")
    shop.insert("moving", "('2024-01-03', 3)")
    shop.spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        shop.refresh("by_day")
    finally:
        shop.spark.conf.unset("spark.sql.sources.partitionOverwriteMode")

    assert [row[1] for row in shop.rows("by_day")] == [3]
