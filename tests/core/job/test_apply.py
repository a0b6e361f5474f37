# SPDX-License-Identifier: Apache-2.0
"""The stored rows of affected keys are replaced exactly, by each write method; an impossible step falls back."""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import pytest
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession

from airflow_mv.core.job.driver import run
from airflow_mv.core.job.pruning import skips
from airflow_mv.core.script import (
    STAGING,
    DeltaStep,
    MergeAdditiveStep,
    Outcome,
    ReplaceKeysStep,
    Script,
    SqlStep,
    Step,
    TableRead,
    temporary,
)
from tests.core.job.changing import head_of, plain, quick
from tests.core.job.conftest import TABLE, Lake

__all__ = ["quick"]  # a fixture

VIEW = temporary("base")
#: The normal run has each way of writing in some test.
EACH_WAY = pytest.mark.parametrize(
    "how", ["positions", *(pytest.param(how, marks=pytest.mark.slow) for how in ("overwrite", "delete"))]
)
MODES = ("copy-on-write", "merge-on-read")


def way_of(how: str, mode: str) -> str:
    """The way in which rows are written: a table whose owner wants no delete files gets none."""
    return "delete" if (how, mode) == ("positions", "copy-on-write") else how


def each_way_and_mode(*soon: tuple[str, str]) -> pytest.MarkDecorator:
    """All pairs; those that are not named are among the slow ones."""
    pairs = product(("delete", "overwrite", "positions"), MODES)
    later = [pytest.param(*pair, marks=pytest.mark.slow) for pair in pairs if pair not in soon]
    return pytest.mark.parametrize(("how", "mode"), [*soon, *later])


@dataclass
class Home:
    """A base table ``base(id, g, h, x)``, a view over it, and the view's staged rows from run to run."""

    spark: SparkSession
    lake: Lake
    sql: str = ""
    stored: str = ""
    seen: int | None = None
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def base(self) -> str:
        return f"{self.lake.name}.sales.base"

    def change(self, *statements: str) -> None:
        for statement in statements:
            self.spark.sql(statement.replace("{t}", self.base)).collect()

    def head(self) -> int:
        return head_of(self.spark, self.base)

    def query(self, snapshot: int | None = None) -> str:
        return self.sql.replace("{t}", f"{self.base} VERSION AS OF {snapshot or self.head()}")

    def start(self, sql: str, mode: str = "copy-on-write", **creation: Any) -> None:
        """Create the storage table and fill it."""
        self.sql = sql
        modes = tuple((f"write.{operation}.mode", mode) for operation in ("merge", "delete", "update") if mode)
        modes += creation.pop("properties", ())
        table = ".".join(f"`{part}`" for part in self.base.split("."))
        script = self.lake.creation(self.query(), properties=modes, **creation)
        created = run(self.spark, replace(script, reads=(TableRead(table, self.head()),)), report=silent)
        assert created.metadata_location is not None, created.error
        self.stored = created.metadata_location
        filled = self.run(SqlStep(f"INSERT OVERWRITE {TABLE}\n{self.query()}"), incremental=False)
        assert (filled.mode, filled.error) == ("full", None)

    def delta(self, *columns: str, **more: Any) -> DeltaStep:
        return DeltaStep(VIEW, self.base, self.seen, self.head(), columns, **more)

    def run(self, *steps: Step, incremental: bool = True, fallback: tuple[Step, ...] = ()) -> Outcome:
        """Run steps on the stored rows, and keep the result as the stored rows."""
        register = SqlStep(
            f"CALL `{STAGING}`.system.register_table(table => 'staged.storage', metadata_file => '{self.stored}')"
        )
        name = f"{self.lake.name}.sales.daily"
        script = Script(name, str(uuid.uuid4()), TABLE, (register, *steps), incremental=incremental, fallback=fallback)
        outcome = run(self.spark, Script.from_json(script.to_json()), report=silent)
        self.outcomes.append(outcome)
        if outcome.metadata_location is not None:
            self.stored, self.seen = outcome.metadata_location, self.head()
        return outcome

    def rows(self) -> Counter[str]:
        """The stored rows, read from the metadata file alone."""
        table = self.spark.read.format("iceberg").load(self.stored)
        return Counter(plain(list(row)) for row in table.collect())

    def recomputed(self) -> Counter[str]:
        return Counter(plain(list(row)) for row in self.spark.sql(self.query()).collect())

    def full(self) -> tuple[Step, ...]:
        return (SqlStep(f"INSERT OVERWRITE {TABLE}\n{self.query()}"),)


def silent(line: str) -> None:
    """Ignore progress messages."""


@pytest.fixture
def home(spark: SparkSession, lake: Lake) -> Home:
    made = Home(spark, lake)
    made.change(
        "CREATE TABLE {t} (id BIGINT, g STRING, h INT, x BIGINT) USING iceberg TBLPROPERTIES ('format-version' = '2')",
        "INSERT INTO {t} SELECT id, if(id % 5 = 0, null, concat('g', id % 5)), cast(id % 3 AS int), id FROM range(30)",
    )
    return made


GROUPED = "SELECT g, h, count(DISTINCT x) AS n, max(x) AS top FROM {t} GROUP BY g, h"
CHANGES = (
    "INSERT INTO {t} VALUES (100, NULL, 1, 7), (101, 'new', NULL, 8), (102, NULL, NULL, 9)",
    "DELETE FROM {t} WHERE g = 'g1' AND h = 1",
    "UPDATE {t} SET g = 'g2' WHERE id IN (3, 4)",
)


def by_groups(home: Home, how: str, **more: Any) -> ReplaceKeysStep:
    columns = ("g", "h", "n", "top")
    return ReplaceKeysStep(TABLE, home.query(), columns, f"SELECT g, h FROM {VIEW}", ("g", "h"), how=how, **more)


@each_way_and_mode(("positions", MODES[1]))
def test_affected_groups_are_recomputed_with_nulls_and_new_moved_and_removed_groups(
    home: Home, how: str, mode: str
) -> None:
    """After each change the stored rows equal a recompute, as a multiset."""
    home.start(GROUPED, mode)
    for change in CHANGES:
        home.change(change)
        outcome = home.run(home.delta("g", "h"), by_groups(home, how))
        assert outcome.error is None, outcome.error
        assert (outcome.mode, outcome.written_by) == ("incremental", way_of(how, mode))
        assert home.rows() == home.recomputed(), change
    assert home.outcomes[-2].keys == 1, "one group was removed"


@EACH_WAY
def test_repeated_rows_are_replaced_by_their_values(home: Home, how: str) -> None:
    """A view without a key: all its columns are the key, and a row may occur several times."""
    home.start("SELECT g, h FROM {t} WHERE id < 200", MODES[1])
    home.change("INSERT INTO {t} SELECT id, 'g1', 1, 0 FROM range(50, 53)", "DELETE FROM {t} WHERE id IN (0, 15, 51)")
    affected = f"SELECT g, h FROM {VIEW}"
    step = ReplaceKeysStep(TABLE, home.query(), ("g", "h"), affected, ("g", "h"), how=how)
    outcome = home.run(home.delta("g", "h", where="id < 200"), step)
    assert (outcome.error, outcome.mode) == (None, "incremental")
    assert home.rows() == home.recomputed()


def test_the_single_row_is_recomputed_if_a_change_affects_it(home: Home) -> None:
    """No key is needed to find it; an unrelated change does not change the storage table."""
    home.start("SELECT count(DISTINCT g) AS groups, max(x) AS most FROM {t} WHERE h = 1")
    for added, way in (("(300, 'other', 0, 1000)", "none"), ("(301, 'other', 1, 1000)", "overwrite")):
        home.change(f"INSERT INTO {{t}} VALUES {added}")
        step = ReplaceKeysStep(TABLE, home.query(), ("groups", "most"), f"SELECT 1 FROM {VIEW} WHERE h = 1", ())
        outcome = home.run(home.delta("g", "h", "x"), step)
        assert (outcome.error, outcome.mode, outcome.written_by) == (None, "incremental", way)
        assert home.rows() == home.recomputed()


def test_a_change_that_affects_nothing_writes_nothing_and_one_with_too_many_keys_falls_back(home: Home) -> None:
    """The storage table keeps its snapshot. The recorded mode is the one that ran, in the same job.

    Without a fallback the run ends with the reason.
    """
    home.start(GROUPED)
    before = home.stored
    home.change("UPDATE {t} SET x = x WHERE id = 3")
    outcome = home.run(home.delta("g", "h", "x"), by_groups(home, "delete"))
    assert (outcome.error, outcome.mode, outcome.written_by, outcome.keys) == (None, "incremental", "none", 0)
    assert (outcome.metadata_location, outcome.rows_written) == (before, 0)
    home.change("UPDATE {t} SET x = x + 1")
    step = by_groups(home, "delete", most_keys=3)
    ended = home.run(home.delta("g", "h", "x"), step)
    assert (ended.mode, ended.fallback, ended.metadata_location) == ("none", "too-many-keys", None)
    outcome = home.run(home.delta("g", "h", "x"), step, fallback=home.full())
    assert (outcome.mode, outcome.fallback, outcome.written_by) == ("full", "too-many-keys", "statement")
    assert (outcome.fallback_reason or "").startswith("more than 3 keys are affected")
    assert home.rows() == home.recomputed()


@pytest.mark.parametrize("version", [pytest.param("2", marks=pytest.mark.slow), "3"])
def test_rows_deleted_by_position_leave_their_files(home: Home, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Only the new rows are written. Deletes of earlier refreshes still hold, in few files.

    A file without rows is removed. Before too many rows of some files are deleted, the files are written anew.
    """
    home.change("INSERT INTO {t} SELECT 100 + id, 'g3', 10 + cast(id AS int), id FROM range(10)")
    home.start(GROUPED, "", partition_by=("`g`",), properties=(("format-version", version),))
    for name, value in (("_MERGED", 2), ("_ANY_SHARE", 1), ("_ONE_IN", 1)):
        monkeypatch.setattr(f"airflow_mv.core.job.positions.{name}", value)

    def refreshed(*changed: int, way: str = "positions") -> tuple[int, int]:
        before = files_of(home)
        home.change(f"UPDATE {{t}} SET x = x + 1000 WHERE g = 'g3' AND h IN ({', '.join(map(str, changed))})")
        outcome = home.run(home.delta("g", "h", "x"), by_groups(home, "positions"))
        assert (outcome.error, outcome.written_by) == (None, way)
        assert home.rows() == home.recomputed()
        assert (outcome.rows_deleted, outcome.rows_written) == (len(changed), len(changed)) or way == "delete"
        gone = before.keys() - files_of(home).keys()
        assert {partition for partition, _ in gone} <= {"g3"}
        return len(gone), max(files_of(home).values())

    assert refreshed(10) == (0, 1)
    assert refreshed(11) == (0, 1 if version == "3" else 2)
    assert refreshed(12) == (0, 1)
    assert refreshed(10, 11, 12) == (3, 1)
    assert refreshed(0, way="delete") == (1, 0)
    monkeypatch.setattr("airflow_mv.core.job.positions._MAX_DELETED", 1.0)
    assert refreshed(1) == (0, 1)
    assert refreshed(2, *range(13, 20)) == (1, 0)


def test_a_file_of_deletes_in_several_data_files_stays(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only deletes of one data file are replaced by others. With many that are about several, rows are written anew."""
    properties = (("write.delete.mode", "merge-on-read"), ("write.delete.granularity", "partition"))
    home.start(GROUPED, "", properties=properties)
    monkeypatch.setattr("airflow_mv.core.job.positions._MERGED", 1)

    def refreshed(h: int, how: str) -> str:
        home.change(f"UPDATE {{t}} SET x = x + 1000 WHERE g IN ('g2', 'g3') AND h = {h}")
        outcome = home.run(home.delta("g", "h", "x"), by_groups(home, how))
        assert outcome.error is None
        assert home.rows() == home.recomputed()
        return outcome.written_by

    def shared() -> set[str]:
        tasks = StaticTable.from_metadata(home.stored).scan().plan_files()
        counts = Counter(deletes.file_path for task in tasks for deletes in task.delete_files)
        return {path for path, count in counts.items() if count > 1}

    assert refreshed(0, "positions") == "positions"
    home.change("UPDATE {t} SET x = x + 1 WHERE g = 'g1' AND h = 0")
    assert refreshed(0, "delete") == "delete"
    kept = shared()
    assert kept
    assert refreshed(1, "positions") == "positions"
    assert shared() == kept
    monkeypatch.setattr("airflow_mv.core.job.positions._MAX_SHARED", 0)
    assert refreshed(2, "positions") == "delete"


def test_partitions_without_an_affected_key_keep_their_files(home: Home) -> None:
    """The keys are also plain predicates, by which Iceberg skips partitions and files."""
    home.start(GROUPED, partition_by=("`g`",))
    before = files_of(home)
    home.change("UPDATE {t} SET x = 1000 WHERE g = 'g3' AND h = 2")
    outcome = home.run(home.delta("g", "h", "x"), by_groups(home, "delete"))
    assert outcome.error is None, outcome.error
    assert home.rows() == home.recomputed()
    kept = {partition for partition, path in before if (partition, path) in files_of(home)}
    assert kept == {partition for partition, _ in before} - {"g3"}


def files_of(home: Home) -> dict[tuple[Any, str], int]:
    """The partition and the path of each data file, and how many delete files it has."""
    tasks = StaticTable.from_metadata(home.stored).scan().plan_files()
    return {(task.file.partition[0], task.file.file_path): len(task.delete_files) for task in tasks}


@pytest.mark.parametrize("how", ["delete", "positions"])
def test_keys_of_every_type_are_pruned_and_matched(home: Home, how: str) -> None:
    """A value is written as a literal into a predicate; a wrong literal would skip a row that must be deleted."""
    home.start(
        "SELECT id, date_add(DATE'1969-12-25', h) AS d, timestamp_micros(x * 1000003 - 5) AS t, "
        "timestamp_ntz'2024-03-31 02:30:00.000001' AS z, cast(x AS decimal(20, 3)) / 7 AS n, "
        "concat(g, '?\\'\\\\') AS s, x > 10 AS b, x / 3D AS f, encode(g, 'UTF-8') AS y FROM {t}",
        "" if how == "positions" else MODES[0],
    )
    home.change("UPDATE {t} SET x = x + 1 WHERE id IN (0, 11, 17)")
    names = ("id", "d", "t", "z", "n", "s", "b", "f", "y")
    both = f"SELECT {{}} FROM {home.base} VERSION AS OF {{}}"
    columns = home.sql.partition("SELECT ")[2].partition(" FROM {t}")[0]
    changed = [both.format(columns, snapshot) for snapshot in (home.seen, home.head())]
    affected = " UNION ALL ".join(f"({query} WHERE id IN (SELECT id FROM {VIEW}))" for query in changed)
    step = ReplaceKeysStep(TABLE, home.query(), names, affected, names, how=how)
    outcome = home.run(home.delta("id", "x"), step)
    assert (outcome.error, outcome.mode, outcome.keys) == (None, "incremental", 6)
    assert outcome.written_by == how
    assert home.rows() == home.recomputed()


@pytest.mark.parametrize(
    ("keys", "stored", "skips_much"),
    [
        ((10, 19, 10), (0, 99), True),  # one day of a year
        ((2, 98, 97), (0, 99), False),  # from all over the table
        ((0, 99, 5), (0, 99), True),  # a list of some values
        ((1, 7, 7), (1, 7), False),  # a list of all values
        ((50, 200, 151), (0, 99), True),  # mostly new keys
        ((500, 600, 101), (0, 99), True),  # only new keys
        ((-5, 200, 206), (0, 99), False),
        (None, (0, 99), True),
        ((0, 99, 100), None, True),
    ],
)
def test_keys_are_predicates_only_where_these_skip_something(
    keys: tuple[int, int, int] | None, stored: tuple[int, int] | None, skips_much: bool
) -> None:
    """Iceberg reads the dictionaries of each row group for a predicate, and Spark applies it to each row."""
    assert skips(keys, stored) is skips_much


def test_a_key_that_cannot_be_compared_falls_back(home: Home) -> None:
    """A MAP has no equality."""
    home.start("SELECT map(g, h) AS m, id FROM {t} WHERE g IS NOT NULL")
    home.change("DELETE FROM {t} WHERE id = 1")
    affected = f"SELECT map(g, h), id FROM {VIEW} WHERE g IS NOT NULL"
    step = ReplaceKeysStep(TABLE, home.query(), ("m", "id"), affected, ("m", "id"))
    outcome = home.run(home.delta("g", "h", "id"), step, fallback=home.full())
    assert (outcome.mode, outcome.fallback) == ("full", "key-type")


def test_a_constant_that_changed_falls_back(home: Home) -> None:
    """A scalar subquery that every row depends on, compared at both snapshots."""
    home.start("SELECT g, h, (SELECT max(h) FROM {t}) AS top FROM {t}")
    for number, changed in enumerate(("false", "true")):
        home.change(f"DELETE FROM {{t}} WHERE id = {number}")
        step = ReplaceKeysStep(TABLE, home.query(), ("g", "h", "top"), "SELECT 1/0, 1/0", ("g", "h"))
        constants = (f"SELECT {changed}", "SELECT false")
        step = replace(step, constants=constants, affected_unless=f"SELECT g, h FROM {VIEW}")
        outcome = home.run(home.delta("g", "h"), step, fallback=home.full())
        assert (outcome.error, outcome.fallback) == (None, "constant-changed" if changed == "true" else None)
        assert home.rows() == home.recomputed()


def test_without_a_key_all_rows_are_one_group(home: Home) -> None:
    """An aggregate over all rows has one row, which is never deleted."""
    home.start("SELECT count(*) AS n, max(x) AS top FROM {t}")
    step = ReplaceKeysStep(TABLE, "", ("n", "top"), f"SELECT 1 FROM {VIEW}", ())
    for change in ("INSERT INTO {t} VALUES (1, 'a', 1, 999)", "DELETE FROM {t}"):
        home.change(change)
        outcome = home.run(home.delta("x"), replace(step, query=home.query()))
        assert (outcome.error, outcome.written_by) == (None, "overwrite")
        assert home.rows() == home.recomputed()


# ------------------------------------------------------------------------------------ additive merges

SUMS = "SELECT g, count(*) AS n, sum(x) AS total, min(h) AS low FROM {t} GROUP BY g"


def added(home: Home, how: str = "positions", keys: tuple[str, ...] = ("g",)) -> MergeAdditiveStep:
    group = "GROUP BY g" if keys else ""
    changes = f"SELECT {'g, ' if keys else ''}sum(__w) AS n, sum(__w * x) AS total, min(h) AS low FROM {VIEW} {group}"
    combine = (
        f"SELECT * FROM (SELECT {'g, ' if keys else ''}sum(n) AS n, sum(total) AS total, min(low) AS low "
        f"FROM (SELECT * FROM `__stored` UNION ALL SELECT * FROM `__delta`) {group}) {'WHERE n <> 0' if keys else ''}"
    )
    return MergeAdditiveStep(TABLE, (*keys, "n", "total", "low"), keys, changes, combine, how=how)


@each_way_and_mode(("overwrite", MODES[1]))
def test_sums_are_added_and_an_empty_group_is_removed(home: Home, how: str, mode: str) -> None:
    """Groups with a NULL key, new groups and removed ones."""
    home.start(SUMS, mode)
    for change in (
        "INSERT INTO {t} VALUES (100, NULL, 1, 7), (101, 'new', 0, 8)",
        "DELETE FROM {t} WHERE g = 'g1'",
    ):
        home.change(change)
        outcome = home.run(home.delta("g", "h", "x"), added(home, how))
        assert (outcome.error, outcome.mode, outcome.written_by) == (None, "incremental", way_of(how, mode))
        assert home.rows() == home.recomputed()


def test_a_sum_over_all_rows_is_added_to_the_single_row(home: Home) -> None:
    """The row also remains if no base row is left."""
    home.start("SELECT count(*) AS n, sum(x) AS total, min(h) AS low FROM {t}")
    home.change("INSERT INTO {t} VALUES (1, 'a', -5, 999)")
    outcome = home.run(home.delta("g", "h", "x"), added(home, keys=()))
    assert (outcome.error, outcome.written_by) == (None, "overwrite")
    assert home.rows() == home.recomputed()


def test_an_intermediate_overflow_falls_back(home: Home) -> None:
    """The full sum fits; minus the smallest number does not. Without ANSI mode it would wrap silently."""
    smallest = "cast('-9223372036854775808' AS bigint)"
    home.change(f"INSERT INTO {{t}} VALUES (200, 'o', 1, {smallest})")
    home.start(SUMS)
    home.change("DELETE FROM {t} WHERE id = 200")
    outcome = home.run(home.delta("g", "h", "x"), added(home), fallback=home.full())
    assert (outcome.error, outcome.mode, outcome.fallback) == (None, "full", "overflow")
    assert home.rows() == home.recomputed()
