# SPDX-License-Identifier: Apache-2.0
"""Views of ``SELECT *`` keep their columns when a base table gets more, in every mode."""

from __future__ import annotations

import pytest

from airflow_mv.errors import InvalidQueryError
from airflow_mv.extras.maintenance.verify import verify
from tests.engine.incremental.checking import check
from tests.engine.incremental.playing import ALWAYS
from tests.engine.incremental.test_edges import mode_after, table, view
from tests.engine.support import Lake

OWN = "SELECT k, n FROM r WHERE n > 0"


def test_a_view_of_all_columns_is_not_affected_by_a_new_column(lake: Lake) -> None:
    """Appended to, changed, recomputed and verified: the new column is not part of the view."""
    table(lake, "r", "k int, n int", "(1, 1), (2, 2)")
    view(lake, "SELECT * FROM r WHERE n > 0")
    lake.run("ALTER TABLE {ns}.r ADD COLUMN more int FIRST")

    assert mode_after(lake, OWN, "INSERT INTO {ns}.r VALUES (7, 3, 3)") == "append"
    assert mode_after(lake, OWN, "UPDATE {ns}.r SET n = 9, more = 8 WHERE k = 1") == "merge"
    assert mode_after(lake, OWN, "UPDATE {ns}.r SET more = 9 WHERE k = 1") in ("merge", "fast-forward", "noop")
    assert lake.rows("v") == [(1, 9), (2, 2), (3, 3)]
    assert lake.refresh("v", full=True).mode == "full"
    assert lake.rows("v") == [(1, 9), (2, 2), (3, 3)]
    assert verify(lake.catalog, lake("v"), session=lambda: lake.spark).equal
    check(lake, "v", "SELECT * FROM r WHERE n > 0", in_duckdb=True, columns={"r": ("k", "n")})

    lake.run("ALTER TABLE {ns}.r DROP COLUMN k", "ALTER TABLE {ns}.r ADD COLUMN other int FIRST")
    lake.run("INSERT INTO {ns}.r (other, n, more) VALUES (5, 5, 5)")
    stored = lake.rows("v")
    with pytest.raises(InvalidQueryError, match="at the snapshots to read: k of"):
        lake.refresh("v")
    assert lake.rows("v") == stored
    assert verify(lake.catalog, lake("v"), session=lambda: lake.spark).equal, "recomputed at the recorded snapshots"


@pytest.mark.slow
def test_a_star_below_a_distinct_stands_for_the_old_columns_too(lake: Lake) -> None:
    """Rows that differ only in the new column are one row of the view, as before."""
    table(lake, "r", "k int, n int", "(1, 1), (2, 2)")
    view(lake, "SELECT DISTINCT * FROM (SELECT * FROM r WHERE n > 0)")
    lake.run("ALTER TABLE {ns}.r ADD COLUMN more int")

    assert (
        mode_after(lake, f"SELECT DISTINCT * FROM ({OWN})", "INSERT INTO {ns}.r VALUES (1, 1, 5), (1, 1, 6)") != "full"
    )
    lake.refresh("v", full=True)
    assert lake.rows("v") == [(1, 1), (2, 2)]


@pytest.mark.slow
def test_nested_views_of_all_columns_are_not_affected_either(lake: Lake) -> None:
    """A plain view, a materialized one, and views of all of their columns."""
    table(lake, "r", "k int, n int", "(1, 1), (2, 2)")
    lake.run("CREATE VIEW {ns}.plain AS SELECT * FROM {ns}.r")
    lake.create("over", "SELECT * FROM {ns}.plain p WHERE n > 0", refresh_strategy="incremental", properties=ALWAYS)
    view(lake, "SELECT * FROM r WHERE n > 0", "first")
    lake.create("second", "SELECT * FROM {ns}.first", refresh_strategy="incremental", properties=ALWAYS)
    lake.refresh("over", "second")
    lake.run("ALTER TABLE {ns}.r ADD COLUMN more int", "INSERT INTO {ns}.r VALUES (3, 3, 3)")

    modes = {name: str(lake.refresh(name, on_fallback="fail").mode) for name in ("over", "first", "second")}
    assert modes == {"over": "append", "first": "append", "second": "append"}
    check(lake, "over", OWN, in_duckdb=False)
    assert lake.rows("second") == lake.rows("over") == [(1, 1), (2, 2), (3, 3)]
    lake.create("late", "SELECT * FROM {ns}.plain")
    lake.refresh("late")
    lake.refresh("over", full=True)
    assert lake.rows("late") == lake.rows("over") == [(1, 1), (2, 2), (3, 3)]
