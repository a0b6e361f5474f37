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
from airflow_mv.errors import ConfigurationError, NotFoundError, SnapshotNotFoundError, StaleViewError
from airflow_mv.extras.explain.explain import explain
from airflow_mv.extras.read import Rows, read_rows, readable
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


@pytest.fixture
def table(home: Lake) -> str:
    """The folder of a table that is also without a catalog, and one snapshot that its hint does not know."""
    home.append((4, "east", 1))
    loaded = home.load()
    folder = Path(urlsplit(loaded.location()).path)
    (folder / "metadata" / "v1.metadata.json").write_bytes(Path(urlsplit(loaded.metadata_location).path).read_bytes())
    (folder / "metadata" / "version-hint.text").write_text("1")
    home.append((5, "east", 1))
    return str(folder)


def numbers(rows: Rows) -> list[int]:
    return sorted(row["id"] for row in rows.to_arrow().to_pylist())


def test_a_table_is_read_by_its_folder_or_metadata_file_without_a_catalog(home: Lake, table: str) -> None:
    """In both spellings; a metadata file is read as it is, and the folder as Iceberg finds the file that is current."""
    newest = home.load().metadata_location
    for place in (table, f"{table}/", f"file://{table}", f"iceberg.`{table}`", f"{table}/metadata/v1.metadata.json"):
        assert numbers(airflow_mv.scan(place)) == [1, 2, 3, 4]
    assert numbers(airflow_mv.scan(newest)) == [1, 2, 3, 4, 5]
    assert airflow_mv.scan(table, limit=1).to_arrow().num_rows == 1
    assert airflow_mv.scan(table).to_duckdb().sql("SELECT count(*) FROM orders").fetchall() == [(4,)]


def test_an_earlier_snapshot_of_a_table_is_chosen_by_the_options_of_spark_s_reader(home: Lake, table: str) -> None:
    first, second, *_ = home.load().metadata.snapshots
    for options in ({"snapshot-id": first.snapshot_id}, {"as-of-timestamp": second.timestamp_ms - 1}):
        assert numbers(airflow_mv.scan(table, options=options)) == [1, 2, 3]
    assert numbers(airflow_mv.scan(table, options={"as-of-timestamp": str(second.timestamp_ms)})) == [1, 2, 3, 4]
    with pytest.raises(SnapshotNotFoundError, match="no snapshot as of"):
        airflow_mv.scan(table, options={"as-of-timestamp": 5})
    with pytest.raises(NotFoundError, match="has no snapshot 7"):
        airflow_mv.scan(table, snapshot_id=7)
    with pytest.raises(NotFoundError, match="no Iceberg table at"):
        airflow_mv.scan(f"{table}/nowhere")
    with pytest.raises(ConfigurationError, match="refresh_id chooses rows of a view"):
        airflow_mv.scan(table, refresh_id="x")


def test_the_same_options_choose_earlier_rows_of_a_view(home: Lake) -> None:
    """The rows have their own state: those of an earlier refresh are not fresh because the view is."""
    home.view(time_travel=True)
    home.refresh()
    before = home.read()
    first = home.storage().table
    home.append((4, "east", 1))
    home.refresh()
    name, catalog = "lake.sales.daily", home.catalog
    for options in ({"snapshot-id": first.head or 0}, {"as-of-timestamp": first.last_updated_ms}):
        rows = airflow_mv.scan(name, options=options, catalog=catalog)
        assert sorted(rows.to_arrow().to_pylist(), key=str) == sorted(before, key=str)
        assert repr(rows).startswith(f"<rows of {name}: stale")
    assert repr(airflow_mv.scan(name, catalog=catalog)).startswith(f"<rows of {name}: fresh")
    with pytest.raises(ConfigurationError, match=r"options.*'snapshot_id'.*snapshot-id"):
        airflow_mv.scan(name, options={"snapshot_id": 1}, catalog=catalog)
    with pytest.raises(ConfigurationError, match="is not a whole number"):
        airflow_mv.scan(name, options={"as-of-timestamp": "now"}, catalog=catalog)
    with pytest.raises(ConfigurationError, match="exclude each other"):
        airflow_mv.scan(name, snapshot_id=1, options={"snapshot-id": 1}, catalog=catalog)
