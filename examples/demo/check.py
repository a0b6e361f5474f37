# SPDX-License-Identifier: Apache-2.0
"""Compare the demo's views with an independent engine over the raw files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.errors import CheckFailedError
from airflow_mv.extras.read import read_rows, readable
from examples.demo.data import MONTHLY, ONCE, rows
from examples.demo.home import CATALOG, NAMESPACE
from examples.demo.views import CHECKS

#: Rows of a view in a form that can be compared, sorted.
Answer = list[tuple[str, ...]]


def answers(months: range, views: Iterable[str] = tuple(CHECKS)) -> dict[str, Answer]:
    """Compute with DuckDB, over the raw files, what views have to contain.

    Args:
        months: Months of 2013 that the tables have.
        views: The views' names.
    """
    import duckdb
    import pyarrow as pa

    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name in MONTHLY:
            connection.register(name, pa.concat_tables([rows(name, month) for month in months]))
        for name in ONCE:
            connection.register(name, rows(name))
        found = {name: connection.sql(CHECKS[name]).to_arrow_table().to_pylist() for name in views}
    return {name: _multiset(row.values() for row in table) for name, table in found.items()}


def compare(catalog: MaterializedViewCatalog, expected: Mapping[str, Answer]) -> dict[str, int]:
    """Compare all rows of views with answers; means to 9 digits, everything else exactly.

    Args:
        catalog: The catalog of the views.
        expected: What :func:`answers` gives.

    Returns:
        Equal rows by view.

    Raises:
        CheckFailedError: Names the view and the first rows that differ.
    """
    for name, answer in expected.items():
        view = f"{CATALOG}.{NAMESPACE}.{name}"
        stored = _multiset(read_rows(catalog, readable(catalog, view)).rows())
        if stored != answer:
            raise CheckFailedError(f"view {view} differs from DuckDB's answer: {_difference(stored, answer)}")
    return {name: len(answer) for name, answer in expected.items()}


def check(catalog: MaterializedViewCatalog, months: range, *, views: Iterable[str] = tuple(CHECKS)) -> dict[str, int]:
    """Recompute views with DuckDB, and :func:`compare` all rows."""
    return compare(catalog, answers(months, views))


def _multiset(found: Iterable[Iterable[Any]]) -> Answer:
    return sorted(tuple(_canonical(value) for value in row) for row in found)


def _canonical(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _difference(stored: Answer, expected: Answer) -> str:
    extra, missing = sorted(set(stored) - set(expected))[:3], sorted(set(expected) - set(stored))[:3]
    return f"{len(stored)} rows against {len(expected)}; only stored: {extra}; only expected: {missing}"
