# SPDX-License-Identifier: Apache-2.0
"""Edge cases of an incremental refresh that concern the tables: history, schema, other writers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import pytest

from airflow_mv.core.refresh import RefreshOptions, plan_refresh
from airflow_mv.core.refresh.plan import RefreshPlan
from airflow_mv.core.refresh.run import stage
from airflow_mv.core.script import FALLBACK_KEY, MergeAdditiveStep, Outcome, ReplaceKeysStep, Script
from airflow_mv.core.spec.reasons import Reason
from airflow_mv.errors import RefreshRefusedError
from tests.builders import LAYOUTS
from tests.core.job.changing import Table, delete_by_equality
from tests.engine.incremental.checking import check, recorded, stored
from tests.engine.incremental.playing import ALWAYS
from tests.engine.incremental.test_edges import MERGE_ON_READ, mode_after, table, view
from tests.engine.support import Lake, no_spark

COUNTS = "SELECT k, count(*) AS c, sum(n) AS t, count(n) AS cn FROM r GROUP BY k"
MAX_COUNT = "SELECT k, max(n) AS m FROM r GROUP BY k"


def codes(reasons: Iterable[Reason]) -> list[str]:
    """Return the codes of a plan's or a result's reasons."""
    return [str(reason.code) for reason in reasons]


@pytest.fixture
def counted(lake: Lake) -> Lake:
    """A lake with a base table and a view of it."""
    table(lake, "r", "k int, n int", "(1, 1), (1, 2), (2, 3)")
    view(lake, COUNTS)
    return lake


def test_a_table_may_have_a_column_of_a_type_that_is_not_known_here(lake: Lake) -> None:
    """No statistics of its files are read; the refresh is incremental where they are not needed."""
    table(lake, "r", "k int, n int, v variant", version=3)
    lake.run("INSERT INTO {ns}.r VALUES (1, 1, parse_json('1')), (1, 2, NULL), (2, 3, NULL)")
    sql = "SELECT k, count(*) AS c, sum(n) AS t FROM r GROUP BY k"
    view(lake, sql)
    assert mode_after(lake, sql, "DELETE FROM {ns}.r WHERE n = 2") == "replace-keys"
    assert lake.rows("v") == [(1, 1, 1), (2, 1, 3)]


NESTED = (
    "SELECT k, sum(m['k'].a) AS a, sum(st.b) AS b, sum(items[0].p) AS p FROM r GROUP BY k",
    "SELECT k, ci.p AS p, element_at(map_values(m), 1).a AS a FROM r LATERAL VIEW explode(items) e AS ci",
    "SELECT k, m['k'].a AS a FROM r WHERE st.b > 0",
)


@pytest.mark.parametrize("mode", [pytest.param("copy-on-write", marks=pytest.mark.slow), "merge-on-read"])
def test_a_nested_field_that_is_added_beside_those_of_the_query_leaves_a_view_valid_and_incremental(
    lake: Lake, mode: str
) -> None:
    """In a map's value, in a list's element and in a struct; also if such a field is dropped again."""
    columns = "k int, m map<string, struct<a: int>>, st struct<b: int>, items array<struct<p: int>>"
    table(lake, "r", columns)
    if mode == "copy-on-write":
        lake.run(f"ALTER TABLE {{ns}}.r SET TBLPROPERTIES ({MERGE_ON_READ.replace('merge-on-read', mode)})")
    row = "({0}, map('k', named_struct('a', {1}{2})), named_struct('b', {1}{2}), array(named_struct('p', {1}{2})))"
    rows = [row.format(number % 2, number, "") for number in range(6)]
    lake.run(f"INSERT INTO {{ns}}.r VALUES {', '.join(rows)}")
    for number, sql in enumerate(NESTED):
        view(lake, sql, f"v{number}")
    view(lake, "SELECT k, m FROM {ns}.r", "whole")
    added = [f"ALTER TABLE {{ns}}.r ADD COLUMN {place}.z int" for place in ("m.value", "st", "items.element")]
    lake.run(*added)
    with_z = row.format(1, 7, ", 'z', 7")
    changes = (
        (f"INSERT INTO {{ns}}.r VALUES {with_z}",),
        ("DELETE FROM {ns}.r WHERE st.b IN (2, 7)",),
        ("UPDATE {ns}.r SET st.z = 1 WHERE st.b = 3",),
        (*(text.replace("ADD COLUMN", "DROP COLUMN").replace(" int", "") for text in added),),
        ("DELETE FROM {ns}.r WHERE st.b = 3",),
    )
    assert [lake.status(f"v{number}").state for number in (0, 2)] == ["fresh", "fresh"]
    assert lake.status("whole").state == "invalid"
    for change in changes:
        for number, sql in enumerate(NESTED):
            lake.run(*(change if number == 0 else ()))
            if number != 1:
                assert lake.status(f"v{number}").state in ("fresh", "stale")
                assert mode_after(lake, sql, name=f"v{number}") != "full", (change, number)
            elif "DROP" not in change[0]:  # map_values takes the map as a whole
                lake.refresh(f"v{number}")
                check(lake, f"v{number}", sql, in_duckdb=False)
    lake.run("ALTER TABLE {ns}.r DROP COLUMN st.b", "ALTER TABLE {ns}.r ADD COLUMN st.b int")
    assert [lake.status(f"v{number}").state for number in (0, 2)] == ["invalid", "invalid"]
    with pytest.raises(RefreshRefusedError, match=r"is invalid: .*\.r: a nested field of the column st was replaced"):
        lake.refresh("v0")
    lake.run("INSERT INTO {ns}.r SELECT k, m, named_struct('b', 9), items FROM {ns}.r LIMIT 1")
    assert lake.refresh("v0").mode == "full"
    check(lake, "v0", NESTED[0], in_duckdb=False)


def _expire(lake: Lake) -> None:
    catalog = lake.catalog.name
    lake.run(
        f"CALL {catalog}.system.expire_snapshots(table => '{lake.namespace}.r', "
        "older_than => TIMESTAMP '2999-01-01 00:00:00', retain_last => 1)"
    )


def test_after_an_expired_snapshot_only_a_full_refresh_is_possible_and_reported(counted: Lake) -> None:
    """The change since then is unknown: the policy decides between full, an error and nothing."""
    counted.run("INSERT INTO {ns}.r VALUES (3, 1)")
    _expire(counted)

    with pytest.raises(RefreshRefusedError, match=r"has expired; keep it with a tag"):
        counted.refresh("v", on_fallback="fail")
    skipped = counted.refresh("v", on_fallback="skip")
    assert (skipped.outcome, skipped.rows_written, codes(skipped.reasons)[-1]) == ("skipped", 0, "SKIPPED")
    assert len(counted.rows("v")) == 2
    full = counted.refresh("v", on_fallback="full")
    assert (full.mode, codes(full.reasons)[-1]) == ("full", "SNAPSHOT_EXPIRED")
    check(counted, "v", COUNTS, in_duckdb=True)
    assert mode_after(counted, COUNTS, "DELETE FROM {ns}.r WHERE k = 3") == "merge"


@pytest.mark.slow
def test_appends_with_an_expired_snapshot_are_found_by_their_files(lake: Lake) -> None:
    """Between plan and job: a tag retains the recorded snapshot, but Iceberg's scan of appends needs all between."""
    table(lake, "r", "k int, n int", "(1, 1)")
    view(lake, "SELECT k, n FROM r WHERE n > 0")
    lake.run("ALTER TABLE {ns}.r CREATE TAG keep", *(f"INSERT INTO {{ns}}.r VALUES ({n}, {n})" for n in (2, 3)))
    assert lake.refresh("v", on_fallback="fail", on_plan=lambda _: _expire(lake)).mode == "append"
    assert lake.rows("v") == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.slow
def test_an_equality_delete_by_a_column_that_was_dropped_since_still_deletes(lake: Lake) -> None:
    """Readers find the column in the table's metadata file."""
    table(lake, "r", "id int, k int, n int", "(1, 1, 1), (2, 1, 2), (3, 2, 3), (4, 2, 4)")
    delete_by_equality(Table(lake.spark, lake("r")), id=1)
    view(lake, COUNTS)
    lake.run("ALTER TABLE {ns}.r DROP COLUMN id", "DELETE FROM {ns}.r WHERE n = 2")
    assert mode_after(lake, COUNTS, "INSERT INTO {ns}.r VALUES (2, 7)") == "merge"
    assert lake.rows("v") == [(2, 3, 14, 3)]


@pytest.mark.slow
def test_a_table_that_was_dropped_and_recreated_is_read_in_full(counted: Lake) -> None:
    """Its snapshots are unrelated to the recorded ones."""
    counted.run("DROP TABLE {ns}.r")
    table(counted, "r", "k int, n int", "(1, 1), (7, 2)")

    with pytest.raises(RefreshRefusedError, match="was dropped and recreated since the recorded refresh"):
        counted.refresh("v", on_fallback="fail")
    assert counted.refresh("v", on_fallback="full").mode == "full"
    check(counted, "v", COUNTS, in_duckdb=True)


@pytest.mark.slow
def test_a_replaced_table_is_the_same_table_with_other_rows(counted: Lake) -> None:
    """CREATE OR REPLACE keeps the table's uuid: in any mode the rows are correct."""
    counted.run("CREATE OR REPLACE TABLE {ns}.r USING iceberg AS SELECT 1 AS k, 9 AS n")

    counted.refresh("v", on_fallback="full")
    check(counted, "v", COUNTS, in_duckdb=True)
    assert counted.rows("v") == [(1, 1, 9, 1)]


def test_a_changed_type_of_a_column_that_the_view_reads_prevents_an_incremental_refresh(counted: Lake) -> None:
    """The stored rows have the old type: only views that do not read the column are refreshed incrementally."""
    view(counted, "SELECT k, count(*) AS c FROM r GROUP BY k", "keys")
    counted.run("ALTER TABLE {ns}.r ALTER COLUMN n TYPE bigint", "INSERT INTO {ns}.r VALUES (2, 5)")

    assert mode_after(counted, "SELECT k, count(*) AS c FROM r GROUP BY k", name="keys") == "merge"
    with pytest.raises(RefreshRefusedError, match="columns changed since the recorded snapshot: n"):
        counted.refresh("v", on_fallback="fail")
    assert codes(counted.refresh("v", on_fallback="full").reasons)[-1] == "SCHEMA_CHANGED"
    check(counted, "v", COUNTS, in_duckdb=False)


def test_a_column_that_is_dropped_and_added_again_is_another_column(counted: Lake) -> None:
    """By its name nothing has changed; by its id all of its values are removed."""
    counted.run("ALTER TABLE {ns}.r DROP COLUMN n", "ALTER TABLE {ns}.r ADD COLUMN n int")
    counted.run("INSERT INTO {ns}.r (k, n) VALUES (2, 5)")

    assert counted.refresh("v", on_fallback="full").mode == "full"
    check(counted, "v", COUNTS, in_duckdb=True)


def test_a_new_column_that_the_view_does_not_read_allows_an_incremental_refresh(counted: Lake) -> None:
    """Even if only the new column changes."""
    assert mode_after(counted, COUNTS, "ALTER TABLE {ns}.r ADD COLUMN more int") == "noop"
    assert mode_after(counted, COUNTS, "INSERT INTO {ns}.r VALUES (2, 5, 1)") == "merge"
    assert mode_after(counted, COUNTS, "UPDATE {ns}.r SET more = 7") == "merge"


@pytest.mark.slow
def test_a_rollback_is_applied_to_the_view(counted: Lake) -> None:
    """The difference of the two snapshots is read in reverse."""
    first = counted.snapshot("r")
    assert mode_after(counted, COUNTS, "INSERT INTO {ns}.r VALUES (2, 5)", "DELETE FROM {ns}.r WHERE k = 1") == "merge"
    back = f"CALL {counted.catalog.name}.system.rollback_to_snapshot('{counted.namespace}.r', {first})"
    assert mode_after(counted, COUNTS, back) == "merge"
    assert counted.rows("v") == [(1, 2, 3, 2), (2, 1, 3, 1)]


def _with_few_keys(lake: Lake, script: Script) -> Outcome:
    steps = tuple(
        replace(step, most_keys=1) if isinstance(step, ReplaceKeysStep | MergeAdditiveStep) else step
        for step in script.steps
    )
    return lake.stager(replace(script, steps=steps))


def test_a_run_that_resumes_a_branch_records_the_mode_that_ran(counted: Lake) -> None:
    """The worker died after the job had recomputed: a full refresh is published, whatever was planned."""
    view(counted, MAX_COUNT, "most", layout="registered")
    counted.run("UPDATE {ns}.r SET n = n + 1")
    plan = plan_refresh(counted.catalog, counted("most"), RefreshOptions(on_fallback="full"))
    staged = stage(counted.catalog, plan, partial(_with_few_keys, counted))
    assert staged is not None
    assert (str(plan.mode), staged.fallback) == ("replace-keys", "too-many-keys")

    result = counted.refresh("most", on_fallback="full", stager=no_spark)

    assert (result.outcome, result.mode, result.refresh_id) == ("refreshed", "full", plan.refresh_id)
    assert result.reasons[-1].message == f"found by the job: {staged.fallback_reason}"
    storage = counted.catalog.load_storage(counted.view("most"))
    assert storage.state is not None
    assert storage.state.current.mode == "full"
    counted.run("INSERT INTO {ns}.r VALUES (1, 9)")
    counted.refresh("most", on_fallback="full")
    snapshots = counted.catalog.load_storage(counted.view("most")).table.snapshots
    assert [FALLBACK_KEY in snapshot.summary for snapshot in snapshots[-2:]] == [True, False], "the session forgets it"


@pytest.mark.slow
def test_more_affected_keys_than_the_driver_accepts_lead_to_a_full_refresh(counted: Lake) -> None:
    """The job detects it: the recorded mode is the one that ran, and the policy applies to the job, too."""
    view(counted, MAX_COUNT, "most")
    counted.run("UPDATE {ns}.r SET n = n + 1")

    with_few_keys = partial(_with_few_keys, counted)
    with pytest.raises(RefreshRefusedError, match="as the job found"):
        counted.refresh("most", on_fallback="fail", stager=with_few_keys)
    assert counted.refresh("most", on_fallback="skip", stager=with_few_keys).outcome == "skipped"
    assert counted.rows("most") == [(1, 2), (2, 3)]
    for name, sql in (("v", COUNTS), ("most", MAX_COUNT)):
        result = counted.refresh(name, on_fallback="full", stager=with_few_keys)
        assert (result.mode, codes(result.reasons)[-1]) == ("full", "INCREMENTAL_UNAVAILABLE")
        check(counted, name, sql, in_duckdb=True)


def test_a_storage_table_that_another_writer_changed_is_recomputed(lake: Lake) -> None:
    """Otherwise foreign rows would remain after applying the change."""
    table(lake, "r", "k int, n int", "(1, 1), (2, 3)")
    view(lake, COUNTS, layout="registered")
    name = lake.catalog.load_storage(lake.view("v")).name
    assert name is not None
    lake.run(f"INSERT INTO {name.sql()} VALUES (99, 1, 1, 1)", "INSERT INTO {ns}.r VALUES (2, 5)")

    result = lake.refresh("v", on_fallback="full")
    assert (result.mode, "STORAGE_CHANGED" in codes(result.reasons)) == ("full", True)
    check(lake, "v", COUNTS, in_duckdb=True)
    assert mode_after(lake, COUNTS, "DELETE FROM {ns}.r WHERE n = 5") == "merge"


@pytest.mark.parametrize(
    "layout", [pytest.param(layout, marks=[pytest.mark.slow] if layout == "pointed" else []) for layout in LAYOUTS]
)
def test_a_materialized_view_over_another_one_is_refreshed_incrementally(lake: Lake, layout: str) -> None:
    """The other view's storage table is a base table like any other, even after it was rewritten completely."""
    table(lake, "r", "k int, n int", "(1, 1), (1, 2), (2, 3)")
    view(lake, COUNTS, layout=layout)
    lake.create(
        "top",
        "SELECT c, count(*) AS groups, sum(t) AS t, count(t) AS ct FROM {ns}.v GROUP BY c",
        refresh_strategy="incremental",
        properties=ALWAYS,
        layout=layout,
    )
    lake.refresh("v", "top")
    for change, rows in (
        ("INSERT INTO {ns}.r VALUES (2, 4), (3, 1)", [(1, 1, 1, 1), (2, 2, 10, 2)]),
        ("DELETE FROM {ns}.r WHERE n < 2", [(1, 1, 2, 1), (2, 1, 7, 1)]),
    ):
        lake.run(change)
        result = lake.refresh("v", "top", on_fallback="fail")
        assert result.mode == "merge"
        assert stored(lake, "top").num_rows == len(rows)
        assert sorted(tuple(row.values()) for row in stored(lake, "top").to_pylist()) == rows


def test_a_nested_plain_view_is_expanded(lake: Lake) -> None:
    """Its base table's change is the view's change; another definition of it requires a full refresh."""
    table(lake, "r", "k int, n int", "(1, 1), (1, 2), (2, 3)")
    lake.run("CREATE VIEW {ns}.plain AS SELECT k, n + 1 AS n FROM {ns}.r WHERE n > 1")
    lake.create(
        "v",
        "SELECT k, count(*) AS c, sum(n) AS t, count(n) AS cn FROM {ns}.plain GROUP BY k",
        refresh_strategy="incremental",
        properties=ALWAYS,
    )
    lake.refresh("v")
    lake.run("INSERT INTO {ns}.r VALUES (2, 4), (3, 1)")
    assert lake.refresh("v", on_fallback="fail").mode == "merge"
    assert lake.rows("v") == [(1, 1, 3, 1), (2, 2, 9, 2)]
    lake.run("CREATE OR REPLACE VIEW {ns}.plain AS SELECT k, n FROM {ns}.r")
    assert lake.refresh("v", on_fallback="full").mode == "full"
    assert lake.rows("v") == [(1, 2, 3, 2), (2, 2, 7, 2), (3, 1, 1, 1)]


def test_a_commit_during_the_refresh_belongs_to_the_next_one(counted: Lake) -> None:
    """Both ends of the change are pinned: a later row is in neither."""

    def meanwhile(_: RefreshPlan) -> None:
        counted.run("INSERT INTO {ns}.r VALUES (2, 100)", "DELETE FROM {ns}.r WHERE n = 1")

    counted.run("INSERT INTO {ns}.r VALUES (2, 5)")
    seen = counted.snapshot("r")
    result = counted.refresh("v", on_fallback="fail", on_plan=meanwhile)
    assert (result.mode, recorded(counted, "v")[counted("r")]) == ("merge", seen)
    check(counted, "v", COUNTS, in_duckdb=True)
    assert counted.rows("v") == [(1, 2, 3, 2), (2, 2, 8, 2)]
    assert mode_after(counted, COUNTS) == "merge"
    assert counted.rows("v") == [(1, 1, 2, 1), (2, 3, 108, 3)]
