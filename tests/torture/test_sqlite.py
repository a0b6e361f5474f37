# SPDX-License-Identifier: Apache-2.0
"""Faults that are specific to SQLite: locks, a full disk, a read-only file."""

from __future__ import annotations

import os
import resource
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
from sqlalchemy import event

from airflow_mv.core.refresh.run import refresh
from airflow_mv.core.script import Outcome, Script
from airflow_mv.errors import CatalogUnavailableError, CommitStateUnknownError, MaterializedViewError
from tests.builders import Lake, lake
from tests.torture.history import checked, moves, watch
from tests.torture.interrupted import HASTY
from tests.torture.points import AFTER, BEFORE, Point, Points
from tests.torture.victims import Place


@pytest.fixture
def home(sqlite_uri: str, warehouse: Path) -> Iterator[Lake]:
    with lake(sqlite_uri, warehouse) as found:
        found.table()
        found.view()
        watch(found.iceberg.engine)
        yield found


@contextmanager
def database(lake: Lake) -> Iterator[sqlite3.Connection]:
    """The catalog's file, opened by another connection."""
    path = lake.iceberg.properties["uri"].removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0, check_same_thread=False)) as found:
        yield found


def published_once(lake: Lake) -> None:
    checked(lake)
    assert len(moves(lake.iceberg.engine)) == 1
    assert lake.refresh().outcome == "fresh"


@pytest.mark.parametrize("mode", ["DELETE", "WAL", "TRUNCATE"])
def test_a_refresh_is_published_in_any_journal_mode(home: Lake, mode: str) -> None:
    """The owner of the file chooses the mode; Spark and others open the same file."""
    with database(home) as other:
        assert other.execute(f"PRAGMA journal_mode = {mode}").fetchone()[0] == mode.lower()
    assert home.refresh().outcome == "refreshed"
    published_once(home)


def test_a_refresh_waits_for_a_lock_of_a_few_seconds(home: Lake) -> None:
    """iceberg #18043: `database is locked` is not a failure before the busy timeout has passed."""
    with database(home) as other:
        locked = threading.Event()

        def hold() -> None:
            other.execute("BEGIN EXCLUSIVE")
            locked.set()
            time.sleep(1.5)
            other.execute("ROLLBACK")

        holding = threading.Thread(target=hold)
        points = Points({Point("swap", 1, BEFORE): lambda: (holding.start(), locked.wait(10))})
        points.catalog(home.catalog, home.iceberg.engine)
        assert home.refresh(effects=HASTY).outcome == "refreshed"
        holding.join()
    assert points.seen.count(Point("swap", 1, AFTER)) == 1
    assert Point("swap", 2, BEFORE) not in points.seen
    published_once(home)


def test_a_permanent_lock_is_a_typed_error_and_nothing_is_deleted(home: Lake) -> None:
    """While planning: an outage. While publishing: an unknown outcome, and the next try uses the staged rows."""
    home.iceberg.engine.dispose()
    event.listen(home.iceberg.engine, "connect", lambda connection, _: connection.execute("PRAGMA busy_timeout = 50"))
    with database(home) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(CatalogUnavailableError) as caught:
            home.refresh(effects=HASTY)
        assert caught.value.retryable
        other.execute("ROLLBACK")
        points = Points({Point("swap", 1, BEFORE): lambda: other.execute("BEGIN EXCLUSIVE")})
        points.catalog(home.catalog, home.iceberg.engine)
        with pytest.raises(CommitStateUnknownError):
            home.refresh(effects=HASTY)
        other.execute("ROLLBACK")
    assert moves(home.iceberg.engine) == []
    assert home.refresh().outcome == "refreshed"
    assert len(home.stager.refreshes) == 1
    published_once(home)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to any file")
def test_a_file_without_write_permission_is_a_typed_error(home: Lake) -> None:
    """Reading works, the swap does not; when writing is permitted, the staged rows are published."""
    path = Path(home.iceberg.properties["uri"].removeprefix("sqlite:///"))
    path.chmod(0o400)
    with pytest.raises(MaterializedViewError) as caught:
        home.refresh(effects=HASTY)
    assert isinstance(caught.value, CommitStateUnknownError)
    path.chmod(0o600)
    assert home.refresh().outcome == "refreshed"
    published_once(home)


def test_a_read_only_database_is_a_typed_error(home: Lake) -> None:
    """On a read-only mount or a replica reading works, the swap does not."""
    home.iceberg.engine.dispose()
    with database(home) as other:
        other.execute(
            "CREATE TRIGGER nothing_moves BEFORE UPDATE ON iceberg_tables BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
        with pytest.raises(CommitStateUnknownError):
            home.refresh(effects=HASTY)
        other.execute("DROP TRIGGER nothing_moves")
    assert home.refresh().outcome == "refreshed"
    published_once(home)


def refresh_on_a_full_disk(place: Place, size: int, report: Connection) -> None:
    """Refresh while no file can grow beyond a size in bytes after the job has ended."""
    with place.lake() as home:
        stager = home.stager

        def stage(script: Script) -> Outcome:
            outcome = stager(script)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
            return outcome

        try:
            (result,) = refresh(home.catalog, [place.name], stager=stage, effects=HASTY)
            report.send(result.outcome)
        except MaterializedViewError as error:
            report.send(type(error).__name__)
        except Exception as error:  # noqa: BLE001 (reported as a failure)
            report.send(f"untyped {type(error).__name__}: {error}")


@pytest.mark.parametrize(
    "size", [0, 1500, 4000, *(pytest.param(size, marks=pytest.mark.slow) for size in (500, 2500, 8000))]
)
def test_a_full_disk_loses_nothing_at_any_file(
    home: Lake, processes: ForkServerContext, figures: Callable[..., None], size: int
) -> None:
    """Each size permits more files: the job's outcome, the two metadata files, SQLite's journal."""
    here, there = processes.Pipe(duplex=False)
    process = processes.Process(target=refresh_on_a_full_disk, args=(Place.of(home), size, there))
    process.start()
    assert here.poll(60)
    reported = here.recv()
    process.join(30)
    figures(reported=reported)
    assert not reported.startswith("untyped")
    assert home.refresh().outcome == ("fresh" if reported == "refreshed" else "refreshed")
    published_once(home)
