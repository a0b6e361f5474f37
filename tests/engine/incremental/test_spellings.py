# SPDX-License-Identifier: Apache-2.0
"""Queries as users write them: each is refreshed incrementally if that is correct, and equals a recompute."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pyspark.sql import Row

from airflow_mv.common.stored_rows import stored_rows
from airflow_mv.errors import InvalidQueryError, UnsupportedError
from airflow_mv.extras.maintenance.orphans import maintain
from airflow_mv.extras.maintenance.verify import verify, verify_files
from airflow_mv.extras.read import read_rows, readable
from tests.engine.incremental.checking import check
from tests.engine.incremental.playing import ALWAYS
from tests.engine.incremental.test_edges import table, view
from tests.engine.support import Lake

#: Queries over r with their expected modes: after rows were added, and after rows were removed and changed.
QUERIES = {
    "SELECT window.start, window.END, sum(n) AS n, count(*) AS c, count(n) AS d FROM r "
    "GROUP BY window(at, '10 minutes', '5 minutes')": ("merge", "merge"),
    "SELECT k, window.start AS s, max(n) AS m FROM r WHERE n > 1 GROUP BY k, window(at, '5 minutes') "
    "HAVING window.end > TIMESTAMP '2020-01-01 00:00:00'": ("replace-keys", "replace-keys"),
    "SELECT window, count(*) AS c FROM r GROUP BY window(at, '5 minutes')": ("merge", "merge"),
    "SELECT session_window.start AS s, count(*) AS c FROM r GROUP BY session_window(at, '5 minutes')": ("full", "full"),
    "SELECT k, any(b) AS x, some(b) AS y, every(b) AS z FROM r GROUP BY k": ("merge", "replace-keys"),
    "SELECT k, any(b) FILTER (WHERE n > 1) AS x, count_if(b) AS y FROM r GROUP BY k": ("merge", "replace-keys"),
    "SELECT k, explode(a) FROM r ": ("append", "merge"),
    "SELECT k, posexplode(a) AS (p, x) FROM r WHERE n > 1": ("append", "merge"),
    "SELECT k, explode_outer(m) AS (x, y) FROM r ": ("append", "merge"),
    "SELECT DISTINCT stack(2, 1, n, 2, k) FROM r ": ("replace-keys", "replace-keys"),
    "SELECT m FROM r ": ("append", "full"),
    "SELECT sum(n) AS s, count(*) AS c FROM r HAVING avg(n) > 4.5": ("replace-keys", "replace-keys"),
    "SELECT k, n FROM (SELECT k, n, max(n) OVER (PARTITION BY k ORDER BY at ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) "
    "AS x FROM r ) WHERE x > 1": ("full", "full"),
    "SELECT k, x FROM r , LATERAL (SELECT n + 1 AS x)": ("full", "full"),
}


@pytest.mark.parametrize("each", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_each_form_of_a_query_is_incremental_if_that_is_correct(lake: Lake, each: int) -> None:
    """Some could not be created, some were recomputed without need."""
    columns = "k int, n int, at timestamp, a array<int>, m map<string, int>, b boolean"
    # No two rows of one key have the same time: a window of ROWS would have either order.
    first, later, second = (f"TIMESTAMP '2024-01-01 10:0{minute}:00'" for minute in (0, 1, 4))
    table(
        lake,
        "r",
        columns,
        f"(1, 1, {first}, array(1, 2), map('x', 1), true), (2, 5, NULL, NULL, NULL, NULL), "
        f"(1, 7, {second}, array(), map(), false)",
    )
    queries = [*QUERIES.items()][::each]
    for number, (sql, _) in enumerate(queries):
        view(lake, sql, f"v{number}")
    changes = (
        [
            f"INSERT INTO {{ns}}.r VALUES (3, 3, {second}, array(3, NULL), map('y', 3), false), "
            f"(1, 9, {later}, NULL, NULL, NULL)"
        ],
        ["DELETE FROM {ns}.r WHERE n = 1", f"UPDATE {{ns}}.r SET b = true, n = 4, at = {first} WHERE k = 3"],
    )
    for at, statements in enumerate(changes):
        lake.run(*statements)
        for number, (sql, modes) in enumerate(queries):
            if at and modes == ("full", "full"):
                continue  # it has been recomputed once
            assert lake.refresh(f"v{number}", on_fallback="full").mode == modes[at], sql
            check(lake, f"v{number}", sql, in_duckdb=False)


@pytest.mark.slow
def test_columns_may_have_the_names_that_statements_use(lake: Lake) -> None:
    """The number of a row's copies is named ``__w`` there: only a view with such a column is refreshed in full."""
    table(lake, "r", "k int, __w int, __text0 double, __same0 double", "(1, 1, 0.5, 0.5), (2, 2, 1.5, 1.5)")
    counted, others = "SELECT k, __w FROM r ", "SELECT k, __text0 AS __stored, __same0 AS __delta FROM r "
    view(lake, counted)
    view(lake, others, "others")
    for change in ("INSERT INTO {ns}.r VALUES (3, 3, -0.0, 2.5)", "UPDATE {ns}.r SET __w = 9, __text0 = 7 WHERE k = 2"):
        lake.run(change)
        result = lake.refresh("v", on_fallback="full")
        assert (result.mode, "called __w" in result.reasons[-1].message) == ("full", True)
        check(lake, "v", counted, in_duckdb=False)
        assert lake.refresh("others", on_fallback="fail").mode in ("append", "merge")
        check(lake, "others", others, in_duckdb=False)


def test_a_view_may_have_a_variant_column(lake: Lake) -> None:
    """Its storage table has the format version 3, and pyiceberg reads neither table."""
    lake.run("CREATE TABLE {ns}.r (k int, n int, v variant) USING iceberg TBLPROPERTIES ('format-version' = '3')")
    lake.run("INSERT INTO {ns}.r SELECT 1, 1, parse_json('[1, 2]')")
    sql = "SELECT k, v, array(v) AS a FROM {ns}.r WHERE n > 0"
    with pytest.raises(InvalidQueryError, match="column 'v' has the type variant"):
        lake.create("v", sql, layout="registered")
    lake.create("v", sql, layout="pointed", refresh_strategy="incremental", properties=ALWAYS)
    lake.refresh("v")
    changes = ("INSERT INTO {ns}.r SELECT 2, 2, parse_json('{}')", "UPDATE {ns}.r SET n = 3 WHERE k = 1")
    for change, mode in zip(changes, ("append", "full"), strict=True):
        lake.run(change)
        assert lake.refresh("v", on_fallback="full").mode == mode
    view = lake.view("v")
    frame = stored_rows(lake.spark, view.identifier, lake.catalog.load_storage(view), None)
    rows = frame.selectExpr("k", "to_json(v) AS v", "size(a) AS a").orderBy("k").collect()
    assert rows == [Row(k=1, v="[1,2]", a=1), Row(k=2, v="{}", a=1)]
    assert verify(lake.catalog, lake("v"), session=lambda: lake.spark).equal
    assert verify_files(lake.catalog, lake("v")).intact
    assert maintain(lake.catalog, lake("v"), older_than=timedelta(0)).collected.files
    assert verify(lake.catalog, lake("v"), session=lambda: lake.spark).equal
    with pytest.raises(UnsupportedError, match="pyiceberg cannot read the column 'v' of type variant"):
        read_rows(lake.catalog, readable(lake.catalog, lake("v")))
