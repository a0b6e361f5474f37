# SPDX-License-Identifier: Apache-2.0
"""A view gets another name: rows, records, history and uuid stay, and nobody sees a state in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_mv.common.status import status
from airflow_mv.core.freshness.state import State
from airflow_mv.core.publish import publish
from airflow_mv.errors import AlreadyExistsError, CommitStateUnknownError, UnsupportedError, ViewNotFoundError
from airflow_mv.extras.convert import rename
from airflow_mv.extras.describe import history
from airflow_mv.extras.history.rollback import rollback
from airflow_mv.extras.maintenance.orphans import maintain
from tests.builders import LAYOUTS, Lake, lake
from tests.contract.support import EAST, NORTH, SOUTH, VIEW, staged, where
from tests.extras.maintenance.support import files, refreshed
from tests.faults import FAULTS, Clock, FaultyCatalog, after, lose_answer_before

NEW = "lake.sales.by_region"


@pytest.fixture(params=["sqlite_uri", pytest.param("postgres_uri", marks=[pytest.mark.postgres, pytest.mark.slow])])
def home(request: pytest.FixtureRequest, warehouse: Path) -> Iterator[Lake]:
    with lake(str(request.getfixturevalue(request.param)), warehouse) as found:
        found.table()
        yield found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_everything_but_the_name_stays_and_everything_works_afterwards(home: Lake, layout: str) -> None:
    home.layout = layout
    first = refreshed(home, 1, time_travel=True, properties={"owner": "sales"})[0]
    home.append()
    home.refresh()
    view, records = home.catalog.load(VIEW).metadata, history(home.catalog, VIEW)
    after = rename(home.catalog, VIEW, NEW)
    assert (after.metadata.view_uuid, after.metadata.properties["owner"]) == (view.view_uuid, "sales")
    assert after.metadata.location == view.location
    with pytest.raises(ViewNotFoundError):
        home.catalog.load(VIEW)
    assert [item.name for item in home.catalog.list("sales")] == ["by_region"]
    assert history(home.catalog, NEW) == records
    assert (home.read(NEW), status(home.catalog, NEW).state) == ([EAST, NORTH, SOUTH], State.FRESH)
    assert rename(home.catalog, NEW, NEW).metadata_location == after.metadata_location
    home.view()  # its name is free, and so is that of its storage table
    rollback(home.catalog, NEW, first)
    assert home.read(NEW) == [NORTH, SOUTH]
    home.append()
    assert (home.refresh(NEW).outcome, home.refresh(VIEW).outcome) == ("refreshed", "refreshed")
    assert home.read(NEW) == home.read(VIEW)
    maintain(home.catalog, NEW)
    assert rename(home.catalog, NEW, "lake.sales.third").metadata.view_uuid == view.view_uuid


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_view_without_rows_and_one_with_a_chosen_storage_table_are_renamed(home: Lake, layout: str) -> None:
    home.layout = layout
    home.view(**({"storage_name": "rows_of_it"} if layout == "registered" else {}))
    rename(home.catalog, VIEW, NEW)
    assert home.refresh(NEW).outcome == "refreshed"
    assert home.read(NEW) == [NORTH, SOUTH]
    if layout == "registered":
        assert str(home.catalog.load(NEW).storage_table) == "lake.sales.rows_of_it"


@pytest.mark.parametrize("way", range(len(FAULTS)))
def test_i05_a_rename_with_a_lost_answer_is_made_once(home: Lake, clock: Clock, way: int) -> None:
    home.layout = LAYOUTS[way % len(LAYOUTS)]
    refreshed(home, 1)
    uuid = home.catalog.load(VIEW).metadata.view_uuid
    catalog = FaultyCatalog(home.iceberg, *[*FAULTS.values()][way])
    assert rename(catalog, VIEW, NEW, effects=clock.effects).metadata.view_uuid == uuid
    catalog.arrive()
    assert (catalog.schedule, home.read(NEW)) == ([], [NORTH, SOUTH])


def test_a_rename_without_an_answer_is_settled_by_the_next_one(home: Lake, clock: Clock, warehouse: Path) -> None:
    refreshed(home, 1)
    found: set[str] = set()
    lost = lose_answer_before(lambda: found.update(files(warehouse)))
    with pytest.raises(CommitStateUnknownError, match="nothing was deleted"):
        rename(FaultyCatalog(home.iceberg, *[lost] * 8), VIEW, NEW, effects=clock.effects)
    assert found <= files(warehouse)
    rename(home.catalog, VIEW, NEW)
    assert home.read(NEW) == [NORTH, SOUTH]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_refresh_beside_a_rename_is_not_lost(home: Lake, clock: Clock, layout: str) -> None:
    """One that lands first is kept; one that was staged before does not land."""
    home.layout = layout
    refreshed(home, 1)
    home.append()
    rename(FaultyCatalog(home.iceberg, after(lambda: home.refresh())), VIEW, NEW, effects=clock.effects)
    assert home.read(NEW) == [EAST, NORTH, SOUTH]
    home.append(name="orders")
    rename(home.catalog, NEW, VIEW)
    plan, outcome = staged(home)
    rename(home.catalog, VIEW, NEW)
    with pytest.raises(ViewNotFoundError):
        publish(home.catalog, plan, where(outcome), effects=clock.effects)
    assert home.refresh(NEW).outcome == "refreshed"


def test_what_cannot_be_renamed_is_refused(home: Lake, clock: Clock) -> None:
    refreshed(home, 1)
    home.table("by_region")
    with pytest.raises(AlreadyExistsError, match="taken"):
        rename(home.catalog, VIEW, NEW, effects=clock.effects)
    assert home.read() == [NORTH, SOUTH]


def test_a_server_that_cannot_rename_both_at_once_is_left_alone(rest_uri: str, warehouse: Path) -> None:
    with lake(rest_uri, warehouse, layout="registered") as home:
        home.table()
        home.view()
        with pytest.raises(UnsupportedError, match="cannot rename a view and its storage table in one step"):
            rename(home.catalog, VIEW, NEW)
