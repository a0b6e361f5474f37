# SPDX-License-Identifier: Apache-2.0
"""Random base tables in Iceberg, and random changes of them: small, full of nulls, duplicates and odd values.

All of it is made before anything runs, as data: so it can be played again, and with less of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from tests.engine.incremental.schemas import Schema, draw, kind, text, value, written

#: Format version, how rows are deleted and updated.
VARIANTS = {
    "v2-copy-on-write": (2, "copy-on-write"),
    "v2-merge-on-read": (2, "merge-on-read"),
    "v3-merge-on-read": (3, "merge-on-read"),
    "v3-copy-on-write": (3, "copy-on-write"),
}


def rows(random: Random, columns: Mapping[str, str], count: int) -> tuple[str, ...]:
    """Write rows; some of them twice."""
    made = [f"({', '.join(value(random, kind) for kind in columns.values())})" for _ in range(count)]
    if made and random.random() < 0.3:
        made.append(made[0])
    return tuple(made)


@dataclass(frozen=True)
class Change:
    """One statement on a base table.

    In its text ``{t}`` stands for the table's full name, ``{catalog}`` and ``{rest}`` for the parts of it, ``{rows}``
    for the rows, and ``{snapshot}`` for one that the table has had.
    """

    name: str
    table: str
    text: str
    rows: tuple[str, ...] = ()
    #: Which of the snapshots, counted round.
    pick: int = 0
    #: The column and the value of a delete by equality, which no statement makes.
    equal: tuple[str, int | str] | None = None

    def sql(self, full_name: str, snapshots: list[int]) -> str | None:
        """Return the statement, or ``None`` where there is no snapshot to go to."""
        if "{snapshot}" in self.text and not snapshots:
            return None
        catalog, rest = full_name.split(".", 1)
        parts = {"{t}": full_name, "{catalog}": catalog, "{rest}": rest, "{rows}": ", ".join(self.rows)}
        parts["{snapshot}"] = str(snapshots[self.pick % len(snapshots)]) if snapshots else ""
        told = self.text
        for place, part in parts.items():
            told = told.replace(place, part)
        return told


def make(random: Random, variant: str, schema: Schema) -> tuple[Change, ...]:
    """Create the tables; they may be empty, and partitioned."""
    version, mode = VARIANTS[variant]
    modes = ", ".join(f"'write.{operation}.mode' = '{mode}'" for operation in ("delete", "update", "merge"))
    made = []
    for name, columns in schema.items():
        partitioning = random.choice(("", "", " PARTITIONED BY (a)", " PARTITIONED BY (bucket(2, a))"))
        made.append(
            Change(
                "create",
                name,
                f"CREATE TABLE {{t}} ({written(columns)}) USING iceberg{partitioning} "
                f"TBLPROPERTIES ('format-version' = '{version}', 'write.distribution-mode' = 'none', "
                f"'write.spark.fanout.enabled' = 'true', {modes})",
            )
        )
        if count := random.choice((0, 5, 9, 14)):
            made.append(_inserting(random, name, columns, count))
    return tuple(made)


def _condition(random: Random) -> str:
    number = random.randint(0, 4)
    return random.choice((f"a = {number}", f"a >= {number}", "a IS NULL", f"a % 3 = {number % 3}", "a = 99"))


def _inserting(random: Random, table: str, columns: Mapping[str, str], count: int) -> Change:
    told = f"INSERT INTO {{t}} ({', '.join(columns)}) VALUES {{rows}}"
    return Change("insert", table, told, rows(random, columns, count))


@dataclass
class Changing:
    """Makes changes up; knows what columns the tables have by then."""

    random: Random
    schema: dict[str, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def drawn(cls, random: Random) -> Changing:
        """Begin with a schema that is drawn."""
        return cls(random, draw(random))

    @property
    def columns(self) -> Schema:
        """The columns as they are now."""
        return {table: dict(columns) for table, columns in self.schema.items()}

    def step(self, turn: int) -> tuple[Change, ...]:
        """Change some tables."""
        sort = _STEPS[turn % len(_STEPS)]
        done: list[Change] = []
        for table in self.random.sample(list(self.schema), self.random.choice((1, 2, 3, 3))):
            name = self.random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0] if sort == "any" else sort
            done += CHANGES[name](self, table)
        return tuple(done)

    def insert(self, table: str) -> list[Change]:
        """Insert some rows, once or twice."""
        counts = [self.random.randint(1, 3) for _ in range(self.random.randint(1, 2))]
        return [_inserting(self.random, table, self.schema[table], count) for count in counts]

    def delete(self, table: str) -> list[Change]:
        """Delete some rows, or none."""
        return [Change("delete", table, f"DELETE FROM {{t}} WHERE {_condition(self.random)}")]

    def empty(self, table: str) -> list[Change]:
        """Delete all rows."""
        return [Change("empty", table, "DELETE FROM {t}")]

    def delete_equal(self, table: str) -> list[Change]:
        """Delete by the value of a column, as Flink does; a row of the value may come again."""
        columns = self.schema[table]
        names = [name for name, of in columns.items() if of in ("int", "string")]
        if not names:
            return self.delete(table)
        column = self.random.choice(names)
        found: int | str = self.random.randint(0, 4)
        found = text(self.random) if columns[column] == "string" else found
        deleting = Change("delete-equal", table, "", equal=(column, found))
        return [deleting, *self.insert(table)[: self.random.randint(0, 1)]]

    def update(self, table: str) -> list[Change]:
        """Set one or two columns."""
        told = f"UPDATE {{t}} SET {self._assignments(table)} WHERE {_condition(self.random)}"
        return [Change("update", table, told)]

    def _assignments(self, table: str) -> str:
        columns = self.schema[table]
        chosen = self.random.sample(list(columns), self.random.randint(1, 2))
        return ", ".join(f"{column} = {value(self.random, columns[column])}" for column in chosen)

    def merge(self, table: str) -> list[Change]:
        """Delete, update or insert by one row."""
        names = list(self.schema[table])
        source = f"(SELECT * FROM VALUES {{rows}} AS v({', '.join(names)}) LIMIT 1)"
        inserted = f"INSERT ({', '.join(names)}) VALUES ({', '.join(f'u.{name}' for name in names)})"
        told = (
            f"MERGE INTO {{t}} t USING {source} u ON t.a = u.a WHEN MATCHED AND t.a % 2 = 0 THEN DELETE "
            f"WHEN MATCHED THEN UPDATE SET {self._assignments(table)} WHEN NOT MATCHED THEN {inserted}"
        )
        return [Change("merge", table, told, rows(self.random, self.schema[table], 1))]

    def overwrite(self, table: str) -> list[Change]:
        """Write the table anew without some of its rows."""
        kept = f"NOT coalesce({_condition(self.random)}, false)"
        return [Change("overwrite", table, f"INSERT OVERWRITE {{t}} SELECT * FROM {{t}} WHERE {kept}")]

    def compact(self, table: str) -> list[Change]:
        """Write the same rows into other files."""
        told = "CALL {catalog}.system.rewrite_data_files(table => '{rest}', options => map('rewrite-all', 'true'))"
        return [Change("compact", table, told)]

    def add_column(self, table: str) -> list[Change]:
        """Give the table a column more, which what comes later reads and writes."""
        name, of = f"more{len(self.schema[table])}", kind(self.random)
        self.schema[table][name] = of
        adding = Change("add-column", table, f"ALTER TABLE {{t}} ADD COLUMN {name} {of}")
        return [adding, *self.insert(table)[: self.random.randint(0, 1)]]

    def repartition(self, table: str) -> list[Change]:
        """Partition what comes from now on in another way."""
        told = f"ALTER TABLE {{t}} ADD PARTITION FIELD bucket({self.random.randint(3, 10**6)}, a)"
        return [Change("repartition", table, told), *self.insert(table)]

    def roll_back(self, table: str) -> list[Change]:
        """Go to a snapshot that the table has had."""
        told = "CALL {catalog}.system.set_current_snapshot('{rest}', {snapshot})"
        return [Change("roll-back", table, told, pick=self.random.randint(0, 9))]


CHANGES: dict[str, Callable[[Changing, str], list[Change]]] = {
    "insert": Changing.insert,
    "delete": Changing.delete,
    "delete-equal": Changing.delete_equal,
    "empty": Changing.empty,
    "update": Changing.update,
    "merge": Changing.merge,
    "overwrite": Changing.overwrite,
    "compact": Changing.compact,
    "add-column": Changing.add_column,
    "repartition": Changing.repartition,
    "roll-back": Changing.roll_back,
}
_WEIGHTS = {
    **{"insert": 8, "delete": 4, "update": 5, "merge": 3, "overwrite": 2, "compact": 2, "roll-back": 2},
    **{"delete-equal": 2, "add-column": 1, "repartition": 1},
}
#: Sorts of steps, in turn: so that each comes in a short run.
_STEPS = (
    *("insert", "any", "compact", "any", "insert", "delete-equal", "any", "insert", "empty", "any", "add-column"),
    *("roll-back", "repartition"),
)
