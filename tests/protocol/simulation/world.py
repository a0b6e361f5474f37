# SPDX-License-Identifier: Apache-2.0
"""A lake in memory: catalog rows, files, a clock, base tables; a scheduler controls every call."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import greenlet

from airflow_mv.core.catalog import Layout
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import DEFINITION_PROPERTY
from airflow_mv.errors import AlreadyExistsError, NotFoundError
from tests.protocol.simulation.bases import BaseTable

if TYPE_CHECKING:
    from tests.protocol.simulation.checks import Ledger
    from tests.protocol.simulation.stores import SimulatedCatalog
    from tests.protocol.simulation.workers import Process

VIEW = Identifier("lake", ("s",), "v")
#: The storage table's name, in the registered layout.
STORAGE = Identifier("lake", ("s",), "v__storage")
BASES = tuple(Identifier("lake", ("s",), name) for name in ("a", "b"))

#: A property of the view that only simulated changes of the view set.
OWNER = "owner"

T = TypeVar("T")

SECOND = 1_000
MINUTE = 60 * SECOND
#: A process that runs longer than this is killed by the scheduler (``execution_timeout``), and no swap arrives later
#: than ``LATE`` after it was sent: the grace of a collection must be more than twice as long as both.
TRY_LIMIT = 30 * MINUTE
LATE = 5 * MINUTE
GRACE = 75 * MINUTE
#: The maximum difference of a worker's clock from the store's.
SKEW = 10 * MINUTE


#: The content of a Spark job, and its base tables: equal jobs give equal rows.
Job = tuple[str, ...]

#: Most files are written once: the order of calls to them seldom matters, so only some of them are steps.
ATTENTION = {"read": 0.25, "write": 0.5, "delete": 0.4}


class Violation(AssertionError):
    """An invariant does not hold."""


class Killed(BaseException):
    """The process dies here: no handler and no `finally` of the product may have an effect."""


@dataclass(slots=True)
class Row:
    """A row of the catalog's table."""

    location: str
    kind: str
    previous: str | None = None


@dataclass(slots=True)
class File:
    """A file of the store, with the store's own time."""

    data: bytes
    modified_ms: int


@dataclass
class World:
    """Everything outside of a refresher.

    Args:
        seed: Of all random choices.
        fate: Decides the fate of a call, from its kind and its possible fates.
        now: The store's clock, milliseconds since the epoch.
        down_until: Until when the catalog does not respond.
        late: Swaps that are on their way, with their time of arrival.
        events: The number of occurrences of each event.
        roles: What each running process does.
        next_call: The next call of each running process.
        dead: The processes that were killed; none of their calls has an effect any more.
        processes: The running processes that are not tries of a task.
        left_by: The job that staged each metadata file.
        staged: The locations of the outcomes of a job, with the last tick of each.
        ticks: The number of calls.
        skewed: Whether the hosts' clocks differ.
        layout: The view's layout.
        attention: How often a call of a kind is a step of its own.
        grace: The age at which an orphan may be collected.
        unproven: The files that the last collection could not prove to be the view's.
    """

    seed: int
    fate: Callable[[World, str, tuple[str, ...]], str]
    now: int = 1_700_000_000_000
    down_until: int = 0
    files: dict[str, File] = field(default_factory=dict)
    rows: dict[Identifier, Row] = field(default_factory=dict)
    bases: dict[Identifier, BaseTable] = field(default_factory=dict)
    late: list[tuple[int, Callable[[], Any]]] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    roles: dict[greenlet.greenlet, str] = field(default_factory=dict)
    next_call: dict[greenlet.greenlet, str] = field(default_factory=dict)
    dead: set[greenlet.greenlet] = field(default_factory=set)
    processes: list[Process] = field(default_factory=list)
    left_by: dict[str, Job] = field(default_factory=dict)
    staged: dict[Job, dict[str, int]] = field(default_factory=dict)
    snapshots: int = 0
    views: int = 0
    ticks: int = 0
    skewed: bool = False
    layout: Layout = "pointed"
    attention: Mapping[str, float] = field(default_factory=lambda: ATTENTION)
    grace: int = GRACE
    unproven: set[str] = field(default_factory=set)
    catalog: SimulatedCatalog = field(init=False)
    ledger: Ledger = field(init=False)
    _applying: bool = False

    def __post_init__(self) -> None:
        from tests.protocol.simulation.checks import Ledger
        from tests.protocol.simulation.stores import SimulatedCatalog

        self.random = random.Random(self.seed)
        self.main = greenlet.getcurrent()
        self.catalog = SimulatedCatalog(self)
        self.ledger = Ledger(self)

    @property
    def registered(self) -> bool:
        """Whether the storage table is a table of the catalog beside the view."""
        return self.layout == "registered"

    @property
    def is_table(self) -> bool:
        """Whether the view itself is a table."""
        return self.layout == "table"

    @property
    def has_view(self) -> bool:
        """Whether the name is a view's: it may be free, or an ordinary table's."""
        row = self.rows.get(VIEW)
        if row is None or row.kind != "TABLE":
            return row is not None
        file = self.files.get(row.location)
        return file is None or DEFINITION_PROPERTY in json.loads(file.data)["properties"]

    @property
    def storage_name(self) -> Identifier:
        """The name of a storage table in the catalog."""
        return VIEW if self.is_table else STORAGE

    # -- one call ----------------------------------------------------------------------------------

    def call(self, kind: str, apply: Callable[[], Any], error: type[Exception], *more: str) -> Any:
        """Let the scheduler decide the fate of a call. The effects of a call and their checks are one step.

        Args:
            kind: The kind of the call.
            apply: Applies it.
            error: What the caller gets if there is no answer.
            more: Additional possible fates: ``late``, ``re-sent``.
        """
        if self._applying or greenlet.getcurrent() is self.main:
            return apply()
        if greenlet.getcurrent() in self.dead:
            raise Killed  # a call of one of its handlers
        if self.random.random() >= self.attention.get(kind, 1.0):
            return self._apply(apply)
        self.next_call[greenlet.getcurrent()] = kind
        self.main.switch()
        self.ticks += 1
        if kind in _OF_THE_CATALOG and self.now < self.down_until:
            self.events["catalog down"] += 1
            raise error("the catalog is down")
        fate = self.fate(self, kind, (*_FATES, *more))
        if fate == "done":
            return self._apply(apply)
        self.events[f"{kind}: {fate}"] += 1
        return self._stray(fate, apply, error)

    def _stray(self, fate: str, apply: Callable[[], Any], error: type[Exception]) -> Any:
        if fate == "late":
            self.late.append((self.now + self.random.randint(0, LATE), apply))
        elif fate in ("lost after", "killed after"):
            self._apply(apply)
        elif fate == "re-sent":
            # A connection pool sends the statement again after a reconnect and returns the second answer.
            self._apply(apply)
            return self._apply(apply)
        if fate.startswith("killed"):
            self.dead.add(greenlet.getcurrent())
            raise Killed
        raise error("no answer")

    @property
    def applying(self) -> bool:
        """Whether a call is being applied: its inner calls are part of it."""
        return self._applying

    def _apply(self, apply: Callable[[], Any]) -> Any:
        self._applying = True
        try:
            return apply()
        finally:
            self._applying = False

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """All calls within this context are one step without faults."""
        before, self._applying = self._applying, True
        try:
            yield
        finally:
            self._applying = before

    # -- time --------------------------------------------------------------------------------------

    def pass_time(self, milliseconds: int) -> None:
        """Let time pass; late calls may arrive."""
        self.now += milliseconds
        if not self.late:
            return
        due = [apply for when, apply in self.late if when <= self.now]
        self.late = [item for item in self.late if item[0] > self.now]
        for apply in due:
            self.events["late swap landed" if _lands(apply) else "late swap was refused"] += 1

    # -- files -------------------------------------------------------------------------------------

    def put(self, location: str, data: bytes) -> None:
        """Write a file in one step."""
        self.files[location] = File(data, self.now)

    def leave(self, location: str, text: str) -> None:
        """Write a working file; record it if it is a job's outcome."""
        self.put(location, text.encode())
        job = self.left_by.get(json.loads(text).get("metadata_location") or "") if text.startswith("{") else None
        if job is not None:
            self.staged.setdefault(job, {})[location] = self.ticks

    def is_staged(self, outcome_location: str, job: Job) -> bool:
        """Whether a job's outcome and all files that it names exist, with at least half of the grace left.

        Another job of the same refresh may have replaced the outcome since, if the table changed in between.
        """
        outcome = self.files.get(outcome_location)
        if outcome is None or self.now - outcome.modified_ms >= GRACE // 2:
            return False
        named = json.loads(outcome.data)["metadata_location"]
        if named not in self.files or self.left_by.get(named) != job:
            return False
        listing = json.loads(self.files[named].data)["snapshots"][-1]["summary"]["files"]
        return listing in self.files and all(name in self.files for name in json.loads(self.files[listing].data))

    def pick(self, items: Sequence[T]) -> T:
        """Return one of the items."""
        return items[int(self.random.random() * len(items))]

    def some_skew(self) -> int:
        """A random difference of a host's clock from the store's."""
        return self.pick((-SKEW, 0, 0, SKEW)) if self.skewed else 0

    def next_snapshot(self) -> int:
        """Return a new snapshot id."""
        self.snapshots += 1
        return self.snapshots


def _lands(apply: Callable[[], Any]) -> bool:
    """Whether a late call still finds the state that it requires."""
    try:
        return bool(apply())
    except (NotFoundError, AlreadyExistsError):
        return False


_FATES = ("lost before", "lost after", "killed before", "killed after")
_OF_THE_CATALOG = frozenset({"get", "locate", "swap", "commit", "insert", "drop"})
