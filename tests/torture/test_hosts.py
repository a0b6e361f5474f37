# SPDX-License-Identifier: Apache-2.0
"""What several hosts do to one view at once, one question at a time; the soak mixes all of it."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import product
from pathlib import Path

import pytest

from airflow_mv.common.status import status
from airflow_mv.core.catalog import STORED_LAYOUTS
from airflow_mv.core.freshness.state import State
from airflow_mv.extras.maintenance.verify import verify_files
from tests.builders import Lake, lake
from tests.torture.history import expected
from tests.torture.hosts import Host, Order
from tests.torture.victims import Place

pytestmark = [
    pytest.mark.slow,
    pytest.mark.postgres,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(shutil.which("faketime") is None, reason="faketime is not installed"),
]

CLOCKS = ("-1h", None, "+1h")
ROLES = ("first", "second", "third")
VIEWS = sorted(STORED_LAYOUTS)
#: How long rows that no refresh refers to are kept in the test of readers: less than some of the reads take.
KEPT_SECONDS = 1.0
READ_SECONDS = 60.0


@pytest.fixture
def home(postgres_uri: str, warehouse: Path) -> Iterator[Lake]:
    """A view in each layout over one base table."""
    with lake(postgres_uri, warehouse) as made:
        made.table()
        for name in VIEWS:
            made.view(name, layout=name)
        yield made


def require_right(home: Lake, name: str) -> None:
    """All files are there, and the rows are those of the recorded snapshot."""
    view = home.catalog.identify(f"sales.{name}")
    verify_files(home.catalog, view).require_intact()
    record = home.storage(str(view)).record
    assert record is not None
    rows = Counter(tuple(row.values()) for row in home.read(str(view)))
    assert rows == expected(home, "orders", next(iter(record.snapshots.values())))


class _Tried:
    """How the commands of several hosts ended."""

    def __init__(self, seed: int) -> None:
        self.seed, self.ends, self.wrong, self.done = seed, Counter[str](), list[str](), threading.Event()

    def run(self, host: Host, *commands: str) -> None:
        """Let a host run commands on each view, again and again."""
        number = self.seed
        while not self.done.is_set():
            for command, name in product(commands, VIEWS):
                number += 1
                self._note(command, host.order(Order(command, name, number, KEPT_SECONDS)))

    def _note(self, command: str, answer: dict[str, str]) -> None:
        found = answer["found"]
        self.ends[f"{command}: {answer['end']}" + " right" * (found == "right")] += 1
        if answer["end"] == "UNTYPED" or found.startswith("WRONG"):
            self.wrong.append(found)


def test_hosts_with_any_three_clocks_refresh_and_collect_without_a_loss(
    home: Lake, figures: Callable[..., None]
) -> None:
    """Two hosts refresh and a third deletes, one after the other, in each of the 27 combinations of clocks.

    The layouts take turns, so that each of them meets each clock in each role.
    """
    ends = Counter[str]()
    with ExitStack() as stack:
        place = Place.of(home)
        hosts = {
            (role, clock): stack.enter_context(closing(Host(place, clock))) for role, clock in product(ROLES, CLOCKS)
        }
        for number, clocks in enumerate(product(CLOCKS, repeat=3)):
            first, second, third = (hosts[role, clock] for role, clock in zip(ROLES, clocks, strict=True))
            name = VIEWS[(number + number // 3 + number // 9) % len(VIEWS)]
            orders = ((first, "refresh"), (second, "refresh"), (third, "expire"), (third, "collect"), (first, "read"))
            for host, command in orders:
                home.append((number, "east", 1))
                answer = host.order(Order(command, name, age_seconds=KEPT_SECONDS))
                assert answer["end"] != "UNTYPED", answer["found"]
                assert not answer["found"].startswith("WRONG"), answer["found"]
                ends[f"{command}: {answer['end']}"] += 1
            assert home.refresh(f"sales.{name}").outcome in ("refreshed", "fresh"), clocks
            assert status(home.catalog, f"sales.{name}").state == State.FRESH
            require_right(home, name)
    figures(combinations=len(CLOCKS) ** 3, **ends)


def test_a_reader_during_expiry_gets_the_rows_of_its_refresh_or_an_error_that_names_it(
    home: Lake, figures: Callable[..., None], seed: int
) -> None:
    """Expired snapshots and their files are deleted at once, while hosts read current and earlier refreshes."""
    tried = _Tried(seed)
    with ExitStack() as stack:
        place = Place.of(home)
        tasks = [("read",), ("read",), ("refresh --full",), ("expire", "collect")]
        hosts = [stack.enter_context(closing(Host(place))) for _ in tasks]
        threads = [
            threading.Thread(target=tried.run, args=(host, *task)) for host, task in zip(hosts, tasks, strict=True)
        ]
        for thread in threads:
            thread.start()
        until = time.monotonic() + READ_SECONDS
        while time.monotonic() < until:
            home.append((int(until - time.monotonic()), "west", 1))
            time.sleep(0.2)
        tried.done.set()
        for thread in threads:
            thread.join()
    assert tried.wrong == []
    assert tried.ends["read: done right"] > 0
    for name in VIEWS:
        assert home.refresh(f"sales.{name}").outcome in ("refreshed", "fresh")
        require_right(home, name)
    figures(seed=seed, **tried.ends)
