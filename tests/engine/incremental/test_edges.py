# SPDX-License-Identifier: Apache-2.0
"""Edge cases of an incremental refresh, written by hand: values, keys and complete tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_mv.core.job.context import JobContext
from airflow_mv.core.refresh.plan import RefreshPlan
from tests.engine.incremental.checking import check, stored
from tests.engine.incremental.histories import VARIANTS
from tests.engine.incremental.playing import ALWAYS
from tests.engine.support import Lake

MODES = ("copy-on-write", "merge-on-read")
MERGE_ON_READ = ", ".join(f"'write.{verb}.mode' = 'merge-on-read'" for verb in ("delete", "update", "merge"))


def table(lake: Lake, name: str, columns: str, rows: str | None = None, *, version: int = 2) -> None:
    """Create a base table whose rows are deleted without rewriting files."""
    lake.run(
        f"CREATE TABLE {{ns}}.{name} ({columns}) USING iceberg "
        f"TBLPROPERTIES ('format-version' = '{version}', {MERGE_ON_READ})"
    )
    if rows:
        lake.run(f"INSERT INTO {{ns}}.{name} VALUES {rows}")


def view(lake: Lake, sql: str, name: str = "v", **definition: Any) -> None:
    """Create a view over r, s and u, and refresh it."""
    lake.create(name, _full(sql), refresh_strategy="incremental", properties=ALWAYS, **definition)
    lake.refresh(name)


def _full(sql: str) -> str:
    for known in ("r", "s", "u"):
        sql = sql.replace(f"FROM {known} ", f"FROM {{ns}}.{known} ").replace(f"JOIN {known} ", f"JOIN {{ns}}.{known} ")
    return sql


def mode_after(lake: Lake, sql: str, *changes: str, name: str = "v") -> str:
    """Change the base tables, refresh without a fallback, compare, and return the mode."""
    lake.run(*changes)
    mode = lake.refresh(name, on_fallback="fail").mode
    check(lake, name, sql, in_duckdb=False)
    return str(mode)


def test_a_null_is_a_key_like_any_other(lake: Lake) -> None:
    """NULL = NULL is not true: if a NULL group were joined by ``=``, it would be stored twice."""
    table(lake, "r", "k string, n int", "(NULL, 1), ('a', 1), (NULL, 2)")
    sql = "SELECT k, count(*) AS c, sum(n) AS t, count(n) AS cn FROM r GROUP BY k"
    most = "SELECT k, max(n) AS m FROM r GROUP BY k"
    view(lake, sql)
    view(lake, most, "most")
    change = "INSERT INTO {ns}.r VALUES (NULL, 7)"

    assert mode_after(lake, sql, change) == "merge"
    assert mode_after(lake, most, name="most") == "merge"
    assert lake.rows("v") == [("a", 1, 1, 1), (None, 3, 10, 3)]
    assert mode_after(lake, sql, "DELETE FROM {ns}.r WHERE n = 7") == "merge"
    assert mode_after(lake, most, name="most") == "replace-keys"
    assert lake.rows("most") == [("a", 1), (None, 2)]


@pytest.mark.slow
def test_a_group_that_loses_its_last_row_disappears(lake: Lake) -> None:
    """By the visible count if the stored row is updated, and also if it is recomputed."""
    table(lake, "r", "k string, n int", "('a', 1), ('b', NULL), ('b', 2)")
    patched = "SELECT k, count(*) AS c, sum(n) AS t, count(n) AS cn FROM r GROUP BY k"
    anew = "SELECT k, min(n) AS m FROM r GROUP BY k"
    view(lake, patched)
    view(lake, anew, "anew")

    assert mode_after(lake, patched, "DELETE FROM {ns}.r WHERE k = 'a' OR n = 2") == "merge"
    assert mode_after(lake, anew, name="anew") == "replace-keys"
    assert lake.rows("v") == [("b", 1, None, 0)]
    assert lake.rows("anew") == [("b", None)]


@pytest.mark.slow
def test_a_sum_of_a_not_null_column_needs_no_count_of_it(lake: Lake) -> None:
    """Every row has a value, so ``count(*)`` shows when none is left; the optional side of a join may have none."""
    lake.run("CREATE TABLE {ns}.r (k string, n int NOT NULL) USING iceberg")
    lake.run("INSERT INTO {ns}.r VALUES ('a', 1), ('b', 2), ('b', 3)")
    sql = "SELECT k, sum(n * 2) AS t, avg(n * 2) AS m, count(*) AS c FROM r GROUP BY k"
    outer = "SELECT x.k, sum(y.n) AS t, count(*) AS c FROM r x LEFT JOIN r y ON x.n = y.n + 1 GROUP BY x.k"
    view(lake, sql)
    view(lake, outer, "o")

    assert mode_after(lake, sql, "DELETE FROM {ns}.r WHERE n = 1", "UPDATE {ns}.r SET n = 9 WHERE n = 2") == "merge"
    assert mode_after(lake, outer, name="o") == "replace-keys"
    assert [row[0] for row in lake.rows("v")] == ["b"]


@pytest.mark.parametrize("kind", ["bigint", pytest.param("decimal(38, 0)", marks=pytest.mark.slow)])
def test_a_sum_that_overflows_temporarily_equals_a_recompute(lake: Lake, kind: str) -> None:
    """The sum of stored and changed rows is too large for the type, but the result is not."""
    huge = "9223372036854775807" if kind == "bigint" else "99999999999999999999999999999999999999"
    table(lake, "r", f"k int, n {kind}", f"(1, {huge}), (2, 5)")
    sql = "SELECT k, count(*) AS c, sum(n) AS t, count(n) AS cn FROM r GROUP BY k"
    view(lake, sql)
    lake.run("INSERT INTO {ns}.r VALUES (2, 1)", f"UPDATE {{ns}}.r SET n = {huge} - 1 WHERE k = 1")

    result = lake.refresh("v", on_fallback="full")
    check(lake, "v", sql, in_duckdb=False)
    assert result.outcome == "refreshed"
    assert [int(row[2]) for row in lake.rows("v")] == [int(huge) - 1, 6]


def test_a_sum_that_overflows_permanently_fails_as_a_recompute_does(lake: Lake) -> None:
    """The job falls back to a recompute, which fails, too: the old rows are kept."""
    table(lake, "r", "k int, n bigint", "(1, 9223372036854775807), (2, 5)")
    sql = "SELECT k, count(*) AS c, sum(n) AS t, count(n) AS cn FROM r GROUP BY k"
    view(lake, sql)
    lake.run("INSERT INTO {ns}.r VALUES (1, 1)")

    with pytest.raises(Exception, match="OVERFLOW"):
        lake.refresh("v", on_fallback="full")
    assert [row[2] for row in lake.rows("v")] == [9223372036854775807, 5]
    assert mode_after(lake, sql, "DELETE FROM {ns}.r WHERE n = 1") in ("merge", "replace-keys", "fast-forward")


@pytest.mark.slow
def test_nan_and_negative_zero_do_not_remain_in_sums(lake: Lake) -> None:
    """NaN - NaN is NaN: a floating sum is never updated, its group is recomputed."""
    table(lake, "r", "k int, f double", "(1, double('NaN')), (1, 0.1), (1, 0.2), (2, -0.0), (3, 0.5)")
    sums = "SELECT k, sum(f) AS t, count(*) AS c, count(f) AS cf FROM r GROUP BY k"
    keys = "SELECT f, count(*) AS c FROM r GROUP BY f"
    rows = "SELECT f FROM r WHERE k < 9"
    view(lake, sums)
    view(lake, keys, "keys")
    view(lake, rows, "rows")
    change = ("DELETE FROM {ns}.r WHERE isnan(f)", "INSERT INTO {ns}.r VALUES (2, 0.0), (4, double('NaN'))")

    assert mode_after(lake, sums, *change) == "replace-keys"
    assert mode_after(lake, keys, name="keys") in ("merge", "replace-keys")
    assert mode_after(lake, rows, name="rows") in ("merge", "replace-keys")
    assert next(row for row in lake.rows("v") if row[0] == 1)[1] == pytest.approx(0.3)


@pytest.mark.slow
def test_a_self_join_includes_changes_on_both_sides(lake: Lake) -> None:
    """Rows that were added together are joined with each other once; rows that were removed together, too."""
    table(lake, "r", "k int, n int", "(1, 1), (1, 2), (2, 1), (NULL, 1)")
    sql = "SELECT x.k, x.n, y.n AS m FROM r x JOIN r y ON x.k = y.k"
    outer = "SELECT x.k, x.n, y.n AS m FROM r x LEFT JOIN r y ON x.n = y.k"
    view(lake, sql)
    view(lake, outer, "o")

    assert mode_after(lake, sql, "INSERT INTO {ns}.r VALUES (1, 3), (2, 2)") == "append"
    assert mode_after(lake, outer, name="o") == "replace-keys"
    change = "MERGE INTO {ns}.r t USING (SELECT 1 AS k) u ON t.k = u.k WHEN MATCHED AND t.n = 1 THEN DELETE "
    assert mode_after(lake, sql, change + "WHEN MATCHED THEN UPDATE SET k = 2") == "merge"
    assert mode_after(lake, outer, name="o") == "replace-keys"


@pytest.mark.slow
def test_an_aggregate_over_an_empty_table_keeps_its_single_row(lake: Lake) -> None:
    """From empty to non-empty and back: the row always exists."""
    table(lake, "r", "n int")
    sql = "SELECT count(*) AS c, sum(n) AS t, count(n) AS cn FROM r "
    most = "SELECT max(n) AS m, count(DISTINCT n) AS d FROM r "
    view(lake, sql)
    view(lake, most, "most")
    assert (lake.rows("v"), lake.rows("most")) == ([(0, None, 0)], [(None, 0)])

    modes = [mode_after(lake, sql, "INSERT INTO {ns}.r VALUES (3), (NULL)"), mode_after(lake, most, name="most")]
    assert (lake.rows("v"), lake.rows("most")) == ([(2, 3, 1)], [(3, 1)])
    modes += [mode_after(lake, sql, "DELETE FROM {ns}.r"), mode_after(lake, most, name="most")]
    assert (lake.rows("v"), lake.rows("most")) == ([(0, None, 0)], [(None, 0)])
    assert "full" not in modes


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["v3-merge-on-read", *(f"v2-{how}" for how in MODES)])
def test_deleting_all_rows_of_a_table_deletes_those_of_the_view(lake: Lake, variant: str) -> None:
    """New rows after that are added."""
    properties = ", ".join(f"'{key}' = '{value}'" for key, value in VARIANTS[variant].items())
    lake.run(
        f"CREATE TABLE {{ns}}.r (k int, n int) USING iceberg TBLPROPERTIES ({properties})",
        "INSERT INTO {ns}.r VALUES (1, 1), (1, 2), (2, 3)",
    )
    rows, groups = (
        "SELECT k, n FROM r WHERE n > 0",
        "SELECT k, count(*) AS c, sum(n) AS t, count(n) AS cn FROM r GROUP BY k",
    )
    view(lake, rows)
    view(lake, groups, "groups")

    for change in ("DELETE FROM {ns}.r WHERE n < 99", "INSERT INTO {ns}.r VALUES (1, 1)"):
        assert mode_after(lake, rows, change) != "full"
        assert mode_after(lake, groups, name="groups") != "full"
    assert (lake.rows("v"), lake.rows("groups")) == ([(1, 1)], [(1, 1, 1, 1)])


def test_a_second_refresh_does_nothing(lake: Lake) -> None:
    """A fresh view starts no job, and a merged change is not merged again."""
    table(lake, "r", "k int", "(1), (1)")
    sql = "SELECT k, count(*) AS c FROM r GROUP BY k"
    view(lake, sql)
    assert mode_after(lake, sql, "INSERT INTO {ns}.r VALUES (1)") == "merge"
    jobs = len(lake.scripts)

    assert lake.refresh("v").mode == "noop"
    assert len(lake.scripts) == jobs
    assert lake.rows("v") == [(1, 3)]


@pytest.mark.slow
def test_columns_that_cannot_be_compared_are_copied(lake: Lake) -> None:
    """Maps are never keys: rows with maps can be appended; otherwise another column must be the key."""
    table(lake, "r", "k int, m map<string, int>", "(1, map('a', 1)), (2, NULL)")
    rows, keyed = (
        "SELECT k, m FROM r WHERE k > 0",
        "SELECT k, m, row_number() OVER (PARTITION BY k ORDER BY k) AS n FROM r",
    )
    view(lake, rows)
    view(lake, keyed, "keyed")

    assert mode_after(lake, rows, "INSERT INTO {ns}.r VALUES (3, map('b', 2))") == "append"
    assert mode_after(lake, keyed, name="keyed") == "replace-keys"
    lake.run("DELETE FROM {ns}.r WHERE k = 1")
    assert mode_after(lake, keyed, name="keyed") == "replace-keys"
    assert lake.refresh("v", on_fallback="full").mode in ("full", "replace-keys")
    assert stored(lake, "v").num_rows == 2
    check(lake, "v", rows, in_duckdb=False)


def test_rows_that_a_statement_only_copied_do_not_count_as_changed(lake: Lake) -> None:
    """Copy-on-write writes whole files. In format version 3 the files' statistics tell how many rows are copies."""
    lake.run(
        "CREATE TABLE {ns}.r (k int, n int) USING iceberg TBLPROPERTIES ('format-version' = '3')",
        "INSERT INTO {ns}.r SELECT id % 7, id FROM range(1000)",
    )
    view(lake, "SELECT k, count(*) AS c, sum(n) AS t FROM r GROUP BY k")
    update, delete = "UPDATE {ns}.r SET n = -1 WHERE n < 3", "DELETE FROM {ns}.r WHERE n > 997"
    merge = (
        "MERGE INTO {ns}.r AS t USING (SELECT 1 AS k, explode(array(500, 5000)) AS n) AS s ON t.n = s.n "
        "WHEN MATCHED THEN UPDATE SET k = s.k WHEN NOT MATCHED THEN INSERT *"
    )
    all_rows = "INSERT OVERWRITE {ns}.r SELECT id % 7, id FROM range(600)"
    changed = []
    for statements in ((update,), (delete,), (merge, update, "INSERT INTO {ns}.r VALUES (1, 1)", delete), (all_rows,)):
        plans: list[RefreshPlan] = []
        lake.run(*statements)
        lake.refresh("v", on_plan=plans.append)
        changed.append(plans[0].estimates[0].rows_changed)
    # An updated row counts as one that was removed and one that was added.
    assert changed == [6, 2, 3 + 6 + 1 + 1, 999 + 600]


@pytest.mark.parametrize("most", [20_000, 10], ids=["held by the driver", "held by executors"])
def test_files_of_a_large_table_that_no_changed_row_can_match_are_not_read(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Its file with the other keys is missing while the view is refreshed."""
    monkeypatch.setattr("airflow_mv.core.refresh.candidates._LARGE_BYTES", 1)
    for module in ("changed_files", "context", "delta", "gather"):
        monkeypatch.setattr(f"airflow_mv.core.job.{module}.MAX_LOCAL_ROWS", most)
    table(lake, "r", "k int, n int", "(901, 1)")
    table(lake, "s", "k int, m int", "(0, 100), (1, 200), (2, 300)")
    lake.run(
        "INSERT INTO {ns}.r SELECT CAST(id % 3 AS INT), CAST(id AS INT) FROM range(30)",
        "INSERT INTO {ns}.s SELECT /*+ COALESCE(1) */ * FROM VALUES (901, 400), (902, 500)",
    )
    sql = "SELECT y.m, count(*) AS c, sum(x.n) AS n FROM r x JOIN s y ON x.k = y.k GROUP BY y.m"
    view(lake, sql)
    lake.run("UPDATE {ns}.r SET n = n + 1 WHERE k < 3")
    (row,) = lake.sql("SELECT file_path FROM {ns}.s.files WHERE readable_metrics.k.lower_bound = 901").collect()
    file = Path(row[0].removeprefix("file:"))
    file.rename(file.with_suffix(".away"))
    assert lake.refresh("v", on_fallback="fail").mode == "merge"
    file.with_suffix(".away").rename(file)
    check(lake, "v", sql, in_duckdb=True)


#: Names that stand for one thing in the owner's text, and for another in a condition or statement without its aliases.
_CAPTURES = {
    "a variable has a column's name": (
        {"r": ("id int, price int, prices array<int>", "(10, 1, array(2)), (1, 1, array(3)), (2, 9, array(4))")},
        "SELECT id, max(price) AS m FROM r WHERE exists(prices, price -> price > r.price) GROUP BY id",
        "DELETE FROM {ns}.r WHERE id = 1",
    ),
    "a variable has its table's name": (
        {"r": ("id int, arr array<struct<id: int>>", "(1, array(named_struct('id', 5)))")},
        "SELECT id, size(filter(arr, r -> r.id > id)) AS n FROM r ",
        "INSERT INTO {ns}.r VALUES (2, array(named_struct('id', 7)))",
    ),
    "a struct has its table's name": (
        {"r": ("id int, r struct<id: int>", "(10, named_struct('id', 10))")},
        "SELECT a.id AS id, count(*) AS c FROM r a WHERE a.r.id > 3 GROUP BY a.id",
        "INSERT INTO {ns}.r VALUES (1, named_struct('id', 9))",
    ),
    "a struct has the name of an outer table": (
        {
            "r": ("id int, n int", "(1, 1)"),
            "s": ("k int, r struct<id: int>", "(1, named_struct('id', 1)), (2, named_struct('id', 5))"),
        },
        "SELECT id, (SELECT max(s.r.id) FROM s WHERE k = id) AS m FROM r ",
        "INSERT INTO {ns}.r VALUES (2, 2), (5, 7)",
    ),
}


@pytest.mark.parametrize("lists_tasks", [True, False])
@pytest.mark.parametrize("name", _CAPTURES)
def test_a_name_is_not_captured_by_another(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, name: str, lists_tasks: bool
) -> None:
    """The refresh refuses such a query, or its rows are those of the owner's text."""
    monkeypatch.setattr(JobContext, "lists_tasks", lists_tasks)
    tables, sql, change = _CAPTURES[name]
    for one, (columns, rows) in tables.items():
        table(lake, one, columns, rows)
    view(lake, sql)
    lake.run(change)

    lake.refresh("v", on_fallback="full")
    check(lake, "v", sql, in_duckdb=False)


@pytest.mark.parametrize("most", [None, -1])
def test_a_data_file_twice_in_a_snapshot_counts_twice(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, most: int | None
) -> None:
    """Other writers have added a file again. Without scan tasks, files are named, and each name reads both entries."""
    monkeypatch.setattr(JobContext, "lists_tasks", False)
    if most is not None:
        monkeypatch.setattr("airflow_mv.core.job.changed_files._MAX_VALUES", most)  # as for many files
    table(lake, "r", "k int, n int", "(1, 1)")
    sql = "SELECT k, count(*) AS c, sum(n) AS t, count(n) AS cn FROM r GROUP BY k"
    view(lake, sql)
    jvm: Any = lake.spark._jvm
    java = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(lake.spark._jsparkSession, lake("r"))
    java.newFastAppend().appendFile(java.newScan().planFiles().iterator().next().file()).commit()
    lake.run("REFRESH TABLE {ns}.r", "INSERT INTO {ns}.r VALUES (9, 9), (9, 10)", "DELETE FROM {ns}.r WHERE n = 9")

    lake.refresh("v")
    check(lake, "v", sql, in_duckdb=False)
    assert lake.rows("v") == [(1, 2, 2, 2), (9, 1, 10, 1)]


def test_an_average_of_bigints_is_that_of_a_recompute(lake: Lake) -> None:
    """Spark adds doubles, which round: the exact average of the stored sum differs from theirs."""
    table(lake, "r", "k int, n bigint, i int", "(1, 9007199254740993, 1)")
    counted = "SELECT k, count(*) AS c, sum({0}) AS t, count({0}) AS cn, avg({0}) AS a FROM r GROUP BY k"
    view(lake, counted.format("n"))
    view(lake, counted.format("i"), "ints")
    change = "INSERT INTO {ns}.r VALUES (1, -9007199254740992, 2)"

    assert mode_after(lake, counted.format("n"), change) == "replace-keys"
    assert mode_after(lake, counted.format("i"), name="ints") == "merge"
