# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL crashes and restarts while views are refreshed."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import URL, create_engine, text
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from airflow_mv.core.refresh.run import refresh
from airflow_mv.core.script import Outcome, Script
from airflow_mv.errors import MaterializedViewError
from tests.builders import Lake, lake
from tests.services import POSTGRES_URL_VARIABLE, postgres_database, postgres_server
from tests.torture.history import checked, moves, watch

pytestmark = pytest.mark.postgres


@dataclass
class Server:
    """A PostgreSQL server of this test, which may be stopped and started."""

    url: URL
    postmaster: psutil.Process

    def __post_init__(self) -> None:
        self._command = self.postmaster.cmdline()
        self._folder = self.postmaster.cwd()
        self._account = self.postmaster.uids().real, self.postmaster.gids().real
        self._again: subprocess.Popen[bytes] | None = None

    def crash(self) -> None:
        """``pg_ctl stop -m immediate``: all connections break, and the next start has to recover."""
        self.postmaster.send_signal(signal.SIGQUIT)
        self.postmaster.wait(30)
        if self._again is not None:
            self._again.wait(30)

    def start(self) -> None:
        """Start it again, on the same port."""
        user, group = self._account
        as_account = {"user": user, "group": group, "extra_groups": []} if os.geteuid() == 0 else {}
        quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        self._again = subprocess.Popen(self._command, cwd=self._folder, **quiet, **as_account)
        self.postmaster = psutil.Process(self._again.pid)
        deadline = time.monotonic() + 60
        while not self._answers():
            assert time.monotonic() < deadline, "PostgreSQL does not restart"
            time.sleep(0.1)

    def _answers(self) -> bool:
        engine = create_engine(self.url)
        try:
            with engine.connect():
                return True
        except OperationalError:
            return False
        finally:
            engine.dispose()

    def close(self) -> None:
        """Stop the servers that were started here; the first one is stopped by its own fixture."""
        if self._again is not None:
            self._again.send_signal(signal.SIGINT)
            self._again.wait(30)


@pytest.fixture
def server(_postgres: URL, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A second server beside that of the other tests, which may be a developer's and must not be stopped.

    If a server is configured but PostgreSQL's programs are missing, this is an error and not a skip.
    """
    monkeypatch.delenv(POSTGRES_URL_VARIABLE, raising=False)
    with postgres_server() as url:
        engine = create_engine(url)
        with engine.connect() as connection:
            folder = Path(str(connection.execute(text("SHOW data_directory")).scalar_one()))
        engine.dispose()
        number = int((folder / "postmaster.pid").read_text().splitlines()[0])
        with closing(Server(url, psutil.Process(number))) as found:
            yield found


def as_spark(home: Lake, script: Script) -> Outcome:
    """Run a script; a catalog that does not respond fails the job with its own error only."""
    try:
        return home.stager(script)
    except SQLAlchemyError as error:
        return Outcome(script.refresh_id, None, error=type(error).__name__)


def refresh_until(home: Lake, done: threading.Event, reported: list[str]) -> None:
    """Refresh repeatedly; only errors of the package are accepted."""
    while not done.is_set():
        try:
            (result,) = refresh(home.catalog, ["sales.daily"], stager=lambda script: as_spark(home, script))
            reported.append(result.outcome)
        except MaterializedViewError as error:
            reported.append(type(error).__name__)
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("outages", "seconds"), [(1, 1.0), pytest.param(10, 4.0, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_a_server_that_crashes_during_refreshes_only_costs_retries(
    server: Server, warehouse: Path, figures: Callable[..., None], outages: int, seconds: float
) -> None:
    """``pg_ctl stop -m immediate`` while three other processes refresh continuously; then recovery."""
    done, reported = threading.Event(), [[] for _ in range(3)]
    with postgres_database(server.url) as uri, ExitStack() as stack:
        home, *others = (stack.enter_context(lake(uri, warehouse)) for _ in range(4))
        home.table()
        home.view()
        watch(home.iceberg.engine)
        threads = [
            threading.Thread(target=refresh_until, args=(other, done, heard))
            for other, heard in zip(others, reported, strict=True)
        ]
        stack.callback(done.set)
        for thread in threads:
            thread.start()
        for number in range(outages):
            for row in range(3):
                home.append((number, "east", row))
                time.sleep(0.15)
            server.crash()
            time.sleep(seconds)
            server.start()
            home.iceberg.engine.dispose()  # pyiceberg's own commits fail on a closed connection
        good = {"refreshed", "already-committed", "superseded", "fresh"}
        # After the restart each of them succeeds within a minute, even on a busy machine.
        deadline = time.monotonic() + 60
        while not all(heard and heard[-1] in good for heard in reported) and time.monotonic() < deadline:
            time.sleep(0.1)
        done.set()
        for thread in threads:
            thread.join(120)
        assert home.refresh().outcome in ("refreshed", "fresh")
        checked(home)
        outcomes = Counter(outcome for heard in reported for outcome in heard)
        assert set(outcomes) <= {*good, "CatalogUnavailableError", "CommitStateUnknownError", "JobError"}
        assert all(heard[-1] in good for heard in reported)
        figures(outages=outages, moves_of_the_pointer=len(moves(home.iceberg.engine)), **outcomes)
