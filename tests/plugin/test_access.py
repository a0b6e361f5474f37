# SPDX-License-Identifier: Apache-2.0
"""Access: Airflow does not authenticate requests to a plugin's application, so each route is called without a login."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

import airflow_mv.plugin
from airflow_mv.plugin import _page_app
from tests.plugin.conftest import ROLES, Server

pytestmark = pytest.mark.airflow

#: One address for each route; a route that is missing here fails the first test.
ADDRESSES = {
    "/": "/",
    "/static/{digest}/{name}": "/static/any/app.js",
    "/icons/{name}": "/icons/light.svg",
    "/api/views": "/api/views",
    "/api/graph": "/api/graph",
    "/api/view": "/api/view?view=pages.sales.daily",
    "/api/plan": "/api/plan?view=pages.sales.daily",
}
DAILY = "pages.sales.daily"


def test_every_route_is_in_these_tests(server: Server) -> None:
    """There are no others: no documentation, no schema, nothing mounted."""
    server.get("api/views")
    routes = {route.path: route for route in _page_app().routes}
    assert set(routes) == set(ADDRESSES)
    assert all(route.methods == {"GET"} for route in routes.values())
    for path in ("docs", "redoc", "openapi.json", "static/index.html", "icons/../app.py"):
        assert server.client("admin").get(f"/airflow-mv/{path}").status_code == 404


@pytest.mark.parametrize("path", ADDRESSES.values())
def test_i22_nobody_gets_401_a_user_without_a_role_403_and_a_viewer_the_page(server: Server, path: str) -> None:
    """The files of the page are no exception."""
    assert server.client(None).get(f"/airflow-mv{path}").status_code == 401
    assert server.client("").get(f"/airflow-mv{path}").status_code == 403
    for role in ROLES:
        assert server.client(role).get(f"/airflow-mv{path}").status_code == 200


def test_a_forged_session_is_refused(server: Server) -> None:
    """Signed by another key."""
    client = server.client(None)
    client.cookies.set("_token", "eyJhbGciOiJIUzUxMiJ9.eyJzdWIiOiJhZG1pbiIsInJvbGUiOiJhZG1pbiJ9.c2lnbmVk")
    assert client.get("/airflow-mv/api/views").status_code in (401, 403)


def test_whichever_auth_manager_there_is_decides(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Roles are its own business: the page asks for one permission, through what every auth manager has."""
    monkeypatch.setattr(SimpleAuthManager, "is_authorized_asset", lambda _, *, method, **__: method != "GET")
    for path in ADDRESSES.values():
        assert server.client("admin").get(f"/airflow-mv{path}").status_code == 403


def test_a_page_that_cannot_be_imported_answers_nobody(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow has mounted it all the same. What asks for the permission is missing, and so must be what it guards."""
    monkeypatch.setattr(airflow_mv.plugin, "_page_app", _page_app.__wrapped__)
    monkeypatch.setitem(sys.modules, "airflow_mv.plugin.app", None)
    for path in ADDRESSES.values():
        for role in (None, "", "viewer", "admin"):
            answer = server.client(role).get(f"/airflow-mv{path}")
            assert (answer.status_code, answer.text) == (500, "Internal Server Error")


@pytest.mark.parametrize("method", ["post", "put", "patch", "delete"])
def test_nothing_changes_by_any_request(server: Server, method: str) -> None:
    """So there is nothing that another site could have a reader's browser do."""
    for path in ADDRESSES.values():
        assert getattr(server.client("admin"), method)(f"/airflow-mv{path}").status_code == 405


def test_a_refusal_is_said_in_words_to_people_and_in_json_to_the_page(server: Server) -> None:
    """An expired session shows up inside Airflow's frame."""
    assert "Log in to Airflow" in server.client(None).get("/airflow-mv/").text
    assert "may not read assets" in server.client("").get("/airflow-mv/api/views").json()["message"]


@pytest.mark.parametrize("path", ADDRESSES.values())
def test_the_browser_runs_nothing_but_our_files_and_only_airflow_frames_them(server: Server, path: str) -> None:
    """No inline script or style, no other origin; also where the answer is a refusal."""
    for role in ("viewer", None):
        headers = server.client(role).get(f"/airflow-mv{path}").headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert "frame-ancestors 'self'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert "no-store" in headers["cache-control"] or "private" in headers["cache-control"]


def test_the_files_may_be_kept_while_they_are_the_same(server: Server) -> None:
    """Their address holds a digest; an old page's address is answered, but not kept."""
    shell = server.client().get("/airflow-mv/").text
    address = shell.partition('src="')[2].partition('"')[0]
    assert "immutable" in server.client().get(f"/airflow-mv/{address}").headers["cache-control"]
    assert "no-cache" in server.client().get("/airflow-mv/static/older/theme.js").headers["cache-control"]


def test_who_may_not_trigger_a_dag_is_told_so_and_airflow_refuses_it(server: Server) -> None:
    """The button calls Airflow's own API: what the page says is only a courtesy."""
    dags = server.get("api/view", "viewer", view=DAILY)["refreshers"]["dags"]
    assert [(dag["dag_id"], dag["may_run"]) for dag in dags] == [("publishing", False), ("refresh_sales", False)]
    assert "may not trigger" in dags[1]["reason"]
    body = {"logical_date": None}
    assert server.client("viewer").post("/api/v2/dags/refresh_sales/dagRuns", json=body).status_code == 403
    dag = server.get("api/view", "user", view=DAILY)["refreshers"]["dags"][1]
    assert (dag["may_run"], dag["reason"], dag["tasks"]) == (True, "", ["daily"])


def test_a_paused_dag_is_not_run_into_the_void(server: Server) -> None:
    """Its run would wait without a word."""
    dags = {
        dag["dag_id"]: dag for dag in server.get("api/view", "user", view="pages.sales.by_region")["refreshers"]["dags"]
    }
    assert dags["refresh_sales"]["may_run"]
    assert not dags["refresh_paused"]["may_run"]
    assert "paused" in dags["refresh_paused"]["reason"]


def test_what_someone_may_not_read_of_airflow_is_left_out(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of DAGs, runs and users belong to those who may read the DAG."""
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


def test_no_text_can_become_markup_or_code() -> None:
    """Names, SQL and messages come from whoever writes to a catalog: there is no way in that one could forget."""
    folder = Path(airflow_mv.plugin.__file__).parent / "static"
    scripts = {file.name: file.read_text() for file in folder.glob("*.js")}
    assert {"list.js", "view.js", "graph.js"} <= set(scripts)
    ways = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc|DOMParser")
    assert {name: ways.findall(text) for name, text in scripts.items()} == {name: [] for name in scripts}
