# SPDX-License-Identifier: Apache-2.0
"""An incremental view that is far behind catches up by a bounded part of the new base commits a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from airflow_mv.cli.context import how
from airflow_mv.errors import ConfigurationError
from airflow_mv.freshness.state import State
from airflow_mv.freshness.status import status
from airflow_mv.refresh import RefreshOptions, plan_refresh
from airflow_mv.refresh.cost import human
from airflow_mv.refresh.plan import RefreshPlan
from airflow_mv.refresh.run import refresh
from airflow_mv.spec.reasons import Code
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


def size(lake: Days, snapshot_id: int) -> int:
    """The bytes that a commit added, as its summary says."""
    snapshot = lake.sold.snapshot_by_id(snapshot_id)
    assert snapshot is not None
    assert snapshot.summary is not None
    return int(snapshot.summary["added-files-size"])


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

    assert bounds(plan(lake, 2)) == ["the first 2 of 5 new base commits; left for the next runs: 3"]
    assert bounds(plan(lake, 5)) == []
    assert bounds(plan(lake, None)) == []


def test_each_run_reads_so_many_bytes_and_records_where_it_stopped(lake: Days) -> None:
    """Bytes of data are what a run costs; a commit of one row and a load of a year count alike otherwise."""
    heads = [lake.sell((1, 10**number)) for number in range(5)]
    pair = RefreshOptions(max_bytes=2 * max(size(lake, head) for head in heads))
    assert pair.max_bytes is not None
    assert 3 * min(size(lake, head) for head in heads) > pair.max_bytes
    reached, states = [], []

    for _ in range(3):
        reached.append(dict(lake.refresh(VIEW, options=pair).snapshots)["lake.sales.sold"])
        assert lake.stored() == lake.recomputed(reached[-1])
        states.append(status(lake.catalog, VIEW).state)

    assert reached == [heads[1], heads[3], heads[4]]
    assert states == [State.STALE, State.STALE, State.FRESH]


def test_one_commit_is_read_whatever_its_size(lake: Days) -> None:
    """Else a view would never get past the load of a year. Files that were removed count as those that were added."""
    for number in range(3):
        lake.sell((1, number))
    small = size(lake, lake.head("sold"))
    told = bounds(plan(lake, None, max_bytes=1))

    assert told == [f"the first 1 of 3 new base commits ({human(small)} of files); left for the next runs: 2"]
    lake.refresh(VIEW)
    lake.sold.delete()
    lake.sell((2, 1))
    assert bounds(plan(lake, None, max_bytes=3 * small))[0].startswith("the first 1 of 2 new base commits")
    assert bounds(plan(lake, None, max_bytes=9 * small)) == []


def test_of_two_bounds_the_one_that_is_reached_first_counts(lake: Days) -> None:
    """Each is a promise of its own."""
    heads = [lake.sell((1, number)) for number in range(5)]
    two = 2 * max(size(lake, head) for head in heads)

    for most, largest, expected in ((1, two, 1), (4, two, 2), (3, 9 * two, 3)):
        (told,) = bounds(plan(lake, most, max_bytes=largest))
        assert told.startswith(f"the first {expected} of 5 new base commits (")
    assert bounds(plan(lake, 5, max_bytes=9 * two)) == []


def test_a_commit_that_tells_no_size_is_read_alone(lake: Days) -> None:
    """It may be of any size. So it joins no others, and the plan says what is not known."""
    heads = [lake.sell((1, 1)), lake.compact("sold"), lake.sell((1, 2))]
    reached, told = [], []

    for _ in heads:
        told += bounds(plan(lake, None, max_bytes=10**12))
        reached.append(dict(lake.refresh(VIEW, options=RefreshOptions(max_bytes=10**12)).snapshots)["lake.sales.sold"])

    assert reached == heads
    assert "the first 1 of 2 new base commits (files of unknown size); left for the next runs: 1" in told
    assert lake.stored() == lake.recomputed()


def test_the_command_line_takes_both_bounds_and_none_of_nothing() -> None:
    """As every command that plans does."""

    @click.command()
    @how
    def command(options: RefreshOptions) -> None:
        click.echo(json.dumps(options.bounds))

    call = CliRunner().invoke
    assert json.loads(call(command, ["--max-snapshots", "3", "--max-bytes", "1000"]).stdout) == {
        "max_snapshots": 3,
        "max_bytes": 1000,
    }
    assert json.loads(call(command, []).stdout) == {}
    assert call(command, ["--max-bytes", "0"]).exit_code == 2


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
    assert bounds(found) == ["a full refresh ignores max_snapshots: it reads the base tables as they are"]
    assert bounds(plan(lake, 1, max_bytes=1))[0].startswith("a full refresh ignores max_snapshots and max_bytes: ")


def test_a_forced_refresh_and_an_interval_know_no_bound(lake: Days) -> None:
    """They are asked for by name."""
    lake.sell((1, 1))
    head = lake.sell((1, 2))

    assert [item.snapshot_reference for item in plan(lake, 1, max_bytes=1, full=True).records] == [head]


def test_a_bound_for_several_views_at_once_is_refused(lake: Days) -> None:
    """They are read at one set of snapshots; and a bound of nothing is none."""
    lake.sell((1, 1))
    other = lake.view("other", "SELECT day FROM sales.sold")

    with pytest.raises(ConfigurationError, match="one view at a time"):
        refresh(lake.catalog, [VIEW, other], stager=lake.stager, options=RefreshOptions(max_snapshots=1))
    with pytest.raises(ConfigurationError, match="max_bytes can bound a refresh of one view at a time"):
        refresh(lake.catalog, [VIEW, other], stager=lake.stager, options=RefreshOptions(max_bytes=1))
    with pytest.raises(ConfigurationError, match="max_snapshots is 0; it must be at least 1"):
        plan(lake, 0)
    with pytest.raises(ConfigurationError, match="max_bytes is 0; it must be at least 1"):
        plan(lake, None, max_bytes=0)
