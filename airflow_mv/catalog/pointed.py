# SPDX-License-Identifier: Apache-2.0
"""The stored form of the layout ``pointed``: the view names the storage table's metadata file."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
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
from airflow_mv.catalog.untrusted_input import check_own_file, check_places, metadata_folders
from airflow_mv.errors import NotFoundError
from airflow_mv.script import STORAGE, Target, staged
from airflow_mv.spec.identifiers import Identifier, StoragePlace
from airflow_mv.spec.table import TableMetadata


@dataclass(frozen=True, slots=True)
class PointedStorage(LoadedStorage):
    """A storage table in no catalog. Only refreshes write to it, so its current snapshot has the rows."""

    @property
    def name(self) -> Identifier | None:
        """None: it is in no catalog."""
        return None

    @property
    def place(self) -> StoragePlace:
        """Its metadata file."""
        return self.location

    @property
    def pointers(self) -> dict[Identifier, str]:
        """None: the view names it."""
        return {}

    @property
    def base(self) -> str:
        """Its metadata file."""
        return self.location

    @property
    def intact(self) -> bool:
        """Always."""
        return True

    @property
    def rows_snapshot(self) -> int | None:
        """The current one."""
        return self.table.head

    @property
    def target(self) -> Target:
        """Registered in the staging catalog."""
        table = staged(STORAGE)
        return Target(table, table, registers=self.location)

    @property
    def accepts_snapshots(self) -> bool:
        """Yes."""
        return True

    @property
    def view_properties(self) -> dict[str, str]:
        """None."""
        return {}

    def remove(self, tables: DropsTables, owner: Identifier) -> bool:
        """Do nothing: no catalog holds it."""
        return True

    def staged_rows(self, refresh_id: str, metadata_location: str | None) -> tuple[StoragePlace, int | None] | None:
        """Return the metadata file that the job has written, if it is in the table's folder."""
        if metadata_location is None or not lies_in(metadata_location, (self.table.location,)):
            return None
        return metadata_location, None

    def has_landed(self, refresh_id: str, ours: Collection[str]) -> bool:
        """Whether one of the refresh's own files was published."""
        return not self.published_files.isdisjoint(ours)

    def clock_folder(self, view: LoadedView) -> str:
        """Return the view's folder, which the table is in."""
        return view.metadata.location

    def folders(self, view: LoadedView) -> tuple[str, ...]:
        """Return the view's folder, and the table's if it is outside: the view had another layout before."""
        base, beside = view.metadata.location, self.table.location
        return (base,) if lies_in(beside, (base,)) else (base, beside)

    def dead_branches(self, limit_ms: int) -> list[str]:
        """Return none: a refresh is staged in files."""
        return []

    def open(self, catalog: OpensTables) -> Table:
        """Open the metadata file."""
        return catalog.open_file(self.location)

    def frame(self, reader: Any) -> Any:
        """Read by the metadata file."""
        return reader.load(self.location)

    def how_to_read(self, view: Identifier) -> str:
        """Return the ways of this package: no catalog lists the table."""
        return f"`airflow-mv read {view}`, or airflow_mv.read(spark, {str(view)!r}) in Spark. {RECOMPUTES}"


class PointedLayout(StoredLayout):
    """The view names the storage table's metadata file."""

    name = "pointed"
    swaps_pointers = True
    needs_views = True
    max_format_version = 3

    def claims(self, view: LoadedView) -> bool:
        """Whether no other layout does."""
        return True

    def place(self, view: LoadedView) -> StoragePlace:
        """Return the metadata file that the view names."""
        return view.materialized.storage_table_location

    def opened(
        self, view: LoadedView, location: str, table: TableMetadata | None, folders: tuple[str, ...], *, what: str
    ) -> LoadedStorage:
        """Check that the file is not a copy of another view's or table's."""
        if table is None:
            raise NotFoundError(f"{what}: there is no such file")
        check_places(table, folders, what=what)
        own = f"view {view.identifier}, storage table file"
        check_own_file(location, view.metadata.location, metadata_folders(table), what=own)
        state = state_of(view, table, location)
        return PointedStorage(location, table, state)

    def template_name(self, view: Identifier, token: str) -> Identifier | None:
        """Return none: the storage table itself is made."""
        return None

    def storage_name(self, view: Identifier, chosen: str | None) -> Identifier | None:
        """Return none."""
        return None

    def created(self, catalog: ReadsTables, name: Identifier | None, location: str, *, what: str) -> LoadedStorage:
        """Read the metadata file."""
        return PointedStorage(location, catalog.load_file(location, what=f"{what} file"), None)

    def earlier(self, view: LoadedView, place: str) -> LoadedView:
        """Return the view as it named that metadata file."""
        return replace(view, settings=view.materialized.repointed(place))

    def beside(self, view: LoadedView, location: str) -> tuple[str, ...]:
        """Return none."""
        return ()
