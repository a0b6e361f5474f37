# SPDX-License-Identifier: Apache-2.0
"""Compare the demo's views with an independent engine over the raw files."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from airflow_mv.catalog import MaterializedViewCatalog
from airflow_mv.errors import CheckFailedError
from airflow_mv.refresh.read import read_arrow, readable
from examples.demo.data import MONTHLY, ONCE, rows
from examples.demo.home import CATALOG, NAMESPACE
from examples.demo.views import CHECKS


def check(catalog: MaterializedViewCatalog, months: range, *, views: Iterable[str] = tuple(CHECKS)) -> dict[str, int]:
    """Recompute views with DuckDB and compare all rows; means to 9 digits, everything else exactly.

    Returns:
        Equal rows by view.

    Raises:
        CheckFailedError: Names the view and the first rows that differ.
    """
    import duckdb
    import pyarrow as pa

    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for name in MONTHLY:
        connection.register(name, pa.concat_tables([rows(name, month) for month in months]))
    for name in ONCE:
        connection.register(name, rows(name))
    counts = {}
    for name in views:
        view = f"{CATALOG}.{NAMESPACE}.{name}"
        stored = _multiset(read_arrow(catalog, readable(catalog, view)).rows())
        expected = _multiset(row.values() for row in connection.sql(CHECKS[name]).to_arrow_table().to_pylist())
        if stored != expected:
            raise CheckFailedError(f"view {view} differs from DuckDB's answer: {_difference(stored, expected)}")
        counts[name] = len(stored)
    return counts


def _multiset(found: Iterable[Iterable[Any]]) -> list[tuple[str, ...]]:
    return sorted(tuple(_canonical(value) for value in row) for row in found)


def _canonical(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _difference(stored: list[tuple[str, ...]], expected: list[tuple[str, ...]]) -> str:
    extra, missing = sorted(set(stored) - set(expected))[:3], sorted(set(expected) - set(stored))[:3]
    return f"{len(stored)} rows against {len(expected)}; only stored: {extra}; only expected: {missing}"
