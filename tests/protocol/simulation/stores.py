# SPDX-License-Identifier: Apache-2.0
"""The real catalog on rows and files in memory. Every call is a step of the scheduler."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import greenlet

from airflow_mv.core.catalog import MaterializedViewCatalog, stored_layout
from airflow_mv.core.catalog.catalog import CatalogFolders
from airflow_mv.core.catalog.files import StoredFile
from airflow_mv.core.catalog.loaded import Row as CatalogRow
from airflow_mv.core.catalog.sql import VIEW as VIEW_KIND
from airflow_mv.core.catalog.sql import RowSwap
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.errors import (
    AlreadyExistsError,
    CatalogUnavailableError,
    CommitStateUnknownError,
    MetadataFileNotFoundError,
    UnsupportedError,
)
from tests.protocol.simulation.tables import SimulatedTables, SimulatedTableViews
from tests.protocol.simulation.world import BASES, VIEW, Row, Violation, World


class SimulatedCatalog(MaterializedViewCatalog):
    """The real catalog on a world's rows and files."""

    def __init__(self, world: World) -> None:
        self.name = "lake"
        self.is_rest, self.is_sql = False, True
        self.properties = {"warehouse": "s3://w"}
        self.files = cast("Any", SimulatedFiles(world))
        self._pointers = self.entries = cast("Any", SimulatedPointers(world))
        self.tables = cast("Any", SimulatedTables(world))
        self.table_views = SimulatedTableViews(world, self.files, self.tables, self._pointers)
        self._others = {"lake": self}
        self._opening = threading.RLock()
        self.folders = SimulatedFolders(
            cast("Any", SimpleNamespace(name="lake")), self.properties, self.files, by_server=False, metastore=None
        )


class SimulatedFolders(CatalogFolders):
    """The real folders in namespaces without properties."""

    def namespace(self, namespace: tuple[str, ...]) -> dict[str, str]:
        """Return no properties."""
        return {}


@dataclass
class SimulatedPointers:
    """Rows of a catalog's database.

    Args:
        world: The world that has the rows.
        blind: A planted fault: the swap ignores its base.
    """

    world: World
    blind: bool = False

    def get(self, view: Identifier) -> tuple[str | None, str | None]:
        def load() -> tuple[str | None, str | None]:
            row = self.world.rows.get(view)
            if row is None:
                return (None, None)
            if view == VIEW and not nested:
                self.world.ledger.view_was_seen(row.location)
            return (row.location, row.kind)

        nested = self.world.applying
        return cast("Any", self.world.call("get", load, CatalogUnavailableError))

    def locate(self, identifiers: Sequence[Identifier]) -> dict[Identifier, tuple[str, str]]:
        def load() -> dict[Identifier, tuple[str, str]]:
            if BASES[0] in identifiers or BASES[1] in identifiers:
                self.world.ledger.bases_were_seen()
            rows = {item: self.world.rows.get(item) for item in identifiers}
            return {item: (row.location, row.kind) for item, row in rows.items() if row}

        return cast("Any", self.world.call("locate", load, CatalogUnavailableError))

    def insert(self, view: Identifier, location: str) -> None:
        def apply() -> bool:
            row = self.world.rows.get(view)
            if row is not None and row.location != location:
                raise AlreadyExistsError(f"a view {view} exists")
            if row is None:
                self.world.rows[view] = Row(location, VIEW_KIND)
                self.world.ledger.view_created()
            return True

        self.world.call("insert", apply, CommitStateUnknownError, "late", "late", "re-sent")

    def delete(self, view: Identifier, *, base: str | None = None, kind: str = VIEW_KIND) -> bool:
        def apply() -> bool:
            row = self.world.rows.get(view)
            if row is None or row.kind != kind or base not in (None, row.location):
                return False
            del self.world.rows[view]
            return True

        return bool(self.world.call("drop", apply, CommitStateUnknownError, "late"))

    def row(self, name: Identifier) -> CatalogRow | None:
        def load() -> CatalogRow | None:
            row = self.world.rows.get(name)
            return CatalogRow(row.kind, row.location, row.previous) if row else None

        return cast("Any", self.world.call("get", load, CatalogUnavailableError))

    def previous(self, view: Identifier) -> str | None:
        def load() -> str | None:
            row = self.world.rows.get(view)
            return row.previous if row else None

        return cast("Any", self.world.call("get", load, CatalogUnavailableError))

    def locations(self) -> list[tuple[str, str]]:
        def load() -> list[tuple[str, str]]:
            return [(str(name), row.location) for name, row in self.world.rows.items()]

        return cast("Any", self.world.call("locate", load, CatalogUnavailableError))

    def swap(self, view: Identifier, base: str, new: str, *, kind: str = VIEW_KIND) -> bool:
        role = self.world.roles.get(greenlet.getcurrent(), "other")

        def apply() -> bool:
            row = self.world.rows.get(view)
            if row is None or (row.location != base and not self.blind):
                self.world.events["swap refused"] += 1
                return False
            before = self.world.ledger.before_swap(base)
            self.world.rows[view] = Row(new, row.kind, row.location)
            self.world.ledger.after_swap(before, role)
            return True

        return bool(self.world.call("swap", apply, CommitStateUnknownError, "late", "late", "re-sent"))

    def swap_rows(self, swaps: Sequence[RowSwap]) -> bool:
        role = self.world.roles.get(greenlet.getcurrent(), "other")

        def apply() -> bool:
            now = {item.name: self.world.rows.get(item.name) for item in swaps}
            if any(item.before is None and now[item.name] for item in swaps):
                raise AlreadyExistsError("one of the names is taken")
            for item in swaps:
                row = now[item.name]
                if not self.blind and item.before != ((row.kind, row.location) if row else None):
                    return False
            before = self.world.ledger.view(), self.world.ledger.state()
            for item in swaps:
                earlier = self.world.rows.pop(item.name, None)
                if item.after is not None:
                    self.world.rows[item.name] = Row(
                        item.after[1], item.after[0], earlier.location if earlier else None
                    )
            view = self.world.ledger.view()
            if view is not None:
                self.world.layout = stored_layout(view).layout
            self.world.ledger.after_swap(before, role)
            return True

        return bool(self.world.call("swap", apply, CommitStateUnknownError, "late", "late"))


@dataclass
class SimulatedFiles:
    """A file store.

    Args:
        world: The world that has the files.
        write_once: Whether overwriting a file is a violation; a planted fault disables it.
    """

    world: World
    write_once: bool = True

    def read(self, location: str, *, what: str) -> bytes:
        def get() -> bytes:
            if location not in self.world.files:
                raise MetadataFileNotFoundError(f"{what}: {location}")
            return self.world.files[location].data

        return cast("bytes", self.world.call("read", get, CatalogUnavailableError))

    def io(self, location: str, *, what: str) -> Any:
        raise UnsupportedError(f"{what}: the content of files is not simulated")

    def require_access(self, location: str) -> None:
        """Every location is accessible."""

    def read_text(self, location: str) -> str | None:
        try:
            return self.read(location, what="file").decode()
        except MetadataFileNotFoundError:
            return None

    def write(self, location: str, data: bytes) -> None:
        def put() -> None:
            if self.write_once and location in self.world.files:
                raise Violation(f"I10: {location} is written twice")
            self.world.put(location, data)

        self.world.call("write", put, CatalogUnavailableError)

    def replace_text(self, location: str, text: str) -> None:
        self.world.call("write", lambda: self.world.leave(location, text), OSError)

    def delete(self, location: str) -> None:
        def remove() -> None:
            self.world.files.pop(location, None)
            self.world.ledger.deleted(location)

        self.world.call("delete", remove, OSError)

    def remove_empty_folders(self, base: str, files: Sequence[str]) -> None:
        """There are no folders."""

    def exists(self, location: str, *, what: str) -> bool:
        return bool(self.world.call("read", lambda: location in self.world.files, CatalogUnavailableError))

    def list(self, base: str) -> Iterator[StoredFile]:
        def load() -> list[StoredFile]:
            return [
                StoredFile(name, len(file.data), file.modified_ms)
                for name, file in self.world.files.items()
                if name.startswith(base.rstrip("/") + "/")
            ]

        yield from self.world.call("list", load, CatalogUnavailableError)

    def modified_ms(self, location: str) -> int:
        def load() -> int:
            if location not in self.world.files:
                raise MetadataFileNotFoundError(f"file: {location}")
            return self.world.files[location].modified_ms

        return int(self.world.call("read", load, CatalogUnavailableError))

    def now_ms(self, base: str) -> int:
        return int(self.world.call("write", lambda: self.world.now, CatalogUnavailableError))
