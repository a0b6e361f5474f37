# SPDX-License-Identifier: Apache-2.0
"""Processes that refresh a view repeatedly and concurrently."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

from airflow_mv.core.catalog import Layout, MaterializedViewCatalog, TableChange
from airflow_mv.core.catalog.sql import VIEW
from airflow_mv.core.publish.protocol import Effects
from airflow_mv.core.refresh import RefreshOptions
from airflow_mv.core.refresh.run import refresh
from airflow_mv.core.script import Outcome, Script
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.view import with_view_properties
from airflow_mv.errors import MaterializedViewError
from tests.builders import Lake
from tests.duck import DuckStager


@dataclass(frozen=True, slots=True)
class Place:
    """The address of a view: what another process needs to open its lake.

    Args:
        uri: The catalog's database.
        warehouse: The warehouse's folder.
        view: The view's last name.
        base: The last name of its base table.
        layout: The layout of views that are created there.
    """

    uri: str
    warehouse: str
    view: str = "daily"
    base: str = "orders"
    layout: Layout = "pointed"

    @classmethod
    def of(cls, lake: Lake, view: str = "daily", base: str = "orders") -> Place:
        """The address of a view in a lake that is open here."""
        return cls(lake.iceberg.properties["uri"], lake.iceberg.properties["warehouse"], view, base, lake.layout)

    @property
    def name(self) -> str:
        """The view's name."""
        return f"sales.{self.view}"

    def open(self) -> SqlCatalog:
        """Open the catalog with this process's own engine."""
        return SqlCatalog("lake", uri=self.uri, warehouse=self.warehouse)

    @contextmanager
    def lake(self) -> Iterator[Lake]:
        """Open the lake."""
        iceberg = self.open()
        catalog = MaterializedViewCatalog(iceberg)
        try:
            yield Lake(iceberg, catalog, DuckStager(catalog, iceberg), self.layout)
        finally:
            iceberg.engine.dispose()


@dataclass(frozen=True, slots=True)
class Order:
    """An order to a contender for one round.

    Args:
        number: The round.
        at: When all publish what one has staged, on the host's monotonic clock; ``None``: each plans, stages
            and publishes as fast as it can.
    """

    number: int
    at: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one refresh, as its process reports it.

    Args:
        number: The round.
        outcome: That of the result, or the class of the error.
        refresh_id: The reported refresh.
        storage_table_location: The reported storage metadata file.
        swaps: Swaps that were sent.
        matched: Swaps that matched a row.
        waits: Waits between two reads of the catalog.
        seconds: From the staged rows to the end.
        commented: Tries that a comment on the view took, if this contender set one.
        error: The error message.
    """

    number: int
    outcome: str
    refresh_id: str | None
    storage_table_location: str
    swaps: int
    matched: int
    waits: int
    seconds: float
    commented: int = 0
    error: str = ""


class CountingCatalog(MaterializedViewCatalog):
    """Counts swaps and commits to storage tables."""

    sent = 0
    matched = 0

    def swap(self, view: Identifier, base: str, new: str, *, kind: str = VIEW) -> bool:
        """Swap, and count."""
        self.sent += 1
        matched = super().swap(view, base, new, kind=kind)
        self.matched += matched
        return matched

    def __init__(self, catalog: Catalog | str) -> None:
        super().__init__(catalog)
        commit = self.tables.commit

        def counted(name: Identifier, uuid: str, change: TableChange) -> str | None:
            self.sent += 1
            location = commit(name, uuid, change)
            self.matched += location is not None
            return location

        self.tables.commit = counted  # type: ignore[method-assign]


def contend(place: Place, number: int, together: Barrier, orders: Connection) -> None:
    """Refresh the view once for every order, until the order is ``None``.

    Args:
        place: The lake.
        number: The number of this contender. Every fourth also sets a comment on the view; every fourth forces
            its refreshes.
        together: Starts a round in all contenders at once.
        orders: Receives orders and sends reports.
    """
    iceberg = place.open()
    while (order := orders.recv()) is not None:
        together.wait(600)
        orders.send(_Contender(iceberg, place.name, number, order).run())
    iceberg.engine.dispose()


class _Contender:
    def __init__(self, iceberg: SqlCatalog, view: str, number: int, order: Order) -> None:
        self.view = view
        self.number = number
        self.order = order
        self.catalog = CountingCatalog(iceberg)
        self.stager = DuckStager(self.catalog, iceberg)
        self.waits: list[float] = []
        self.staged = 0.0

    def run(self) -> Report:
        commented = (
            comment(self.catalog, self.view, f"{self.number} in round {self.order.number}")
            if self.number % 4 == 1
            else 0
        )
        self.staged = time.monotonic()
        try:
            (result,) = refresh(
                self.catalog,
                [self.view],
                stager=self._stage,
                options=RefreshOptions(full=self.number % 4 == 2),
                on_plan=self._planned,
                effects=Effects(sleep=self._sleep),
            )
        except MaterializedViewError as error:
            return self._report(type(error).__name__, None, "", commented, str(error))
        return self._report(result.outcome, result.refresh_id, result.storage_table_location, commented)

    def _planned(self, _: object) -> None:
        if self.number > 0:
            self._wait()
        self.staged = time.monotonic()

    def _stage(self, script: Script) -> Outcome:
        outcome = self.stager(script)
        self.staged = time.monotonic()
        return outcome

    def _wait(self) -> None:
        if self.order.at is not None:
            time.sleep(max(0.0, self.order.at - time.monotonic()))

    def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        time.sleep(seconds)

    def _report(self, outcome: str, refresh_id: str | None, location: str, commented: int, error: str = "") -> Report:
        seconds = time.monotonic() - self.staged
        counts = self.catalog.sent, self.catalog.matched, len(self.waits)
        return Report(self.order.number, outcome, refresh_id, location, *counts, seconds, commented, error)


def comment(catalog: MaterializedViewCatalog, name: str, text: str, *, tries: int = 1000) -> int:
    """Set the view's comment while others change the view; return the number of tries."""
    for number in range(1, tries + 1):
        view = catalog.load(name)
        if catalog.replace(view, with_view_properties(view.metadata, {"comment": text})):
            return number
    raise AssertionError(f"the comment {text!r} was never set")
