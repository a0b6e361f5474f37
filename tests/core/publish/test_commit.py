# SPDX-License-Identifier: Apache-2.0
"""Changes of others while a refresh is staged, in the pointed layout: it is rebased, superseded, or planned again.

Tests for all catalogs and layouts are in :mod:`tests.contract.test_publication`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_mv.core.publish import PublishOutcome, publish
from airflow_mv.core.refresh import RefreshOptions, plan_refresh
from airflow_mv.core.refresh.plan import RefreshPlan
from airflow_mv.core.refresh.run import stage
from airflow_mv.core.spec.view import with_view_properties
from tests.builders import Lake, lake
from tests.faults import Clock, FaultyCatalog, after, lose_answer_before

VIEW = "sales.daily"


@pytest.fixture
def home(sqlite_uri: str, warehouse: Path) -> Iterator[Lake]:
    with lake(sqlite_uri, warehouse) as found:
        found.table()
        found.view()
        yield found


def staged(home: Lake, options: RefreshOptions | None = None) -> tuple[RefreshPlan, str | None]:
    """A refresh that is staged and not published."""
    plan = plan_refresh(home.catalog, VIEW, options)
    outcome = stage(home.catalog, plan, home.stager)
    return plan, outcome.metadata_location if outcome else None


def restaged(home: Lake, plan: RefreshPlan) -> str:
    """The staged file of a second worker for the same base."""
    assert plan.script is not None
    outcome = home.stager(plan.script)
    assert outcome.metadata_location is not None
    return outcome.metadata_location


def comment(home: Lake, text: str = "changed by another user") -> Callable[[], None]:
    """Another user's ``ALTER VIEW … SET TBLPROPERTIES``."""

    def act() -> None:
        view = home.catalog.load(VIEW)
        assert home.catalog.replace(view, with_view_properties(view.metadata, {"comment": text}))

    return act


def files(home: Lake, folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if path.is_file()}


def ids(home: Lake) -> list[str]:
    state = home.storage().state
    return [record.refresh_id for record in state.refreshes] if state else []


@pytest.mark.parametrize("fault", [after, lose_answer_before])
def test_a_property_that_changes_during_the_swap_is_preserved(
    home: Lake, clock: Clock, fault: Callable[[Callable[[], None]], object]
) -> None:
    plan, location = staged(home)
    catalog = FaultyCatalog(home.iceberg, fault(comment(home)))  # type: ignore[arg-type]
    assert publish(catalog, plan, location, effects=clock.effects).outcome == PublishOutcome.COMMITTED
    assert home.catalog.load(VIEW).metadata.properties["comment"] == "changed by another user"
    assert ids(home) == [plan.refresh_id]
    (_, lost), (_, won) = catalog.sent
    assert not Path(lost.removeprefix("file://")).exists()
    assert home.catalog.load(VIEW).metadata_location == won


def test_another_refresh_of_the_same_snapshots_supersedes_ours(home: Lake, clock: Clock) -> None:
    plan, _ = staged(home)
    ours = replace(plan, refresh_id="ours")
    location = restaged(home, ours)
    home.refresh()
    assert publish(home.catalog, ours, location, effects=clock.effects).outcome == PublishOutcome.SUPERSEDED
    assert ids(home) == [plan.refresh_id]


def test_a_later_refresh_supersedes_ours_and_only_our_files_are_deleted(
    home: Lake, warehouse: Path, clock: Clock
) -> None:
    plan, location = staged(home)

    def another() -> None:
        home.append()
        home.refresh()

    before = files(home, warehouse)
    published = publish(FaultyCatalog(home.iceberg, after(another)), plan, location, effects=clock.effects)
    assert published.outcome == PublishOutcome.SUPERSEDED
    assert before <= files(home, warehouse)
    assert published.storage_table_location == home.storage().location
    named = {row[3].rsplit("/", 1)[-1] for row in home.rows_of_catalog()}
    folder = warehouse / "sales" / Path(home.catalog.load(VIEW).metadata.location).name / "metadata"
    assert len(list(folder.iterdir())) == 2  # one of the creation, one of the other refresh; ours is deleted
    assert any(path.name in named for path in folder.iterdir())


def test_a_refresh_that_is_newer_in_one_table_and_older_in_another_does_not_supersede(home: Lake, clock: Clock) -> None:
    home.table("returns")
    both = "SELECT id FROM lake.sales.orders UNION ALL SELECT id FROM lake.sales.returns"
    home.view("both", both)
    first = plan_refresh(home.catalog, "sales.both")
    home.append()
    mixed = plan_refresh(home.catalog, "sales.both")
    home.append(name="returns")
    last = plan_refresh(home.catalog, "sales.both")
    theirs = replace(mixed, records=(mixed.records[0], first.records[1]))
    ours = replace(last, records=(first.records[0], last.records[1]), refresh_id="ours")
    location = restaged(home, ours)
    publish(home.catalog, theirs, restaged(home, theirs), effects=clock.effects)
    assert publish(home.catalog, ours, location, effects=clock.effects).outcome == PublishOutcome.REPLAN


def test_a_refresh_after_a_rollback_of_the_base_table_does_not_supersede_the_later_one(
    home: Lake, clock: Clock
) -> None:
    start = home.head()
    home.append()
    plan, location = staged(home)
    home.roll_back(start)
    home.refresh()
    assert publish(home.catalog, plan, location, effects=clock.effects).outcome == PublishOutcome.REPLAN


def test_a_refresh_through_an_older_nested_view_does_not_supersede(home: Lake, clock: Clock) -> None:
    """The base tables are at the same snapshots, but the rows are those of another query."""
    home.plain_view("plain", "SELECT * FROM lake.sales.orders")
    home.view("top", "SELECT id FROM lake.sales.plain")
    older = plan_refresh(home.catalog, "sales.top")
    home.plain_view("plain", "SELECT * FROM lake.sales.orders WHERE id > 1")
    newer = plan_refresh(home.catalog, "sales.top")
    assert older.refresh_id != newer.refresh_id
    location = restaged(home, newer)
    publish(home.catalog, older, restaged(home, older), effects=clock.effects)
    assert publish(home.catalog, newer, location, effects=clock.effects).outcome == PublishOutcome.REPLAN


def test_a_forced_refresh_is_not_superseded(home: Lake, clock: Clock) -> None:
    """A forced refresh replaces rows that its user does not trust."""
    plan, _ = staged(home, RefreshOptions(full=True))
    forced = replace(plan, refresh_id="forced")
    location = restaged(home, forced)
    home.refresh()
    assert publish(home.catalog, forced, location, effects=clock.effects).outcome == PublishOutcome.REPLAN
