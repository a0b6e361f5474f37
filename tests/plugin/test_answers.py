# SPDX-License-Identifier: Apache-2.0
"""The JSON responses for all views, for one view, and when something is broken."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from fastapi.testclient import TestClient
from sqlalchemy import event, update
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from airflow_mv.core.freshness.observe import observe
from airflow_mv.errors import CatalogUnavailableError
from airflow_mv.extras.fleet.summaries import summary_of
from airflow_mv.extras.registry.registry import Registry
from airflow_mv.extras.registry.settings import PLACE, registry_settings
from airflow_mv.plugin.app import add_data, create_app
from airflow_mv.plugin.costs import shown
from airflow_mv.plugin.counts import Counts
from airflow_mv.plugin.page import Page
from airflow_mv.plugin.rows import row_of
from airflow_mv.plugin.runs import Reader
from airflow_mv.plugin.sources import MAX_WAITING, THREADS, CatalogSource, Sources
from tests.builders import Lake, lake
from tests.core.catalog.test_sick_stores import GCS, add_row
from tests.core.refresh.intervals.support import VIEW, days_lake
from tests.extras.registry.support import refresh_row
from tests.plugin.conftest import Server
from tests.services import Quiet

pytestmark = pytest.mark.airflow

DAILY = "pages.sales.daily"


def answer(server: Server, entries: tuple[str, ...], path: str) -> Any:
    """The response of an application over other connections to a viewer: status and JSON."""
    client = TestClient(add_data(create_app(), Page(Sources(entries, 0))), cookies=server.client("viewer").cookies)
    response = client.get(path)
    return response.status_code, response.json()


def listed(server: Server, count: int) -> Any:
    """The list, once so many views have been read; the page shows it while reading continues."""
    deadline = time.monotonic() + 300
    while True:
        found = server.get("api/views")
        if len(found["views"]) >= count or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def test_the_list_has_every_materialized_view_with_problems_first(server: Server) -> None:
    """A broken view does not hide the others; plain views are not listed."""
    found = listed(server, 6)
    states = [(view["name"], view["state"]) for view in found["views"]]
    assert states == [
        ("new", "not-created"),
        ("broken", "unknown"),
        ("never", "never-refreshed"),
        ("on_top", "never-refreshed"),
        ("daily", "stale"),
        ("by_region", "fresh"),
    ]
    assert found["counts"] == {
        "not-created": 1, "unknown": 1, "never-refreshed": 2, "stale": 1, "fresh": 1, "failed": 1
    }  # fmt: skip
    assert "not valid JSON" in found["views"][1]["reasons"][0]["message"]
    (source,) = found["sources"]
    assert (source["conn_id"], source["catalog"], source["looking"], source["problem"]) == (
        "pages",
        "pages",
        None,
        None,
    )


def test_a_row_has_the_lag_and_the_last_refresh(server: Server) -> None:
    """Airflow knows who started it and how long it took, by the refresh id."""
    daily = next(view for view in server.get("api/views")["views"] if view["view"] == DAILY)
    assert daily["lag"]["seconds"] > 0
    assert daily["lag"]["exact"]
    assert (daily["mode"], daily["rows_written"], daily["tables"], daily["changed_tables"]) == ("full", 2, 1, 1)
    assert (daily["rows"], daily["running"]) == (2, False)
    assert (daily["seconds"], daily["dag_id"]) == (12.5, "publishing")
    assert daily["by"]
    by_region = next(view for view in server.get("api/views")["views"] if view["name"] == "by_region")
    assert by_region["seconds"] > 0, "as the view has recorded it"
    assert (by_region["by"], by_region["dag_id"]) == (None, None)


def test_filter_sort_and_pages(server: Server) -> None:
    """The server does it, so thousands of rows are never sent to the browser."""
    by_table = server.get("api/views", q="CUSTOMERS")
    assert [view["name"] for view in by_table["views"]] == ["by_region"]
    assert [view["name"] for view in server.get("api/views", state="stale")["views"]] == ["daily"]
    names = [view["name"] for view in server.get("api/views", sort="view", desc=True)["views"]]
    assert names == sorted(names, reverse=True)
    page = server.get("api/views", sort="view", offset=2, limit=2)
    assert ([view["name"] for view in page["views"]], page["total"]) == (["daily", "never"], 6)


def test_views_are_grouped_by_the_dags_that_the_user_may_read(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of which only events tell, too; views of other DAGs stand with those of none."""
    may_read = SimpleAuthManager.is_authorized_dag
    monkeypatch.setattr(
        SimpleAuthManager,
        "is_authorized_dag",
        lambda self, *, details=None, **more: (
            details.id != "refresh_paused" and may_read(self, details=details, **more)
        ),
    )
    groups = {group["name"]: group for group in server.get("api/views", group="dag")["groups"]}
    assert groups["publishing"]["views"] == [DAILY]
    assert set(groups["refresh_sales"]["views"]) == {DAILY, "pages.sales.by_region"}
    assert "refresh_paused" not in groups
    assert groups["no DAG"]["counts"] == {"unknown": 1, "never-refreshed": 1}
    (only,) = server.get("api/views", group="namespace")["groups"]
    assert (only["name"], only["total"]) == ("pages.sales", 6)
    assert server.get("api/views", namespace="pages.other")["total"] == 0
    assert server.get("api/views", state="running")["total"] == 0


def test_a_view_of_which_the_last_try_has_failed_is_marked(server: Server) -> None:
    """Until a later try succeeds, or another one fails later. A request searches Airflow's database for them once."""
    ended, searches, url = datetime.now(UTC), [0], "/api/v2/dags/refresh_sales/dagRuns"

    def tries(run_id: str, minutes: int, **states: str) -> None:
        body = {"logical_date": None, "dag_run_id": run_id}
        made = server.client("admin").post(url, json=body)
        assert made.status_code == 200, made.text
        end = {"end_date": ended + timedelta(minutes=minutes)}
        with create_session() as session:
            for task_id, state in states.items():
                of_task = (TaskInstance.run_id == run_id, TaskInstance.task_id == task_id)
                session.execute(update(TaskInstance).where(*of_task).values(state=state, **end))

    def failed() -> dict[str, str]:
        searches[0] = 0
        found = server.get("api/views", state="failed")
        assert found["counts"].get("failed", 0) == found["total"]
        assert searches == [1]
        return {view["name"]: view["failed"]["run_id"] for view in found["views"] if view["state"] != "not-created"}

    def count(_: object, __: object, statement: str, *others: object) -> None:
        searches[0] += "row_number()" in statement

    event.listen(Engine, "before_cursor_execute", count)
    try:
        tries("first", 1, daily="failed", by_region="up_for_retry")
        assert failed() == {"daily": "first", "by_region": "first"}
        tries("late", 3, daily="failed", by_region="success")
        assert failed() == {"daily": "late"}
        tries("between", 2, daily="success")
        assert failed() == {"daily": "late"}
        tries("last", 4, daily="success")
        assert failed() == {}
    finally:
        event.remove(Engine, "before_cursor_execute", count)
        for run_id in ("first", "late", "between", "last"):
            server.client("admin").delete(f"{url}/{run_id}")


def test_a_view_that_a_failed_task_did_not_create_is_told_with_that_task(server: Server) -> None:
    """Airflow knows its name by the refresh, which did not start. Who may not read the DAG is not told."""
    (item,) = server.get("api/views", state="not-created")["views"]
    failed = item["failed"]
    assert (item["view"], failed["task_id"], failed["dag_id"]) == ("pages.sales.new", "create", "new_view")
    (same,) = server.get("api/views", dag_id="new_view")["views"]
    assert (same["state"], same["failed"]) == ("not-created", failed)
    assert "not-created" not in server.get("api/views", dag_id="refresh_sales")["counts"]


def test_a_dag_has_the_views_that_it_refreshes(server: Server) -> None:
    """Including those that only its events name, as of tasks that are mapped over views."""
    assert {view["name"] for view in server.get("api/views", dag_id="refresh_sales")["views"]} == {"daily", "by_region"}
    assert {view["name"] for view in server.get("api/views", dag_id="publishing")["views"]} == {"daily"}
    assert server.get("api/views", dag_id="report")["views"] == []


def test_a_view_has_reasons_base_tables_definition_and_history(server: Server, sales: Lake) -> None:
    """Snapshot ids are text: JavaScript would round them."""
    view = server.get("api/view", view=DAILY)
    assert view["state"] == "stale"
    (table,) = view["base_tables"]
    assert table["identifier"] == "pages.sales.orders"
    assert table["current"] == str(sales.head())
    assert (table["recorded"] != table["current"], table["change"], table["rows_added"]) == (True, "appended", 1)
    assert view["sql"].startswith("SELECT region")
    assert view["how_to_read"].startswith(f"stored rows of {DAILY}: `airflow-mv read {DAILY}`")
    assert view["reasons"][0]["code"] == "BASE_CHANGED"


def test_the_history_combines_records_with_airflow_s_runs(server: Server) -> None:
    """One row for each refresh, including failed tries."""
    history = server.get("api/view", view=DAILY)["history"]
    assert [item["kind"] for item in history] == ["failed", "refreshed"]
    assert (history[1]["rows"], history[1]["rows_written"]) == (2, 2)
    refreshed = history[1]
    assert (refreshed["mode"], refreshed["seconds"], refreshed["current"]) == ("full", 12.5, True)
    assert refreshed["reasons"]
    assert refreshed["run_id"]


def test_a_plan_has_the_mode_the_reasons_and_the_statements(server: Server) -> None:
    """The statements are those that would run."""
    assert server.get("api/tables", view=DAILY)["tables"].keys() == {"pages.sales.orders"}
    plan = server.get("api/plan", view=DAILY)
    assert plan["mode"] == "full"
    assert "INSERT OVERWRITE" in plan["statements"][-1]
    assert plan["reasons"][0]["message"].startswith("pages.sales.orders advanced")
    assert server.get("api/plan", view="pages.sales.by_region")["mode"] == "noop"


def test_the_graph_has_the_sources_and_readers_of_a_view(server: Server) -> None:
    """Other readers of its base tables are not shown."""
    graph = server.get("api/graph", view=DAILY)
    assert {node["id"] for node in graph["nodes"]} == {DAILY, "pages.sales.orders", "pages.sales.on_top"}
    assert sorted(graph["edges"]) == [["pages.sales.daily", "pages.sales.on_top"], ["pages.sales.orders", DAILY]]


def test_a_name_may_omit_the_only_catalog(server: Server) -> None:
    """Tasks with a bound connection write names without a catalog."""
    assert server.get("api/view", view="sales.daily")["view"] == DAILY


@pytest.mark.parametrize(
    ("view", "status", "message"),
    [
        ("pages.sales.gone", 404, "there is no view pages.sales.gone"),
        ("other.sales.daily", 404, "page_conn_ids"),
        ("pages.sales.broken", 422, "not valid JSON"),
        ("x'; DROP", 400, "not a name"),
    ],
)
def test_a_view_that_cannot_be_shown_is_an_error_with_its_reason(
    server: Server, view: str, status: int, message: str
) -> None:
    """It is never a 500."""
    response = server.client().get("/airflow-mv/api/view", params={"view": view})
    assert (response.status_code, message in response.json()["message"]) == (status, True), response.text


@pytest.mark.parametrize("query", ["limit=100000", "sort=secret", "offset=-1", "unknown=1", "dag_id=" + "x" * 999])
def test_a_wrong_request_is_refused_without_echoing_it(server: Server, query: str) -> None:
    """What was sent is not sent back."""
    response = server.client().get(f"/airflow-mv/api/views?{query}")
    assert response.status_code == 400
    assert "secret" not in response.text
    assert "xxx" not in response.text


def test_a_missing_connection_does_not_hide_the_others(server: Server) -> None:
    """It is named, with what to do."""
    status, found = answer(server, ("nowhere", "pages"), "/api/views")
    assert status == 200
    assert found["total"] == 6
    wrong = next(source for source in found["sources"] if source["conn_id"] == "nowhere")
    assert "there is no connection 'nowhere'" in wrong["problem"]["message"]
    assert wrong["problem"]["advice"]


def test_an_unreachable_catalog_is_reported_without_its_password(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader sees only the message about a connection."""
    extra = {"type": "sql", "uri": "postgresql+psycopg://127.0.0.1:1/nothing", "warehouse": "file:///nowhere"}
    connection = {"conn_type": "iceberg", "login": "jana", "password": "s3cr3t-word", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_DEAD", json.dumps(connection))
    status, found = answer(server, ("dead:pages",), "/api/views")
    (source,) = found["sources"]
    assert (status, found["views"], source["problem"]["error"]) == (200, [], "CatalogUnavailableError")
    assert "s3cr3t-word" not in json.dumps(found)
    status, found = answer(server, ("dead:pages",), f"/api/view?view={DAILY}")
    assert status == 503
    assert "s3cr3t-word" not in json.dumps(found)


def test_an_edited_connection_is_seen_at_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read behind the old one is not shown any more, however long it might be kept."""
    monkeypatch.setattr("airflow_mv.plugin.page._FIRST_WAIT", 60)  # a busy machine needs longer than a person waits
    page = Page(Sources(("edited:pages",), 3600))
    right = json.loads(os.environ["AIRFLOW_CONN_PAGES"])
    wrong = {**right, "extra": {**right["extra"], "uri": "postgresql+psycopg://127.0.0.1:1/nothing"}}
    monkeypatch.setenv("AIRFLOW_CONN_EDITED", json.dumps(wrong))
    rows, (before,) = page.rows(set())
    assert (rows, before["problem"]["error"]) == ([], "CatalogUnavailableError")
    monkeypatch.setenv("AIRFLOW_CONN_EDITED", json.dumps(right))
    rows, (after,) = page.rows(set())
    assert (len(rows), after["problem"]) == (5, None)
    assert page.find(DAILY, set())[0].open().load(DAILY).identifier.name == "daily"


def test_a_connection_without_a_catalog_name_is_explained(server: Server) -> None:
    """Nobody has to guess."""
    page = Page(Sources(("unbound",), 0))
    rows, found = page.rows(set())
    assert rows == []
    assert "page_conn_ids" in found[0]["problem"]["message"]


def test_a_catalog_that_never_answers_does_not_block_the_others(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It accepts the connection and does not respond. The list says for how long."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"postgresql+psycopg://127.0.0.1:{silent.getsockname()[1]}/nothing"
        extra = {"type": "sql", "uri": uri, "warehouse": "file:///nowhere"}
        monkeypatch.setenv("AIRFLOW_CONN_SILENT", json.dumps({"conn_type": "iceberg", "extra": extra}))
        client = TestClient(
            add_data(create_app(), Page(Sources(("pages", "silent:other"), 60))), cookies=server.client().cookies
        )
        client.get("/api/views")
        started = time.monotonic()
        found = client.get("/api/views").json()
        assert client.get("/api/view", params={"view": DAILY}).status_code == 200
        assert time.monotonic() - started < 10
        assert found["total"] == 6
        looking = {source["catalog"]: source["looking"] for source in found["sources"]}
        assert (looking["pages"], looking["other"] is None) == (None, False)


def test_i29_views_on_a_store_that_never_answers_block_no_other_view(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """More of them are requested than the catalog has threads; the list names the store."""
    (tmp_path / "warehouse").mkdir()
    with closing(Quiet()) as quiet, lake(f"sqlite:///{tmp_path}/c.db", tmp_path / "warehouse", "pages") as home:
        home.table()
        home.view("daily", "SELECT id FROM orders")
        for number in range(8):
            add_row(home, f"far{number}", f"gs://walled/{number}/metadata/1.metadata.json", "VIEW")
        add_row(home, "table", "gs://other/metadata/1.metadata.json")
        extra = {**home.iceberg.properties, "type": "sql", **GCS, "gcs.service.host": f"http://127.0.0.1:{quiet.port}"}
        monkeypatch.setenv("AIRFLOW_CONN_SICK", json.dumps({"conn_type": "iceberg", "extra": extra}))
        page = Page(Sources(("sick:pages",), 60))
        client = TestClient(add_data(create_app(), page), cookies=server.client().cookies)

        def ask(name: str) -> tuple[int, float, str]:
            started = time.monotonic()
            found = client.get("/api/view", params={"view": f"pages.sales.{name}"})
            return found.status_code, time.monotonic() - started, found.text

        with ThreadPoolExecutor(8) as readers:
            far = [readers.submit(ask, f"far{number}") for number in range(8)]
            time.sleep(1)
            status, seconds, text = ask("daily")
            assert (status, seconds < 10) == (200, True), (status, seconds, text)
            answers = [answer.result() for answer in far]
        assert {status for status, _, _ in answers} == {503}
        assert all("walled" in text or "has not answered" in text for _, _, text in answers)
        found = page.rows(set())
        deadline = time.monotonic() + 60
        while found[1][0]["looking"] is not None and time.monotonic() < deadline:
            time.sleep(0.5)
            found = page.rows(set())
        assert {row.view.name: row.state for row in found[0]}["daily"] == "never-refreshed"
        assert "gs://other" in found[1][0]["problem"]["message"]


def test_questions_that_wait_are_bounded(server: Server) -> None:
    """The next one is refused at once, and its message says what to do."""
    (source,) = Sources(("pages",), 60).all(set())[0]
    held = threading.Event()
    answers = [source.ask(held.wait, str(number)) for number in range(THREADS + MAX_WAITING)]
    assert source.ask(held.wait, "0") is answers[0]
    with pytest.raises(CatalogUnavailableError, match="Try again in a few seconds"):
        source.ask(held.wait, "one more")
    held.set()
    assert all(answer.result(30) for answer in answers)
    assert source.ask(lambda: 1, "one more").result(30) == 1


def test_costs_are_those_that_the_registry_knows(server: Server, sales: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A DAG that the user may not read is added up without its name; a catalog without a registry hides no other."""
    place = {PLACE: f"{sales.catalog.properties['warehouse']}/registry"}
    connection = json.loads(os.environ["AIRFLOW_CONN_PAGES"])
    monkeypatch.setenv("AIRFLOW_CONN_BOOKED", json.dumps({**connection, "extra": {**connection["extra"], **place}}))
    registry = Registry(sales.catalog, registry_settings(place))
    now = datetime.now(UTC)
    asked = {"refreshed_at": now - timedelta(days=2), "job_seconds": 10.0, "mode": "append", "full_seconds": 25.0}
    rows = [refresh_row(at, f"pages.sales.v{at:02}", dag_id=f"dag_{at % 3}", **asked) for at in range(30)]
    registry.refreshes.upsert([*rows, refresh_row(99, DAILY, refreshed_at=now, seconds=1.0, fallback="a left join")])
    may_read = SimpleAuthManager.is_authorized_dag
    monkeypatch.setattr(
        SimpleAuthManager,
        "is_authorized_dag",
        lambda self, *, details=None, **more: details.id == "dag_1" and may_read(self, details=details, **more),
    )
    status, found = answer(server, ("booked", "pages", "nowhere"), "/api/costs?days=7")
    nowhere, booked, without = found["catalogs"]
    assert (status, nowhere["problem"]["error"], without["registry"]) == (200, "ConfigurationError", None)
    assert booked["totals"] == {
        "refreshes": 31, "cost_seconds": 301, "saved_seconds": 450, "fallbacks": 1, "lagging": 0, "late": 0,
    }  # fmt: skip
    recorded = without["recorded"]
    modes = {line["view"]: line["modes"] for line in recorded["lines"]}
    assert (modes, recorded["left_out"]) == ({DAILY: {"full": 1}, "pages.sales.by_region": {"full": 1}}, 0)
    assert (recorded["totals"]["refreshes"], recorded["totals"]["rows_written"]) == (2, 4)
    costs = booked["answers"]["costs"]
    assert (len(costs["lines"]), costs["total"], costs["lines"][0]["view"]) == (25, 31, "pages.sales.v00")
    by_dag = [
        (line["dag_id"], line.get("hidden"), line["cost_seconds"])
        for line in booked["answers"]["costs-by-dag"]["lines"]
    ]
    assert by_dag == [("dag_1", None, 100), (None, None, 1), (None, 2, 200)]
    monkeypatch.setattr("airflow_mv.plugin.costs._MAX_ROWS", 30)
    _, found = answer(server, ("booked", "pages"), "/api/costs?days=7")
    assert "at most 30 are read here" in found["catalogs"][0]["problem"]["message"]
    assert answer(server, ("booked",), "/api/costs?days=367")[0] == 400


def test_recorded_costs_name_only_dags_that_the_reader_may_read() -> None:
    """Of the others the time is added up."""
    now = datetime.now(UTC).isoformat()
    refresh = {"refreshed_at": now, "mode": "merge", "rows_written": 5, "seconds": 2.0}
    refresh |= {"job_seconds": 1.0, "executor_seconds": None}
    asked = ({"dag-id": "mine", "user": "jana"}, {"dag-id": "theirs", "user": "kim"}, {"user": "lee", "host": "edge"})
    views = {DAILY: [{**refresh, "requested_by": who} for who in asked]}
    reader = cast(Reader, SimpleNamespace(readable=lambda *_: {"mine"}))
    found = shown({"recorded": {"views": views, "left_out": 0}}, 7, reader, cast(Session, None))["recorded"]
    assert found["lines"][0]["requested_by"] == {"mine (jana)": 1, "a DAG that you may not read": 1, "lee@edge": 1}
    assert found["totals"] == {"refreshes": 3, "cost_seconds": 3.0, "rows_written": 15, "unmeasured": 0, "full": 0}


def test_fresh_intervals_are_counted_again_only_if_something_has_moved(
    sqlite_uri: str, warehouse: Path, reads: list[str]
) -> None:
    """A list of thousands of views costs nothing more while nothing moves; the numbers are those of the view's page."""
    with days_lake(sqlite_uri, warehouse, "pointed") as lake, ThreadPoolExecutor(1) as pool:
        lake.sell((1, 10), (2, 20), (3, 30))
        lake.refresh_days(1, 4)
        source, counts = cast("CatalogSource", SimpleNamespace(open=lambda: lake.catalog, counting=pool)), Counts()

        def counted() -> list[dict[str, Any] | None]:
            row = row_of(summary_of(observe(lake.catalog, VIEW)))
            reads.clear()
            while None in (found := counts.of([row], {"lake": source}).values()):
                time.sleep(0.05)
            return list(found)

        assert counted() == [{"unit": "day", "intervals": 3, "up_to_date": 3}]
        lake.sell((2, 1))
        assert counted() == [{"unit": "day", "intervals": 3, "up_to_date": 2}]
        assert reads
        assert counted() == [{"unit": "day", "intervals": 3, "up_to_date": 2}]
        assert reads == []
        lake.sell((3, 1))
        assert counted() == [{"unit": "day", "intervals": 3, "up_to_date": 1}]
