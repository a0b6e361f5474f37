# SPDX-License-Identifier: Apache-2.0
"""Compare the stored rows of a view with a recompute at the recorded snapshots, by Spark and by DuckDB."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow
import sqlglot
from py4j.protocol import Py4JJavaError
from pyiceberg.catalog import load_catalog
from pyiceberg.table import StaticTable
from pyiceberg.table import Table as PyIcebergTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from airflow_mv.common.stored_rows import stored_rows
from airflow_mv.core.catalog.layouts import PointedStorage
from airflow_mv.core.spec.identifiers import Identifier
from tests.core.ivm.lab import to_duckdb
from tests.engine.incremental.schemas import Schema, written
from tests.engine.incremental.views import naming
from tests.engine.support import Lake

#: Sums of floating numbers that cancel may be as small as this, or zero.
_NOTHING = 1e-9


class Mismatch(AssertionError):
    """Stored rows that differ from a recompute."""


def recorded(lake: Lake, view: str) -> dict[str, int | None]:
    """Return the recorded snapshot of each base table, by the table's full name."""
    state = lake.catalog.load_storage(lake.view(view)).state
    assert state is not None
    return {
        table.identifier: None if table.snapshot_reference == -1 else table.snapshot_reference
        for table in state.current.base_tables
    }


def by_spark(
    lake: Lake, snapshots: Mapping[str, int | None], sql: str, columns: Mapping[str, Sequence[str]]
) -> Counter[str]:
    """Return the rows that Spark computes at the snapshots.

    Args:
        lake: The lake with the tables.
        snapshots: The snapshot of each, by its full name.
        sql: The query, with the tables' bare names.
        columns: The columns that ``*`` stands for, by the tables' bare names; by default all.
    """

    def version(identifier: str) -> str:
        number = snapshots[identifier]
        return identifier if number is None else f"{identifier} VERSION AS OF {number}"

    names = {Identifier.parse(name).name: version(name) for name in snapshots}
    if not columns:
        return plain(lake.spark.sql(naming(sql, names)).toArrow())
    views = {name: f"SELECT {', '.join(columns[name])} FROM {names[name]}" for name in names}
    with _named(lake, {name: lake.spark.sql(text) for name, text in views.items()}):
        return plain(lake.spark.sql(sql).toArrow())


@contextmanager
def _named(lake: Lake, frames: Mapping[str, DataFrame]) -> Iterator[None]:
    """Name frames by the tables' bare names."""
    for name, frame in frames.items():
        frame.createOrReplaceTempView(name)
    try:
        yield
    finally:
        for name in frames:
            lake.spark.catalog.dropTempView(name)


def stored(lake: Lake, view: str) -> pyarrow.Table:
    """Return the rows of the last refresh, in either layout, through pyiceberg if it reads them correctly."""
    loaded = lake.view(view)
    storage = lake.catalog.load_storage(loaded)
    table = StaticTable.from_metadata(storage.location)
    if _is_misread(table):
        by_file = PointedStorage(storage.location, storage.table, storage.state)
        return stored_rows(lake.spark, loaded.identifier, by_file, storage.rows_snapshot).toArrow()
    return table.scan(snapshot_id=storage.rows_snapshot).to_arrow()


def _is_misread(table: PyIcebergTable) -> bool:
    """Whether pyiceberg 0.12 may return an empty map or list for NULL, as for nested values and lists of structs."""
    return re.search(r"(map<\w+, (struct|list|map)|list<struct)<", str(table.schema())) is not None


def differences(want: Counter[str], got: Counter[str]) -> str:
    """Return the missing and the surplus rows; empty if the multisets are equal."""
    return "" if want == got else f"lacks {dict(want - got)}, has {dict(got - want)}"


def plain(table: pyarrow.Table, *, numbers_alike: bool = False) -> Counter[str]:
    """Return rows as text.

    The order of additions decides the last digits of a floating sum. -0.0 and 0.0 are one number: which of the two is
    stored is not specified, and they differ only in queries that convert them to text. All else is compared exactly.

    Args:
        table: The rows.
        numbers_alike: Whether equal numbers of two types are equal; Spark and DuckDB add in different types.
    """
    return Counter(repr([_plain(value, numbers_alike) for value in row.values()]) for row in table.to_pylist())


def _plain(value: Any, numbers_alike: bool) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item, numbers_alike) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, numbers_alike) for item in value]
    if isinstance(value, float):
        return float(f"{0.0 if abs(value) < _NOTHING else value:.9g}")
    if numbers_alike and isinstance(value, int | Decimal) and not isinstance(value, bool):
        return float(f"{value:.9g}")
    return value


def check(
    lake: Lake,
    view: str,
    sql: str,
    *,
    in_duckdb: bool,
    twice: bool = True,
    columns: Mapping[str, Sequence[str]] | None = None,
) -> bool:
    """Compare the stored rows with a recompute.

    Args:
        lake: The lake with the view.
        view: Its name.
        sql: Its query, with the tables' bare names.
        in_duckdb: Whether DuckDB recomputes, too.
        twice: Whether Spark recomputes even if DuckDB has done so.
        columns: The columns that ``*`` stands for in each table, by its bare name.

    Returns:
        Whether DuckDB could recompute.

    Raises:
        Mismatch: They differ.
    """
    snapshots = recorded(lake, view)
    rows = stored(lake, view)
    other = by_duckdb(snapshots, sql, columns or {}) if in_duckdb else None
    if other is not None and (differing := differences(other, plain(rows, numbers_alike=True))):
        raise Mismatch(f"the rows of {sql} are not DuckDB's: {differing}")
    if other is None or twice:
        want = by_spark(lake, snapshots, sql, columns or {})
        if differing := differences(want, plain(rows)):
            raise Mismatch(f"the rows of {sql} are not Spark's: {differing}")
    return other is not None


def by_duckdb(
    snapshots: Mapping[str, int | None], sql: str, columns: Mapping[str, Sequence[str]]
) -> Counter[str] | None:
    """Return the rows that DuckDB computes at the same snapshots, or ``None`` if it does not support the query.

    pyiceberg reads the tables for it; for tables with equality deletes it cannot, and the result is ``None``, too.

    Args:
        snapshots: The snapshot of each table, by its full name.
        sql: The query, with the tables' bare names.
        columns: The columns that ``*`` stands for, by the tables' bare names; by default all.
    """
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("PRAGMA disable_optimizer")
        for name, snapshot in snapshots.items():
            identifier = Identifier.parse(name)
            table = load_catalog(identifier.catalog).load_table((*identifier.namespace, identifier.name))
            if _is_misread(table):
                return None
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    rows = table.scan(snapshot_id=snapshot).to_arrow()
            except ValueError as error:
                if "equality deletes" not in str(error):
                    raise
                return None
            wanted = columns.get(identifier.name, rows.column_names)
            # A column that was dropped is not behind a `*`: such a view would be refused.
            connection.register(identifier.name, rows.select([name for name in wanted if name in rows.column_names]))
        try:
            return plain(connection.sql(to_duckdb(sql)).to_arrow_table(), numbers_alike=True)
        except (duckdb.Error, sqlglot.ParseError):
            return None


@contextmanager
def accepting(lake: Lake, schema: Schema) -> Iterator[Callable[[str], bool]]:
    """Yield a function that returns whether Spark accepts a query with the tables' bare names.

    Spark does not support every correlated subquery, and sometimes fails in its own rules.

    Args:
        lake: The lake with the session.
        schema: The tables' columns; empty relations replace the tables.
    """
    nothing: list[tuple[object, ...]] = []
    rows = lake.spark.sparkContext.parallelize(nothing)
    frames = {name: lake.spark.createDataFrame(rows, written(columns)) for name, columns in schema.items()}

    def accepts(sql: str) -> bool:
        try:
            found: Any = lake.spark.sql(sql)
            found._jdf.queryExecution().optimizedPlan()
            return len(found.columns) == len({name.lower() for name in found.columns})
        except (PySparkException, Py4JJavaError):
            return False

    with _named(lake, frames):
        yield accepts
