# SPDX-License-Identifier: Apache-2.0
"""What a refresh leaves, and how it comes into the registry."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from airflow_mv.actions import add_to_registry, refresh_views
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.publish import Requester
from airflow_mv.errors import CatalogUnavailableError
from airflow_mv.extras.describe import history
from airflow_mv.extras.registry.homes import COMPONENT_PROPERTY
from airflow_mv.extras.registry.model import REFRESHES
from airflow_mv.extras.registry.registry import MAX_BYTES, REFUSED, Registry, require_registry
from airflow_mv.extras.registry.settings import PLACE, SYNC_AFTER
from airflow_mv.extras.registry.sync import rebuild, sync
from tests.builders import ORDERS, Lake, lake
from tests.core.refresh.intervals.support import add_days
from tests.extras.registry.support import refresh_row

ADA = Requester("nightly", "manual__1", "refresh", "ada")


def test_a_sync_brings_all_refreshes_into_the_table_by_one_commit(home: Lake, registry: Registry) -> None:
    """Without time travel the view itself records only the last one."""
    home.view()
    first = home.refresh(requester=ADA)
    home.append()
    second = home.refresh(requester=Requester(user="lee", host="edge"))
    home.refresh()  # it is fresh: nothing is published
    assert registry.refreshes.rows() == []
    done = sync(home.catalog)
    assert (done.refreshes, done.views, done.faults) == (2, 1, {})
    rows = {row.refresh_id: row for row in registry.refreshes.rows()}
    assert rows.keys() == {first.refresh_id, second.refresh_id}
    row = rows[first.refresh_id or ""]
    assert (row.dag_id, row.run_id, row.task_id, row.requested_by) == ("nightly", "manual__1", "refresh", "ada")
    assert (row.view, row.mode, row.rows_written, row.outcome) == ("lake.sales.daily", "full", 2, "refreshed")
    other = rows[second.refresh_id or ""]
    assert (other.dag_id, other.requested_by, other.host) == (None, "lee", "edge")
    assert dict(row.base_snapshots) == dict(first.snapshots)
    assert row.seconds == pytest.approx(first.seconds, abs=0.001)
    table = registry._home.open(REFRESHES)
    assert table is not None
    assert len(table.metadata.snapshots) == 1
    assert sync(home.catalog).refreshes == 0


def test_a_view_is_registered_as_it_was_at_the_last_look_and_is_removed_after_its_drop(
    home: Lake, registry: Registry
) -> None:
    from airflow_mv.extras.maintenance.drop import drop

    view = home.view(properties={"owner": "finance", "airflow-mv.max-staleness": "2 h"})
    home.view("lost")
    sync(home.catalog)
    assert {row.view: row.state for row in registry.views.rows()} == {
        "lake.sales.daily": "never-refreshed",
        "lake.sales.lost": "never-refreshed",
    }
    result = home.refresh()
    home.append()
    drop(home.catalog, home.catalog.identify("sales.lost"))
    assert sync(home.catalog).removed_views == 1
    (row,) = registry.views.rows()
    assert (row.view, row.state, row.refresh_id) == (str(view), "stale", result.refresh_id)
    assert (row.owner, row.max_staleness_seconds, row.base_tables) == ("finance", 7200.0, ("lake.sales.orders",))
    assert row.lag_seconds is not None


def test_a_view_that_is_a_table_without_any_file_keeps_its_row(home: Lake, registry: Registry) -> None:
    """Nothing tells that it is a view, so it is not known that it was dropped."""
    home.view(layout="table")
    home.refresh()
    sync(home.catalog)
    shutil.rmtree(urlsplit(home.catalog.load("sales.daily").metadata.location).path)
    catalog = MaterializedViewCatalog(home.iceberg)
    done = sync(catalog)
    assert (done.removed_views, [*done.faults]) == (0, ["lake.sales.daily"])
    assert [row.view for row in registry.views.rows()] == ["lake.sales.daily"]
    home.iceberg.drop_table("sales.daily")
    assert sync(MaterializedViewCatalog(home.iceberg)).removed_views == 1


def test_a_catalog_of_base_tables_that_does_not_respond_is_a_fault_of_their_views(
    home: Lake, registry: Registry, tmp_path: Path
) -> None:
    """The other views are registered. Only when the views' own catalog does not respond, the sync fails."""
    home.views_of_another_catalog(tmp_path, 4)
    home.view("near")

    down = MaterializedViewCatalog(home.iceberg)
    down.openers = {"west": fail("catalog 'west' does not respond")}
    done = sync(down)
    assert done.faults == {f"lake.sales.far{number}": "catalog 'west' does not respond" for number in range(4)}
    states = {row.view.rpartition(".")[2]: row.state for row in registry.views.rows()}
    assert states == {"near": "never-refreshed", **{f"far{number}": "unknown" for number in range(4)}}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MaterializedViewCatalog, "load", fail("the database is down"))
        with pytest.raises(CatalogUnavailableError, match="the database is down"):
            sync(down)


def fail(message: str) -> Callable[..., Any]:
    """A function that fails as an unavailable catalog does."""

    def failing(*_: object, **__: object) -> None:
        raise CatalogUnavailableError(message)

    return failing


def test_a_rebuild_from_the_views_agrees_with_what_the_refreshes_left(home: Lake, registry: Registry) -> None:
    """Only what the process that ran a refresh measured is lost, and only if the rows are deleted first.

    The first view has its past refreshes in its log, the second one in its records.
    """
    home.view()
    home.view("north", "SELECT id, amount FROM lake.sales.orders WHERE region = 'north'", time_travel=True)
    for _ in range(3):
        home.append()
        home.refresh(requester=ADA)
    home.refresh("sales.north")
    sync(home.catalog)
    left, views = registry.refreshes.rows(), registry.views.rows()
    assert len(left) == 4
    assert rebuild(home.catalog).refreshes == 0
    assert registry.refreshes.rows() == left
    assert rebuild(home.catalog, purge=True).refreshes == 4
    bare = dict.fromkeys(("outcome", "full_seconds", "full_bytes", "lag_seconds", "application_id", "seconds"))
    by_id = {row.refresh_id: row.model_copy(update=bare) for row in left}
    rebuilt = registry.refreshes.rows()
    assert all(row.seconds is not None for row in rebuilt)
    assert {row.refresh_id: row.model_copy(update={"seconds": None}) for row in rebuilt} == by_id
    again = [row.model_copy(update={"checked_at": None, "lag_seconds": None}) for row in registry.views.rows()]
    assert again == [row.model_copy(update={"checked_at": None, "lag_seconds": None}) for row in views]


def test_the_row_of_an_interval_has_the_snapshots_that_its_refresh_read(
    home: Lake, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if another interval was published before the row was written: then only the log has its record."""
    days = add_days(home.iceberg, home.catalog, "pointed")
    days.action = refresh_views
    heads = [days.sell((1, 10), (2, 20))]
    days.refresh()
    others = [2]

    def late(*arguments: Any, **named: Any) -> None:
        if others:
            heads.append(days.sell((1, 1), (2, 2)))
            days.refresh_days(others.pop(), 3)
        add_to_registry(*arguments, **named)

    monkeypatch.setattr("airflow_mv.actions.add_to_registry", late)
    heads.append(days.sell((1, 1), (2, 2)))
    days.refresh_days(1, 2)
    sync(home.catalog)

    def found() -> dict[str | None, dict[str, int]]:
        return {
            row.interval_start and row.interval_start.date().isoformat(): dict(row.base_snapshots)
            for row in registry.refreshes.rows()
        }

    whole, first, second = ({"lake.sales.sold": head} for head in heads)
    assert found() == {None: whole, "2024-06-01": first, "2024-06-02": second}
    assert history(home.catalog, "sales.daily")[-1]["base_tables"][0]["snapshot_reference"] == str(heads[2])
    days.refresh_days(3, 4)
    sync(home.catalog)
    assert rebuild(home.catalog).refreshes == 0
    assert rebuild(home.catalog, purge=True).refreshes == 4
    assert found() == {None: whole, "2024-06-01": first, "2024-06-02": second, "2024-06-03": second}


def test_a_sync_that_died_after_its_commit_is_repeated_without_a_second_row(home: Lake, registry: Registry) -> None:
    home.view()
    home.refresh(requester=ADA)
    left = registry.staged().rows
    sync(home.catalog)
    for row in left.values():
        registry.stage(row.model_copy(update={"outcome": "already-committed", "dag_id": None}))
        registry.stage(row)
    sync(home.catalog)
    assert registry.refreshes.rows() == list(left.values())
    for row in left.values():
        registry.stage(row.model_copy(update={"outcome": "already-committed", "dag_id": None}))
    assert sync(home.catalog).refreshes == 0
    assert registry.refreshes.rows() == list(left.values())


def test_a_file_that_is_no_row_is_reported_and_the_others_come_in(home: Lake, registry: Registry) -> None:
    good = refresh_row(1)
    registry.stage(good)
    (location,) = registry.staged().rows
    folder = location.rpartition("/")[0]
    document = json.loads(good.model_dump_json())
    hostile = {
        "half": b'{"catalog": "la',
        "month": json.dumps({**document, "month": "2019-01"}).encode(),
        "number": json.dumps({**document, "rows_written": 2**63}).encode(),
        "deep": b"[" * 100_000,
    }
    for name, data in hostile.items():
        home.catalog.files.write(f"{folder}/{name}.json", data)
    done = sync(home.catalog)
    assert done.refreshes == 1
    assert sorted(location.rpartition("/")[2] for location in done.faults) == sorted(f"{name}.json" for name in hostile)
    assert registry.refreshes.rows() == [good]


def test_files_that_are_no_rows_do_not_stop_the_registry(
    home: Lake, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than rows that one sync brings in, older than each row. They are read once."""
    monkeypatch.setattr("airflow_mv.extras.registry.registry.MAX_FILES", 3)
    registry.stage(refresh_row(0))
    (location,) = registry.staged().rows
    folder = Path(urlsplit(location).path).parent
    old = time.time() - 2 * 3600
    for number in range(5):
        (folder / f"{number}.json").write_text("{")
        os.utime(folder / f"{number}.json", (old, old))
    (folder / "long.json").write_bytes(b" " * (MAX_BYTES + 1))
    os.utime(folder / "long.json", (old, old))
    (folder / "young.json").write_text('{"catalog": ')
    done = sync(home.catalog)
    assert done.refreshes == 1
    bad = {f"{number}.json" for number in range(5)}
    assert {name.rpartition("/")[2] for name in done.faults} == {"long.json", "young.json", *bad}
    assert {path.name for path in (folder.parent / REFUSED).iterdir()} == bad
    for number in range(1, 3):
        registry.stage(refresh_row(number))
    done = sync(home.catalog)
    assert done.refreshes == 2
    assert {name.rpartition("/")[2] for name in done.faults} == {"long.json", "young.json"}
    assert len(registry.refreshes.rows()) == 3


def test_after_enough_refreshes_one_of_them_brings_all_in(sqlite_uri: str, warehouse: Path) -> None:
    with lake(sqlite_uri, warehouse, layout="pointed", **{PLACE: "airflow_mv", SYNC_AFTER: "2"}) as home:
        home.action = refresh_views
        home.table()
        home.view()
        home.refresh()
        registry = require_registry(home.catalog)
        assert len(registry.refreshes.rows()) == 0
        home.append()
        home.refresh()
        assert len(registry.refreshes.rows()) == 2
        assert registry.count_staged() == 0


def test_a_refresh_succeeds_and_warns_if_the_registry_cannot_be_written(
    sqlite_uri: str, warehouse: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A table of someone else with the name of a component is not touched."""
    with lake(sqlite_uri, warehouse, layout="pointed", **{PLACE: "sales"}) as home:
        home.action = refresh_views
        home.table()
        home.iceberg.create_table("sales.refreshes", schema=ORDERS)
        home.view()
        with caplog.at_level(logging.WARNING, "airflow_mv"):
            result = home.refresh()
        assert result.outcome == "refreshed"
        (warning,) = [record.getMessage() for record in caplog.records if "registry" in record.getMessage()]
        assert "lake.sales.daily was refreshed, but its refresh" in warning
        assert COMPONENT_PROPERTY in warning
        assert "`airflow-mv registry rebuild --catalog lake` adds" in warning
        assert home.iceberg.load_table("sales.refreshes").metadata.snapshots == []


def test_a_catalog_without_the_setting_has_no_registry(sqlite_uri: str, warehouse: Path) -> None:
    with lake(sqlite_uri, warehouse, layout="pointed") as home:
        home.action = refresh_views
        home.table()
        home.view()
        home.refresh()
        assert home.iceberg.list_namespaces() == [("sales",)]
