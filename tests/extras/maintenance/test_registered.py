# SPDX-License-Identifier: Apache-2.0
"""Expiry, branches of dead drivers, and orphans if the storage table is a table of the catalog."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_mv.core.publish import publish
from airflow_mv.core.refresh import plan_refresh
from airflow_mv.core.spec.materialized_view import current_tag, staging_branch
from airflow_mv.extras.maintenance.orphans import expire, maintain
from tests.branches import create_branch
from tests.builders import Lake, lake
from tests.extras.maintenance.support import NOW, VIEW, folders_of, make_older, orphans, refreshed, snapshot_ids
from tests.faults import Clock, FaultyCatalog, after

DAY = timedelta(days=1)


@pytest.fixture(params=["sqlite_uri", pytest.param("rest_uri", marks=pytest.mark.rest)])
def home(request: pytest.FixtureRequest, warehouse: Path) -> Iterator[Lake]:
    with lake(request.getfixturevalue(request.param), warehouse, layout="registered") as found:
        found.table()
        yield found


def empty_branch(home: Lake) -> str:
    """A driver has created its branch, and has died or still works before its first row."""
    storage, plan = home.storage(), plan_refresh(home.catalog, VIEW)
    assert storage.name is not None
    branch = f"{staging_branch(plan.refresh_id)}_0123abcd"
    table = home.iceberg.load_table((*storage.name.namespace, storage.name.name))
    create_branch(table, branch, storage.table.head)
    return branch


# -- expiry and dead drivers -------------------------------------------------------------------


def test_maintenance_leaves_one_snapshot_no_branch_and_no_orphan(home: Lake) -> None:
    """Disk use depends on the rows, not on the number of refreshes or of dead drivers."""
    ids = refreshed(home, 3)
    home.append()
    _, outcome = home.stage()
    rows = home.read()
    dry = maintain(home.catalog, VIEW, older_than=NOW, dry_run=True).to_dict()
    assert outcome.branch in home.storage().table.refs
    done = maintain(home.catalog, VIEW, older_than=NOW).to_dict()
    assert done["expired_snapshots"] == dry["expired_snapshots"] != []
    assert done["dropped_branches"] == dry["dropped_branches"] == [outcome.branch]
    assert set(dry["files"]) <= set(done["files"])
    storage = home.storage()
    assert set(storage.table.refs) == {"main", current_tag(ids[-1])}
    assert snapshot_ids(home) == {storage.table.head}
    assert orphans(home) == set()
    assert home.read() == rows
    assert home.refresh().outcome == "refreshed"
    assert len(home.read()) == 3


def test_recent_and_named_snapshots_are_kept_and_a_staged_refresh_can_be_published(home: Lake, clock: Clock) -> None:
    """Neither the branch of a live driver nor the snapshot that it was planned on is removed."""
    ids = refreshed(home, 2, time_travel=True)
    home.append()
    plan, outcome = home.stage()
    before = home.storage().table
    assert not expire(home.catalog, VIEW, older_than=DAY)
    assert home.storage().table == before
    own = home.storage().name
    assert own is not None
    theirs = home.iceberg.load_table((*own.namespace, own.name))
    theirs.manage_snapshots().create_tag(theirs.snapshots()[0].snapshot_id, "theirs").commit()
    for folder in folders_of(home):
        make_older(folder)
    maintain(home.catalog, VIEW, older_than=DAY)
    assert publish(home.catalog, plan, outcome.staged, effects=clock.effects).outcome == "committed"
    maintain(home.catalog, VIEW, older_than=NOW)
    kept = {"main", current_tag(plan.refresh_id), "theirs", *(f"refresh-{item}" for item in (*ids, plan.refresh_id))}
    assert set(home.storage().table.refs) == kept
    assert orphans(home) == set()


def test_a_new_branch_is_dropped_only_when_its_refresh_cannot_be_published_any_more(home: Lake) -> None:
    """It has no snapshot of its own yet, and the one that it starts from may be old."""
    refreshed(home, 1)
    home.append()
    branch = empty_branch(home)
    maintain(home.catalog, VIEW, older_than=NOW)
    assert branch in home.storage().table.refs
    home.refresh()
    maintain(home.catalog, VIEW, older_than=DAY)
    home.append((77, "west", 1))
    home.refresh()
    maintain(home.catalog, VIEW, older_than=NOW)
    assert branch not in home.storage().table.refs
    assert len(snapshot_ids(home)) == 1
    assert orphans(home) == set()


def test_a_driver_that_died_before_the_first_refresh_leaves_no_garbage(home: Lake) -> None:
    home.view()
    home.stage()
    maintain(home.catalog, VIEW, older_than=NOW)
    assert (snapshot_ids(home), set(home.storage().table.refs), orphans(home)) == (set(), set(), set())
    assert home.refresh().outcome == "refreshed"


def test_two_concurrent_expiries_both_succeed(home: Lake, clock: Clock) -> None:
    """The second one finds that its snapshots are already removed."""
    refreshed(home, 3)
    catalog = FaultyCatalog(home.iceberg, after(lambda: expire(home.catalog, VIEW, older_than=NOW)))
    expire(catalog, VIEW, older_than=NOW, effects=clock.effects)
    assert len(snapshot_ids(home)) == 1
