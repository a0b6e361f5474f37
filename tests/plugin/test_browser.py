# SPDX-License-Identifier: Apache-2.0
"""The page in a browser: Chromium, inside Airflow's own UI, with a real API server."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Browser, BrowserContext, FrameLocator, Locator, Page, expect

from airflow_mv.tasks.scope import END_PARAM, START_PARAM
from tests.builders import Lake
from tests.plugin.accessibility import faults
from tests.plugin.prepare import FAILURE
from tests.plugin.served import Served, served
from tests.plugin.shop import DAGS, HOSTILE, UNEXPECTED, connection, refresh_ids, shop

pytestmark = [pytest.mark.airflow, pytest.mark.browser, pytest.mark.timeout(600)]

PAGE = "/plugin/materialized-views"
#: The same page outside of Airflow's UI, which takes several times as long to load.
ALONE = "/airflow-mv/"
REVENUE = "lake.sales.daily_revenue"
STALE = "lake.sales.customer_value"
FORECAST = "lake.sales.weekly_forecast"
DAILY = "lake.sales.daily"
CHOSEN = "21\N{EN DASH}24 Jun 2024"
CHEAPEST = f"lake.sales.{UNEXPECTED}"
BACKFILLED = {
    "refresh_id": "a day",
    "mode": "replace-interval",
    "rows_written": 31,
    "interval": {"column": "day", "start": "2024-06-01T00:00:00+00:00", "end": "2024-06-02T00:00:00+00:00"},
    "reasons": [{"code": "INTERVAL", "message": "the rows of that day are recomputed"}],
    "checks": {"passed": 2, "of": 3, "warned": ["not too few"]},
}
REFRESHED = {"mode": "full", "rows_written": 3, "seconds": 12.5, "lag_seconds": 9000.0}
_MS = 180_000
#: Pixels of a line of text and the space around it.
_LINE = 24


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """A realistic lake."""
    with shop(tmp_path_factory.mktemp("shop")) as found:
        yield found


@pytest.fixture(scope="module")
def server(lake: Lake, browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An API server for it; one of the page's two connections is missing."""
    published = {
        view: {**REFRESHED, "view": view, "refresh_id": refresh_id}
        for view, refresh_id in refresh_ids(lake).items()
        if view in (REVENUE, STALE)
    }
    runs = [
        {"dag_id": "sales_morning", "hours": 9, "kind": "scheduled", "published": {STALE: None}},
        {"dag_id": "sales_morning", "hours": 8, "kind": "manual jana", "published": published},
        {"dag_id": "sales_morning", "hours": 7, "kind": "backfill", "published": {CHEAPEST: BACKFILLED}},
        # Of a DAG that is not in the folder: one that is would keep the tasks of this run.
        {"dag_id": "forecast_once", "hours": 6, "kind": "scheduled", "published": {FORECAST: None}},
        {"dag_id": "creates_a_view", "hours": 5, "kind": "scheduled", "published": {"lake.sales.new": None}},
        {"dag_id": "already_fresh"},
    ]
    folder = lake.catalog.properties["warehouse"].removeprefix("file://").removesuffix("/warehouse")
    settings = {
        "AIRFLOW_CONN_ICEBERG_DEFAULT": connection(folder),
        "AIRFLOW__AIRFLOW_MV__PAGE_CONN_IDS": "iceberg_default, nowhere",
    }
    with served(tmp_path_factory.mktemp("server"), dags=DAGS, settings=settings, runs=runs) as found:
        yield found


@pytest.fixture
def messages() -> list[str]:
    """Messages of the browser: violated policies, uncaught errors, dialogs."""
    return []


@pytest.fixture(scope="module")
def contexts(server: Served, browser: Browser) -> Iterator[dict[str, BrowserContext]]:
    """A browser context for each user, so that fetched files are cached between tabs."""
    found = {
        user: server.context(browser, user, viewport={"width": 1280, "height": 800}) for user in ("viewer", "user")
    }
    yield found
    for context in found.values():
        context.close()


def tab(context: BrowserContext, messages: list[str]) -> Page:
    """A tab of a logged-in user."""
    page = context.new_page()
    page.set_default_timeout(_MS)
    expect.set_options(timeout=_MS)
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("dialog", lambda dialog: messages.append(dialog.message))
    page.on("console", lambda entry: "airflow-mv/" in entry.text and messages.append(entry.text))
    return page


@pytest.fixture
def reader(contexts: dict[str, BrowserContext], messages: list[str]) -> Iterator[Page]:
    """A tab of a user with read permission; it must not report errors."""
    page = tab(contexts["viewer"], messages)
    yield page
    page.close()
    assert messages == []


@pytest.fixture
def user(contexts: dict[str, BrowserContext], messages: list[str]) -> Iterator[Page]:
    """A tab of a user who may run DAGs."""
    page = tab(contexts["user"], messages)
    yield page
    page.close()
    assert messages == []


def frame(page: Page) -> FrameLocator | Page:
    """The page, inside Airflow's UI or alone."""
    return page if urlsplit(page.url).path == ALONE else page.frame_locator("iframe")


def told(page: Page, button: Locator) -> Locator:
    """The note that a button opens, by the keyboard. Escape closed the last one, and the focus is on its button."""
    note = frame(page).get_by_role("dialog", name="Details")
    if note.is_visible():
        page.keyboard.press("Escape")
        expect(note).to_be_hidden()
        expect(frame(page).locator(":focus")).to_have_class(re.compile("tip"))
    button.press("Enter")
    return note


def unreachable(page: Page) -> list[str]:
    """Texts that only a pointer that hovers can reach: titles that are not the name of something with the focus."""
    hovers = 'item.tagName !== "BUTTON" || item.ariaLabel !== item.title'
    return frame(page).locator("[title]").evaluate_all(f"all => all.filter(item => {hovers}).map(item => item.title)")


def names(page: Page) -> list[str]:
    """The listed views, once all have been read."""
    expect(frame(page).locator(".under .told")).to_contain_text("as of")
    return frame(page).locator("td.name a").all_inner_texts()


def test_a_reader_finds_every_view_from_the_navigation_and_each_has_a_link(server: Served, reader: Page) -> None:
    """Problems come first; the broken view, the missing connection and the odd name hide nothing.

    A view's link in Airflow's own URL can be shared.
    """
    asked: list[str] = []
    reader.on("request", lambda request: asked.append(urlsplit(request.url).path))
    reader.goto(server.url)
    icon = reader.get_by_role("link", name="Mat. views").locator("img")
    expect(icon).to_be_visible()
    assert icon.evaluate("async image => { await image.decode(); return image.naturalWidth }") > 0
    assert not [path for path in asked if path.startswith("/airflow-mv")], "Airflow's other pages load nothing of ours"
    reader.get_by_text("Mat. views").click()
    assert names(reader)[:2] == ["abandoned", "coupon_use"]
    assert {HOSTILE, "daily_revenue", "weekly_forecast"} <= set(names(reader))
    assert "plain" not in names(reader)
    expect(frame(reader).get_by_role("alert")).to_contain_text("there is no connection 'nowhere'")
    absent = frame(reader).locator("tbody", has_text="not created")
    expect(absent).to_contain_text("lake.sales.new")
    expect(absent).to_contain_text("The view does not exist: task new of DAG creates_a_view failed 5 h ago.")
    expect(absent).to_contain_text(f"SparkJobError: {FAILURE}")
    expect(frame(reader).locator("img")).to_have_count(0)
    frame(reader).get_by_role("link", name="daily_revenue", exact=True).click()
    expect(frame(reader).get_by_role("heading", level=1)).to_have_text(REVENUE)
    expect(reader).to_have_url(f"{server.url}{PAGE}/airflow-mv/?view={REVENUE}")
    reader.reload()
    expect(frame(reader).get_by_role("heading", level=1)).to_have_text(REVENUE)
    frame(reader).get_by_role("link", name="All views").click()
    assert "daily_revenue" in names(reader)


def test_a_page_that_is_opened_after_a_view_was_created_shows_it_soon(server: Served, lake: Lake, reader: Page) -> None:
    """Not only with the next request of an idle page: other readers may have caused a survey just before."""
    reader.goto(f"{server.url}{ALONE}")
    names(reader)
    lake.view("created_now", "SELECT id FROM lake.sales.orders")
    try:
        reader.reload()
        names(reader)
        opened = time.monotonic()
        expect(frame(reader).get_by_role("link", name="created_now", exact=True)).to_be_visible()
        assert time.monotonic() - opened < 20  # an idle page asks every 30 s
    finally:
        lake.catalog.drop("sales.created_now")


def test_filter_sort_and_keys(server: Served, reader: Page) -> None:
    """Everything can be done with the keyboard, and the state is in the URL."""
    reader.goto(f"{server.url}{ALONE}")
    names(reader)
    assert faults(reader) == []
    reader.keyboard.press("Tab")
    outline = "item => getComputedStyle(item).outlineStyle"
    assert frame(reader).get_by_role("searchbox").evaluate(outline) == "solid", "the focus is seen"
    frame(reader).get_by_role("heading").click()  # move the focus into the frame
    reader.keyboard.press("/")
    reader.keyboard.type("revenue")
    expect(frame(reader).locator("td.name a")).to_have_text(["daily_revenue", "region_report"])
    reader.keyboard.press("ArrowDown")
    expect(frame(reader).locator("td.name a").first).to_be_focused()
    frame(reader).get_by_role("button", name="View").press("Enter")
    frame(reader).get_by_role("button", name="View").press("Enter")
    expect(frame(reader).locator("td.name a")).to_have_text(["region_report", "daily_revenue"])
    frame(reader).get_by_role("searchbox").fill("nothing like this")
    expect(frame(reader).get_by_text("No view matches this filter.")).to_be_visible()
    frame(reader).get_by_role("button", name="Show all").click()
    failed = told(reader, frame(reader).locator("tr", has_text="weekly_forecast").get_by_role("button", name="failed"))
    expect(failed).to_contain_text(f"SparkJobError: {FAILURE}")
    reader.keyboard.press("Escape")
    states = frame(reader).get_by_role("group", name="States")
    states.get_by_role("button", name="1 late").press("Enter")
    expect(frame(reader).locator("td.name a")).to_have_text(["stock_by_region"])
    late = told(reader, frame(reader).locator("td.lag").get_by_role("button", name="late"))
    expect(late).to_have_text("The view is later than its max staleness of 1 s allows.")
    reader.keyboard.press("Escape")
    states.get_by_role("button", name="1 late").press("Enter")
    only = states.get_by_role("button", name="2 failed")
    only.press("Enter")
    expect(frame(reader).locator("td.name a")).to_have_text(["weekly_forecast"])
    expect(reader).to_have_url(re.compile(r"[?&]state=failed"))
    reader.reload()
    expect(only).to_have_attribute("aria-pressed", "true")
    expect(frame(reader).locator("td.name a")).to_have_text(["weekly_forecast"])
    only.press("Enter")
    frame(reader).get_by_role("button", name=re.compile("stale$")).click()
    expect(frame(reader).locator("td .pill")).to_have_text(["stale", "stale", "21 of 26 days fresh", "stale"])
    details = told(reader, frame(reader).get_by_role("button", name="Details of customer_value"))
    expect(details).to_contain_text(re.compile(r"lake.sales.customers advanced \d{12,} → \d{12,}"))
    assert unreachable(reader) == []
    assert faults(reader) == []


def test_views_are_grouped_by_dag_and_by_namespace(server: Served, reader: Page) -> None:
    """A group says how many views it has in each state, and is closed by the keyboard."""
    reader.goto(f"{server.url}{ALONE}")
    names(reader)
    reader.get_by_role("combobox", name="Group by").select_option("dag")
    expect(reader.locator("tbody.group button")).to_have_text(
        [re.compile(name) for name in ("already_fresh", "by_day", "creates_a_view", "forecast_by_day",
                                       "forecast_once", "forecast_with_scope", "sales_morning", "sales_report",
                                       "no DAG")]
    )  # fmt: skip
    report = reader.locator("tbody.group", has_text="sales_report")
    expect(report.locator(".pill")).to_have_text(["1 stale", "1 fresh", "1 late"])
    lines = reader.locator("td.name a", has_text="region_report")
    report.get_by_role("button").press("Enter")
    expect(lines).to_have_count(0)
    report.get_by_role("button").press("Enter")
    expect(lines).to_have_count(1)
    assert faults(reader) == []
    reader.get_by_role("combobox", name="Group by").select_option("namespace")
    expect(reader.locator("tbody.group button")).to_have_text([re.compile("lake.sales$")])
    expect(reader).to_have_url(re.compile(r"\?group=namespace$"))


def test_a_narrow_screen_has_two_lines_for_each_view(server: Served, reader: Page) -> None:
    """Nothing is cut off or has to be scrolled to: what there is no room for is among the details."""
    reader.goto(f"{server.url}{ALONE}")
    names(reader)
    reader.set_viewport_size({"width": 390, "height": 800})
    heights = frame(reader).locator("tbody").evaluate_all("lines => lines.map(line => line.offsetHeight)")
    assert max(heights) < 3 * _LINE
    assert reader.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert frame(reader).locator(".wide").evaluate("place => place.scrollWidth <= place.clientWidth")
    reader.set_viewport_size({"width": 1280, "height": 800})


def test_a_view_shows_why_it_is_stale_and_what_a_refresh_would_do(server: Served, reader: Page) -> None:
    """Reasons, plan, base tables, Airflow's refreshes with the failed one, its part of the graph."""
    reader.goto(f"{server.url}{ALONE}?view={STALE}")
    view = frame(reader)
    expect(view.get_by_text("Why it is stale")).to_be_visible()
    expect(view.locator("svg.graph .told").first).to_have_text("stale")
    expect(view.locator(".facts")).to_contain_text(re.compile(r"rows 3\s*written by the last refresh 3"))
    view.get_by_role("button", name="Lag").click()
    expect(view.locator(".plot text.limit")).to_have_text("max staleness 2 h")
    expect(view.locator(".timeline .legend")).to_contain_text("within max staleness at 0 of 1 refreshes")
    view.locator(".plot .point").focus()
    expect(view.locator(".timeline .told-bar")).to_contain_text("ended a lag of 2 h 30 min")
    assert faults(reader) == []
    plan = view.locator(".card", has_text="What a refresh would do now")
    expect(plan).to_contain_text("Spark statement")
    expect(plan).to_contain_text(re.compile(r"lake.sales.customers advanced …\W?\d{6} → …\W?\d{6}:"))
    expect(plan).not_to_contain_text("BASE_CHANGED")
    code = told(reader, plan.get_by_role("button", name="Reason code of").first)
    expect(code).to_contain_text(re.compile(r"advanced \d{12,} → \d{12,}.*Reason code BASE_CHANGED", re.DOTALL))
    changed = view.locator("tr.changed")
    expect(changed).to_contain_text("lake.sales.customers")
    expect(changed).to_contain_text("+1")
    lines = view.locator(".card", has=view.locator(".timeline")).locator("tbody tr")
    expect(lines).to_have_count(2)
    expect(lines.nth(0)).to_contain_text("jana (manual)")
    expect(lines.nth(0)).to_contain_text("13 s")
    expect(lines.nth(1)).to_contain_text(f"SparkJobError: {FAILURE}")
    expect(view.locator("svg.graph text:not(.told)")).to_have_text(["customer_value", "customers", "orders"])
    expect(view.locator("svg.graph .edge")).to_have_count(2)
    dag = view.get_by_role("link", name="sales_morning").first
    expect(dag).to_have_attribute("href", re.compile("/dags/sales_morning"))


def test_hostile_and_broken_views_can_be_opened(server: Served, reader: Page) -> None:
    """Text is shown as text; an error has a message and a link back."""
    reader.goto(f"{server.url}{ALONE}")
    names(reader)
    frame(reader).get_by_role("link", name=HOSTILE).click()
    expect(frame(reader).get_by_role("heading", level=1)).to_contain_text(HOSTILE)
    expect(frame(reader).locator("svg.graph text").first).to_be_visible()
    expect(frame(reader).locator("img")).to_have_count(0)
    reader.goto(f"{server.url}{ALONE}?view=lake.sales.abandoned")
    expect(frame(reader).get_by_role("alert")).to_contain_text("not valid JSON")
    reader.goto(f"{server.url}{ALONE}?view=lake.sales.gone")
    expect(frame(reader).get_by_role("alert")).to_contain_text("Go back to all views")


def test_a_reader_is_offered_no_refresh_and_is_told_what_it_needs(server: Served, reader: Page) -> None:
    """No button that Airflow would refuse; so they know which permission to request."""
    for view, told in ((STALE, "Refreshed by DAG sales_morning"), (DAILY, "You may not run the DAG that refreshes")):
        reader.goto(f"{server.url}{ALONE}?view={view}")
        expect(frame(reader).get_by_text(told)).to_be_visible()
        expect(frame(reader).get_by_text("To run it, you need the permission to create its runs.")).to_be_visible()
        expect(frame(reader).get_by_role("button", name=re.compile("Refresh|Backfill|Choose"))).to_have_count(0)
    hint = frame(reader).get_by_text("No refresh of this view has run in this Airflow.")
    expect(hint).to_be_visible()


def test_a_user_refreshes_a_view_by_running_its_dag_with_their_own_permissions(server: Served, user: Page) -> None:
    """Airflow creates the run in the user's name."""
    user.goto(f"{server.url}{PAGE}/airflow-mv/?view={STALE}")
    frame(user).get_by_role("button", name="Refresh now").click()
    dialog = frame(user).get_by_role("dialog")
    expect(dialog).to_contain_text("Run DAG sales_morning?")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_have_count(0)
    frame(user).get_by_role("button", name="Refresh now").click()
    dialog.get_by_role("button", name="Run it").click()
    expect(dialog).to_contain_text("The run has been created")
    runs = server.call("GET", "/api/v2/dags/sales_morning/dagRuns?order_by=-run_after", user="admin")["dag_runs"]
    assert (runs[0]["state"], runs[0]["triggering_user_name"]) == ("queued", "user")
    expect(frame(user).locator(".mode.running").first).to_have_text("waiting")
    expect(frame(user).locator(".title .at-work")).to_have_text("▸ running")
    dialog.get_by_role("link").click()
    expect(user).to_have_url(re.compile("/dags/sales_morning/runs/manual"))


def test_an_interval_is_requested_for_a_dag_that_refreshes_intervals(server: Served, user: Page) -> None:
    """Its tasks refuse a manual run without an interval. The default is the day before in the schedule's time zone."""
    user.goto(f"{server.url}{ALONE}?view={FORECAST}")
    frame(user).get_by_role("button", name="forecast_by_day").click()
    dialog = frame(user).get_by_role("dialog")
    expect(dialog).to_contain_text("Times are those of Europe/Berlin")
    start, end = dialog.get_by_label("From"), dialog.get_by_label("To, not included")
    first, after = (date.fromisoformat(field.input_value().removesuffix("T00:00")) for field in (start, end))
    assert after - first == timedelta(days=1)
    assert timedelta() <= datetime.now(ZoneInfo("Europe/Berlin")).date() - after <= timedelta(days=1)
    start.fill("2024-07-01T00:00")
    end.fill("2024-06-02T00:00")
    dialog.get_by_role("button", name="Run it").click()
    expect(dialog).to_contain_text("the second must be the later one")
    start.fill("2024-01-31T00:00")
    dialog.get_by_role("button", name="Run it").click()
    expect(dialog).to_contain_text("The run has been created")
    (run,) = server.call("GET", "/api/v2/dags/forecast_by_day/dagRuns", user="admin")["dag_runs"]
    interval = {START_PARAM: "2024-01-31T00:00:00+01:00", END_PARAM: "2024-06-02T00:00:00+02:00"}
    assert (run["conf"], run["triggering_user_name"]) == (interval, "user")


def test_days_are_chosen_on_a_strip_and_refreshed_in_one_run_or_backfilled(server: Served, user: Page) -> None:
    """How many days are fresh stands in place of "stale". By keyboard alone; each dialog says what its button does."""
    user.goto(f"{server.url}{ALONE}?view={DAILY}")
    view = frame(user)
    expect(view.locator(".title .pill")).to_have_text("21 of 26 days fresh")
    stale = view.locator(".strip .cell.stale")
    expect(stale).to_have_attribute("aria-label", "15 Jun 2024: stale")
    expect(stale).to_have_text("15!")
    choose, told = view.get_by_role("button", name="Choose the stale days"), view.locator(".chosen [role=status]")
    expect(choose).to_have_text("Choose the stale days (2 ranges, one after another)")
    for chosen in ("15 Jun 2024 · 1 stale", f"{CHOSEN} · 4 never computed", "15 Jun 2024 · 1 stale"):
        choose.press("Enter")
        expect(told).to_have_text(chosen)
    view.locator(".strip .cell").last.focus()
    for key in ("Home", *["ArrowRight"] * 20, *["Shift+ArrowRight"] * 3):
        user.keyboard.press(key)
    expect(told).to_have_text(f"{CHOSEN} · 4 never computed")
    assert faults(user) == []

    view.get_by_role("button", name="Refresh in one run").press("Enter")
    dialog = view.get_by_role("dialog")
    expect(dialog).to_contain_text(f"One run refreshes {CHOSEN} as one interval")
    assert faults(user) == []
    dialog.get_by_role("button", name="Run it").click()
    expect(dialog).to_contain_text("The run has been created")
    (run,) = server.call("GET", "/api/v2/dags/by_day/dagRuns", user="admin")["dag_runs"]
    assert run["conf"] == {START_PARAM: "2024-06-21T00:00:00+00:00", END_PARAM: "2024-06-25T00:00:00+00:00"}
    dialog.get_by_role("button", name="Close").click()
    expect(view.locator(".strip .cell.running")).to_have_count(4)
    expect(view.locator("tr", has_text="waiting")).to_contain_text(CHOSEN)

    view.locator(".strip .cell.stale").click()
    view.get_by_role("button", name="Backfill").click()
    expect(dialog).to_contain_text("Airflow creates 1 run, dated 2024-06-16 00:00")
    dialog.get_by_role("button", name="Run it").click()
    expect(dialog).to_contain_text("The backfill has been created")
    (made,) = server.call("GET", "/api/v2/backfills?dag_id=by_day", user="admin")["backfills"]
    assert (made["from_date"][:10], made["to_date"][:10], made["max_active_runs"]) == ("2024-06-16", "2024-06-16", 4)
    expect(view.locator(".strip .cell.running")).to_have_count(5)
    user.goto(f"{server.url}{ALONE}")
    line = view.locator("tr", has=view.get_by_role("link", name="daily", exact=True))
    expect(line.locator(".at-work")).to_have_text("▸ running")
    view.get_by_role("button", name="running", exact=False).click()
    expect(view.locator("td.name a", has_text="region_report")).to_have_count(0)
    view.get_by_role("button", name="Graph").click()
    expect(view.locator("g.node.at-work", has_text="daily").first).to_be_visible()


@pytest.mark.slow
def test_a_dag_that_only_its_own_form_can_run_is_linked(server: Served, user: Page) -> None:
    """A template decides what it refreshes, so the button cannot know the parameters."""
    user.goto(f"{server.url}{PAGE}/airflow-mv/?view={FORECAST}")
    action = frame(user).locator(".action", has_text="forecast_with_scope")
    expect(action).to_contain_text("use Trigger on the DAG's own page")
    expect(action.get_by_role("button")).to_have_count(0)
    action.get_by_role("link", name="forecast_with_scope").click()
    expect(user).to_have_url(re.compile("/dags/forecast_with_scope"))


def test_each_refresh_shows_its_rows_and_reasons(server: Served, reader: Page) -> None:
    """For all refreshes in Airflow's database, not only the current one; unexpected ones are marked."""
    reader.goto(f"{server.url}{ALONE}?view={CHEAPEST}")
    refreshes = frame(reader).locator(".card", has=frame(reader).locator(".timeline"))
    lines = refreshes.locator("tbody tr")
    # Found by their text: another test may have added a refresh above them.
    recomputed, of_a_day = lines.filter(has_text="unexpected"), lines.filter(has_text="1 Jun 2024")
    mark = told(reader, recomputed.get_by_role("button", name="unexpected"))
    expect(mark).to_contain_text(re.compile("Unexpected full refresh: .*MIN_BY"))
    expect(told(reader, of_a_day.get_by_role("button", name="2/3 passed"))).to_have_text("not too few: warned")
    expect(told(reader, of_a_day.get_by_role("button", name="1 Jun 2024"))).to_contain_text("the end excluded")
    assert unreachable(reader) == []
    expect(of_a_day).to_contain_text("the rows of that day are recomputed")
    expect(refreshes.locator(".plot .unexpected")).to_have_count(1)
    first = refreshes.locator(".plot .point").first
    expect(first).to_have_attribute("aria-label", re.compile("replace-interval 1 Jun"))
    refreshes.locator(".plot .point").last.focus()
    reader.keyboard.press("Home")
    expect(refreshes.locator(".told-bar")).to_contain_text("replace-interval 1 Jun 2024")
    with reader.expect_response(re.compile(r"/view\?")):  # the page reads the view again
        first.evaluate("point => point.setAttribute('data-drawn-before', '')")
        first.evaluate("() => document.dispatchEvent(new Event('visibilitychange'))")
    expect(refreshes.locator("[data-drawn-before]")).to_have_count(0)
    expect(first).to_be_focused()
    expect(refreshes.locator(".told-bar")).to_contain_text("replace-interval 1 Jun 2024")
    refreshes.get_by_role("button", name="Rows written").press("Enter")
    expect(refreshes.locator(".plot text", has_text=re.compile(r"^40$"))).to_be_visible()
    expect(refreshes.locator(".legend")).to_contain_text("incremental, or of an interval: 1")
    reader.goto(f"{server.url}{ALONE}")
    names(reader)
    expect(frame(reader).locator("tr", has_text=UNEXPECTED).locator(".mark")).to_have_text("unexpected")


@pytest.mark.slow
def test_the_colours_follow_airflow_s_theme(server: Served, reader: Page) -> None:
    """The system's setting, until the reader has chosen one in Airflow; changes apply at once."""
    reader.emulate_media(color_scheme="dark")
    reader.goto(f"{server.url}{PAGE}")
    root = frame(reader).locator("html")
    expect(root).to_have_attribute("data-theme", "dark")
    dark = frame(reader).locator("body").evaluate("body => getComputedStyle(body).backgroundColor")
    reader.evaluate("localStorage.setItem('theme', 'light')")
    expect(root).to_have_attribute("data-theme", "light")
    assert frame(reader).locator("body").evaluate("body => getComputedStyle(body).backgroundColor") != dark
    reader.reload()
    expect(root).to_have_attribute("data-theme", "light")
    expect(reader.locator("html")).to_have_class(re.compile("light"))
    reader.evaluate("localStorage.removeItem('theme')")


def test_a_dag_has_a_tab_with_the_views_that_it_refreshes(server: Served, reader: Page) -> None:
    """A DAG without views says so, because Airflow shows a tab on every DAG or on none."""
    reader.goto(f"{server.url}/dags/sales_report")
    reader.get_by_role("link", name="Materialized views").or_(
        reader.get_by_role("tab", name="Materialized views")
    ).click()
    assert sorted(names(reader)) == ["region_report", "stock_by_region"]
    assert frame(reader).locator(".wide").evaluate("place => place.scrollWidth <= place.clientWidth")
    frame(reader).get_by_role("link", name="region_report").click()
    expect(frame(reader).get_by_role("heading", level=1)).to_have_text("lake.sales.region_report")
    reader.goto(f"{server.url}/dags/without_views/plugin/dag-materialized-views")
    expect(frame(reader).get_by_text("This DAG refreshes no materialized view.")).to_be_visible()


def test_the_graph_shows_what_reads_what_zooms_and_opens_groups(server: Served, reader: Page) -> None:
    """By the keyboard: from node to node along the arrows. A node links to its view."""
    reader.goto(f"{server.url}{ALONE}")
    names(reader)
    reader.get_by_role("button", name="Graph").click()
    report = reader.locator("g.node", has_text="region_report")
    expect(report).to_be_visible()
    assert reader.locator("path.edge").count() >= 9
    assert "arrow" in reader.locator("path.edge").first.evaluate("edge => getComputedStyle(edge).markerEnd")
    reader.locator("svg.graph a", has_text="returns_by_region").focus()
    told_bar = reader.locator(".told-bar")
    expect(told_bar).to_have_text("lake.sales.returns_by_region, fresh, reads 1, read by 1")
    reader.keyboard.press("ArrowRight")
    expect(told_bar).to_have_text(re.compile("^lake.sales.region_report, fresh"))
    expect(reader.locator("path.edge.near")).to_have_count(2)
    before = report.bounding_box()
    reader.get_by_role("button", name="Zoom out").click()
    after = report.bounding_box()
    assert before
    assert after
    assert after["width"] == pytest.approx(before["width"] / 1.25, rel=0.05)
    reader.get_by_role("combobox", name="Group by").select_option("dag")
    group = reader.get_by_role("link", name="group sales_report, 1 stale, 1 fresh")
    expect(group).to_be_visible()
    assert faults(reader) == []
    group.press("Enter")
    expect(reader.get_by_role("link", name="Close group sales_report")).to_be_focused()
    expect(report).to_be_visible()
    expect(reader).to_have_url(re.compile("group=dag&open=sales_report&as=graph"))
    reader.get_by_role("combobox", name="Group by").select_option("")
    reader.locator("svg.graph a", has_text="returns_by_region").click()
    expect(reader.get_by_role("heading", level=1)).to_have_text("lake.sales.returns_by_region")


def test_costs_are_those_of_the_registry(server: Served, reader: Page) -> None:
    """From the list by the keyboard; another time has its own address; a narrow screen scrolls tables, not the page."""
    reader.goto(f"{server.url}{ALONE}")
    names(reader)
    reader.get_by_role("link", name="Costs").press("Enter")
    by_view = reader.locator(".card", has=reader.get_by_role("heading", name="Cost by view"))
    expect(by_view.locator("tbody tr").first).to_contain_text(CHEAPEST)
    expect(reader.locator(".card", has_text="Unexpected full refreshes")).to_contain_text(
        "lake.sales.customers was overwritten"
    )
    expect(reader.locator(".card", has_text="Cost by DAG").get_by_role("link").first).to_have_text("sales_morning")
    month = by_view.locator("tbody tr").first.locator("td").nth(2)
    expect(month).to_have_text(re.compile(r"12\d"))
    reader.get_by_role("button", name="7 days").press("Enter")
    expect(month).to_have_text(re.compile(r"^(2\d|3[0-2])$"))  # four a day, by the time of day some more
    expect(reader).to_have_url(re.compile(r"as=costs&days=7"))
    cost = by_view.get_by_role("columnheader").get_by_role("button", name="Cost")
    expect(told(reader, cost)).to_contain_text("The run time of the tasks of Spark's executors")
    assert unreachable(reader) == []
    tops = "tiles => new Set(tiles.map((tile) => tile.getBoundingClientRect().top)).size"
    assert reader.locator(".tile").evaluate_all(tops) == 1, "tiles stand in one row"
    apart = """row => row.querySelector(".share").getBoundingClientRect().right
        <= row.querySelector(".time").getBoundingClientRect().left"""
    assert by_view.locator("tbody tr").first.evaluate(apart), "a bar does not cover its number"
    assert faults(reader) == []
    reader.set_viewport_size({"width": 380, "height": 800})
    assert reader.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    reader.set_viewport_size({"width": 1280, "height": 800})
    by_view.get_by_role("link", name=CHEAPEST).click()
    expect(reader.get_by_role("heading", level=1)).to_have_text(CHEAPEST)


def test_a_task_links_to_its_view_and_shows_its_plan(server: Served) -> None:
    """The extra link is the view's own; the rendered templates contain the plan."""
    run = server.call("GET", "/api/v2/dags/already_fresh/dagRuns", user="viewer")["dag_runs"][0]["dag_run_id"]
    task = f"/api/v2/dags/already_fresh/dagRuns/{run}/taskInstances/daily_revenue".replace("+", "%2B")
    links = server.call("GET", f"{task}/links", user="viewer")["extra_links"]
    assert links == {
        "Materialized view": f"{server.url}{PAGE}/airflow-mv/?view={REVENUE}",
        "Spark application": None,  # there was nothing to do, so Airflow's UI shows no such button
    }
    planned = server.call("GET", task, user="viewer")["rendered_fields"]["planned"]
    assert planned.startswith(f"noop of {REVENUE} (the view is fresh)")
