# SPDX-License-Identifier: Apache-2.0
"""A view moves between layouts: rows, records and history stay, and nobody sees a state in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import permutations
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_mv.actions import create_view as create
from airflow_mv.common.status import status
from airflow_mv.core.catalog import stored_layout
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.freshness.state import State
from airflow_mv.core.publish import publish
from airflow_mv.core.refresh.run import refresh
from airflow_mv.errors import (
    AlreadyExistsError,
    CommitStateUnknownError,
    ConfigurationError,
    UnsupportedError,
)
from airflow_mv.extras.adopt import adopt
from airflow_mv.extras.convert import convert, stored_elsewhere
from airflow_mv.extras.describe import history
from airflow_mv.extras.history.rollback import rollback
from airflow_mv.extras.history.time_travel import TimeTravel
from airflow_mv.extras.maintenance.drop import purge
from airflow_mv.extras.maintenance.orphans import expire, maintain
from airflow_mv.extras.read import read_rows, readable
from tests.builders import LAYOUTS, QUERY, Lake, lake, rewritten
from tests.contract.support import EAST, NORTH, SOUTH, VIEW, ids, staged, where
from tests.extras.maintenance.support import files, refreshed
from tests.faults import FAULTS, Clock, FaultyCatalog, after, lose_answer_before

WAYS = [*permutations(LAYOUTS, 2)]
#: Each layout once as the first and once as the second one, for tests that convert a view there and back.
AND_BACK = [*zip(LAYOUTS, LAYOUTS[1:] + LAYOUTS[:1], strict=True)]


@pytest.fixture(params=["sqlite_uri", pytest.param("postgres_uri", marks=[pytest.mark.postgres, pytest.mark.slow])])
def home(request: pytest.FixtureRequest, warehouse: Path) -> Iterator[Lake]:
    with lake(str(request.getfixturevalue(request.param)), warehouse) as found:
        found.table()
        yield found


def layout_of(home: Lake) -> str:
    return stored_layout(home.catalog.load(VIEW)).layout


@pytest.mark.parametrize(("before", "layout"), WAYS)
def test_rows_records_and_history_stay_and_everything_works_afterwards(home: Lake, before: str, layout: str) -> None:
    home.layout = before
    first = refreshed(home, 1, time_travel=True, properties={"owner": "sales"})[0]
    between = datetime.now(UTC)
    home.append()
    home.refresh()
    home.view("top", "SELECT sum(amount) AS total FROM lake.sales.daily")
    refresh(home.catalog, ["sales.top"], stager=home.stager)
    view, records, rows = home.catalog.load(VIEW).metadata, history(home.catalog, VIEW), home.read()
    uuid = home.storage().table.table_uuid

    assert convert(home.catalog, VIEW, layout).to_dict() == {
        "view": "lake.sales.daily", "layout": layout, "before": before,
    }  # fmt: skip
    now = home.catalog.load(VIEW).metadata
    assert layout_of(home) == layout
    assert (now.view_uuid, now.properties["owner"]) == (view.view_uuid, "sales")
    assert stored_elsewhere(now, None).versions == stored_elsewhere(view, None).versions
    beside = {"namespace": ["sales"], "name": "daily__storage"} if layout == "registered" else None
    assert now.current_version.stored_in == beside
    assert (history(home.catalog, VIEW), home.read(), home.storage().table.table_uuid) == (records, rows, uuid)
    assert [item.name for item in home.catalog.list("sales")] == ["daily", "top"]
    assert (status(home.catalog, VIEW).state, status(home.catalog, "sales.top").state) == (State.FRESH, State.FRESH)
    assert sorted(read_rows(home.catalog, readable(home.catalog, VIEW, TimeTravel(as_of=between))).rows())[0] == [
        "north",
        2,
        15,
    ]

    rollback(home.catalog, VIEW, first)
    assert home.read() == [NORTH, SOUTH]
    home.append()
    assert home.refresh().outcome == "refreshed"
    assert home.read() == [{**EAST, "orders": 2, "amount": 14}, NORTH, SOUTH]
    create(home.catalog, VIEW, Definition("SELECT id FROM lake.sales.orders"), stager=home.stager, replace=True)
    home.refresh()
    assert len(home.read()) == 5


def test_a_view_of_a_format_that_cannot_be_committed_to_stays_where_it_is(home: Lake) -> None:
    """Its storage table has the format, or gets it with the next refresh."""
    home.view(layout="pointed", properties={"airflow-mv.storage.format-version": "3"})
    home.refresh()
    home.view("next", layout="table")
    home.refresh("sales.next")
    rewritten(home.iceberg, "sales.next", lambda table: table.update({"format-version": 3, "next-row-id": 0}))
    for name, layouts in (("daily", ("registered", "table")), ("next", ("registered",))):
        for layout in layouts:
            with pytest.raises(
                UnsupportedError, match=f"the layout '{layout}': .* pyiceberg commits to no newer one than 2"
            ):
                convert(home.catalog, f"sales.{name}", layout)
    assert convert(home.catalog, "sales.next", "pointed").changed


@pytest.mark.parametrize(("before", "layout"), AND_BACK)
def test_maintenance_and_a_purge_know_all_files_of_a_view_that_was_converted_and_back(
    home: Lake, warehouse: Path, before: str, layout: str
) -> None:
    home.layout = before
    kept = files(warehouse)
    refreshed(home, 2)
    for wanted in (layout, before):
        convert(home.catalog, VIEW, wanted)
        home.append()
        home.refresh()
    for _ in range(2):
        maintain(home.catalog, VIEW, older_than=timedelta(0))
    assert len(home.read()) == 3
    purge(home.catalog, VIEW)
    assert {name for name in files(warehouse) - kept if "/orders/" not in name} == set()
    assert home.iceberg.list_tables("sales") == [("sales", "orders")]


@pytest.mark.parametrize("way", range(len(WAYS)))
def test_i05_a_conversion_with_a_lost_answer_is_made_once(home: Lake, clock: Clock, way: int) -> None:
    home.layout, layout = WAYS[way]
    refreshed(home, 2)
    catalog = FaultyCatalog(home.iceberg, *[*FAULTS.values()][way % len(FAULTS)])
    convert(catalog, VIEW, layout, effects=clock.effects)
    assert catalog.schedule == []
    catalog.arrive()
    assert (layout_of(home), len(home.read())) == (layout, 3)
    home.append()
    assert home.refresh().outcome == "refreshed"
    assert convert(catalog, VIEW, layout).before == layout


@pytest.mark.parametrize(("before", "layout"), AND_BACK)
def test_a_conversion_without_an_answer_is_unknown_and_settled_by_the_next_one(
    home: Lake, warehouse: Path, clock: Clock, before: str, layout: str
) -> None:
    home.layout = before
    refreshed(home, 1)
    found: set[str] = set()
    lost = lose_answer_before(lambda: found.update(files(warehouse)))
    with pytest.raises(CommitStateUnknownError, match="nothing was deleted"):
        convert(FaultyCatalog(home.iceberg, *[lost] * 8), VIEW, layout, effects=clock.effects)
    assert (found <= files(warehouse), layout_of(home)) == (True, before)
    convert(home.catalog, VIEW, layout)
    assert home.read() == [NORTH, SOUTH]


@pytest.mark.parametrize(("before", "layout"), AND_BACK)
def test_a_refresh_before_or_beside_a_conversion_is_not_lost(
    home: Lake, clock: Clock, before: str, layout: str
) -> None:
    """One that lands first is kept; one that was staged before is planned again, and cannot land late."""
    home.layout = before
    refreshed(home, 1)
    home.append()
    catalog = FaultyCatalog(home.iceberg, after(lambda: home.refresh()))
    convert(catalog, VIEW, layout, effects=clock.effects)
    assert (layout_of(home), home.read()) == (layout, [EAST, NORTH, SOUTH])
    home.append()
    plan, outcome = staged(home)
    convert(home.catalog, VIEW, before)
    assert publish(home.catalog, plan, where(outcome), effects=clock.effects).outcome == "replan"
    assert (home.read(), len(ids(home))) == ([EAST, NORTH, SOUTH], 1)
    assert home.refresh().outcome == "refreshed"


@pytest.mark.parametrize(("before", "layout"), WAYS)
def test_an_expiry_beside_a_conversion_is_sent_again_for_the_new_layout(
    home: Lake, clock: Clock, before: str, layout: str
) -> None:
    """What was sent for the old layout cannot be applied any more."""
    home.layout = before
    refreshed(home, 2)
    kept = home.storage().table.head
    catalog = FaultyCatalog(home.iceberg, after(lambda: convert(home.catalog, VIEW, layout)))
    expire(catalog, VIEW, older_than=timedelta(0), effects=clock.effects)
    storage = home.storage()
    assert (layout_of(home), storage.table.head) == (layout, kept)
    assert [item.snapshot_id for item in storage.table.snapshots] == [kept]
    home.append()
    assert home.refresh().outcome == "refreshed"


@pytest.mark.parametrize("layout", ["pointed", "table"])
def test_rows_of_others_do_not_become_the_view_s(home: Lake, layout: str) -> None:
    home.layout = "registered"
    refreshed(home, 1, allow_stale_data=True)
    name = home.storage().name
    assert name is not None
    table = home.iceberg.load_table((*name.namespace, name.name))
    table.append(pa.Table.from_pylist([EAST], schema=table.schema().as_arrow()))
    convert(home.catalog, VIEW, layout)
    found = read_rows(home.catalog, readable(home.catalog, VIEW))
    assert sorted(found.rows()) == [["north", 2, 15], ["south", 1, 20]]


def test_what_cannot_be_converted_is_refused_in_one_sentence(home: Lake, clock: Clock) -> None:
    home.view()
    with pytest.raises(ConfigurationError, match=r"layout is 'tables'; it must be pointed, .*; did you mean 'table'?"):
        convert(home.catalog, VIEW, "tables")
    with pytest.raises(UnsupportedError, match=r"cannot get the layout 'table' before its first refresh"):
        convert(home.catalog, VIEW, "table")
    table = home.iceberg.create_table("sales.theirs", schema=home.iceberg.load_table("sales.orders").schema())
    table.append(home.iceberg.load_table("sales.orders").scan().to_arrow())
    adopt(home.catalog, "sales.theirs", Definition("SELECT * FROM lake.sales.orders"), stager=home.stager)
    with pytest.raises(UnsupportedError, match=r"its table was adopted"):
        convert(home.catalog, "sales.theirs", "pointed")
    with pytest.raises(UnsupportedError, match=r"`airflow-mv convert` changes it"):
        create(home.catalog, VIEW, Definition(QUERY, layout="table"), stager=home.stager, replace=True)


def test_a_name_of_the_storage_table_that_is_taken_is_refused(home: Lake, clock: Clock) -> None:
    home.layout = "table"
    refreshed(home, 1)
    home.table("daily__storage")
    with pytest.raises(AlreadyExistsError, match=r"lake\.sales\.daily__storage is taken; .* Rename or drop"):
        convert(home.catalog, VIEW, "registered", effects=clock.effects)
    assert (layout_of(home), home.read()) == ("table", [NORTH, SOUTH])


def test_a_late_copy_of_a_conversion_finds_its_files_although_the_name_was_taken_meanwhile(
    home: Lake, clock: Clock
) -> None:
    home.layout = "pointed"
    refreshed(home, 1)
    late: list[Callable[[], object]] = []

    def delayed(_: FaultyCatalog, send: Callable[[], object]) -> None:
        late.append(send)
        home.table("daily__storage")
        raise CommitStateUnknownError("no answer in time (injected fault)")

    with pytest.raises(CommitStateUnknownError, match=r"is taken.* may still be changed; nothing was deleted"):
        convert(FaultyCatalog(home.iceberg, delayed), VIEW, "registered", effects=clock.effects)
    home.iceberg.drop_table("sales.daily__storage")
    assert late.pop()()
    assert (layout_of(home), home.read()) == ("registered", [NORTH, SOUTH])


@pytest.mark.rest
def test_a_server_that_cannot_swap_is_left_alone(rest_uri: str, warehouse: Path) -> None:
    with lake(rest_uri, warehouse, layout="table") as home:
        home.table()
        refreshed(home, 1)
        with pytest.raises(UnsupportedError, match=r"cannot swap a view and a table of one name in one step"):
            convert(home.catalog, VIEW, "registered")
