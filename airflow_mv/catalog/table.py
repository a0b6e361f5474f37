# SPDX-License-Identifier: Apache-2.0
"""The stored form of the layout ``table``: the view is an ordinary table, which holds the rows and the definition."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_mv.catalog.layout import StoredLayout
from airflow_mv.catalog.loaded import LoadedStorage, LoadedView, ReadsTables
from airflow_mv.catalog.registered import RegisteredStorage, rows_state
from airflow_mv.catalog.tables import require_own
from airflow_mv.catalog.untrusted_input import check_places
from airflow_mv.errors import InvalidMetadataError
from airflow_mv.script import STORAGE, Target, staged
from airflow_mv.spec.identifiers import Identifier, StoragePlace
from airflow_mv.spec.materialized_view import STORAGE_TABLE_PROPERTY, parse_storage_state
from airflow_mv.spec.table import TableMetadata


@dataclass(frozen=True, slots=True)
class TableStorage(RegisteredStorage):
    """The table under the view's name. Others may write to it, so a tag marks the current refresh's rows."""

    @property
    def base(self) -> str:
        """Table, snapshot, refresh and columns: a refresh may assign new ids of columns."""
        return f"{rows_state(self)}/{self.table.current_schema_id}"

    @property
    def replacing_target(self) -> Target:
        """Registered in the staging catalog: a branch has the table's columns, so it cannot hold others."""
        table = staged(STORAGE)
        return Target(table, table, registers=self.location)

    @property
    def keeps_columns(self) -> bool:
        """No: one commit changes columns, rows and records."""
        return False

    def how_to_read(self, view: Identifier) -> str:
        """Return the view's own name."""
        return f"the table {self.identifier}, in every engine that uses this catalog: it is the view itself"


@dataclass(frozen=True, slots=True)
class Template(RegisteredStorage):
    """An empty table with the columns of a query. It is dropped as soon as they are known."""

    @property
    def template(self) -> Identifier | None:
        """Its name."""
        return self.identifier

    @property
    def view_properties(self) -> dict[str, str]:
        """None: the view never names it."""
        return {}


class TableLayout(StoredLayout):
    """The view's name is the name of the storage table, which holds the definition in a property."""

    name = "table"
    swaps_pointers = False
    needs_views = False

    def claims(self, view: LoadedView) -> bool:
        """Whether the view names itself as its storage table."""
        return view.metadata.properties.get(STORAGE_TABLE_PROPERTY) == view.identifier.within_catalog

    def place(self, view: LoadedView) -> StoragePlace:
        """Return the view's own name."""
        return view.identifier

    def opened(
        self, view: LoadedView, location: str, table: TableMetadata | None, folders: tuple[str, ...], *, what: str
    ) -> LoadedStorage:
        """Check that the table is the one that the definition was written for."""
        own = require_own(view, view.identifier, table)
        check_places(own, folders, what=what)
        state = parse_storage_state(own.properties, view=str(view.identifier), location=location)
        return TableStorage(location, own, state, view.identifier)

    def new_name(self, view: Identifier, token: str) -> Identifier | None:
        """Return a name for the template."""
        return Identifier(view.catalog, view.namespace, f"{view.name[:200]}__columns_{token[:8]}")

    def created(self, catalog: ReadsTables, name: Identifier | None, location: str, *, what: str) -> LoadedStorage:
        """Load the template."""
        if name is None:
            raise InvalidMetadataError(f"{what} has no name")
        return Template(location, catalog.load_table(name, what=what)[1], None, name)

    def earlier(self, view: LoadedView, place: str) -> LoadedView:
        """Return the view: it keeps its name."""
        return view

    def beside(self, view: LoadedView, location: str) -> tuple[str, ...]:
        """Return none: the view's folder is the table's."""
        return ()
