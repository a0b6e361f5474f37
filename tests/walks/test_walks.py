# SPDX-License-Identifier: Apache-2.0
"""Three users of a real Airflow with PostgreSQL: each step is something that stood in the way of a user once."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, expect

from airflow_mv.errors import ViewNotFoundError
from tests.airflow.deployment import until
from tests.walks.conftest import Walk

pytestmark = [
    pytest.mark.slow,
    pytest.mark.airflow,
    pytest.mark.postgres,
    pytest.mark.browser,
    pytest.mark.cluster,
    pytest.mark.timeout(1800),
]
Say = Callable[[str], None]
VIEW = "lake.sales.by_region"


def test_a_dag_author_defines_a_view(walk: Walk, step: Say) -> None:
    step("explain shows the modes of a query before the view exists")
    query = "SELECT region, sum(amount) AS amount FROM lake.sales.orders GROUP BY region"
    said = walk.command("explain", "lake.sales.new", "--sql", query, "--conn-id", "iceberg_default")
    assert said.returncode == 0, said.stderr
    assert "merge" in said.stdout

    step("create --require merge refuses a query that cannot be merged, and makes nothing")
    ranked = "SELECT region, min_by(id, amount) AS id FROM lake.sales.orders GROUP BY region"
    refused = walk.command("create", "lake.sales.ranked", "--sql", ranked, "--require", "merge")
    assert refused.returncode == 1
    with pytest.raises(ViewNotFoundError):
        walk.lake.catalog.load("lake.sales.ranked")

    step("a DAG creates the view and refreshes it; it is incremental by default")
    assert set(walk.deployment.run("author_1", "first").values()) == {"success"}, walk.deployment.last_output()
    assert walk.lake.catalog.load(VIEW).materialized.refresh_strategy == "incremental"

    step("a changed setting in the DAG is applied, and no row is recomputed")
    before = walk.lake.storage("sales.by_region").state
    assert set(walk.deployment.run("author_2", "second").values()) == {"success"}
    assert walk.lake.catalog.load(VIEW).materialized.allow_stale_data is True
    after = walk.lake.storage("sales.by_region").state
    assert before
    assert after
    assert after.current_refresh_id == before.current_refresh_id

    step("an append is merged, and the history keeps both refreshes; snapshot ids are text")
    walk.lake.append()
    assert walk.deployment.run("author_2", "third")["refresh"] == "success"
    history = walk.json("history", VIEW, "--conn-id", "iceberg_default")
    assert len(history) == 2
    assert len(walk.json("history", VIEW, "--limit", "1")) == 1
    assert isinstance(history[0]["base_tables"][0]["snapshot_reference"], str)

    step("the last refresh is rolled back without time travel")
    rolled = walk.command("rollback", VIEW, "--to", history[0]["refresh_id"])
    assert rolled.returncode == 0, rolled.stderr

    step("an error of --json is JSON, with a code and whether to try again")
    failed = walk.command("refresh", "lake.sales.nowhere", "--json")
    assert failed.returncode == 1
    error = json.loads(failed.stderr.splitlines()[-1])["error"]
    assert (error["code"], error["retryable"]) == ("ViewNotFoundError", False)

    step("maintain runs for a whole namespace")
    assert walk.command("maintain", "--namespace", "lake.sales").returncode == 0


def test_an_engineer_backfills_days(walk: Walk, step: Say) -> None:
    step("Airflow's API creates a backfill of five days, and each run computes its day")
    body = {"dag_id": "by_day", "from_date": "2024-06-02T00:00:00Z", "to_date": "2024-06-06T00:00:00Z"}
    walk.deployment.airflow.call("POST", "/api/v2/backfills", {**body, "max_active_runs": 4})
    path = "/api/v2/dags/by_day/dagRuns?run_type=backfill&limit=100"

    def states() -> list[str]:
        return [run["state"] for run in walk.deployment.airflow.call("GET", path)["dag_runs"]]

    until(lambda: len(found := states()) == 5 and set(found) <= {"success", "failed"})
    assert set(states()) == {"success"}, walk.deployment.last_output()
    computed = walk.lake.recomputed()
    assert walk.lake.stored() == {day: computed[day] for day in range(1, 6)}

    step("status --intervals tells fresh days from those that were never computed")
    bounds = ("--intervals", "--from", "2024-06-01", "--to", "2024-06-11")
    (found,) = walk.json("status", "lake.sales.daily", *bounds)
    assert (found["up_to_date"], found["intervals"]) == (5, 10)
    assert [item["state"] for item in found["ranges"]][-1] == "never-computed"

    step("one run refreshes the five days that are left, in one job")
    conf = {"refresh_interval_start": "2024-06-06", "refresh_interval_end": "2024-06-11"}
    wanted = {"logical_date": None, "dag_run_id": "rest", "conf": conf}
    walk.deployment.airflow.call("POST", "/api/v2/dags/by_day/dagRuns", wanted)
    assert walk.deployment.ended("by_day", "rest") == {"refresh": "success"}
    assert walk.lake.stored() == walk.lake.recomputed()


def test_an_analyst_opens_the_page(walk: Walk, step: Say, browser: Browser) -> None:
    url = walk.deployment.airflow.url
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    cookie = {"name": "_token", "value": walk.deployment.airflow.token(), "url": url, "httpOnly": True}
    context.add_cookies([cookie])  # type: ignore[list-item]
    page = context.new_page()
    expect.set_options(timeout=120_000)

    step("the list names each view and says how old it is")
    page.goto(f"{url}/airflow-mv/")
    expect(page.get_by_role("link", name="by_region", exact=True)).to_be_visible()
    expect(page.locator(".told")).to_contain_text("as of")

    step("a view by days shows its days")
    page.goto(f"{url}/airflow-mv/?view=lake.sales.daily")
    expect(page.locator(".strip .cell").first).to_be_visible()

    step("rows, and the rows that each refresh wrote, are there with the duration")
    page.goto(f"{url}/airflow-mv/?view={VIEW}")
    expect(page.get_by_role("button", name="Duration")).to_be_visible()
    expect(page.get_by_role("button", name="Rows written")).to_be_visible()

    step("a narrow screen does not scroll the page sideways")
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    context.close()
