# SPDX-License-Identifier: Apache-2.0
"""The stored rows of a view against the recompute at the recorded snapshots, by Spark and by DuckDB."""

from __future__ import annotations

import uuid
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import pyarrow
import sqlglot
from py4j.protocol import Py4JJavaError
from pyiceberg.catalog import load_catalog
from pyiceberg.table import StaticTable
from pyspark.errors import PySparkException

from airflow_mv.spec.identifiers import Identifier
from tests.engine.incremental.views import naming
from tests.engine.support import Lake, multiset
from tests.incremental.lab import to_duckdb


class Mismatch(AssertionError):
    """Stored rows that no recompute gives."""


def recorded(lake: Lake, view: str) -> dict[str, int | None]:
    """Return the snapshot of each base table that the view's rows are of, by the table's full name."""
    state = lake.catalog.load_storage(lake.view(view)).state
    assert state is not None
    return {
        table.identifier: None if table.snapshot_reference == -1 else table.snapshot_reference
        for table in state.current.base_tables
    }


def by_spark(
    lake: Lake, snapshots: Mapping[str, int | None], sql: str, columns: Mapping[str, Sequence[str]]
) -> Counter[str]:
    """Return the rows that Spark gives over the snapshots.

    Args:
        lake: Where the tables are.
        snapshots: The snapshot of each, by its full name.
        sql: The query, with the tables' bare names.
        columns: What ``*`` stands for, by the tables' bare names; by default for all that there is.
    """

    def version(identifier: str) -> str:
        number = snapshots[identifier]
        return identifier if number is None else f"{identifier} VERSION AS OF {number}"

    names = {Identifier.parse(name).name: version(name) for name in snapshots}
    if not columns:
        return multiset(lake.spark.sql(naming(sql, names)).toArrow())
    views = {name: f"only_{name}_{uuid.uuid4().hex[:8]}" for name in names}
    for name, view in views.items():
        lake.spark.sql(f"SELECT {', '.join(columns[name])} FROM {names[name]}").createOrReplaceTempView(view)
    try:
        return multiset(
            lake.spark.sql(naming(sql, {name: f"{view} AS {name}" for name, view in views.items()})).toArrow()
        )
    finally:
        for view in views.values():
            lake.spark.catalog.dropTempView(view)


def stored(lake: Lake, view: str) -> pyarrow.Table:
    """Return the rows of the last refresh, in either layout, through pyiceberg."""
    storage = lake.catalog.load_storage(lake.view(view))
    return StaticTable.from_metadata(storage.location).scan(snapshot_id=storage.rows_snapshot).to_arrow()


def differences(want: Counter[str], got: Counter[str]) -> str:
    """Say what is lacking and what is too much; nothing if the bags are equal."""
    return "" if want == got else f"lacks {dict(want - got)}, has {dict(got - want)}"


def plain(bag: Counter[str]) -> Counter[str]:
    """-0.0 and 0.0 are one value to GROUP BY: which of the two stands for it is left open."""
    found: Counter[str] = Counter()
    for row, count in bag.items():
        found[row.replace("'-0'", "'0'")] += count
    return found


def check(
    lake: Lake,
    view: str,
    sql: str,
    *,
    in_duckdb: bool,
    twice: bool = True,
    columns: Mapping[str, Sequence[str]] | None = None,
) -> bool:
    """Compare the stored rows with the recompute.

    Args:
        lake: Where the view is.
        view: Its name.
        sql: Its query, with the tables' bare names.
        in_duckdb: Whether DuckDB is asked as well.
        twice: Whether Spark is asked also where DuckDB has answered.
        columns: What ``*`` stands for in each table, by its bare name.

    Returns:
        Whether DuckDB could be asked.

    Raises:
        Mismatch: They differ.
    """
    snapshots = recorded(lake, view)
    got = plain(multiset(stored(lake, view)))
    other = by_duckdb(snapshots, sql, columns or {}) if in_duckdb else None
    if other is not None and (told := differences(plain(other), got)):
        raise Mismatch(f"the rows of {sql} are not DuckDB's: {told}")
    if other is None or twice:
        want = plain(by_spark(lake, snapshots, sql, columns or {}))
        if told := differences(want, got):
            raise Mismatch(f"the rows of {sql} are not Spark's: {told}")
    return other is not None


def by_duckdb(
    snapshots: Mapping[str, int | None], sql: str, columns: Mapping[str, Sequence[str]]
) -> Counter[str] | None:
    """Return the rows that DuckDB gives over the same snapshots, or ``None`` where it does not know the query.

    Args:
        snapshots: The snapshot of each table, by its full name.
        sql: The query, with the tables' bare names.
        columns: What ``*`` stands for, by the tables' bare names; by default for all that there is.
    """
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("PRAGMA disable_optimizer")
        for name, snapshot in snapshots.items():
            identifier = Identifier.parse(name)
            table = load_catalog(identifier.catalog).load_table((*identifier.namespace, identifier.name))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                rows = table.scan(snapshot_id=snapshot).to_arrow()
            connection.register(identifier.name, rows.select(list(columns.get(identifier.name, rows.column_names))))
        try:
            return multiset(connection.sql(to_duckdb(sql)).to_arrow_table())
        except (duckdb.Error, sqlglot.ParseError):
            return None


def can_run(lake: Lake, sql: str) -> bool:
    """Whether Spark accepts a query; it does not correlate everything, and trips over its own rules now and then."""
    try:
        found: Any = lake.spark.sql(sql)
        found._jdf.queryExecution().optimizedPlan()
        return len(found.columns) == len({name.lower() for name in found.columns})
    except (PySparkException, Py4JJavaError):
        return False
