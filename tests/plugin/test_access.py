# SPDX-License-Identifier: Apache-2.0
"""Access: Airflow does not authenticate requests to a plugin's application, so each route is called without a login."""

from __future__ import annotations

import asyncio
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

import airflow_mv.plugin
from airflow_mv.plugin import PageApp, _page_app
from airflow_mv.plugin.app import create_app
from tests.plugin.conftest import ROLES, Server

pytestmark = pytest.mark.airflow

#: One path for each route; a route that is missing here fails the first test.
ADDRESSES = {
    "/": "/",
    "/static/{digest}/{name}": "/static/any/app.js",
    "/api/views": "/api/views",
    "/api/graph": "/api/graph",
    "/api/view": "/api/view?view=pages.sales.daily",
    "/api/plan": "/api/plan?view=pages.sales.daily",
    "/api/tables": "/api/tables?view=pages.sales.daily",
    "/api/costs": "/api/costs?days=7",
    "/api/coverage": "/api/coverage?view=pages.sales.daily",
    "/api/backfill": "/api/backfill?dag_id=by_day&type=date&start=2024-06-02T00:00:00Z&end=2024-06-04T00:00:00Z",
}
DAILY = "pages.sales.daily"
FILES = Path(airflow_mv.plugin.__file__).parent / "static"


def test_every_route_is_in_these_tests(server: Server) -> None:
    """There are no other routes: no documentation, no schema, no mounts."""
    server.get("api/views")
    routes = {route.path: route for route in _page_app().routes}
    assert set(routes) == set(ADDRESSES)
    assert all(route.methods == {"GET"} for route in routes.values())
    for path in ("docs", "redoc", "openapi.json", "static/index.html", "static/../app.py"):
        assert server.client("admin").get(f"/airflow-mv/{path}").status_code == 404


@pytest.mark.parametrize("path", ADDRESSES.values())
def test_i22_anonymous_gets_401_a_user_without_a_role_403_and_a_viewer_the_page(server: Server, path: str) -> None:
    """This holds for the page's static files, too."""
    assert server.client(None).get(f"/airflow-mv{path}").status_code == 401
    assert server.client("").get(f"/airflow-mv{path}").status_code == 403
    answered = 422 if "coverage" in path else 200  # the view has no interval column
    for role in ROLES:
        assert server.client(role).get(f"/airflow-mv{path}").status_code == answered


def test_the_application_is_imported_outside_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The import takes seconds, in which Airflow's own requests would wait."""
    loops = []

    async def answer(*_: Any) -> None: ...

    def load() -> Any:
        with suppress(RuntimeError):
            loops.append(asyncio.get_running_loop())
        return answer

    monkeypatch.setattr(airflow_mv.plugin, "_page_app", load)
    asyncio.run(PageApp()({}, lambda: None, lambda _: None))  # type: ignore[arg-type, return-value]
    assert loops == []


def test_a_forged_session_is_refused(server: Server) -> None:
    """It is signed with another key."""
    client = server.client(None)
    client.cookies.set("_token", "eyJhbGciOiJIUzUxMiJ9.eyJzdWIiOiJhZG1pbiIsInJvbGUiOiJhZG1pbiJ9.c2lnbmVk")
    assert client.get("/airflow-mv/api/views").status_code in (401, 403)


def test_any_auth_manager_decides(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page requests one permission, through the interface that every auth manager has."""
    monkeypatch.setattr(SimpleAuthManager, "is_authorized_asset", lambda _, *, method, **__: method != "GET")
    for path in ADDRESSES.values():
        assert server.client("admin").get(f"/airflow-mv{path}").status_code == 403


def test_a_page_that_cannot_be_imported_answers_no_request(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow mounts it anyway. The permission check is missing, so its routes must be missing, too."""
    monkeypatch.setattr(airflow_mv.plugin, "_page_app", _page_app.__wrapped__)
    monkeypatch.setitem(sys.modules, "airflow_mv.plugin.app", None)
    for path in ADDRESSES.values():
        for role in (None, "", "viewer", "admin"):
            answer = server.client(role).get(f"/airflow-mv{path}")
            assert (answer.status_code, answer.text) == (500, "Internal Server Error")


@pytest.mark.parametrize("method", ["post", "put", "patch", "delete"])
def test_no_request_changes_anything(server: Server, method: str) -> None:
    """So no other site can make a reader's browser change anything."""
    for path in ADDRESSES.values():
        assert getattr(server.client("admin"), method)(f"/airflow-mv{path}").status_code == 405


def test_a_refusal_is_text_for_people_and_json_for_the_page(server: Server) -> None:
    """An expired session is shown inside Airflow's frame."""
    assert "Log in to Airflow" in server.client(None).get("/airflow-mv/").text
    assert "may not read assets" in server.client("").get("/airflow-mv/api/views").json()["message"]


@pytest.mark.parametrize("path", ADDRESSES.values())
def test_the_browser_runs_only_the_page_s_files_and_only_airflow_may_frame_them(server: Server, path: str) -> None:
    """No inline script or style, no other origin; refusals have the same headers."""
    for role in ("viewer", None):
        headers = server.client(role).get(f"/airflow-mv{path}").headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert "frame-ancestors 'self'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert "no-store" in headers["cache-control"] or "private" in headers["cache-control"]


def test_the_page_s_files_do_not_wait_for_what_reads_catalogs(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor for its import. The skeleton names every script, so that the browser loads all of them at once."""
    for name in ("page", "routes", "sources"):
        monkeypatch.setitem(sys.modules, f"airflow_mv.plugin.{name}", None)
    app = create_app()
    monkeypatch.setattr(airflow_mv.plugin, "_page_app", lambda: app)
    shell = server.client().get("/airflow-mv/").text
    assert 'class="skeleton"' in shell
    scripts = {file.name for file in FILES.glob("*.js")}
    assert set(re.findall(r"static/\w+/(\w+\.js)", shell)) == scripts
    for name in scripts:
        assert server.client().get(f"/airflow-mv/static/any/{name}").status_code == 200
    assert server.client().get("/airflow-mv/api/views").status_code == 500


def test_files_are_cached_while_they_are_unchanged(server: Server) -> None:
    """Their path contains a digest; a path of an older version is answered, but not cached."""
    shell = server.client().get("/airflow-mv/").text
    address = shell.partition('src="')[2].partition('"')[0]
    assert "immutable" in server.client().get(f"/airflow-mv/{address}").headers["cache-control"]
    assert "no-cache" in server.client().get("/airflow-mv/static/older/theme.js").headers["cache-control"]


def test_a_user_without_permission_for_a_dag_sees_it_and_airflow_refuses_the_run(server: Server) -> None:
    """The button calls Airflow's own API, which decides; the page only informs."""
    dags = server.get("api/view", "viewer", view=DAILY)["refreshers"]["dags"]
    assert [(dag["dag_id"], dag["may_run"]) for dag in dags] == [("publishing", False), ("refresh_sales", False)]
    assert (dags[1]["allowed"], "permission" in dags[1]["reason"]) == (False, True)
    body = {"logical_date": None}
    assert server.client("viewer").post("/api/v2/dags/refresh_sales/dagRuns", json=body).status_code == 403
    dag = server.get("api/view", "user", view=DAILY)["refreshers"]["dags"][1]
    assert (dag["may_run"], dag["reason"], dag["tasks"]) == (True, "", ["daily"])


def test_a_paused_dag_cannot_be_triggered(server: Server) -> None:
    """Its run would wait without notice."""
    dags = {
        dag["dag_id"]: dag for dag in server.get("api/view", "user", view="pages.sales.by_region")["refreshers"]["dags"]
    }
    assert dags["refresh_sales"]["may_run"]
    assert not dags["refresh_paused"]["may_run"]
    assert "paused" in dags["refresh_paused"]["reason"]
    assert dags["refresh_paused"]["next_run"] is None  # although it has a schedule


def test_content_without_permission_is_omitted(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of DAGs, runs and users are only for users who may read the DAG."""
    allowed = SimpleAuthManager.is_authorized_dag

    def without_sales(self: Any, *, details: Any = None, **arguments: Any) -> bool:
        if details and details.id in ("refresh_sales", "publishing"):
            return False
        return allowed(self, details=details, **arguments)

    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", without_sales)
    text = server.client("admin").get("/airflow-mv/api/view", params={"view": DAILY}).text
    assert "refresh_sales" not in text
    assert "publishing" not in text
    assert '"hidden":2' in text
    assert "publishing" not in server.client("admin").get("/airflow-mv/api/views").text
    assert server.client("admin").get("/airflow-mv/api/views", params={"dag_id": "refresh_sales"}).status_code == 403


def test_text_never_becomes_markup_or_code() -> None:
    """Names, SQL and messages come from anyone who may write to a catalog; the code has no way to insert markup."""
    scripts = {file.name: file.read_text() for file in FILES.glob("*.js")}
    assert {"list.js", "view.js", "graph.js"} <= set(scripts)
    ways = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc|DOMParser")
    assert {name: ways.findall(text) for name, text in scripts.items()} == {name: [] for name in scripts}
