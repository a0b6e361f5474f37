# SPDX-License-Identifier: Apache-2.0
"""Queries and values that the random grammar does not generate: each has once given other rows than a recompute."""

from __future__ import annotations

import time

import pytest

from tests.engine.incremental.checking import check
from tests.engine.incremental.test_edges import mode_after, table, view
from tests.engine.support import Lake


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    ["INSERT INTO {ns}.s VALUES (1, 30, 2.5), (3, 40, 1)", "DELETE FROM {ns}.s WHERE k = 1"],
    ids=["inserted", "deleted"],
)
def test_a_changed_subquery_in_the_select_list_changes_the_rows(lake: Lake, change: str) -> None:
    """The subquery's column is not a key of the groups, of the partitions or of the rows with a floating sum."""
    table(lake, "r", "k int, n int", "(1, 1), (2, 2), (2, 3)")
    table(lake, "s", "k int, n int, f double", "(1, 10, 0.5), (2, 20, 1.5)")
    queries = {
        "groups": "SELECT k, sum(n) + (SELECT max(n) FROM {ns}.s) AS t FROM r GROUP BY k",
        "members": "SELECT k, sum(n) AS t, k IN (SELECT k FROM {ns}.s) AS i FROM r GROUP BY k",
        "windows": "SELECT k, n, count(*) OVER (PARTITION BY k) AS c, (SELECT max(n) FROM {ns}.s) AS m FROM r ",
        "floating": "SELECT r.k, (SELECT sum(f) FROM {ns}.s AS x WHERE x.k = r.k) AS m FROM r ",
        "whole": "SELECT r.k, (SELECT sum(n) FROM {ns}.s AS x WHERE x.k = r.k) AS m FROM r ",
        "below": "SELECT a.k, a.m FROM (SELECT r.k, (SELECT sum(n) FROM {ns}.s AS x WHERE x.k = r.k) AS m FROM r ) a",
    }
    for name, sql in queries.items():
        view(lake, sql, name)
    lake.run(change)
    for name, sql in queries.items():
        assert lake.refresh(name, on_fallback="fail").mode == "replace-keys"
        check(lake, name, sql.replace("{ns}.", ""), in_duckdb=False)


def test_large_maps_preserve_the_order_of_their_entries(lake: Lake) -> None:
    """Scala's maps with more than four entries have another order: the old text was not found, the new one differed."""
    entries = ", ".join(f"'{letter}', 1" for letter in "zyxwvu")
    table(lake, "r", "k int, m map<string, int>", f"(1, map({entries})), (2, map({entries}))")
    sql = "SELECT k, to_json(m) AS t FROM r WHERE k > 0"
    view(lake, sql)
    assert mode_after(lake, sql, "UPDATE {ns}.r SET k = 3 WHERE k = 2") == "merge"
    assert [row[0] for row in lake.rows("v")] == [1, 3]


def test_text_that_is_not_valid_utf_8_is_preserved(lake: Lake) -> None:
    """The driver converted it to another text, and by the files' statistics it did not exist."""
    bad = "CAST(X'{}' AS STRING)"
    table(lake, "r", "k int, t string", f"(1, {bad.format('ff')}), (2, 'a')")
    table(lake, "s", "k int, t string", f"(1, {bad.format('ff')})")
    groups, joined = (
        "SELECT hex(t) AS h, count(*) AS c, max(k) AS m FROM r GROUP BY t",
        "SELECT x.k, hex(y.t) AS h FROM r x JOIN s y ON x.t = y.t",
    )
    view(lake, groups)
    view(lake, joined, "joined")
    change = f"INSERT INTO {{ns}}.r VALUES (3, {bad.format('fe')}), (4, {bad.format('ff')})"
    assert mode_after(lake, groups, change) in ("merge", "replace-keys")
    assert mode_after(lake, joined, name="joined") == "append"
    assert lake.rows("joined") == [(1, "FF"), (4, "FF")]


@pytest.mark.slow
def test_nested_text_that_is_not_valid_utf_8_is_preserved(lake: Lake) -> None:
    """In an array or a struct: as keys the values differed, and their rows were not found."""
    bad = "array(CAST(X'{0}' AS STRING)), named_struct('t', CAST(X'{0}' AS STRING))"
    table(lake, "r", "k int, a array<string>, s struct<t: string>", f"(1, {bad.format('ff')}), (2, {bad.format('61')})")
    sql = "SELECT hex(a[0]) AS h, hex(s.t) AS i, count(*) AS c, max(k) AS m FROM r GROUP BY a, s"
    view(lake, sql)
    change = f"INSERT INTO {{ns}}.r VALUES (3, {bad.format('fe')}), (4, {bad.format('ff')})"
    assert mode_after(lake, sql, change) == "replace-keys"
    assert lake.rows("v") == [("61", "61", 1, 2), ("FE", "FE", 1, 3), ("FF", "FF", 2, 4)]


@pytest.mark.slow
def test_the_session_s_setting_for_backslashes_has_no_effect(lake: Lake) -> None:
    """With ``escapedStringLiterals`` a string would have another meaning than in the refresh before."""
    table(lake, "r", "t string", "('1'), ('a')")
    sql = r"SELECT t, count(*) AS n FROM r WHERE t RLIKE '^\\d+$' GROUP BY t"
    view(lake, sql)
    setting = "spark.sql.parser.escapedStringLiterals"
    lake.spark.conf.set(setting, "true")
    try:
        lake.run("INSERT INTO {ns}.r VALUES ('2'), ('b')")
        assert lake.refresh("v", on_fallback="fail").mode == "merge"
        assert lake.rows("v") == [("1", 1), ("2", 1)]
        lake.run("DELETE FROM {ns}.r WHERE t = '1'")
        assert lake.refresh("v", on_fallback="fail").mode == "merge"
        assert lake.rows("v") == [("2", 1)]
        assert lake.spark.conf.get(setting) == "true"
    finally:
        lake.spark.conf.unset(setting)


@pytest.mark.slow
def test_each_side_of_a_set_operator_keeps_its_type(lake: Lake) -> None:
    """A string beside a date is a date, beside a timestamp a timestamp: the order of the operators matters."""
    table(lake, "r", "t string", "('2024-01-01 10:00:00')")
    table(lake, "s", "d date", "(DATE '2024-02-02')")
    table(lake, "u", "m timestamp", "(TIMESTAMP '2024-03-03 03:03:03')")
    rows = "SELECT t AS x FROM r UNION ALL (SELECT d FROM s UNION ALL SELECT m FROM u )"
    keys = rows.replace("UNION ALL (", "UNION (")
    view(lake, rows)
    view(lake, keys, "keys")
    change = ("INSERT INTO {ns}.r VALUES ('2024-04-04 04:04:04')", "INSERT INTO {ns}.s VALUES (DATE '2024-04-04')")
    assert mode_after(lake, rows, *change) == "append"
    assert mode_after(lake, keys, name="keys") == "replace-keys"
    assert mode_after(lake, rows, "DELETE FROM {ns}.r WHERE t < '2024-02'") == "merge"
    assert mode_after(lake, keys, name="keys") == "replace-keys"


@pytest.mark.slow
def test_a_variable_of_a_lambda_is_not_a_column(lake: Lake) -> None:
    """Spark ignores its case; sqlglot took it for the column of that name."""
    table(lake, "r", "xs array<int>, x int", "(array(1), 10)")
    sql = "SELECT transform(xs, X -> x + 1) AS t FROM r "
    view(lake, sql)
    lake.run("INSERT INTO {ns}.r VALUES (array(5), 50)")
    assert lake.refresh("v", on_fallback="full").mode == "full"
    assert lake.rows("v") == [([2],), ([6],)]


@pytest.mark.slow
def test_an_unused_time_window_still_excludes_rows(lake: Lake) -> None:
    """A NULL time is in no window, and any other time may be in several."""
    table(lake, "r", "k int, at timestamp", "(1, TIMESTAMP '2024-01-01 10:03:00'), (2, NULL)")
    sql = "SELECT k FROM (SELECT window(at, '10 minutes', '5 minutes') AS w, k FROM r )"
    view(lake, sql)
    change = "INSERT INTO {ns}.r VALUES (3, TIMESTAMP '2024-01-01 10:03:00'), (4, NULL)"
    assert mode_after(lake, sql, change) == "append"
    assert lake.rows("v") == [(1,), (1,), (3,), (3,)]


@pytest.mark.slow
def test_now_differs_at_each_refresh_also_as_text(lake: Lake) -> None:
    """Spark replaces it when it plans a query: times that were in the future then may be in the past now."""
    table(lake, "r", "k int, at timestamp")
    lake.run("INSERT INTO {ns}.r SELECT 1, now() + INTERVAL 3 SECONDS")
    passed = time.monotonic() + 3.5
    view(lake, "SELECT k FROM r WHERE at < 'now'")
    view(lake, "SELECT k FROM r WHERE at < CAST('now' AS TIMESTAMP)", "cast")
    view(lake, "SELECT k FROM r WHERE CAST(at AS DATE) <= DATE 'today'", "day")
    time.sleep(max(0, passed - time.monotonic()))
    lake.run("INSERT INTO {ns}.r VALUES (2, TIMESTAMP '2024-01-01 00:00:00')")
    for name in ("v", "cast", "day"):
        assert lake.refresh(name, on_fallback="full").mode == "full", name
        assert lake.rows(name) == [(1,), (2,)]


def test_a_running_sum_without_an_order_cannot_find_rows(lake: Lake) -> None:
    """A compaction may reorder the rows: the old rows are not found by their sums."""
    table(lake, "r", "k int, n int", "(1, 3), (1, 1), (1, 2)")
    view(lake, "SELECT n, sum(n) OVER (PARTITION BY k ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS t FROM r ")
    lake.run(
        f"CALL {lake.catalog.name}.system.rewrite_data_files(table => '{lake.namespace}.r', strategy => 'sort', "
        "sort_order => 'n DESC', options => map('rewrite-all', 'true'))"
    )
    assert lake.refresh("v", on_fallback="fail").mode == "fast-forward"
    lake.run("INSERT INTO {ns}.r VALUES (1, 7)")
    lake.refresh("v", on_fallback="full")
    assert sorted(row[0] for row in lake.rows("v")) == [1, 2, 3, 7]


@pytest.mark.slow
def test_bounds_of_text_that_is_not_valid_utf_8_are_ignored(lake: Lake) -> None:
    """The statistics have a text before or after it in the order; one of many files is enough, or its end."""
    bad, cut = "CAST(X'{}' AS STRING)", f"CAST(X'{'61' * 15}FF7A7A' AS STRING)"
    table(lake, "r", "k int, t string", "(1, 'a')")
    table(lake, "s", "k int, t string", f"(1, {bad.format('80')}), (2, {bad.format('FF')}), (3, {cut})")
    sql = "SELECT x.k, hex(y.t) AS h FROM r x JOIN s y ON x.t = y.t"
    view(lake, sql)
    texts = (f"(4, {bad.format('80')})", f"(5, {bad.format('FF')})", "(6, 'ä'), (7, '😀')")
    assert mode_after(lake, sql, *(f"INSERT INTO {{ns}}.r VALUES {text}" for text in texts)) == "append"
    in_one_file = f"INSERT INTO {{ns}}.r SELECT /*+ COALESCE(1) */ * FROM VALUES (8, 'a'), (9, {cut})"
    assert mode_after(lake, sql, in_one_file) == "append"
    assert [row[0] for row in lake.rows("v")] == [4, 5, 9]


@pytest.mark.slow
def test_a_double_beside_a_decimal_is_compared_as_double(lake: Lake) -> None:
    """``1e-1`` is a double: a value that differs from it by less than the precision of doubles is equal."""
    table(lake, "r", "k int, n decimal(38,18)", "(1, 0.1)")
    sql = "SELECT k FROM r WHERE n = 1e-1"
    view(lake, sql)
    assert mode_after(lake, sql, "INSERT INTO {ns}.r VALUES (2, 0.100000000000000001)") == "append"
    assert lake.rows("v") == [(1,), (2,)]


@pytest.mark.slow
def test_combinations_of_values_that_never_existed_may_fail(lake: Lake) -> None:
    """A new start and an old end: the recompute succeeds, so it is the fallback, whatever class Spark's error has."""
    table(lake, "r", "k int, a int", "(1, 1)")
    table(lake, "s", "k int, b int", "(1, 5)")
    failing = {
        "spine": "size(sequence(r.a, s.b, 1))",
        "binary": "hex(to_binary(if(r.a > s.b, 'zz', '61'), 'hex'))",
        "split": "split(if(r.a > s.b, 'x', 'y'), if(r.a > s.b, '[', 'y'))[0]",
        "json": "from_json(if(r.a > s.b, '{x', '{}'), 'a INT', map('mode', 'FAILFAST')).a",
    }
    queries = {name: f"SELECT r.k, {value} AS e FROM r JOIN s ON r.k = s.k" for name, value in failing.items()}
    for name, sql in queries.items():
        view(lake, sql, name)
    lake.run("UPDATE {ns}.r SET a = 100", "UPDATE {ns}.s SET b = 200")
    for name, sql in queries.items():
        result = lake.refresh(name, on_fallback="full")
        assert (result.mode, "a statement fails on a value" in result.reasons[-1].message) == ("full", True), name
        check(lake, name, sql, in_duckdb=False)


def test_an_average_of_short_decimals_is_rounded_as_in_spark(lake: Lake) -> None:
    """Spark uses doubles: 83120.22 / 320 is 259.7506875, rounded to …687 by Spark; sum / count gives …688."""
    table(lake, "r", "k int, x decimal(10,2), y decimal(15,2)")
    lake.run("INSERT INTO {ns}.r SELECT 1, if(id = 0, 83000, 0), if(id = 0, 83000, 0) FROM range(319)")
    values = "sum(x) AS s, count(x) AS n, avg(x) AS m, sum(y) AS t, count(y) AS o, avg(y) AS a"
    sql = f"SELECT k, count(*) AS c, {values} FROM r GROUP BY k"
    view(lake, sql)
    assert mode_after(lake, sql, "INSERT INTO {ns}.r VALUES (1, 120.22, 120.22)") == "merge"
    assert [str(value) for value in lake.rows("v")[0][4::3]] == ["259.750687", "259.750688"]
