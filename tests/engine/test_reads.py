# SPDX-License-Identifier: Apache-2.0
"""A view reads the tables that its query names, at their snapshots: what a function reads besides is found out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_mv.errors import InvalidQueryError
from airflow_mv.job.reads import check_reads
from airflow_mv.job.work import JobContext
from tests.engine.incremental.checking import check
from tests.engine.support import Lake

#: Queries over r that also read b by the function ``f()``, which the tests make.
HIDDEN = (
    "SELECT k, f() AS x FROM {ns}.r",
    "SELECT k, spark_catalog.default.f() AS x FROM {ns}.r",
    "SELECT k FROM {ns}.r WHERE n IN (SELECT n FROM {ns}.r WHERE n < f())",
    "WITH c AS (SELECT max(f()) AS x FROM {ns}.r) SELECT k FROM {ns}.r JOIN c ON x > k",
    "SELECT k, count(*) AS c FROM {ns}.r GROUP BY k HAVING count(*) < f()",
    "SELECT k, x FROM {ns}.nested",
)


@pytest.fixture
def tables(lake: Lake) -> Iterator[Lake]:
    """Tables r and b, and what SQL functions leave in the session removed."""
    lake.table("r", "k int, n int", "(1, 1), (2, 2)")
    lake.table("b", "v int", "(7)")
    yield lake
    for statement in ("FUNCTION IF EXISTS f", "TEMPORARY FUNCTION IF EXISTS t", "TEMPORARY VARIABLE IF EXISTS amount"):
        lake.run(f"DROP {statement}")


def test_a_function_that_reads_a_table_is_refused_at_create(tables: Lake) -> None:
    """Its table has no recorded snapshot, so the view was fresh for ever; a base table that it reads has another."""
    tables.run(
        "CREATE FUNCTION f() RETURNS INT RETURN (SELECT max(v) FROM {ns}.b)",
        "CREATE VIEW {ns}.nested AS SELECT k, f() AS x FROM {ns}.r",
    )
    for sql in HIDDEN:
        with pytest.raises(InvalidQueryError, match=rf"reads {tables('b')}, which is none of its base tables"):
            tables.create("v", sql)
    tables.run("CREATE OR REPLACE FUNCTION f() RETURNS INT RETURN (SELECT max(n) FROM {ns}.r)")
    with pytest.raises(InvalidQueryError, match=rf"reads {tables('r')}, at another snapshot"):
        tables.create("v", HIDDEN[0])


@pytest.mark.parametrize("strategy", ["full", "incremental"])
@pytest.mark.parametrize("layout", ["pointed", "registered"])
def test_a_function_that_comes_to_read_a_table_is_found_at_the_next_refresh(
    tables: Lake, strategy: str, layout: str
) -> None:
    """It was harmless when the view was made: its view is refreshed in full, and not once it reads a table."""
    tables.run("CREATE FUNCTION f() RETURNS INT RETURN 2")
    tables.create("v", HIDDEN[0], refresh_strategy=strategy, layout=layout)
    tables.refresh("v")
    tables.insert("r", "(3, 3)")
    assert tables.refresh("v").mode == "full"
    check(tables, "v", "SELECT k, 2 AS x FROM r", in_duckdb=True)

    tables.run("CREATE OR REPLACE FUNCTION f() RETURNS INT RETURN (SELECT max(v) FROM {ns}.b)")
    tables.insert("r", "(4, 4)")
    with pytest.raises(InvalidQueryError, match=rf"reads {tables('b')}, which is none of its base tables") as caught:
        tables.refresh("v")
    assert not caught.value.retryable
    assert tables.status("v").state == "stale"


def test_what_only_one_session_has_is_refused_at_create(tables: Lake) -> None:
    """Another session has another value, or none: a refresh runs in a session of its own."""
    tables.run("DECLARE VARIABLE amount INT = 5", "CREATE TEMPORARY FUNCTION t() RETURNS INT RETURN 3")
    for sql in ("SELECT k + amount AS x FROM {ns}.r", "SELECT k FROM {ns}.r WHERE n < session.amount"):
        with pytest.raises(InvalidQueryError, match=r"reads the session variable system\.session\.amount"):
            tables.create("v", sql)
    for sql in ("SELECT k + t() AS x FROM {ns}.r", "SELECT k FROM {ns}.r WHERE n < `t` ()"):
        with pytest.raises(InvalidQueryError, match=r"t\(\) is a temporary SQL function"):
            tables.create("v", sql)


def test_functions_of_a_place_are_refused_before_spark_starts(tables: Lake) -> None:
    """Compaction changes what they give, and no snapshot tells."""
    calls = ("input_file_name()", "Input_File_Block_Start()", "input_file_block_length ()", "`spark_partition_id`()")
    for call in (*calls, "monotonically_increasing_id()"):
        with pytest.raises(InvalidQueryError, match="tells where a row is stored or read"):
            tables.create("v", f"SELECT k, {call} AS x FROM {{ns}}.r")
    tables.run("CREATE VIEW {ns}.nested AS SELECT k, spark_partition_id() AS x FROM {ns}.r")
    with pytest.raises(InvalidQueryError, match="nested view"):
        tables.create("v", "SELECT k, x FROM {ns}.nested")
    assert not tables.scripts


def test_what_reads_no_table_is_read_as_it_is(tables: Lake) -> None:
    """Constants, generated rows, and queries at every place where one may stand; over Connect by the plan's text."""
    tables.run("CREATE FUNCTION f() RETURNS INT RETURN (SELECT max(v) FROM {ns}.b)")
    tables.table("never", "k int")
    pins = {name: f"{_quoted(tables, name)} VERSION AS OF {tables.snapshot(name)}" for name in ("r", "b")}
    queries = [
        "SELECT k FROM {r} JOIN range(3) JOIN (VALUES (1), (2)) AS w(c) ON c = k",
        "SELECT k FROM {r} WHERE EXISTS (SELECT 1 FROM explode(array(1, 2)) JOIN {b} ON v > (SELECT max(v) FROM {b}))",
        "WITH RECURSIVE t AS (SELECT 1 n UNION ALL SELECT n + 1 FROM t WHERE n < 3) SELECT k FROM t JOIN {r} USING (n)",
        "SELECT k, x FROM {r}, LATERAL (SELECT max(v) AS x FROM {b} WHERE v > k)",
        f"SELECT k FROM ({_quoted(tables, 'never')} TABLESAMPLE (0 ROWS))",
        "SELECT 'reads `lake`.`n`.`x` VERSION AS OF 1' AS t, k AS `RelationV2[k] x` FROM {r}",
    ]
    classic, over_connect = JobContext(tables.spark), JobContext(tables.spark)
    over_connect.jvm = None
    for work in (classic, over_connect):
        for sql in queries:
            assert check_reads(work, sql.format(**pins)).columns
        for sql in ("SELECT k, f() AS x FROM {r}", f"SELECT k FROM {{r}} JOIN {_quoted(tables, 'b')}"):
            with pytest.raises(InvalidQueryError, match=tables("b")):
                check_reads(work, sql.format(**pins))


def _quoted(lake: Lake, name: str) -> str:
    return ".".join(f"`{part}`" for part in lake(name).split("."))
