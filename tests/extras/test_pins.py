# SPDX-License-Identifier: Apache-2.0
"""A consistent snapshot set for several refreshes: pinned in one process, used in others, errors of invalid pins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_mv.common.status import status
from airflow_mv.core.catalog import Layout
from airflow_mv.core.refresh import RefreshOptions, SnapshotSet
from airflow_mv.core.refresh.plan import RefreshResult
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.reasons import Code, Mode
from airflow_mv.errors import InvalidMetadataError, InvalidQueryError, PinError
from airflow_mv.extras.pins import RunPins, pin_base_tables, restore
from tests.builders import LAYOUTS, Lake, lake
from tests.cli.support import call
from tests.core.refresh.intervals.support import VIEW as DAYS
from tests.core.refresh.intervals.support import days, days_lake
from tests.engine.support import reload_configuration

COUNT = "SELECT count(*) AS n FROM lake.sales.orders"
TOTAL = "SELECT sum(d.orders) AS n FROM lake.sales.daily d"


BOTH = pytest.mark.parametrize("layout", LAYOUTS)


@pytest.fixture
def layout() -> Layout:
    return "pointed"


@pytest.fixture
def home(sqlite_uri: str, warehouse: Path, layout: Layout) -> Iterator[Lake]:
    """A lake with a view of a base table, and a view that reads this view."""
    with lake(sqlite_uri, warehouse, layout=layout) as found:
        found.table()
        found.view()
        found.view("count", COUNT)
        found.view("total", TOTAL)
        yield found


VIEWS = ("lake.sales.daily", "lake.sales.count", "lake.sales.total")


def carried(pins: RunPins) -> RunPins:
    """The pins as another process gets them."""
    return RunPins.read(json.loads(json.dumps(pins.document())), source="pins")


def refreshed(home: Lake, view: str, pins: RunPins, **options: Any) -> RefreshResult:
    """Refresh as a task does."""
    given = restore(home.catalog, view, carried(pins))
    return home.refresh(view, pins=given, options=RefreshOptions(**options))


def snapshots(result: RefreshResult) -> dict[str, int]:
    return dict(result.snapshots)


def test_the_document_has_the_pins_and_the_order_of_the_views(home: Lake) -> None:
    """It is small, because users read it in the UI."""
    pins = pin_base_tables(home.catalog, reversed(VIEWS))
    document = pins.document()

    assert document["views"] == {
        "lake.sales.count": [],
        "lake.sales.daily": [],
        "lake.sales.total": ["lake.sales.daily"],
    }
    pin = document["base_tables"]["lake.sales.orders"]
    assert pin["snapshot_id"] == str(home.head())
    assert pin["metadata_location"] == home.load().metadata_location
    assert pin["table_uuid"] == str(home.load().metadata.table_uuid)
    assert (document["faults"], [*document["base_tables"]]) == ({}, ["lake.sales.orders"])
    assert pins.levels == [["lake.sales.count", "lake.sales.daily"], ["lake.sales.total"]]
    assert carried(pins) == pins
    assert len(json.dumps(document)) < 1_000


@BOTH
def test_views_agree_although_base_tables_change_between_their_refreshes(home: Lake) -> None:
    """A report over all of them has one consistent snapshot set, whenever each task ran."""
    pins = pin_base_tables(home.catalog, VIEWS)
    head = home.head()
    home.append()
    daily = refreshed(home, "lake.sales.daily", pins)
    home.append((10, "east", 1))
    count = refreshed(home, "lake.sales.count", pins)
    total = refreshed(home, "lake.sales.total", pins)

    assert snapshots(daily) == snapshots(count) == {"lake.sales.orders": head}
    assert home.read("sales.count") == home.read("sales.total") == [{"n": 3}]
    # A view of the run is read as the run has published it.
    assert snapshots(total) == {"lake.sales.daily": home.storage().table.head}


def test_the_next_refresh_continues_from_the_record_of_a_pinned_one(home: Lake) -> None:
    """The record of a pinned refresh is like any other; freshness is decided by pointers."""
    pins = pin_base_tables(home.catalog, VIEWS[:1])
    first = refreshed(home, "lake.sales.daily", pins)
    again = refreshed(home, "lake.sales.daily", pins)
    assert (first.outcome, again.outcome, again.mode) == ("refreshed", "fresh", Mode.NOOP)
    assert home.refresh().outcome == "fresh"
    home.append()
    assert home.refresh().reasons[0].code == Code.BASE_CHANGED


@pytest.mark.parametrize("full", [False, True])
def test_a_late_task_never_undoes_what_a_later_run_has_published(home: Lake, full: bool) -> None:
    """A cleared task keeps the pins of its run, which may be old; forcing it does not make them newer."""
    pins = pin_base_tables(home.catalog, VIEWS)
    home.append()
    home.refresh("sales.count")
    late = refreshed(home, "lake.sales.count", pins, full=full)
    assert (late.outcome, late.mode, late.reasons[0].code) == ("fresh", Mode.NOOP, Code.ALREADY_NEWER)
    assert home.read("sales.count") == [{"n": 4}]


def test_pins_as_of_a_time_are_the_snapshots_of_that_time(home: Lake) -> None:
    """A backfill pins the end of its interval."""
    then = home.load().current_snapshot()
    assert then is not None
    home.append()
    at = datetime.fromtimestamp(then.timestamp_ms / 1000, UTC)
    pins = pin_base_tables(home.catalog, VIEWS, as_of=at)

    assert (pins.as_of, pins.base_tables["lake.sales.orders"].metadata_location) == (at.isoformat(), None)
    assert snapshots(refreshed(home, "lake.sales.count", pins)) == {"lake.sales.orders": then.snapshot_id}
    assert home.read("sales.count") == [{"n": 3}]


def test_a_time_before_a_table_was_written_fails_only_the_views_that_read_it(home: Lake) -> None:
    """Other views can be refreshed."""
    home.table("late", rows=[(1, "north", 1)])
    home.view("young", "SELECT count(*) AS n FROM lake.sales.late")
    first = home.load().current_snapshot()
    assert first is not None
    at = datetime.fromtimestamp(first.timestamp_ms / 1000, UTC)
    pins = pin_base_tables(home.catalog, ["sales.count", "sales.young"], as_of=at)

    assert "as of" in pins.faults["lake.sales.late"]
    assert refreshed(home, "lake.sales.count", pins).outcome == "refreshed"
    with pytest.raises(PinError, match=r"young reads lake\.sales\.late, which the run has not pinned.*Pin again"):
        refreshed(home, "lake.sales.young", pins)


def test_a_table_that_was_never_written_is_pinned_as_empty(home: Lake) -> None:
    """Rows that are appended meanwhile belong to the next run."""
    home.table("empty", rows=None)
    home.view("none", "SELECT count(*) AS n FROM lake.sales.empty")
    pins = pin_base_tables(home.catalog, ["sales.none"])
    home.append((1, "north", 1), name="empty")
    result = refreshed(home, "lake.sales.none", pins)
    assert snapshots(result) == {"lake.sales.empty": -1}
    assert "TABLESAMPLE (0 ROWS)" in home.stager.refreshes[-1].statements[-1]


def test_a_pinned_snapshot_that_has_expired_is_an_error_with_the_fix(home: Lake) -> None:
    """It is raised before Spark starts, and other rows are never read instead."""
    pins = pin_base_tables(home.catalog, VIEWS)
    head = home.head()
    home.append()
    home.expire(head)
    before = len(home.stager.calls)
    with pytest.raises(PinError, match=rf"lake\.sales\.count.*orders at snapshot {head}, which has expired.*Pin again"):
        refreshed(home, "lake.sales.count", pins)
    assert len(home.stager.calls) == before


def test_a_dropped_or_recreated_table_is_an_error(home: Lake) -> None:
    pins = pin_base_tables(home.catalog, VIEWS)
    home.iceberg.drop_table("sales.orders")
    with pytest.raises(PinError, match=r"lake\.sales\.orders, which the run has pinned, was dropped"):
        refreshed(home, "lake.sales.count", pins)
    home.table()
    with pytest.raises(PinError, match="dropped and created again after the run pinned it"):
        refreshed(home, "lake.sales.count", pins)


def test_an_error_of_one_view_fails_only_that_view(home: Lake) -> None:
    """It is raised when the view is refreshed, in its own task."""
    pins = pin_base_tables(home.catalog, ["sales.nowhere", *VIEWS])
    assert "there is no view lake.sales.nowhere" in pins.faults["lake.sales.nowhere"]
    assert refreshed(home, "lake.sales.daily", pins).outcome == "refreshed"


def test_a_view_that_reads_another_view_of_the_run_without_an_order_is_an_error(home: Lake) -> None:
    """Otherwise it would sometimes be computed from rows of the previous run."""
    daily, total = (Identifier.parse(f"lake.sales.{name}") for name in ("daily", "total"))
    pins = pin_base_tables(home.catalog, [daily, total], order={daily: (), total: ()})
    assert [*pins.faults] == ["lake.sales.total"]
    with pytest.raises(PinError, match=r"total.*it reads lake\.sales\.daily.*name it in after= of this view"):
        refreshed(home, "lake.sales.total", pins)
    assert pin_base_tables(home.catalog, [daily, total], order={daily: (), total: [daily]}).faults == {}


def test_views_in_a_cycle_are_refused(home: Lake) -> None:
    a, b = (Identifier.parse(f"lake.sales.{name}") for name in "ab")
    with pytest.raises(InvalidQueryError, match="cycle"):
        pin_base_tables(home.catalog, [a, b], definitions={a: "SELECT * FROM b", b: "SELECT * FROM a"})


def test_a_view_that_does_not_exist_can_be_pinned_by_its_query(home: Lake) -> None:
    """It is created later."""
    new = Identifier.parse("lake.sales.new")
    pins = pin_base_tables(home.catalog, [new], definitions={new: "SELECT count(*) AS n FROM orders"})
    home.append()
    home.view("new", "SELECT count(*) AS n FROM orders")
    refreshed(home, "lake.sales.new", pins)
    assert home.read("sales.new") == [{"n": 3}]


def test_a_view_whose_query_has_changed_since_must_be_pinned_again(home: Lake) -> None:
    home.table("others")
    pins = pin_base_tables(home.catalog, VIEWS)
    from airflow_mv.actions import create_view as create
    from airflow_mv.core.define.definition import Definition

    wanted = Definition("SELECT count(*) AS n FROM lake.sales.others")
    create(home.catalog, "sales.count", wanted, stager=home.stager, replace=True)
    with pytest.raises(PinError, match=r"count reads lake\.sales\.others, which the run has not pinned.*another query"):
        refreshed(home, "lake.sales.count", pins)


@BOTH
def test_a_materialized_view_outside_of_the_run_is_pinned_too(home: Lake) -> None:
    """Two views of the run that read it agree, even if it is refreshed meanwhile."""
    home.view("twice", "SELECT 2 * sum(d.orders) AS n FROM lake.sales.daily d")
    home.refresh()
    pins = pin_base_tables(home.catalog, ["sales.total", "sales.twice"])
    assert [*pins.base_tables] == ["lake.sales.daily"]
    refreshed(home, "lake.sales.total", pins)
    home.append()
    home.refresh()
    refreshed(home, "lake.sales.twice", pins)

    assert (home.read("sales.total"), home.read("sales.twice")) == ([{"n": 3}], [{"n": 6}])
    # The next run reads its current rows.
    home.refresh("sales.total")
    assert home.read("sales.total") == [{"n": 4}]


def test_a_view_that_a_later_refresh_has_published_is_reported(home: Lake, caplog: pytest.LogCaptureFixture) -> None:
    """Its newer rows are kept; the log says that the views are not of one consistent snapshot set."""
    home.view("both", "SELECT max(d.orders) AS a, max(o.id) AS b FROM daily d CROSS JOIN orders o")
    pins = pin_base_tables(home.catalog, ["sales.daily", "sales.both"])
    home.append()
    home.refresh()
    restore(home.catalog, "lake.sales.both", pins)
    assert "which another refresh computed from" in caplog.text


def test_no_later_refresh_is_reported_if_the_run_refreshes_intervals(
    sqlite_uri: str, warehouse: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The other intervals, and the last whole refresh, have their own snapshots."""
    with days_lake(sqlite_uri, warehouse, "pointed") as found:
        found.view("above", "SELECT day, amount FROM daily")
        for number in (1, 2):
            found.sell((1, 1), (2, 2))
            run = pin_base_tables(found.catalog, [DAYS, "sales.above"])
            pins = restore(found.catalog, DAYS, run)
            found.refresh(DAYS, pins=pins, options=RefreshOptions(interval=days(number, number + 1)))
            restore(found.catalog, "sales.above", run)
            assert "another refresh" not in caplog.text
        head = found.sell((2, 2))
        found.refresh_days(2, 3)
        restore(found.catalog, "sales.above", run)
        assert f"another refresh computed from lake.sales.sold at snapshot {head}, while" in caplog.text


def test_an_interval_is_recomputed_from_the_snapshots_of_its_run(sqlite_uri: str, warehouse: Path) -> None:
    """Rows that a later run has computed for the same interval are kept."""
    with days_lake(sqlite_uri, warehouse, "pointed") as found:
        found.sell((1, 10), (2, 20))
        found.refresh(DAYS)
        found.sell((1, 1), (2, 2))
        pins = restore(found.catalog, DAYS, carried(pin_base_tables(found.catalog, [DAYS])))
        found.sell((1, 100), (2, 200))
        found.refresh_days(2, 3)
        results = [
            found.refresh(DAYS, pins=SnapshotSet({**pins.tables}), options=RefreshOptions(interval=days(n, n + 1)))
            for n in (1, 2)
        ]
        assert [(item.outcome, item.reasons[0].code) for item in results] == [
            ("refreshed", Code.BASE_CHANGED),
            ("fresh", Code.ALREADY_NEWER),
        ]
        assert found.stored() == {1: (2, 11), 2: (3, 222)}


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        ({}, "pinned_at"),
        ({"pinned_at": "", "views": [], "base_tables": {}}, "views"),
        ({"pinned_at": "", "views": {}, "base_tables": {"a.b.c": {"snapshot_id": 7}}}, "snapshot_id"),
        ([1], "dictionary|object"),
    ],
)
def test_an_invalid_pins_document_is_refused_with_the_field(document: Any, fault: str) -> None:
    """XComs can be edited by hand."""
    with pytest.raises(InvalidMetadataError, match=fault):
        RunPins.read(document, source="pins")


def test_an_edited_pin_does_not_make_a_stale_view_fresh(home: Lake) -> None:
    """The metadata file of a recorded snapshot is looked up in the catalog and never taken from the document."""
    first = home.head()
    home.append()
    pins = pin_base_tables(home.catalog, VIEWS).document()
    pins["base_tables"]["lake.sales.orders"]["snapshot_id"] = str(first)
    refreshed(home, "lake.sales.count", RunPins.read(pins, source="pins"))
    assert status(home.catalog, "sales.count").state == "stale"


def test_a_pinned_snapshot_that_is_not_a_number_is_refused(home: Lake) -> None:
    pins = pin_base_tables(home.catalog, VIEWS).document()
    pins["base_tables"]["lake.sales.orders"]["snapshot_id"] = "7; DROP"
    with pytest.raises(InvalidMetadataError, match="snapshot_id"):
        restore(home.catalog, "lake.sales.count", RunPins.read(pins, source="pins"))


# -- the command line ------------------------------------------------------------------------------


@pytest.fixture
def command_line(home: Lake, sqlite_uri: str, warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """The lake as `airflow-mv` opens it."""
    with monkeypatch.context() as patch:
        for key, value in {"TYPE": "sql", "URI": sqlite_uri, "WAREHOUSE": f"file://{warehouse}"}.items():
            patch.setenv(f"PYICEBERG_CATALOG__LAKE__{key}", value)
        reload_configuration()
        yield home
    reload_configuration()


def test_the_command_line_pins_for_later_refreshes(command_line: Lake, tmp_path: Path) -> None:
    """Without Airflow, with one process for each view."""
    home = command_line
    file = tmp_path / "pins.json"
    document = call("pin", "--namespace", "lake.sales", "--json").json
    file.write_text(json.dumps(document))
    assert [*document["views"]] == ["lake.sales.count", "lake.sales.daily", "lake.sales.total"]
    head = home.head()
    home.append()
    refreshed(home, "lake.sales.daily", RunPins.read(document, source="file"))
    (result,) = call("refresh", "lake.sales.daily", "--pins", str(file), "--json").json
    assert (result["outcome"], result["base_tables"]) == ("fresh", {"lake.sales.orders": str(head)})
    plan = call("plan", "lake.sales.count", "--pins", str(file), "--json").json
    assert [item["current"] for item in plan["base_tables"]] == [str(head)]


def test_the_command_line_prints_pins_as_text(command_line: Lake) -> None:
    printed = call("pin", "lake.sales.total", "lake.sales.daily").stdout
    assert f"lake.sales.orders  {command_line.head()}" in printed
    assert "lake.sales.total  after lake.sales.daily" in printed


def test_a_file_without_pins_is_refused_in_one_line(command_line: Lake, tmp_path: Path) -> None:
    file = tmp_path / "pins.json"
    for text, fault in (("[]", "field '(top level)'"), ("{", "no JSON")):
        file.write_text(text)
        ended = call("refresh", "lake.sales.daily", "--pins", str(file))
        assert (ended.code, fault in ended.error) == (1, True), ended.error
