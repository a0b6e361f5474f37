# SPDX-License-Identifier: Apache-2.0
"""Random views, rows and changes: small, with many NULLs and duplicates.

All choices are made by one ``random.Random``; hypothesis passes one whose choices it can shrink.
``Grammar.used`` lists the operators of a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.core.ivm.lab import Change, Row, Table

TABLES = (
    Table("r", (("a", "int"), ("b", "int"), ("c", "int"))),
    Table("s", (("a", "int"), ("b", "int"), ("d", "decimal(9,2)"))),
    Table("u", (("a", "int"), ("e", "int"), ("xs", "int[]"))),
)
_NUMBERS = {"r": ("a", "b", "c"), "s": ("a", "b", "d"), "u": ("a", "e")}

OPERATORS = frozenset(
    """
    projection filter join left-join right-join full-join cross-join semi-join anti-join self-join using exists
    not-exists in not-in scalar correlated-scalar select-scalar union-all union intersect except distinct group-by
    having hidden-key group-by-alias group-by-ordinal group-by-all rollup cube grouping-sets global-aggregate window
    aggregate-and-window cte derived nested-subquery explode star lateral-alias named-window
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True)
class Visible:
    """A relation of a FROM clause: its alias and the columns that are numbers."""

    alias: str
    columns: tuple[str, ...]


@dataclass
class Grammar:
    """Writes one query."""

    random: Random
    #: If given, it selects the main form of a query, so that consecutive turns use all forms.
    turn: int | None = None
    used: set[str] = field(default_factory=set)
    _aliases: int = 0

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def pick(self, items: Sequence[Any]) -> Any:
        return items[self.random.randint(0, len(items) - 1)]

    def choose(self, items: Sequence[Any]) -> Any:
        """Pick one of the main forms."""
        if self.turn is None:
            return self.pick(items)
        self.turn, index = divmod(self.turn, len(items))
        return items[index]

    def use(self, operator: str, text: str) -> str:
        self.used.add(operator)
        return text

    def alias(self) -> str:
        self._aliases += 1
        return f"q{self._aliases}"

    def column(self, visible: Sequence[Visible]) -> str:
        relation = self.pick(visible)
        return f"{relation.alias}.{self.pick(relation.columns)}"

    # ------------------------------------------------------------------------------------- FROM
    def table(self) -> str:
        return str(self.pick(("r", "s", "u")))

    def relation(self, ctes: Sequence[str]) -> tuple[str, Visible]:
        alias = self.alias()
        if ctes and self.chance(0.4):
            return f"{self.pick(ctes)} AS {alias}", Visible(alias, ("k", "v"))
        if self.chance(0.3):
            return self.use("derived", f"({self.derived()}) AS {alias}"), Visible(alias, ("k", "v"))
        table = self.table()
        return f"{table} AS {alias}", Visible(alias, _NUMBERS[table])

    def derived(self) -> str:
        """Write a query of columns k and v."""
        table = self.table()
        k, v = self.pick(_NUMBERS[table]), self.pick(_NUMBERS[table])
        every = ", ".join(_NUMBERS[table])
        other = self.table()
        j = self.pick(_NUMBERS[other])
        number = self.random.randint(0, 3)
        return str(
            self.pick(
                (
                    f"SELECT {k} AS k, count(*) AS v FROM {table} GROUP BY {k}",
                    f"SELECT {k} AS k, max({v}) AS v FROM {table} GROUP BY {k} HAVING count(*) > 1",
                    f"SELECT {k} AS k, sum({v}) AS v FROM {table} WHERE {v} >= {number} GROUP BY {k}, {v}",
                    f"SELECT DISTINCT {k} AS k, {v} AS v FROM {table}",
                    f"SELECT {k} AS k, {v} AS v FROM {table} UNION ALL SELECT {j}, a FROM {other}",
                    f"SELECT {k} AS k, {v} AS v FROM {table} UNION SELECT {j}, a FROM {other}",
                    f"SELECT {k} AS k, {v} AS v FROM {table} EXCEPT SELECT {j}, a FROM {other}",
                    f"SELECT {k} AS k, {v} AS v FROM {table} INTERSECT ALL SELECT {j}, a FROM {other}",
                    f"SELECT {k} AS k, row_number() OVER (PARTITION BY {k} ORDER BY {every}) AS v FROM {table}",
                    f"SELECT {k} AS k, sum({v}) OVER (PARTITION BY {k}) AS v FROM {table}",
                    f"SELECT max({k}) AS k, count({v}) AS v FROM {table}",
                    f"SELECT x.{k} AS k, y.{j} AS v FROM {table} x LEFT JOIN {other} y ON x.{k} = y.a",
                    f"SELECT {k} AS k, {v} AS v FROM {table} WHERE {v} <> {number}",
                )
            )
        )

    def source(self, size: int, ctes: Sequence[str]) -> tuple[str, list[Visible]]:
        """Write what follows FROM, and return the relations that it makes visible."""
        text, first = self.relation(ctes)
        visible = [first]
        for _ in range(size - 1):
            added, relation = self.relation(ctes)
            kind = self.pick([*_JOINS, "JOIN", "LEFT JOIN"])
            # Whether a comma or CROSS JOIN binds less tightly is ambiguous, so such a query is refused.
            if kind == "CROSS JOIN" and size > 2:
                kind = "JOIN"
            self.used.add(_JOINS[kind])
            text += f" {kind} {added}"
            if kind != "CROSS JOIN":
                text += f" ON {self.join_condition(visible, relation)}"
            if kind not in ("LEFT SEMI JOIN", "LEFT ANTI JOIN"):
                visible.append(relation)
        return text, visible

    def join_condition(self, visible: Sequence[Visible], relation: Visible) -> str:
        operator = "<=>" if self.chance(0.15) else "="
        text = f"{self.column(visible)} {operator} {self.column([relation])}"
        if self.chance(0.25):
            text += f" AND {self.column([relation])} < {self.random.randint(1, 4)}"
        if self.chance(0.1):
            text += f" AND {self.column(visible)} <> {self.column([relation])}"
        return text

    # ------------------------------------------------------------------------------------ WHERE
    def where(self, visible: Sequence[Visible]) -> str:
        parts = [self.predicate(visible) for _ in range(self.random.randint(0, 2))]
        if not parts:
            return ""
        return " WHERE " + str(self.pick((" AND ", " AND ", " OR "))).join(parts)

    def predicate(self, visible: Sequence[Visible]) -> str:
        column = self.column(visible)
        self.used.add("filter")
        kind = self.random.randint(0, 9)
        if kind < 4:
            return f"{column} {self.pick(('<', '>=', '<>', '='))} {self.random.randint(0, 4)}"
        if kind == 4:
            return f"{column} IS {self.pick(('', 'NOT '))}NULL"
        return self.subquery(column, visible, kind)

    def subquery(self, column: str, visible: Sequence[Visible], kind: int) -> str:
        table, alias = self.table(), self.alias()
        inner = [Visible(alias, _NUMBERS[table])]
        own = self.column(inner)
        extra = f" AND {self.column(inner)} < {self.random.randint(1, 5)}"
        if self.chance(0.2):
            other, name = self.table(), self.alias()
            nested = f"EXISTS (SELECT 1 FROM {other} AS {name} WHERE {name}.a = {self.column(inner)})"
            extra += self.use("nested-subquery", f" AND {nested}")
        correlation = f"{own} = {self.column(visible)}" if self.chance(0.8) else f"{own} > 1"
        if kind == 5:
            return self.use("exists", f"EXISTS (SELECT * FROM {table} AS {alias} WHERE {correlation}{extra})")
        if kind == 6:
            return self.use("not-exists", f"NOT EXISTS (SELECT 1 FROM {table} AS {alias} WHERE {correlation}{extra})")
        if kind < 9:
            word, name = self.pick((("IN", "in"), ("NOT IN", "not-in")))
            where = (
                f"{correlation}{extra}" if self.chance(0.3) else f"{self.column(inner)} > {self.random.randint(0, 3)}"
            )
            group = f" GROUP BY {own} HAVING count(*) > 1" if self.chance(0.15) and where.count(".") == 1 else ""
            return self.use(name, f"{column} {word} (SELECT {own} FROM {table} AS {alias} WHERE {where}{group})")
        where = f" WHERE {correlation}" if "=" in correlation else ""
        name = "correlated-scalar" if where else "scalar"
        value = self.pick(("max", "count", "min"))
        return self.use(name, f"{column} >= (SELECT {value}({own}) FROM {table} AS {alias}{where})")

    # ----------------------------------------------------------------------------------- SELECT
    def query(self) -> str:
        if self.turn is None and self.chance(0.1):
            return self.merging()
        if self.chance(0.2):
            return self.use("cte", f"WITH c1 AS ({self.derived()}) {self.body(['c1'])}")
        return self.body([])

    def body(self, ctes: Sequence[str]) -> str:
        shape = self.choose(range(16))
        if shape == 14:
            return self.merging()
        if shape == 15:
            return self.compound(ctes)
        source, visible = self.source(self.random.randint(1, 3), ctes)
        where = self.where(visible)
        aliases = [item.alias for item in visible]
        if len(aliases) > 1 and len({part.split(" AS ")[0] for part in source.split(" JOIN ")}) < len(aliases):
            self.used.add("self-join")
        if shape < 4:
            return self.projection(source, visible, where)
        if shape < 6:
            columns = f"{self.column(visible)} AS o1, {self.column(visible)} AS o2"
            return self.use("distinct", f"SELECT DISTINCT {columns} FROM {source}{where}")
        if shape < 11:
            return self.grouped(source, visible, where)
        if shape == 11:
            columns = self.aggregates(visible, self.random.randint(1, 4))
            return self.use("global-aggregate", f"SELECT {columns} FROM {source}{where}")
        return self.windowed(source, visible, where)

    def projection(self, source: str, visible: Sequence[Visible], where: str) -> str:
        self.used.add("projection")
        one, other = self.column(visible), self.column(visible)
        shape = self.choose(range(7))
        if shape == 0:
            alias = visible[0].alias
            return self.use("star", f"SELECT {alias}.*, {other} + 1 AS o9 FROM {source}{where}")
        if shape == 1:
            return self.use("lateral-alias", f"SELECT {one} AS o1, o1 + 1 AS o2, {other} AS o3 FROM {source}{where}")
        if shape == 2:
            table, alias = self.table(), self.alias()
            inner = self.column([Visible(alias, _NUMBERS[table])])
            scalar = f"(SELECT max({inner}) FROM {table} AS {alias} WHERE {alias}.a = {one})"
            return self.use("select-scalar", f"SELECT {one} AS o1, {scalar} AS o2 FROM {source}{where}")
        if shape == 3:
            exploded = "LATERAL VIEW explode(array(1, 2)) g AS x"
            return self.use("explode", f"SELECT {one} AS o1, g.x AS o2 FROM {source} {exploded}{where}")
        if shape == 4:
            table = "SELECT q.a AS o1, g.x AS o2 FROM u AS q LATERAL VIEW explode(q.xs) g AS x"
            return self.use("explode", f"{table} WHERE q.e <> {self.random.randint(0, 4)}")
        if shape == 5:
            kind = self.pick(("", "LEFT ", "RIGHT ", "FULL "))
            return self.use("using", f"SELECT *, r.c + 1 AS o9 FROM r {kind}JOIN s USING (a)")
        return f"SELECT {one} AS o1, {other} AS o2, {self.column(visible)} + 1 AS o3 FROM {source}{where}"

    def aggregates(self, visible: Sequence[Visible], count: int) -> str:
        calls = []
        for index in range(count):
            column = self.column(visible)
            call = self.pick(
                (
                    "count(*)",
                    f"count({column})",
                    f"sum({column})",
                    f"min({column})",
                    f"max({column})",
                    f"count(DISTINCT {column})",
                    f"count_if({column} > 1)",
                    f"sum({column}) FILTER (WHERE {self.column(visible)} > 1)",
                )
            )
            calls.append(f"{call} AS o{index + 3}")
        return ", ".join(calls)

    def additive(self, visible: Sequence[Visible]) -> str:
        """Write aggregates that can be merged after deletions, too."""
        column = self.column(visible)
        calls = f"count(*) AS o3, sum({column}) AS o4, count({column}) AS o5"
        return calls + str(self.pick(("", f", count_if({column} > 1) AS o6", ", count(*) * 2 AS o6")))

    def merging(self) -> str:
        """Write aggregates over inner joins of tables, which can be merged."""
        one, other = self.table(), self.table()
        visible = [Visible("x", _NUMBERS[one]), Visible("y", _NUMBERS[other])]
        key = self.use("group-by", self.column(visible))
        source = f"{one} x JOIN {other} y ON x.a = {self.column(visible[1:])} WHERE {self.column(visible)} <> 3"
        calls = self.additive(visible)
        if self.chance(0.2):
            return self.use("global-aggregate", f"SELECT {calls} FROM {source}")
        return f"SELECT {key} AS o1, {calls} FROM {source} GROUP BY {key}"

    def grouped(self, source: str, visible: Sequence[Visible], where: str) -> str:
        self.used.add("group-by")
        one, other = self.column(visible), self.column(visible)
        calls = self.additive(visible) if self.chance(0.4) else self.aggregates(visible, self.random.randint(1, 3))
        having = ""
        if self.chance(0.25):
            condition = self.pick(
                ("count(*) > 1", f"sum({self.column(visible)}) > 3", "count(*) > (SELECT min(a) FROM r)")
            )
            having = self.use("having", f" HAVING {condition}")
        return self.keyed(one, other, f"{calls} FROM {source}{where}", having)

    def keyed(self, one: str, other: str, rest: str, having: str) -> str:
        """Write the keys of a GROUP BY in one of many ways."""
        word = self.pick(("ROLLUP", "CUBE"))
        shapes = {
            "hidden-key": f"SELECT {one} AS o1, {rest} GROUP BY {one}, {other}{having}",
            "group-by-ordinal": f"SELECT {one} AS o1, {rest} GROUP BY 1{having}",
            "group-by-all": f"SELECT {one} AS o1, {other} + 1 AS o2, {rest} GROUP BY ALL{having}",
            word.lower(): f"SELECT {one} AS o1, {other} AS o2, {rest} GROUP BY {word}({one}, {other}){having}",
            "grouping-sets": f"SELECT {one} AS o1, {rest} GROUP BY GROUPING SETS (({one}), ({other})){having}",
            "aggregate-and-window": f"SELECT {one} AS o1, {other} AS o2, rank() OVER (PARTITION BY {one} "
            f"ORDER BY count(*)) AS o9, {rest} GROUP BY {one}, {other}",
            "group-by-alias": f"SELECT {one} + 1 AS o1, {rest} GROUP BY o1{having}",
            "group-by": f"SELECT {one} AS o1, {rest} GROUP BY {one}{having}",
        }
        name = self.choose(sorted(shapes))
        return self.use(name, shapes[name])

    def windowed(self, source: str, visible: Sequence[Visible], where: str) -> str:
        self.used.add("window")
        key = self.column(visible)
        every = ", ".join(f"{item.alias}.{column}" for item in visible for column in item.columns)
        value = self.column(visible)
        if self.chance(0.2):
            named = f"sum({value}) OVER w AS o3 FROM {source}{where} WINDOW w AS (PARTITION BY {key})"
            return self.use("named-window", f"SELECT {key} AS o1, {value} AS o2, {named}")
        shown = self.pick((f"{key} AS o1, {value} AS o2", f"{value} AS o2"))
        number = f"row_number() OVER (PARTITION BY {key} ORDER BY {every}) AS o3"
        total = f"sum({value}) OVER (PARTITION BY {key}, {value}) AS o4"
        inner = f"SELECT {shown}, {number}, {total} FROM {source}{where}"
        return f"SELECT * FROM ({inner}) WHERE o3 = 1" if self.chance(0.3) else inner

    def compound(self, ctes: Sequence[str]) -> str:
        sides = []
        for _ in range(2):
            source, visible = self.source(self.random.randint(1, 2), ctes)
            columns = f"{self.column(visible)} AS o1, {self.column(visible)} AS o2"
            sides.append(f"SELECT {columns} FROM {source}{self.where(visible)}")
        word = self.choose(("UNION ALL", "UNION", "INTERSECT", "EXCEPT", "EXCEPT ALL", "INTERSECT ALL"))
        self.used.add("union-all" if word == "UNION ALL" else word.split(" ")[0].lower())
        return f"{sides[0]} {word} {sides[1]}"


_JOINS = {
    "JOIN": "join",
    "LEFT JOIN": "left-join",
    "RIGHT JOIN": "right-join",
    "FULL JOIN": "full-join",
    "LEFT SEMI JOIN": "semi-join",
    "LEFT ANTI JOIN": "anti-join",
    "CROSS JOIN": "cross-join",
}


_KEYS = {"r": ("a", "b", "c"), "s": ("a", "b"), "u": ("a", "e")}


def joined(random: Random) -> str:
    """Write a join of tables by equal columns: most are inner joins, some conditions are in the WHERE."""
    tables = [random.choice("rsu") for _ in range(random.randint(2, 4))]
    source, where = f"{tables[0]} AS x0", []
    for number, table in enumerate(tables[1:], 1):
        other = random.randrange(number)
        own, theirs = random.choice(_KEYS[table]), random.choice(_KEYS[tables[other]])
        condition = f"x{number}.{own} = x{other}.{theirs}"
        join = random.choices(("JOIN", "CROSS JOIN", "LEFT JOIN", "RIGHT JOIN"), (8, 2, 2, 1))[0]
        source += f" {join} {table} AS x{number}" + ("" if join == "CROSS JOIN" else f" ON {condition}")
        where += [condition] if join == "CROSS JOIN" else []
    where += [f"x0.a > {random.randint(0, 2)}"] if random.random() < 0.3 else []
    key, value = f"x{len(tables) - 1}.a", f"x0.{random.choice(_KEYS[tables[0]])}"
    conditions = f" WHERE {' AND '.join(where)}" if where else ""
    return random.choice(
        (
            f"SELECT {key} AS o1, {value} AS o2 FROM {source}{conditions}",
            f"SELECT {key} AS o1, count(*) AS o2, sum({value}) AS o3, count({value}) AS o4 "
            f"FROM {source}{conditions} GROUP BY {key}",
            f"SELECT {key} AS o1, max({value}) AS o2 FROM {source}{conditions} GROUP BY {key}",
        )
    )


# ------------------------------------------------------------------------------------------- rows
def rows(random: Random, table: Table, count: int) -> list[Row]:
    """Make rows of small numbers, a tenth of them NULL, so that there are duplicates."""
    return [tuple(_value(random, kind) for _, kind in table.columns) for _ in range(count)]


def _value(random: Random, kind: str) -> Any:
    if random.random() < 0.1:
        return None
    if kind == "int[]":
        return tuple(random.randint(0, 3) for _ in range(random.randint(0, 2)))
    return random.randint(0, 4)


def first_rows(random: Random) -> dict[str, list[Row]]:
    """Make the rows of all tables."""
    return {table.name: rows(random, table, random.randint(0, 14)) for table in TABLES}


def change(random: Random, old: dict[str, list[Row]]) -> Change:
    """Change some tables: add rows, and in two of three changes also remove and update rows."""
    only_new = random.random() < 0.35
    new = {}
    for table in TABLES:
        kept = list(old[table.name])
        if random.random() < 0.6:
            for _ in range(0 if only_new else random.randint(0, min(3, len(kept)))):
                del kept[random.randint(0, len(kept) - 1)]
            kept += rows(random, table, random.randint(0, 2))
        new[table.name] = kept
    return Change(old, new)
