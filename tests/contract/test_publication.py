# SPDX-License-Identifier: Apache-2.0
"""A refresh is published once or not at all, in every catalog and layout: lost answers, races, kills, replacements."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_mv.common.status import status
from airflow_mv.core.catalog import TableChange
from airflow_mv.core.define.create import create
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.freshness.state import State
from airflow_mv.core.publish import PublishOutcome, publish
from airflow_mv.core.refresh import plan_refresh
from airflow_mv.core.refresh.plan import RefreshPlan
from airflow_mv.core.refresh.run import find_staged, refresh
from airflow_mv.core.spec.reasons import Mode
from airflow_mv.core.spec.view import with_view_properties
from airflow_mv.errors import CommitStateUnknownError, InvalidMetadataError, ViewNotFoundError
from tests.builders import Lake
from tests.contract.support import EAST, NORTH, SOUTH, VIEW, ids, left_over, staged, where
from tests.duck import DuckStager
from tests.faults import (
    Clock,
    FaultyCatalog,
    StoppedError,
    after,
    arrive_late,
    lose_answer_after,
    lose_answer_before,
    refuse,
    refuse_and_do_late,
    refuse_what_landed,
    stop_after,
    stop_before,
)


@pytest.fixture
def home(every_home: Lake) -> Lake:
    every_home.table()
    every_home.view()
    return every_home


def files(folder: Path) -> set[str]:
    """All files below a folder, except Java's checksum files."""
    return {str(path) for path in folder.rglob("*") if path.is_file() and path.suffix != ".crc"}


# -- exactly once ------------------------------------------------------------------------------


def test_a_refresh_that_is_published_twice_lands_once(home: Lake, warehouse: Path, clock: Clock) -> None:
    """A retry and a delayed older process publish the same plan and the same staged rows."""
    plan, outcome = staged(home)
    first = publish(home.catalog, plan, where(outcome), effects=clock.effects)
    before = home.catalog.load(VIEW), home.storage(), files(warehouse)
    second = publish(home.catalog, plan, where(outcome), effects=clock.effects)
    assert (first.outcome, second.outcome) == (PublishOutcome.COMMITTED, PublishOutcome.ALREADY_COMMITTED)
    assert first.storage_table_location == second.storage_table_location == home.storage().location
    assert (home.catalog.load(VIEW), home.storage(), files(warehouse)) == before


def sends(catalog: FaultyCatalog) -> list[tuple[str, str] | TableChange]:
    """The swaps or the commits to the storage table that were sent."""
    return [*catalog.sent, *catalog.commits]


def test_i03_a_lost_answer_after_the_change_is_not_published_twice(home: Lake, clock: Clock) -> None:
    plan, outcome = staged(home)
    catalog = FaultyCatalog(home.iceberg, lose_answer_after())
    assert publish(catalog, plan, where(outcome), effects=clock.effects).outcome == PublishOutcome.COMMITTED
    assert len(sends(catalog)) == 1
    assert ids(home) == [plan.refresh_id]
    assert home.read() == [NORTH, SOUTH]


def test_a_lost_answer_before_the_change_is_sent_again_unchanged(home: Lake, clock: Clock) -> None:
    """Two copies of one change have the same base, so at most one is applied."""
    plan, outcome = staged(home)
    catalog = FaultyCatalog(home.iceberg, lose_answer_before(), lose_answer_before())
    assert publish(catalog, plan, where(outcome), effects=clock.effects).outcome == PublishOutcome.COMMITTED
    first, *others = sends(catalog)
    assert others == [first, first]
    assert ids(home) == [plan.refresh_id]


def test_a_change_that_arrives_late_is_applied_once(home: Lake, clock: Clock) -> None:
    plan, outcome = staged(home)
    catalog = FaultyCatalog(home.iceberg, arrive_late)
    assert publish(catalog, plan, where(outcome), effects=clock.effects).outcome == PublishOutcome.COMMITTED
    first, *others = sends(catalog)
    assert all(change == first for change in others)
    assert ids(home) == [plan.refresh_id]
    assert home.read() == [NORTH, SOUTH]


def test_a_change_that_arrives_after_another_refresh_is_refused(home: Lake, clock: Clock) -> None:
    plan, outcome = staged(home)

    def another() -> None:
        home.append()
        home.refresh()

    catalog = FaultyCatalog(home.iceberg, arrive_late)
    effects = replace(clock.effects, sleep=lambda _: another())
    assert publish(catalog, plan, where(outcome), effects=effects).outcome == PublishOutcome.SUPERSEDED
    before = home.storage()
    catalog.arrive()
    assert home.storage() == before
    assert home.read() == [EAST, NORTH, SOUTH]


@pytest.mark.parametrize(
    ("stop", "ending"),
    [(stop_before, PublishOutcome.COMMITTED), (stop_after, PublishOutcome.ALREADY_COMMITTED)],
)
def test_a_process_that_dies_at_the_change_is_completed_by_the_next_one(
    home: Lake, clock: Clock, stop: object, ending: PublishOutcome
) -> None:
    plan, outcome = staged(home)
    with pytest.raises(StoppedError):
        publish(FaultyCatalog(home.iceberg, stop), plan, where(outcome), effects=clock.effects)  # type: ignore[arg-type]
    restored = RefreshPlan.from_dict(plan.to_dict())
    assert publish(home.catalog, restored, where(outcome), effects=clock.effects).outcome == ending
    assert ids(home) == [plan.refresh_id]


def test_a_retry_publishes_what_was_staged_and_stages_nothing(home: Lake) -> None:
    plan, _ = staged(home)
    again = plan_refresh(home.catalog, VIEW)
    assert again.refresh_id == plan.refresh_id
    assert home.refresh().outcome == "refreshed"
    assert len(home.stager.refreshes) == 1
    assert home.read() == [NORTH, SOUTH]
    assert left_over(home) == []


def test_the_staged_rows_of_a_failed_job_are_not_resumed(home: Lake) -> None:
    plan = plan_refresh(home.catalog, VIEW)
    assert plan.script is not None
    half = replace(plan, script=replace(plan.script, steps=plan.script.steps[:1]))
    assert half.script is not None
    home.stager(half.script)
    assert find_staged(home.catalog, plan) is None
    home.refresh()
    assert home.read() == [NORTH, SOUTH]
    home.append()
    home.refresh()
    assert left_over(home) == []


def test_a_fast_forward_with_a_lost_answer_is_not_published_twice(home: Lake, clock: Clock) -> None:
    home.refresh()
    head = home.compact()
    plan, _ = staged(home)
    assert plan.mode == Mode.FAST_FORWARD
    catalog = FaultyCatalog(home.iceberg, lose_answer_after())
    assert publish(catalog, plan, None, effects=clock.effects).outcome == PublishOutcome.COMMITTED
    assert len(sends(catalog)) == 1
    assert publish(home.catalog, plan, None, effects=clock.effects).outcome == PublishOutcome.ALREADY_COMMITTED
    state = home.storage().state
    assert state is not None
    assert state.current.snapshots == {"lake.sales.orders": head}


def test_of_two_fast_forwards_from_one_state_one_is_applied(home: Lake, clock: Clock) -> None:
    """Neither moves the rows: only the record distinguishes them."""
    home.refresh()
    home.compact()
    plan, _ = staged(home)
    other = replace(plan, refresh_id="another-one", records=plan.records)

    def first() -> None:
        publish(home.catalog, other, None, effects=clock.effects)

    published = publish(FaultyCatalog(home.iceberg, after(first)), plan, None, effects=clock.effects)
    assert published.outcome == PublishOutcome.SUPERSEDED
    assert ids(home) == ["another-one"]


# -- concurrent changes ------------------------------------------------------------------------


def test_an_unrelated_property_of_the_view_is_preserved_without_a_recompute(home: Lake, clock: Clock) -> None:
    plan, outcome = staged(home)

    def comment() -> None:
        view = home.catalog.load(VIEW)
        assert home.catalog.replace(view, with_view_properties(view.metadata, {"comment": "by another user"}))

    published = publish(FaultyCatalog(home.iceberg, after(comment)), plan, where(outcome), effects=clock.effects)
    assert published.outcome == PublishOutcome.COMMITTED
    assert home.catalog.load(VIEW).metadata.properties["comment"] == "by another user"
    assert (ids(home), len(home.stager.refreshes)) == ([plan.refresh_id], 1)


def test_a_later_refresh_supersedes_ours_and_none_of_our_files_are_left(home: Lake, clock: Clock) -> None:
    plan, outcome = staged(home)

    def another() -> None:
        home.append()
        home.refresh()

    published = publish(FaultyCatalog(home.iceberg, after(another)), plan, where(outcome), effects=clock.effects)
    assert published.outcome == PublishOutcome.SUPERSEDED
    assert home.read() == [EAST, NORTH, SOUTH]
    assert left_over(home) == []


def test_an_older_refresh_is_planned_again(home: Lake, clock: Clock) -> None:
    older, first = staged(home)
    home.append()
    newer, second = staged(home)
    assert publish(home.catalog, older, where(first), effects=clock.effects).outcome == PublishOutcome.COMMITTED
    assert publish(home.catalog, newer, where(second), effects=clock.effects).outcome == PublishOutcome.REPLAN
    assert left_over(home) == []
    assert home.refresh().outcome == "refreshed"
    assert home.read() == [EAST, NORTH, SOUTH]


def test_two_runs_of_one_refresh_publish_it_once(home: Lake, clock: Clock) -> None:
    """A delayed driver stages the same refresh as its successor."""
    plan, first = staged(home)
    assert plan.script is not None
    second = home.stager(plan.script)
    assert where(first) != where(second)
    assert publish(home.catalog, plan, where(second), effects=clock.effects).outcome == PublishOutcome.COMMITTED
    assert publish(home.catalog, plan, where(first), effects=clock.effects).outcome == PublishOutcome.ALREADY_COMMITTED
    assert home.read() == [NORTH, SOUTH]
    assert left_over(home) == []


def test_rows_without_the_refresh_id_in_their_snapshot_are_not_published(home: Lake, clock: Clock) -> None:
    """An engine that ignores the setting for the summary may have written anything, and reports 0 rows."""
    plan = plan_refresh(home.catalog, VIEW)
    assert plan.script is not None
    outcome = home.stager(replace(plan.script, refresh_id="another"))
    with pytest.raises(InvalidMetadataError, match=f"was not written by refresh {plan.refresh_id}"):
        publish(home.catalog, plan, where(outcome), effects=clock.effects)
    assert ids(home) == []


@pytest.mark.parametrize("columns", ["region, count(*) AS orders, max(amount) AS amount", "count(*) AS orders"])
def test_a_view_that_was_replaced_meanwhile_is_planned_again(home: Lake, clock: Clock, columns: str) -> None:
    plan, outcome = staged(home)
    sql = f"SELECT {columns} FROM lake.sales.orders" + (" GROUP BY region" if "region" in columns else "")
    create(home.catalog, VIEW, Definition(sql), stager=home.stager, replace=True)
    assert publish(home.catalog, plan, where(outcome), effects=clock.effects).outcome == PublishOutcome.REPLAN
    assert ids(home) == []
    assert left_over(home) == []
    assert home.refresh().outcome == "refreshed"
    assert status(home.catalog, VIEW).state == State.FRESH


def _replaced_while_a_change_is_late(home: Lake, clock: Clock, *, removals_overtake: bool) -> None:
    plan, outcome = staged(home)
    catalog = FaultyCatalog(home.iceberg, arrive_late)
    catalog.removals_overtake = removals_overtake
    sql = "SELECT region, count(*) AS orders, max(amount) AS amount FROM lake.sales.orders GROUP BY region"

    def redefine(_: float) -> None:
        create(home.catalog, VIEW, Definition(sql), stager=home.stager, replace=True)

    effects = replace(clock.effects, sleep=redefine)
    assert publish(catalog, plan, where(outcome), effects=effects).outcome == PublishOutcome.REPLAN
    catalog.arrive()


def test_i09_a_late_change_for_a_replaced_view_is_refused(home: Lake, clock: Clock) -> None:
    """After a replan a late copy must not publish rows of the old definition."""
    _replaced_while_a_change_is_late(home, clock, removals_overtake=True)
    assert ids(home) == []
    assert home.read() == []


def test_i09_a_change_that_lands_before_its_branch_is_dropped_has_the_old_definition(home: Lake, clock: Clock) -> None:
    """A commit to a storage table cannot require the view's version: its rows are stale until the next refresh."""
    _replaced_while_a_change_is_late(home, clock, removals_overtake=False)
    assert status(home.catalog, VIEW).state != State.FRESH
    assert home.refresh().outcome == "refreshed"
    assert status(home.catalog, VIEW).state == State.FRESH
    assert [row["amount"] for row in home.read()] == [10, 20]


def test_a_dropped_view_is_not_found(home: Lake, clock: Clock) -> None:
    plan, outcome = staged(home)
    home.drop(VIEW)
    with pytest.raises(ViewNotFoundError, match=r"sales\.daily"):
        publish(home.catalog, plan, where(outcome), effects=clock.effects)


def test_a_view_that_was_dropped_and_recreated_is_another_view(home: Lake, clock: Clock) -> None:
    plan, outcome = staged(home)
    home.drop(VIEW)
    home.view()
    with pytest.raises(ViewNotFoundError, match="created again"):
        publish(home.catalog, plan, where(outcome), effects=clock.effects)
    assert ids(home) == []


def drop_elsewhere(home: Lake) -> None:
    """Drop the view as another engine does, without its storage table."""
    if home.layout != "table":
        home.catalog.drop(VIEW)
    else:
        home.iceberg.drop_table(VIEW)


def test_the_staged_files_of_a_dropped_view_are_deleted(home: Lake, warehouse: Path, clock: Clock) -> None:
    """No later collection would find them. Other files of a dropped view are kept."""
    plan, outcome = staged(home)
    before = files(warehouse)

    def drop_it() -> None:
        drop_elsewhere(home)

    catalog = FaultyCatalog(home.iceberg)
    if home.layout == "registered":
        drop_it()
    else:
        catalog.schedule = [after(drop_it)]
    with pytest.raises(ViewNotFoundError, match=r"sales\.daily"):
        publish(catalog, plan, where(outcome), effects=clock.effects)
    if home.layout != "registered":
        assert files(warehouse) == before
    else:
        assert plan.storage_table is not None
        assert where(outcome) not in home.catalog.tables.open(plan.storage_table).refs()


def test_files_that_may_have_been_published_before_the_drop_are_kept(home: Lake, warehouse: Path, clock: Clock) -> None:
    """The view may have been renamed and need every file."""
    plan, outcome = staged(home)
    landed: set[str] = set()

    def drop_it() -> None:
        drop_elsewhere(home)
        landed.update(files(warehouse))

    catalog = FaultyCatalog(home.iceberg, lose_answer_after(drop_it))
    with pytest.raises(ViewNotFoundError, match=r"sales\.daily"):
        publish(catalog, plan, where(outcome), effects=clock.effects)
    assert landed <= files(warehouse)


def test_i05_a_refresh_that_landed_with_its_last_try_is_not_a_conflict(home: Lake, clock: Clock) -> None:
    plan, outcome = staged(home)
    catalog = FaultyCatalog(home.iceberg, *[refuse] * 7, refuse_what_landed)
    assert publish(catalog, plan, where(outcome), effects=clock.effects).outcome == PublishOutcome.COMMITTED
    assert home.read() == [NORTH, SOUTH]


def test_i05_a_refresh_that_is_refused_without_a_cause_has_an_unknown_outcome(
    home: Lake, warehouse: Path, clock: Clock
) -> None:
    """The base has not moved, so the change may still land: no file is deleted, and either result is correct."""
    plan, outcome = staged(home)
    before = files(warehouse)
    catalog = FaultyCatalog(home.iceberg, *[refuse] * 7, refuse_and_do_late)
    with pytest.raises(CommitStateUnknownError, match="although nothing else was committed"):
        publish(catalog, plan, where(outcome), effects=clock.effects)
    assert before <= files(warehouse)
    catalog.arrive()
    assert home.read() == [NORTH, SOUTH]
    done = publish(home.catalog, plan, where(outcome), effects=clock.effects)
    assert done.outcome == PublishOutcome.ALREADY_COMMITTED


def test_concurrent_refreshes_lose_and_duplicate_nothing(home: Lake) -> None:
    def one(_: int) -> str:
        return refresh(home.catalog, [VIEW], stager=DuckStager(home.catalog, home.iceberg))[0].outcome

    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(one, range(4)))
    assert set(outcomes) <= {"refreshed", "already-committed", "superseded", "fresh"}
    assert outcomes.count("refreshed") >= 1
    assert home.read() == [NORTH, SOUTH]
    assert len(ids(home)) == 1
