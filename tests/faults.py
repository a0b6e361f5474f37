# SPDX-License-Identifier: Apache-2.0
"""Faults around the real catalog and its store: a change is really applied or not, and its answer is lost or wrong."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import PyArrowFile

from airflow_mv.core.catalog import LoadedStorage, LoadedView, Located, MaterializedViewCatalog, TableChange
from airflow_mv.core.catalog.sql import VIEW, RowSwap
from airflow_mv.core.catalog.tables import NewTable
from airflow_mv.core.publish.protocol import Effects
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.view import ViewMetadata
from airflow_mv.errors import AlreadyExistsError, CatalogUnavailableError, CommitStateUnknownError

#: Sends the swap or the storage table's commit.
Send = Callable[[], Any]
#: What happens instead of sending it.
Fault = Callable[["FaultyCatalog", Send], Any]


class StoppedError(BaseException):
    """The process dies here: no handler may catch this."""


class FaultyCatalog(MaterializedViewCatalog):
    """A catalog with a schedule of one fault for each swap or storage table's commit; afterwards it has no faults.

    Args:
        catalog: The real catalog.
        swaps: The fault of the first swap or commit, of the second and so on; ``None`` for no fault.
        loads: How many of the first reads get no answer.
    """

    def __init__(self, catalog: Catalog, *swaps: Fault | None, loads: int = 0) -> None:
        super().__init__(catalog)
        self.stale_looks = 0
        self._older: tuple[LoadedView, LoadedStorage] | None = None
        self.schedule = list(swaps)
        #: The same for creations of a storage table in the catalog.
        self.storage_schedule: list[Fault | None] = []
        self.lost_loads = loads
        self.sent: list[tuple[str, str]] = []
        self.commits: list[TableChange] = []
        self.late: list[Send] = []
        #: Whether the removal of a branch overtakes late changes.
        self.removals_overtake = False
        self._sent_commit, self._sent_creation = self.tables.commit, self.tables.create
        # Views that are tables are created and changed by the object that has no faults.
        self.tables = copy(self.tables)
        self.tables.commit = self._commit  # type: ignore[method-assign]
        self.tables.create = self._create_storage  # type: ignore[method-assign]
        if self._pointers is not None:
            self._sent_rows = self._pointers.swap_rows
            self._pointers.swap_rows = self._swap_rows  # type: ignore[method-assign]

    def load(self, view: str | Identifier, located: Located | None = None) -> LoadedView:
        """Load a view in its current or its remembered state, or get no answer."""
        if located is not None:
            return super().load(view, located)
        if self.lost_loads > 0:
            self.lost_loads -= 1
            raise CatalogUnavailableError("the database is unavailable (injected fault)")
        if self.stale_looks > 0 and self._older:
            self.stale_looks -= 1
            return self._older[0]
        return super().load(view)

    def load_storage(self, view: LoadedView) -> LoadedStorage:
        """Load its storage table in the same state as the view."""
        if self._older and view is self._older[0]:
            return self._older[1]
        return super().load_storage(view)

    def remember(self, view: str | Identifier) -> None:
        """Let later reads return this state, as from a replica that lags behind."""
        loaded = super().load(view)
        self._older = loaded, super().load_storage(loaded)

    def swap(self, name: Identifier, base: str, new: str, *, kind: str = VIEW) -> bool:
        """Swap, after late changes have arrived and with the next fault of the schedule."""
        self.arrive()
        if kind == VIEW:
            self.sent.append((base, new))
        return bool(self._with_next_fault(lambda: super(FaultyCatalog, self).swap(name, base, new, kind=kind)))

    def _commit(self, name: Identifier, uuid: str, change: TableChange) -> str | None:
        """Commit to a storage table, with the next fault. The check that a server keeps tags is no change of a view."""
        if any(name.startswith("airflow_mv_probe_") for name in change.removes):
            return self._sent_commit(name, uuid, change)
        if change.properties or not self.removals_overtake:
            self.arrive()
        self.commits.append(change)
        location: str | None = self._with_next_fault(lambda: self._sent_commit(name, uuid, change))
        return location

    def _swap_rows(self, swaps: Sequence[RowSwap]) -> bool:
        """Swap several rows, with the next fault."""
        self.arrive()
        return bool(self._with_next_fault(lambda: self._sent_rows(swaps)))

    def create(
        self,
        view: str | Identifier,
        metadata: ViewMetadata,
        location: str | None = None,
        *,
        template: Identifier | None = None,
    ) -> LoadedView:
        """Create a view, with the next fault."""
        self.arrive()
        created: LoadedView | None = self._with_next_fault(
            lambda: super(FaultyCatalog, self).create(view, metadata, location, template=template)
        )
        if created is None:
            raise AlreadyExistsError(f"a view {view} exists already (injected fault)")
        return created

    def replace(self, view: LoadedView, metadata: ViewMetadata) -> bool:
        """Replace a view, with the next fault; in a SQL catalog this is a swap, for a table a commit."""
        if self.rest is None or view.holder is not None:
            return super().replace(view, metadata)
        self.arrive()
        return bool(self._with_next_fault(lambda: super(FaultyCatalog, self).replace(view, metadata)))

    def _create_storage(self, name: Identifier, new: NewTable) -> None:
        """Create a storage table; with the next fault of those for it."""
        self.arrive()

        def send() -> bool:
            self._sent_creation(name, new)
            return True

        fault = self.storage_schedule.pop(0) if self.storage_schedule else None
        if not (fault(self, send) if fault else send()):
            raise AlreadyExistsError(f"a table {name} exists already (injected fault)")

    def arrive(self) -> None:
        """Let late changes arrive."""
        while self.late:
            with suppress(AlreadyExistsError):
                self.late.pop()()

    def _with_next_fault(self, send: Send) -> Any:
        fault = self.schedule.pop(0) if self.schedule else None
        return fault(self, send) if fault else send()


def lose_answer_after(then: Callable[[], object] = lambda: None) -> Fault:
    """The swap lands, another action may follow, and the answer is lost."""

    def fault(catalog: FaultyCatalog, send: Send) -> Any:
        assert send()
        then()
        raise CommitStateUnknownError("connection reset after the swap (injected fault)")

    return fault


def lose_answer_before(then: Callable[[], object] = lambda: None) -> Fault:
    """The swap never reaches the database, and there is no answer."""

    def fault(catalog: FaultyCatalog, send: Send) -> Any:
        then()
        raise CommitStateUnknownError("connection reset before the swap (injected fault)")

    return fault


def arrive_late(catalog: FaultyCatalog, send: Send) -> Any:
    """The swap is delayed until the next one is about to be sent."""
    catalog.late.append(send)
    raise CommitStateUnknownError("no answer in time (injected fault)")


def refuse(catalog: FaultyCatalog, send: Send) -> Any:
    """The answer is a refusal, and the change is not applied."""


def refuse_and_do_late(catalog: FaultyCatalog, send: Send) -> Any:
    """The answer is a refusal, and a copy of the change arrives later."""
    catalog.late.append(send)


def refuse_what_landed(catalog: FaultyCatalog, send: Send) -> Any:
    """The change is applied, and the answer is a refusal, because a pool has sent it twice."""
    assert send()


#: A lost answer in each form: the change was applied, was not, is applied later, or was applied by the last try.
FAULTS: dict[str, list[Fault]] = {
    "lost after": [lose_answer_after()],
    "lost before": [lose_answer_before()],
    "late": [arrive_late],
    "last try": [*[refuse] * 7, refuse_what_landed],
}


def after(action: Callable[[], object]) -> Fault:
    """Another action happens just before the swap."""

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


def count_unknown(catalog: FaultyCatalog, send: Send) -> Any:
    """The driver does not report how many rows an UPDATE matched."""
    engine: Any = catalog.iceberg.engine  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.dialect.execution_ctx_cls, "rowcount", property(lambda _: -1))
        return send()


@contextmanager
def cut_short(part: str) -> Iterator[list[str]]:
    """The store fails during the next file whose name contains a text, and half of it stays. Yields the locations."""

    def cut(file: PyArrowFile, stream: Any) -> Any:
        write = stream.write

        class Half:
            closed = False

            def write(self, data: Any) -> int:
                write(bytes(data)[: len(data) // 2])
                stream.close()
                raise OSError(errno.EIO, "the store failed (injected fault)")

            def close(self) -> None:
                stream.close()

            def __enter__(self) -> Half:
                return self

            def __exit__(self, *_: object) -> None:
                self.close()

        return Half()

    with _next_file(part, cut) as locations:
        yield locations


@contextmanager
def forbidden(part: str) -> Iterator[list[str]]:
    """The store refuses every file whose name contains a text. Yields the locations."""

    def refuse(file: PyArrowFile, stream: None) -> Any:
        raise PermissionError(errno.EACCES, "permission denied (injected fault)")

    with _next_file(part, refuse, times=None, before=True) as locations:
        yield locations


@contextmanager
def _next_file(
    part: str, act: Callable[[PyArrowFile, Any], Any], *, times: int | None = 1, before: bool = False
) -> Iterator[list[str]]:
    locations: list[str] = []
    create = PyArrowFile.create

    def created(file: PyArrowFile, overwrite: bool = False) -> Any:
        is_clock = "/clock-" in file.location  # the probe file of the store's clock
        if part not in file.location or is_clock or (times is not None and len(locations) >= times):
            return create(file, overwrite)
        locations.append(file.location)
        return act(file, None if before else create(file, overwrite))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PyArrowFile, "create", created)
        yield locations


@dataclass
class Clock:
    """A clock that only tests move, which records waits."""

    now: int = 2_000_000_000_000
    waits: list[float] = field(default_factory=list)

    @property
    def effects(self) -> Effects:
        """The effects that the publication protocol uses."""
        return Effects(now_ms=self._tick, sleep=self.waits.append, jitter=lambda: 1.0)

    def _tick(self) -> int:
        self.now += 1
        return self.now
