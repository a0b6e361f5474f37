# SPDX-License-Identifier: Apache-2.0
"""The current rows of a view, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_mv.errors import StaleViewError
from airflow_mv.extras.read import read_arrow, readable
from tests.builders import LAYOUTS, Lake, lake

VIEW = "sales.daily"


@pytest.fixture(params=LAYOUTS)
def home(sqlite_uri: str, warehouse: Path, request: pytest.FixtureRequest) -> Iterator[Lake]:
    with lake(sqlite_uri, warehouse, layout=request.param) as found:
        found.table()
        yield found


def test_the_current_rows_are_read_while_they_are_fresh(home: Lake) -> None:
    home.view()
    with pytest.raises(StaleViewError, match="is never-refreshed"):
        readable(home.catalog, VIEW)
    home.refresh()
    rows = read_arrow(home.catalog, readable(home.catalog, VIEW)).batches.read_all().to_pylist()
    assert sorted(rows, key=str) == sorted(home.read(), key=str)
    home.append()
    with pytest.raises(StaleViewError, match="so its rows are not returned"):
        readable(home.catalog, VIEW)
    found = readable(home.catalog, VIEW, refresh=home.refresh)
    assert read_arrow(home.catalog, found).batches.read_all().num_rows == len(home.read())
