# SPDX-License-Identifier: Apache-2.0
"""Random base tables in Iceberg, and random changes of them: small, full of nulls, duplicates and odd values.

All of it is made before anything runs, as data: so it can be played again, and with less of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

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


def rows(random: Random, table: str, count: int) -> tuple[str, ...]:
    """Write rows; some of them twice."""
    made = [f"({', '.join(_value(random, kind) for kind in COLUMNS[table].values())})" for _ in range(count)]
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

    def sql(self, full_name: str, snapshots: list[int]) -> str | None:
        """Return the statement, or ``None`` where there is no snapshot to go to."""
        if "{snapshot}" in self.text and not snapshots:
            return None
        catalog, rest = full_name.split(".", 1)
        parts = {"{t}": full_name, "{catalog}": catalog, "{rest}": rest, "{rows}": ", ".join(self.rows)}
        parts["{snapshot}"] = str(snapshots[self.pick % len(snapshots)]) if snapshots else ""
        text = self.text
        for key, value in parts.items():
            text = text.replace(key, value)
        return text


def make(random: Random, variant: str) -> tuple[Change, ...]:
    """Create the tables; they may be empty, and partitioned."""
    version, mode = VARIANTS[variant]
    modes = ", ".join(f"'write.{operation}.mode' = '{mode}'" for operation in ("delete", "update", "merge"))
    made = []
    for name in COLUMNS:
        partitioning = random.choice(("", "", " PARTITIONED BY (a)", " PARTITIONED BY (bucket(2, a))"))
        made.append(
            Change(
                "create",
                name,
                f"CREATE TABLE {{t}} ({written(name)}) USING iceberg{partitioning} "
                f"TBLPROPERTIES ('format-version' = '{version}', 'write.distribution-mode' = 'none', "
                f"'write.spark.fanout.enabled' = 'true', {modes})",
            )
        )
        if count := random.choice((0, 5, 9, 14)):
            made.append(_inserting(random, name, count))
    return tuple(made)


def written(table: str) -> str:
    """Write a table's columns and their types."""
    return ", ".join(f"{column} {kind}" for column, kind in COLUMNS[table].items())


def _condition(random: Random) -> str:
    number = random.randint(0, 4)
    return random.choice((f"a = {number}", f"a >= {number}", "a IS NULL", f"a % 3 = {number % 3}", "a = 99"))


def _inserting(random: Random, table: str, count: int) -> Change:
    text = f"INSERT INTO {{t}} ({', '.join(COLUMNS[table])}) VALUES {{rows}}"
    return Change("insert", table, text, rows(random, table, count))


def _insert(random: Random, table: str) -> list[Change]:
    return [_inserting(random, table, random.randint(1, 3)) for _ in range(random.randint(1, 2))]


def _delete(random: Random, table: str) -> list[Change]:
    return [Change("delete", table, f"DELETE FROM {{t}} WHERE {_condition(random)}")]


def _empty(_: Random, table: str) -> list[Change]:
    return [Change("empty", table, "DELETE FROM {t}")]


def _assignments(random: Random, table: str) -> str:
    columns = COLUMNS[table]
    chosen = random.sample(list(columns), random.randint(1, 2))
    return ", ".join(f"{column} = {_value(random, columns[column])}" for column in chosen)


def _update(random: Random, table: str) -> list[Change]:
    return [Change("update", table, f"UPDATE {{t}} SET {_assignments(random, table)} WHERE {_condition(random)}")]


def _merge(random: Random, table: str) -> list[Change]:
    names = list(COLUMNS[table])
    source = f"(SELECT * FROM VALUES {{rows}} AS v({', '.join(names)}) LIMIT 1)"
    inserted = f"INSERT ({', '.join(names)}) VALUES ({', '.join(f'u.{name}' for name in names)})"
    text = (
        f"MERGE INTO {{t}} t USING {source} u ON t.a = u.a WHEN MATCHED AND t.a % 2 = 0 THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {_assignments(random, table)} WHEN NOT MATCHED THEN {inserted}"
    )
    return [Change("merge", table, text, rows(random, table, 1))]


def _overwrite(random: Random, table: str) -> list[Change]:
    kept = f"NOT coalesce({_condition(random)}, false)"
    return [Change("overwrite", table, f"INSERT OVERWRITE {{t}} SELECT * FROM {{t}} WHERE {kept}")]


def _compact(_: Random, table: str) -> list[Change]:
    text = "CALL {catalog}.system.rewrite_data_files(table => '{rest}', options => map('rewrite-all', 'true'))"
    return [Change("compact", table, text)]


def _add_column(random: Random, table: str) -> list[Change]:
    return [Change("add-column", table, f"ALTER TABLE {{t}} ADD COLUMN more{random.randint(1, 10**9)} int")]


def _roll_back(random: Random, table: str) -> list[Change]:
    text = "CALL {catalog}.system.set_current_snapshot('{rest}', {snapshot})"
    return [Change("roll-back", table, text, pick=random.randint(0, 9))]


CHANGES: dict[str, Callable[[Random, str], list[Change]]] = {
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


def changes(random: Random, turn: int) -> tuple[Change, ...]:
    """Change some tables."""
    sort = _STEPS[turn % len(_STEPS)]
    done: list[Change] = []
    for table in random.sample(list(COLUMNS), random.choice((1, 2, 3, 3))):
        name = random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0] if sort == "any" else sort
        done += CHANGES[name](random, table)
    return tuple(done)
