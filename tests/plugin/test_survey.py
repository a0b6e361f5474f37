# SPDX-License-Identifier: Apache-2.0
"""Reading all views of a catalog in the background: what is found, what is not read again, what is slow."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.errors import CatalogUnavailableError
from airflow_mv.extras.fleet.fact_cache import FactCache
from airflow_mv.plugin import listing
from airflow_mv.plugin.graph import GraphQuery, graph
from airflow_mv.plugin.rows import ViewRow
from airflow_mv.plugin.survey import Survey, SurveyedRows
from tests.builders import Lake, lake

MANY = 5_000


@pytest.fixture
def sales(sqlite_uri: str, warehouse: Path) -> Iterator[Lake]:
    """A lake with a refreshed view."""
    with lake(sqlite_uri, warehouse) as found:
        found.table()
        found.view()
        found.refresh()
        yield found


def states(found: SurveyedRows) -> dict[str, str]:
    """State by name."""
    return {row.view.name: row.state for row in found.rows}


def surveyed(survey: Survey) -> SurveyedRows:
    """The result of a new survey."""
    survey.found(wait=60)
    return survey.found(wait=60)


def test_a_survey_finds_what_has_changed_since(sales: Lake) -> None:
    """A base commit, a refresh, a new view, a dropped one."""
    survey = Survey("lake", lambda: sales.catalog, 0, rest=0)
    assert states(surveyed(survey)) == {"daily": "fresh"}
    sales.append()
    assert states(surveyed(survey)) == {"daily": "stale"}
    sales.refresh()
    sales.view("second")
    assert states(surveyed(survey)) == {"daily": "fresh", "second": "never-refreshed"}
    sales.catalog.drop("sales.second")
    sales.plain_view("plain", "SELECT id, region, amount FROM lake.sales.orders")
    assert states(surveyed(survey)) == {"daily": "fresh"}


def test_a_view_whose_pointers_have_not_moved_is_not_read_again(sales: Lake) -> None:
    """A survey of thousands of unchanged views costs a few queries. Its file is broken here, which is not noticed."""
    survey = Survey("lake", lambda: sales.catalog, 0, rest=0)
    surveyed(survey)
    Path(sales.catalog.load("sales.daily").metadata_location.removeprefix("file://")).write_text("{")
    assert states(surveyed(survey)) == {"daily": "fresh"}
    sales.append()
    assert states(surveyed(survey)) == {"daily": "unknown"}


def test_the_first_survey_of_a_process_opens_no_file_of_what_an_earlier_one_has_read(
    sales: Lake, tmp_path: Path, reads: list[str]
) -> None:
    """An api-server was restarted, or another one of several answers."""
    sales.plain_view("plain", "SELECT id, region, amount FROM lake.sales.orders")
    sales.refresh(sales.view("late", "SELECT region FROM lake.sales.plain"))
    sales.append()
    sales.refresh()
    cache = FactCache(tmp_path / "cache")

    def started() -> Survey:
        catalog = MaterializedViewCatalog(sales.iceberg)
        return Survey(
            "lake", lambda: catalog, 0, rest=0, cache=cache, properties_of={"lake": sales.catalog.properties}.get
        )

    first = started().found(wait=60)
    reads.clear()
    again = started()
    found = again.found(wait=60)
    assert reads == []
    assert found.rows == first.rows
    assert states(found) == {"daily": "fresh", "late": "stale"}
    assert found.rows[0].last
    sales.refresh("sales.late")
    assert states(surveyed(again)) == {"daily": "fresh", "late": "fresh"}


def test_the_first_survey_of_a_process_reads_only_what_is_not_known(
    sales: Lake, tmp_path: Path, reads: list[str]
) -> None:
    """A table has moved, and another process, a sensor's, has kept the state of the views that read it."""
    sales.table("other")
    cache, properties_of = FactCache(tmp_path / "cache"), {"lake": sales.catalog.properties}.get

    def started() -> Survey:
        catalog = MaterializedViewCatalog(sales.iceberg)
        return Survey("lake", lambda: catalog, 0, rest=0, cache=cache, properties_of=properties_of)

    first = started().found(wait=60)
    sales.append(name="other")
    reads.clear()
    again = started()
    assert again.found(wait=60).rows == first.rows
    assert reads == [sales.load("other").metadata_location]
    sales.append()
    assert states(surveyed(again)) == {"daily": "stale"}


def test_a_view_of_a_view_is_read_again(sales: Lake) -> None:
    """Its pointer and those of its base tables are not sufficient: the view that it reads has a storage table."""
    sales.view("top", "SELECT region, orders FROM lake.sales.daily")
    sales.refresh("sales.top")
    survey = Survey("lake", lambda: sales.catalog, 0, rest=0)
    assert states(surveyed(survey)) == {"daily": "fresh", "top": "fresh"}
    sales.append()
    sales.refresh("sales.daily")
    assert states(surveyed(survey)) == {"daily": "fresh", "top": "stale"}


def test_a_catalog_that_hangs_does_not_block_the_answer(sales: Lake) -> None:
    """The answer says how long the survey has been running, and has the rows when it ends."""
    answers = threading.Event()

    def hangs() -> MaterializedViewCatalog:
        answers.wait(300)
        return sales.catalog

    survey = Survey("lake", hangs, 0, rest=0)
    started = time.monotonic()
    found = survey.found(wait=0.2)
    assert time.monotonic() - started < 60  # the catalog hangs for longer
    assert (found.rows, found.checked_at) == ((), None)
    assert found.looking is not None
    answers.set()
    assert states(survey.found(wait=60)) == {"daily": "fresh"}


def test_known_rows_are_kept_while_the_catalog_is_unavailable(sales: Lake) -> None:
    """With the reason, until it is available again."""
    gone = False

    def opens() -> MaterializedViewCatalog:
        if gone:
            raise CatalogUnavailableError("the database is down")
        return sales.catalog

    survey = Survey("lake", opens, 0, rest=0)
    before = surveyed(survey)
    gone = True
    found = surveyed(survey)
    assert states(found) == states(before)
    assert found.problem
    assert found.problem["message"] == "the database is down"
    gone = False
    assert surveyed(survey).problem is None


def test_a_base_table_in_an_unavailable_catalog_makes_its_own_views_unknown_only(
    sales: Lake, tmp_path: Path, reads: list[str]
) -> None:
    """The others are read, and those of which nothing has moved are not."""
    with lake(f"sqlite:///{tmp_path}/west.db?timeout=0.1", tmp_path / "west", "west") as west:
        west.iceberg.register_table("sales.orders", sales.load().metadata_location)
        sales.catalog.openers = {"west": lambda: west.catalog}
        sales.refresh(sales.view("across", "SELECT id FROM west.sales.orders"))
        sales.table("other")
        sales.refresh(sales.view("calm", "SELECT id FROM lake.sales.other"))
        survey = Survey("lake", lambda: sales.catalog, 0, rest=0)
        assert states(surveyed(survey)) == {"across": "fresh", "calm": "fresh", "daily": "fresh"}
        with closing(sqlite3.connect(tmp_path / "west.db", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            for state in ("stale", "fresh"):
                sales.append() if state == "stale" else sales.refresh()
                reads.clear()
                found = surveyed(survey)
                assert (states(found), found.problem) == ({"across": "unknown", "calm": "fresh", "daily": state}, None)
                assert "did not respond" in found.rows[0].reasons[0]["message"]
                assert not [location for location in reads if "calm" in location]
        assert states(surveyed(survey)) == {"across": "fresh", "calm": "fresh", "daily": "fresh"}


def test_a_survey_ends_when_the_catalog_fails_for_several_views_in_a_row(
    sales: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of thousands of views would wait for it."""
    for number in range(9):
        sales.view(f"v{number}")
    asked: list[str] = []

    def fails(_: MaterializedViewCatalog, view: Identifier) -> None:
        asked.append(str(view))
        raise CatalogUnavailableError("the database is down")

    monkeypatch.setattr(MaterializedViewCatalog, "load", fails)
    found = Survey("lake", lambda: sales.catalog, 0).found(wait=60)
    assert found.problem
    assert found.problem["message"] == "the database is down"
    assert len(set(asked)) == 3
    assert sorted(states(found).values()) == ["pending"] * 7 + ["unknown"] * 3


def test_rows_are_cached_for_the_configured_time(sales: Lake) -> None:
    """The number of readers does not matter."""
    opened = []

    def opens() -> MaterializedViewCatalog:
        opened.append(1)
        return sales.catalog

    survey = Survey("lake", opens, 60)
    for _ in range(5):
        survey.found(wait=60)
    assert len(opened) == 1


def test_what_takes_time_once_does_not_delay_the_next_survey(sales: Lake) -> None:
    """The first survey imports libraries and opens the catalog. A new view is found as soon as the rows may be old."""
    waits = iter((0.5, 0.0))

    def opens() -> MaterializedViewCatalog:
        time.sleep(next(waits))
        return sales.catalog

    survey = Survey("lake", opens, 0, rest=1000)
    assert states(survey.found(wait=60)) == {"daily": "fresh"}
    sales.view("second")
    assert survey.found().pause == 0
    assert states(survey.found(wait=60)) == {"daily": "fresh", "second": "never-refreshed"}


def test_a_catalog_that_is_slow_each_time_is_left_in_peace(sales: Lake) -> None:
    """The reader learns when its views are read again."""
    opened = []

    def opens() -> MaterializedViewCatalog:
        opened.append(time.sleep(0.2))
        return sales.catalog

    survey = Survey("lake", opens, 0, rest=1000)
    found = [survey.found(wait=60) for _ in range(5)]
    assert len(opened) == 2
    assert 100 < found[-1].pause <= 1000 * 60


def test_a_page_of_five_thousand_rows_is_computed_at_once() -> None:
    """Filter, sort, count and page; the size of the complete graph is bounded."""
    row = ViewRow(Identifier("lake", ("sales",), "v"), "stale", tables=(("lake.sales.orders", True),))
    rows = [replace(row, view=Identifier("lake", ("sales",), f"v{number}")) for number in range(MANY)]
    query = listing.Query(text="V4", sort="view", descending=True, limit=100)
    started = time.monotonic()
    fitting = listing.matching(rows, query)
    assert len(listing.in_states(fitting, query, {})) == 1_111
    assert listing.counts(fitting, {"running": ["lake.sales.v4"]}) == {"stale": 1_111, "running": 1}
    names = [str(row.view) for row in rows]
    found = graph(rows, GraphQuery(names, running=["lake.sales.v7"]))
    assert (len(found["nodes"]), found["left_out"]) == (151, 0)
    (rest,) = [node for node in found["nodes"] if node["kind"] == "group"]
    assert (rest["views"] + rest["tables"], rest["rest"]) == (MANY + 1 - 150, True)
    assert time.monotonic() - started < 30  # a tenth of a second on an idle host


def test_views_are_divided_into_groups_and_a_large_graph_is_drawn_by_them() -> None:
    """Nothing is left out: what has no node of its own is counted in its group's, with its states and running views."""
    rows = [
        ViewRow(Identifier("lake", (space,), f"v{number}"), "stale" if number % 3 else "fresh", tables=((table, True),))
        for space, table, many in (("a", "raw.s.orders", 300), ("b", "lake.a.v1", 20))
        for number in range(many)
    ]
    names = [str(row.view) for row in rows]

    def space(row: ViewRow) -> list[str]:
        return [listing.namespace_of(row.view)]

    query = listing.Query(limit=10, opened=frozenset({"lake.b"}))
    shown, groups = listing.grouped(rows, query, space, {"running": {"lake.a.v5"}})
    assert [str(row.view) for row in shown] == groups[1]["views"] == names[300:310]
    assert [(group["name"], group["total"], group["open"]) for group in groups] == [
        ("lake.a", 300, False),
        ("lake.b", 20, True),
    ]
    assert groups[0]["counts"] == {"stale": 200, "fresh": 100, "running": 1}
    _, groups = listing.grouped(rows[:5], query, lambda _: {"one", listing.NO_DAG}, {})
    assert [(group["name"], len(group["views"])) for group in groups] == [("one", 5), (listing.NO_DAG, 5)]

    closed = graph(rows, GraphQuery(names, running=["lake.a.v5"]))
    assert [(node["id"], node["views"], node["running"]) for node in closed["nodes"]] == [
        ("group lake.a", 300, True), ("group lake.b", 20, False), ("group raw.s", 0, False),
    ]  # fmt: skip
    assert closed["edges"] == [["group lake.a", "group lake.b"], ["group raw.s", "group lake.a"]]
    opened = graph(rows, GraphQuery(names, opened=["lake.b"]))
    assert len(opened["nodes"]) == 2 + 20
    assert ["group lake.a", "lake.b.v7"] in opened["edges"]
    one = graph(rows, GraphQuery(["lake.b.v7"]))
    assert {node["id"] for node in one["nodes"]} == {"lake.b.v7", "lake.a.v1", "raw.s.orders"}
    by_dag = graph(rows[300:], GraphQuery(names[300:], groups_of=lambda _: ["report"]))
    assert [node["id"] for node in by_dag["nodes"]] == ["group lake.a", "group report"]


def test_unknown_values_are_last_in_either_order() -> None:
    """A view without a lag is neither the most nor the least late."""
    known = ViewRow(Identifier("lake", ("s",), "known"), "stale", refreshed_at="2026-01-01T00:00:00+00:00")
    unknown = ViewRow(Identifier("lake", ("s",), "unknown"), "never-refreshed")
    for descending in (False, True):
        shown = listing.in_states([unknown, known], listing.Query(sort="refreshed", descending=descending), {})
        assert [row.view.name for row in shown] == ["known", "unknown"]
    assert unknown.lag(datetime.now(UTC)) == {"seconds": None, "since": None, "exact": False}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_five_thousand_views_are_read_while_the_page_answers(sales: Lake, tmp_path: Path) -> None:
    """The first survey reads them all; the next one costs a few queries. Every answer meanwhile is quick."""
    with sqlite3.connect(tmp_path / "catalog.db") as database:
        copied = "SELECT catalog_name, table_namespace, ?, metadata_location, previous_metadata_location, iceberg_type"
        insert = f"INSERT INTO iceberg_tables {copied} FROM iceberg_tables WHERE table_name = 'daily'"
        database.executemany(insert, [(f"v{number:04}",) for number in range(MANY - 1)])
    database.close()
    survey = Survey("lake", lambda: sales.catalog, 3600)
    started, slowest = time.monotonic(), 0.0
    while (found := survey.found()).looking is not None or found.checked_at is None:
        sent = time.monotonic()
        survey.found()
        slowest = max(slowest, time.monotonic() - sent)
        time.sleep(0.05)
    first = time.monotonic() - started
    assert len(states(found)) == MANY
    survey.seconds = survey.rest = 0
    started = time.monotonic()
    assert len(states(survey.found(wait=600))) == MANY
    again = time.monotonic() - started
    print(f"{MANY} views: first look {first:.1f} s, again {again:.1f} s, slowest answer meanwhile {slowest:.2f} s")
    assert again < first / 3
    assert slowest < 2
