# SPDX-License-Identifier: Apache-2.0
"""An incremental view that is far behind catches up by a bounded number of base commits a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_mv.errors import ConfigurationError
from airflow_mv.plan.freshness import State
from airflow_mv.plan.planner import RefreshPlan
from airflow_mv.plan.reasons import Code
from airflow_mv.planning import RefreshOptions, plan_refresh
from airflow_mv.refresh import refresh
from airflow_mv.status import status
from tests.intervals.support import SALES, VIEW, Days, days_lake, sold

#: Whatever the estimates of a few bytes are worth.
ALWAYS = {"airflow-mv.incremental-up-to": "1000000"}


@pytest.fixture
def lake(sqlite_uri: str, warehouse: Path) -> Iterator[Days]:
    """An incremental view, refreshed."""
    with days_lake(sqlite_uri, warehouse, "pointed", refresh_strategy="incremental", properties=ALWAYS) as made:
        made.sell((1, 1))
        made.refresh(VIEW)
        yield made


def plan(lake: Days, most: int | None, **options: Any) -> RefreshPlan:
    """What a refresh of at most so many commits would do."""
    return plan_refresh(lake.catalog, VIEW, RefreshOptions(max_snapshots=most, **options))


def bounds(planned: RefreshPlan) -> list[str]:
    """What the plan says of its bound."""
    return [reason.message for reason in planned.reasons if reason.code == Code.BOUNDED]


def test_each_run_reads_so_many_commits_and_records_where_it_stopped(lake: Days) -> None:
    """Five commits, two a run: three runs, and the view is fresh after the last one only."""
    heads = [lake.sell((1, 10**number)) for number in range(5)]
    reached, states = [], []

    for _ in range(3):
        result = lake.refresh(VIEW, options=RefreshOptions(max_snapshots=2))
        reached.append(dict(result.snapshots)["lake.sales.sold"])
        assert lake.stored() == lake.recomputed(reached[-1])
        states.append(status(lake.catalog, VIEW).state)

    assert reached == [heads[1], heads[3], heads[4]]
    assert states == [State.STALE, State.STALE, State.FRESH]
    assert lake.refresh(VIEW, options=RefreshOptions(max_snapshots=2)).outcome == "fresh"


def test_the_plan_says_how_much_is_left(lake: Days) -> None:
    """So does the log of the task, which prints the plan's reasons."""
    for number in range(5):
        lake.sell((1, number))

    assert bounds(plan(lake, 2)) == ["the first 2 of 5 new base commits; 3 are left for the next runs"]
    assert bounds(plan(lake, 5)) == []
    assert bounds(plan(lake, None)) == []


def test_several_base_tables_are_cut_at_one_moment(lake: Days) -> None:
    """The view is computed from states that were there at the same time."""
    lake.iceberg.create_table("sales.returned", schema=SALES)
    sql = "SELECT day, amount FROM sales.sold UNION ALL SELECT day, amount FROM sales.returned"
    view = lake.view("both", sql, refresh_strategy="incremental", properties=ALWAYS)
    lake.refresh(view)
    heads = []
    for number in range(3):
        lake.sell((2, number))
        lake.load("returned").append(sold([(2, -number)]))
        heads.append({"lake.sales.sold": lake.head("sold"), "lake.sales.returned": lake.head("returned")})

    found = plan_refresh(lake.catalog, view, RefreshOptions(max_snapshots=4))

    assert {item.identifier: item.snapshot_reference for item in found.records} == heads[1]


def test_a_full_refresh_is_never_of_an_older_state(lake: Days) -> None:
    """To recompute all rows and be stale again would cost everything for half of the use. The plan says so."""
    lake.sell((1, 1))
    lake.correct((1, 5))
    head = lake.sell((1, 7))
    roll_back = lake.sold.history()[0].snapshot_id
    lake.roll_back(roll_back, "sold")
    lake.roll_back(head, "sold")
    lake.expire(lake.storage(VIEW).state.current.snapshots["lake.sales.sold"], "sold")

    found = plan(lake, 1)

    assert str(found.mode) == "full"
    assert [item.snapshot_reference for item in found.records] == [head]
    assert bounds(found) == ["max_snapshots is not for a full refresh: that reads the base tables as they are"]


def test_a_forced_refresh_and_an_interval_know_no_bound(lake: Days) -> None:
    """They are asked for by name."""
    lake.sell((1, 1))
    head = lake.sell((1, 2))

    assert [item.snapshot_reference for item in plan(lake, 1, full=True).records] == [head]


def test_a_bound_for_several_views_at_once_is_refused(lake: Days) -> None:
    """They are read at one set of snapshots; and a bound of nothing is none."""
    lake.sell((1, 1))
    other = lake.view("other", "SELECT day FROM sales.sold")

    with pytest.raises(ConfigurationError, match="one view at a time"):
        refresh(lake.catalog, [VIEW, other], stager=lake.stager, options=RefreshOptions(max_snapshots=1))
    with pytest.raises(ConfigurationError, match="at least 1"):
        plan(lake, 0)
