# SPDX-License-Identifier: Apache-2.0
"""An incremental view that is far behind catches up by a bounded part of the new base commits in each run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from pyiceberg.types import StringType

from airflow_mv.cli.context import how
from airflow_mv.common.status import status
from airflow_mv.core.freshness.observe import observe
from airflow_mv.core.freshness.state import State
from airflow_mv.core.refresh import RefreshOptions, plan_refresh
from airflow_mv.core.refresh.plan import RefreshPlan
from airflow_mv.core.refresh.run import refresh
from airflow_mv.core.spec.materialized_view import SCHEMA_ID
from airflow_mv.core.spec.reasons import Code
from airflow_mv.core.spec.times import from_ms
from airflow_mv.core.spec.units import human
from airflow_mv.errors import ConfigurationError, SnapshotNotFoundError
from airflow_mv.extras.catch_up import CatchUp
from tests.builders import rewritten
from tests.core.refresh.intervals.support import SALES, VIEW, Days, days_lake, sold

#: Choose incremental, because estimates for a few bytes mean nothing.
ALWAYS = {"airflow-mv.incremental-up-to": "1000000"}


@pytest.fixture
def lake(sqlite_uri: str, warehouse: Path) -> Iterator[Days]:
    """An incremental view, refreshed."""
    properties = {**ALWAYS, "airflow-mv.interval-column": "day"}
    with days_lake(sqlite_uri, warehouse, "pointed", refresh_strategy="incremental", properties=properties) as made:
        made.sell((1, 1))
        made.refresh(VIEW)
        yield made


def plan(lake: Days, most: int | None, max_bytes: int | None = None, **options: Any) -> RefreshPlan:
    """The plan of a refresh of at most so many commits."""
    return plan_refresh(
        lake.catalog,
        VIEW,
        RefreshOptions(bound=None if most is None and max_bytes is None else CatchUp(most, max_bytes), **options),
    )


def size(lake: Days, snapshot_id: int) -> int:
    """The bytes that a commit added, by its summary."""
    snapshot = lake.sold.snapshot_by_id(snapshot_id)
    assert snapshot is not None
    assert snapshot.summary is not None
    return int(snapshot.summary["added-files-size"])


def bounds(planned: RefreshPlan) -> list[str]:
    """The plan's reasons about its bound."""
    return [reason.message for reason in planned.reasons if reason.code == Code.BOUNDED]


def test_each_run_reads_the_given_number_of_commits_and_records_where_it_stopped(lake: Days) -> None:
    """Five commits, two in each run: three runs, and only the last one makes the view fresh."""
    heads = [lake.sell((1, 10**number)) for number in range(5)]
    reached, states = [], []

    for _ in range(3):
        result = lake.refresh(VIEW, options=RefreshOptions(bound=CatchUp(2)))
        reached.append(dict(result.snapshots)["lake.sales.sold"])
        assert lake.stored() == lake.recomputed(reached[-1])
        states.append(status(lake.catalog, VIEW).state)

    assert reached == [heads[1], heads[3], heads[4]]
    assert states == [State.STALE, State.STALE, State.FRESH]
    assert lake.refresh(VIEW, options=RefreshOptions(bound=CatchUp(2))).outcome == "fresh"


def test_the_plan_reports_how_much_is_left(lake: Days) -> None:
    """The task's log prints the plan's reasons, so it reports this, too."""
    for number in range(5):
        lake.sell((1, number))

    assert bounds(plan(lake, 2)) == ["this refresh reads the first 2 of 5 new base commits; 3 remain for the next runs"]
    assert bounds(plan(lake, 5)) == []
    assert bounds(plan(lake, None)) == []


def test_each_run_reads_the_given_number_of_bytes_and_records_where_it_stopped(lake: Days) -> None:
    """The cost of a run depends on its bytes; a commit of one row and a load of a year count as one commit each."""
    heads = [lake.sell((1, 10**number)) for number in range(5)]
    pair = CatchUp(size=2 * max(size(lake, head) for head in heads))
    assert pair.size is not None
    assert 3 * min(size(lake, head) for head in heads) > pair.size
    reached, states = [], []

    for _ in range(3):
        reached.append(dict(lake.refresh(VIEW, options=RefreshOptions(bound=pair)).snapshots)["lake.sales.sold"])
        assert lake.stored() == lake.recomputed(reached[-1])
        states.append(status(lake.catalog, VIEW).state)

    assert reached == [heads[1], heads[3], heads[4]]
    assert states == [State.STALE, State.STALE, State.FRESH]


def test_one_commit_is_read_whatever_its_size(lake: Days) -> None:
    """Otherwise a large commit would never be read. Removed files count as added ones."""
    for number in range(3):
        lake.sell((1, number))
    small = size(lake, lake.head("sold"))
    reported = bounds(plan(lake, None, max_bytes=1))

    assert reported == [
        f"this refresh reads the first 1 of 3 new base commits ({human(small)} of files); 2 remain for the next runs"
    ]
    lake.refresh(VIEW)
    lake.sold.delete()
    lake.sell((2, 1))
    assert bounds(plan(lake, None, max_bytes=3 * small))[0].startswith(
        "this refresh reads the first 1 of 2 new base commits"
    )
    assert bounds(plan(lake, None, max_bytes=9 * small)) == []


def test_of_two_bounds_the_one_that_is_reached_first_applies(lake: Days) -> None:
    """Each bound holds on its own."""
    heads = [lake.sell((1, number)) for number in range(5)]
    two = 2 * max(size(lake, head) for head in heads)

    for most, largest, expected in ((1, two, 1), (4, two, 2), (3, 9 * two, 3)):
        (reported,) = bounds(plan(lake, most, max_bytes=largest))
        assert reported.startswith(f"this refresh reads the first {expected} of 5 new base commits (")
    assert bounds(plan(lake, 5, max_bytes=9 * two)) == []


def test_a_commit_without_a_size_is_read_alone(lake: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have any size, so it is not combined with others, and the plan reports that the size is unknown."""
    monkeypatch.setattr("airflow_mv.core.catalog.manifest_changes.MAX_MANIFESTS", 0)  # else they show it
    heads = [lake.sell((1, 1)), lake.sell((1, 3)), lake.sell((1, 2))]
    reached, reported = [], []

    def without_numbers(document: dict[str, Any]) -> None:
        (middle,) = (item for item in document["snapshots"] if item["snapshot-id"] == heads[1])
        middle["summary"] = {"operation": "append"}

    rewritten(lake.iceberg, "sales.sold", without_numbers)
    for _ in heads:
        reported += bounds(plan(lake, None, max_bytes=10**12))
        reached.append(
            dict(lake.refresh(VIEW, options=RefreshOptions(bound=CatchUp(size=10**12))).snapshots)["lake.sales.sold"]
        )

    assert reached == heads
    assert (
        "this refresh reads the first 1 of 2 new base commits (files of unknown size); 1 remain for the next runs"
        in reported
    )
    assert lake.stored() == lake.recomputed()


def test_the_command_line_accepts_both_bounds_and_refuses_zero() -> None:
    """This holds for every command that plans."""

    @click.command()
    @how
    def command(options: RefreshOptions) -> None:
        click.echo(json.dumps(options.bound.limits if isinstance(options.bound, CatchUp) else {}))

    call = CliRunner().invoke
    assert json.loads(call(command, ["--max-snapshots", "3", "--max-bytes", "1000"]).stdout) == {
        "max_snapshots": 3,
        "max_bytes": 1000,
    }
    assert json.loads(call(command, []).stdout) == {}
    assert call(command, ["--max-bytes", "0"]).exit_code == 2


def test_several_base_tables_are_read_at_one_moment(lake: Days) -> None:
    """The view is computed from states that existed at the same time."""
    lake.iceberg.create_table("sales.returned", schema=SALES)
    sql = "SELECT day, amount FROM sales.sold UNION ALL SELECT day, amount FROM sales.returned"
    view = lake.view("both", sql, refresh_strategy="incremental", properties=ALWAYS)
    lake.refresh(view)
    heads = []
    for number in range(3):
        lake.sell((2, number))
        lake.load("returned").append(sold([(2, -number)]))
        heads.append({"lake.sales.sold": lake.head("sold"), "lake.sales.returned": lake.head("returned")})

    found = plan_refresh(lake.catalog, view, RefreshOptions(bound=CatchUp(4)))

    assert {item.identifier: item.snapshot_reference for item in found.records} == heads[1]


def test_a_refresh_of_a_base_view_is_read_as_a_whole(lake: Days) -> None:
    """It may delete rows in one snapshot and insert them in the next; the rows between were never the view's."""
    above = lake.view("above", "SELECT day, amount FROM sales.daily", refresh_strategy="incremental", properties=ALWAYS)
    lake.refresh(above)
    heads = [lake.storage(VIEW).rows_snapshot]
    for number in (1, 2, 3):
        lake.sell((number, 10))
        lake.refresh_days(number, number + 1)
        heads.append(lake.storage(VIEW).rows_snapshot)
    daily = lake.storage(VIEW)
    assert len(daily.table.snapshots) > len(heads), "a refresh made one snapshot: the test shows nothing"

    for head in heads[1:]:
        assert (
            plan_refresh(lake.catalog, above, RefreshOptions(bound=CatchUp(size=1))).records[0].snapshot_reference
            == head
        )
        result = lake.refresh(above, options=RefreshOptions(bound=CatchUp(1)))
        assert dict(result.snapshots)["lake.sales.daily"] == head
    assert observe(lake.catalog, above).freshness.state == State.FRESH, "other days of daily are stale"

    other = lake.view("other", "SELECT day, amount FROM sales.daily")
    for entry in daily.table.snapshot_log[1:]:
        as_of = RefreshOptions(as_of=from_ms(entry.timestamp_ms))
        with suppress(SnapshotNotFoundError):  # before the first refresh
            assert plan_refresh(lake.catalog, other, as_of).records[0].snapshot_reference in heads


def test_the_record_has_the_schema_of_the_snapshot_that_was_reached(lake: Days) -> None:
    """A later commit may have another one."""
    lake.sell((1, 1))
    schema_id = lake.sold.schema().schema_id
    with lake.sold.update_schema() as update:
        update.add_column("note", StringType())
    lake.sell((1, 2))

    assert plan(lake, 1).records[0].properties[SCHEMA_ID] == str(schema_id) != str(lake.sold.schema().schema_id)


def test_a_full_refresh_always_reads_the_current_state(lake: Days) -> None:
    """A full recompute of an older state would cost everything and leave the view stale. The plan says so."""
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
    assert bounds(found) == ["a full refresh ignores max_snapshots and reads the current snapshots of the base tables"]
    assert bounds(plan(lake, 1, max_bytes=1))[0].startswith("a full refresh ignores max_snapshots and max_bytes and ")


def test_a_forced_refresh_and_an_interval_have_no_bound(lake: Days) -> None:
    """They are requested explicitly."""
    lake.sell((1, 1))
    head = lake.sell((1, 2))

    assert [item.snapshot_reference for item in plan(lake, 1, max_bytes=1, full=True).records] == [head]


def test_a_bound_for_several_views_at_once_is_refused(lake: Days) -> None:
    """They are read at one consistent snapshot set. A bound of zero is refused, too."""
    lake.sell((1, 1))
    other = lake.view("other", "SELECT day FROM sales.sold")

    with pytest.raises(ConfigurationError, match="one view without pins"):
        refresh(lake.catalog, [VIEW, other], stager=lake.stager, options=RefreshOptions(bound=CatchUp(1)))
    with pytest.raises(ConfigurationError, match="max_bytes may be used for one view without pins"):
        refresh(lake.catalog, [VIEW, other], stager=lake.stager, options=RefreshOptions(bound=CatchUp(size=1)))
    with pytest.raises(ConfigurationError, match="max_snapshots is 0; it must be at least 1"):
        plan(lake, 0)
    with pytest.raises(ConfigurationError, match="max_bytes is 0; it must be at least 1"):
        plan(lake, None, max_bytes=0)
