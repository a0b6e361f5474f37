# SPDX-License-Identifier: Apache-2.0
"""The current rows of a view, without Spark."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import airflow_mv
from airflow_mv.common.status import status
from airflow_mv.core.refresh import plan_refresh
from airflow_mv.errors import ConfigurationError, NotFoundError, StaleViewError
from airflow_mv.extras.explain.explain import explain
from airflow_mv.extras.read import read_rows, readable
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
    rows = read_rows(home.catalog, readable(home.catalog, VIEW)).to_arrow().to_pylist()
    assert sorted(rows, key=str) == sorted(home.read(), key=str)
    home.append()
    with pytest.raises(StaleViewError, match="so its rows are not returned"):
        readable(home.catalog, VIEW)
    found = readable(home.catalog, VIEW, refresh=home.refresh)
    assert read_rows(home.catalog, found).to_arrow().num_rows == len(home.read())


def test_rows_are_read_when_a_library_asks_for_them(home: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as they are asked for, and not before: until then a lost data file is no fault."""
    home.view()
    home.refresh()
    rows = airflow_mv.scan("lake.sales.daily", catalog=home.catalog)
    refresh_id = home.catalog.load_storage(home.catalog.load(VIEW)).state.current_refresh_id

    assert repr(rows) == f"<rows of lake.sales.daily: fresh, refresh {refresh_id[:8]}>"
    for _ in range(2):
        assert sorted(rows.to_arrow().to_pylist(), key=str) == home.read()
        assert sorted(rows.to_pandas().to_dict("records"), key=str) == home.read()
        assert sum(batch.num_rows for batch in rows.to_arrow_batch_reader()) == len(home.read())
    database = rows.to_duckdb()
    assert rows.to_duckdb("again", database) is database
    (counted,) = database.sql("SELECT count(*) FROM daily JOIN again USING (region)").fetchall()
    assert counted == (len(home.read()),)
    assert airflow_mv.scan("lake.sales.daily", catalog=home.catalog, limit=1).to_arrow().num_rows == 1

    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ConfigurationError, match=r"^polars is not installed: pip install polars$"):
        rows.to_polars()
    unread = airflow_mv.scan("lake.sales.daily", catalog=home.catalog)
    folder = Path(urlsplit(home.storage().location).path).parents[1]
    for file in folder.rglob("*.parquet"):
        file.unlink()
    for read in (rows.to_arrow, unread.to_pandas, lambda: list(unread.to_arrow_batch_reader())):
        with pytest.raises(NotFoundError, match=r"a data file of refresh .* is missing"):
            read()


def test_what_python_shows_of_a_view_is_one_line(home: Lake) -> None:
    """The view, the state and short ids; not the whole metadata."""
    view = home.catalog.load(home.view())
    assert repr(view) == "<view lake.sales.daily: version 1>"
    assert repr(status(home.catalog, VIEW)) == "<status of lake.sales.daily: never-refreshed, refresh none>"
    plan = plan_refresh(home.catalog, VIEW)
    short = plan.refresh_id[:8]
    assert re.fullmatch(rf"<plan of lake\.sales\.daily: full, \d statements?, refresh {short}>", repr(plan))
    done = repr(home.refresh())
    assert re.fullmatch(
        rf"<refresh of lake\.sales\.daily: refreshed, full, 2 rows written, \d+\.\d s, refresh {short}>", done
    )
    assert repr(status(home.catalog, VIEW)) == f"<status of lake.sales.daily: fresh, refresh {short}>"
    explained = repr(explain(home.catalog, VIEW))
    assert re.fullmatch(
        r"<explanation of lake\.sales\.daily: \d+ kinds of changes, \d+ of .* full refresh.*>", explained
    )
