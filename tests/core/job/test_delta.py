# SPDX-License-Identifier: Apache-2.0
"""The change of a table between two snapshots is exact for every history, and only changed files are read."""

from __future__ import annotations

import itertools
import pkgutil
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from weakref import WeakKeyDictionary

import pytest
from _pytest.mark import ParameterSet
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.errors import AnalysisException
from pyspark.sql import Row, SparkSession

from airflow_mv.core.job import context, versions
from airflow_mv.core.job.changed_files import _Files
from airflow_mv.core.job.context import JobContext
from airflow_mv.core.job.delta import check_deterministic
from airflow_mv.core.job.driver import run
from airflow_mv.core.script import (
    STAGING,
    WEIGHT,
    DeltaStep,
    DeterminismStep,
    Outcome,
    ReplaceKeysStep,
    Script,
    SqlStep,
    Step,
    temporary,
)
from airflow_mv.errors import IncrementalRefusedError
from tests.core.job.changing import (
    COLUMNS,
    LAYOUTS,
    VIEW,
    Table,
    append_files_of,
    delete_by_equality,
    make_table,
    quick,
    random_history,
)
from tests.core.job.conftest import TABLE, Lake, make_lake, rows_of
from tests.core.job.processes import OverConnect

__all__ = ["quick"]  # a fixture

V2, V3 = (2, "merge-on-read"), (3, "merge-on-read")
EACH_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"v{layout[0]}-{layout[1]}")


#: How many ordered pairs of a table's snapshots are compared: some in the normal run, all in the long one.
SOME_PAIRS = pytest.mark.parametrize("number", [5, pytest.param(None, id="all", marks=pytest.mark.slow)])


def pairs_of(table: Table, number: int | None) -> list[tuple[int, int]]:
    """Ordered pairs of a table's snapshots, so many of them or all."""
    found = list(itertools.permutations(table.snapshots, 2))
    return found if number is None else random.Random(5).sample(found, number)


def soon_or_later(layout: tuple[int, str]) -> ParameterSet:
    """A layout for the normal run: copies are rewritten alike in v2 and v3, and v3 has its own deletes."""
    marks = [] if layout in ((2, "copy-on-write"), (3, "merge-on-read")) else [pytest.mark.slow]
    return pytest.param(layout, id=f"v{layout[0]}-{layout[1]}", marks=marks)


@pytest.mark.parametrize("layout", [soon_or_later(layout) for layout in LAYOUTS])
def test_the_change_between_any_two_snapshots_is_the_difference_of_their_rows(
    spark: SparkSession, lake: Lake, layout: tuple[int, str]
) -> None:
    """Deletes, updates, merges, compaction, overwrites and rollbacks, forwards and backwards in time.

    Half of the pairs use the filter of a view: a row updated into it counts as added, one out of it as removed.
    """
    table = random_history(spark, f"{lake.name}.sales.h", layout, seed=2, changes=5)
    pairs = list(itertools.permutations([None, *table.snapshots], 2))
    for number, (start, end) in enumerate(random.Random(5).sample(pairs, 8)):
        where = "`x y` <> 'r1u' AND k IN (1, 2)" if number % 2 else "true"
        expected = table.change(start, end, COLUMNS, where)
        assert table.delta(start, end, COLUMNS, where=where)[0] == expected, (start, end, where)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("lists_tasks", [True, False])
@EACH_LAYOUT
def test_the_change_is_exact_in_many_histories(
    spark: SparkSession,
    lake: Lake,
    layout: tuple[int, str],
    lists_tasks: bool,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All ordered pairs of snapshots, for all columns and for two."""
    monkeypatch.setattr(JobContext, "lists_tasks", lists_tasks)
    table = random_history(spark, f"{lake.name}.sales.h", layout, seed=100 + seed, changes=7)
    for start, end in itertools.permutations([None, *table.snapshots], 2):
        for columns in (COLUMNS, ("k", "x y")):
            assert table.delta(start, end, columns)[0] == table.change(start, end, columns), (start, end)


@pytest.mark.parametrize("layout", [soon_or_later(layout) for layout in LAYOUTS])
def test_rows_that_match_other_changes_are_gathered_with_the_change(
    spark: SparkSession, lake: Lake, layout: tuple[int, str]
) -> None:
    """All rows of each version with a match are there, as often as in the table, and no row of another version."""
    table = random_history(spark, f"{lake.name}.sales.n", layout, seed=4, changes=5)
    # Where nothing is gathered, two changes show that.
    pairs = [*itertools.pairwise(table.snapshots)][:2]
    if layout != (2, "copy-on-write"):
        pairs = [*itertools.pairwise(table.snapshots), *random.Random(5).sample(every_pair(table), 3)]
    ways = check_gathering(table, pairs)
    way = {(3, "copy-on-write"): ("gathered", "lineage"), (2, "copy-on-write"): ("diff",)}.get(layout, ("gathered",))
    assert way in ways
    assert any("gathered" in each for each in ways) == (layout != (2, "copy-on-write"))


def test_rows_of_rewritten_files_are_gathered_with_rows_that_were_deleted_again(
    spark: SparkSession, lake: Lake
) -> None:
    """One file gets a second deletion vector, another one is rewritten."""
    table = make_table(spark, f"{lake.name}.sales.n", (3, "both"), "id BIGINT, k INT")
    table.run(*(f"INSERT INTO {{t}} SELECT /*+ COALESCE(1) */ id, 1 FROM range({n}, {n + 9})" for n in (0, 100)))
    table.run("DELETE FROM {t} WHERE id = 3")
    start = table.head
    table.run("DELETE FROM {t} WHERE id = 4", "UPDATE {t} SET k = 2 WHERE id = 105")
    found, _, ways = table.near(start, table.head, ("id", "k"), (7,))
    assert found == table.change(start, table.head) == {"[4, 1]": -1, "[105, 1]": -1, "[105, 2]": 1}
    assert ways == ("gathered", "lineage")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@EACH_LAYOUT
def test_rows_are_gathered_in_many_histories(
    spark: SparkSession, lake: Lake, layout: tuple[int, str], seed: int
) -> None:
    """All ordered pairs of snapshots."""
    table = random_history(spark, f"{lake.name}.sales.n", layout, seed=200 + seed, changes=7)
    check_gathering(table, every_pair(table))


def every_pair(table: Table) -> list[tuple[int | None, int | None]]:
    """All ordered pairs of a table's snapshots, and of the empty table."""
    return list(itertools.permutations([None, *table.snapshots], 2))


def check_gathering(table: Table, pairs: Sequence[tuple[int | None, int | None]]) -> set[tuple[str, ...]]:
    """Compare pairs of snapshots of a table, and return the ways in which they were read."""
    ways = set()
    for start, end in pairs:
        found, rows, way = table.near(start, end, COLUMNS, (1, 2))
        assert found == table.change(start, end, COLUMNS), (start, end)
        for version, snapshot in (("new", end), ("old", start)):
            assert not table.at(snapshot, COLUMNS, "k IN (1, 2)") - rows[version], (start, end, version)
            assert not rows[version] - table.at(snapshot, COLUMNS), (start, end, version)
        ways.add(way)
    return ways


@pytest.mark.parametrize("layout", [pytest.param(V2, id="v2"), pytest.param(V3, id="v3", marks=pytest.mark.slow)])
@SOME_PAIRS
def test_equality_deletes_are_seen(
    spark: SparkSession, lake: Lake, layout: tuple[int, str], number: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flink writes upserts with them; Iceberg's own changelog does not support them."""
    table = make_table(spark, f"{lake.name}.sales.e", layout, "id BIGINT, k INT")
    table.run("INSERT INTO {t} SELECT id, cast(id % 3 AS int) FROM range(9)")
    delete_by_equality(table, k=1)
    table.run("INSERT INTO {t} VALUES (1, 1), (20, 1)", "DELETE FROM {t} WHERE id = 5")
    for start, end in pairs_of(table, number):
        assert table.delta(start, end)[0] == table.change(start, end)
    first, second, *_, last = table.snapshots
    assert table.delta(first, second)[1].read_by == ("deleted",)
    monkeypatch.setattr(JobContext, "lists_tasks", False)
    for start, end, ways in ((first, second, ("values",)), (second, last, ("deleted", "files"))):
        found, facts = table.delta(start, end)
        assert (found, facts.read_by) == (table.change(start, end), ways)


def test_files_that_both_snapshots_share_are_not_read(spark: SparkSession, lake: Lake) -> None:
    """An append costs the appended file; a positional delete reads the one file that it affects."""
    table = make_table(spark, f"{lake.name}.sales.f", V3, "id BIGINT, k INT")
    table.run(*(f"INSERT INTO {{t}} SELECT /*+ COALESCE(1) */ id, 1 FROM range({n}, {n + 10})" for n in (0, 100, 200)))
    table.run("DELETE FROM {t} WHERE id = 3")
    _, second, third, last = table.snapshots
    appended, deleted = table.delta(second, third)[1], table.delta(third, last)[1]
    assert (appended.read_by, appended.old_tasks, appended.new_tasks, appended.rows_read) == (("diff",), 0, 1, 10)
    assert appended.rows == 10
    assert (deleted.read_by, deleted.old_tasks, deleted.new_tasks, deleted.rows) == (("deleted",), 1, 1, 1)
    assert appended.new_bytes < deleted.new_bytes + deleted.old_bytes


def test_a_compaction_is_not_a_change(spark: SparkSession, lake: Lake) -> None:
    """All files differ and all rows are the same."""
    for layout in (V2, V3):
        table = make_table(spark, f"{lake.name}.sales.c{layout[0]}", layout, "id BIGINT, k INT")
        table.run(*(f"INSERT INTO {{t}} SELECT id, 1 FROM range({n}, {n + 10})" for n in (0, 5)))
        before = table.head
        table.run(
            f"CALL {lake.name}.system.rewrite_data_files("
            f"table => 'sales.c{layout[0]}', options => map('rewrite-all', 'true'))"
        )
        assert table.head != before
        found, facts = table.delta(before, table.head)
        assert (found, facts.rows, facts.rows_read) == ({}, 0, 40)


def test_changed_rows_of_rewritten_files_are_found_by_their_ids(spark: SparkSession, lake: Lake) -> None:
    """Copied rows keep their ids. A step with a filter reads fewer rows of both sides."""
    table = make_table(spark, f"{lake.name}.sales.l", (3, "copy-on-write"), "id BIGINT, k INT, a ARRAY<INT>")
    table.run("INSERT INTO {t} SELECT id, cast(id % 5 AS int), array(cast(id AS int)) FROM range(200)")
    table.run("UPDATE {t} SET k = 9 WHERE id % 50 = 3", "DELETE FROM {t} WHERE id IN (3, 4, 190)")
    table.run("INSERT INTO {t} VALUES (500, null, null)", "UPDATE {t} SET k = k WHERE id = 7")
    first, updated, deleted, *_, last = table.snapshots
    reads = [(("id", "k"), "true"), (("id", "k"), "k > 3 OR id = 500"), (("id", "a"), "true")]
    in_turn = zip(itertools.pairwise(table.snapshots), itertools.cycle(reads), strict=False)
    for (start, end), (columns, where) in [*in_turn, *(((first, last), read) for read in reads)]:
        found, facts = table.delta(start, end, columns, where=where)
        assert found == table.change(start, end, columns, where), (start, end, columns, where)
        assert facts.read_by in {("lineage",), ("diff",)}
    assert table.delta(first, deleted)[1].read_by == table.delta(updated, deleted)[1].read_by == ("lineage",)
    found, facts = table.delta(deleted, first)
    assert found == table.change(deleted, first)
    assert facts.read_by == ("diff",), "versions tell nothing backwards in time"


@SOME_PAIRS
def test_rows_with_ids_of_other_rows_are_compared_by_their_values(
    spark: SparkSession, lake: Lake, number: int | None
) -> None:
    """A tool that knows nothing of row ids may commit a file with rows that have some."""
    layout = (3, "copy-on-write")
    other, table = (make_table(spark, f"{lake.name}.sales.{name}", layout, "id BIGINT, k INT") for name in "or")
    other.run("INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, 1 FROM range(100)", "DELETE FROM {t} WHERE id < 90")
    table.run("INSERT INTO {t} SELECT /*+ COALESCE(1) */ id + 1000, 1 FROM range(95)")
    append_files_of(table, other)
    table.run("UPDATE {t} SET k = 2 WHERE id IN (95, 1093)", "DELETE FROM {t} WHERE id = 1000")
    append_files_of(table, other)
    table.run("DELETE FROM {t} WHERE id IN (92, 1092)")
    for start, end in pairs_of(table, number):
        assert table.delta(start, end)[0] == table.change(start, end), (start, end)


def test_with_other_classes_in_spark_rewritten_files_are_compared_by_their_values(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scan by ids uses internal classes of Spark, which a version or a vendor may have changed."""
    table = make_table(spark, f"{lake.name}.sales.c", (3, "copy-on-write"), "id BIGINT, k INT")
    table.run("INSERT INTO {t} SELECT id, 1 FROM range(100)", "UPDATE {t} SET k = 2 WHERE id = 95")
    start, end = table.snapshots
    assert table.delta(start, end)[1].read_by == ("lineage",)
    others = {key: found for key, found in context._compiled.items() if "RowLineage" not in key}
    monkeypatch.setattr(context, "_compiled", others)
    monkeypatch.setattr(versions, "_answers", WeakKeyDictionary())
    original = pkgutil.get_data

    def unknown_class(package: str, name: str) -> bytes | None:
        source = original(package, name) or b""
        return source.replace(b"WholeStageCodegenEvaluatorFactory", b"Renamed") if name == "RowLineage.java" else source

    monkeypatch.setattr(pkgutil, "get_data", unknown_class)
    found, facts = table.delta(start, end)
    assert (found, facts.read_by) == (table.change(start, end), ("diff",))


def test_a_set_of_tasks_that_iceberg_would_read_as_the_whole_table_is_not_read(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version may take the name of a set otherwise: then it reads all rows, and says nothing."""
    table = make_table(spark, f"{lake.name}.sales.c", (2, "merge-on-read"), "id BIGINT, k INT")
    table.run("INSERT INTO {t} SELECT id, 1 FROM range(100)", "UPDATE {t} SET k = 2 WHERE id = 95")
    start, end = table.snapshots
    monkeypatch.setattr(versions, "_answers", WeakKeyDictionary())
    monkeypatch.setattr(context.SparkJava, "_read_set", lambda self, *_: spark.table(table.name))
    assert table.delta(start, end)[0] == table.change(start, end)
    assert [line for line in JobContext(spark, "none").java.can.slower() if "metadata tables" in line]


def test_summaries_are_stamped_where_iceberg_takes_them_from_no_settings(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(spark, f"{lake.name}.sales.c", (2, "merge-on-read"), "id BIGINT, k INT")
    monkeypatch.setattr(versions.Capabilities, "stamps_by_setting", lambda _: False)
    monkeypatch.setattr(context, "settings_below", lambda *_: {"of": "the run"})
    work = JobContext(spark, "none")
    for statement in ("INSERT INTO {} VALUES (1, 1), (2, 2)", "DELETE FROM {} WHERE id = 1", "DELETE FROM {}"):
        work.run(statement.format(table.name))
    with pytest.raises(AnalysisException):
        work.run(f"INSERT INTO {table.name} SELECT nothing")
    summaries = spark.sql(f"SELECT summary FROM {table.name}.snapshots").collect()
    assert [row.summary["of"] for row in summaries] == ["the run"] * 3


def test_changes_that_do_not_affect_the_view_cancel(spark: SparkSession, lake: Lake) -> None:
    """Changes in unused columns, and of rows that its filter excludes."""
    table = make_table(spark, f"{lake.name}.sales.u", V2, "id BIGINT, k INT, note STRING")
    table.run("INSERT INTO {t} SELECT id, cast(id % 3 AS int), 'a' FROM range(9)")
    before = table.head
    table.run("UPDATE {t} SET note = 'b' WHERE k = 1", "DELETE FROM {t} WHERE id IN (2, 3)")
    assert table.delta(before, table.head)[0] == {"[2, 2]": -1, "[3, 0]": -1}
    assert table.delta(before, table.head, where="id > 2 AND note <> 'c'")[0] == {"[3, 0]": -1}
    assert table.delta(before, table.head, columns=())[0] == {"[]": -2}


def test_without_java_the_rows_of_both_snapshots_are_compared(spark: SparkSession, lake: Lake) -> None:
    """A session over Spark Connect does the same; here it is requested."""
    table = random_history(spark, f"{lake.name}.sales.v", V2, seed=11, changes=3)
    start, *_, end = table.snapshots
    found, facts = table.delta(start, end, COLUMNS, kind="values")
    assert found == table.change(start, end, COLUMNS)
    assert facts.read_by == ("values",)


@pytest.mark.parametrize("layout", [soon_or_later(layout) for layout in LAYOUTS])
def test_without_scan_tasks_only_changed_files_count(
    spark: SparkSession, lake: Lake, layout: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As over Spark Connect, in any history: with compactions, rollbacks and rows that are written again."""
    monkeypatch.setattr(JobContext, "lists_tasks", False)
    monkeypatch.setattr("airflow_mv.core.job.changed_files._SLOWER", 0)
    table = random_history(spark, f"{lake.name}.sales.l", layout, seed=3, changes=6)
    ways: set[str] = set()
    for start, end in random.Random(7).sample(list(itertools.permutations(table.snapshots, 2)), 4):
        found, facts = table.delta(start, end, COLUMNS, where="k IN (1, 2)")
        assert found == table.change(start, end, COLUMNS, "k IN (1, 2)"), (start, end)
        ways |= set(facts.read_by)
    assert ways <= {"changelog", "deleted", "files"}
    assert ("deleted" in ways) == (layout[1] == "merge-on-read")
    assert ("changelog" in ways) == (layout[1] == "copy-on-write")
    table.run("INSERT INTO {t} VALUES (1, 1, 'a', null, null, null)", "ALTER TABLE {t} ADD COLUMN _change_type STRING")
    start, end = table.snapshots[-2:]
    assert table.delta(start, end)[1].read_by == ("files",), "the changelog has a column of this name"


@SOME_PAIRS
def test_without_scan_tasks_a_second_deletion_vector_of_a_file_replaces_the_first_one(
    spark: SparkSession, lake: Lake, number: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are of the whole file: only what they differ in is a change. The entries are read at once, or compared."""
    monkeypatch.setattr(JobContext, "lists_tasks", False)
    table = make_table(spark, f"{lake.name}.sales.d", V3, "id BIGINT, k INT")
    table.run("INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, cast(id % 3 AS int) FROM range(20)")
    table.run(*(f"DELETE FROM {{t}} WHERE id = {one}" for one in (3, 5, 7)))
    for most in (20_000, 0):
        monkeypatch.setattr("airflow_mv.core.job.changed_files._MAX_VALUES", most)
        for start, end in pairs_of(table, number):
            found, facts = table.delta(start, end)
            assert (found, facts.read_by) == (table.change(start, end), ("deleted",)), (most, start, end)


@pytest.mark.parametrize("layout", [pytest.param(V2, id="v2", marks=pytest.mark.slow), pytest.param(V3, id="v3")])
def test_without_scan_tasks_the_first_deletes_of_a_file_are_read_by_their_mark(
    spark: SparkSession, lake: Lake, layout: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later ones are read by their positions, as are those of a table with equality deletes, or with such a column."""
    monkeypatch.setattr(JobContext, "lists_tasks", False)
    places, read = _Files._places, []
    monkeypatch.setattr(_Files, "_places", lambda *args: read.append(args[1]) or places(*args))
    table = make_table(spark, f"{lake.name}.sales.m", layout, "id BIGINT, k INT")
    table.run(*(f"INSERT INTO {{t}} SELECT /*+ COALESCE(1) */ id, 0 FROM range({n}, {n + 9})" for n in (0, 10)))
    table.run("DELETE FROM {t} WHERE id IN (3, 4)", "DELETE FROM {t} WHERE id = 12", "DELETE FROM {t} WHERE id = 5")
    _, whole, first, other, again = table.snapshots

    def positions_of(table: Table, start: int, end: int) -> list[int]:
        read.clear()
        found, facts = table.delta(start, end)
        assert (found, facts.read_by) == (table.change(start, end), ("deleted",)), (start, end)
        return list(read)

    for start, end in ((whole, first), (first, whole), (first, other), (other, first), (whole, again), (again, whole)):
        assert positions_of(table, start, end) == [], (start, end)
    assert 0 in positions_of(table, first, again)
    table.run("INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, 7 FROM range(20, 29)")
    delete_by_equality(table, k=6)
    table.run("DELETE FROM {t} WHERE id = 23")
    assert positions_of(table, *table.snapshots[-2:]) == [0]
    named = make_table(spark, f"{lake.name}.sales.n", layout, "id BIGINT, k INT, _deleted BOOLEAN")
    named.run("INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, 0, true FROM range(9)", "DELETE FROM {t} WHERE id = 3")
    assert positions_of(named, *named.snapshots[-2:]) == [0]


# -------------------------------------------------------------------------------------- columns, names


@pytest.mark.parametrize("number", [3, pytest.param(None, id="all", marks=pytest.mark.slow)])
def test_without_scan_tasks_the_columns_of_a_snapshot_are_read_after_they_were_swapped(
    spark: SparkSession, lake: Lake, number: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No commit of rows shows that, and names and types are the same: the scans of commits have the present columns."""
    monkeypatch.setattr(JobContext, "lists_tasks", False)
    monkeypatch.setattr("airflow_mv.core.job.changed_files._SLOWER", 0)
    for layout in (V2, V3, (2, "copy-on-write")):
        table = make_table(spark, f"{lake.name}.sales.z{layout[0]}{layout[1][0]}", layout, "a BIGINT, b BIGINT")
        table.run("INSERT INTO {t} SELECT id, id + 100 FROM range(20)", "INSERT INTO {t} VALUES (50, 150)")
        table.run("DELETE FROM {t} WHERE a IN (3, 50)", "UPDATE {t} SET b = 7 WHERE a = 4")
        table.run(*(f"ALTER TABLE {{t}} RENAME COLUMN {old} TO {new}" for old, new in ("ax", "ba", "xb")))
        for start, end in pairs_of(table, number):
            assert table.delta(start, end, ("a", "b"))[0] == table.change(start, end, ("a", "b")), (layout, start, end)
        with pytest.raises(IncrementalRefusedError, match="changed after the plan") as refused:
            table.delta(*table.snapshots[:2], ("a", "b"), kind="append")
        assert refused.value.code == "schema-changed"


def test_columns_with_another_meaning_are_refused_and_others_are_not(spark: SparkSession, lake: Lake) -> None:
    """An unchanged file has other values now, which a difference of files cannot show."""
    table = make_table(spark, f"{lake.name}.sales.s", V2, "id INT, k INT, s STRUCT<a: INT>")
    table.run("INSERT INTO {t} SELECT cast(id AS int), 1, struct(1) FROM range(5)")
    before = table.head
    table.run("ALTER TABLE {t} ADD COLUMN extra STRING", "ALTER TABLE {t} ALTER COLUMN id TYPE BIGINT")
    table.run("ALTER TABLE {t} DROP COLUMN k", "ALTER TABLE {t} ADD COLUMN k INT")
    table.run("ALTER TABLE {t} ADD COLUMN s.b INT", "DELETE FROM {t} WHERE id = 3")
    assert table.delta(before, table.head, ("id",))[0] == {"[3]": -1}
    for column in ("extra", "k", "s"):
        with pytest.raises(IncrementalRefusedError, match=f"column {column}") as refused:
            table.delta(before, table.head, (column,))
        assert refused.value.code == "schema-changed"


def test_a_nested_column_is_read_with_the_fields_of_the_end_if_only_common_ones_are_wanted(
    spark: SparkSession, lake: Lake
) -> None:
    """Where each snapshot would be read with its own fields, Spark would unite them by their places."""
    table = make_table(spark, f"{lake.name}.sales.n", V2, "id INT, s STRUCT<a: INT, b: INT>")
    table.run("INSERT INTO {t} SELECT /*+ COALESCE(1) */ cast(id AS int), struct(id, 7) FROM range(5)")
    before = table.head
    table.run(
        "ALTER TABLE {t} DROP COLUMN s.b", "ALTER TABLE {t} ADD COLUMN s.c INT FIRST", "DELETE FROM {t} WHERE id = 3"
    )
    assert table.delta(before, table.head, ("id", "s"), partial=("s",))[0] == {repr([3, Row(c=None, a=3)]): -1}
    table.run("ALTER TABLE {t} DROP COLUMN s.a", "ALTER TABLE {t} ADD COLUMN s.a INT", "DELETE FROM {t} WHERE id = 2")
    for kind, message in (("diff", "column s"), ("values", "nested fields of a column")):
        with pytest.raises(IncrementalRefusedError, match=message) as refused:
            table.delta(before, table.head, ("id", "s"), kind=kind, partial=("s",))
        assert refused.value.code == "schema-changed"


def test_an_appended_row_is_read_with_the_columns_of_its_snapshot(spark: SparkSession, lake: Lake) -> None:
    """The native scan of appends uses the current columns: a renamed column does not exist any more."""
    table = make_table(spark, f"{lake.name}.sales.a", V2, "id BIGINT, k INT")
    table.run("INSERT INTO {t} VALUES (1, 1)", "INSERT INTO {t} VALUES (2, 2)")
    start, end = table.snapshots
    facts = table.delta(start, end, kind="append")[1]
    assert (facts.read_by, facts.new_tasks, facts.rows_read, facts.rows) == (("append",), 1, 1, 1)
    assert 0 < facts.new_bytes < 10_000
    table.run("ALTER TABLE {t} RENAME COLUMN k TO renamed")
    assert table.delta(start, end, kind="append")[0] == {"[2, 2]": 1}


def test_values_that_cannot_be_compared_are_refused_only_if_they_must_be_compared(
    spark: SparkSession, lake: Lake
) -> None:
    """A VARIANT has no equality; rows that were only added or only removed need none."""
    table = make_table(spark, f"{lake.name}.sales.w", V3, "id BIGINT, v VARIANT")
    table.run("INSERT INTO {t} SELECT id, parse_json(string(id)) FROM range(5)")
    before = table.head
    table.run("INSERT INTO {t} SELECT 9, parse_json('9')")
    middle = table.head
    table.run("UPDATE {t} SET v = parse_json('0') WHERE id = 1")
    assert table.delta(before, middle, ("id", "v"))[1].rows_read == 1
    with pytest.raises(IncrementalRefusedError, match="column v") as refused:
        table.delta(before, table.head, ("id", "v"))
    assert refused.value.code == "column-type"
    assert table.delta(before, table.head, ("id",))[0] == {"[9]": 1}


def test_odd_names_are_supported(spark: SparkSession, lake: Lake) -> None:
    """All names are quoted."""
    spark.sql(f"CREATE NAMESPACE {lake.name}.`odd ns`").collect()
    table = make_table(spark, f"{lake.name}.`odd ns`.`a ``t`", V2, "`x``y.z` INT, `select` INT")
    table.run("INSERT INTO {t} VALUES (1, 1), (2, 2)")
    before = table.head
    table.run("UPDATE {t} SET `select` = 3 WHERE `x``y.z` = 1")
    assert table.delta(before, table.head, ("x`y.z", "select"))[0] == {"[1, 1]": -1, "[1, 3]": 1}


def test_an_expired_snapshot_is_named(spark: SparkSession, lake: Lake) -> None:
    """Its files may be deleted: the planner's fallback decides."""
    table = make_table(spark, f"{lake.name}.sales.x", V2, "id BIGINT, k INT")
    table.run("INSERT INTO {t} VALUES (1, 1)")
    with pytest.raises(IncrementalRefusedError, match="snapshot 17 has expired") as refused:
        table.delta(17, table.head)
    assert refused.value.code == "snapshot-missing"


# --------------------------------------------------------------------------------------- inside a run


def whole_run(lake: Lake, *statements: str, start: int | None = None) -> Script:
    """Create a storage table, create the delta of the orders, run statements."""
    (create,) = lake.creation(f"SELECT day, amount, 0 AS w FROM {lake.name}.sales.orders").steps
    step = DeltaStep(VIEW, f"{lake.name}.sales.orders", lake.first_snapshot, start, ("day", "amount"))
    return Script(
        f"{lake.name}.sales.daily",
        "r",
        TABLE,
        (create, step, *map(SqlStep, statements)),
        incremental=True,
        reads=lake.reads,
    )


def silent(line: str) -> None:
    """Ignore progress messages."""


def test_a_script_reads_its_delta_by_name_and_leaves_nothing_in_the_session(spark: SparkSession, lake: Lake) -> None:
    """Neither after success nor after a failure: a session may run for months."""
    (head,) = spark.sql(f"SELECT snapshot_id FROM {lake.name}.sales.orders.refs").collect()
    script = whole_run(lake, f"INSERT INTO {TABLE} SELECT * FROM {VIEW}", start=head[0])
    script = Script.from_json(script.to_json())
    outcome = run(spark, script, report=silent)
    assert rows_of(outcome) == [("b", 5, 1)]
    assert (outcome.mode, [delta.read_by for delta in outcome.deltas]) == ("incremental", [("diff",)])
    assert type(outcome).from_json(outcome.to_json()) == outcome

    failed = run(
        spark, whole_run(lake, f"INSERT INTO {TABLE} SELECT raise_error('no'), 1, 1", start=head[0]), report=silent
    )
    assert (failed.mode, failed.metadata_location) == ("none", None)
    work = JobContext(spark, "none")
    assert work.java._table_cache().size() == 0
    assert [row.tableName for row in spark.sql("SHOW TABLES").collect() if STAGING in row.tableName] == []


def test_a_change_that_must_not_remove_rows_is_checked(spark: SparkSession, lake: Lake) -> None:
    """Appended terms copy each row by its weight without the sign, and a summary may be wrong."""
    table = make_table(spark, f"{lake.name}.sales.w", V2, "id BIGINT, k INT")
    table.run("INSERT INTO {t} VALUES (1, 1), (2, 2)", "INSERT INTO {t} VALUES (3, 3)", "DELETE FROM {t} WHERE id = 1")
    first, second, last = table.snapshots
    assert table.delta(first, second, only_added=True)[0] == table.change(first, second)
    with pytest.raises(IncrementalRefusedError) as refused:
        table.delta(first, last, only_added=True)
    assert refused.value.code == "rows-removed"


def test_a_missing_manifest_is_a_refusal(spark: SparkSession, lake: Lake) -> None:
    """Iceberg's errors are not Spark's: the job failed with them at each try, although a full refresh is possible."""
    table = make_table(spark, f"{lake.name}.sales.g", V2, "id BIGINT, k INT")
    table.run("INSERT INTO {t} VALUES (1, 1), (2, 2)", "INSERT INTO {t} VALUES (3, 3)", "DELETE FROM {t} WHERE id = 1")
    first, *_, last = table.snapshots
    lists = f"SELECT manifest_list FROM {table.name}.snapshots WHERE snapshot_id = {first}"
    Path(spark.sql(lists).collect()[0][0].removeprefix("file:")).unlink()
    with pytest.raises(IncrementalRefusedError) as refused:
        table.delta(first, last)
    assert refused.value.code == "delta-failed"
    assert "its change cannot be read" in str(refused.value)


def test_steps_for_a_missing_snapshot_are_refused_before_the_first_one_runs(spark: SparkSession, lake: Lake) -> None:
    """A view of the old rows may precede the change, and its error has no such reason."""
    name = f"{lake.name}.sales.orders"
    view = SqlStep(f"CREATE OR REPLACE TEMPORARY VIEW {VIEW} AS SELECT day FROM {name} VERSION AS OF 7")
    full = SqlStep(f"INSERT OVERWRITE {TABLE} SELECT day, amount FROM {name}")
    (create,) = lake.creation(f"SELECT day, amount FROM {name}").steps
    probe = DeterminismStep(lake.query())
    steps = (create, probe, view, DeltaStep(VIEW, name, 7, lake.first_snapshot, ("day",)))
    outcome = run(
        spark, Script(name, "r", TABLE, steps, incremental=True, fallback=(full,), reads=lake.reads), report=silent
    )
    assert (outcome.mode, outcome.fallback, outcome.rows_written) == ("full", "snapshot-missing", 3)


@pytest.mark.parametrize("word", ["rand()", "uuid()", "current_timestamp()", "current_date()", "now()"])
def test_a_nondeterministic_query_is_refused(spark: SparkSession, lake: Lake, word: str) -> None:
    """Half of the stored rows would be of one evaluation and half of another."""
    work = JobContext(spark, "none")
    work.reads = lake.reads
    query = f"SELECT day, count(*) FROM {lake.name}.sales.orders WHERE {word} IS NOT NULL GROUP BY day"
    with pytest.raises(IncrementalRefusedError) as refused:
        check_deterministic(work, DeterminismStep(query))
    assert refused.value.code == "not-deterministic"
    check_deterministic(work, DeterminismStep(lake.query()))


def test_a_refusal_runs_the_fallback_in_the_same_job_or_ends_it(spark: SparkSession, lake: Lake) -> None:
    """The recorded mode is the one that ran, with its reason."""
    full = SqlStep(f"INSERT OVERWRITE {TABLE} SELECT day, amount, 1 FROM {lake.name}.sales.orders")
    (create,) = lake.creation(f"SELECT day, amount, 0 AS w FROM {lake.name}.sales.orders").steps
    steps = (create, DeterminismStep("SELECT rand()"), SqlStep("INSERT INTO not_reached SELECT 1"))
    script = Script(f"{lake.name}.sales.daily", "r", TABLE, steps, incremental=True, fallback=(full,), reads=lake.reads)
    outcome = run(spark, Script.from_json(script.to_json()), report=silent)
    assert (outcome.mode, outcome.fallback, outcome.rows_written) == ("full", "not-deterministic", 3)
    ended = run(spark, Script(script.view, "r", TABLE, steps, incremental=True, reads=lake.reads), report=silent)
    assert (ended.mode, ended.fallback, ended.metadata_location) == ("none", "not-deterministic", None)
    assert "other rows at each run" in (ended.error or "")
    assert not ended.query_error


def test_few_large_rows_are_not_collected_on_the_driver(spark: SparkSession) -> None:
    """The driver's limit is set per session in bytes: a change of long texts must not fail."""
    work = JobContext(spark, "none")
    frame = spark.sql("SELECT repeat(sha2(string(id), 512), 20) AS text FROM range(0, 4000, 1, 2)")
    conf = spark.sparkContext._jsc.sc().conf()  # type: ignore[attr-defined]
    held = work.collect_locally(frame)
    assert held is not None
    assert held.rows == 4000
    conf.set("spark.driver.maxResultSize", "100k")
    try:
        assert work.collect_locally(frame) is None
        held = work.kept(frame, 4000)
        assert (held.rows, held.frame.where("text IS NOT NULL").count()) == (4000, 4000)
    finally:
        conf.remove("spark.driver.maxResultSize")


def test_sizes_within_each_other_are_restored_one_by_one(spark: SparkSession) -> None:
    """A change is held in a block that is planned for its files, and collected in another one for its rows."""
    work = JobContext(spark, "none")

    def now() -> list[str | None]:
        return [spark.conf.get(f"spark.sql.{key}", None) for key in ("shuffle.partitions", "adaptive.enabled")]

    before = now()
    with work.sized_for(1, fetched=True):
        outer = now()
        with work.sized_for(1 << 40):
            assert now() == [before[0], "false"]
        assert now() == outer == ["1", "false"]
    assert now() == before


def test_temporary_names_differ_between_runs() -> None:
    """The run gives its staging catalog a unique name, and these views, too."""
    assert temporary("a `b") == f"`{STAGING}-a ``b`"


@pytest.mark.cluster
def test_over_spark_connect_the_change_is_read_from_changed_files_and_keys_are_replaced(
    tmp_path: Path, over_connect: OverConnect
) -> None:
    """Without Java no files can be planned; the same script has the same result and the same refusals."""
    lake = make_lake(tmp_path)
    confs = lake.settings.session_confs()
    (create,) = lake.creation().steps
    name = f"{lake.name}.sales.orders"
    fill = SqlStep(f"INSERT OVERWRITE {TABLE}\n{lake.query(lake.first_snapshot)}")
    written, other = (
        f"SELECT {call} AS x, date '2020-01-01' AS d FROM {name}" for call in ("log10(amount)", "ln(amount)")
    )

    def script(*steps: Step) -> Script:
        return Script(
            f"{lake.name}.sales.daily", "r", TABLE, (create, fill, *steps), incremental=True, reads=lake.reads
        )

    orders = SqlCatalog(lake.name, **lake.properties).load_table("sales.orders")
    head = orders.metadata.current_snapshot_id
    delta = DeltaStep(VIEW, name, lake.first_snapshot, head, ("day",))
    again = written.replace("date '2020-01-01'", "CAST('2020-01-01' AS DATE)")
    insert = SqlStep(f"INSERT INTO {TABLE} SELECT a.day, 1 FROM {VIEW} AS a JOIN {VIEW} AS b ON a.day = b.day")
    scripts = [
        script(
            DeterminismStep(written, again),
            delta,
            ReplaceKeysStep(TABLE, lake.query(head or 0), ("day", "amount"), f"SELECT day FROM {VIEW}", ("day",)),
        ),
        script(replace(delta, kind="append", uses=2), insert),
        script(DeterminismStep(written, other), insert),
    ]
    (outcome, joined, refused), _ = over_connect(confs, *scripts)
    assert rows_of(outcome) == [("a", 10), ("b", 25)]
    assert (outcome.mode, outcome.written_by, outcome.keys) == ("incremental", "delete", 1)
    assert [delta.read_by for delta in outcome.deltas] == [("changelog",)]
    assert rows_of(joined) == [("a", 10), ("b", 1), ("b", 20)]
    assert [delta.read_by for delta in joined.deltas] == [("append",)]
    assert (refused.mode, refused.fallback) == ("none", "plan-differs")


@pytest.mark.cluster
def test_over_spark_connect_deleted_rows_are_read_from_files_that_are_known_ahead(
    tmp_path: Path, over_connect: OverConnect
) -> None:
    """The script says how many files there are, or the history does. An expired snapshot is named in both cases."""
    lake = make_lake(tmp_path)
    name = f"{lake.name}.sales.marked"
    modes = "'write.delete.mode' = 'merge-on-read'"
    made = f"CREATE TABLE {name} USING iceberg TBLPROPERTIES ({modes}) AS SELECT id, id % 3 AS k FROM range(20)"
    (create,) = lake.creation().steps
    written = lake.query(lake.first_snapshot)
    insert = SqlStep(f"INSERT INTO {TABLE} SELECT concat(id, k), {WEIGHT} FROM {VIEW}")

    def script(*steps: Step) -> Script:
        return Script(f"{lake.name}.sales.daily", "r", TABLE, (create, *steps), incremental=True, reads=lake.reads)

    def run_all(*scripts: Script) -> list[Outcome]:
        return over_connect(lake.settings.session_confs(), *scripts)[0]

    run_all(script(SqlStep(made), SqlStep(f"DELETE FROM {name} WHERE id IN (3, 7)")))
    snapshots = SqlCatalog(lake.name, **lake.properties).load_table("sales.marked").metadata.snapshots
    delta = DeltaStep(VIEW, name, snapshots[0].snapshot_id, snapshots[1].snapshot_id, ("id", "k"))
    steps = [replace(delta, merge_on_read_files=files) for files in (None, 10)]
    found = run_all(*(script(DeterminismStep(written, written), step, insert) for step in steps))
    for outcome in found:
        assert rows_of(outcome) == [("30", -1), ("71", -1)]
        assert [item.read_by for item in outcome.deltas] == [("deleted",)]
    gone = run_all(*(script(DeterminismStep(written, written), replace(step, start=1), insert) for step in steps))
    assert [outcome.fallback for outcome in gone] == ["snapshot-missing"] * 2
