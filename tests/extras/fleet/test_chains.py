# SPDX-License-Identifier: Apache-2.0
"""A view that reads a stale materialized view is stale, however many views are in between."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from airflow_mv.actions import create_view as create
from airflow_mv.actions import plan_view, refresh_views, refresh_with_inputs
from airflow_mv.common import status as freshness_status
from airflow_mv.common.status import Chains, status, statuses
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.freshness.observe import observe
from airflow_mv.core.refresh import RefreshOptions
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.reasons import Code, Mode
from airflow_mv.core.spec.times import from_ms
from airflow_mv.errors import InvalidQueryError, StaleViewError
from airflow_mv.extras.fleet.alerts import WatchedViews, freshness_slos
from airflow_mv.extras.fleet.fact_cache import FactCache
from airflow_mv.extras.fleet.readiness import Readiness, readiness
from airflow_mv.extras.fleet.summaries import summary_of
from airflow_mv.extras.history.time_travel import TimeTravel
from airflow_mv.extras.pins import pin_base_tables, pinned_chain, restore
from airflow_mv.extras.read import readable
from airflow_mv.plugin.graph import GraphQuery, graph
from airflow_mv.plugin.rows import row_of
from tests.builders import Lake, lake

CHAIN = ("lines", "seg", "top")


def chain(home: Lake, *names: str, above: str = "events") -> None:
    """Views that read one another, the first one a table; all are refreshed."""
    for source, name in zip((above, *names), names, strict=False):
        home.view(name, f"SELECT id, region, amount FROM sales.{source}")
        home.refresh(f"sales.{name}")


@pytest.fixture(params=["pointed", "registered", "table"])
def layouts(sqlite_uri: str, warehouse: Path, request: pytest.FixtureRequest) -> Iterator[Lake]:
    """``top`` reads ``seg``, which reads ``lines``, which reads ``events``, in each layout."""
    with lake(sqlite_uri, warehouse, layout=request.param) as found:
        found.action = refresh_views
        found.table("events")
        chain(found, *CHAIN)
        yield found


@pytest.fixture
def home(sqlite_uri: str, warehouse: Path) -> Iterator[Lake]:
    """The same in the default layout."""
    with lake(sqlite_uri, warehouse) as found:
        found.action = refresh_views
        found.table("events")
        chain(found, *CHAIN)
        yield found


def states(home: Lake, *names: str) -> list[str]:
    return [str(status(home.catalog, f"sales.{name}").state) for name in names]


def lags(home: Lake, *names: str) -> list[datetime | None]:
    return [summary_of(Chains().observe(home.catalog, f"sales.{name}")).lag.since for name in names]


def committed(home: Lake, name: str = "events") -> datetime:
    """Time of a table's last commit."""
    snapshot = home.load(name).current_snapshot()
    assert snapshot is not None
    return from_ms(snapshot.timestamp_ms)


def test_i28_a_view_is_stale_as_long_as_a_view_that_it_reads_is(layouts: Lake) -> None:
    home = layouts
    assert states(home, *CHAIN) == ["fresh"] * 3
    home.append(name="events")
    found = status(home.catalog, "sales.top")
    assert states(home, *CHAIN) == ["stale"] * 3
    (why,) = found.reasons
    assert why.code == Code.INPUT_STALE
    begins = "lake.sales.lines, which it reads through lake.sales.seg, is stale (lake.sales.events advanced "
    assert why.message.startswith(begins)
    assert [item["changed"] for item in found.to_dict()["base_tables"]] == [False]
    home.refresh("sales.lines")
    assert states(home, *CHAIN) == ["fresh", "stale", "stale"]
    home.refresh("sales.seg")
    home.refresh("sales.top")
    assert states(home, *CHAIN) == ["fresh"] * 3


def test_the_lag_counts_from_the_base_table_however_far_the_views_between_are(layouts: Lake) -> None:
    home = layouts
    home.append(name="events")
    first = committed(home)
    assert lags(home, *CHAIN) == [first] * 3
    home.append(name="events")
    home.refresh("sales.lines")
    assert lags(home, *CHAIN) == [None, first, first]
    home.refresh("sales.seg")
    assert lags(home, *CHAIN) == [None, None, first]
    home.append(name="events")
    last = committed(home)
    assert lags(home, *CHAIN) == [last, last, first]
    home.refresh("sales.top")
    assert lags(home, *CHAIN) == [last] * 3


def test_max_staleness_tolerates_what_is_late_at_the_end_of_the_chain(home: Lake) -> None:
    home.append(name="events")
    first = committed(home)
    home.refresh("sales.lines")
    behind = summary_of(Chains().observe(home.catalog, "sales.top")).lag
    assert behind.exact
    for minutes, expected in ((59, Readiness.WITHIN_GRACE), (61, Readiness.STALE)):
        now = first + timedelta(minutes=minutes)
        assert readiness(status(home.catalog, "sales.top").state, behind, timedelta(hours=1), now=now) == expected


def test_a_refresh_of_one_view_does_what_it_did_and_names_its_stale_inputs(home: Lake) -> None:
    """What it does follows from the rows that it reads."""
    home.append(name="events")
    result = home.refresh("sales.top")
    assert (result.outcome, result.mode) == ("fresh", Mode.NOOP)
    assert [reason.code for reason in result.reasons] == [Code.FRESH, Code.INPUT_STALE]
    assert result.fallback is None
    home.refresh("sales.lines")
    plan = plan_view(home.catalog, "sales.seg")
    assert (plan.mode, Code.INPUT_STALE in {reason.code for reason in plan.reasons}) == (Mode.FULL, False)
    assert home.refresh("sales.top").reasons[-1].message.startswith("lake.sales.seg, which it reads, is stale (")


def test_a_first_refresh_names_stale_inputs_too(home: Lake) -> None:
    home.append(name="events")
    home.view("new", "SELECT id FROM sales.seg")
    assert Code.INPUT_STALE in {reason.code for reason in home.refresh("sales.new").reasons}
    assert states(home, "new") == ["stale"]


def test_a_view_is_refreshed_with_its_inputs_from_one_set_of_snapshots(layouts: Lake) -> None:
    """A commit during the refresh is for the next one, for all of the views."""
    home = layouts
    home.table("rates")
    home.view(
        "report", "SELECT t.id FROM sales.top t JOIN sales.rates r ON t.id = r.id JOIN sales.events e ON e.id = r.id"
    )
    home.append(name="events")
    heads = {name: home.head(name) for name in ("events", "rates")}

    def commit(_: Any) -> None:
        home.append(name="events")
        home.append(name="rates")

    wanted = [home.catalog.identify("sales.report")]
    results = refresh_with_inputs(home.catalog, wanted, stager=home.stager, on_plan=commit)
    assert [result.view.name for result in results] == [*CHAIN, "report"]
    read = dict(results[-1].snapshots)
    assert (read["lake.sales.events"], read["lake.sales.rates"]) == (heads["events"], heads["rates"])
    assert read["lake.sales.top"] == home.storage("sales.top").rows_snapshot
    assert not any(reason.code == Code.INPUT_STALE for result in results for reason in result.reasons)
    assert states(home, *CHAIN, "report") == ["stale"] * 4
    refresh_with_inputs(home.catalog, wanted, stager=home.stager)
    assert states(home, *CHAIN, "report") == ["fresh"] * 4
    again = refresh_with_inputs(home.catalog, wanted, stager=home.stager)
    assert [result.mode for result in again] == [Mode.NOOP] * 4


def test_the_options_of_a_refresh_with_inputs_are_for_the_named_view(home: Lake) -> None:
    """Only the time that is read is the same."""
    at = committed(home)
    home.append(name="events")
    wanted, full = [home.catalog.identify("sales.top")], RefreshOptions(full=True)
    modes = [item.mode for item in refresh_with_inputs(home.catalog, wanted, stager=home.stager, options=full)]
    assert modes == [Mode.FULL, Mode.FULL, Mode.FULL]
    modes = [item.mode for item in refresh_with_inputs(home.catalog, wanted, stager=home.stager, options=full)]
    assert modes == [Mode.NOOP, Mode.NOOP, Mode.FULL]
    past = refresh_with_inputs(home.catalog, wanted, stager=home.stager, options=RefreshOptions(as_of=at))
    assert [item.reasons[0].code for item in past] == [Code.ALREADY_NEWER, Code.FRESH, Code.FRESH]


def test_a_chain_that_one_run_refreshes_has_no_stale_inputs(home: Lake) -> None:
    """Its pins are older than the base tables: that is no news for each of its tasks."""
    views = [home.catalog.identify(f"sales.{name}") for name in CHAIN]
    home.append(name="events")
    run = pin_base_tables(home.catalog, views)
    home.append(name="events")
    for view in views:
        result = home.refresh(view, pins=restore(home.catalog, view, run))
        assert Code.INPUT_STALE not in {reason.code for reason in result.reasons}
    assert states(home, *CHAIN) == ["stale"] * 3
    results = refresh_views(home.catalog, reversed(views), stager=home.stager)
    assert [result.view.name for result in results] == [*CHAIN]
    assert not any(reason.code == Code.INPUT_STALE for result in results for reason in result.reasons)
    home.append(name="events")
    (alone, _) = refresh_views(home.catalog, views[1:], stager=home.stager)
    assert alone.reasons[-1].code == Code.INPUT_STALE


# -- what an input may be ---------------------------------------------------------------------------


def test_a_diamond_is_looked_at_once_and_named_once(home: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("left", "right"):
        home.view(name, "SELECT id FROM sales.lines")
        home.refresh(f"sales.{name}")
    home.view(
        "roof", "SELECT l.id FROM sales.left l JOIN sales.right r ON l.id = r.id JOIN sales.lines x ON x.id = r.id"
    )
    home.refresh("sales.roof")
    home.append(name="events")
    seen: list[str] = []

    def counted(catalog: Any, view: Any, **how: Any) -> Any:
        seen.append(str(getattr(view, "identifier", view)))
        return observe(catalog, view, **how)

    monkeypatch.setattr(freshness_status, "observe", counted)
    (why,) = status(home.catalog, home.catalog.identify("sales.roof")).reasons
    assert why.message.startswith("lake.sales.lines, which it reads, is stale (")
    assert sorted(seen) == sorted(f"lake.sales.{name}" for name in ("roof", "left", "right", "lines"))
    seen.clear()
    names = [home.catalog.identify(f"sales.{name}") for name in ("roof", "left", "right", "top", "seg", "lines")]
    assert {document["state"] for document in statuses(home.catalog, names)} == {"stale"}
    assert len(seen) == len(set(seen)) == 6


def test_views_have_the_same_status_together_as_alone_in_any_order(home: Lake) -> None:
    home.append(name="events")
    home.refresh("sales.lines")
    names = [home.catalog.identify(f"sales.{name}") for name in CHAIN]
    alone = {view: status(home.catalog, view).to_dict() for view in names}
    for order in permutations(names):
        assert statuses(home.catalog, order) == [alone[view] for view in order]


def redefine(home: Lake, name: str, above: str) -> None:
    """Give a view another query."""
    sql = f"SELECT id, region, amount + 1 AS amount FROM sales.{above}"
    create(home.catalog, f"sales.{name}", Definition(sql), stager=home.stager, replace=True)


def _renamed(home: Lake) -> None:
    with home.load("events").update_schema() as change:
        change.rename_column("region", "zone")


def _broken(home: Lake) -> None:
    Path(home.catalog.load("sales.lines").metadata_location.removeprefix("file://")).write_text("{")


CHANGES: dict[str, tuple[Callable[[Lake], object], str, str]] = {
    "invalid": (_renamed, "stale", "is invalid ("),
    "redefined": (lambda home: redefine(home, "lines", "events"), "stale", "is definition-changed ("),
    "unreadable": (_broken, "unknown", "is unknown ("),
    "dropped": (lambda home: home.catalog.drop("sales.lines"), "unknown", "is unknown ("),
    "without its table": (lambda home: home.iceberg.drop_table("sales.events"), "unknown", "is unknown ("),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_state_of_an_input_decides(home: Lake, change: str) -> None:
    act, expected, named = CHANGES[change]
    act(home)
    found = status(home.catalog, "sales.top")
    assert found.state == expected
    assert any(named in reason.message for reason in found.reasons)
    behind = summary_of(Chains().observe(home.catalog, "sales.top")).lag
    assert readiness(found.state, behind, timedelta(days=999)) == Readiness.named(expected)


def test_an_input_that_was_never_refreshed_makes_its_reader_stale(home: Lake) -> None:
    home.view("empty", "SELECT id FROM sales.events")
    home.view("reader", "SELECT id FROM sales.empty")
    assert states(home, "reader") == ["never-refreshed"]
    home.refresh("sales.reader")
    (why,) = status(home.catalog, "sales.reader").reasons
    assert why.message == ("lake.sales.empty, which it reads, is never-refreshed (its storage table has no rows yet)")


def test_plain_views_between_are_passed_through(home: Lake) -> None:
    home.plain_view("plain", "SELECT * FROM sales.lines")
    home.plain_view("plainer", "SELECT * FROM sales.plain")
    home.view("reader", "SELECT id FROM sales.plainer")
    home.refresh("sales.reader")
    home.append(name="events")
    (why,) = status(home.catalog, "sales.reader").reasons
    assert why.message.startswith("lake.sales.lines, which it reads, is stale (lake.sales.events ")


def test_a_fixed_snapshot_of_a_view_is_what_the_query_wants(sqlite_uri: str, warehouse: Path) -> None:
    """Its storage table read by its own name is the view, however."""
    with lake(sqlite_uri, warehouse, layout="registered") as home:
        home.table("events")
        chain(home, "lines")
        head = home.storage("sales.lines").rows_snapshot
        home.view("fixed", f"SELECT id FROM sales.lines__storage VERSION AS OF {head}")
        home.view("stored", "SELECT id FROM sales.lines__storage")
        for name in ("fixed", "stored"):
            home.refresh(f"sales.{name}")
        assert states(home, "fixed", "stored") == ["fresh", "fresh"]
        home.append(name="events")
        assert states(home, "fixed", "stored") == ["fresh", "stale"]


def test_a_renamed_storage_table_is_an_ordinary_table(sqlite_uri: str, warehouse: Path) -> None:
    """It still names a view in its properties, which may have been dropped since."""
    with lake(sqlite_uri, warehouse, layout="registered") as home:
        home.table("events")
        chain(home, "lines")
        home.iceberg.rename_table("sales.lines__storage", "sales.kept")
        home.view("reader", "SELECT id FROM sales.kept")
        home.refresh("sales.reader")
        assert states(home, "reader")[0] in ("fresh", "unknown")
        home.catalog.drop("sales.lines")
        assert states(home, "reader") == ["fresh"]


def test_views_of_another_catalog_are_followed_and_not_refreshed(home: Lake, tmp_path: Path) -> None:
    with lake(f"sqlite:///{tmp_path}/west.db", tmp_path / "west", "west") as west:
        west.table("events")
        chain(west, "far")
        home.catalog.openers = {"west": lambda: west.catalog}
        home.view("near", "SELECT id FROM west.sales.far")
        home.refresh("sales.near")
        west.append(name="events")
        (why,) = status(home.catalog, "sales.near").reasons
        assert why.message.startswith("west.sales.far, which it reads, is stale (west.sales.events ")
        near = home.catalog.identify("sales.near")
        assert pinned_chain(home.catalog, [near])[0] == (near,)
        (result,) = refresh_with_inputs(home.catalog, [near], stager=home.stager)
        assert result.reasons[-1].code == Code.INPUT_STALE
        with pytest.raises(StaleViewError, match=r"west\.sales\.far, which it reads, is stale"):
            readable(home.catalog, near, refresh=lambda _: pytest.fail("it cannot help"))


def test_views_that_read_each_other_are_unknown_whichever_is_looked_at_first(home: Lake) -> None:
    redefine(home, "lines", "top")
    home.refresh("sales.lines")
    for order in permutations(home.catalog.identify(f"sales.{name}") for name in CHAIN):
        found = statuses(home.catalog, order)
        assert {document["state"] for document in found} == {"unknown"}
        assert all("read each other" in str(document["reasons"]) for document in found)
    with pytest.raises(InvalidQueryError, match="cycle"):
        pinned_chain(home.catalog, [home.catalog.identify("sales.top")])


def test_a_long_chain_is_followed_to_its_end(home: Lake) -> None:
    """The path in the reason is bounded."""
    before = home.catalog.identify("sales.top")
    names = [f"v{number:03}" for number in range(10)]
    chain(home, *names, above=before.name)
    home.append(name="events")
    first = committed(home)
    (why,) = status(home.catalog, "sales.v009").reasons
    assert "through lake.sales.v008 → 9 views → lake.sales.seg, is stale" in why.message
    assert lags(home, "v009") == [first]


# -- everything that reports agrees -------------------------------------------------------------------


def test_all_that_report_on_a_view_agree(home: Lake, tmp_path: Path) -> None:
    home.append(name="events")
    top = home.catalog.identify("sales.top")
    summary = summary_of(Chains().observe(home.catalog, top))
    row = row_of(summary)
    assert (row.state, row.lag(datetime.now(UTC))["since"]) == ("stale", committed(home).isoformat())
    (node,) = (item for item in graph([row], GraphQuery([str(top)]))["nodes"] if item["id"] == str(top))
    assert node["state"] == "stale"
    cache = FactCache(tmp_path / "cache")
    watched = WatchedViews(
        "lake", lambda: home.catalog, (top,), cache=cache, properties_of=lambda _: home.catalog.properties
    )
    for _ in range(2):  # without the cache, and from there
        (slo,) = freshness_slos(watched, timedelta(seconds=0))
        assert (slo.readiness, slo.breached, slo.since) == (Readiness.STALE, True, committed(home))
        assert [table.identifier for table in slo.tables] == ["lake.sales.events"]


def test_the_pointers_of_a_view_are_those_of_its_whole_chain(layouts: Lake) -> None:
    """A summary in the cache is true as long as none has moved."""
    pointers = Chains().observe(layouts.catalog, "sales.top").pointers
    assert pointers is not None
    assert {"events", *CHAIN} <= {name.name for name in pointers}


def test_rows_of_a_stale_chain_are_not_returned_as_fresh(home: Lake) -> None:
    home.append((77, "east", 1), name="events")
    with pytest.raises(
        StaleViewError, match=r"lake\.sales\.lines, which it reads .* Run `airflow-mv refresh .* --with-inputs`"
    ):
        readable(home.catalog, "sales.top")
    found = readable(
        home.catalog,
        "sales.top",
        refresh=lambda view: refresh_with_inputs(home.catalog, [view], stager=home.stager),
    )
    assert (str(found.state), states(home, *CHAIN)) == ("fresh", ["fresh"] * 3)
    assert 77 in {row["id"] for row in home.read("sales.top")}


def test_earlier_rows_have_their_own_state(home: Lake) -> None:
    """Not that of the present rows."""
    before = home.storage("sales.lines")
    home.append(name="events")
    home.refresh("sales.lines")
    assert before.record is not None

    def state(**wanted: Any) -> str:
        return str(readable(home.catalog, "sales.lines", TimeTravel(**wanted)).state)

    assert state(snapshot_id=before.rows_snapshot) == state(refresh_id=before.record.refresh_id) == "stale"
    assert state(snapshot_id=home.storage("sales.lines").rows_snapshot) == "fresh"


def test_a_refresh_between_two_reads_makes_no_view_fresh(home: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """``seg`` has the rows of ``lines`` before its refresh; judged after it, ``lines`` is fresh and ``seg`` is not."""
    home.append(name="events")
    refreshed: list[object] = []

    def racing(catalog: Any, view: Any, **how: Any) -> Any:
        if str(view).endswith("lines") and not refreshed:
            refreshed.append(home.refresh("sales.lines"))
        return observe(catalog, view, **how)

    monkeypatch.setattr(freshness_status, "observe", racing)
    assert states(home, "seg") == ["stale"]
    assert refreshed


# -- random chains -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 12))])
def test_a_view_is_fresh_if_and_only_if_a_refresh_of_all_would_change_nothing(
    sqlite_uri: str, warehouse: Path, seed: int
) -> None:
    """Random graphs of views, with random commits and refreshes, against a model of versions."""
    chance = random.Random(seed)
    with lake(sqlite_uri, warehouse) as home:
        bases = {f"t{number}": 0 for number in range(2)}
        reads: dict[str, list[str]] = {}
        for name in bases:
            home.table(name)
        for number in range(6):
            known = [*bases, *reads]
            reads[f"v{number}"] = chance.sample(known, min(len(known), chance.randint(1, 2)))
            union = " UNION ALL ".join(f"SELECT id FROM sales.{name}" for name in reads[f"v{number}"])
            home.view(f"v{number}", union, layout=chance.choice(["pointed", "registered", "table"]))
            home.refresh(f"sales.v{number}")
        has = {view: _content(view, reads, bases) for view in reads}
        for _ in range(8):
            if chance.random() < 0.4:
                table = chance.choice([*bases])
                home.append(name=table)
                bases[table] += 1
            else:
                view = chance.choice([*reads])
                home.refresh(f"sales.{view}")
                has[view] = tuple(has.get(name, bases.get(name)) for name in reads[view])
            expected = {view: has[view] == _content(view, reads, bases) for view in reads}
            names = [home.catalog.identify(f"sales.{view}") for view in chance.sample([*reads], len(reads))]
            found = {Identifier.parse(item["view"]).name: item["state"] for item in statuses(home.catalog, names)}
            assert found == {view: "fresh" if fresh else "stale" for view, fresh in expected.items()}


def _content(view: str, reads: dict[str, list[str]], bases: dict[str, int]) -> Any:
    """The versions of the base tables that a view would have after a refresh of all views."""
    return tuple(bases[name] if name in bases else _content(name, reads, bases) for name in reads[view])
