# SPDX-License-Identifier: Apache-2.0
"""Tables in a test bench: a version before and one after some statements, and the change between them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from airflow_mv.core.ivm import BaseRelation, IncrementalQuery
from airflow_mv.core.spec.reasons import Reason
from tests.core.ivm.lab import Bag, Lab, Table, parsed, spark_type, to_duckdb


def execute(lab: Lab, statements: Iterable[str]) -> None:
    """Run DuckDB statements."""
    for statement in statements:
        lab.connection.execute(statement)


def relation(lab: Lab, table: str) -> BaseRelation:
    """Describe a table that has an old version, and create the relations that statements read."""
    connection = lab.connection
    connection.execute(f"CREATE VIEW {table}__new AS FROM {table}")
    connection.execute(
        f"CREATE TABLE {table}__change AS SELECT *, 1 AS __w FROM (FROM {table} EXCEPT ALL FROM {table}__old) "
        f"UNION ALL SELECT *, -1 AS __w FROM (FROM {table}__old EXCEPT ALL FROM {table})"
    )
    added, removed = connection.execute(
        f"SELECT count(*) FILTER (__w > 0), count(*) FILTER (__w < 0) FROM {table}__change"
    ).fetchall()[0]
    described = connection.execute(f"DESCRIBE {table}").fetchall()
    columns = tuple((row[0], spark_type(row[1])) for row in described)
    return BaseRelation(Table(table, ()).identifier, table, columns, bool(added or removed), not removed)


def analysed(lab: Lab, relations: Sequence[BaseRelation], sql: str) -> IncrementalQuery:
    """Analyse a query that must be supported."""

    def analyse(output: list[tuple[str, str]]) -> IncrementalQuery:
        found = IncrementalQuery.analyse(parsed(sql), relations, output=output, views={})
        assert not isinstance(found, Reason), found
        return found

    plain = sql
    for item in relations:
        plain = plain.replace(f"{item.name}__new", item.name)
    lab.sql = plain
    described = lab.connection.execute(f"DESCRIBE {to_duckdb(plain)}").fetchall()
    return analyse([(row[0], spark_type(row[1])) for row in described])


def read_changes(lab: Lab, relations: Sequence[BaseRelation], query: IncrementalQuery) -> None:
    """Restrict each change to the rows that can matter to the query."""
    for item in relations:
        condition = query.conditions.get(item.identifier, "true")
        lab.run(f"CREATE OR REPLACE VIEW {item.name}__delta AS SELECT * FROM {item.name}__change WHERE {condition}")


def rounded(bag: Bag) -> Bag:
    """Round floating sums, which may differ in their last digits."""
    result: Bag = Counter()
    for row, copies in bag.items():
        result[tuple(_rounded(value) for value in row)] += copies
    return result


def _rounded(value: Any) -> Any:
    if isinstance(value, float) and value and math.isfinite(value):
        return round(value, 10 - math.ceil(math.log10(abs(value))))
    return value
