# SPDX-License-Identifier: Apache-2.0
"""A view reads only the tables that its query names, at their snapshots: other reads of functions are detected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pyspark.errors import AnalysisException, UnsupportedOperationException
from pyspark.sql import DataFrame

from airflow_mv.core.job.analysis import BUILT_IN, check_reads
from airflow_mv.core.job.context import JobContext
from airflow_mv.core.script import TableRead
from airflow_mv.errors import InvalidQueryError
from tests.engine.support import Lake

#: Queries over r that call the function ``f()``, which the tests create.
HIDDEN = (
    "SELECT k, f() AS x FROM {ns}.r",
    "SELECT k, spark_catalog.default.f() AS x FROM {ns}.r",
    "SELECT k FROM {ns}.r WHERE n IN (SELECT n FROM {ns}.r WHERE n < f())",
    "WITH c AS (SELECT max(f()) AS x FROM {ns}.r) SELECT k FROM {ns}.r JOIN c ON x > k",
    "SELECT k, count(*) AS c FROM {ns}.r GROUP BY k HAVING count(*) < f()",
    "SELECT k, x FROM {ns}.nested",
)


#: Queries that read a metadata column of r or p. Spark itself refuses one in USING, and one that is no key.
METADATA_READ = (
    "SELECT _file AS x, 1 AS y FROM {ns}.r",
    "SELECT o._row_id FROM {ns}.p o CROSS JOIN (SELECT 1 AS _row_id)",
    "SELECT k FROM {ns}.r WHERE k IN (SELECT _partition.k FROM {ns}.p)",
    "SELECT max(_last_updated_sequence_number) AS m, count(*) AS c FROM {ns}.r",
    "SELECT s.x FROM (SELECT 1 AS _file, _file AS x FROM {ns}.r) s",
    "SELECT k, n AS m FROM (SELECT 1 AS _file) CROSS JOIN {ns}.r WHERE r._file > ''",
    "SELECT r._partition.k FROM {ns}.p AS r",
    "SELECT a.k FROM {ns}.r a JOIN {ns}.r b USING (_pos)",
    "SELECT a.k FROM {ns}.r a JOIN (SELECT 1 AS _spec_id) b USING (_spec_id)",
    "SELECT count(*) AS c, k AS _deleted FROM {ns}.r GROUP BY _deleted",
    "SELECT count(*) AS c, 1 AS x FROM (SELECT n AS _deleted, _deleted AS d FROM {ns}.r) GROUP BY d",
    "SELECT k, m FROM {ns}.r, LATERAL (SELECT _spec_id AS m)",
    "SELECT a.k FROM (SELECT 7 AS _row_id, k FROM {ns}.r) a WHERE EXISTS (SELECT 1 FROM {ns}.p WHERE _row_id = 7)",
    "SELECT transform(array(k), e -> e + _spec_id) AS x, 1 AS y FROM {ns}.r",
    "SELECT k, row_number() OVER (PARTITION BY k ORDER BY _pos) AS x FROM {ns}.r",
    "SELECT k, x FROM {ns}.nested",
)
#: Queries with such a name that means something else, and their rows.
OF_THE_NAME = {
    "SELECT x FROM (SELECT k AS x, n AS _file FROM {ns}.r) WHERE _file > 1": [(2,)],
    "SELECT _pos AS x FROM {ns}.p": [(7,)],
    "SELECT p._Pos + 1 AS x FROM {ns}.p": [(8,)],
    "SELECT named_struct('_file', k)._file AS x FROM {ns}.r": [(1,), (2,)],
    "SELECT transform(array(k), _row_id -> _row_id + 1) AS x FROM {ns}.p": [([2],)],
    "SELECT _file AS x FROM {ns}.p LATERAL VIEW explode(array(k)) AS _file": [(1,)],
    "SELECT b.k, a.k AS x FROM {ns}.r a JOIN {ns}.r b USING (k) WHERE a.k = 1": [(1, 1)],
}


#: Correlated subqueries with an aggregate that has no groups, their rows, and whether Spark 3.5 returns the same ones.
COUNTED = {
    "SELECT k FROM {ns}.r o WHERE EXISTS (SELECT count(*) FROM {ns}.b WHERE v = o.k)": ([(1,), (2,)], False),
    "SELECT k FROM {ns}.r o WHERE k - 1 IN (SELECT count(*) FROM {ns}.b WHERE v = o.k)": ([(1,)], False),
    "SELECT k, (SELECT sum(c) FROM (SELECT count(*) c FROM {ns}.b WHERE v = o.k)) AS c FROM {ns}.r o": (
        [(1, 0), (2, 0)],
        False,
    ),
    "SELECT k, (SELECT count(*) FROM {ns}.b WHERE v = o.k ORDER BY 1) AS c FROM {ns}.r o": ([(1, 0), (2, 0)], False),
    "SELECT k, (SELECT count(*) + 1 FROM {ns}.b WHERE v = o.k) AS c FROM {ns}.r o": ([(1, 1), (2, 1)], True),
    "SELECT k, c FROM {ns}.r o, LATERAL (SELECT count(*) c FROM {ns}.b WHERE v = o.k)": ([(1, 0), (2, 0)], True),
    "SELECT k FROM {ns}.r o WHERE EXISTS (SELECT 1 FROM {ns}.b) AND (SELECT max(v) FROM {ns}.b WHERE v > o.k) > 6": (
        [(1,), (2,)],
        True,
    ),
    "SELECT k FROM {ns}.r o WHERE NOT EXISTS (SELECT n, count(*) FROM {ns}.r i WHERE i.n = o.k + 1 GROUP BY n)": (
        [(2,)],
        True,
    ),
}


@pytest.fixture
def tables(lake: Lake) -> Iterator[Lake]:
    """Tables r and b; SQL functions are removed from the session afterwards."""
    lake.table("r", "k int, n int", "(1, 1), (2, 2)")
    lake.table("b", "v int", "(7)")
    yield lake
    for statement in (
        "FUNCTION IF EXISTS f",
        "FUNCTION IF EXISTS g",
        "TEMPORARY FUNCTION IF EXISTS t",
        "TEMPORARY VARIABLE IF EXISTS amount",
    ):
        if not lake.spark.version.startswith("3."):  # it has neither SQL functions nor variables
            lake.run(f"DROP {statement}")


@pytest.mark.parametrize("definition", ["(SELECT max(v) FROM {ns}.b)", "(SELECT max(n) FROM {ns}.r)", "2"])
def test_a_sql_function_is_refused_wherever_it_is_called(tables: Lake, definition: str) -> None:
    """It may be recreated with another definition, which no snapshot shows: the view would stay fresh."""
    tables.run(
        f"CREATE FUNCTION f() RETURNS INT RETURN {definition}",
        "CREATE VIEW {ns}.nested AS SELECT k, f() AS x FROM {ns}.r",
    )
    for sql in HIDDEN:
        with pytest.raises(
            InvalidQueryError, match=r"calls the SQL function (spark_catalog\.default\.)?f\(\)"
        ) as caught:
            tables.create("v", sql)
        assert not caught.value.retryable
    assert not tables.catalog.exists(tables("v"))


@pytest.mark.parametrize("strategy", ["full", "incremental"])
def test_a_function_that_becomes_a_sql_function_fails_the_next_refresh(tables: Lake, strategy: str) -> None:
    """It was a Python function in the session that created the view: that has no definition to check."""
    first = replace(tables, spark=tables.spark.newSession())
    first.spark.udf.register("t", lambda: 2, "int")
    first.create("v", "SELECT k, t() AS x FROM {ns}.r", refresh_strategy=strategy)
    assert first.refresh("v").mode == "full"
    tables.run("CREATE TEMPORARY FUNCTION t() RETURNS INT RETURN 3")
    tables.insert("r", "(3, 3)")
    with pytest.raises(InvalidQueryError, match=r"calls the SQL function t\(\)") as caught:
        tables.refresh("v")
    assert not caught.value.retryable
    assert tables.status("v").state == "stale"


def test_functions_and_variables_of_one_session_are_refused_at_create(tables: Lake) -> None:
    """Another session has another value, or none, and a refresh runs in its own session."""
    tables.run("DECLARE VARIABLE amount INT = 5", "CREATE TEMPORARY FUNCTION t() RETURNS INT RETURN 3")
    for sql in ("SELECT k + amount AS x FROM {ns}.r", "SELECT k FROM {ns}.r WHERE n < session.amount"):
        with pytest.raises(
            InvalidQueryError,
            match=r"session variable system\.session\.amount|cannot resolve the column (session\.)?amount",
        ):
            tables.create("v", sql)
    for sql in ("SELECT k + t() AS x FROM {ns}.r", "SELECT k FROM {ns}.r WHERE n < `t` ()"):
        with pytest.raises(InvalidQueryError, match=r"calls the SQL function t\(\)"):
            tables.create("v", sql)


def test_a_correlated_subquery_counts_no_rows_as_0_or_is_refused(tables: Lake) -> None:
    """Spark 3.5 takes an aggregate of no rows for no row, unless it is all of a scalar subquery."""
    older = tables.spark.version.startswith("3.")
    for number, (sql, (rows, everywhere)) in enumerate(COUNTED.items()):
        if older and not everywhere:
            with pytest.raises(InvalidQueryError, match="returns other rows than Spark 4"):
                tables.create("v", sql)
            continue
        tables.create(f"v{number}", sql)
        tables.refresh(f"v{number}")
        assert tables.rows(f"v{number}") == rows, sql


def test_functions_of_a_row_s_location_are_refused_before_spark_starts(tables: Lake) -> None:
    """A compaction changes their values, which no snapshot shows."""
    calls = ("input_file_name()", "Input_File_Block_Start()", "input_file_block_length ()", "`spark_partition_id`()")
    for call in (*calls, "monotonically_increasing_id()"):
        with pytest.raises(InvalidQueryError, match="depends on where a row is stored or read"):
            tables.create("v", f"SELECT k, {call} AS x FROM {{ns}}.r")
    tables.run("CREATE VIEW {ns}.nested AS SELECT k, spark_partition_id() AS x FROM {ns}.r")
    with pytest.raises(InvalidQueryError, match="nested view"):
        tables.create("v", "SELECT k, x FROM {ns}.nested")
    assert not tables.scripts


def test_no_metadata_column_is_read_in_any_way_of_naming_it(tables: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's analysis decides; over Connect its text does. After a compaction such a view would be fresh and wrong."""
    tables.run(
        "CREATE TABLE {ns}.p (k int, `_POS` int) USING iceberg PARTITIONED BY (k) "
        "TBLPROPERTIES ('format-version' = '3')"
    )
    tables.run("INSERT INTO {ns}.p VALUES (1, 7)", "CREATE VIEW {ns}.nested AS SELECT k, _file AS x FROM {ns}.r")
    for sql in METADATA_READ:
        with pytest.raises(
            InvalidQueryError, match=r"metadata column|USING column|MISSING_AGG|no common column"
        ) as caught:
            tables.create("v", sql)
        assert not caught.value.retryable, sql
    assert not tables.catalog.exists(tables("v"))
    over_connect = JobContext(tables.spark, "none")
    over_connect.jvm = None
    monkeypatch.setattr(over_connect, "explained", _explained)
    over_connect.reads = tuple(TableRead(_quoted(tables, name), None) for name in ("r", "p"))
    for number, (sql, rows) in enumerate(OF_THE_NAME.items()):
        tables.create(f"v{number}", sql)
        tables.refresh(f"v{number}")
        assert tables.rows(f"v{number}") == rows, sql
        assert check_reads(over_connect, sql.replace("{ns}", f"{tables.catalog.name}.{tables.namespace}")).columns, sql
    for sql in METADATA_READ[:3]:
        with pytest.raises(InvalidQueryError, match="metadata column of a table"):
            check_reads(over_connect, sql.replace("{ns}", f"{tables.catalog.name}.{tables.namespace}"))


def test_a_view_has_no_column_that_iceberg_could_not_read(tables: Lake) -> None:
    """Iceberg reads no table with a column of the name of a metadata column."""
    for options in ({"sql": "SELECT k AS _file FROM {ns}.r"}, {"sql": "SELECT k FROM {ns}.r", "columns": ["_POS"]}):
        with pytest.raises(InvalidQueryError, match="Iceberg cannot read a table with a column '_"):
            tables.create("v", **options)


def test_a_query_without_tables_is_accepted(tables: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Constants, generated rows, and queries at every possible place; over Connect by the text of the plan."""
    tables.run("CREATE FUNCTION f() RETURNS INT RETURN 7", "CREATE TEMPORARY FUNCTION t() RETURNS INT RETURN 3")
    tables.run("CREATE FUNCTION g() RETURNS TABLE(v INT) RETURN SELECT 1 AS v")
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
    classic, over_connect = JobContext(tables.spark, "none"), JobContext(tables.spark, "none")
    over_connect.jvm = None
    monkeypatch.setattr(over_connect, "explained", _explained)
    classic.reads = over_connect.reads = (
        *(TableRead(_quoted(tables, name), tables.snapshot(name)) for name in ("r", "b")),
        TableRead(_quoted(tables, "never"), None),
    )
    for work in (classic, over_connect):
        for sql in queries:
            assert check_reads(work, sql.format(**pins)).columns
        for column in (
            "k",
            f"'{_quoted(tables, 'b')} TABLESAMPLE (0 ROWS)' AS k",
        ):  # a string literal is not a permission
            with pytest.raises(InvalidQueryError, match=tables("b")):
                check_reads(work, f"SELECT {column} FROM {pins['r']} JOIN {_quoted(tables, 'b')}")
        for call in ("f()", "default . f ()", "`spark_catalog`.default.`f`()", "T()", "(SELECT max(v) FROM g())"):
            with pytest.raises(InvalidQueryError, match="SQL function"):
                check_reads(work, f"SELECT k, {call} AS x FROM {pins['r']}")


def test_a_quote_that_spark_would_leave_out_is_refused(tables: Lake) -> None:
    """Spark 4.0 leaves it out, as does Spark 4.1 with a setting. Plans are made with the meaning of Spark 4.1."""
    legacy = "spark.sql.legacy.consecutiveStringLiterals.enabled"
    work = JobContext(tables.spark, "none")
    doubled = ("SELECT 'it''s' AS v", 'SELECT "say ""no""" AS v', "SELECT '''' AS v")
    others = ("SELECT concat('', 'it\\'s', \"it's\", 'a' 'b') AS `a''b`", "SELECT 1 AS v -- it''s")
    for sql in others:
        assert check_reads(work, sql).columns
    if tables.spark.version >= "4.1":
        for sql in doubled:
            assert check_reads(work, sql).columns
    tables.spark.conf.set(legacy, "true")
    try:
        for sql in others:
            assert check_reads(work, sql).columns
        for sql in doubled:
            with pytest.raises(InvalidQueryError, match="leaves out quotes written twice"):
                check_reads(work, sql)
    finally:
        tables.spark.conf.unset(legacy)


def test_no_sql_function_can_have_the_name_of_a_function_that_is_not_looked_up(tables: Lake) -> None:
    """These names are assumed to be Spark's own."""
    for name in ("sum", "upper"):
        with pytest.raises((AnalysisException, UnsupportedOperationException)):
            tables.run(f"CREATE OR REPLACE TEMPORARY FUNCTION {name}(x INT) RETURNS INT RETURN 3")
    for name in BUILT_IN:
        assert tables.spark.catalog.getFunction(name).className.startswith("org.apache.spark.sql.catalyst."), name


def _explained(frame: DataFrame) -> str:
    """The text of a frame's plans in a classic session, whose frames do not have Connect's method."""
    utils: Any = frame.sparkSession.sparkContext._jvm
    return str(utils.PythonSQLUtils.explainString(frame._jdf.queryExecution(), "extended"))


def _quoted(lake: Lake, name: str) -> str:
    return ".".join(f"`{part}`" for part in lake(name).split("."))
