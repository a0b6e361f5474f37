# SPDX-License-Identifier: Apache-2.0
"""The stored form of the layout ``table``: the view is an ordinary table, which holds the rows and the definition."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_mv.catalog.loaded import LoadedStorage, LoadedView, state_of
from airflow_mv.catalog.registered import RegisteredLayout, RegisteredStorage
from airflow_mv.catalog.tables import require_own
from airflow_mv.catalog.untrusted_input import check_places
from airflow_mv.spec.identifiers import Identifier, StoragePlace
from airflow_mv.spec.materialized_view import STORAGE_TABLE_PROPERTY
from airflow_mv.spec.table import TableMetadata


@dataclass(frozen=True, slots=True)
class TableStorage(RegisteredStorage):
    """The table under the view's name. Others may write to it, so a tag marks the current refresh's rows."""

    def how_to_read(self, view: Identifier) -> str:
        """Return the view's own name."""
        return f"the table {self.identifier}, in every engine that uses this catalog: it is the view itself"


class TableLayout(RegisteredLayout):
    """The view's name is the name of the storage table, which holds the definition in a property."""

    name = "table"
    needs_views = False
    max_format_version = 2

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
        state = state_of(view, own, location)
        return TableStorage(location, own, state, view.identifier)

    def storage_name(self, view: Identifier, chosen: str | None) -> Identifier | None:
        """Return none: the view itself is the storage table."""
        return None

    def beside(self, view: LoadedView, location: str) -> tuple[str, ...]:
        """Return none: the view's folder is the table's."""
        return ()
