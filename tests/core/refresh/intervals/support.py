# SPDX-License-Identifier: Apache-2.0
"""A lake with a view by days, refreshed without Spark: DuckDB executes the script of an interval's refresh."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import sqlglot
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from airflow_mv.core.catalog import Layout, MaterializedViewCatalog
from airflow_mv.core.refresh import RefreshOptions
from airflow_mv.core.script import COMPLETE_KEY, REFRESH_ID_KEY, Script
from airflow_mv.core.spec.interval import Span
from tests.branches import overwrite_branch
from tests.builders import Lake, close, open_catalog
from tests.duck import DuckStager, duck, overwrite

SALES = pa.schema([("day", pa.date32()), ("region", pa.string()), ("amount", pa.int64())])
BY_DAY = "SELECT day, count(*) AS orders, sum(amount) AS amount FROM lake.sales.sold GROUP BY day"
VIEW = "sales.daily"
FIRST = date(2024, 6, 1)

_DELETE = re.compile(r"DELETE FROM (?P<table>\S+) WHERE (?P<where>.*)", re.DOTALL)
_INSERT = re.compile(r"INSERT INTO (?P<table>[^\n]+)\n(?P<query>.*)", re.DOTALL)

#: A base table's row: the number of the day from 1, and the amount; day 0 is NULL.
Sold = tuple[int, int]


class IntervalStager(DuckStager):
    """A stager that also deletes and inserts the rows of an interval."""

    def _run(self, scratch: SqlCatalog, script: Script, sql: str) -> int:
        delete, insert = _DELETE.fullmatch(sql), _INSERT.fullmatch(sql)
        if delete is None and insert is None:
            return super()._run(scratch, script, sql)
        table = self._table(scratch, script.table)
        if script.branch is not None:
            table = table.refresh()
        before = self._rows(table, script)
        if delete is not None:
            with duck() as session:
                session.register("stored", before)
                query = f"SELECT * FROM stored WHERE NOT coalesce(({delete['where']}), false)"
                kept = session.sql(sqlglot.transpile(query, read="spark", write="duckdb")[0]).to_arrow_table()
            self._write(table, script, kept.cast(before.schema), complete=False)
            return 0
        assert insert is not None
        new = self._query(scratch, insert["query"]).rename_columns(table.schema().column_names)
        self._write(table, script, pa.concat_tables([before, new.cast(before.schema)]), complete=True)
        return new.num_rows

    def _rows(self, table: Table, script: Script) -> pa.Table:
        scan = table.scan() if script.branch is None else table.scan().use_ref(script.branch)
        return scan.to_arrow()

    def _write(self, table: Table, script: Script, rows: pa.Table, *, complete: bool) -> None:
        if script.branch is None:
            overwrite(table, rows, script.refresh_id)
            return
        stamps = {REFRESH_ID_KEY: script.refresh_id, COMPLETE_KEY: str(complete).lower()}
        overwrite_branch(table, script.branch, rows, stamps)


class Days(Lake):
    """A lake with the base table ``sales.sold``."""

    def sell(self, *rows: Sold) -> int:
        """Append rows, and return the new snapshot's id."""
        self.sold.append(sold(rows))
        return self.head("sold")

    def correct(self, *rows: Sold) -> int:
        """Overwrite the whole base table, and return the new snapshot's id."""
        self.sold.overwrite(sold(rows))
        return self.head("sold")

    @property
    def sold(self) -> Table:
        """The current state of the base table."""
        return self.load("sold")

    def refresh_days(self, first: int, after: int, **options: Any) -> Any:
        """Refresh the days from ``first`` to before ``after``."""
        return self.refresh(VIEW, options=RefreshOptions(interval=days(first, after), **options))

    def stored(self) -> dict[int, tuple[int, int]]:
        """The stored rows by the number of the day: number of orders and amount."""
        rows = self.read(VIEW)
        found = {number(row["day"]): (row["orders"], row["amount"]) for row in rows}
        assert len(found) == len(rows), rows
        return found

    def recomputed(self, snapshot_id: int | None = None) -> dict[int, tuple[int, int]]:
        """The query's rows at a snapshot of the base table, by default the current one."""
        found: dict[int, tuple[int, int]] = {}
        for row in self.sold.scan(snapshot_id=snapshot_id).to_arrow().to_pylist():
            orders, amount = found.get(number(row["day"]), (0, 0))
            found[number(row["day"])] = orders + 1, amount + row["amount"]
        return found


@contextmanager
def days_lake(uri: str, warehouse: Path, layout: Layout, name: str = "lake", **definition: Any) -> Iterator[Days]:
    """A lake with an empty base table and a view by days, never refreshed."""
    iceberg = open_catalog(uri, warehouse, name)
    iceberg.create_namespace_if_not_exists("sales")
    lake = add_days(iceberg, MaterializedViewCatalog(iceberg), layout, **definition)
    try:
        yield lake
    finally:
        close(iceberg)


def add_days(iceberg: Any, catalog: MaterializedViewCatalog, layout: Layout, **definition: Any) -> Days:
    """Add the base table and the view to an open catalog."""
    lake = Days(iceberg, catalog, IntervalStager(catalog, iceberg), layout)
    iceberg.create_table("sales.sold", schema=SALES)
    lake.view("daily", BY_DAY, **{"properties": {"airflow-mv.interval-column": "day"}, **definition})
    return lake


def sold(rows: Iterable[Sold]) -> pa.Table:
    """Rows of the base table."""
    return pa.Table.from_pylist([{"day": day(n), "region": "north", "amount": amount} for n, amount in rows], SALES)


def day(number: int) -> date | None:
    """The date of a number."""
    return FIRST + timedelta(days=number - 1) if number else None


def number(value: date | None) -> int:
    """The number of a date."""
    return (value - FIRST).days + 1 if value else 0


def days(first: int, after: int) -> Span:
    """The days from ``first`` to before ``after``."""
    start, end = (datetime.combine(FIRST + timedelta(days=n - 1), datetime.min.time(), UTC) for n in (first, after))
    return Span(start, end)
