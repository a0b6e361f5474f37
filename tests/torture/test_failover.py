# SPDX-License-Identifier: Apache-2.0
"""The catalog's PostgreSQL fails over to a replica while views are refreshed."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import URL, create_engine, text
from sqlalchemy.exc import OperationalError

from airflow_mv.common.status import status
from airflow_mv.core.freshness.state import State
from airflow_mv.core.refresh.run import refresh
from airflow_mv.errors import MaterializedViewError
from airflow_mv.extras.maintenance.repair import repair
from examples.demo.postgres import postgres_programs
from tests.builders import Lake, lake
from tests.services import Quiet, free_port
from tests.torture.history import check_content, checked, watch
from tests.torture.test_outages import Server, as_spark, server

__all__ = ["server"]

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(900)]

_GOOD = {"refreshed", "already-committed", "superseded", "fresh"}
_HONEST = {*_GOOD, "CatalogUnavailableError", "CommitStateUnknownError", "JobError"}


@dataclass
class Replica:
    """A replica that follows a primary until it is promoted.

    Args:
        url: Its address.
        primary: The server that it follows.
    """

    url: URL
    primary: Server

    def fall_behind(self) -> None:
        """Let nothing of the primary arrive any more, as a slow network does."""
        senders = [item for item in self.primary.postmaster.children() if "walsender" in " ".join(item.cmdline())]
        assert senders
        for sender in senders:
            sender.suspend()

    def take_over(self) -> None:
        """Kill the primary with all of its processes, and promote the replica."""
        family = [self.primary.postmaster, *self.primary.postmaster.children(recursive=True)]
        for process in family:
            process.kill()
        psutil.wait_procs(family, 30)
        _execute(self.url, "SELECT pg_promote()")


@contextmanager
def replica_of(primary: Server, folder: Path) -> Iterator[Replica]:
    """Copy a server and start the copy as its replica."""
    programs, port = postgres_programs(), free_port()
    user, group = primary.postmaster.uids().real, primary.postmaster.gids().real
    folder.mkdir()
    os.chown(folder, user, group)
    for above in folder.parents[:3]:  # its account has to get there
        above.chmod(0o755)
    environment = {**os.environ, "PGPASSWORD": str(primary.url.password)}
    common: dict[str, Any] = {"cwd": folder, "env": environment, "stdin": subprocess.DEVNULL}
    if os.geteuid() == 0:
        common |= {"user": user, "group": group, "extra_groups": []}
    address = ["-h", "127.0.0.1", "-p", str(primary.url.port), "-U", str(primary.url.username)]
    copy = [programs / "pg_basebackup", *address, "-D", folder / "data", "-R", "-X", "stream", "-c", "fast"]
    subprocess.run(copy, check=True, timeout=120, **common)
    own = [f"-cport={port}", "-clisten_addresses=127.0.0.1", f"-cunix_socket_directories={folder}", "-cfsync=off"]
    with (folder / "log").open("w") as log:
        command = [programs / "postgres", "-D", folder / "data", *own]
        process = subprocess.Popen(command, stdout=log, stderr=log, **common)
    try:
        found = Replica(primary.url.set(port=port), primary)
        _wait_until(lambda: _answers(found.url))
        yield found
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def _execute(url: URL, *statements: str) -> None:
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            for statement in statements:
                connection.execute(text(statement))
    finally:
        engine.dispose()


def _answers(url: URL) -> bool:
    try:
        _execute(url, "SELECT 1")
    except OperationalError:
        return False
    return True


def _wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.1)


@dataclass
class Refresher:
    """Refreshes until it is stopped.

    Args:
        home: Its own connections.
        done: Stops it.
        heard: All outcomes.
        acknowledged: The refreshes that were reported as published.
    """

    home: Lake
    done: threading.Event
    heard: list[str] = field(default_factory=list)
    acknowledged: set[str] = field(default_factory=set)

    def run(self) -> None:
        """Refresh repeatedly; only errors of the package are accepted."""
        while not self.done.is_set():
            try:
                self.once()
            except MaterializedViewError as error:
                self.heard.append(type(error).__name__)
                time.sleep(0.05)

    def once(self) -> None:
        """Refresh, and note the outcome."""
        (result,) = refresh(self.home.catalog, ["sales.daily"], stager=lambda script: as_spark(self.home, script))
        self.heard.append(result.outcome)
        if result.outcome == "refreshed":
            self.acknowledged.add(result.refresh_id or "")


@pytest.mark.parametrize("then", ["refresh", "repair"])
@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_after_a_failover_the_state_is_honest_and_the_next_refresh_right(
    server: Server, tmp_path: Path, warehouse: Path, figures: Callable[..., None], mode: str, then: str
) -> None:
    """A synchronous replica has every acknowledged refresh. An asynchronous one may have lost the last of them."""
    done = threading.Event()
    with ExitStack() as stack:
        address = stack.enter_context(closing(Quiet(("127.0.0.1", server.url.port or 0))))
        uri = stack.enter_context(_database(server.url, address.port))
        replica = stack.enter_context(replica_of(server, tmp_path / "replica"))
        if mode == "synchronous":
            _execute(server.url, "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
        lakes = [stack.enter_context(lake(uri, warehouse)) for _ in range(3)]
        lakes[0].table()
        lakes[0].view()
        watch(lakes[0].iceberg.engine)
        refreshers = [Refresher(item, done) for item in lakes]
        threads = [threading.Thread(target=item.run) for item in refreshers[1:]]
        stack.callback(done.set)
        for thread in threads:
            thread.start()
        for number in range(4):
            lakes[0].append((number, "east", number))
            time.sleep(0.2)
        if mode == "asynchronous":
            replica.fall_behind()
            for number in range(3):
                lakes[0].append((number, "lost", number))
                refreshers[0].once()
        replica.take_over()
        address.serve(("127.0.0.1", replica.url.port or 0))
        for item in lakes:
            item.iceberg.engine.dispose()
        marks = [len(item.heard) for item in refreshers]
        _wait_until(
            lambda: all(set(item.heard[mark:]) & _GOOD for item, mark in zip(refreshers[1:], marks[1:], strict=True))
        )
        done.set()
        for thread in threads:
            thread.join(120)
        lost = _check(lakes[0], refreshers, mode, then)
        heard = Counter(outcome for item in refreshers for outcome in item.heard)
        assert set(heard) <= _HONEST
        figures(lost=len(lost), acknowledged=sum(len(item.acknowledged) for item in refreshers), **heard)


def _check(home: Lake, refreshers: list[Refresher], mode: str, then: str) -> set[str]:
    """Check what the new primary has; return the acknowledged refreshes that it has lost."""
    states = checked(home)
    present = {state.record.refresh_id for state in states if state.record}
    lost = set().union(*(item.acknowledged for item in refreshers)) - present
    assert bool(lost) == (mode == "asynchronous")
    assert status(home.catalog, "sales.daily").state in (State.FRESH, State.STALE)
    if then == "repair":
        repair(home.catalog, "sales.daily", act=True)
    home.append((99, "after", 1))
    assert home.refresh().outcome == "refreshed"
    now = home.catalog.load("sales.daily")
    storage = home.catalog.load_storage(now)
    check_content(home, type(states[-1])(now, storage))
    assert storage.record is not None
    assert list(storage.record.snapshots.values()) == [home.head()]
    return lost


@contextmanager
def _database(server: URL, port: int) -> Iterator[str]:
    """A database whose address is a port that is forwarded. It ends with its server."""
    name = "failing"
    _execute(server, f"CREATE DATABASE {name}")
    yield server.set(database=name, port=port).render_as_string(hide_password=False)
