# SPDX-License-Identifier: Apache-2.0
"""Regression tests: bugs that an audit found and the fuzzer did not, each reduced to its smallest case."""

from __future__ import annotations

import pytest

from tests.core.job.changing import Table, delete_by_equality
from tests.engine.incremental.checking import check
from tests.engine.incremental.test_edges import mode_after, table, view
from tests.engine.support import Lake


def test_exists_counts_the_rows_of_a_generator(lake: Lake) -> None:
    """EXISTS tests for rows, and a generator among its columns determines how many there are."""
    table(lake, "a", "id int, k int", "(1, 1)")
    table(lake, "b", "k int, arr array<int>", "(1, array()), (2, array(7))")
    sql = "SELECT a.id FROM {ns}.a AS a WHERE EXISTS (SELECT explode(b.arr) AS e FROM {ns}.b AS b WHERE b.k = a.k)"
    view(lake, sql)
    lake.run("INSERT INTO {ns}.a VALUES (2, 1), (3, 2)")
    lake.refresh("v", on_fallback="full")
    assert lake.rows("v") == [(3,)]


def test_a_condition_on_a_union_uses_the_type_of_the_union(lake: Lake) -> None:
    """An integer is a decimal there, and its text differs from that below."""
    table(lake, "a", "k int", "(1)")
    table(lake, "b", "c decimal(5, 2)", "(1.50)")
    sql = (
        "SELECT x FROM (SELECT k AS x FROM {ns}.a UNION ALL SELECT c AS x FROM {ns}.b) AS u "
        "WHERE CAST(x AS STRING) LIKE '%.00'"
    )
    view(lake, sql)
    lake.run("INSERT INTO {ns}.a VALUES (2)", "INSERT INTO {ns}.b VALUES (3.00), (3.25)")
    assert lake.refresh("v", on_fallback="fail").mode == "append"
    assert [str(row[0]) for row in lake.rows("v")] == ["1.00", "2.00", "3.00"]


@pytest.mark.slow
def test_zeros_of_two_signs_and_maps_of_two_orders_are_different_values(lake: Lake) -> None:
    """They are equal, but a query can distinguish them by their text."""
    table(lake, "r", "id int, x double, m map<string, int>", "(1, 0.0D, map('a', 1, 'b', 2)), (2, double('NaN'), NULL)")
    sql = "SELECT id, CAST(x AS STRING) AS s, CAST(m AS STRING) AS t FROM r"
    view(lake, sql)
    assert mode_after(lake, sql, "UPDATE {ns}.r SET x = -0.0D WHERE id = 1") in ("merge", "replace-keys")
    assert lake.rows("v")[0][:2] == (1, "-0.0")
    assert mode_after(lake, sql, "UPDATE {ns}.r SET m = map('b', 2, 'a', 1) WHERE id = 1") in ("merge", "replace-keys")
    assert lake.rows("v")[0][2] == "{b -> 2, a -> 1}"
    assert mode_after(lake, sql, "UPDATE {ns}.r SET x = double('NaN') WHERE id = 2") in ("merge", "replace-keys")


@pytest.mark.slow
def test_a_base_table_whose_partitioning_changes_can_be_refreshed(lake: Lake) -> None:
    """It is partitioned by a column that the target snapshot does not have yet, and then by others."""
    table(lake, "r", "k int, n int", "(1, 1), (2, 2), (3, 3)")
    sql = "SELECT k, count(*) AS c, sum(n) AS t, count(n) AS cn FROM r GROUP BY k"
    view(lake, sql)
    after = ["ALTER TABLE {ns}.r ADD COLUMN p int", "ALTER TABLE {ns}.r ADD PARTITION FIELD p"]
    assert mode_after(lake, sql, "DELETE FROM {ns}.r WHERE k = 2", *after) == "merge"
    assert mode_after(lake, sql, "INSERT INTO {ns}.r VALUES (1, 5, 1), (4, 4, 2)") == "merge"
    change = "UPDATE {ns}.r SET n = 7 WHERE k = 1"
    assert mode_after(lake, sql, "ALTER TABLE {ns}.r REPLACE PARTITION FIELD p WITH bucket(2, k)", change) == "merge"
    away = "ALTER TABLE {ns}.r DROP PARTITION FIELD bucket(2, k)"
    assert (
        mode_after(lake, sql, away, "DELETE FROM {ns}.r WHERE k = 4", "INSERT INTO {ns}.r VALUES (5, 5, 5)") == "merge"
    )


@pytest.mark.slow
def test_a_view_is_refreshed_after_equality_deletes(lake: Lake) -> None:
    """Flink writes them; Spark never does."""
    table(lake, "r", "k int, n int", "(1, 1), (1, 2), (2, 3)")
    sql = "SELECT k, count(*) AS c, sum(n) AS t, count(n) AS cn FROM r GROUP BY k"
    view(lake, sql)
    delete_by_equality(Table(lake.spark, lake("r")), k=1)
    assert mode_after(lake, sql, "INSERT INTO {ns}.r VALUES (1, 9)") == "merge"
    assert lake.rows("v") == [(1, 1, 9, 1), (2, 1, 3, 1)]


@pytest.mark.slow
def test_a_snapshot_that_expires_between_plan_and_job_makes_the_refresh_full(lake: Lake) -> None:
    """The views of the old rows were created first, and failed the job at every try."""
    table(lake, "r", "k int, n int", "(1, 1)")
    table(lake, "s", "k int, n int", "(1, 1)")
    sql = "SELECT r.k, s.n FROM r JOIN s ON r.k = s.k"
    view(lake, sql)
    lake.run("DELETE FROM {ns}.r WHERE k = 1", "INSERT INTO {ns}.r VALUES (1, 2)", "INSERT INTO {ns}.s VALUES (1, 3)")
    expire = "older_than => TIMESTAMP '2999-01-01 00:00:00', retain_last => 1)"
    result = lake.refresh(
        "v",
        on_fallback="full",
        on_plan=lambda _: lake.run(
            *(
                f"CALL {lake.catalog.name}.system.expire_snapshots(table => '{lake.namespace}.{name}', {expire}"
                for name in ("r", "s")
            )
        ),
    )
    assert (result.mode, "has expired" in result.reasons[-1].message) == ("full", True)
    check(lake, "v", sql, in_duckdb=False)


@pytest.mark.slow
def test_a_changed_constant_does_not_fail_a_refresh(lake: Lake) -> None:
    """All rows are affected, which is expensive and correct: without a fallback it is the only possibility."""
    table(lake, "r", "k int, n int", "(1, 10), (2, 20), (3, 30)")
    sql = "SELECT k, sum(n) AS t FROM r GROUP BY k HAVING sum(n) > (SELECT avg(n) FROM {ns}.r)"
    view(lake, sql)
    lake.run("INSERT INTO {ns}.r VALUES (1, 100)")
    assert lake.refresh("v", on_fallback="fail").mode == "replace-keys"
    assert lake.rows("v") == [(1, 110)]


@pytest.mark.slow
def test_a_renamed_column_is_read_with_the_names_of_its_snapshot(lake: Lake) -> None:
    """A scan of appends has the table's current columns, so the refresh is full, with the snapshot's columns."""
    table(lake, "r", "k int, n int", "(1, 1)")
    view(lake, "SELECT k, n FROM r WHERE n > 0")
    lake.run(
        "INSERT INTO {ns}.r VALUES (2, 2)",
        "ALTER TABLE {ns}.r RENAME COLUMN n TO m",
        "ALTER TABLE {ns}.r ADD COLUMN n int",
    )
    result = lake.refresh("v")
    assert result.mode == "full"
    assert "SCHEMA_CHANGED" in [reason.code for reason in result.reasons]
    assert lake.rows("v") == [(1, 1), (2, 2)]
