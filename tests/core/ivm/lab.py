# SPDX-License-Identifier: Apache-2.0
"""A test bench for incremental refresh: tables in DuckDB, a view, changes; each strategy is compared with a recompute.

DuckDB's optimizer is off: it has returned wrong rows for queries like these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import sqlglot
from sqlglot import exp

from airflow_mv.core.ivm import Appended, BaseRelation, IncrementalQuery, Merged, Replaced, ir
from airflow_mv.core.ivm.render import sql as to_sql
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.reasons import Reason
from airflow_mv.core.sql.query import ParsedQuery, parse_query

Row = tuple[Any, ...]
Bag = Counter[Row]

#: The ways to refresh, as :meth:`Lab.refresh` names them.
STRATEGIES = ("append", "merge", "rows", "replace")
#: Spark type -> DuckDB type, where they differ.
TYPES = {"string": "varchar"}


def parsed(sql: str) -> ParsedQuery:
    """Parse a query over the tables of the test bench."""
    return parse_query(sql, view="v", default_catalog="lake", default_namespace=("db",))


def query_at(query: IncrementalQuery, version: ir.Version) -> str:
    """Return an analysed query over ``<name>__old``, or ``<name>__new``, for a changed table."""
    return to_sql(ir.tree_at(query.tree, version), pretty=False)


@dataclass(frozen=True)
class Table:
    """A base table's name and columns."""

    name: str
    columns: tuple[tuple[str, str], ...]

    @property
    def identifier(self) -> Identifier:
        return Identifier("lake", ("db",), self.name)


@dataclass
class Change:
    """The rows of each table before and after."""

    old: Mapping[str, Sequence[Row]]
    new: Mapping[str, Sequence[Row]]

    def delta(self, table: str, positions: Sequence[int]) -> Bag:
        """Return the change of some columns: how many copies of each row were added or removed."""
        bag: Bag = Counter(_pick(row, positions) for row in self.new[table])
        bag.subtract(Counter(_pick(row, positions) for row in self.old[table]))
        return Counter({row: weight for row, weight in bag.items() if weight})


class Lab:
    """One DuckDB connection and the tables of one schema."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self.tables = tables
        #: The text of the view that was analysed last, which regenerated SQL is compared with.
        self.sql = ""
        #: How many plans have read gathered rows.
        self.gathered = 0
        self.connection = duckdb.connect()
        self.connection.execute("PRAGMA disable_optimizer")
        self.connection.execute("SET threads = 1")

    # ---------------------------------------------------------------------------------- running
    def run(self, spark_sql: str) -> list[Row]:
        return [hashable(row) for row in self.connection.execute(to_duckdb(spark_sql)).fetchall()]

    def load(self, name: str, columns: Sequence[tuple[str, str]], rows: Sequence[Row]) -> None:
        written = ", ".join(f'"{column}" {TYPES.get(kind, kind)}' for column, kind in columns)
        self.connection.execute(f'CREATE OR REPLACE TEMP TABLE "{name}" ({written})')
        if rows:
            values = ", ".join("(" + ", ".join(map(literal, row)) + ")" for row in rows)
            self.connection.execute(f'INSERT INTO "{name}" VALUES {values}')

    def relations(self, change: Change, query: IncrementalQuery) -> list[BaseRelation]:
        """Create the relations that the statements of a query read, and describe them.

        A change table has only the used columns, often only the rows that matter, and sometimes one row for each copy.
        """
        found = []
        for index, table in enumerate(self.tables):
            names = [column for column, _ in table.columns]
            columns = query.used_columns[table.identifier]
            positions = [names.index(column) for column in columns]
            delta = change.delta(table.name, positions)
            stem = f"t{index}"
            self.load(f"{stem}__old", table.columns, change.old[table.name])
            self.load(f"{stem}__new", table.columns, change.new[table.name])
            rows = [(*row, weight) for row, weight in delta.items()]
            if len(change.old[table.name]) % 2:
                rows = [(*row[:-1], 1 if row[-1] > 0 else -1) for row in rows for _ in range(abs(row[-1]))]
            kinds = [table.columns[position] for position in positions]
            self.load(f"{stem}__delta", [*kinds, ("__w", "int")], rows)
            condition = query.conditions.get(table.identifier)
            if condition and len(change.new[table.name]) % 4:
                self.run(f"DELETE FROM `{stem}__delta` WHERE ({condition}) IS NOT TRUE")
            appended = all(weight > 0 for weight in delta.values())
            kept = frozenset(_without_null(table, [*change.old[table.name], *change.new[table.name]]))
            gathers = not any(item.gathers for item in found) and len(change.new[table.name]) % 3 != 0
            relation = BaseRelation(table.identifier, stem, table.columns, bool(delta), appended, kept, gathers)
            found.append(relation)
        return found

    def gather(self, plan: Appended | Merged | Replaced) -> None:
        """Create the relations with gathered rows: only those that match a change of another table."""
        for name in {name for name, _ in plan.near}:
            matches = " OR ".join(
                f'"{item.column}" IN (SELECT "{item.other_column}" FROM "{item.other}__delta")'
                for owner, item in plan.near
                if owner == name
            )
            for version in ("old", "new"):
                rows = f'SELECT * FROM "{name}__{version}" WHERE {matches}'
                self.connection.execute(f'CREATE OR REPLACE TEMP TABLE "{name}__near_{version}" AS {rows}')
            self.gathered += 1

    def output(self, sql: str) -> list[tuple[str, str]]:
        """Return the columns of a view of this query; repeated names get a number."""
        described = self.connection.execute(f"DESCRIBE {to_duckdb(sql)}").fetchall()
        names: list[str] = []
        for row in described:
            names.append(row[0] if row[0] not in names else f"{row[0]}_{len(names)}")
        return [(name, spark_type(row[1])) for name, row in zip(names, described, strict=True)]

    def analysed(self, sql: str, change: Change) -> IncrementalQuery | Reason:
        """Analyse a view for a change, after creating the relations that its statements read."""
        self.sql = sql
        for index, table in enumerate(self.tables):
            self.load(f"t{index}__new", table.columns, change.new[table.name])
            self.connection.execute(f'CREATE OR REPLACE TEMP VIEW {table.name} AS FROM "t{index}__new"')
        output = self.output(sql)
        every = [BaseRelation(item.identifier, f"t{i}", item.columns, True) for i, item in enumerate(self.tables)]
        first = self._analyse(sql, every, output)
        if isinstance(first, Reason):
            return first
        return self._analyse(sql, self.relations(change, first), output)

    def _analyse(
        self, sql: str, relations: Sequence[BaseRelation], output: Sequence[tuple[str, str]]
    ) -> IncrementalQuery | Reason:
        return IncrementalQuery.analyse(parsed(sql), relations, output=output, views={})

    # ------------------------------------------------------------------------------- strategies
    def refresh(self, query: IncrementalQuery, stored: Mapping[str, Bag]) -> tuple[Bag, dict[str, Bag | Reason | str]]:
        """Return the recompute, and the result of each strategy for its stored rows."""
        plans = {
            "append": query.append,
            "merge": query.merge,
            "rows": query.merge_rows,
            "replace": query.replace_keys,
        }
        results = {name: self._attempt(plan(), query, stored[name]) for name, plan in plans.items()}
        return Counter(self.run(self.sql)), results

    def _attempt(self, plan: Any, query: IncrementalQuery, stored: Bag) -> Bag | Reason | str:
        if isinstance(plan, Reason):
            return plan
        try:
            return self.apply(plan, query, stored)
        except duckdb.Error as error:
            return f"{type(error).__name__}: {error}"

    def apply(self, plan: Any, query: IncrementalQuery, stored: Bag) -> Bag:
        """Execute a plan as a job does."""
        self.gather(plan)
        if isinstance(plan, Appended):
            return stored + Counter(self._union(plan.terms))
        if isinstance(plan, Merged):
            return self._merge(plan, query, stored)
        assert isinstance(plan, Replaced)
        return self._replace(plan, query, stored)

    def _union(self, terms: Sequence[str]) -> list[Row]:
        return self.run(" UNION ALL ".join(terms)) if terms else []

    def _replace(self, plan: Replaced, query: IncrementalQuery, stored: Bag) -> Bag:
        names = [name for name, _ in query.output]
        positions = [names.index(key) for key in plan.keys]
        affected = {hashable(row) for row in self.run(plan.affected)}
        if not plan.keys:
            return Counter(self.run(self.sql)) if affected else stored
        if plan.affected_unless_constants is not None and not any(self.run(item)[0][0] for item in plan.constants):
            cheaper = {hashable(row) for row in self.run(plan.affected_unless_constants)}
            assert cheaper <= affected
            affected = cheaper
        kept = {row: n for row, n in stored.items() if _key(row, positions) not in affected}
        new = [row for row in self.run(self.sql) if _key(row, positions) in affected]
        return Counter(kept) + Counter(new)

    def _merge(self, plan: Merged, query: IncrementalQuery, stored: Bag) -> Bag:
        names = [name for name, _ in query.output]
        positions = [names.index(key) for key in plan.keys]
        delta = self.run(plan.signed)
        changed = {_key(row, positions) for row in delta}
        touched = [row for row in stored.elements() if _key(row, positions) in changed]
        self.load("mv_stored", query.output, touched)
        self.connection.execute(f"CREATE OR REPLACE TEMP TABLE mv_delta AS {to_duckdb(plan.signed)}")
        kept = {row: n for row, n in stored.items() if _key(row, positions) not in changed}
        return Counter(kept) + Counter(self.run(plan.combine("`mv_stored`", "`mv_delta`")))


def _without_null(table: Table, rows: Sequence[Row]) -> Iterator[str]:
    """Yield the columns that could be NOT NULL."""
    for index, (name, _) in enumerate(table.columns):
        if all(row[index] is not None for row in rows):
            yield name


def _pick(row: Row, positions: Sequence[int]) -> Row:
    return tuple(row[position] for position in positions)


def hashable(row: Row) -> Row:
    return tuple(tuple(item) if isinstance(item, list) else item for item in row)


def _key(row: Row, positions: Sequence[int]) -> Row:
    return hashable(tuple(row[position] for position in positions))


def to_duckdb(spark_sql: str) -> str:
    """Translate a statement. DuckDB's count_if of nothing is NULL, Spark's is 0."""
    tree = sqlglot.parse_one(spark_sql, read="spark")
    for call in list(tree.find_all(exp.CountIf)):
        call.replace(exp.Count(this=exp.Case(ifs=[exp.If(this=call.this, true=exp.Literal.number(1))])))
    return tree.sql(dialect="duckdb")


def spark_type(duckdb_type: str) -> str:
    kind = duckdb_type.lower()
    return {"integer": "int", "varchar": "string", "hugeint": "bigint"}.get(kind, kind)


def literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(literal, value)) + "]"
    return str(value)
