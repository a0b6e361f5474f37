# SPDX-License-Identifier: Apache-2.0
"""Random schemas of the three base tables, and random values of any type in Spark's syntax.

The columns that the queries of :mod:`tests.core.ivm.queries` name always exist, with random types; in addition
there are columns of any type, which the queries of :mod:`tests.engine.incremental.typed` read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

#: Columns and their types, by table.
Schema = Mapping[str, Mapping[str, str]]

TABLES = ("r", "s", "u")
_WHOLE = ("int", "int", "int", "bigint")
_DECIMALS = ("decimal(5, 0)", "decimal(9, 2)", "decimal(18, 4)", "decimal(30, 10)")
_TIMES = ("timestamp", "timestamp_ntz")
_ATOMS = (
    *_WHOLE,
    *_DECIMALS,
    *_TIMES,
    *("string", "string", "date", "double", "double", "float", "boolean", "binary"),
)
#: The types that the queries require of a column, by its name: numbers with exact sums, and types with these parts.
_DRAWN: Mapping[str, Mapping[str, Sequence[str]]] = {
    "r": {
        "a": (*_WHOLE, "decimal(9, 2)"),
        "b": _WHOLE,
        "c": (*_WHOLE, *_DECIMALS),
        "name": ("string",),
        "at": (*_TIMES, "date"),
        "place": ("struct<x: int, y: string>", "struct<x: bigint, y: date>", "struct<x: date, y: array<int>>"),
    },
    "s": {
        "a": _WHOLE,
        "b": (*_WHOLE, "decimal(5, 0)"),
        "d": _DECIMALS,
        "name": ("string",),
        "day": ("date",),
        "f": ("double", "double", "float"),
    },
    "u": {
        "a": _WHOLE,
        "e": (*_WHOLE, "decimal(18, 4)"),
        "xs": ("array<int>", "array<bigint>"),
        "m": ("map<string, int>", "map<int, string>", "map<string, struct<x: int>>"),
        "at": _TIMES,
        "raw": ("binary",),
    },
}
#: Names of tables and aliases, which are also names of struct columns with fields that are named as columns.
_NAMES = (*TABLES, "x", "y")
_TEXTS = ("it's", "ü", "", "a\\b", "line\nbreak", "`q`", "%_", "NULL", "\U0001f600", "--", "{x}", "A", "a", " a")
_MOMENTS = ("2024-02-29 23:59:59.123456", "2024-03-01 00:00:00", "1969-12-31 23:59:59.999999", "1582-10-04 12:00:00")
_DOUBLES = ("0.1", "0.2", "-0.0", "0.0", "-0.0", "'NaN'", "1e30")


def draw(random: Random) -> dict[str, dict[str, str]]:
    """Choose a schema."""
    schema: dict[str, dict[str, str]] = {}
    for table in TABLES:
        schema[table] = {column: random.choice(kinds) for column, kinds in _DRAWN[table].items()}
        schema[table] |= {f"v{number}": kind(random) for number in range(random.randint(0, 3))}
        if random.random() < 0.2:
            schema[table][random.choice(_NAMES)] = "struct<a: int, b: bigint>"
    return schema


def kind(random: Random, *, deep: int = 0) -> str:
    """Choose any type; nested ones are at most three levels deep."""
    sort = random.random() if deep < 2 else 1.0
    if sort < 0.12:
        return f"struct<x: {kind(random, deep=deep + 1)}, y: {kind(random, deep=deep + 1)}>"
    if sort < 0.24:
        return f"array<{kind(random, deep=deep + 1)}>"
    if sort < 0.34:
        return f"map<{random.choice(('string', 'int', 'date'))}, {kind(random, deep=deep + 1)}>"
    return random.choice(_ATOMS)


def parts(nested: str) -> list[str]:
    """Return the types in a nested type; those of a struct are preceded by their names."""
    inner, found, depth = nested[nested.index("<") + 1 : -1], [""], 0
    for letter in inner:
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(letter, 0)
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return [item.strip() for item in found]


def written(columns: Mapping[str, str]) -> str:
    """Write a table's columns with their types."""
    return ", ".join(f"{column} {kind}" for column, kind in columns.items())


def literal(text: str) -> str:
    """Write a string literal in Spark's syntax."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"


def text(random: Random) -> str:
    """Choose one of the tables' strings, unquoted."""
    return random.choice(_TEXTS)


_ATOM: Mapping[str, Callable[[Random], str]] = {
    "int": lambda random: str(random.randint(0, 4)),
    "bigint": lambda random: random.choice(("0L", "1L", "2L", "3L", "4L", "5000000000L")),
    "string": lambda random: literal(text(random)),
    "timestamp": lambda random: f"TIMESTAMP '{random.choice(_MOMENTS)} UTC'",
    "timestamp_ntz": lambda random: f"TIMESTAMP_NTZ '{random.choice(_MOMENTS)}'",
    "date": lambda random: f"DATE '{random.choice(_MOMENTS)[:10]}'",
    "double": lambda random: f"double({random.choice(_DOUBLES)}{{}})",
    "float": lambda random: f"float({random.choice(_DOUBLES)}{{}})",
    "binary": lambda random: random.choice(("X''", "X'00'", "X'00FF'")),
    "boolean": lambda random: random.choice(("true", "false")),
}


def value(random: Random, kind: str) -> str:
    """Write a value of a type; one of eight is NULL."""
    return f"CAST(NULL AS {kind})" if random.random() < 0.12 else _some(random, kind)


def _some(random: Random, kind: str) -> str:
    if kind.startswith("struct"):
        named = [item.split(":", 1) for item in parts(kind)]
        return "named_struct(" + ", ".join(f"'{name}', {value(random, of.strip())}" for name, of in named) + ")"
    if kind.startswith("array"):
        items = ", ".join(value(random, parts(kind)[0]) for _ in range(random.randint(0, 2)))
        return f"CAST(array({items}) AS {kind})"
    if kind.startswith("map"):
        key, item = parts(kind)
        return f"map({_some(random, key)}, {value(random, item)})"
    if kind.startswith("decimal"):
        cents = "" if kind.endswith(" 0)") else random.choice((".00", ".50", ".01"))
        return f"CAST({random.randint(0, 4)}{cents} AS {kind})"
    made = _ATOM[kind](random)
    return made.replace("{}", "" if "'" in made else "D") if kind in ("double", "float") else made
