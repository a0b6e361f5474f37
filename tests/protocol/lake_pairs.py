# SPDX-License-Identifier: Apache-2.0
"""Pairs of commands that the simulation does not have: refreshes of intervals, and the registry's sync.

They run on a real SQLite catalog with real files. A command pauses before each call to the catalog or the store, while
the other one runs.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import greenlet
import pytest

from airflow_mv.actions import create_view as create
from airflow_mv.common.snapshots import snapshot_of
from airflow_mv.common.status import status
from airflow_mv.core.catalog import Layout, stored_layout
from airflow_mv.core.catalog.layouts import all_refreshes
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.freshness.state import State
from airflow_mv.core.publish.protocol import Effects
from airflow_mv.core.refresh import RefreshOptions
from airflow_mv.core.refresh.run import refresh
from airflow_mv.errors import MaterializedViewError, ViewNotFoundError
from airflow_mv.extras.compact import compact
from airflow_mv.extras.convert import convert
from airflow_mv.extras.history.rollback import rollback
from airflow_mv.extras.maintenance.drop import purge
from airflow_mv.extras.maintenance.orphans import collect_orphans, expire
from airflow_mv.extras.maintenance.repair import repair
from airflow_mv.extras.registry.registry import require_registry
from airflow_mv.extras.registry.settings import PLACE
from airflow_mv.extras.registry.sync import sync
from tests.builders import LAYOUTS
from tests.core.refresh.intervals.support import BY_DAY, VIEW, Days, days, days_lake
from tests.protocol.pairs import Tried

_DAY_MS = 86_400_000
_GRACE = timedelta(days=3)
_AT_ONCE = Effects(sleep=lambda _: None)
_FILES = ("read", "read_text", "write", "replace_text", "delete", "list", "now_ms", "exists", "io")
_POINTERS = ("get", "row", "previous", "locate", "insert", "swap", "swap_rows", "delete")


def _refresh(lake: Days) -> None:
    refresh(lake.catalog, [VIEW], stager=lake.stager, effects=_AT_ONCE)


def _interval(lake: Days) -> None:
    options = RefreshOptions(interval=days(2, 4))
    refresh(lake.catalog, [VIEW], stager=lake.stager, options=options, effects=_AT_ONCE)


def _replace(lake: Days) -> None:
    sql = BY_DAY.replace("sum(amount)", "sum(amount) + 0")
    properties = {"airflow-mv.interval-column": "day"}
    new = Definition(
        sql, layout=stored_layout(lake.catalog.load(VIEW)).layout, refresh_strategy="full", properties=properties
    )
    create(lake.catalog, VIEW, new, stager=lake.stager, replace=True, effects=_AT_ONCE)


def _roll_back(lake: Days) -> None:
    view = lake.catalog.load(VIEW)
    storage = lake.catalog.load_storage(view)
    older = [item for item in all_refreshes(view, storage) if snapshot_of(storage, item) and item != storage.record]
    if older:
        rollback(lake.catalog, VIEW, older[0].refresh_id, effects=_AT_ONCE)


def _convert(lake: Days) -> None:
    now = stored_layout(lake.catalog.load(VIEW)).layout
    wanted: Any = LAYOUTS[(LAYOUTS.index(now) + 1) % len(LAYOUTS)]
    convert(lake.catalog, VIEW, wanted, effects=_AT_ONCE)


COMMANDS: dict[str, Callable[[Days], object]] = {
    "refresh": _refresh,
    "interval": _interval,
    "replace": _replace,
    "rollback": _roll_back,
    "expire": lambda lake: expire(lake.catalog, VIEW, older_than=_GRACE, effects=_AT_ONCE),
    "collect": lambda lake: collect_orphans(lake.catalog, VIEW, older_than=_GRACE),
    "compact": lambda lake: compact(lake.catalog, VIEW, stager=lake.stager, effects=_AT_ONCE),
    "convert": _convert,
    "repair": lambda lake: repair(lake.catalog, VIEW, act=True, effects=_AT_ONCE),
    "drop": lambda lake: purge(lake.catalog, VIEW),
    "sync": lambda lake: sync(lake.catalog),
}
PAIRS = [*(("interval", name) for name in COMMANDS), *(("sync", name) for name in COMMANDS if name != "interval")]


class Command:
    """A command that pauses before each call to the catalog or the store."""

    def __init__(self, lake: Days, name: str) -> None:
        self.name, self.failed = name, ""
        self._run = greenlet.greenlet(lambda: self._body(lake))

    def _body(self, lake: Days) -> None:
        try:
            COMMANDS[self.name](lake)
        except MaterializedViewError as error:
            self.failed = type(error).__name__

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return bool(self._run.dead)

    def step(self) -> None:
        """Continue to the next call."""
        self._run.switch()

    def finish(self) -> None:
        """Run it to its end."""
        while not self.over:
            self.step()


@dataclass
class Aged:
    """A lake that is put back to its first state before each schedule.

    Args:
        lake: The lake.
        folder: Its files and its database.
        first: A copy of them.
        ahead: How far the store's clock has moved since, in milliseconds.
    """

    lake: Days
    folder: Path
    first: Path
    ahead: int = 0

    def restore(self) -> None:
        """Put the first state back."""
        self.lake.iceberg.engine.dispose()  # type: ignore[attr-defined]
        shutil.rmtree(self.folder)
        shutil.copytree(self.first, self.folder)

    def try_pair(self, one: str, two: str, *, every: int) -> Tried:
        """Run the pair in both orders, and with one preemption at every so manieth call."""
        tried = Tried()
        for first, second in dict.fromkeys(((one, two), (two, one))):
            calls = 0
            while self._preempted(tried, first, second, calls):
                calls += every
        return tried

    def _preempted(self, tried: Tried, first: str, second: str, calls: int) -> bool:
        self.restore()
        outer, inner = Command(self.lake, first), Command(self.lake, second)
        for _ in range(calls):
            if not outer.over:
                outer.step()
        paused = not outer.over
        inner.finish()
        outer.finish()
        tried.schedules += 1
        for command in (outer, inner):
            tried.note(command, command.name)
        self._check(f"{second} in {first} after {calls} calls")
        return paused

    def _check(self, schedule: str) -> None:
        """The rows are readable; one refresh makes them right; a collection misses no file; the registry agrees."""
        lake = self.lake
        try:
            lake.catalog.load(VIEW)
        except ViewNotFoundError:
            sync(lake.catalog)
            assert require_registry(lake.catalog).views.rows() == [], schedule
            return
        if lake.storage(VIEW).rows_snapshot is not None:
            lake.read(VIEW)
        lake.refresh(VIEW)
        assert lake.stored() == lake.recomputed(), schedule
        assert status(lake.catalog, VIEW).state == State.FRESH, schedule
        collect_orphans(lake.catalog, VIEW, older_than=_GRACE)
        sync(lake.catalog)
        registry = require_registry(lake.catalog)
        assert [row.state for row in registry.views.rows()] == ["fresh"], schedule
        seen = [row.refresh_id for row in registry.refreshes.rows()]
        assert len(seen) == len(set(seen)), schedule


@contextmanager
def aged_lake(folder: Path, layout: Layout, patch: pytest.MonkeyPatch) -> Iterator[Aged]:
    """A view by days with expired, expiring and staged rows, marked files, and days that are stale."""
    own = folder / "own"
    own.mkdir()
    with days_lake(f"sqlite:///{own}/lake.db", own / "warehouse", layout) as lake:
        lake.catalog.properties[PLACE] = f"{own}/registry"
        aged = Aged(lake, own, folder / "first")
        clock = lake.catalog.files.now_ms
        patch.setattr(lake.catalog.files, "now_ms", lambda base: clock(base) + aged.ahead)
        patch.setattr("airflow_mv.extras.compact.MIN_FILES", 0)
        for amount in range(3):
            lake.sell((1, amount), (2, amount), (3, amount))
            lake.refresh(VIEW)
        aged.ahead = 4 * _DAY_MS
        expire(lake.catalog, VIEW, older_than=_GRACE)
        collect_orphans(lake.catalog, VIEW, older_than=_GRACE)
        aged.ahead = 8 * _DAY_MS
        for amount in range(2):
            lake.sell((2, amount), (4, amount))
            lake.refresh(VIEW)
        lake.sell((3, 7))
        lake.stage(VIEW)
        lake.sell((2, 8))
        lake.iceberg.engine.dispose()  # type: ignore[attr-defined]
        shutil.copytree(own, aged.first)
        _pause(lake, patch)
        yield aged


def _pause(lake: Days, patch: pytest.MonkeyPatch) -> None:
    """Let a command give way before each call."""
    main = greenlet.getcurrent()

    def paused(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*given: Any, **more: Any) -> Any:
            if greenlet.getcurrent() is not main:
                main.switch()
            return call(*given, **more)

        return wrapper

    catalog: Any = lake.catalog
    for target, names in ((catalog.files, _FILES), (catalog._pointers, _POINTERS), (catalog.tables, ("commit",))):
        for name in names:
            patch.setattr(target, name, paused(getattr(target, name)))
