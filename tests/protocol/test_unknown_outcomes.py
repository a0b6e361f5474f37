# SPDX-License-Identifier: Apache-2.0
"""Publication with unknown outcomes: an unavailable catalog, endless conflicts, clean-up, resumption, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_mv.core.publish import PublishOutcome, publish
from airflow_mv.core.refresh import plan_refresh
from airflow_mv.core.refresh.run import find_staged, stage
from airflow_mv.core.script import Outcome
from airflow_mv.core.spec.view import with_view_properties
from airflow_mv.errors import CommitConflictError, CommitStateUnknownError, InvalidMetadataError, JobError
from tests.builders import Lake, exists, lake
from tests.faults import Clock, FaultyCatalog, after, lose_answer_after, lose_answer_before

VIEW = "sales.daily"


@pytest.fixture
def home(sqlite_uri: str, warehouse: Path) -> Iterator[Lake]:
    with lake(sqlite_uri, warehouse) as found:
        found.table()
        yield found


def files(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if path.is_file()}


# -- unknown outcomes --------------------------------------------------------------------------


def test_a_catalog_that_stays_unavailable_leaves_the_outcome_unknown(home: Lake, warehouse: Path, clock: Clock) -> None:
    home.view()
    plan, outcome = home.stage()
    before = files(warehouse)
    with pytest.raises(CommitStateUnknownError, match=plan.refresh_id) as caught:
        publish(FaultyCatalog(home.iceberg, loads=99), plan, outcome.metadata_location, effects=clock.effects)
    assert caught.value.retryable
    assert files(warehouse) == before


@pytest.mark.parametrize("landed", [True, False])
def test_a_commit_without_any_answer_deletes_nothing_and_the_retry_settles_it(
    home: Lake, warehouse: Path, clock: Clock, landed: bool
) -> None:
    home.view()
    plan, outcome = home.stage()
    catalog = FaultyCatalog(home.iceberg)

    def go_away() -> None:
        catalog.lost_loads = 99

    catalog.schedule = [lose_answer_after(go_away) if landed else lose_answer_before(go_away)]
    with pytest.raises(CommitStateUnknownError):
        publish(catalog, plan, outcome.metadata_location, effects=clock.effects)
    assert exists(catalog.sent[0][1])
    settled = publish(home.catalog, plan, outcome.metadata_location, effects=clock.effects)
    assert settled.outcome == (PublishOutcome.ALREADY_COMMITTED if landed else PublishOutcome.COMMITTED)
    assert exists(home.catalog.load(VIEW).metadata_location)
    assert len(home.read()) == 2


def test_the_waits_between_tries_increase_and_are_bounded(home: Lake, clock: Clock) -> None:
    home.view()
    plan, outcome = home.stage()
    with pytest.raises(CommitStateUnknownError):
        publish(FaultyCatalog(home.iceberg, loads=99), plan, outcome.metadata_location, effects=clock.effects)
    assert clock.waits == sorted(clock.waits)
    assert len(clock.waits) == 7
    assert max(clock.waits) <= 4.5


def test_endless_commits_of_other_writers_are_a_conflict_and_our_files_are_deleted(
    home: Lake, warehouse: Path, clock: Clock
) -> None:
    home.view()
    plan, outcome = home.stage()
    before = files(warehouse)
    comments = iter(range(100))

    def comment() -> None:
        view = home.catalog.load(VIEW)
        assert home.catalog.replace(view, with_view_properties(view.metadata, {"comment": str(next(comments))}))

    catalog = FaultyCatalog(home.iceberg, *[after(comment) for _ in range(8)])
    with pytest.raises(CommitConflictError, match="8 commits in a row") as caught:
        publish(catalog, plan, outcome.metadata_location, effects=clock.effects)
    assert caught.value.retryable
    assert len({base for base, _ in catalog.sent}) == 8
    assert not any(exists(new) for _, new in catalog.sent)
    new = files(warehouse) - before
    assert len(new) == 8  # the eight comments
    assert home.storage().state is None


def test_a_proven_conflict_deletes_the_files_of_the_try_and_no_others(
    home: Lake, warehouse: Path, clock: Clock
) -> None:
    """The staged file is kept: it is the job's, and its data files may be inspected."""
    home.view()
    plan, outcome = home.stage()
    before = files(warehouse)
    theirs: set[str] = set()

    def another() -> None:
        known = files(warehouse)
        home.append()
        home.refresh()
        theirs.update(files(warehouse) - known)

    catalog = FaultyCatalog(home.iceberg, after(another))
    published = publish(catalog, plan, outcome.metadata_location, effects=clock.effects)
    assert published.outcome == PublishOutcome.SUPERSEDED
    assert files(warehouse) == before | theirs


# -- records -----------------------------------------------------------------------------------


def test_with_time_travel_every_refresh_keeps_its_tagged_snapshot(home: Lake) -> None:
    home.view(time_travel=True)
    results = [home.refresh()]
    home.append()
    results.append(home.refresh())
    home.compact()
    results.append(home.refresh())
    storage = home.storage()
    assert storage.state is not None
    ids = [result.refresh_id for result in results]
    assert [record.refresh_id for record in storage.state.refreshes] == ids
    tagged = [storage.table.refs[f"refresh-{refresh_id}"] for refresh_id in ids]
    assert [ref.type for ref in tagged] == ["tag"] * 3
    for record, ref in zip(storage.state.refreshes, tagged, strict=True):
        snapshot = storage.table.find(ref.snapshot_id)
        assert snapshot is not None
        assert snapshot.sequence_number == record.sequence_number
    assert storage.state.refreshes[0].sequence_number != storage.state.refreshes[1].sequence_number
    assert tagged[1].snapshot_id == tagged[2].snapshot_id  # a fast-forward writes no rows


def test_without_time_travel_one_record_is_kept_and_nothing_is_tagged(home: Lake) -> None:
    home.view()
    home.refresh()
    home.append()
    last = home.refresh()
    storage = home.storage()
    assert storage.state is not None
    assert [record.refresh_id for record in storage.state.refreshes] == [last.refresh_id]
    assert set(storage.table.refs) == {"main"}


def test_times_in_the_record_and_the_table_never_decrease(home: Lake) -> None:
    """The scheduler's clock may be behind the cluster's."""
    home.view()
    slow = Clock(now=1000)
    home.refresh(effects=slow.effects)
    storage = home.storage()
    assert storage.state is not None
    assert storage.table.last_updated_ms >= max(entry.timestamp_ms for entry in storage.table.metadata_log)
    assert (storage.state.current.refreshed_at_ms or 0) > 1000


# -- resuming ----------------------------------------------------------------------------------


def test_a_retry_resumes_a_staged_refresh_without_running_the_job_again(home: Lake) -> None:
    """If a worker dies between the job and the commit, only the commit is repeated."""
    home.view()
    _, first = home.stage()
    again = stage(home.catalog, plan_refresh(home.catalog, VIEW), home.stager)
    assert again == first
    assert len(home.stager.refreshes) == 1
    home.refresh()
    assert len(home.stager.refreshes) == 1
    assert len(home.read()) == 2


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"refresh_id": "another", "metadata_location": "file:///nowhere"}', "\ufffd", "{}"],
)
def test_an_incomplete_outcome_is_staged_again(home: Lake, text: str) -> None:
    home.view()
    plan = plan_refresh(home.catalog, VIEW)
    stage(home.catalog, plan, home.stager)
    assert plan.script is not None
    assert plan.script.outcome_location is not None
    home.catalog.files.replace_text(plan.script.outcome_location, text)
    stage(home.catalog, plan, home.stager)
    assert len(home.stager.refreshes) == 2


def test_an_outcome_whose_staged_file_is_missing_is_staged_again(home: Lake) -> None:
    home.view()
    plan, outcome = home.stage()
    home.catalog.files.delete(outcome.metadata_location or "")
    assert find_staged(home.catalog, plan) is None
    stage(home.catalog, plan, home.stager)
    assert len(home.stager.refreshes) == 2


def test_a_job_without_an_outcome_is_an_error_and_nothing_is_published(home: Lake) -> None:
    home.view()
    plan = plan_refresh(home.catalog, VIEW)
    with pytest.raises(JobError, match=r"sales\.daily.*out of memory"):
        stage(home.catalog, plan, lambda script: Outcome(script.refresh_id, None, error="out of memory"))
    with pytest.raises(JobError, match="without a staged table"):
        stage(home.catalog, plan, lambda script: Outcome(script.refresh_id, None))
    assert home.storage().state is None


# -- validation --------------------------------------------------------------------------------


def test_a_staged_file_of_another_table_is_refused(home: Lake, clock: Clock) -> None:
    home.view()
    home.view("other")
    plan = plan_refresh(home.catalog, VIEW)
    foreign = stage(home.catalog, plan_refresh(home.catalog, "sales.other"), home.stager)
    assert foreign is not None
    with pytest.raises(InvalidMetadataError, match="not in the storage table's folder"):
        publish(home.catalog, plan, foreign.metadata_location, effects=clock.effects)
    moved = f"{home.storage().table.location}/metadata/00001-moved.metadata.json"
    home.catalog.files.write(moved, home.catalog.files.read(foreign.metadata_location or "", what="file"))
    with pytest.raises(InvalidMetadataError, match="another table"):
        publish(home.catalog, plan, moved, effects=clock.effects)
    assert home.storage().location == plan.storage_table_location


def test_a_staged_file_of_an_older_state_is_refused(home: Lake, clock: Clock) -> None:
    """Publishing it would undo the refresh that was published meanwhile."""
    home.view()
    old = stage(home.catalog, plan_refresh(home.catalog, VIEW), home.stager)
    assert old is not None
    home.append()
    home.refresh()
    home.append()
    with pytest.raises(InvalidMetadataError, match="does not follow"):
        publish(home.catalog, plan_refresh(home.catalog, VIEW), old.metadata_location, effects=clock.effects)
    assert len(home.read()) == 3
