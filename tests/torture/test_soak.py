# SPDX-License-Identifier: Apache-2.0
"""Hosts with different clocks run all commands at once, while some are killed and the database restarts."""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from airflow_mv.common.status import status
from airflow_mv.core.catalog import STORED_LAYOUTS
from airflow_mv.core.freshness.state import State
from airflow_mv.core.script import MAX_AHEAD_MS
from airflow_mv.extras.maintenance.verify import verify_files
from tests.builders import Lake, lake
from tests.services import postgres_database
from tests.torture.history import expected
from tests.torture.hosts import GRACE_SECONDS, Host, Order
from tests.torture.test_outages import Server, server
from tests.torture.victims import Place

__all__ = ["server"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(0),
    pytest.mark.skipif(shutil.which("faketime") is None, reason="faketime is not installed"),
]

#: How long the mixed commands run, and each round between two quiet points.
SECONDS = float(os.environ.get("TORTURE_SOAK_SECONDS") or 120)
ROUND_SECONDS = 20
CLOCKS = (None, "+1h", "-1h", None, "+90s")
#: How often each command is given.
WEIGHTS = {
    "refresh": 12, "read": 12, "refresh --full": 2, "rollback": 2, "expire": 4, "collect": 4, "compact": 2,
    "convert": 2, "replace": 1, "repair": 2, "verify --files": 2, "drop": 1, "create": 1, "sync": 2,
}  # fmt: skip
VIEWS = sorted(STORED_LAYOUTS)


@dataclass
class Soak:
    """A lake on which hosts run commands.

    Args:
        home: The lake, without faults of its own.
        hosts: The hosts.
        ends: How often each command ended in which way.
        found: Answers that are no error: what a command has done.
        strange: Answers that must not occur.
        files: How many files were checked at the quiet points.
        quiet: How many quiet points there were.
    """

    home: Lake
    hosts: list[Host]
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    found: Counter[tuple[str, str]] = field(default_factory=Counter)
    strange: list[str] = field(default_factory=list)
    files: int = 0
    quiet: int = 0

    def run(self, host: Host, chance: random.Random, done: threading.Event) -> None:
        """Let a host run commands until it is told to stop."""
        while not done.is_set():
            (command,) = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
            self.once(host, Order(command, chance.choice(VIEWS), chance.randrange(1000), GRACE_SECONDS))

    def once(self, host: Host, order: Order) -> dict[str, str]:
        """Let a host run one command, and note how it ends."""
        answer = host.order(order)
        self.ends[order.command, answer["end"]] += 1
        if answer["end"] == "done" and not answer["found"].isdigit():
            self.found[order.command, answer["found"].partition(" ")[0]] += 1
        if answer["end"] == "UNTYPED" or answer["found"].startswith("WRONG"):
            self.strange.append(f"{order} on a host whose clock is {host.clock}: {answer['found']}")
        return answer

    def check(self) -> None:
        """At a quiet point: all files are there, the rows are right, and a refresh makes them the newest."""
        self.quiet += 1
        for name in VIEWS:
            view = self.home.catalog.identify(f"sales.{name}")
            if not self.home.catalog.exists(view):
                assert self.once(self.hosts[0], Order("create", name))["end"] == "done"
            checked = verify_files(self.home.catalog, view)
            checked.require_intact()
            self.files += checked.checked.files
            self._require_right(view)
            assert self.home.refresh(view).outcome in ("refreshed", "fresh")
            assert status(self.home.catalog, view).state == State.FRESH
            self._require_right(view)
            _require_times(self.home, view)

    def _require_right(self, view: object) -> None:
        storage = self.home.storage(str(view))
        if storage.record is None:
            return
        rows = Counter(tuple(row.values()) for row in self.home.read(str(view)))
        wanted = expected(self.home, "orders", next(iter(storage.record.snapshots.values())))
        if rows != wanted:
            self.strange.append(f"WRONG ROWS of {view} at a quiet point: {rows} instead of {wanted}")


def _require_times(home: Lake, view: object) -> None:
    table = home.storage(str(view)).table
    limit = time.time_ns() // 1_000_000 + MAX_AHEAD_MS
    assert max([table.last_updated_ms, *(item.timestamp_ms for item in table.snapshots)]) <= limit


@pytest.fixture
def soak(server: Server, warehouse: Path) -> Iterator[Soak]:
    """A view in each layout over one base table, and hosts with different clocks."""
    with postgres_database(server.url) as uri, lake(uri, warehouse) as home, ExitStack() as stack:
        home.table()
        for name in VIEWS:
            home.view(name, layout=name, time_travel=name == "registered")
        place = Place.of(home)
        yield Soak(home, [stack.enter_context(closing(Host(place, clock))) for clock in CLOCKS])


@pytest.mark.postgres
def test_mixed_commands_of_several_hosts_lose_nothing(
    soak: Soak, server: Server, seed: int, figures: Callable[..., None]
) -> None:
    """``kill -9`` of hosts, restarts of the database, wrong clocks; compared with a recompute at each quiet point."""
    chance, started, restarts = random.Random(seed), time.monotonic(), 0
    while time.monotonic() - started < SECONDS:
        done = threading.Event()
        threads = [
            threading.Thread(target=soak.run, args=(host, random.Random(chance.random()), done)) for host in soak.hosts
        ]
        for thread in threads:
            thread.start()
        until = time.monotonic() + ROUND_SECONDS
        while time.monotonic() < until:
            _append(soak.home, chance)
            if chance.random() < 0.1:
                chance.choice(soak.hosts).kill()
            if chance.random() < 0.03:
                restarts += 1
                server.crash()
                time.sleep(chance.random() * 3)
                server.start()
                soak.home.iceberg.engine.dispose()
            time.sleep(0.7)
        done.set()
        for thread in threads:
            thread.join()
        soak.check()
        assert soak.strange == []
    _report(soak, figures, restarts=restarts, seconds=time.monotonic() - started, seed=seed)


def _append(home: Lake, chance: random.Random) -> None:
    home.append((chance.randrange(10_000), chance.choice(["north", "east", "west"]), chance.randrange(100)))


def _report(soak: Soak, figures: Callable[..., None], **more: float) -> None:
    published = sum(count for (command, word), count in soak.found.items() if word == "refreshed")
    errors = Counter[str]()
    for (command, end), count in soak.ends.items():
        errors[f"{command}: {end}"] += count if end != "done" else 0
    figures(
        commands=sum(soak.ends.values()),
        kills=sum(host.kills for host in soak.hosts),
        refreshes_published=published,
        reads_right=soak.found["read", "right"],
        quiet_points=soak.quiet,
        files_checked=soak.files,
        wrong_rows=len(soak.strange),
        **more,
        **{name: count for name, count in sorted(errors.items()) if count},
    )
