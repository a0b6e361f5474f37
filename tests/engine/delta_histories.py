# SPDX-License-Identifier: Apache-2.0
"""A process with its own Spark, which has Delta Lake: refresh views over Delta tables with random histories.

delta-rs writes the tables, and Spark the commits that delta-rs cannot write. After each refresh the stored rows are
compared with the result of DuckDB for the recorded versions, as delta-rs reads them. The output ends with JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from airflow_mv.actions import changes
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.refresh.run import refresh
from airflow_mv.core.script import Outcome, Script
from airflow_mv.extras.spark.session import open_session, session_stager, settings_of
from tests.core.job.changing import QUICK
from tests.engine.incremental.playing import ALWAYS
from tests.engine.support import LAKE, OTHER, QUICK_JAVA, Lake, configure, multiset

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("part", pa.string()),
        ("amount", pa.float64()),
        ("moment", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
    ]
)
PARTS = ("north", "a b/c=%d'e", None)
VIEWS = {
    "kept": "SELECT id, part, amount, moment FROM {plain} WHERE id % 5 <> 1",
    "grouped": "SELECT part, count(*) AS n, count(amount) AS c, max(moment) AS latest FROM {plain} GROUP BY part",
    "fed": "SELECT id, size(tags) AS tags, amount FROM {feed} WHERE amount > 2",
    "joined": "SELECT f.id, d.boss FROM {feed} f JOIN {dim} d ON d.region = f.part",
}
#: The commits of a short history to each of the two tables, in each step. Updated rows pass the filters of all views.
SHORT = ((["append"], ["append", "update"]), (["update", "delete"], ["delete"]))
_DUCK = {"size(tags)": "len(tags)"}


@dataclass
class Play:
    """The lake, its Delta tables and what was seen."""

    lake: Lake
    paths: dict[str, str]
    chance: random.Random
    methods: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    _ids: int = 0

    def rows(self) -> pa.Table:
        """Some new rows."""
        found = []
        for _ in range(self.chance.randrange(1, 4)):
            self._ids += 1
            amount = self.chance.choice([None, 0.0, -0.0, float("nan"), 1.5, 7.25])
            moment = self.chance.randrange(10**15)
            tags = self.chance.choice([None, [], ["x"], ["y", None]])
            found.append((self._ids, self.chance.choice(PARTS), amount, moment, tags))
        return pa.table(
            [pa.array(list(column), kind.type) for column, kind in zip(zip(*found, strict=True), SCHEMA, strict=True)],
            SCHEMA,
        )

    def change(self, path: str) -> str:
        """Make a random commit; return its name."""
        some = self.chance.randrange(self._ids + 1)
        names = ["append", "append", "delete", "update", "compact", "overwrite", "restore"]
        name = self.chance.choice([*names, "mark", "mark", "merge"])
        self.commit(path, name, some)
        return name

    def commit(self, path: str, name: str, some: int) -> None:
        """Make a commit of this name; ``some`` is the id of a row."""
        table = DeltaTable(path)
        match name:
            case "append":
                write_deltalake(path, self.rows(), mode="append")
            case "overwrite":
                write_deltalake(path, self.rows(), mode="overwrite")
            case "delete":
                table.delete(f"id = {some}")
            case "update":
                table.update(updates={"amount": "id + 0.5"}, predicate=f"id >= {some}")
            case "compact":
                table.optimize.compact()
            case "restore" if table.version():
                table.restore(self.chance.randrange(table.version()))
            case "mark" | "merge":
                self._by_spark(path, name, some)

    def _by_spark(self, path: str, name: str, some: int) -> None:
        if name == "mark":
            self.lake.spark.sql(f"DELETE FROM delta.`{path}` WHERE id % 3 = {some % 3}")
            return
        self.lake.spark.sql(
            f"MERGE INTO delta.`{path}` t USING (SELECT explode(sequence(1, {some + 1})) AS k) s ON s.k = t.id "
            "WHEN MATCHED AND t.id % 2 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET amount = 9"
        )

    def mark(self, path: str) -> str:
        """Delete one row of a file with several rows by a deletion vector; return what was done."""
        rows = pa.concat_tables([self.rows(), self.rows()])
        north = pa.array(["north"] * len(rows), pa.string())
        write_deltalake(path, rows.set_column(1, SCHEMA.field("part"), north), mode="append")
        self.lake.spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
        self.lake.spark.sql(f"DELETE FROM delta.`{path}` WHERE id = {self._ids}")
        last = self.lake.spark.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 1").collect()[0]
        if last["operationMetrics"]["numDeletionVectorsAdded"] != "1":
            self.faults.append(f"no deletion vector was written: {last}")
        return "mark"

    def stage(self, script: Script) -> Outcome:
        """Run a script in the session, and note how changes were read."""
        outcome = session_stager(self.lake.catalog, self.lake.spark, report=lambda _: None)(script)
        self.methods.update(method for delta in outcome.deltas for method in delta.read_by)
        if outcome.fallback_reason or outcome.error:
            self.faults.append(f"{script.view}: {outcome.fallback_reason or outcome.error}")
        return outcome

    def check(self, view: str, sql: str, what: str) -> None:
        """Refresh a view, and compare its rows with a recompute."""
        name = self.lake(view)
        refresh(self.lake.catalog, [name], stager=self.stage)
        record = self.lake.catalog.load_storage(self.lake.view(view)).record
        assert record is not None
        with duckdb.connect() as database:
            database.execute("SET TimeZone = 'UTC'")
            for table, path in self.paths.items():
                if (version := record.snapshots.get(f"delta.`{path}`")) is not None:
                    database.register(table, _read(path, version))
            database.execute(
                "CREATE TABLE dim AS SELECT * FROM (VALUES ('north', 'ann'), ('south', 'bob')) v(region, boss)"
            )
            text = sql.format(plain="plain", feed="feed", dim="dim")
            for spark, duck in _DUCK.items():
                text = text.replace(spark, duck)
            expected = multiset(database.sql(text).to_arrow_table())
        if (found := multiset(self.lake.stored(view))) != expected:
            self.faults.append(f"{view} after {what}: {found - expected} instead of {expected - found}")

    def check_changes(self, path: str) -> None:
        """Compare the rows that were added and removed since the first version with those of delta-rs."""
        then, now = (multiset(_read(path, version)) for version in (0, DeltaTable(path).version()))
        frame = changes(self.lake.spark, f"delta.`{path}`", start=0, catalog=self.lake.catalog)
        for kind, expected in (("INSERT", now - then), ("DELETE", then - now)):
            rows = frame.where(f"_change_type = '{kind}'").drop("_change_type").toArrow().cast(SCHEMA)
            if (found := multiset(rows)) != expected:
                self.faults.append(f"{kind} of {path}: {found - expected} instead of {expected - found}")


def _read(path: str, version: int) -> pa.Table:
    """Read a version with delta-rs' query engine, which knows deletion vectors."""
    engine = QueryBuilder().register("t", DeltaTable(path, version))
    return pa.table(engine.execute("SELECT * FROM t").read_all()).cast(SCHEMA)


def open_lake(folder: Path) -> Lake:
    """Return a lake in a new session with Delta Lake."""
    configure(folder, LAKE, OTHER)
    catalog = MaterializedViewCatalog(LAKE)
    catalog.formats.add("delta")
    confs = {
        **settings_of(catalog).session_confs(),
        "spark.driver.defaultJavaOptions": QUICK_JAVA,
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
    }
    spark = open_session({**confs, **QUICK}, master="local[2]", report=lambda _: None)
    found = Lake(spark, catalog, "shop")
    found.files.create_namespace("shop")
    return found


def changed(found: Play, paths: list[str], steps: int) -> Iterator[str]:
    """Change all tables in each step; yield what was done."""
    for _ in range(steps):
        yield str([found.change(path) for path in paths])
    for commits in () if steps else SHORT:
        for names, path in zip(commits, paths, strict=True):
            for name in names:
                found.commit(path, name, min(DeltaTable(path).to_pyarrow_table()["id"].to_pylist()))
        yield str(commits)


def play(seed: int, steps: int) -> dict[str, Any]:
    """Play one history: with so many random steps, or without any the commits of :data:`SHORT`."""
    with tempfile.TemporaryDirectory() as folder:
        lake = open_lake(Path(folder))
        paths = {name: f"{folder}/{LAKE}/{name}" for name in ("plain", "feed")}
        found = Play(lake, paths, random.Random(seed))
        dim = lake.table("dim", "region varchar, boss varchar", "('north', 'ann'), ('south', 'bob')")
        for name, path in paths.items():
            options = {"delta.enableChangeDataFeed": "true"} if name == "feed" else {}
            write_deltalake(path, found.rows(), partition_by=["part"], configuration=options)
            if steps:
                lake.spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
        sql = {key: f"delta.`{path}`" for key, path in paths.items()} | {"dim": dim}
        # A short run has a view of each table.
        views = VIEWS if steps else {name: VIEWS[name] for name in ("grouped", "fed")}
        for view, query in views.items():
            lake.create(view, query.format(**sql), refresh_strategy="incremental", properties=ALWAYS)
            found.check(view, query, "creation")
        for done in changed(found, [*paths.values()], steps):
            for view, query in views.items():
                found.check(view, query, done)
        # Both kinds of statements that write read the deletion vector: an incremental refresh and a full one.
        marked = found.mark(paths["plain"])
        lake.create("late", VIEWS["grouped"].format(**sql), refresh_strategy="incremental", properties=ALWAYS)
        for view in ("grouped", "late"):
            found.check(view, VIEWS["grouped"], marked)
        for path in paths.values():
            found.check_changes(path)
        lake.spark.stop()
    return {"methods": found.methods, "faults": found.faults}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("seed", type=int)
    parser.add_argument("steps", type=int)
    given = parser.parse_args()
    print(json.dumps(play(given.seed, given.steps)))
