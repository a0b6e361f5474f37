# SPDX-License-Identifier: Apache-2.0
"""The stored form of the layout ``registered``: the storage table is a table of the view's catalog."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pyiceberg.table import Table

from airflow_mv.catalog.layout import StoredLayout
from airflow_mv.catalog.loaded import (
    RECOMPUTES,
    DropsTables,
    LoadedStorage,
    LoadedView,
    OpensTables,
    ReadsTables,
    state_of,
)
from airflow_mv.catalog.places import lies_in
from airflow_mv.catalog.tables import require_own
from airflow_mv.catalog.untrusted_input import beside_first, check_places
from airflow_mv.errors import InvalidIdentifierError, InvalidMetadataError
from airflow_mv.quoting import quote
from airflow_mv.script import BRANCH, COMPLETE_KEY, REFRESH_ID_KEY, STORAGE, Target, staged
from airflow_mv.spec.identifiers import Identifier, StoragePlace
from airflow_mv.spec.materialized_view import STORAGE_TABLE_PROPERTY, STORAGE_TABLE_UUID_PROPERTY
from airflow_mv.spec.snapshots import dead_branches
from airflow_mv.spec.table import TableMetadata, ancestors, snapshots_between


@dataclass(frozen=True, slots=True)
class RegisteredStorage(LoadedStorage):
    """A storage table in the catalog. Others may write to it, so a tag marks the current refresh's rows.

    Args:
        identifier: Its name in the catalog.
    """

    identifier: Identifier

    @property
    def name(self) -> Identifier | None:
        """Its name in the catalog."""
        return self.identifier

    @property
    def place(self) -> StoragePlace:
        """Its name in the catalog."""
        return self.identifier

    @property
    def pointers(self) -> dict[Identifier, str]:
        """The table's own."""
        return {self.identifier: self.location}

    @property
    def base(self) -> str:
        """Table, snapshot, refresh and columns, because a refresh may assign new ids of columns.

        The metadata file also changes with branches and unrelated properties.
        """
        state = self.state
        current = (state.rollback_id or state.current_refresh_id) if state else None
        return f"{self.table.table_uuid}@{self.table.head}#{current}/{self.table.current_schema_id}"

    @property
    def intact(self) -> bool:
        """Whether only compactions came after the tagged snapshot."""
        if self.state is None:
            return True
        if self.tagged is None:
            return False
        later = snapshots_between(self.table, self.tagged, self.table.head)
        return later is not None and all(snapshot.operation == "replace" for snapshot in later)

    @property
    def rows_snapshot(self) -> int | None:
        """The current snapshot, or the tagged one if others have written since."""
        return self.table.head if self.intact else self.tagged

    @property
    def target(self) -> Target:
        """A branch of it."""
        name = self.identifier.sql()
        return Target(name, f"{name}.{quote(f'branch_{BRANCH}')}", branch=True, start=self.rows_snapshot)

    @property
    def replacing_target(self) -> Target:
        """Registered in the staging catalog: a branch has the table's columns, so it cannot hold others."""
        table = staged(STORAGE)
        return Target(table, table, registers=self.location)

    @property
    def accepts_snapshots(self) -> bool:
        """No."""
        return False

    @property
    def view_properties(self) -> dict[str, str]:
        """Its name and its uuid."""
        return {
            STORAGE_TABLE_PROPERTY: self.identifier.within_catalog,
            STORAGE_TABLE_UUID_PROPERTY: self.table.table_uuid or "",
        }

    def remove(self, tables: DropsTables, owner: Identifier) -> bool:
        """Drop it."""
        return tables.drop(self.identifier, uuid=self.table.table_uuid, owner=owner)

    def staged_rows(self, refresh_id: str, metadata_location: str | None) -> tuple[StoragePlace, int | None] | None:
        """Return the newest snapshot of a complete run of the refresh."""
        done = {REFRESH_ID_KEY: refresh_id, COMPLETE_KEY: "true"}.items()
        whole = [snapshot for snapshot in self.table.snapshots if done <= snapshot.summary.items()]
        if not whole:
            return None
        return self.identifier, max(whole, key=lambda item: item.sequence_number).snapshot_id

    def has_landed(self, refresh_id: str, ours: Collection[str]) -> bool:
        """Whether ``main`` descends from a snapshot of the refresh."""
        history = ancestors(self.table, self.table.head)
        return any(snapshot.summary.get(REFRESH_ID_KEY) == refresh_id for snapshot in history)

    def clock_folder(self, view: LoadedView) -> str:
        """Return the table's folder: a REST server may have chosen it."""
        return self.table.location

    def folders(self, view: LoadedView) -> tuple[str, ...]:
        """Return the view's folder, and the table's if it is outside of it."""
        base, beside = view.metadata.location, self.table.location
        return (base,) if lies_in(beside, (base,)) else (base, beside)

    def dead_branches(self, limit_ms: int) -> list[str]:
        """Return the branches of killed refreshes."""
        return dead_branches(self.table, current=(self.table.head, self.tagged), not_current_since_ms=limit_ms)

    def open(self, catalog: OpensTables) -> Table:
        """Open the catalog's table."""
        return catalog.open_table(self.identifier)

    def frame(self, reader: Any) -> Any:
        """Read by name."""
        return reader.table(self.identifier.sql())

    def how_to_read(self, view: Identifier) -> str:
        """Return the table's name."""
        return f"the table {self.identifier}, in every engine that uses this catalog. {RECOMPUTES}"


class RegisteredLayout(StoredLayout):
    """The catalog holds the storage table, and the view names it."""

    name = "registered"
    swaps_pointers = False
    needs_views = True
    max_format_version = 2

    def claims(self, view: LoadedView) -> bool:
        """Whether the view names a table of the catalog."""
        return STORAGE_TABLE_PROPERTY in view.metadata.properties

    def place(self, view: LoadedView) -> StoragePlace:
        """Return the name that the view gives."""
        return _named(view)

    def opened(
        self, view: LoadedView, location: str, table: TableMetadata | None, folders: tuple[str, ...], *, what: str
    ) -> LoadedStorage:
        """Check that the table is the one that the view names, and that it names the view."""
        name = _named(view)
        own = require_own(view, name, table)
        check_places(own, folders, what=what)
        state = state_of(view, own, location)
        return RegisteredStorage(location, own, state, name)

    def template_name(self, view: Identifier, token: str) -> Identifier | None:
        """Return a name beside the view's."""
        return Identifier(view.catalog, view.namespace, f"{view.name[:200]}__columns_{token[:8]}")

    def storage_name(self, view: Identifier, chosen: str | None) -> Identifier | None:
        """Return the chosen name, or by default the view's with a suffix."""
        if chosen is None:
            return Identifier(view.catalog, view.namespace, f"{view.name[:200]}__storage")
        if chosen == view.name:
            raise InvalidIdentifierError(f"view {view}: its storage table needs another name than the view itself")
        if "." in chosen or "`" in chosen:
            raise InvalidIdentifierError(
                f"view {view}: {chosen!r} is not a name for its storage table: give one part without dots and "
                "backticks, the table is in the view's namespace"
            )
        return Identifier(view.catalog, view.namespace, chosen)

    def created(self, catalog: ReadsTables, name: Identifier | None, location: str, *, what: str) -> LoadedStorage:
        """Load the table by its name."""
        if name is None:
            raise InvalidMetadataError(f"{what} has no name")
        found, table = catalog.load_table(name, what=what)
        return RegisteredStorage(found, table, None, name)

    def earlier(self, view: LoadedView, place: str) -> LoadedView:
        """Return the view: the table keeps its name."""
        return view

    def beside(self, view: LoadedView, location: str) -> tuple[str, ...]:
        """Return the folder that a REST server chose for the table."""
        return beside_first(view.materialized.storage_table_location, location)


def _named(view: LoadedView) -> Identifier:
    if view.storage_table is None:
        raise InvalidMetadataError(f"view {view.identifier} names no storage table")
    return view.storage_table
