# SPDX-License-Identifier: Apache-2.0
"""Random queries over columns of any type, with calls of the functions that the analysis supports."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from tests.engine.incremental.calls import AGGREGATES, SCALARS, WINDOWS
from tests.engine.incremental.schemas import TABLES, Schema, parts

_PLACE = re.compile(r"\{([a-z=])\}")
#: Used if a table has no column of a class.
_CONSTANTS: Mapping[str, str] = {
    "i": "1.5",
    "w": "1",
    "f": "0.5D",
    "t": "'a'",
    "d": "DATE '2024-02-29'",
    "m": "TIMESTAMP '2024-02-29 01:02:03'",
    "p": "true",
    "b": "X'00'",
    "l": "array(1, 2)",
}
_CLASSES = {"float": "f", "double": "f", "string": "t", "date": "d", "boolean": "p", "binary": "b"}


def columns_by_class(columns: Mapping[str, str], alias: str = "") -> dict[str, list[str]]:
    """Return the columns of each class, including fields of structs."""
    found: dict[str, list[str]] = {}
    for name, kind in columns.items():
        path = f"{alias}.{name}" if alias else name
        found.setdefault(_class(kind), []).append(path)
        for part in parts(kind) if kind.startswith("struct") else ():
            field, of = part.split(":", 1)
            found.setdefault(_class(of.strip()), []).append(f"{path}.{field}")
    found["i"] = [*found.get("i", []), *found.get("w", [])]
    return found


def _class(kind: str) -> str:
    if kind in ("int", "bigint"):
        return "w"
    if kind.startswith("decimal"):
        return "i"
    if kind.startswith("timestamp"):
        return "m"
    if kind in ("array<int>", "array<bigint>"):
        return "l"
    return _CLASSES.get(kind, "?")


@dataclass
class Typed:
    """Generates one query for a schema."""

    random: Random
    schema: Schema

    def query(self) -> str:
        """Write a query, with the tables' bare names."""
        table = self.random.choice(TABLES)
        columns = columns_by_class(self.schema[table])
        shapes = (self._plain, self._plain, self._grouped, self._grouped, self._grouped, self._distinct)
        more = (self._windowed, self._exists, self._exploded)
        wide = (self._joined, self._joined, self._joined_groups, self._union)
        shape = self.random.choice((*shapes, *more, *wide))
        return shape(table, columns)

    # ------------------------------------------------------------------------------ expressions
    def call(self, sort: str, columns: Mapping[str, Sequence[str]], depth: int = 2) -> str:
        """Write an expression of a class."""
        if sort == "o":
            sort = self.random.choice("iwtdmp")
        if depth <= 0 or self.random.random() < 0.25:
            return self.random.choice(columns.get(sort) or [_CONSTANTS[sort]])
        return self.fill(self.random.choice(SCALARS[sort]), columns, depth - 1)

    def fill(self, template: str, columns: Mapping[str, Sequence[str]], depth: int = 1) -> str:
        """Write a call with arguments."""
        last = ""

        def argument(found: re.Match[str]) -> str:
            nonlocal last
            last = last if found[1] == "=" else self._argument(found[1], columns, depth)
            return last

        return _PLACE.sub(argument, template)

    def _argument(self, sort: str, columns: Mapping[str, Sequence[str]], depth: int) -> str:
        text = self.call(sort, columns, depth)
        return f"({text})" if " " in text else text

    def several(self, columns: Mapping[str, Sequence[str]], count: int, name: str) -> list[str]:
        """Write named expressions."""
        sorts = self.random.choices("iwftdmpbl", k=count)
        return [f"{self.call(sort, columns)} AS {name}{number}" for number, sort in enumerate(sorts)]

    def where(self, columns: Mapping[str, Sequence[str]]) -> str:
        """Write a condition, or none."""
        return f" WHERE {self.call('p', columns)}" if self.random.random() < 0.4 else ""

    def _whole(self, columns: Mapping[str, Sequence[str]]) -> list[str]:
        """Columns unchanged, including nested ones."""
        every = [name for names in columns.values() for name in names]
        chosen = self.random.sample(every, min(2, len(every)))
        return [f"{name} AS w{number}" for number, name in enumerate(chosen)]

    # ----------------------------------------------------------------------------------- shapes
    def _plain(self, table: str, columns: Mapping[str, Sequence[str]]) -> str:
        shown = ", ".join([*self._whole(columns), *self.several(columns, self.random.randint(1, 4), "o")])
        return f"SELECT {shown} FROM {table}{self.where(columns)}"

    def _distinct(self, table: str, columns: Mapping[str, Sequence[str]]) -> str:
        return f"SELECT DISTINCT {', '.join(self.several(columns, 2, 'o'))} FROM {table}{self.where(columns)}"

    def _keys(self, columns: Mapping[str, Sequence[str]]) -> list[str]:
        return [self.call(self.random.choice("wwtdmpi"), columns, 1) for _ in range(self.random.choice((1, 1, 2)))]

    def _calls(self, columns: Mapping[str, Sequence[str]]) -> str:
        chosen = self.random.sample(AGGREGATES, self.random.randint(1, 3))
        return ", ".join(f"{self.fill(call, columns)} AS o{number}" for number, call in enumerate(chosen))

    def _grouped(self, table: str, columns: Mapping[str, Sequence[str]]) -> str:
        keys = self._keys(columns)
        having = " HAVING count(*) > 1" if self.random.random() < 0.2 else ""
        shown = ", ".join(f"{key} AS k{number}" for number, key in enumerate(keys))
        positions = ", ".join(str(number + 1) for number in range(len(keys)))
        return f"SELECT {shown}, {self._calls(columns)} FROM {table}{self.where(columns)} GROUP BY {positions}{having}"

    def _windowed(self, table: str, columns: Mapping[str, Sequence[str]]) -> str:
        key, order = self.call("w", columns, 1), self.call(self.random.choice("iwtdm"), columns, 1)
        partition = f"PARTITION BY {key}"
        call = self.random.choice(WINDOWS).replace("OVER ({w}", f"OVER ({partition} ORDER BY {order}")
        call = self.fill(call.replace("OVER ({p}", f"OVER ({partition}"), columns)
        return f"SELECT {key} AS k, {order} AS o, {call} AS n FROM {table}{self.where(columns)}"

    def _exists(self, table: str, columns: Mapping[str, Sequence[str]]) -> str:
        other = self.random.choice(TABLES)
        here, there = columns_by_class(self.schema[table], "x"), columns_by_class(self.schema[other], "y")
        sort = self.random.choice("wwtd")
        word = self.random.choice(("", "NOT "))
        shown = ", ".join(self.several(here, 2, "o"))
        one, two = self.call(sort, here, 1), self.call(sort, there, 1)
        if self.random.random() < 0.4:
            return (
                f"SELECT {shown} FROM {table} x WHERE {one} {word}IN (SELECT {two} FROM {other} y{self.where(there)})"
            )
        return f"SELECT {shown} FROM {table} x WHERE {word}EXISTS (SELECT 1 FROM {other} y WHERE {two} = {one})"

    def _exploded(self, table: str, columns: Mapping[str, Sequence[str]]) -> str:
        inner = {**columns, "w": ["g.x"], "i": ["g.x"]}
        outer = self.random.choice(("", "OUTER "))
        shown = ", ".join([*self.several(columns, 1, "o"), f"{self.call('w', inner)} AS e"])
        return f"SELECT {shown} FROM {table} LATERAL VIEW {outer}explode({self.call('l', columns, 1)}) g AS x"

    def _sides(self, table: str) -> tuple[str, dict[str, list[str]]]:
        other = self.random.choice(TABLES)
        here, there = columns_by_class(self.schema[table], "x"), columns_by_class(self.schema[other], "y")
        sort = self.random.choice("wwtdm")
        kind = self.random.choice(("", "", "LEFT ", "RIGHT ", "FULL "))
        equal = self.random.choice(("=", "=", "<=>"))
        on = f"{self.call(sort, here, 1)} {equal} {self.call(sort, there, 1)}"
        both = {key: [*here.get(key, []), *there.get(key, [])] for key in {*here, *there}}
        return f"{table} x {kind}JOIN {other} y ON {on}", both

    def _joined(self, table: str, columns: Mapping[str, Sequence[str]]) -> str:
        source, both = self._sides(table)
        return f"SELECT {', '.join([*self._whole(both), *self.several(both, 2, 'o')])} FROM {source}{self.where(both)}"

    def _joined_groups(self, table: str, columns: Mapping[str, Sequence[str]]) -> str:
        source, both = self._sides(table)
        key = self._keys(both)[0]
        return f"SELECT {key} AS k, {self._calls(both)} FROM {source}{self.where(both)} GROUP BY {key}"

    def _union(self, table: str, columns: Mapping[str, Sequence[str]]) -> str:
        other = self.random.choice(TABLES)
        there = columns_by_class(self.schema[other])
        sorts = self.random.choices(("ww", "wi", "iw", "wf", "tt", "dd", "dm", "mm", "pp", "if"), k=2)
        one = ", ".join(f"{self.call(sort[0], columns)} AS o{number}" for number, sort in enumerate(sorts))
        two = ", ".join(self.call(sort[1], there) for sort in sorts)
        word = self.random.choice(("UNION ALL", "UNION ALL", "UNION", "EXCEPT", "INTERSECT", "EXCEPT ALL"))
        text = f"SELECT {one} FROM {table}{self.where(columns)} {word} SELECT {two} FROM {other}{self.where(there)}"
        return text if self.random.random() < 0.7 else f"SELECT o0, count(*) AS n FROM ({text}) GROUP BY o0"
