# SPDX-License-Identifier: Apache-2.0
"""Which rows may be read in which state, and at what cost."""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import airflow_mv
from airflow_mv.common.stored_rows import stored_rows
from airflow_mv.core.catalog import Layout
from airflow_mv.errors import JobError, RefreshNotFoundError, SnapshotNotFoundError, StaleViewError, UnsupportedError
from airflow_mv.extras.history.changes import changed_rows, question
from airflow_mv.extras.history.time_travel import TimeTravel
from airflow_mv.extras.maintenance.verify import verify
from airflow_mv.extras.read import read_rows, readable
from tests.builders import LAYOUTS
from tests.core.job.changing import random_history
from tests.engine.fixtures import new_lake
from tests.engine.support import Lake, multiset, no_spark

DAILY = "SELECT day, sum(amount) AS amount FROM {ns}.orders GROUP BY day"
OLD, NEW, REDEFINED = [(1, 30), (2, 30)], [(1, 30), (2, 30), (3, 1)], [(1, 2), (2, 1)]


@dataclass(frozen=True)
class Rule:
    """One cell of the table of rules."""

    state: str
    allow_stale_data: bool
    refreshes: bool
    rows: list[tuple[int, int]]


RULES = [
    Rule("fresh", False, False, OLD),
    Rule("stale", False, True, NEW),
    Rule("stale", True, False, OLD),
    Rule("never-refreshed", True, True, OLD),
    Rule("definition-changed", False, True, REDEFINED),
    Rule("definition-changed", True, True, REDEFINED),
]


@pytest.mark.parametrize(
    "rule", RULES, ids=lambda rule: f"{rule.state}-{'allowed' if rule.allow_stale_data else 'not'}"
)
def test_a_reader_gets_stored_rows_or_a_refresh_first(lake: Lake, rule: Rule) -> None:
    """Stale rows only if the view allows them; rows of another definition never."""
    _bring_about(lake, rule)
    assert lake.status("daily").state == rule.state
    scripts = len(lake.scripts)

    if rule.refreshes:
        with pytest.raises(
            StaleViewError, match=f"daily is {rule.state} .*so its rows are not returned. Run `airflow-mv refresh"
        ):
            readable(lake.catalog, lake("daily"))
    else:
        readable(lake.catalog, lake("daily"), refresh=lambda view: lake.refresh("daily", stager=no_spark))
    found = readable(lake.catalog, lake("daily"), refresh=lambda view: lake.refresh("daily"))
    result = read_rows(lake.catalog, found)

    assert result.columns == ["day", "amount"]
    assert sorted(map(tuple, result.rows())) == rule.rows
    assert len(lake.scripts) == scripts + rule.refreshes
    assert found.state == ("fresh" if rule.refreshes else rule.state)
    assert found.refresh_id == lake.status("daily").to_dict()["refresh_id"]


def _bring_about(lake: Lake, rule: Rule) -> None:
    lake.table("orders", "day integer, amount bigint", "(1, 10), (1, 20), (2, 30)")
    lake.create("daily", DAILY, allow_stale_data=rule.allow_stale_data)
    if rule.state != "never-refreshed":
        lake.refresh("daily")
    if rule.state == "stale":
        lake.insert("orders", "(3, 1)")
    if rule.state == "definition-changed":
        lake.run("CREATE OR REPLACE VIEW {ns}.daily AS SELECT day, count(*) AS amount FROM {ns}.orders GROUP BY day")


def test_a_spark_job_reads_a_data_frame_over_the_stored_rows(lake: Lake) -> None:
    """The public function takes a session and a name, opens the catalog of that name, and refreshes in the session."""
    lake.table("orders", "day integer, amount bigint", "(1, 10), (1, 20), (2, 30)")
    lake.create("daily", DAILY)
    frame = airflow_mv.read(lake.spark, lake("daily"))
    assert sorted(map(tuple, frame.collect())) == OLD
    assert lake.status("daily").state == "fresh"

    lake.insert("orders", "(3, 1)")
    later = airflow_mv.read(lake.spark, lake("daily"), catalog=lake.catalog)
    assert sorted(map(tuple, later.filter("day > 1").collect())) == NEW[1:]
    assert sorted(map(tuple, frame.collect())) == OLD  # a frame keeps the refresh that it was created for


def test_a_view_without_rows_is_read_with_its_columns(lake: Lake) -> None:
    """An empty result is a result."""
    lake.table("orders", "day integer, amount bigint")
    lake.create("daily", DAILY)
    found = readable(lake.catalog, lake("daily"), refresh=lambda view: lake.refresh("daily"))
    result = read_rows(lake.catalog, found)
    assert (result.columns, list(result.rows())) == (["day", "amount"], [])
    assert airflow_mv.read(lake.spark, lake("daily"), catalog=lake.catalog).collect() == []


@pytest.fixture(scope="module")
def travelling(lake_folder: Any) -> Lake:
    """A view with two recorded refreshes."""
    lake = new_lake(lake_folder)
    lake.table("orders", "day integer, amount bigint", "(1, 10), (1, 20), (2, 30)")
    lake.create("daily", DAILY, time_travel=True)
    lake.refresh("daily")
    lake.insert("orders", "(3, 1)")
    lake.refresh("daily")
    return lake


def test_a_limit_is_applied(travelling: Lake) -> None:
    """A limit of zero, too."""
    found = readable(travelling.catalog, travelling("daily"))
    for limit in (0, 1, 2, 99):
        assert len(list(read_rows(travelling.catalog, found, limit=limit).rows())) == min(limit, 3)


def test_earlier_rows_are_read_whether_stale_or_not(travelling: Lake) -> None:
    """If a refresh is named, freshness does not matter, and no refresh starts."""
    state = travelling.catalog.load_storage(travelling.view("daily")).state
    assert state is not None
    first = readable(
        travelling.catalog,
        travelling("daily"),
        TimeTravel(refresh_id=state.refreshes[0].refresh_id),
        refresh=pytest.fail,
    )
    assert sorted(map(tuple, read_rows(travelling.catalog, first).rows())) == OLD


def test_a_data_frame_has_the_rows_of_a_refresh_or_of_a_time(travelling: Lake) -> None:
    """A time without a zone is UTC, as on the command line."""
    state = travelling.catalog.load_storage(travelling.view("daily")).state
    assert state is not None
    moments = [datetime.fromtimestamp((record.refreshed_at_ms or 0) / 1000, UTC) for record in state.refreshes]
    for which, rows in (
        ({"refresh_id": state.refreshes[0].refresh_id}, OLD),
        ({"as_of": moments[0].replace(tzinfo=None)}, OLD),
        ({"as_of": moments[1]}, NEW),
    ):
        frame = airflow_mv.read(travelling.spark, travelling("daily"), catalog=travelling.catalog, **which)
        assert sorted(map(tuple, frame.collect())) == rows


def test_a_refresh_that_is_not_recorded_is_refused_with_the_recorded_ones(travelling: Lake) -> None:
    """By an unknown id, and by a time before the first refresh."""
    with pytest.raises(RefreshNotFoundError, match=r"no refresh with id nope \(2 recorded, the oldest of 20"):
        readable(travelling.catalog, travelling("daily"), TimeTravel(refresh_id="nope"))
    with pytest.raises(RefreshNotFoundError, match="no refresh as of 1999"):
        readable(travelling.catalog, travelling("daily"), TimeTravel(as_of=datetime(1999, 1, 1, tzinfo=UTC)))


def test_the_change_between_two_snapshots_is_what_except_all_finds(lake: Lake) -> None:
    """In a history with updates, compactions, overwrites and rollbacks, also back in time, and with an added column.

    Without the map, whose values EXCEPT ALL does not compare.
    """
    name, columns = lake("orders"), ["id", "k", "x y", "b", "s"]
    table = random_history(lake.spark, name, (2, "merge-on-read"), seed=4, changes=3)
    for start, end in random.Random(1).sample(list(itertools.permutations(table.snapshots, 2)), 2):
        old, new = (lake.spark.sql(f"SELECT * FROM {name} VERSION AS OF {item}").drop("m") for item in (start, end))
        found = airflow_mv.changes(lake.spark, name, start=start, end=end, columns=columns, catalog=lake.catalog)
        assert found.columns == ["_change_type", *columns]
        for kind, expected in (("INSERT", new.exceptAll(old)), ("DELETE", old.exceptAll(new))):
            rows = multiset(found.where(f"_change_type = '{kind}'").drop("_change_type").toArrow())
            assert rows == multiset(expected.toArrow()), (start, end)

    before = table.head
    table.run("ALTER TABLE {t} ADD COLUMN late INT", "INSERT INTO {t} VALUES (99, 1, 'x', NULL, NULL, NULL, 5)")
    asked = question(lake.catalog, name, before)
    assert (asked.left_out, asked.on_one_line) == (("late",), True)
    assert [row.id for row in changed_rows(lake.catalog, lake.spark, asked).collect()] == [99]
    table.run(f"CALL {lake.catalog.name}.system.set_current_snapshot('{lake.namespace}.orders', {before})")
    assert not question(lake.catalog, name, asked.end).on_one_line
    with pytest.raises(UnsupportedError, match="column late is not the same column in both snapshots"):
        airflow_mv.changes(lake.spark, name, start=before, end=asked.end, columns=["late"], catalog=lake.catalog)
    with pytest.raises(SnapshotNotFoundError, match=rf"orders has no snapshot 7, .* {table.snapshots[0]} of 2"):
        question(lake.catalog, name, 7)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_change_of_a_view_s_rows_is_read_between_two_refreshes(lake: Lake, layout: Layout) -> None:
    """By the ids of refreshes, from a storage table with a name and from one without."""
    lake.table("orders", "day integer, amount bigint", "(1, 10), (1, 20), (2, 30)")
    lake.create("daily", DAILY, time_travel=True, layout=layout)
    first = lake.refresh("daily").refresh_id
    lake.insert("orders", "(3, 1), (2, 5)")
    second = lake.refresh("daily").refresh_id
    changed = [("DELETE", 2, 30), ("INSERT", 2, 35), ("INSERT", 3, 1)]
    for end in (second, None):
        frame = airflow_mv.changes(lake.spark, lake("daily"), start=first, end=end, catalog=lake.catalog)
        assert sorted(map(tuple, frame.collect())) == changed
    with pytest.raises(RefreshNotFoundError, match=r"no refresh with id nope \(2 recorded"):
        question(lake.catalog, lake("daily"), "nope")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_errors_of_spark_are_one_line_that_names_the_view(lake: Lake, layout: Layout) -> None:
    """A table that was dropped by its name is Spark's error, a file that is gone is Java's. Neither has a trace."""
    lake.table("orders", "day integer, amount bigint", "(1, 10), (1, 20), (2, 30)")
    lake.create("daily", DAILY, layout=layout)
    lake.refresh("daily")
    view = lake.view("daily")
    storage = lake.catalog.load_storage(view)
    for data in lake.stored_files("daily"):
        data.unlink()
    with pytest.raises(JobError, match=f"^verifying view {lake('daily')}: .*does not exist") as gone:
        verify(lake.catalog, lake("daily"), session=lambda: lake.spark)
    if storage.name is not None:
        lake.run(f"DROP TABLE {storage.name}")
    else:
        Path(storage.location.removeprefix("file:")).unlink()
    with pytest.raises(JobError, match=f"^reading the rows of view {lake('daily')}: .*") as dropped:
        stored_rows(lake.spark, view.identifier, storage, None)
    for error in (str(gone.value), str(dropped.value)):
        assert not re.search(r"\n|\tat | at org\.|Py4J|JVM stacktrace|o\d+\.", error)
        assert len(error) < 1200
