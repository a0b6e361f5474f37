# SPDX-License-Identifier: Apache-2.0
"""Three users of a real Airflow with PostgreSQL: each step is something that stood in the way of a user once."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
from playwright.sync_api import Browser, Page, expect

from airflow_mv.errors import ViewNotFoundError
from tests.airflow.deployment import until
from tests.plugin.accessibility import faults
from tests.walks.conftest import MISSPELLED, Walk

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
MANY = 5_000


def test_a_dag_author_defines_a_view(walk: Walk, step: Say) -> None:
    step("doctor finds the connection in Airflow's database, and opens its catalog")
    done = walk.command("doctor", "lake", "--conn-id", "iceberg_default", "--json")
    checks = {item["check"]: item for item in json.loads(done.stdout)}
    assert checks["connection iceberg_default"]["ok"], done.stdout
    assert checks["catalog lake"]["ok"], done.stdout

    step("explain shows the modes of a query before the view exists")
    query = "SELECT region, sum(amount) AS amount FROM lake.sales.orders GROUP BY region"
    said = walk.command("explain", "lake.sales.new", "--sql", query, "--conn-id", "iceberg_default")
    assert said.returncode == 0, said.stderr
    assert "merge" in said.stdout

    step("explain refuses what cannot run, without Spark, and names the nearest column and function")
    for wrong, nearest in (("sum(amuont)", "amount"), ("cuont(*)", "count")):
        query_of = f"SELECT region, {wrong} AS n FROM lake.sales.orders GROUP BY region"
        refused = walk.command(
            "explain", "lake.sales.new", "--sql", query_of, "--conn-id", "iceberg_default", java=False
        )
        assert (refused.returncode, f"did you mean '{nearest}'?" in refused.stderr) == (1, True), refused.stderr

    step("a misspelled scope is an import error of the DAG file, with the right one; no task has to run for it")
    (walk.deployment.home.folder / "dags" / "misspelled.py").write_text(MISSPELLED)
    errors = until(lambda: walk.deployment.airflow.call("GET", "/api/v2/importErrors")["import_errors"])
    assert "scope is 'intervall'" in errors[0]["stack_trace"]
    assert "did you mean 'interval'?" in errors[0]["stack_trace"]
    (walk.deployment.home.folder / "dags" / "misspelled.py").unlink()

    step("create --require merge refuses a query that cannot be merged, and makes nothing")
    ranked = "SELECT region, min_by(id, amount) AS id FROM lake.sales.orders GROUP BY region"
    refused = walk.command("create", "lake.sales.ranked", "--sql", ranked, "--require", "merge")
    assert refused.returncode == 1
    with pytest.raises(ViewNotFoundError):
        walk.lake.catalog.load("lake.sales.ranked")

    step("the advice of explain is taken: the query with it meets the requirement, and is created without Spark")
    asked = "SELECT region, sum(amount) AS total FROM lake.sales.orders GROUP BY region"
    advice = walk.json("explain", "lake.sales.advised", "--sql", asked, "--conn-id", "iceberg_default")["advice"]
    taken = ("create", "lake.sales.advised", "--sql", advice["sql"], "--require", "merge")
    made = walk.command(*taken, "--conn-id", "iceberg_default", java=False)
    assert made.returncode == 0, made.stderr

    step("that the view exists is said without Spark, too; every difference is listed, and nothing is changed")
    again = walk.command(*taken, java=False)
    assert (again.returncode, "exists already" in again.stderr) == (1, True), again.stderr
    for policy in ("apply", "fail"):
        other = walk.command("create", "lake.sales.advised", "--sql", asked, "--on-change", policy, java=False)
        assert (other.returncode, f"on_change is '{policy}': query: " in other.stderr) == (1, True), other.stderr
    rebuilt = walk.command("create", "lake.sales.advised", "--sql", asked, "--on-change", "rebuild", java=False)
    assert "the next refresh recomputes all rows, because of: query: " in rebuilt.stdout, rebuilt.stderr

    step("a DAG creates the view and refreshes it, with one Spark application; it is incremental by default")
    assert set(walk.deployment.run("author_1", "first").values()) == {"success"}, walk.deployment.last_output()
    said = "\n".join(walk.deployment.log("author_1", "first", "create"))
    assert "created lake.sales.by_region" in said
    assert "Starting Spark" not in said
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

    step("Python reads the rows by the hook, and NULL is NULL in the text of a read")
    hook = "from airflow_mv.hooks import MaterializedViewHook; "
    rows = walk.python(f"{hook}print(MaterializedViewHook().read({VIEW!r}).to_arrow().num_rows)")
    assert rows.splitlines()[-1] == str(len(walk.json("read", VIEW, "--no-refresh")["rows"]))
    nothing = "SELECT region, nullif(region, region) AS nothing FROM lake.sales.orders"
    assert walk.command("create", "lake.sales.nulls", "--sql", nothing, java=False).returncode == 0
    assert walk.command("refresh", "lake.sales.nulls", "--remote", walk.remote).returncode == 0
    assert "NULL" in walk.command("read", "lake.sales.nulls", "--limit", "1").stdout

    step("a check that fails is said once, with the rows that it refuses, and nothing is published")
    checked = ("--sql", "SELECT region, amount FROM lake.sales.orders", "--check", "amount < 9")
    assert walk.command("create", "lake.sales.checked", *checked, java=False).returncode == 0
    failed = walk.command("refresh", "lake.sales.checked", "--remote", walk.remote)
    assert failed.returncode == 4, failed.stderr
    assert failed.stderr.count("expected amount < 9, of each row; found violating rows") == 1, failed.stderr
    assert walk.command("read", "lake.sales.checked", "--no-refresh").returncode == 1

    step("what refreshes cost is known without a registry, and who requested them: a DAG, or a user and a host")
    asked = {item["view"]: [*item["requested_by"]] for item in walk.json("costs", "--all", "lake")}
    assert {name.partition(" (")[0] for name in asked[VIEW]} == {"author_1", "author_2"}
    assert all("@" in name for name in asked["lake.sales.nulls"])

    step("the last refresh is rolled back without time travel")
    rolled = walk.command("rollback", VIEW, "--to", history[0]["refresh_id"])
    assert rolled.returncode == 0, rolled.stderr

    step("an error of --json is JSON, with a code and whether to try again")
    failed = walk.command("refresh", "lake.sales.nowhere", "--json")
    assert failed.returncode == 1
    error = json.loads(failed.stderr.splitlines()[-1])["error"]
    assert (error["code"], error["retryable"]) == ("ViewNotFoundError", False)

    step("all views of a namespace are refreshed by one command")
    walk.lake.iceberg.create_namespace("reports")
    assert walk.command("create", "lake.reports.total", "--sql", f"SELECT count(*) AS n FROM {VIEW}").returncode == 0
    one = walk.json("refresh", "--namespace", "lake.reports", "--remote", walk.remote)
    assert [(item["view"], item["outcome"]) for item in one] == [("lake.reports.total", "refreshed")]

    step("maintain runs for a whole namespace, and says of each view what it did")
    maintained = walk.command("maintain", "--namespace", "lake.sales")
    assert maintained.returncode == 0, maintained.stderr
    assert "lake.sales.by_region\n  snapshots expired: " in maintained.stdout
    assert "lake.sales.advised\n  snapshots expired: " in maintained.stdout


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

    step("each refresh of an interval has the snapshots that it read in the history")
    history = walk.json("history", "lake.sales.daily")
    assert {item["interval"]["column"] for item in history} == {"day"}
    assert all(item["base_tables"][0]["snapshot_reference"] for item in history)

    step("the view's page says how many days are fresh")
    (found,) = walk.json("status", "lake.sales.daily", *bounds)
    assert (found["up_to_date"], found["intervals"]) == (10, 10)

    step("refresh --all computes no backfilled view as a whole unless that is confirmed, and says what to do instead")
    whole = ("refresh", "--all", "lake", "--conn-id", "iceberg_default", "--remote", walk.remote)
    unasked = walk.command(*whole)
    assert (unasked.returncode, "view lake.sales.daily: only intervals of it" in unasked.stderr) == (1, True)
    assert "which needs --yes. `airflow-mv refresh lake.sales.daily --interval START END`" in unasked.stderr

    step("every view of the catalog is refreshed by one command, after those that it reads; a line says what was done")
    walk.lake.view("all_days", "SELECT count(*) AS n FROM lake.sales.daily")
    every = walk.command(*whole, "--yes")
    assert every.returncode == 0, every.stderr
    done = [line.split("  ")[:2] for line in every.stdout.splitlines()]
    assert {outcome for _, outcome in done} <= {"refreshed", "fresh"}, every.stdout
    views = [view for view, _ in done]
    assert views.index("lake.sales.daily") < views.index("lake.sales.all_days")
    assert ["lake.sales.all_days", "refreshed"] in done
    told = [line for line in every.stderr.splitlines() if " of " in line or "views: " in line]
    assert f"  {len(done)} of {len(done)}: lake.sales.all_days refreshed" in told
    assert re.fullmatch(rf"  {len(done)} views: (\d+ fresh, )?\d+ refreshed", told[-1]), every.stderr

    step("the refresh of a killed worker is taken up within two minutes of Airflow noticing it")
    walk.lake.view("taken_up", "SELECT count(*) AS n FROM lake.sales.orders")
    walk.deployment.start("killed", "killed")
    until(lambda: [item for item in walk.deployment.drivers() if item.name().startswith("python")])
    (java,) = [item for item in walk.deployment.drivers() if item.name() == "java"]
    java.parent().kill()  # the task's own process
    path = "/api/v2/dags/killed/dagRuns/killed/taskInstances/refresh"
    until(lambda: walk.deployment.airflow.call("GET", path)["state"] == "up_for_retry")
    noticed = time.monotonic()
    until(lambda: walk.deployment.airflow.call("GET", path)["state"] == "running")
    assert time.monotonic() - noticed < 120
    assert walk.deployment.ended("killed", "killed") == {"refresh": "success"}, walk.deployment.last_output()

    step("a refresh that is marked failed was stopped from outside: Spark is not blamed")
    crossed = ", ".join(f"lake.sales.orders t{number}" for number in range(14))
    endless = f"SELECT count(*) AS n FROM {crossed} WHERE t0.id + t7.id > t13.amount"
    assert walk.command("create", "lake.sales.endless", "--sql", endless, java=False).returncode == 0
    walk.deployment.start("stopped", "marked")
    path = "/api/v2/dags/stopped/dagRuns/marked/taskInstances/refresh"
    until(lambda: [item for item in walk.deployment.drivers() if item.name().startswith("python")])
    walk.deployment.airflow.call("PATCH", path, {"new_state": "failed"})
    until(lambda: not walk.deployment.drivers(), seconds=180)

    def log() -> str:
        # The error is not in the text of a line, but in its details.
        return json.dumps(walk.deployment.airflow.call("GET", f"{path}/logs/1?full_content=true")["content"])

    until(lambda: "stopped from outside" in log())  # the driver ends before the task writes why
    assert "spark-submit failed" not in log()


@pytest.fixture
def page(walk: Walk, browser: Browser) -> Iterator[Page]:
    """A tab of a logged-in analyst, with a touch screen beside the keyboard."""
    url = walk.deployment.airflow.url
    context = browser.new_context(viewport={"width": 1280, "height": 800}, has_touch=True)
    cookie = {"name": "_token", "value": walk.deployment.airflow.token(), "url": url, "httpOnly": True}
    context.add_cookies([cookie])  # type: ignore[list-item]
    expect.set_options(timeout=120_000)
    yield context.new_page()
    context.close()


def test_an_analyst_opens_the_page(walk: Walk, step: Say, page: Page) -> None:
    home = f"{walk.deployment.airflow.url}/airflow-mv/"
    assert set(walk.deployment.run("author_1", "analyst").values()) == {"success"}, walk.deployment.last_output()
    line = page.locator("tbody", has=page.get_by_role("link", name="by_region", exact=True))

    walk.lake.append()
    page.goto(home)
    painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    step(f"the outline of the page was there {painted:.0f} ms after its first request, which waits for no catalog")

    step("the list names each view, says how old it is, and gives the reason of its state")
    expect(line.locator(".pill").first).to_have_text("stale")
    expect(line.locator(".why")).to_contain_text("lake.sales.orders advanced")
    expect(page.locator(".told")).to_contain_text("as of")

    step("a refresh that fails is marked in the list, with its error, and its row in the history shows it")
    assert walk.deployment.run("analyst_fails", "first")["refresh"] == "failed"
    page.goto(home)
    line.get_by_role("button", name="failed").tap()
    expect(page.get_by_role("dialog", name="Details")).to_contain_text("there is no connection 'nowhere'")
    page.goto(f"{home}?view={VIEW}")
    expect(page.locator("tr", has_text="failed").first).to_contain_text("there is no connection 'nowhere'")

    step("a view that a failed task did not create is in the list, with the task and its error")
    assert walk.deployment.run("analyst_creates", "first")["create"] == "failed"
    page.goto(f"{home}?state=not-created")
    absent = page.locator("tbody", has_text="lake.sales.absent")
    expect(absent).to_contain_text("The view does not exist: task create of DAG analyst_creates failed")
    expect(absent).to_contain_text("lake.sales.nowhere")

    step("a view whose lag exceeds its max staleness is late, and the list shows only late ones on demand")
    late = ("--property", "airflow-mv.max-staleness=1 s", "--sql", "SELECT count(*) AS n FROM lake.sales.orders")
    assert walk.command("create", "lake.sales.watched", *late, java=False).returncode == 0
    page.goto(home)
    page.get_by_role("button", name=re.compile(r"^\d+ late$")).tap()
    watched = page.locator("tbody", has=page.get_by_role("link", name="watched", exact=True))
    watched.get_by_role("button", name="late").tap()
    expect(page.get_by_role("dialog", name="Details")).to_contain_text("max staleness of 1 s")

    step("running is a state in the list, in the view and in the graph")
    page.goto(f"{home}?view={VIEW}")
    walk.deployment.start("analyst_waits", "first")
    expect(page.locator(".title .at-work")).to_be_visible()
    page.goto(f"{home}?state=running")
    expect(line.locator(".at-work")).to_be_visible()
    page.get_by_role("button", name="Graph").tap()
    expect(page.locator("g.node.at-work", has_text="by_region")).to_be_visible()
    (walk.deployment.home.airflow_home / "go").touch()
    assert walk.deployment.ended("analyst_waits", "first") == {"wait": "success"}

    step("a view by days shows its days")
    page.goto(f"{home}?view=lake.sales.daily")
    expect(page.locator(".strip .cell").first).to_have_text("1")

    step("size, rows written, duration and lag are plotted; arrow keys go from one refresh to the next")
    page.goto(f"{home}?view={VIEW}")
    expect(page.locator(".facts")).to_contain_text("written by the last refresh")
    for measure in ("Rows", "Bytes", "Rows written", "Duration"):
        page.get_by_role("button", name=measure, exact=True).press("Enter")
        expect(page.locator(".plot .point").first).to_be_visible()
    page.locator(".plot .point").last.focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".timeline .told-bar")).not_to_be_empty()
    assert faults(page) == []

    step("what refreshes cost is there at once, without a registry: durations, modes, rows, and who requested them")
    page.goto(f"{home}?as=costs")
    cost = page.locator(".card", has_text="Cost by view").locator("tr", has_text=VIEW)
    expect(cost).to_contain_text("author_1")
    expect(cost).to_contain_text(re.compile(r"\d+ merge|\d+ full"))
    expect(cost.locator(".time")).to_contain_text(re.compile(r"\d"))

    step("by the keyboard alone: search, go to the view, open it")
    page.goto(home)
    expect(line).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("by_reg")
    expect(page.locator("td.name a")).not_to_have_count(7)  # a view that reads it is found, too
    expect(page.locator("td.name a").first).to_have_text("by_region")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(VIEW)

    step("views are grouped by namespace and by DAG")
    page.goto(f"{home}?group=dag")
    expect(page.locator("tbody.group", has_text="author_1")).to_be_visible()
    page.get_by_role("combobox", name="Group by").select_option("namespace")
    expect(page.locator("tbody.group", has_text="lake.sales")).to_be_visible()

    step("what there is no room for can be reached by touch, and a narrow screen has two lines for a view")
    page.set_viewport_size({"width": 390, "height": 800})
    line.get_by_role("button", name="Details of by_region").tap()
    expect(page.get_by_role("dialog", name="Details")).to_contain_text("Base tables")
    page.keyboard.press("Escape")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert line.evaluate("item => item.offsetHeight") < 80
    page.set_viewport_size({"width": 1280, "height": 800})


def test_an_analyst_has_five_thousand_views(walk: Walk, step: Say, page: Page) -> None:
    assert set(walk.deployment.run("author_1", "many").values()) == {"success"}, walk.deployment.last_output()
    home = f"{walk.deployment.airflow.url}/airflow-mv/"
    page.goto(f"{home}?view=lake.sales.nowhere")  # the api-server imports the page's application, and looks at no view
    expect(page.get_by_text("Go back to all views")).to_be_visible()
    with many_views(walk, MANY):
        step(f"the first look at {MANY:,} views shows the list, and how old it is")
        page.wait_for_timeout(10_000)  # what another walk has read is shown for page_cache_seconds
        started = time.monotonic()
        page.goto(home)
        expect(page.locator(".pager")).to_contain_text(re.compile(r"of 5,\d{3}"))
        expect(page.locator(".told")).to_have_text(re.compile("as of|looking"))
        first = time.monotonic() - started
        step(f"the list was there after {first:.1f} s")
        assert first < 10  # 2 s on an idle host

        step("all states are read while it is open")
        expect(page.get_by_role("button", name="not read yet")).to_have_count(0)
        expect(page.locator(".told")).to_contain_text("as of")

        step("search and groups are as quick as ever")
        page.get_by_role("searchbox").fill("v4321")
        expect(page.locator("td.name a")).to_have_text(["v4321"])
        page.get_by_role("searchbox").fill("")
        page.get_by_role("combobox", name="Group by").select_option("namespace")
        expect(page.locator("tbody.group", has_text="lake.sales")).to_contain_text(re.compile(r"5,\d{3} (stale|fresh)"))

        step("the graph shows the most urgent ones, counts the rest in their group, and zooms")
        page.get_by_role("button", name="Graph").click()
        group = page.locator("g.node.group", has_text="lake.sales")
        expect(group).to_contain_text(re.compile(r"[45],\d{3} views"))
        if "5," in (group.text_content() or ""):  # other walks have made other groups, so none is open
            group.click()
        expect(group).to_contain_text(re.compile(r"4,\d{3} views"))
        assert page.locator("g.node").count() >= 151  # 150, and the groups of the others
        page.get_by_role("button", name="Fit the graph").click()
        expect(page.locator(".zoom output")).not_to_have_text("100 %")


@contextmanager
def many_views(walk: Walk, number: int) -> Iterator[None]:
    """Copies of a view under other names, as far as the catalog goes."""
    database = walk.lake.catalog.properties["uri"].removeprefix("sqlite:///")
    copied = "SELECT catalog_name, table_namespace, ?, metadata_location, previous_metadata_location, iceberg_type"
    insert = f"INSERT INTO iceberg_tables {copied} FROM iceberg_tables WHERE table_name = 'by_region'"
    names = [(f"v{place:04}",) for place in range(number)]
    with closing(sqlite3.connect(database)) as rows, rows:
        rows.executemany(insert, names)
    yield
    with closing(sqlite3.connect(database)) as rows, rows:
        rows.executemany("DELETE FROM iceberg_tables WHERE table_name = ?", names)
