# SPDX-License-Identifier: Apache-2.0
"""Base columns that get another type: the query's types differ from those of the view."""

from __future__ import annotations

import pyarrow
import pytest

from airflow_mv.errors import InvalidQueryError
from airflow_mv.extras.read import read_rows, readable
from tests.engine.support import Lake, multiset, recomputed

PROMOTED = {
    "a": ("ALTER COLUMN a TYPE bigint", "int to bigint"),
    "f": ("ALTER COLUMN f TYPE double", "float to double"),
    "d": ("ALTER COLUMN d TYPE decimal(12, 2)", r"decimal\(5,2\) to decimal\(12,2\)"),
    "s": ("ADD COLUMN s.y int", r"struct<x:int> to struct<x:int,y:int>"),
    "t": ("ADD COLUMN t string", "int to string"),
}


def rows(lake: Lake, view: str) -> pyarrow.Table:
    """The stored rows, in either layout."""
    return read_rows(lake.catalog, readable(lake.catalog, lake(view))).to_arrow()


#: Views take turns, so that each way has a column that the other does not.
WAYS = (
    {"refresh_strategy": "full", "layout": "pointed"},
    {"refresh_strategy": "incremental", "layout": "registered"},
)


@pytest.mark.parametrize("first", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_column_of_another_type_is_an_error_that_is_not_retried_and_replacing_the_view_helps(
    lake: Lake, first: int
) -> None:
    """A value is never converted, which would lose digits."""
    ways = {column: WAYS[(number + first) % 2] for number, column in enumerate(PROMOTED)}
    lake.run(
        "CREATE TABLE {ns}.b (k int, a int, f float, d decimal(5, 2), s struct<x: int>, t int) USING iceberg",
        "INSERT INTO {ns}.b VALUES (1, 1, 0.5, 1.00, struct(1), 1)",
    )
    for column in PROMOTED:
        lake.create(column, f"SELECT k, {column} FROM {{ns}}.b", **ways[column])
        lake.refresh(column)
    lake.create("kept", "SELECT k, count(a) AS n FROM {ns}.b GROUP BY k", **WAYS[1 - first])
    lake.refresh("kept")
    lake.run("ALTER TABLE {ns}.b DROP COLUMN t", *(f"ALTER TABLE {{ns}}.b {change}" for change, _ in PROMOTED.values()))
    lake.run("INSERT INTO {ns}.b SELECT 2, 5000000000, 0.1D, 1234567.89, struct(1, 2), 'x'")
    for column, (_, what) in PROMOTED.items():
        with pytest.raises(
            InvalidQueryError, match=rf"type of column {column} changed from {what}: replace the view"
        ) as error:
            lake.refresh(column)
        assert not error.value.retryable
        sql = f"SELECT k, {column} FROM {{ns}}.b"
        replaced = lake.create(column, sql, replace=True, **ways[column])
        assert replaced.metadata.current_version_id == 2
        lake.refresh(column)
        assert multiset(rows(lake, column)) == recomputed(lake, column, sql.replace("{ns}.", ""))
    lake.refresh("kept")
    assert sorted(map(tuple, (row.values() for row in rows(lake, "kept").to_pylist()))) == [(1, 1), (2, 1)]


def test_the_same_query_with_the_same_types_keeps_its_version(lake: Lake) -> None:
    lake.table("b", "k INT, a INT", "(1, 1)")
    lake.create("same", "SELECT k, a FROM {ns}.b")
    lake.refresh("same")
    again = lake.create("same", "SELECT k, a FROM {ns}.b", replace=True)
    assert (again.metadata.current_version_id, lake.rows("same")) == (1, [(1, 1)])
