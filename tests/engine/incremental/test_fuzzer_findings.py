# SPDX-License-Identifier: Apache-2.0
"""Regression tests: bugs that the fuzzer of this folder has found, each reduced to its smallest case."""

from __future__ import annotations

import pytest

from tests.engine.incremental.checking import check
from tests.engine.incremental.test_edges import mode_after, table, view
from tests.engine.support import Lake


@pytest.mark.slow
def test_copies_of_a_row_that_are_removed_and_added_are_merged_with_their_weight(lake: Lake) -> None:
    """The change of a linear query has one more column than the view: the job did not support it, and fell back."""
    table(lake, "r", "k int, n int", "(1, 1), (1, 1), (1, 1), (2, 3)")
    sql = "SELECT k, n FROM r WHERE n > 0"
    view(lake, sql)

    change = "MERGE INTO {ns}.r t USING (SELECT 2 AS k) u ON t.k = u.k WHEN MATCHED THEN UPDATE SET k = 1, n = 1"
    assert mode_after(lake, sql, change, "INSERT INTO {ns}.r VALUES (5, 5), (5, 5)") == "merge"
    assert lake.rows("v") == [(1, 1)] * 4 + [(5, 5)] * 2


@pytest.mark.slow
def test_an_expired_recorded_snapshot_is_detected_before_spark_starts(lake: Lake) -> None:
    """It is still named as a parent, so its history looks complete; the difference needs the snapshot itself."""
    table(lake, "r", "k int, n int", "(1, 1)")
    view(lake, "SELECT k, n FROM r WHERE n > 0")
    lake.run("INSERT INTO {ns}.r VALUES (2, 2)")
    lake.run(
        f"CALL {lake.catalog.name}.system.expire_snapshots(table => '{lake.namespace}.r', "
        "older_than => TIMESTAMP '2999-01-01 00:00:00', retain_last => 1)"
    )
    result = lake.refresh("v", on_fallback="full")
    assert (result.mode, str(result.reasons[-1].code)) == ("full", "SNAPSHOT_EXPIRED")


@pytest.mark.slow
def test_a_column_that_was_dropped_and_added_again_is_detected_despite_a_compaction(lake: Lake) -> None:
    """No row was added or removed, but existing rows are read differently: the refresh took it for compaction only."""
    table(lake, "r", "k int, n int", "(1, 1), (1, 2)")
    sums, counts = "SELECT k, sum(n) AS t FROM r GROUP BY k", "SELECT k, count(*) AS c FROM r GROUP BY k"
    view(lake, sums)
    view(lake, counts, "counts")
    catalog, name = lake.catalog.name, f"{lake.namespace}.r"
    lake.run(
        "ALTER TABLE {ns}.r DROP COLUMN n",
        "ALTER TABLE {ns}.r ADD COLUMN n int",
        f"CALL {catalog}.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))",
    )
    result = lake.refresh("v", on_fallback="full")
    assert (result.mode, str(result.reasons[-1].code)) == ("full", "SCHEMA_CHANGED")
    assert lake.rows("v") == [(1, None)]
    assert lake.refresh("counts", on_fallback="fail").mode == "fast-forward"
    check(lake, "counts", counts, in_duckdb=False)


@pytest.mark.slow
def test_an_added_row_with_weight_two_is_appended_twice(lake: Lake) -> None:
    """Added, compacted, then the schema changed: the files are compared, so that equal rows have one weighted entry."""
    table(lake, "r", "k int, n int", "(1, 1), (1, 1)")
    sql = "SELECT k, n FROM r WHERE n > 0"
    view(lake, sql)
    compact = f"CALL {lake.catalog.name}.system.rewrite_data_files"
    mode = mode_after(
        lake,
        sql,
        "INSERT INTO {ns}.r VALUES (2, 2), (2, 2), (1, 1)",
        f"{compact}(table => '{lake.namespace}.r', options => map('rewrite-all', 'true'))",
        "ALTER TABLE {ns}.r ADD COLUMN more int",
    )
    assert mode == "append"
    assert lake.rows("v") == [(1, 1)] * 3 + [(2, 2)] * 2


def test_combinations_of_rows_that_never_existed_cannot_fail_a_refresh(lake: Lake) -> None:
    """The new row of one table was joined with the other's old row and divided by zero, which always failed."""
    table(lake, "r", "k int, n int", "(2, 6)")
    table(lake, "s", "k int, n int", "(1, 0), (2, 3)")
    view(lake, "SELECT r.k, r.n div s.n AS q FROM r JOIN s ON r.k = s.k")
    lake.run("UPDATE {ns}.s SET n = 1 WHERE k = 1", "INSERT INTO {ns}.r VALUES (1, 7)")

    assert lake.refresh("v", on_fallback="full").outcome == "refreshed"
    assert lake.rows("v") == [(1, 7), (2, 2)]
    lake.run("UPDATE {ns}.s SET n = 0 WHERE k = 1", "DELETE FROM {ns}.r WHERE k = 1")
    assert lake.refresh("v", on_fallback="full").outcome == "refreshed"
    assert lake.rows("v") == [(2, 2)]


@pytest.mark.slow
def test_a_decimal_is_compared_with_an_integer_by_statistics(lake: Lake) -> None:
    """The literal has another scale than the column: planning failed with an error of the library."""
    table(lake, "r", "k int, n decimal(15, 2)", "(1, 1.50), (1, 2)")
    sql = "SELECT k, n FROM r WHERE n < 24"
    view(lake, sql)
    assert mode_after(lake, sql, "INSERT INTO {ns}.r VALUES (2, 30)") == "fast-forward"
    assert mode_after(lake, sql, "INSERT INTO {ns}.r VALUES (2, 23.99)") == "append"


def test_an_error_about_a_column_that_no_snapshot_has_yet_explains_it(lake: Lake) -> None:
    """A snapshot has the columns of its time: the table has the column, but its snapshot does not."""
    table(lake, "r", "k int", "(1), (2)")
    lake.run("ALTER TABLE {ns}.r ADD COLUMN more int")
    with pytest.raises(Exception, match=r"`more` cannot .*readable with the table's next commit"):
        view(lake, "SELECT k, more FROM r")

    lake.run("INSERT INTO {ns}.r SELECT * FROM {ns}.r WHERE false")
    view(lake, "SELECT k, more FROM r")
    assert lake.rows("v") == [(1, None), (2, None)]
