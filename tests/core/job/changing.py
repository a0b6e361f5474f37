# SPDX-License-Identifier: Apache-2.0
"""Tables with a random history, the brute-force change between two of their snapshots, and equality deletes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_mv.core.job.context import JobContext
from airflow_mv.core.job.delta import make_delta
from airflow_mv.core.script import Delta, DeltaStep, temporary

#: Format version and write mode of a table; ``both``: a DELETE writes delete files, other statements rewrite files.
LAYOUTS = [(2, "copy-on-write"), (2, "merge-on-read"), (3, "copy-on-write"), (3, "merge-on-read"), (3, "both")]
COLUMNS = ("id", "k", "x y", "b", "m", "s")
VIEW = temporary("change")
#: Settings for tables of a few rows: interpreting code is faster than compiling it, adaptive plans cost more than they
#: save, and neither plan texts nor Spark's checks of its rules are needed. Spark 3.5 also needs ANSI mode for them.
QUICK = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.maxPlanStringLength": "0",
    "spark.sql.lightweightPlanChangeValidation": "false",
}
_ROWS = """SELECT id, if(id % 9 = 0, null, cast(id % 4 AS int)), concat('r', id % 3), encode(string(id % 2), 'UTF-8'),
    map('a', cast(id % 2 AS int), 'b', 1), struct(cast(id % 2 AS int), array(cast(id AS int))) FROM range({}, {})"""


@dataclass(frozen=True)
class Table:
    """An Iceberg table and a session."""

    spark: SparkSession
    name: str
    #: The rows of snapshots that were read: they never change.
    _rows: dict[tuple[object, ...], Counter[str]] = field(default_factory=dict)

    def run(self, *statements: str) -> None:
        """Run statements; ``{t}`` is replaced by the table."""
        for statement in statements:
            self.spark.sql(statement.replace("{t}", self.name)).collect()

    @property
    def snapshots(self) -> list[int]:
        """The snapshots that exist, oldest first."""
        found = loaded(self.spark, self.name).snapshots().iterator()
        return [found.next().snapshotId() for _ in iter(found.hasNext, False)]

    @property
    def head(self) -> int:
        """The current snapshot."""
        return head_of(self.spark, self.name)

    def at(self, snapshot: int | None, columns: Sequence[str], where: str = "true") -> Counter[str]:
        """The rows of a snapshot that pass a condition."""
        if snapshot is None:
            return Counter()
        key = (snapshot, *columns, where)
        if key not in self._rows:
            items = ", ".join(f"`{column}`" for column in columns)
            rows = self.spark.sql(f"SELECT {items} FROM {self.name} VERSION AS OF {snapshot} WHERE {where}").collect()
            self._rows[key] = Counter(plain(row) for row in rows)
        return self._rows[key]

    def delta(
        self, start: int | None, end: int | None, columns: Sequence[str] = ("id", "k"), kind: str = "diff", **more: Any
    ) -> tuple[dict[str, int], Delta]:
        """The change that a delta step returns, and its facts."""
        work = JobContext(self.spark, "none")
        try:
            make_delta(work, DeltaStep(VIEW, self.name, start, end, tuple(columns), kind, **more))
            found: Counter[str] = Counter()
            for row in self.spark.sql(f"SELECT * FROM {VIEW}").collect():
                found[plain(row[:-1])] += row[-1]
            return {row: count for row, count in found.items() if count}, work.deltas[0]
        finally:
            work.close()

    def near(
        self, start: int | None, end: int | None, columns: Sequence[str], numbers: Sequence[int], **more: Any
    ) -> tuple[dict[str, int], dict[str, Counter[str]], tuple[str, ...]]:
        """The change, the rows of each version that a step reads beside it for some values of ``k``, and the ways."""
        work, other = JobContext(self.spark, "none"), temporary("other")
        views = {version: temporary(f"near_{version}") for version in ("new", "old")}
        try:
            work.view(other, self.spark.createDataFrame([(number,) for number in numbers], "x INT"))
            work.changes[other], work.totals[other] = len(numbers), 10_000
            matches = {"near": (("k", other, "x"),), "near_views": tuple(views.items())}
            make_delta(work, DeltaStep(VIEW, self.name, start, end, tuple(columns), **matches, **more))
            found: Counter[str] = Counter()
            for row in self.spark.sql(f"SELECT * FROM {VIEW}").collect():
                found[plain(row[:-1])] += row[-1]
            rows = {
                version: Counter(plain(row) for row in self.spark.sql(f"SELECT * FROM {view}").collect())
                for version, view in views.items()
            }
            return {row: count for row, count in found.items() if count}, rows, work.deltas[0].read_by
        finally:
            work.close()

    def change(
        self, start: int | None, end: int | None, columns: Sequence[str] = ("id", "k"), where: str = "true"
    ) -> dict[str, int]:
        """The change, computed by brute force."""
        old, new = self.at(start, columns, where), self.at(end, columns, where)
        return {row: new[row] - old[row] for row in {*old, *new} if new[row] != old[row]}


def loaded(spark: Any, name: str) -> Any:
    """Iceberg's own object of a table in its current state: it needs no query."""
    table = spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, name)
    table.refresh()
    return table


def head_of(spark: SparkSession, name: str) -> int:
    """The current snapshot of a table."""
    return int(loaded(spark, name).currentSnapshot().snapshotId())


def plain(row: Sequence[Any]) -> str:
    """A row as text, with the entries of maps sorted."""
    return repr([sorted(value.items()) if isinstance(value, dict) else value for value in row])


@pytest.fixture(autouse=True)
def quick(spark: SparkSession) -> Iterator[None]:
    """Settings for small data: 200 shuffle partitions and compiled code would take most of a test's time."""
    settings = {"spark.sql.shuffle.partitions": "2", **QUICK}
    for key, value in settings.items():
        spark.conf.set(key, value)
    yield
    for key in settings:
        spark.conf.unset(key)


def make_table(
    spark: SparkSession, name: str, layout: tuple[int, str], columns: str, partitioned_by: str = ""
) -> Table:
    """Create an empty table."""
    version, mode = layout
    modes = dict.fromkeys(("delete", "update", "merge"), "copy-on-write" if mode == "both" else mode)
    if mode == "both":
        modes["delete"] = "merge-on-read"
    written = ", ".join(f"'write.{operation}.mode' = '{how}'" for operation, how in modes.items())
    partitioning = f"PARTITIONED BY ({partitioned_by})" if partitioned_by else ""
    spark.sql(
        f"CREATE TABLE {name} ({columns}) USING iceberg {partitioning} "
        f"TBLPROPERTIES ('format-version' = '{version}', {written})"
    ).collect()
    return Table(spark, name)


def random_history(spark: SparkSession, name: str, layout: tuple[int, str], seed: int, changes: int) -> Table:
    """Create a table and change it randomly: its rows repeat, have nulls, and are inserted again."""
    chance = random.Random(seed)
    columns = "id BIGINT, k INT, `x y` STRING, b BINARY, m MAP<STRING, INT>, s STRUCT<a: INT, c: ARRAY<INT>>"
    table = make_table(spark, name, layout, columns, chance.choice(["", "k", "bucket(2, id)"]))
    first = chance.randrange(30)
    table.run(f"INSERT INTO {{t}} {_ROWS.format(first, first + 20)}")
    for _ in range(changes):
        table.run(*_change(table, chance))
    return table


def _change(table: Table, chance: random.Random) -> list[str]:
    first, by = chance.randrange(30), chance.randrange(3, 9)
    catalog, _, rest = table.name.partition(".")
    kept = chance.choice(table.snapshots)
    insert = f"INSERT INTO {{t}} {_ROWS.format(first, first + 12)}"
    return chance.choice(
        [
            [insert],
            [f"DELETE FROM {{t}} WHERE id % {by} = {chance.randrange(3)}"],
            ["DELETE FROM {t} WHERE k = 2"],
            [f"UPDATE {{t}} SET `x y` = concat(`x y`, 'u') WHERE id % {by} = 1"],
            [f"INSERT OVERWRITE {{t}} SELECT * FROM {{t}} WHERE id % {by} <> 3"],
            [f"CALL {catalog}.system.rewrite_data_files(table => '{rest}', options => map('rewrite-all', 'true'))"],
            [f"CALL {catalog}.system.set_current_snapshot('{rest}', {kept})", insert],
            [
                "MERGE INTO {t} t USING (SELECT DISTINCT id FROM {t} WHERE id % 5 = 2) u ON t.id = u.id "
                "WHEN MATCHED AND t.k = 1 THEN DELETE WHEN MATCHED THEN UPDATE SET `x y` = 'M'"
            ],
        ]
    )


def delete_by_equality(table: Table, **values: Any) -> None:
    """Commit an equality delete as Flink does; Spark never writes them."""
    spark: Any = table.spark
    jvm, java = spark._jvm, loaded(spark, table.name)
    schema = java.schema().select(_java_list(jvm, list(values)))
    record = jvm.org.apache.iceberg.data.GenericRecord.create(schema)
    for name, value in values.items():
        record.setField(name, value)
    ids = spark.sparkContext._gateway.new_array(jvm.int, len(values))
    for number, name in enumerate(values):
        ids[number] = schema.findField(name).fieldId()
    file = java.io().newOutputFile(f"{java.location()}/data/equality-{jvm.java.util.UUID.randomUUID()}.parquet")
    encrypted = jvm.org.apache.iceberg.encryption.EncryptedFiles.plainAsEncryptedOutput(file)
    kinds, parquet = jvm.org.apache.iceberg.data, jvm.org.apache.iceberg.FileFormat.PARQUET
    from py4j.java_gateway import JavaClass  # an environment may have the client of Spark Connect only

    if isinstance(kinds.GenericAppenderFactory, JavaClass):  # until Iceberg 1.11
        factory = kinds.GenericAppenderFactory(java.schema(), java.spec(), ids, schema, None)
        writer = factory.newEqDeleteWriter(encrypted, parquet, None)
    else:
        builder = getattr(kinds, "GenericFileWriterFactory$Builder")(java).deleteFileFormat(parquet)
        builder = builder.dataSchema(java.schema()).equalityFieldIds(ids).equalityDeleteRowSchema(schema)
        writer = builder.build().newEqualityDeleteWriter(encrypted, java.spec(), None)
    writer.write(record)
    writer.close()
    java.newRowDelta().addDeletes(writer.toDeleteFile()).commit()


def append_files_of(table: Table, other: Table) -> None:
    """Commit the data files of another table as they are, as a tool that knows nothing of row ids may do."""
    one, two = (loaded(table.spark, item.name) for item in (table, other))
    append = one.newAppend()
    tasks = two.newScan().planFiles().iterator()
    while tasks.hasNext():
        append.appendFile(tasks.next().file())
    append.commit()


def _java_list(jvm: Any, items: Sequence[str]) -> Any:
    found = jvm.java.util.ArrayList()
    for item in items:
        found.add(item)
    return found
