# SPDX-License-Identifier: Apache-2.0
"""Edge cases of the protocol: whose refresh was published, forbid_deletion files, foreign folders, lost answers."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO

from airflow_mv.actions import create_view as create
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.publish import PublishOutcome, publish
from airflow_mv.core.refresh.run import find_staged
from airflow_mv.core.refresh.run import publish as publish_plan
from airflow_mv.core.script import Outcome
from airflow_mv.core.spec.view import with_view_properties
from airflow_mv.errors import InvalidMetadataError
from airflow_mv.extras.maintenance.drop import drop
from airflow_mv.extras.maintenance.orphans import DEFAULT_GRACE, collect_orphans, expire
from airflow_mv.operators.submission_files import ship
from tests.builders import LAYOUTS, QUERY, Lake, exists, lake
from tests.extras.maintenance.support import NOW, VIEW, files, folder_of, local, make_older
from tests.faults import Clock, FaultyCatalog, after, lose_answer_after


@pytest.fixture(params=LAYOUTS)
def either(request: pytest.FixtureRequest, sqlite_uri: str, warehouse: Path) -> Iterator[Lake]:
    with lake(sqlite_uri, warehouse, layout=request.param) as found:
        found.table()
        yield found


@pytest.fixture
def home(sqlite_uri: str, warehouse: Path) -> Iterator[Lake]:
    with lake(sqlite_uri, warehouse) as found:
        found.table()
        yield found


# -- whose refresh was published ---------------------------------------------------------------


def test_a_refresh_that_another_process_published_is_not_reported_as_ours(either: Lake, clock: Clock) -> None:
    """Two tries of one task publish the same staged rows; both have sent their change, and one has landed."""
    either.view()
    plan, outcome = either.stage()
    catalog = FaultyCatalog(either.iceberg, after(lambda: publish(either.catalog, plan, outcome.staged)))
    ended = publish_plan(catalog, plan, outcome, effects=clock.effects)
    assert ended is not None
    assert (ended.outcome, ended.rows_written) == ("already-committed", 0)
    assert len(catalog.sent) + len(catalog.commits) == 1


def test_our_own_refresh_is_found_below_a_later_one_that_replaced_its_record(either: Lake, clock: Clock) -> None:
    either.view()

    def another() -> None:
        either.append()
        either.refresh()

    plan, outcome = either.stage()
    catalog = FaultyCatalog(either.iceberg, lose_answer_after(another))
    assert publish(catalog, plan, outcome.staged, effects=clock.effects).outcome == PublishOutcome.COMMITTED
    state = either.storage().state
    assert state is not None
    assert [record.refresh_id == plan.refresh_id for record in state.refreshes] == [False]
    assert {row["region"] for row in either.read()} == {"north", "south", "east"}


# -- a file that cannot be deleted -------------------------------------------------------------


@pytest.fixture
def forbid_deletion(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function after whose call the store refuses all deletions."""

    def refuse(io: PyArrowFileIO, location: object) -> None:
        raise OSError(30, "Read-only file system", str(location))

    return lambda: monkeypatch.setattr(PyArrowFileIO, "delete", refuse)


def comment(home: Lake) -> None:
    view = home.catalog.load(VIEW)
    assert home.catalog.replace(view, with_view_properties(view.metadata, {"comment": "theirs"}))


def test_an_unneeded_view_file_that_cannot_be_deleted_does_not_fail_a_publication(
    home: Lake, clock: Clock, forbid_deletion: Callable[[], None]
) -> None:
    home.view()
    plan, outcome = home.stage()

    def meanwhile() -> None:
        comment(home)
        forbid_deletion()

    catalog = FaultyCatalog(home.iceberg, after(meanwhile))
    assert publish(catalog, plan, outcome.staged, effects=clock.effects).outcome == PublishOutcome.COMMITTED
    assert exists(catalog.sent[0][1])
    assert len(home.read()) == 2


def test_an_unneeded_view_file_that_cannot_be_deleted_does_not_fail_an_expiry(
    home: Lake, clock: Clock, forbid_deletion: Callable[[], None]
) -> None:
    home.view()
    home.refresh()
    home.append()
    home.refresh()

    def meanwhile() -> None:
        comment(home)
        forbid_deletion()

    catalog = FaultyCatalog(home.iceberg, after(meanwhile))
    clock_is_read = home.catalog.files.now_ms  # it deletes its probe file
    now = clock_is_read(home.catalog.load(VIEW).metadata.location)
    catalog.files.now_ms = lambda base: now + 1  # type: ignore[method-assign]
    assert expire(catalog, VIEW, older_than=NOW, effects=clock.effects).snapshot_ids
    assert len(home.storage().table.snapshots) == 1


# -- foreign folders ---------------------------------------------------------------------------


def staged_elsewhere(home: Lake, warehouse: Path, location: str) -> str:
    """Copy a staged metadata file to another folder of the warehouse."""
    moved = warehouse / "elsewhere" / "metadata" / "00001-moved.metadata.json"
    moved.parent.mkdir(parents=True)
    moved.write_bytes(home.catalog.files.read(location, what="file"))
    return f"file://{moved}"


def test_a_staged_file_outside_of_the_storage_table_s_folder_is_refused(
    home: Lake, warehouse: Path, clock: Clock
) -> None:
    """The location that the job reports is untrusted: a path below the warehouse is not enough."""
    home.view()
    plan, outcome = home.stage()
    moved = staged_elsewhere(home, warehouse, str(outcome.metadata_location))
    with pytest.raises(InvalidMetadataError, match="not in the storage table's folder"):
        publish(home.catalog, plan, moved, effects=clock.effects)
    assert home.storage().state is None


def test_a_staged_table_with_another_location_is_refused_and_nothing_is_written_there(
    home: Lake, warehouse: Path, clock: Clock
) -> None:
    """Its ``location`` is the folder to which the next metadata file would be written."""
    home.view()
    plan, outcome = home.stage()
    location = str(outcome.metadata_location)
    document = json.loads(home.catalog.files.read(location, what="file"))
    for other in (f"file://{warehouse}/elsewhere", f"{document['location']}-2", f"{document['location']}/../x"):
        home.catalog.files.replace_text(location, json.dumps({**document, "location": other}))
        before = files(warehouse)
        with pytest.raises(InvalidMetadataError, match="'location'"):
            publish(home.catalog, plan, location, effects=clock.effects)
        assert files(warehouse) == before


def test_an_outcome_that_names_a_file_elsewhere_is_staged_again(home: Lake, warehouse: Path) -> None:
    home.view()
    plan, outcome = home.stage()
    assert plan.script is not None
    moved = staged_elsewhere(home, warehouse, str(outcome.metadata_location))
    foreign = Outcome(plan.refresh_id, moved, rows_written=1)
    home.catalog.files.replace_text(str(plan.script.outcome_location), foreign.to_json())
    assert find_staged(home.catalog, plan) is None
    assert home.refresh().outcome == "refreshed"


# -- lost answers to create and drop -----------------------------------------------------------


class Line:
    """A connection to the database that loses the answer to one change.

    Args:
        home: The lake whose database it is.
        statement: The start of the statement.
        when: ``before`` or ``after`` the commit, or ``twice``: the statement is sent again after its commit.
        number: Which of the statements with that start.
    """

    def __init__(self, home: Lake, statement: str, when: str, *, number: int = 1) -> None:
        assert isinstance(home.iceberg, SqlCatalog)
        dialect = home.iceberg.engine.dialect
        self._execute, self._commit = dialect.do_execute, dialect.do_commit
        self._statement, self._when = statement, when
        self._left, self._committing = number, False
        dialect.do_execute = self.execute  # type: ignore[method-assign]
        dialect.do_commit = self.commit  # type: ignore[method-assign]

    def execute(self, cursor: Any, statement: str, *rest: Any) -> None:
        self._execute(cursor, statement, *rest)
        self._left -= statement.startswith(self._statement)
        if self._left != 0 or not statement.startswith(self._statement):
            return
        self._committing = True
        if self._when == "twice":
            cursor.connection.commit()
            self._execute(cursor, statement, *rest)

    def commit(self, connection: Any) -> None:
        lost, self._committing = self._committing, False
        if lost and self._when == "before":
            raise sqlite3.OperationalError("the server has gone away (injected fault)")
        self._commit(connection)
        if lost and self._when == "after":
            raise sqlite3.OperationalError("the server has gone away (injected fault)")


@pytest.mark.parametrize("when", ["after", "twice"])
def test_a_view_whose_row_exists_counts_as_created(either: Lake, when: str) -> None:
    """The answer to the COMMIT is lost, or the statement is sent twice and finds its own row."""
    # pyiceberg first adds the row of a storage table in the catalog.
    Line(either, "INSERT INTO iceberg_tables", when, number=1 if either.layout == "pointed" else 2)
    created = create(either.catalog, VIEW, Definition(QUERY), stager=either.stager)
    assert exists(created.metadata_location)
    assert either.catalog.load(VIEW) == created
    assert either.refresh().outcome == "refreshed"


def test_a_creation_without_an_answer_is_sent_again(home: Lake) -> None:
    """The row is inserted once; the metadata file of the lost copy names the same view."""
    Line(home, "INSERT INTO iceberg_tables", "before")
    created = create(home.catalog, VIEW, Definition(QUERY), stager=home.stager)
    assert home.catalog.load(VIEW) == created
    assert home.refresh().outcome == "refreshed"


def test_a_view_whose_row_is_removed_counts_as_dropped(either: Lake) -> None:
    """Its storage table is then removed from the catalog, too."""
    either.view()
    storage = either.storage().name
    Line(either, "DELETE FROM iceberg_tables", "after")
    drop(either.catalog, VIEW)
    assert not either.catalog.exists(VIEW)
    assert storage is None or not either.iceberg.table_exists((*storage.namespace, storage.name))


def test_a_drop_without_an_answer_is_sent_again(home: Lake) -> None:
    home.view()
    Line(home, "DELETE FROM iceberg_tables", "before")
    drop(home.catalog, VIEW)
    assert not home.catalog.exists(VIEW)


# -- the job package ---------------------------------------------------------------------------


@pytest.fixture
def folder(home: Lake) -> str:
    """The folder of a view's job package."""
    home.view()
    home.refresh()
    return f"{home.storage().table.location}/staged"


def test_the_job_package_is_written_once_for_each_content(home: Lake, folder: str) -> None:
    assert ship(home.catalog, folder) == ship(home.catalog, folder)


def test_a_job_package_near_the_grace_is_written_again_and_survives_a_collection(home: Lake, folder: str) -> None:
    """A collection may have listed the old files just before, so the new files have other names."""
    first = ship(home.catalog, folder)
    collect_orphans(home.catalog, VIEW)
    make_older(folder_of(home), seconds=DEFAULT_GRACE.total_seconds() / 2 - 60)
    assert ship(home.catalog, folder) == first
    make_older(folder_of(home), seconds=120)
    second = ship(home.catalog, folder)
    assert not set(first) & set(second)
    collect_orphans(home.catalog, VIEW)
    make_older(folder_of(home), seconds=DEFAULT_GRACE.total_seconds() / 2 - 60)
    collect_orphans(home.catalog, VIEW)
    assert [exists(location) for location in (*first, *second)] == [False, False, True, True]


def test_an_incomplete_job_package_is_never_used(home: Lake, folder: str) -> None:
    """A worker that died while it wrote has left an incomplete file with that name."""
    _, package = ship(home.catalog, folder)
    whole = local(package).read_bytes()
    local(package).write_bytes(whole[: len(whole) // 2])
    _, again = ship(home.catalog, folder)
    assert local(again).read_bytes() == whole
