# SPDX-License-Identifier: Apache-2.0
"""Compaction in all catalogs and layouts: other files, the same rows, the same refresh; a refresh goes first."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_mv.actions import maintain_after_refresh
from airflow_mv.common.status import status
from airflow_mv.core.publish import publish
from airflow_mv.core.script import Outcome, RewriteStep, Script, SqlStep
from airflow_mv.core.spec.properties import COMPACT_PROPERTY, EXPIRE_PROPERTY, NEVER
from airflow_mv.core.spec.table_metadata import ancestors
from airflow_mv.errors import InvalidMetadataError
from airflow_mv.extras import compact as compaction
from airflow_mv.extras.compact import compact
from airflow_mv.extras.describe import history
from airflow_mv.extras.history.rollback import rollback
from airflow_mv.extras.history.time_travel import TimeTravel
from airflow_mv.extras.maintenance import run
from airflow_mv.extras.maintenance.orphans import maintain
from airflow_mv.extras.maintenance.verify import verify_files
from airflow_mv.extras.read import read_rows, readable
from tests.builders import Lake
from tests.contract.support import VIEW, left_over, staged, where
from tests.extras.maintenance.support import NOW, refreshed, snapshot_ids
from tests.faults import Clock, Fault, FaultyCatalog, arrive_late, lose_answer_after, lose_answer_before


@pytest.fixture
def home(every_home: Lake, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A lake in which one file is worth a compaction."""
    every_home.table()
    monkeypatch.setattr(compaction, "MIN_FILES", 1)
    return every_home


def rows_of(home: Lake, **which: Any) -> list[dict[str, Any]]:
    found = readable(home.catalog, VIEW, TimeTravel(**which))
    return sorted(read_rows(home.catalog, found).to_arrow().to_pylist(), key=str)


def test_i06_a_compaction_changes_files_and_nothing_that_a_reader_sees(home: Lake) -> None:
    """Rows, history, freshness, time travel and the next refresh are as before; what was compacted can expire."""
    from airflow_mv.extras.maintenance.repair import repair

    first, second = refreshed(home, 2, time_travel=True)
    rows, before, told = home.read(), home.storage(), history(home.catalog, VIEW)
    done = compact(home.catalog, VIEW, stager=home.stager)
    after = home.storage()
    assert (done.outcome, done.snapshot_id) == ("compacted", after.rows_snapshot)
    assert after.rows_snapshot != before.rows_snapshot
    assert next(iter(ancestors(after.table, after.rows_snapshot))).operation == "replace"
    assert home.read() == rows
    keys = ("refresh_id", "current", "mode", "refreshed_at", "base_tables", "rows_written")
    assert [[item.get(key) for key in keys] for item in history(home.catalog, VIEW)] == [
        [item.get(key) for key in keys] for item in told
    ]
    assert status(home.catalog, VIEW).to_dict()["state"] == "fresh"
    for which in (
        {"refresh_id": second},
        {"snapshot_id": before.rows_snapshot},
        {"snapshot_id": after.rows_snapshot},
        {"as_of": datetime.now(UTC) + timedelta(minutes=1)},
    ):
        assert rows_of(home, **which) == rows
    assert len(rows_of(home, refresh_id=first)) < len(rows)
    assert sorted(left_over(home)) == sorted(f"refresh-{item}" for item in (first, second))
    assert repair(home.catalog, VIEW, act=False).to_dict()["healthy"]
    maintain(home.catalog, VIEW, older_than=NOW)
    assert before.rows_snapshot not in snapshot_ids(home)
    assert verify_files(home.catalog, VIEW).intact
    assert (home.refresh().outcome, rows_of(home, refresh_id=second)) == ("fresh", rows)
    home.append((77, "west", 1))
    assert home.refresh().outcome == "refreshed"
    assert rows_of(home, refresh_id=second) == rows
    assert rollback(home.catalog, VIEW, second).changed
    assert home.read() == rows


def test_a_compaction_is_decided_from_metadata(home: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few files, no rows, a dry run, another writer's rows: no job is started, and nothing changes."""

    def no_job(script: Script) -> Outcome:
        raise AssertionError(script)

    home.view()
    assert compact(home.catalog, VIEW, stager=no_job).why == "the view has no rows yet"
    home.refresh()
    before = home.storage()
    would = compact(home.catalog, VIEW, stager=no_job, dry_run=True).to_dict()
    assert (would["outcome"], would["before"]["data_files"], would["after"]) == ("would-compact", 1, None)
    monkeypatch.setattr(compaction, "MIN_FILES", 2)
    few = compact(home.catalog, VIEW, stager=no_job)
    assert (few.outcome, few.why) == (
        "not-needed",
        "data files: 1, the most small ones in a partition: 1, delete files: 0",
    )
    assert home.storage() == before
    if before.name is not None:
        theirs = home.iceberg.load_table((*before.name.namespace, before.name.name))
        theirs.append(theirs.scan().to_arrow())
        assert "another writer has changed" in compact(home.catalog, VIEW, stager=no_job).why


@pytest.mark.parametrize("fault", [lose_answer_after(), lose_answer_before(), arrive_late])
def test_a_compaction_with_a_lost_answer_is_applied_once(home: Lake, clock: Clock, fault: Fault) -> None:
    refreshed(home, 1)
    rows = home.read()
    catalog = FaultyCatalog(home.iceberg, fault)
    assert compact(catalog, VIEW, stager=home.stager, effects=clock.effects).outcome == "compacted"
    done = home.storage()
    catalog.arrive()
    assert home.storage() == done
    assert (home.read(), left_over(home)) == (rows, [])
    assert [item.operation for item in ancestors(done.table, done.table.head)].count("replace") == 1


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_refresh_that_is_published_while_the_job_runs_wins(home: Lake, rounds: int) -> None:
    """The compaction begins again, and gives up after three rounds. Nothing is left of the lost ones."""
    refreshed(home, 1)
    ran = []

    def beside(script: Script) -> Outcome:
        outcome = home.stager(script)
        ran.append(script)
        if len(ran) <= rounds:
            home.append((100 + len(ran), f"new {len(ran)}", 1))
            home.refresh()
        return outcome

    done = compact(home.catalog, VIEW, stager=beside)
    assert (done.outcome, len(ran)) == (("compacted", rounds + 1) if rounds < 3 else ("superseded", 3))
    assert {f"new {number}" for number in range(1, rounds + 1)} <= {row["region"] for row in home.read()}
    assert left_over(home) == []
    assert status(home.catalog, VIEW).to_dict()["state"] == "fresh"


def test_a_refresh_that_was_staged_before_a_compaction_is_planned_again(home: Lake) -> None:
    """Its rows were computed from the files before: nothing of either is lost."""
    refreshed(home, 1)
    home.append((77, "west", 1))
    plan, outcome = staged(home)
    compact(home.catalog, VIEW, stager=home.stager)
    assert publish(home.catalog, plan, where(outcome)).outcome == "replan"
    assert home.refresh().outcome == "refreshed"
    assert "west" in {row["region"] for row in home.read()}


def test_files_with_other_rows_are_not_published(home: Lake) -> None:
    """A job that did anything but rewriting files: its snapshot says so."""
    refreshed(home, 1)
    rows, before = home.read(), home.storage()

    def other(script: Script) -> Outcome:
        (*opening, rewrite) = script.steps
        assert isinstance(rewrite, RewriteStep)
        table = f"{rewrite.table}.`branch_{rewrite.branch}`" if rewrite.branch else rewrite.table
        insert = SqlStep(f"INSERT OVERWRITE {table}\nSELECT 'x' AS region, 1 AS orders, 1 AS amount")
        return home.stager(replace(script, steps=(*opening, insert)))

    with pytest.raises(InvalidMetadataError, match="does not hold the view's rows"):
        compact(home.catalog, VIEW, stager=other)
    assert (home.read(), home.storage().base, left_over(home)) == (rows, before.base, [])


@pytest.mark.usefixtures("unchecked_properties")
def test_a_view_asks_for_maintenance_after_a_refresh(home: Lake, caplog: pytest.LogCaptureFixture) -> None:
    """Above its bounds. The rows are published already: whatever fails is a warning."""
    lines: list[str] = []

    def failing(script: Script) -> Outcome:
        return Outcome(script.refresh_id, None, error="no executors")

    home.view(partition_by=["region"], properties={COMPACT_PROPERTY: "1"})
    home.refresh()
    maintain_after_refresh(home.catalog, VIEW, published=True, stager=failing, report=lines.append)
    assert lines == []
    assert "is refreshed, but its maintenance failed" in caplog.text
    assert "the Spark job of the compaction failed, nothing was published: no executors" in caplog.text
    rows, before = home.read(), home.storage()
    maintain_after_refresh(home.catalog, VIEW, published=True, stager=home.stager, report=lines.append)
    assert [line.partition("(")[0] for line in lines] == [f"lake.{VIEW}: compaction after the refresh: compacted "]
    assert home.read() == rows
    assert home.storage().rows_snapshot != before.rows_snapshot
    home.view("unasked", partition_by=["region"])
    home.refresh("sales.unasked")
    maintain_after_refresh(home.catalog, "sales.unasked", published=True, stager=failing, report=lines.append)
    home.view("wrong", properties={COMPACT_PROPERTY: "many"})
    maintain_after_refresh(home.catalog, "sales.wrong", published=True, stager=failing, report=lines.append)
    assert f"property {COMPACT_PROPERTY}: 'many' is not a whole number of at least 1" in caplog.text
    assert len(lines) == 1


def test_old_snapshots_expire_after_a_refresh_unless_somebody_decides_otherwise(
    home: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some at a time, and none that a reader may still use. A table with its own retention is left alone."""
    monkeypatch.setattr(run, "DEFAULT_OLD_SNAPSHOTS", 2)
    lines: list[str] = []

    def grown(view: str, times: int) -> None:
        for number in range(times):
            home.append((20 + number, "east", number))
            home.refresh(view)

    def dropped(view: str, older_than: timedelta) -> int:
        before = len(home.storage(view).table.snapshots)
        run.maintain_after_refresh(home.catalog, view, published=True, older_than=older_than, report=lines.append)
        return before - len(home.storage(view).table.snapshots)

    home.view()
    grown(VIEW, 1)
    assert (dropped(VIEW, NOW), lines) == (0, [])
    grown(VIEW, 3)
    assert (dropped(VIEW, timedelta(hours=1)), lines) == (0, [])
    rows = home.read()
    count = dropped(VIEW, NOW)
    assert count > 2
    assert f"lake.{VIEW}: maintenance after the refresh: {count} snapshots expired, " in lines[-1]
    assert home.read() == rows

    home.view("asked", properties={EXPIRE_PROPERTY: NEVER})
    grown("sales.asked", 4)
    assert dropped("sales.asked", NOW) == 0
    if home.layout == "table":
        home.view("own")
        grown("sales.own", 4)
        with home.catalog.iceberg.load_table(("sales", "own")).transaction() as change:
            change.set_properties({"history.expire.max-snapshot-age-ms": "1"})
        assert dropped("sales.own", NOW) == 0
