# SPDX-License-Identifier: Apache-2.0
"""Rollback if the storage table is a table of the catalog."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_mv.common.status import status
from airflow_mv.core.publish import publish
from airflow_mv.core.refresh import plan_refresh
from airflow_mv.core.spec.materialized_view import refresh_tag
from airflow_mv.extras.history.rollback import rollback
from airflow_mv.extras.history.time_travel import TimeTravel
from airflow_mv.extras.read import readable
from tests.builders import Lake, lake
from tests.extras.maintenance.support import VIEW, refreshed
from tests.faults import Clock, Fault, FaultyCatalog, Send

DAY = timedelta(days=1)


@pytest.fixture(params=["sqlite_uri", pytest.param("rest_uri", marks=pytest.mark.rest)])
def home(request: pytest.FixtureRequest, warehouse: Path) -> Iterator[Lake]:
    with lake(request.getfixturevalue(request.param), warehouse, layout="registered") as found:
        found.table()
        yield found


def kept_copy(copies: list[Send]) -> Fault:
    """The commit is applied, and a copy of it is delivered later."""

    def fault(_: FaultyCatalog, send: Send) -> object:
        copies.append(send)
        return send()

    return fault


def test_a_late_copy_of_a_rollback_that_was_rolled_back_is_refused(home: Lake) -> None:
    """The state is that of before the rollback, but for the name of the current tag."""
    first, second = refreshed(home, 2, time_travel=True)
    copies: list[Send] = []
    rollback(FaultyCatalog(home.iceberg, kept_copy(copies)), VIEW, first)
    rollback(home.catalog, VIEW, second)
    before = home.storage()
    assert copies.pop()() is None
    assert home.storage() == before


def test_a_late_copy_of_a_fast_forward_after_a_rollback_is_refused(home: Lake, clock: Clock) -> None:
    """It has no staged branch that would distinguish it from the current state."""
    first = refreshed(home, 1, time_travel=True)[0]
    home.compact()
    copies: list[Send] = []
    catalog = FaultyCatalog(home.iceberg, kept_copy(copies))
    plan = plan_refresh(home.catalog, VIEW)
    assert plan.script is None
    publish(catalog, plan, None, effects=clock.effects)
    rollback(home.catalog, VIEW, first)
    before = home.storage()
    assert copies.pop()() is None
    assert home.storage() == before
    assert home.refresh().outcome == "refreshed"
    assert status(home.catalog, VIEW).to_dict()["state"] == "fresh"


def test_a_rollback_to_the_current_refresh_removes_the_rows_of_other_writers(home: Lake) -> None:
    (only,) = refreshed(home, 1)
    rows, own = home.read(), home.storage().name
    assert own is not None
    theirs = home.iceberg.load_table((*own.namespace, own.name))
    theirs.append(theirs.scan().to_arrow())
    assert len(home.read()) == 2 * len(rows)
    assert rollback(home.catalog, VIEW, only).changed
    assert home.read() == rows
    assert status(home.catalog, VIEW).to_dict()["state"] == "fresh"


def test_a_refresh_whose_tag_was_moved_is_found_by_its_own_rows(home: Lake) -> None:
    """Readers and rollbacks agree on which snapshot has the rows of a recorded refresh."""
    first, second = refreshed(home, 2, time_travel=True)
    own, tag = home.storage(), refresh_tag(first)
    assert own.name is not None
    table = home.iceberg.load_table((*own.name.namespace, own.name.name))
    snapshot, other = (own.table.refs[refresh_tag(item)].snapshot_id for item in (first, second))
    table.manage_snapshots().remove_tag(tag).commit()
    table.manage_snapshots().create_tag(other, tag).commit()
    assert readable(home.catalog, VIEW, TimeTravel(refresh_id=first)).snapshot_id == snapshot
    assert rollback(home.catalog, VIEW, first).snapshot_id == snapshot
    assert home.read() == sorted(table.scan(snapshot_id=snapshot).to_arrow().to_pylist(), key=str)
