# SPDX-License-Identifier: Apache-2.0
"""Base columns that are renamed, dropped or added after the last commit of rows.

A refresh reads snapshots with their own column names. Iceberg binds the filters of such a scan to the current names.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from airflow_mv.core.freshness.state import State
from airflow_mv.core.refresh import SnapshotSet, plan_refresh
from airflow_mv.core.refresh.plan import RefreshPlan
from airflow_mv.core.refresh.run import publish, stage
from airflow_mv.core.spec.reasons import Code, Mode
from airflow_mv.extras.maintenance.verify import verify
from tests.engine.support import Lake, multiset, recomputed

GROUPED = "SELECT a, count(*) AS n, sum(b) AS b, max(a) AS most FROM {ns}.t WHERE a < 3 OR b = 700 GROUP BY a"
ROWS = "SELECT id, a, s.x AS x FROM {ns}.t WHERE s.x = 1 AND a = 1"
JOINED = "SELECT t.id, d.v FROM {ns}.t t JOIN {ns}.d d ON t.a = d.k WHERE d.v < 3 AND t.b > 50"
KEYED = "SELECT a, count(DISTINCT b) AS n FROM {ns}.t WHERE a < 3 GROUP BY a"
VIEWS = {"grouped": GROUPED, "rows": ROWS, "joined": JOINED}
SWAP = ("RENAME COLUMN a TO other", "RENAME COLUMN b TO a", "RENAME COLUMN other TO b")
CASES = {
    "swapped": SWAP,
    "rotated": ("RENAME COLUMN a TO other", "RENAME COLUMN b TO a", "RENAME COLUMN c TO b", "RENAME COLUMN other TO c"),
    "renamed": ("RENAME COLUMN a TO other",),
    "dropped": ("DROP COLUMN a",),
    "dropped and added": ("DROP COLUMN a", "ADD COLUMN a int"),
    "nested": ("RENAME COLUMN s.x TO z", "RENAME COLUMN s.y TO x", "RENAME COLUMN s.z TO y"),
}


def prepare(lake: Lake, *, partitioned: bool = True) -> None:
    lake.run(
        "CREATE TABLE {ns}.t (id int, a int, b int, c int, s struct<x: int, y: int>) USING iceberg "
        + ("PARTITIONED BY (bucket(4, a))" if partitioned else ""),
        "CREATE TABLE {ns}.d (k int, v int) USING iceberg",
        "INSERT INTO {ns}.d VALUES (1, 1), (2, 2), (9, 9)",
        "INSERT INTO {ns}.t VALUES (1, 1, 100, 7, struct(1, 50)), (2, 2, 200, 7, struct(2, 60))",
    )


#: The long run has those that take the same path as another case.
LONG = ("rotated", "renamed", "dropped and added")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] if case in LONG else []) for case in CASES]
)
def test_a_name_that_now_means_another_column_changes_no_row(lake: Lake, case: str) -> None:
    """In an incremental refresh, a full one, and a check of the stored rows."""
    prepare(lake, partitioned="dropped" not in case)
    for name, sql in VIEWS.items():
        lake.create(name, sql, refresh_strategy="incremental", properties={"airflow-mv.incremental-up-to": "1000"})
        lake.refresh(name)
    lake.run("INSERT INTO {ns}.t VALUES (3, 1, 700, 7, struct(1, 70)), (4, 5, 100, 7, struct(4, 1))")
    lake.run(*(f"ALTER TABLE {{ns}}.t {change}" for change in CASES[case]))
    for name, sql in VIEWS.items():
        touched = case != "nested" or name == "rows"
        for full in (False, True) if case in ("swapped", "nested", *LONG) else (False,):
            result = lake.refresh(name, full=full)
            assert multiset(lake.stored(name)) == recomputed(lake, name, sql.replace("{ns}.", "")), (name, full)
            if touched and not full:
                assert result.mode == Mode.FULL
                assert Code.SCHEMA_CHANGED in {reason.code for reason in result.reasons}
        assert result.mode == Mode.FULL
        assert (lake.status(name).state == State.INVALID) == touched  # until a snapshot has the new columns
    assert verify(lake.catalog, lake("rows"), session=lambda: lake.spark).equal


def test_a_name_that_was_found_in_another_table_before_a_drop_changes_no_row(lake: Lake) -> None:
    """A NATURAL JOIN has a key less, and a name in a subquery is found outside of it."""
    lake.run(
        "CREATE TABLE {ns}.a (id int, x int) USING iceberg",
        "CREATE TABLE {ns}.b (id int, x int, v int) USING iceberg",
        "INSERT INTO {ns}.a VALUES (1, 1), (2, 1), (3, 0)",
        "INSERT INTO {ns}.b VALUES (1, 1, 10), (2, 0, 20), (3, 1, 30)",
    )
    views = {
        "joined": "SELECT id, v FROM {ns}.a NATURAL JOIN {ns}.b",
        "found": "SELECT id FROM {ns}.a t WHERE EXISTS (SELECT 1 FROM {ns}.b u WHERE u.id = t.id AND x = 1)",
    }
    for name, sql in views.items():
        lake.create(name, sql, refresh_strategy="incremental", properties={"airflow-mv.incremental-up-to": "1000"})
        lake.refresh(name)
    lake.run("ALTER TABLE {ns}.b DROP COLUMN x", "INSERT INTO {ns}.b VALUES (3, 31)")
    for name, sql in views.items():
        assert Code.SCHEMA_CHANGED in {reason.code for reason in lake.refresh(name).reasons}
        assert multiset(lake.stored(name)) == recomputed(lake, name, sql.replace("{ns}.", "")), name
    assert len(lake.rows("joined")) == 4


def test_rows_as_of_a_time_before_a_swap_of_names_are_those_of_that_time(lake: Lake) -> None:
    prepare(lake)
    then = datetime.now(UTC)
    lake.run(*(f"ALTER TABLE {{ns}}.t {change}" for change in SWAP), "INSERT INTO {ns}.t (id, a, b) VALUES (9, 1, 1)")
    for name, sql in VIEWS.items():
        lake.create(name, sql)
        lake.refresh(name, as_of=then)
        assert multiset(lake.stored(name)) == recomputed(lake, name, sql.replace("{ns}.", "")), name
    assert len(lake.rows("rows")) == 1


def test_a_rename_of_an_unused_column_has_no_effect(lake: Lake) -> None:
    prepare(lake)
    lake.create("grouped", GROUPED, refresh_strategy="incremental", properties={"airflow-mv.incremental-up-to": "1000"})
    lake.refresh("grouped")
    lake.run("INSERT INTO {ns}.t VALUES (3, 1, 700, 7, struct(1, 70))", "ALTER TABLE {ns}.t RENAME COLUMN c TO seven")
    assert lake.refresh("grouped").mode in (Mode.MERGE, Mode.REPLACE_KEYS)
    assert multiset(lake.stored("grouped")) == recomputed(lake, "grouped", GROUPED.replace("{ns}.", ""))


@pytest.mark.parametrize(
    "way",
    ["pinned, incremental", *(pytest.param(way, marks=pytest.mark.slow) for way in ("full", "pinned", "incremental"))],
)
def test_a_swap_of_names_between_the_plan_and_the_job_is_detected(lake: Lake, way: str) -> None:
    """The plan has the earlier names, and Spark binds filters to the current ones: such rows are never published."""
    prepare(lake)
    properties = {"airflow-mv.incremental-up-to": "1000"}
    lake.create("keyed", KEYED, refresh_strategy="incremental", properties=properties)
    if "incremental" in way:
        lake.refresh("keyed")
    lake.run("INSERT INTO {ns}.t VALUES (3, 1, 700, 7, struct(1, 70)), (4, 5, 1, 7, struct(1, 1))")
    plans: list[RefreshPlan] = []

    def swap(plan: RefreshPlan) -> None:
        plans.append(plan)
        if len(plans) == 1:
            lake.run(*(f"ALTER TABLE {{ns}}.t {change}" for change in SWAP))

    lake.refresh("keyed", on_plan=swap, pins=SnapshotSet() if "pinned" in way else None)
    assert len({plan.refresh_id for plan in plans}) == 2
    assert multiset(lake.stored("keyed")) == recomputed(lake, "keyed", KEYED.replace("{ns}.", ""))
    assert len(lake.rows("keyed")) == 2
    staged = RefreshPlan.from_dict(json.loads(json.dumps(plans[-1].to_dict())))
    assert dict(staged.renamed) == {lake("t"): ("a", "b")}


def test_rows_that_were_staged_before_a_swap_of_names_are_not_resumed(lake: Lake) -> None:
    """They are found by the next try after the first one's worker died between the job and the publication."""
    prepare(lake)
    lake.create("rows", ROWS)
    plan = plan_refresh(lake.catalog, lake("rows"))
    lake.run(*(f"ALTER TABLE {{ns}}.t {change}" for change in SWAP))
    outcome = stage(lake.catalog, plan, lake.stager)
    assert publish(lake.catalog, plan, outcome) is None
    jobs = len(lake.scripts)
    assert lake.refresh("rows").outcome == "refreshed"
    assert len(lake.scripts) == jobs + 1
    assert multiset(lake.stored("rows")) == recomputed(lake, "rows", ROWS.replace("{ns}.", ""))
