# SPDX-License-Identifier: Apache-2.0
"""Expiry and rollback in all catalogs and layouts: applied once, and retried after a conflict."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime

import pytest

from airflow_mv.common.status import status
from airflow_mv.core.publish import publish
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.errors import CommitStateUnknownError, RefreshNotFoundError
from airflow_mv.extras.describe import history
from airflow_mv.extras.history.rollback import rollback
from airflow_mv.extras.history.time_travel import TimeTravel
from airflow_mv.extras.maintenance.orphans import expire
from airflow_mv.extras.read import read_rows, readable
from tests.builders import FIRST, Lake, exists
from tests.contract.support import VIEW, ids, staged, where
from tests.extras.maintenance.support import NOW, refreshed, snapshot_ids
from tests.faults import (
    Clock,
    Fault,
    FaultyCatalog,
    after,
    arrive_late,
    lose_answer_after,
    lose_answer_before,
    refuse,
    refuse_what_landed,
)

FAULTS = [lose_answer_after(), lose_answer_before(), arrive_late]


@pytest.fixture
def home(every_home: Lake) -> Lake:
    every_home.table()
    return every_home


def storage_of(home: Lake) -> tuple[Identifier, str]:
    """The storage table in the catalog, and its uuid."""
    storage = home.storage()
    assert storage.name is not None
    return storage.name, str(storage.table.table_uuid)


# -- expiry ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS)
def test_an_expiry_with_a_lost_answer_is_applied_once(home: Lake, clock: Clock, fault: Fault) -> None:
    """The state is read before the change is sent again, so at most one copy is applied."""
    refreshed(home, 2)
    catalog = FaultyCatalog(home.iceberg, fault)
    assert expire(catalog, VIEW, older_than=NOW, effects=clock.effects).snapshot_ids
    done = home.storage()
    catalog.arrive()
    assert home.storage() == done
    assert len(snapshot_ids(home)) == 1
    locations = [entry.metadata_file for entry in done.table.metadata_log]
    assert len(locations) == len(set(locations))
    assert len(home.read()) == 3


def test_an_expiry_with_an_unknown_outcome_reports_it_and_can_be_settled_later(home: Lake, clock: Clock) -> None:
    refreshed(home, 2)
    catalog = FaultyCatalog(home.iceberg, *[lose_answer_before()] * 9)
    with pytest.raises(CommitStateUnknownError, match=r"sales\.daily"):
        expire(catalog, VIEW, older_than=NOW, effects=clock.effects)
    assert len(snapshot_ids(home)) > 1
    assert expire(home.catalog, VIEW, older_than=NOW).snapshot_ids


def test_i05_an_expiry_that_landed_with_its_last_try_is_not_a_conflict(home: Lake, clock: Clock) -> None:
    """The last refusal proves nothing either: the statement was sent twice."""
    refreshed(home, 2)
    catalog = FaultyCatalog(home.iceberg, *[refuse] * 7, refuse_what_landed)
    assert expire(catalog, VIEW, older_than=NOW, effects=clock.effects).snapshot_ids
    assert len(snapshot_ids(home)) == 1
    assert len(home.read()) == 3


def test_i05_an_expiry_that_is_refused_without_a_cause_has_an_unknown_outcome(home: Lake, clock: Clock) -> None:
    """The base has not moved, so the change may still land: no file is deleted."""
    refreshed(home, 2)
    catalog = FaultyCatalog(home.iceberg, *[refuse] * 8)
    with pytest.raises(CommitStateUnknownError, match="although nothing else was committed"):
        expire(catalog, VIEW, older_than=NOW, effects=clock.effects)
    late = FaultyCatalog(home.iceberg)
    assert all(exists(new) and late.swap(late.identify(VIEW), base, new) for base, new in catalog.sent[-1:])
    assert all(late.tables.commit(*storage_of(home), change) for change in catalog.commits[-1:])
    assert len(snapshot_ids(home)) == 1
    assert len(home.read()) == 3


def test_an_expiry_that_loses_to_a_refresh_is_repeated_on_the_new_state(home: Lake, clock: Clock) -> None:
    refreshed(home, 2)
    old = snapshot_ids(home) - {home.storage().table.head}

    def refresh_first() -> None:
        home.append((99, "west", 1))
        home.refresh()

    catalog = FaultyCatalog(home.iceberg, after(refresh_first))
    expire(catalog, VIEW, older_than=NOW, effects=clock.effects)
    assert home.storage().table.head in snapshot_ids(home)
    assert not old & snapshot_ids(home)
    assert {row["region"] for row in home.read()} == {"north", "south", "east", "west"}


# -- rollback ----------------------------------------------------------------------------------


def test_i07_a_rollback_restores_rows_and_record_and_can_be_undone(home: Lake) -> None:
    """I7: only an explicit rollback goes back; afterwards the view is reported as stale."""
    first, second, third = refreshed(home, 3, time_travel=True)
    rows = home.read()
    assert rollback(home.catalog, VIEW, first).changed
    location = home.storage().location
    assert not rollback(home.catalog, VIEW, first).changed
    assert home.storage().location == location
    assert sum(int(row["orders"]) for row in home.read()) == len(FIRST)
    assert status(home.catalog, VIEW).to_dict()["state"] == "stale"
    assert [item["current"] for item in history(home.catalog, VIEW)] == [True, False, False]
    assert ids(home) == [item["refresh_id"] for item in history(home.catalog, VIEW)] == [first, second, third]
    assert rollback(home.catalog, VIEW, third).changed
    assert home.read() == rows
    assert status(home.catalog, VIEW).to_dict()["state"] == "fresh"
    rollback(home.catalog, VIEW, second)
    result = home.refresh()
    assert result.outcome == "refreshed"
    assert result.refresh_id not in {first, second, third}
    assert home.read() == rows
    tags = [name for name in home.storage().table.refs if name.startswith("airflow_mv_at_")]
    assert len(tags) == (home.layout != "pointed")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_rollback_with_a_lost_answer_is_applied_once(home: Lake, clock: Clock, fault: Fault) -> None:
    first, _ = refreshed(home, 2, time_travel=True)
    catalog = FaultyCatalog(home.iceberg, fault)
    assert rollback(catalog, VIEW, first, effects=clock.effects).changed
    done = home.storage()
    catalog.arrive()
    assert home.storage() == done
    log = [entry.snapshot_id for entry in done.table.snapshot_log]
    assert log.count(log[-1]) == 2
    assert len(home.read()) == 2


def test_a_rollback_that_landed_without_an_answer_is_not_repeated_on_a_newer_refresh(home: Lake, clock: Clock) -> None:
    """Its answer is lost, and a refresh is published on top of it, which is kept."""
    first, second = refreshed(home, 2, time_travel=True)

    def refresh_next() -> None:
        home.append((99, "west", 1))
        home.refresh()

    catalog = FaultyCatalog(home.iceberg, lose_answer_after(refresh_next))
    assert rollback(catalog, VIEW, first, effects=clock.effects).changed
    assert [item["current"] for item in history(home.catalog, VIEW)] == [False, False, True]
    assert {row["region"] for row in home.read()} == {"north", "south", "east", "west"}
    assert rollback(home.catalog, VIEW, second).changed
    assert {row["region"] for row in home.read()} == {"north", "south", "east"}


def test_i05_a_rollback_that_landed_with_its_last_try_is_not_a_conflict(home: Lake, clock: Clock) -> None:
    first, _ = refreshed(home, 2, time_travel=True)
    catalog = FaultyCatalog(home.iceberg, *[refuse] * 7, refuse_what_landed)
    assert rollback(catalog, VIEW, first, effects=clock.effects).changed
    assert len(home.read()) == 2


def test_the_record_does_not_grow_with_rollbacks(home: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps the last rollbacks. What was current before the oldest of them is not known."""
    for module in ("rollback", "time_travel"):
        monkeypatch.setattr(f"airflow_mv.extras.history.{module}.KEPT_ROLLBACKS", 8)
    before = datetime.now(UTC)
    both = refreshed(home, 2, time_travel=True)
    for number in range(12):
        assert rollback(home.catalog, VIEW, both[number % 2]).changed
    state = home.storage().state
    assert state is not None
    assert len(state.rollbacks) == 8
    for moment in (before, datetime.fromtimestamp(state.rollbacks[0].rolled_back_at_ms / 1000 - 0.001, UTC)):
        with pytest.raises(RefreshNotFoundError, match="no refresh as of"):
            readable(home.catalog, VIEW, TimeTravel(as_of=moment))


def test_a_rollback_that_loses_to_a_refresh_is_repeated_on_the_new_state(home: Lake, clock: Clock) -> None:
    first, _ = refreshed(home, 2, time_travel=True)

    def refresh_first() -> None:
        home.append((99, "west", 1))
        home.refresh()

    assert rollback(FaultyCatalog(home.iceberg, after(refresh_first)), VIEW, first, effects=clock.effects).changed
    assert len(home.read()) == 2
    assert len(history(home.catalog, VIEW)) == 3


def test_a_refresh_that_was_staged_before_a_rollback_is_planned_again(home: Lake, clock: Clock) -> None:
    first, _ = refreshed(home, 2, time_travel=True)
    home.append()
    plan, outcome = staged(home)
    rollback(home.catalog, VIEW, first)
    assert publish(home.catalog, plan, where(outcome), effects=clock.effects).outcome == "replan"
    assert len(home.read()) == 2


def test_without_time_travel_a_rollback_works_until_the_rows_expire(home: Lake) -> None:
    """The format's record is the current refresh's. The log has the others, which can be made current as well."""
    refreshes = [first, second, third] = refreshed(home, 3)
    rows = home.read()
    for wanted, orders in ((second, len(FIRST) + 1), (first, len(FIRST))):
        assert rollback(home.catalog, VIEW, wanted).changed
        assert sum(int(row["orders"]) for row in home.read()) == orders
        assert ids(home) == [wanted]
        shown = [(item["refresh_id"], item["current"]) for item in history(home.catalog, VIEW)]
        assert shown == [(item, item == wanted) for item in refreshes]
    assert home.refresh().outcome == "refreshed"
    assert home.read() == rows
    assert [item["refresh_id"] for item in history(home.catalog, VIEW)][:3] == refreshes
    expire(home.catalog, VIEW, older_than=NOW)
    assert [item["snapshot_id"] for item in history(home.catalog, VIEW)][:3] == [None] * 3
    with pytest.raises(RefreshNotFoundError, match="have expired; with --time-travel each refresh keeps its rows"):
        rollback(home.catalog, VIEW, third)
    with pytest.raises(RefreshNotFoundError, match=r"4 recorded; `airflow-mv history"):
        rollback(home.catalog, VIEW, "other")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_rows_as_of_a_time_are_those_published_at_that_time_despite_rollbacks(home: Lake, seed: int) -> None:
    """They are compared with a record of which refresh was current at which time.

    The log of the storage table's snapshots is not enough: an expiry cuts it, and a fast-forward adds nothing to it.
    """
    chance = random.Random(seed)
    home.view(time_travel=True)
    diary: list[tuple[datetime, str, list[dict[str, object]]]] = []
    for number in range(7):
        known = [str(item["refresh_id"]) for item in history(home.catalog, VIEW)]
        if len(known) > 1 and chance.random() < 0.5:
            rollback(home.catalog, VIEW, chance.choice(known))
        else:
            _ = home.compact() if number == 1 else home.append((number + 50, "west", number))
            home.refresh()
        time.sleep(0.02)
        state = home.storage().state
        assert state is not None
        diary.append((datetime.now(UTC), state.current_refresh_id, home.read()))
        time.sleep(0.02)
    expire(home.catalog, VIEW, older_than=NOW)
    for moment, refresh_id, rows in diary:
        found = readable(home.catalog, VIEW, TimeTravel(as_of=moment))
        assert found.refresh_id == refresh_id
        columns = read_rows(home.catalog, found)
        assert sorted((dict(zip(columns.columns, row, strict=True)) for row in columns.rows()), key=str) == rows
