# SPDX-License-Identifier: Apache-2.0
"""Random base tables in Iceberg, and random changes of them: small, full of nulls, duplicates and odd values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from tests.engine.support import Lake

#: Format version, how rows are deleted and updated.
VARIANTS = {
    "v2-copy-on-write": (2, "copy-on-write"),
    "v2-merge-on-read": (2, "merge-on-read"),
    "v3-merge-on-read": (3, "merge-on-read"),
}
#: The columns that the queries of :mod:`tests.incremental.queries` read, and others beside them.
COLUMNS = {
    "r": {
        "a": "int",
        "b": "int",
        "c": "int",
        "name": "string",
        "at": "timestamp",
        "place": "struct<x: int, y: string>",
    },
    "s": {"a": "int", "b": "int", "d": "decimal(9, 2)", "name": "string", "day": "date", "f": "double"},
    "u": {"a": "int", "e": "int", "xs": "array<int>", "m": "map<string, int>", "at": "timestamp_ntz", "raw": "binary"},
}
_TEXTS = ("it's", "ü", "", "a\\b", "line\nbreak", "`q`", "%_", "NULL", "\U0001f600", "--", "{x}", "A", "a", " a")
_TIMES = ("2024-02-29 23:59:59.123456", "2024-03-01 00:00:00", "1969-12-31 23:59:59.999999", "1582-10-04 12:00:00")


def literal(text: str) -> str:
    """Write a string as Spark reads it."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"


def _value(random: Random, kind: str) -> str:
    if random.random() < 0.12:
        return "NULL"
    number = random.randint(0, 4)
    makers: dict[str, Callable[[], str]] = {
        "int": lambda: str(number),
        "string": lambda: literal(random.choice(_TEXTS)),
        "timestamp": lambda: f"TIMESTAMP '{random.choice(_TIMES)} UTC'",
        "timestamp_ntz": lambda: f"TIMESTAMP_NTZ '{random.choice(_TIMES)}'",
        "date": lambda: f"DATE '{random.choice(_TIMES)[:10]}'",
        "decimal(9, 2)": lambda: f"{number}.{random.choice(('00', '50', '01'))}",
        "double": lambda: random.choice(("0.1D", "0.2D", "-0.0D", "0.0D", "double('NaN')", "1e300D")),
        "binary": lambda: random.choice(("X''", "X'00'", "X'00FF'")),
        "array<int>": lambda: f"array({', '.join(_value(random, 'int') for _ in range(random.randint(0, 2)))})",
        "map<string, int>": lambda: f"map({literal(random.choice(_TEXTS))}, {number})",
        "struct<x: int, y: string>": lambda: (
            f"named_struct('x', {_value(random, 'int')}, 'y', {_value(random, 'string')})"
        ),
    }
    return makers[kind]()


def rows(random: Random, table: str, count: int) -> str:
    """Write rows; some of them twice."""
    made = [f"({', '.join(_value(random, kind) for kind in COLUMNS[table].values())})" for _ in range(count)]
    if made and random.random() < 0.3:
        made.append(made[0])
    return ", ".join(made)


@dataclass
class Base:
    """A base table in the lake."""

    lake: Lake
    name: str
    #: Snapshots that the table has had, to roll back to.
    snapshots: list[int] = field(default_factory=list)
    columns: int = 0

    @property
    def sql(self) -> str:
        return self.lake(self.name)

    def insert(self, random: Random, count: int) -> str:
        names = ", ".join(COLUMNS[self.name])
        return f"INSERT INTO {self.sql} ({names}) VALUES {rows(random, self.name, count)}"


def make(lake: Lake, random: Random, variant: str) -> dict[str, Base]:
    """Create the tables; they may be empty, and partitioned."""
    version, mode = VARIANTS[variant]
    modes = ", ".join(f"'write.{operation}.mode' = '{mode}'" for operation in ("delete", "update", "merge"))
    bases = {}
    for name, columns in COLUMNS.items():
        base = bases[name] = Base(lake, name)
        partitioning = random.choice(("", "", " PARTITIONED BY (a)", " PARTITIONED BY (bucket(2, a))"))
        written = ", ".join(f"{column} {kind}" for column, kind in columns.items())
        lake.run(
            f"CREATE TABLE {base.sql} ({written}) USING iceberg{partitioning} "
            f"TBLPROPERTIES ('format-version' = '{version}', 'write.distribution-mode' = 'none', "
            f"'write.spark.fanout.enabled' = 'true', {modes})"
        )
        if count := random.choice((0, 5, 9, 14)):
            lake.run(base.insert(random, count))
        remember(base)
    return bases


def remember(base: Base) -> None:
    """Note the table's snapshot."""
    snapshot = base.lake.files.load_table((base.lake.namespace, base.name)).metadata.current_snapshot_id
    if snapshot is not None:
        base.snapshots.append(snapshot)


def _condition(random: Random) -> str:
    number = random.randint(0, 4)
    return random.choice((f"a = {number}", f"a >= {number}", "a IS NULL", f"a % 3 = {number % 3}", "a = 99"))


def _insert(random: Random, base: Base) -> list[str]:
    return [base.insert(random, random.randint(1, 3)) for _ in range(random.randint(1, 2))]


def _delete(random: Random, base: Base) -> list[str]:
    return [f"DELETE FROM {base.sql} WHERE {_condition(random)}"]


def _empty(_: Random, base: Base) -> list[str]:
    return [f"DELETE FROM {base.sql}"]


def _assignments(random: Random, base: Base) -> str:
    columns = COLUMNS[base.name]
    chosen = random.sample(list(columns), random.randint(1, 2))
    return ", ".join(f"{column} = {_value(random, columns[column])}" for column in chosen)


def _update(random: Random, base: Base) -> list[str]:
    return [f"UPDATE {base.sql} SET {_assignments(random, base)} WHERE {_condition(random)}"]


def _merge(random: Random, base: Base) -> list[str]:
    names = list(COLUMNS[base.name])
    source = f"(SELECT * FROM VALUES {rows(random, base.name, 1)} AS v({', '.join(names)}) LIMIT 1)"
    inserted = f"INSERT ({', '.join(names)}) VALUES ({', '.join(f'u.{name}' for name in names)})"
    return [
        f"MERGE INTO {base.sql} t USING {source} u ON t.a = u.a WHEN MATCHED AND t.a % 2 = 0 THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {_assignments(random, base)} WHEN NOT MATCHED THEN {inserted}"
    ]


def _overwrite(random: Random, base: Base) -> list[str]:
    return [f"INSERT OVERWRITE {base.sql} SELECT * FROM {base.sql} WHERE NOT coalesce({_condition(random)}, false)"]


def _compact(_: Random, base: Base) -> list[str]:
    catalog, rest = base.sql.split(".", 1)
    return [f"CALL {catalog}.system.rewrite_data_files(table => '{rest}', options => map('rewrite-all', 'true'))"]


def _add_column(_: Random, base: Base) -> list[str]:
    base.columns += 1
    return [f"ALTER TABLE {base.sql} ADD COLUMN more{base.columns} int"]


def _roll_back(random: Random, base: Base) -> list[str]:
    catalog, rest = base.sql.split(".", 1)
    if not base.snapshots:
        return []
    return [f"CALL {catalog}.system.set_current_snapshot('{rest}', {random.choice(base.snapshots)})"]


CHANGES: dict[str, Callable[[Random, Base], list[str]]] = {
    "insert": _insert,
    "delete": _delete,
    "empty": _empty,
    "update": _update,
    "merge": _merge,
    "overwrite": _overwrite,
    "compact": _compact,
    "add-column": _add_column,
    "roll-back": _roll_back,
}
_WEIGHTS = {"insert": 8, "delete": 4, "update": 4, "merge": 3, "overwrite": 2, "compact": 2, "roll-back": 2}
#: Sorts of steps, in turn: so that each comes in a short run.
_STEPS = (
    "insert",
    "any",
    "compact",
    "any",
    "insert",
    "any",
    "any",
    "insert",
    "empty",
    "any",
    "add-column",
    "roll-back",
)


def change(random: Random, bases: dict[str, Base], turn: int) -> list[tuple[str, str]]:
    """Change some tables; returns the names and statements of what was done."""
    sort = _STEPS[turn % len(_STEPS)]
    done = []
    for base in random.sample(list(bases.values()), random.choice((1, 2, 3, 3))):
        name = random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0] if sort == "any" else sort
        for statement in CHANGES[name](random, base):
            base.lake.run(statement)
            done.append((name, statement))
        remember(base)
    return done


def names_of(changes: Sequence[tuple[str, str]]) -> list[str]:
    """Return what was done, without the statements."""
    return [name for name, _ in changes]
