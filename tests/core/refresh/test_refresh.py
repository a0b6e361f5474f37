# SPDX-License-Identifier: Apache-2.0
"""Refresh from plan to publication, with a stager that needs no Spark: what runs, what does not, and why."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from airflow_mv.common.status import status, statuses
from airflow_mv.core.define.create import create
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.freshness.state import State
from airflow_mv.core.refresh import RefreshOptions, plan_refresh
from airflow_mv.core.refresh.plan import RefreshPlan
from airflow_mv.core.refresh.run import publish, refresh, stage
from airflow_mv.core.script import Outcome, Script
from airflow_mv.core.spec.reasons import Code, Mode
from airflow_mv.errors import (
    BaseTableNotFoundError,
    CommitConflictError,
    InvalidQueryError,
    NotMaterializedError,
    RefreshRefusedError,
)
from tests.builders import QUERY, Lake, lake

NORTH = {"region": "north", "orders": 2, "amount": 15}
SOUTH = {"region": "south", "orders": 1, "amount": 20}
EAST = {"region": "east", "orders": 1, "amount": 7}


@pytest.fixture
def home(sqlite_uri: str, warehouse: Path) -> Iterator[Lake]:
    with lake(sqlite_uri, warehouse) as found:
        found.table()
        yield found


def state(home: Lake, view: str = "sales.daily") -> State:
    return status(home.catalog, view).state


# -- one view ----------------------------------------------------------------------------------


def test_a_refreshed_view_has_the_rows_of_its_query(home: Lake) -> None:
    home.view()
    assert state(home) == State.NEVER_REFRESHED
    result = home.refresh()
    assert (result.outcome, result.mode, result.rows_written) == ("refreshed", Mode.FULL, 2)
    assert home.read() == [NORTH, SOUTH]
    assert state(home) == State.FRESH


def test_a_fresh_view_needs_no_job_and_no_swap(home: Lake) -> None:
    home.view()
    first = home.refresh()
    before = home.rows_of_catalog()
    again = home.refresh()
    assert (again.outcome, again.mode, again.rows_written) == ("fresh", Mode.NOOP, 0)
    assert again.refresh_id == first.refresh_id
    assert home.rows_of_catalog() == before
    assert len(home.stager.refreshes) == 1


def test_a_stale_view_is_recomputed_and_the_reason_is_reported(home: Lake) -> None:
    home.view()
    home.refresh()
    old, new = home.head(), home.append()
    document = status(home.catalog, "sales.daily").to_dict()
    assert document["state"] == "stale"
    (change,) = document["base_tables"]
    assert (change["recorded"], change["current"], change["rows_added"]) == (str(old), str(new), 1)
    assert [reason.code for reason in home.refresh().reasons] == [Code.BASE_CHANGED, Code.STRATEGY_FULL]
    assert home.read() == [EAST, NORTH, SOUTH]


def test_compaction_is_recorded_without_a_job(home: Lake) -> None:
    home.view()
    home.refresh()
    rows = home.storage().table.head
    head = home.compact()
    assert state(home) == State.FRESH
    result = home.refresh()
    assert (result.outcome, result.mode, result.rows_written) == ("refreshed", Mode.FAST_FORWARD, 0)
    assert dict(result.snapshots) == {"lake.sales.orders": head}
    assert home.storage().table.head == rows
    assert len(home.stager.refreshes) == 1
    assert home.refresh().mode == Mode.NOOP


def test_a_forced_refresh_of_a_fresh_view_runs(home: Lake) -> None:
    home.view()
    first = home.refresh()
    forced = home.refresh(options=RefreshOptions(full=True))
    assert (forced.outcome, forced.reasons[0].code) == ("refreshed", Code.FORCED)
    assert forced.refresh_id != first.refresh_id


def test_after_a_rollback_of_a_base_table_the_view_follows(home: Lake) -> None:
    home.view()
    start = home.head()
    home.append()
    home.refresh()
    home.roll_back(start)
    assert [reason.code for reason in status(home.catalog, "sales.daily").reasons] == [Code.ROLLED_BACK]
    home.refresh()
    assert home.read() == [NORTH, SOUTH]


def test_a_base_table_that_was_never_written_gives_an_empty_view(home: Lake) -> None:
    home.table("empty", rows=None)
    home.view("none", "SELECT id FROM lake.sales.empty")
    assert home.refresh("sales.none").rows_written == 0
    assert state(home, "sales.none") == State.FRESH
    home.append((1, "north", 1), name="empty")
    home.refresh("sales.none")
    assert home.read("sales.none") == [{"id": 1}]


def test_a_base_table_that_was_dropped_and_recreated_is_read_again(home: Lake) -> None:
    home.view()
    home.refresh()
    home.iceberg.drop_table("sales.orders")
    home.table(rows=[(1, "west", 1)])
    assert [reason.code for reason in status(home.catalog, "sales.daily").reasons] == [Code.BASE_RECREATED]
    home.refresh()
    assert home.read() == [{"region": "west", "orders": 1, "amount": 1}]


def test_a_missing_base_table_is_an_unknown_state_and_nothing_is_refreshed(home: Lake) -> None:
    home.view()
    home.refresh()
    before = home.rows_of_catalog()
    home.iceberg.drop_table("sales.orders")
    found = status(home.catalog, "sales.daily")
    assert found.state == State.UNKNOWN
    assert "lake.sales.orders" in found.reasons[0].message
    with pytest.raises(BaseTableNotFoundError, match=r"lake\.sales\.daily.*lake\.sales\.orders"):
        home.refresh()
    assert [row for row in before if row[2] == "daily"] == home.rows_of_catalog()


def test_a_view_of_a_metadata_table_is_refused_with_the_reason(home: Lake) -> None:
    """Iceberg's metadata tables have a name below that of their table."""
    with pytest.raises(
        BaseTableNotFoundError, match="files is one of Iceberg's metadata tables, which have no snapshots"
    ):
        home.view(sql="SELECT file_path AS region, 1 AS orders, 1 AS amount FROM lake.sales.orders.files")


def test_the_plan_prints_the_statements_that_run(home: Lake) -> None:
    home.view()
    plan = plan_refresh(home.catalog, "sales.daily")
    assert f"VERSION AS OF {home.head()}" in plan.statements[-1]
    home.refresh()
    assert home.stager.refreshes[-1].statements == plan.statements == tuple(plan.to_dict()["statements"])


def test_the_three_steps_may_run_in_three_processes(home: Lake) -> None:
    home.view()
    plan = RefreshPlan.from_dict(plan_refresh(home.catalog, "sales.daily").to_dict())
    outcome = stage(home.catalog, plan, home.stager)
    assert outcome is not None
    result = publish(home.catalog, RefreshPlan.from_dict(plan.to_dict()), Outcome.from_json(outcome.to_json()))
    assert result is not None
    assert result.outcome == "refreshed"
    assert home.read() == [NORTH, SOUTH]


def test_a_replaced_definition_is_recomputed_into_the_same_table(home: Lake) -> None:
    home.view()
    home.refresh()
    uuid = home.storage().table.table_uuid
    query = Definition("SELECT id, amount FROM lake.sales.orders")
    create(home.catalog, "sales.daily", query, stager=home.stager, replace=True)
    assert state(home) == State.DEFINITION_CHANGED
    assert home.refresh().reasons[0].code == Code.DEFINITION_CHANGED
    assert home.read()[0] == {"id": 1, "amount": 10}
    assert home.storage().table.table_uuid == uuid


def test_a_plain_view_cannot_be_refreshed(home: Lake) -> None:
    home.plain_view("plain", "SELECT * FROM lake.sales.orders")
    with pytest.raises(NotMaterializedError, match=r"lake\.sales\.plain"):
        home.refresh("sales.plain")


def test_an_incremental_view_follows_the_fallback_policy(home: Lake) -> None:
    home.view(refresh_strategy="incremental")
    home.refresh(options=RefreshOptions(on_fallback="fail"))
    home.append()
    with pytest.raises(RefreshRefusedError):
        home.refresh(options=RefreshOptions(on_fallback="fail"))
    skipped = home.refresh(options=RefreshOptions(on_fallback="skip"))
    assert (skipped.outcome, skipped.mode) == ("skipped", Mode.NOOP)
    assert state(home) == State.STALE


def test_appended_rows_that_no_filter_matches_need_no_spark_job(home: Lake) -> None:
    """File statistics show it: only the new snapshot is recorded."""
    home.view(sql="SELECT id, region FROM orders WHERE amount > 1000", refresh_strategy="incremental")
    home.refresh()
    ran = len(home.stager.refreshes)
    home.append((7, "east", 900))
    result = home.refresh()
    assert (result.outcome, result.mode) == ("refreshed", Mode.FAST_FORWARD)
    assert "no added row matches amount > 1000" in result.reasons[-2].message
    assert (len(home.stager.refreshes), state(home)) == (ran, State.FRESH)
    home.append((8, "east", 5000))
    assert home.refresh().mode == Mode.FULL  # this stager supports no other mode
    assert home.read() == [{"id": 8, "region": "east"}]


# -- as of a time ------------------------------------------------------------------------------


def test_a_refresh_as_of_a_time_reads_the_base_tables_as_they_were(home: Lake) -> None:
    home.view()
    then = home.load().current_snapshot()
    assert then is not None
    home.append()
    at = datetime.fromtimestamp(then.timestamp_ms / 1000, UTC)
    home.refresh(options=RefreshOptions(as_of=at))
    assert home.read() == [NORTH, SOUTH]
    assert state(home) == State.STALE


def test_a_refresh_as_of_a_time_never_removes_later_rows(home: Lake) -> None:
    """A late backfill must not undo later refreshes."""
    home.view()
    then = home.load().current_snapshot()
    assert then is not None
    home.append()
    home.refresh()
    result = home.refresh(options=RefreshOptions(as_of=datetime.fromtimestamp(then.timestamp_ms / 1000, UTC)))
    assert (result.mode, result.reasons[0].code) == (Mode.NOOP, Code.ALREADY_NEWER)
    assert home.read() == [EAST, NORTH, SOUTH]


# -- several views -----------------------------------------------------------------------------


def test_views_of_one_run_are_computed_from_one_set_of_snapshots(home: Lake) -> None:
    """A report over both must be consistent, whatever is written meanwhile."""
    home.view("a")
    home.view("b", "SELECT count(*) AS n FROM lake.sales.orders")
    head = home.head()
    appended: list[int] = []

    def meanwhile(plan: RefreshPlan) -> None:
        if not appended:
            appended.append(home.append())

    views = ["sales.a", "sales.b"]
    results = refresh(home.catalog, views, stager=home.stager, on_plan=meanwhile)
    assert [dict(item.snapshots) for item in results] == [{"lake.sales.orders": head}] * 2
    assert home.read("sales.b") == [{"n": 3}]
    assert [item["state"] for item in statuses(home.catalog, home.catalog.list())] == ["stale", "stale"]


def test_a_pinned_run_never_undoes_a_later_refresh_of_another_run(home: Lake) -> None:
    home.view("a")
    home.view("b", "SELECT count(*) AS n FROM lake.sales.orders")

    def another(plan: RefreshPlan) -> None:
        if plan.view.name == "a":
            home.append()
            home.refresh("sales.b")

    results = refresh(home.catalog, ["sales.a", "sales.b"], stager=home.stager, on_plan=another)
    assert (results[1].mode, results[1].reasons[0].code) == (Mode.NOOP, Code.ALREADY_NEWER)
    assert home.read("sales.b") == [{"n": 4}]


def test_a_pinned_run_follows_a_rollback(home: Lake) -> None:
    home.view("a")
    home.view("b", "SELECT count(*) AS n FROM lake.sales.orders")
    start = home.head()
    home.append()
    refresh(home.catalog, ["sales.a", "sales.b"], stager=home.stager)
    home.roll_back(start)
    refresh(home.catalog, ["sales.a", "sales.b"], stager=home.stager)
    assert home.read("sales.b") == [{"n": 3}]


def test_a_view_is_refreshed_after_the_views_that_it_reads(home: Lake) -> None:
    home.view()
    home.view("total", "SELECT sum(amount) AS total FROM lake.sales.daily")
    views = ["sales.total", "sales.daily"]
    assert [item.view.name for item in refresh(home.catalog, views, stager=home.stager)] == ["daily", "total"]
    assert home.read("sales.total") == [{"total": 35}]
    home.append()
    refresh(home.catalog, views, stager=home.stager)
    assert home.read("sales.total") == [{"total": 42}]
    assert [item.mode for item in refresh(home.catalog, views, stager=home.stager)] == [Mode.NOOP, Mode.NOOP]


def test_after_a_fast_forward_the_views_that_read_the_view_are_fresh(home: Lake) -> None:
    """The storage table has a new metadata file, but no new snapshot."""
    home.view()
    home.view("total", "SELECT sum(amount) AS total FROM lake.sales.daily")
    views = ["sales.daily", "sales.total"]
    refresh(home.catalog, views, stager=home.stager)
    home.compact()
    results = refresh(home.catalog, views, stager=home.stager)
    assert [item.mode for item in results] == [Mode.FAST_FORWARD, Mode.NOOP]


def test_views_that_read_each_other_in_a_cycle_are_refused(home: Lake) -> None:
    home.view("a", QUERY)
    home.view("b", "SELECT * FROM lake.sales.a")
    circle = Definition("SELECT * FROM lake.sales.b")
    create(home.catalog, "sales.a", circle, stager=home.stager, replace=True)
    with pytest.raises(InvalidQueryError, match="cycle"):
        refresh(home.catalog, ["sales.a", "sales.b"], stager=home.stager)


def test_a_view_named_twice_is_refreshed_once(home: Lake) -> None:
    home.view()
    assert len(refresh(home.catalog, ["sales.daily", "lake.sales.daily"], stager=home.stager)) == 1


# -- conflicts ---------------------------------------------------------------------------------


def test_a_conflict_with_an_older_refresh_is_planned_and_run_again(home: Lake) -> None:
    home.view()
    older, staged_older = home.stage()
    home.append()
    calls: list[Script] = []

    def stager(script: Script) -> Outcome:
        if not calls:
            publish(home.catalog, older, staged_older)
        calls.append(script)
        return home.stager(script)

    (result,) = refresh(home.catalog, ["sales.daily"], stager=stager)
    assert (result.outcome, len(calls)) == ("refreshed", 2)
    assert home.read() == [EAST, NORTH, SOUTH]


def test_a_superseded_refresh_names_the_published_refresh(home: Lake) -> None:
    home.view()

    def stager(script: Script) -> Outcome:
        outcome = home.stager(script)
        home.append()
        home.refresh()
        return outcome

    (result,) = refresh(home.catalog, ["sales.daily"], stager=stager)
    current = home.storage().state
    assert current is not None
    assert result.outcome == "superseded"
    assert result.refresh_id == current.current_refresh_id
    assert dict(result.snapshots) == current.current.snapshots


def test_a_view_that_changes_endlessly_is_a_conflict(home: Lake) -> None:
    home.view()
    number = iter(range(100))

    def stager(script: Script) -> Outcome:
        outcome = home.stager(script)
        query = Definition(f"SELECT {next(number)} AS n FROM lake.sales.orders")
        create(home.catalog, "sales.daily", query, stager=home.stager, replace=True)
        return outcome

    with pytest.raises(CommitConflictError, match=r"lake\.sales\.daily changed 6 times"):
        refresh(home.catalog, ["sales.daily"], stager=stager)
    assert home.storage().state is None
