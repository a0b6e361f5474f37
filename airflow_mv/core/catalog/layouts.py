# SPDX-License-Identifier: Apache-2.0
"""The layouts: how a view names its storage table, and how that table is found and opened.

``pointed``
    The view names the storage table's metadata file. No catalog holds the table.
``registered``
    The storage table is a table of the view's catalog, beside the view.
``table``
    The view is an ordinary table, which holds the rows and the definition.

A new layout is added here and in :mod:`airflow_mv.core.publish.layouts`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pyiceberg.table import Table

from airflow_mv.core.catalog.loaded import (
    RECOMPUTES,
    DropsTables,
    LoadedStorage,
    LoadedView,
    OpensTables,
    ReadsTables,
    state_of,
)
from airflow_mv.core.catalog.locations import beside_first, check_own_file, check_places, lies_in, metadata_folders
from airflow_mv.core.catalog.tables import require_own
from airflow_mv.core.script import BRANCH, COMPLETE_KEY, REFRESH_ID_KEY, STORAGE, Target, staged
from airflow_mv.core.spec.identifiers import Identifier, StoragePlace, quote
from airflow_mv.core.spec.materialized_view import (
    DEFINITION_ID_PROPERTY,
    PROPERTY,
    STORAGE_OF_PROPERTY,
    STORAGE_TABLE_PROPERTY,
    STORAGE_TABLE_UUID_PROPERTY,
    current_tag,
    is_definition_tag,
)
from airflow_mv.core.spec.snapshots import dead_branches
from airflow_mv.core.spec.storage_settings import sort_order, sort_order_of
from airflow_mv.core.spec.table import (
    Alterations,
    TableMetadata,
    alterations,
    ancestors,
    has_columns_of,
    snapshots_between,
)
from airflow_mv.errors import ConfigurationError, InvalidIdentifierError, InvalidMetadataError, NotFoundError

#: A layout's name.
Layout = str


class StoredLayout(ABC):
    """How a view names its storage table, and how that table is found and opened. See :data:`STORED_LAYOUTS`."""

    name: ClassVar[Layout]
    #: Whether publication needs a compare-and-swap of the view's pointer, which only a SQL catalog supports.
    swaps_pointers: ClassVar[bool]
    #: Whether the catalog must have views. Otherwise the storage table holds the definition.
    needs_views: ClassVar[bool]
    #: The newest format version of a storage table. pyiceberg, which commits to tables of a catalog, writes only 2.
    max_format_version: ClassVar[int]

    @abstractmethod
    def claims(self, view: LoadedView) -> bool:
        """Whether a view has this layout."""

    @abstractmethod
    def place(self, view: LoadedView) -> StoragePlace:
        """Return where a view's storage table is: a metadata file, or a name in the catalog."""

    @abstractmethod
    def opened(
        self, view: LoadedView, location: str, table: TableMetadata | None, folders: tuple[str, ...], *, what: str
    ) -> LoadedStorage:
        """Check that a table is a view's storage table, and return it.

        Args:
            view: The view.
            location: The table's metadata file.
            table: Its content; ``None`` if there is no such table.
            folders: The folders that may contain its files.
            what: The file or table, for messages.

        Raises:
            NotFoundError: The table was dropped, renamed or replaced by another.
            InvalidMetadataError: It belongs to another view or table, or is outside of the folders.
        """

    @abstractmethod
    def template_name(self, view: Identifier, token: str) -> Identifier | None:
        """Return the name for a template: an empty table of the catalog that only shows the columns of a query.

        ``None`` if no template is needed, because the storage table itself can be made before a view names it.

        Args:
            view: The view.
            token: Random hexadecimal digits.
        """

    @abstractmethod
    def storage_name(self, view: Identifier, chosen: str | None) -> Identifier | None:
        """Return the name in the catalog of the storage table beside a view; ``None`` if there is none beside it.

        Args:
            view: The view.
            chosen: Its last part, if the user has chosen it.

        Raises:
            InvalidIdentifierError: It cannot be the name of a table beside the view.
        """

    @abstractmethod
    def created(self, catalog: ReadsTables, name: Identifier | None, location: str, *, what: str) -> LoadedStorage:
        """Load a template or storage table that was just created, and that no view names yet.

        Args:
            catalog: Where it is.
            name: Its name in the catalog, if it has one.
            location: Its metadata file; only needed if it has no name.
            what: The table, for messages.
        """

    @abstractmethod
    def earlier(self, view: LoadedView, place: str) -> LoadedView:
        """Return a view as it was when its storage table was at a place.

        Args:
            view: The view now.
            place: The storage table's place at that time, as text.
        """

    @abstractmethod
    def beside(self, view: LoadedView, location: str) -> tuple[str, ...]:
        """Return the folders outside of the view's folder that may contain the storage table.

        Args:
            view: The view.
            location: The table's current metadata file.
        """


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

    def altered(self, view: LoadedView) -> Alterations:
        """Return nothing: no other program finds it."""
        return Alterations()

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

    def dead_branches(self, limit_ms: int) -> list[str]:
        """Return none: a refresh is staged in files."""
        return []

    def open(self, tables: OpensTables) -> Table:
        """Open the metadata file."""
        return tables.open_file(self.location)

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
        if STORAGE_OF_PROPERTY in table.properties:
            raise InvalidMetadataError(unnamed(view))
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
        return PointedStorage(location, catalog.files.read_table(location, what=f"{what} file"), None)

    def earlier(self, view: LoadedView, place: str) -> LoadedView:
        """Return the view as it named that metadata file."""
        return replace(view, settings=view.materialized.repointed(place))

    def beside(self, view: LoadedView, location: str) -> tuple[str, ...]:
        """Return none."""
        return ()


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
        """Whether only compactions came after the tagged snapshot. One with other columns has lost values."""
        if self.state is None:
            return True
        tagged = self.tagged
        if tagged is None:
            return False
        later = snapshots_between(self.table, tagged, self.table.head)
        return later is not None and all(
            snapshot.is_compaction and has_columns_of(self.table, tagged, snapshot.snapshot_id) for snapshot in later
        )

    def altered(self, view: LoadedView) -> Alterations:
        """Compare it with the schema of the tagged snapshot, and with the recorded partition spec and sort order."""
        if self.state is None or self.tagged is None:
            return Alterations(settings=tuple(self._lost(view)))
        found = alterations(self.table, self.tagged, self.state.spec_id, self.state.sort_order_id)
        if found.shape.order_id is not None and self._has_chosen_order(view):  # a refresh that runs has set it
            found = alterations(self.table, self.tagged, self.state.spec_id, None)
        return found._replace(settings=(*found.settings, *self._lost(view)))

    def _lost(self, view: LoadedView) -> Iterator[str]:
        """Yield the properties that are lost, by the tags that are there."""
        if self.state is None and any(name.startswith(current_tag("")) for name in self.table.refs):
            yield f"the property {PROPERTY} with the refresh record was removed"
        if view.holder is not None and view.holder.tagged is None and any(map(is_definition_tag, self.table.refs)):
            yield f"the property {DEFINITION_ID_PROPERTY} was removed or changed"

    def _has_chosen_order(self, view: LoadedView) -> bool:
        try:
            chosen = sort_order(view.metadata.properties, view.metadata.schema_.names, view=str(view.identifier))
        except ConfigurationError:
            return False
        return chosen is not None and chosen == sort_order_of(self.table)

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

    def dead_branches(self, limit_ms: int) -> list[str]:
        """Return the branches of killed refreshes."""
        return dead_branches(self.table, current=(self.table.head, self.tagged), not_current_since_ms=limit_ms)

    def open(self, tables: OpensTables) -> Table:
        """Open the catalog's table."""
        return tables.open(self.identifier)

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


#: Layouts by name. A view has the first layout that claims it; the last one claims every view.
STORED_LAYOUTS: dict[Layout, StoredLayout] = {
    layout.name: layout for layout in (TableLayout(), RegisteredLayout(), PointedLayout())
}


def stored_layout(view: LoadedView) -> StoredLayout:
    """Return the layout that a view has."""
    return next(layout for layout in STORED_LAYOUTS.values() if layout.claims(view))


def unnamed(view: LoadedView) -> str:
    """Return the error for a view that does not name its storage table in the catalog any more."""
    return (
        f"view {view.identifier}: its storage table is a table of the catalog, and another program has removed the "
        f"view's property {STORAGE_TABLE_PROPERTY}, which names it. `airflow-mv repair {view.identifier} --yes` puts "
        "it back"
    )
