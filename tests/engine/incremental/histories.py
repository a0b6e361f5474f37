# SPDX-License-Identifier: Apache-2.0
"""Random base tables in Iceberg, and random changes of them: small, with many nulls, duplicates and odd values.

All of it is generated as data before anything runs, so that it can be replayed, and reduced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from tests.engine.incremental.schemas import Schema, draw, kind, text, value, written

_COPIES, _MARKS = "copy-on-write", "merge-on-read"


def _variant(version: int, delete: str, update: str) -> dict[str, str]:
    modes = {"delete": delete, "update": update, "merge": update}
    return {"format-version": str(version), **{f"write.{verb}.mode": mode for verb, mode in modes.items()}}


#: Table properties: the format version, and how rows are deleted and updated.
VARIANTS = {
    "v2-copy-on-write": _variant(2, _COPIES, _COPIES),
    "v2-merge-on-read": _variant(2, _MARKS, _MARKS),
    "v3-merge-on-read": _variant(3, _MARKS, _MARKS),
    "v3-copy-on-write": _variant(3, _COPIES, _COPIES),
    "v2-both": _variant(2, _COPIES, _MARKS),
    "v3-both": _variant(3, _MARKS, _COPIES),
}


def rows(random: Random, columns: Mapping[str, str], count: int) -> tuple[str, ...]:
    """Write rows, some of them twice."""
    made = [f"({', '.join(value(random, kind) for kind in columns.values())})" for _ in range(count)]
    if made and random.random() < 0.3:
        made.append(made[0])
    return tuple(made)


@dataclass(frozen=True)
class Change:
    """One statement on a base table.

    In its text ``{t}`` is replaced by the table's full name, ``{catalog}`` and ``{rest}`` by parts of it, ``{rows}`` by
    the rows, and ``{snapshot}`` by a snapshot that the table has had.
    """

    name: str
    table: str
    text: str
    rows: tuple[str, ...] = ()
    #: The index of the snapshot, modulo their number.
    pick: int = 0
    #: The column and the value of an equality delete, for which there is no statement.
    equal: tuple[str, int | str] | None = None

    def sql(self, full_name: str, snapshots: list[int]) -> str | None:
        """Return the statement, or ``None`` if there is no snapshot to roll back to."""
        if "{snapshot}" in self.text and not snapshots:
            return None
        catalog, rest = full_name.split(".", 1)
        parts = {"{t}": full_name, "{catalog}": catalog, "{rest}": rest, "{rows}": ", ".join(self.rows)}
        parts["{snapshot}"] = str(snapshots[self.pick % len(snapshots)]) if snapshots else ""
        statement = self.text
        for place, part in parts.items():
            statement = statement.replace(place, part)
        return statement


def make(random: Random, variant: str, schema: Schema) -> tuple[Change, ...]:
    """Create the tables, which may be empty and partitioned."""
    properties = ", ".join(f"'{key}' = '{value}'" for key, value in VARIANTS[variant].items())
    made = []
    for name, columns in schema.items():
        partitioning = random.choice(("", "", " PARTITIONED BY (a)", " PARTITIONED BY (bucket(2, a))"))
        made.append(
            Change(
                "create",
                name,
                f"CREATE TABLE {{t}} ({written(columns)}) USING iceberg{partitioning} "
                f"TBLPROPERTIES ('write.distribution-mode' = 'none', 'write.spark.fanout.enabled' = 'true', "
                f"{properties})",
            )
        )
        if count := random.choice((0, 5, 9, 14)):
            made.append(_inserting(random, name, columns, count))
    return tuple(made)


def _condition(random: Random) -> str:
    number = random.randint(0, 4)
    return random.choice((f"a = {number}", f"a >= {number}", "a IS NULL", f"a % 3 = {number % 3}", "a = 99"))


def _inserting(random: Random, table: str, columns: Mapping[str, str], count: int) -> Change:
    statement = f"INSERT INTO {{t}} ({', '.join(columns)}) VALUES {{rows}}"
    return Change("insert", table, statement, rows(random, columns, count))


@dataclass
class Changing:
    """Generates changes, and knows the tables' current columns."""

    random: Random
    schema: dict[str, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def drawn(cls, random: Random) -> Changing:
        """Start with a random schema."""
        return cls(random, draw(random))

    @property
    def columns(self) -> Schema:
        """The current columns."""
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
        """Delete by the value of a column, as Flink does; a row with the value may be inserted again."""
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
        statement = f"UPDATE {{t}} SET {self._assignments(table)} WHERE {_condition(self.random)}"
        return [Change("update", table, statement)]

    def _assignments(self, table: str) -> str:
        columns = self.schema[table]
        chosen = self.random.sample(list(columns), self.random.randint(1, 2))
        return ", ".join(f"{column} = {value(self.random, columns[column])}" for column in chosen)

    def merge(self, table: str) -> list[Change]:
        """Delete, update or insert by a source of one row."""
        names = list(self.schema[table])
        source = f"(SELECT * FROM VALUES {{rows}} AS v({', '.join(names)}) LIMIT 1)"
        inserted = f"INSERT ({', '.join(names)}) VALUES ({', '.join(f'u.{name}' for name in names)})"
        statement = (
            f"MERGE INTO {{t}} t USING {source} u ON t.a = u.a WHEN MATCHED AND t.a % 2 = 0 THEN DELETE "
            f"WHEN MATCHED THEN UPDATE SET {self._assignments(table)} WHEN NOT MATCHED THEN {inserted}"
        )
        return [Change("merge", table, statement, rows(self.random, self.schema[table], 1))]

    def overwrite(self, table: str) -> list[Change]:
        """Rewrite the table without some of its rows."""
        kept = f"NOT coalesce({_condition(self.random)}, false)"
        return [Change("overwrite", table, f"INSERT OVERWRITE {{t}} SELECT * FROM {{t}} WHERE {kept}")]

    def compact(self, table: str) -> list[Change]:
        """Write the same rows into other files."""
        statement = "CALL {catalog}.system.rewrite_data_files(table => '{rest}', options => map('rewrite-all', 'true'))"
        return [Change("compact", table, statement)]

    def add_column(self, table: str) -> list[Change]:
        """Add a column to the table, which later changes read and write."""
        name, of = f"more{len(self.schema[table])}", kind(self.random)
        self.schema[table][name] = of
        adding = Change("add-column", table, f"ALTER TABLE {{t}} ADD COLUMN {name} {of}")
        return [adding, *self.insert(table)[: self.random.randint(0, 1)]]

    def repartition(self, table: str) -> list[Change]:
        """Change the partitioning of later writes."""
        statement = f"ALTER TABLE {{t}} ADD PARTITION FIELD bucket({self.random.randint(3, 10**6)}, a)"
        return [Change("repartition", table, statement), *self.insert(table)]

    def roll_back(self, table: str) -> list[Change]:
        """Roll back to an earlier snapshot of the table."""
        statement = "CALL {catalog}.system.set_current_snapshot('{rest}', {snapshot})"
        return [Change("roll-back", table, statement, pick=self.random.randint(0, 9))]


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
#: Kinds of steps, in turn, so that each occurs in a short run. Rows are changed in most of them: how a change of rows
#: is read depends on the table's format.
_STEPS = (
    *("insert", "update", "compact", "any", "merge", "delete-equal", "delete", "overwrite", "empty", "any"),
    *("add-column", "roll-back", "repartition"),
)
