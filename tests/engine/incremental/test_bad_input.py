# SPDX-License-Identifier: Apache-2.0
"""Faults that must not give wrong rows, listed by name with the tests of each.

- A base table whose range of snapshots is broken: ``test_edge_tables``, for an expired snapshot and a table that was
  dropped and recreated, replaced or rolled back; ``test_fuzzer_findings``, for a snapshot only named as a parent.
- A storage table that another writer has changed: here; ``tests/contract/test_registered.py`` has more cases.
- A key with nulls: ``test_edges.test_a_null_is_a_key_like_any_other``, and every view of the fuzzer.
- A group that disappears: ``test_edges.test_a_group_that_loses_its_last_row_disappears``.
- A sum that overflows: ``test_edges``, for BIGINT and DECIMAL(38, 0), temporarily and permanently; here, for the sum
  of a change.
- One table at two snapshots: refused if the query says so (``test_edges``); here, through a view that lags behind.
- A change that does not fit in memory: here; more keys than the driver accepts: ``test_edge_tables``.
"""

from __future__ import annotations

import pytest

from airflow_mv.core.job.context import MAX_LOCAL_ROWS
from airflow_mv.core.script import Outcome, Script
from airflow_mv.errors import RefreshRefusedError
from tests.engine.incremental.checking import check
from tests.engine.incremental.playing import ALWAYS
from tests.engine.incremental.test_edges import mode_after, table, view
from tests.engine.support import Lake

SUMS = "SELECT k, count(*) AS c, sum(n) AS t, count(n) AS cn FROM r GROUP BY k"


@pytest.mark.slow
def test_a_storage_table_that_another_writer_changed_is_refused_and_recomputed_on_request(lake: Lake) -> None:
    """The change of the base tables does not include rows that are not the view's."""
    table(lake, "r", "k int, n int", "(1, 1), (2, 2)")
    view(lake, SUMS, layout="registered")
    name = lake.catalog.load_storage(lake.view("v")).name
    assert name is not None
    lake.run(f"DELETE FROM {name.sql()} WHERE k = 1", "INSERT INTO {ns}.r VALUES (3, 3)")

    with pytest.raises(RefreshRefusedError, match="another writer has changed the storage table"):
        lake.refresh("v", on_fallback="fail")
    assert lake.refresh("v", full=True).mode == "full"
    check(lake, "v", SUMS, in_duckdb=False)
    assert mode_after(lake, SUMS, "INSERT INTO {ns}.r VALUES (1, 1)") == "merge"


@pytest.mark.slow
def test_the_sums_of_removed_and_added_rows_may_exceed_the_type(lake: Lake) -> None:
    """Two of the largest numbers are replaced: each side of the change overflows, and the new sum does not."""
    huge = 2**63 - 1
    # Copy-on-write preserves the rows' order, in which a recompute's sum never overflows.
    lake.run(
        "CREATE TABLE {ns}.r (k int, n bigint) USING iceberg TBLPROPERTIES ('write.update.mode' = 'copy-on-write')",
        f"INSERT INTO {{ns}}.r SELECT * FROM VALUES (1, {huge}), (1, -{huge}), (1, {huge - 7}), (1, -{huge - 9}) "
        "AS v(k, n) LIMIT 4",
    )
    view(lake, SUMS)

    assert mode_after(lake, SUMS, "UPDATE {ns}.r SET n = n - 1 WHERE n > 0") == "merge"
    assert lake.rows("v") == [(1, 4, 0, 4)]


def test_one_table_at_two_snapshots_through_a_view_that_lags_behind(lake: Lake) -> None:
    """The other view's rows are of an older snapshot than the table: each is a separate base table, and both change."""
    table(lake, "r", "k int, n int", "(1, 1), (2, 2)")
    view(lake, SUMS, "lower")
    lake.create(
        "v",
        "SELECT r.k, r.n, l.t FROM {ns}.r r JOIN {ns}.lower l ON r.k = l.k",
        refresh_strategy="incremental",
        properties=ALWAYS,
    )
    lake.refresh("v")

    lake.run("INSERT INTO {ns}.r VALUES (1, 5)")
    assert lake.refresh("v", on_fallback="fail").mode == "append"
    assert lake.rows("v") == [(1, 1, 1), (1, 5, 1), (2, 2, 2)]
    lake.refresh("lower")
    assert lake.refresh("v", on_fallback="fail").mode in ("merge", "replace-keys")
    assert lake.rows("v") == [(1, 1, 6), (1, 5, 6), (2, 2, 2)]


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param(SUMS, id="merge"),
        pytest.param("SELECT k, max(n) AS m FROM r GROUP BY k", id="replace-keys", marks=pytest.mark.slow),
    ],
)
def test_a_change_that_the_driver_cannot_hold_stays_on_the_executors(lake: Lake, sql: str) -> None:
    """Rows that do not fit on the driver are kept on the executors, on disk if needed, and the result is exact."""
    rows = 2 * MAX_LOCAL_ROWS
    table(lake, "r", "k int, n int")
    lake.run(f"INSERT INTO {{ns}}.r SELECT id % 50, id FROM range({rows})")
    view(lake, sql)
    outcomes: list[Outcome] = []

    def stage(script: Script) -> Outcome:
        outcomes.append(lake.stager(script))
        return outcomes[-1]

    lake.run(f"UPDATE {{ns}}.r SET n = n + 1 WHERE n % 4 < 3 AND n < {rows - 4}")
    mode = lake.refresh("v", on_fallback="fail", stager=stage).mode
    (outcome,) = outcomes
    assert (mode, outcome.keys) == ("merge" if sql == SUMS else "replace-keys", 50)
    assert (outcome.deltas[0].rows or 0) > MAX_LOCAL_ROWS
    check(lake, "v", sql, in_duckdb=False)
