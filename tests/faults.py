# SPDX-License-Identifier: Apache-2.0
"""Faults around the real catalog: the change is really sent, or really not, and the answer goes astray."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.catalog import Catalog

from airflow_mv.catalog import LoadedView, MaterializedViewCatalog, TableChange
from airflow_mv.commit import Effects
from airflow_mv.errors import CatalogUnavailableError, CommitStateUnknownError
from airflow_mv.spec.identifiers import Identifier

#: Sends the swap, or the storage table's commit, for real.
Send = Callable[[], Any]
#: What happens to one of them instead of being sent.
Fault = Callable[["FaultyCatalog", Send], Any]


class StoppedError(BaseException):
    """The process dies here: nobody may catch this."""


class FaultyCatalog(MaterializedViewCatalog):
    """A catalog that does what a schedule says, one fault a swap or storage table's commit, and then works.

    Args:
        catalog: The real one.
        swaps: A fault for the first swap or commit, for the second and so on; ``None`` for none.
        loads: How many of the first look-ups get no answer.
    """

    def __init__(self, catalog: Catalog, *swaps: Fault | None, loads: int = 0) -> None:
        super().__init__(catalog)
        self.schedule = list(swaps)
        self.lost_loads = loads
        self.sent: list[tuple[str, str]] = []
        self.commits: list[TableChange] = []
        self.late: list[Send] = []

    def load(self, view: str | Identifier) -> LoadedView:
        """Load a view, or get no answer."""
        if self.lost_loads > 0:
            self.lost_loads -= 1
            raise CatalogUnavailableError("the database is away (a test's fault)")
        return super().load(view)

    def swap(self, view: Identifier, base: str, new: str) -> bool:
        """Swap, after whatever is late has arrived and with the next fault of the schedule."""
        self.arrive()
        self.sent.append((base, new))
        return bool(self._with_next_fault(lambda: super(FaultyCatalog, self).swap(view, base, new)))

    def commit_table(self, name: Identifier, uuid: str, change: TableChange) -> str | None:
        """Commit to a storage table, likewise."""
        self.arrive()
        self.commits.append(change)
        location: str | None = self._with_next_fault(
            lambda: super(FaultyCatalog, self).commit_table(name, uuid, change)
        )
        return location

    def arrive(self) -> None:
        """Let whatever is late arrive."""
        while self.late:
            self.late.pop()()

    def _with_next_fault(self, send: Send) -> Any:
        fault = self.schedule.pop(0) if self.schedule else None
        return fault(self, send) if fault else send()


def lose_answer_after(then: Callable[[], object] = lambda: None) -> Fault:
    """The swap lands, something else may happen, and the answer is lost."""

    def fault(catalog: FaultyCatalog, send: Send) -> Any:
        assert send()
        then()
        raise CommitStateUnknownError("connection reset after the swap (a test's fault)")

    return fault


def lose_answer_before(then: Callable[[], object] = lambda: None) -> Fault:
    """The swap never reaches the database, and nobody is told."""

    def fault(catalog: FaultyCatalog, send: Send) -> Any:
        then()
        raise CommitStateUnknownError("connection reset before the swap (a test's fault)")

    return fault


def arrive_late(catalog: FaultyCatalog, send: Send) -> Any:
    """The swap lingers on the wire until the next one is about to be sent."""
    catalog.late.append(send)
    raise CommitStateUnknownError("no answer in time (a test's fault)")


def after(action: Callable[[], object]) -> Fault:
    """Someone else acts just before the swap."""

    def fault(catalog: FaultyCatalog, send: Send) -> Any:
        action()
        return send()

    return fault


def stop_before(catalog: FaultyCatalog, send: Send) -> Any:
    """The process dies before the swap is sent."""
    raise StoppedError


def stop_after(catalog: FaultyCatalog, send: Send) -> Any:
    """The process dies after the swap has landed."""
    assert send()
    raise StoppedError


@dataclass
class Clock:
    """A clock that only tests move, and a record of the waits."""

    now: int = 2_000_000_000_000
    waits: list[float] = field(default_factory=list)

    @property
    def effects(self) -> Effects:
        """The outside world as the committer sees it."""
        return Effects(now_ms=self._tick, sleep=self.waits.append, jitter=lambda: 1.0)

    def _tick(self) -> int:
        self.now += 1
        return self.now
