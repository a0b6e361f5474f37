# SPDX-License-Identifier: Apache-2.0
"""The timeline of a table or view is what its metadata says, with the refreshes that read or wrote each snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_mv.errors import NotFoundError, NotMaterializedError
from airflow_mv.extras.history.timeline import timeline
from tests.builders import LAYOUTS, Lake, lake
from tests.cli.support import call
from tests.engine.support import configure

ORDERS = "lake.sales.orders"


@pytest.fixture(params=LAYOUTS)
def home(request: pytest.FixtureRequest, sqlite_uri: str, warehouse: Path) -> Iterator[Lake]:
    with lake(sqlite_uri, warehouse, layout=request.param) as found:
        found.table()
        found.view()
        yield found


def test_each_snapshot_has_the_refreshes_that_read_or_wrote_it(home: Lake) -> None:
    first, refreshes = home.head(), [home.refresh().refresh_id]
    second = home.append()
    third = home.append()
    refreshes.append(home.refresh().refresh_id)
    base = timeline(home.catalog, ORDERS)
    assert [
        (item["snapshot_id"], [found["refresh_id"] for found in item["refreshes"]]) for item in base["snapshots"]
    ] == [
        (str(first), refreshes[:1]),
        (str(second), []),
        (str(third), refreshes[1:]),
    ]
    assert [item["current"] for item in base["snapshots"]] == [False, False, True]
    view = timeline(home.catalog, "lake.sales.daily")
    written = [found["refresh_id"] for item in view["snapshots"] for found in item["refreshes"]]
    assert written == refreshes
    assert view["snapshots"][-1]["current"]
    assert view["kind"] == "materialized view"


@pytest.mark.parametrize("home", ["pointed"], indirect=True)
def test_manifests_and_counts_are_those_that_pyiceberg_reads(home: Lake) -> None:
    home.append()
    table = home.load()
    table.delete("region = 'north'")
    found = timeline(home.catalog, ORDERS)["snapshots"]
    inspected = home.load().inspect.snapshots().to_pylist()
    assert [(item["snapshot_id"], item["operation"], item["manifest_list"]) for item in found] == [
        (str(item["snapshot_id"]), item["operation"], item["manifest_list"]) for item in inspected
    ]
    assert {item["location"]: (item["added_files"], item["deleted_files"]) for item in found[-1]["manifests"]} == {
        item["path"]: (item["added_data_files_count"], item["deleted_data_files_count"])
        for item in home.load().inspect.manifests().to_pylist()
    }
    assert [item["added_rows"] for item in found[:2]] == [3, 1]
    assert [item["snapshot_id"] for item in timeline(home.catalog, ORDERS, limit=1)["snapshots"]] == [str(home.head())]


@pytest.mark.parametrize("home", ["pointed"], indirect=True)
def test_a_table_without_a_snapshot_a_plain_view_and_no_table(home: Lake) -> None:
    home.table("empty", rows=None)
    home.plain_view("plain", "SELECT * FROM lake.sales.orders")
    assert timeline(home.catalog, "lake.sales.empty")["snapshots"] == []
    with pytest.raises(NotMaterializedError):
        timeline(home.catalog, "lake.sales.plain")
    with pytest.raises(NotFoundError, match=r"there is no table or view lake\.sales\.nope"):
        timeline(home.catalog, "lake.sales.nope")


def test_the_command_prints_a_line_for_each_snapshot(tmp_path: Path) -> None:
    configure(tmp_path, "lake")
    with lake(f"sqlite:///{tmp_path}/lake.db", tmp_path / "lake") as home:
        home.table()
        home.view()
        refresh = home.refresh().refresh_id
        snapshot = home.head()
        shown = call("timeline", ORDERS, "--files").stdout
        assert (
            f"  {snapshot}  append  +1 file, +3 rows  [current, main]\n    refresh {refresh} of lake.sales.daily"
            in shown
        )
        assert "      data 1 added, 0 existing, 0 deleted  file:" in shown
        assert (
            call("timeline", "lake.sales.daily", "--json").json["snapshots"][-1]["refreshes"][0]["refresh_id"]
            == refresh
        )
