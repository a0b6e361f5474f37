# SPDX-License-Identifier: Apache-2.0
"""The layouts: how a view names its storage table, and how that table is found and opened.

``pointed``
    The view names the storage table's metadata file. No catalog holds the table.
``registered``
    The storage table is a table of the view's catalog, beside the view.
``table``
    The view is an ordinary table, which holds the rows and the definition.

A new layout is added here and in :mod:`airflow_mv.core.publish.publications`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import msgspec
from pyiceberg.table import Table

from airflow_mv.core.catalog.loaded import LoadedView
from airflow_mv.core.catalog.locations import check_own_file, check_places, in_folder, lies_in, metadata_folders
from airflow_mv.core.catalog.tables import WRITABLE_FORMAT, StorageTables, require_own
from airflow_mv.core.script import BRANCH, COMPLETE_KEY, REFRESH_ID_KEY, STORAGE, Target, staged
from airflow_mv.core.spec.identifiers import Identifier, StoragePlace, quote
from airflow_mv.core.spec.materialized_view import (
    DEFINITION_ID_PROPERTY,
    LOG_PROPERTY,
    PROPERTY,
    STORAGE_FOLDER_PROPERTY,
    STORAGE_OF_PROPERTY,
    STORAGE_TABLE_PROPERTY,
    STORAGE_TABLE_UUID_PROPERTY,
    RefreshRecord,
    StorageState,
    current_tag,
    has_log,
    is_definition_tag,
    parse_storage_state,
    past_refreshes,
)
from airflow_mv.core.spec.properties import sort_order, sort_order_of
from airflow_mv.core.spec.table_metadata import (
    Alterations,
    TableMetadata,
    alterations,
    has_columns_of,
    snapshots_between,
)
from airflow_mv.errors import ConfigurationError, InvalidIdentifierError, InvalidMetadataError, NotFoundError

#: A layout's name.
Layout = str


@dataclass(frozen=True, slots=True)
class ViewSupport:
    """How a catalog supports views.

    Args:
        swaps: Whether it can compare and swap the pointer of a view.
        lacking: That it has no views beside its tables, as the end of a sentence; ``None`` if it has some.
    """

    swaps: bool
    lacking: str | None


@dataclass(frozen=True, slots=True)
class LoadedStorage(ABC):
    """A layout, as a class of storage tables. An object is a storage table in the state of one metadata file.

    The class methods say which views have the layout, and how their storage tables are named, found and checked.

    Args:
        table: Its content, reduced to the fields that are used.
        state: The refresh history; ``None`` if the view was never refreshed.
        name: The table's name in the catalog, if the catalog holds it.
    """

    layout: ClassVar[Layout]
    location: str
    table: TableMetadata
    state: StorageState | None
    name: Identifier | None = None

    # -- what differs between layouts

    @classmethod
    @abstractmethod
    def claims(cls, view: LoadedView) -> bool:
        """Whether a view has this layout. Each view has one."""

    @classmethod
    @abstractmethod
    def lacking(cls, catalog: ViewSupport, existing: LoadedView | None = None) -> str | None:
        """Return why a view cannot have this layout, as the end of a sentence; ``None`` if it can.

        Args:
            existing: A view of the catalog that is to be materialized.
        """

    @classmethod
    def unwritable(cls, format_version: int, unknown_type: str | None = None) -> str | None:
        """Return why pyiceberg could not commit to a storage table, as a sentence; ``None`` if it can.

        Args:
            unknown_type: The type of a column that pyiceberg does not know.
        """
        if format_version > WRITABLE_FORMAT:
            return (
                f"its format version is {format_version}, and pyiceberg commits to no newer one than {WRITABLE_FORMAT}"
            )
        if unknown_type is not None:
            return f"a column has, or had, the type {unknown_type}, with which pyiceberg cannot read it"
        return None

    @classmethod
    @abstractmethod
    def opened(
        cls, view: LoadedView, location: str, table: TableMetadata | None, folders: tuple[str, ...], *, what: str
    ) -> Self:
        """Check that a table is a view's storage table, and return it.

        Args:
            table: Its content; ``None`` if there is no such table.
            folders: The folders that may contain its files.

        Raises:
            NotFoundError: The table was dropped, renamed or replaced by another.
            InvalidMetadataError: It belongs to another view or table, or is outside of the folders.
        """

    @classmethod
    @abstractmethod
    def template_name(cls, view: Identifier, token: str) -> Identifier | None:
        """Return the name for a template: an empty table of the catalog that only shows the columns of a query.

        ``None`` if no template is needed, because the storage table itself can be made before a view names it.

        Args:
            token: Random hexadecimal digits.
        """

    @classmethod
    def storage_name(cls, view: Identifier, chosen: str | None) -> Identifier | None:  # noqa: ARG003
        """Return the name in the catalog of the storage table beside a view; ``None`` if there is none beside it.

        Args:
            chosen: Its last part, if the user has chosen it.

        Raises:
            InvalidIdentifierError: It cannot be the name of a table beside the view.
        """
        return None

    @classmethod
    def beside(cls, view: LoadedView, location: str) -> tuple[str, ...]:  # noqa: ARG003
        """Return the folders outside of the view's folder that may have the storage table, if a server chose them."""
        return ()

    @property
    @abstractmethod
    def base(self) -> str:
        """The state that a refresh is planned on: it changes with every refresh, and not with irrelevant commits."""

    @property
    @abstractmethod
    def intact(self) -> bool:
        """Whether only refreshes and compactions have changed the stored rows."""

    @property
    def target(self) -> Target:
        """How the statements of a refresh name the table."""
        return self.replacing_target

    @abstractmethod
    def staged_rows(self, refresh_id: str, metadata_location: str | None) -> tuple[StoragePlace, int | None] | None:
        """Return the place and the snapshot of a refresh's staged rows; ``None`` if they no longer exist.

        Args:
            metadata_location: The metadata file that its job has written.
        """

    # -- what follows from the table's metadata, and from its name

    @property
    def place(self) -> StoragePlace:
        """How a query reads it: by its name in the catalog or, without one, by its metadata file."""
        return self.name or self.location

    @property
    def pointers(self) -> dict[Identifier, str]:
        """The catalog's own entries for the table, each with the metadata file that it names."""
        return {self.name: self.location} if self.name else {}

    @property
    def view_properties(self) -> dict[str, str]:
        """The properties by which a view names the table, if the catalog holds it."""
        if self.name is None:
            return {}
        return {
            STORAGE_TABLE_PROPERTY: self.name.within_catalog,
            STORAGE_TABLE_UUID_PROPERTY: self.table.table_uuid or "",
            STORAGE_FOLDER_PROPERTY: self.location.rpartition("/")[0],
        }

    @property
    def record(self) -> RefreshRecord | None:
        """The current refresh, if there is one."""
        return self.state.current if self.state else None

    @property
    def published_files(self) -> frozenset[str]:
        """The table's metadata file and the earlier ones in its metadata log."""
        return frozenset({self.location, *(entry.metadata_file for entry in self.table.metadata_log)})

    @property
    def tagged(self) -> int | None:
        """The snapshot with the current refresh's tag."""
        ref = self.table.refs.get(self.state.tag) if self.state else None
        return ref.snapshot_id if ref else None

    @property
    def rows_table(self) -> TableMetadata:
        """The table as a base table of other views: with the rows of the refresh, even after other writers' commits."""
        return msgspec.structs.replace(self.table, current_snapshot_id=self.rows_snapshot)

    @property
    def rows_snapshot(self) -> int | None:
        """The snapshot with the current refresh's rows: the current one, or the tagged one if others have written."""
        return self.table.head if self.intact else self.tagged

    @property
    def replacing_target(self) -> Target:
        """How the statements of a refresh that replaces the columns name the table: it is in the staging catalog."""
        table = staged(STORAGE)
        return Target(table, table, registers=self.location)

    def altered(self, view: LoadedView) -> Alterations:
        """Return what other programs have changed of its columns, partitioning and sort order since the last refresh.

        The schema is compared with that of the tagged snapshot, the partition spec and sort order with the recorded
        ones. No other program finds a table without a name, which has no tag.
        """
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
        if self.state is not None and self.tagged is not None and not has_log(self.table.properties):
            yield f"the property {LOG_PROPERTY} with the past refreshes was removed or changed"
        if view.holder is not None and view.holder.tagged is None and any(map(is_definition_tag, self.table.refs)):
            yield f"the property {DEFINITION_ID_PROPERTY} was removed or changed"

    def _has_chosen_order(self, view: LoadedView) -> bool:
        try:
            chosen = sort_order(view.metadata.properties, view.metadata.schema_.names, view=str(view.identifier))
        except ConfigurationError:
            return False
        return chosen is not None and chosen == sort_order_of(self.table)

    def remove(self, tables: StorageTables, owner: Identifier) -> bool:
        """Remove the table from the catalog, if it is the owner's. Its files stay.

        Args:
            owner: The view that it was made for.

        Returns:
            Whether the catalog held it, if it is a table that a catalog holds.
        """
        return self.name is None or tables.drop(self.name, uuid=self.table.table_uuid, owner=owner)

    def folders(self, view: LoadedView) -> tuple[str, ...]:
        """Return the view's folder, and the storage table's if it is outside of it."""
        base, beside = view.metadata.location, self.table.location
        return (base,) if lies_in(beside, (base,)) else (base, beside)

    def open(self, tables: StorageTables) -> Table:
        """Return the table for pyiceberg to read."""
        return tables.open_file(self.location) if self.name is None else tables.open(self.name)


@dataclass(frozen=True, slots=True)
class PointedStorage(LoadedStorage):
    """The view names the storage table's metadata file. Only refreshes write to the table."""

    layout = "pointed"

    @classmethod
    def claims(cls, view: LoadedView) -> bool:
        """Whether the view names no table of the catalog."""
        return STORAGE_TABLE_PROPERTY not in view.metadata.properties

    @classmethod
    def lacking(cls, catalog: ViewSupport, existing: LoadedView | None = None) -> str | None:  # noqa: ARG003
        """Refuse a catalog that cannot compare and swap the pointer of a view: only a SQL catalog can."""
        return catalog.lacking if catalog.swaps else "cannot compare and swap the pointer of a view"

    @classmethod
    def unwritable(cls, format_version: int, unknown_type: str | None = None) -> str | None:  # noqa: ARG003
        """Return none: pyiceberg commits to no table that is in no catalog."""
        return None

    @classmethod
    def opened(
        cls, view: LoadedView, location: str, table: TableMetadata | None, folders: tuple[str, ...], *, what: str
    ) -> Self:
        """Check that the file is not a copy of another view's or table's."""
        if table is None:
            raise NotFoundError(f"{what}: there is no such file")
        check_places(table, folders, what=what)
        if STORAGE_OF_PROPERTY in table.properties:
            raise InvalidMetadataError(unnamed(view))
        own = f"view {view.identifier}, storage table file"
        check_own_file(location, view.metadata.location, metadata_folders(table), what=own)
        return cls(location, table, state_of(view, table, location))

    @classmethod
    def template_name(cls, view: Identifier, token: str) -> Identifier | None:  # noqa: ARG003
        """Return none: the storage table itself is made."""
        return None

    @property
    def base(self) -> str:
        """Its metadata file."""
        return self.location

    @property
    def intact(self) -> bool:
        """Always."""
        return True

    def staged_rows(self, refresh_id: str, metadata_location: str | None) -> tuple[StoragePlace, int | None] | None:
        """Return the metadata file that the job has written, if it is in the table's folder."""
        if metadata_location is None or not lies_in(metadata_location, (self.table.location,)):
            return None
        return metadata_location, None


@dataclass(frozen=True, slots=True)
class RegisteredStorage(LoadedStorage):
    """The catalog holds the storage table, and the view names it.

    Others may write to it, so a tag marks the current refresh's rows.
    """

    layout = "registered"

    @classmethod
    def claims(cls, view: LoadedView) -> bool:
        """Whether the view names a table of the catalog beside itself."""
        return view.metadata.properties.get(STORAGE_TABLE_PROPERTY) not in (None, view.identifier.within_catalog)

    @classmethod
    def lacking(cls, catalog: ViewSupport, existing: LoadedView | None = None) -> str | None:  # noqa: ARG003
        """Refuse a catalog without views."""
        return catalog.lacking

    @classmethod
    def opened(
        cls, view: LoadedView, location: str, table: TableMetadata | None, folders: tuple[str, ...], *, what: str
    ) -> Self:
        """Check that the table is the one that the view names, and that it names the view."""
        name = view.storage_table
        if name is None:
            raise InvalidMetadataError(f"view {view.identifier} names no storage table")
        own = require_own(view, name, table)
        check_places(own, folders, what=what)
        return cls(location, own, state_of(view, own, location), name)

    @classmethod
    def template_name(cls, view: Identifier, token: str) -> Identifier | None:
        """Return a name beside the view's."""
        return Identifier(view.catalog, view.namespace, f"{view.name[:200]}__columns_{token[:8]}")

    @classmethod
    def storage_name(cls, view: Identifier, chosen: str | None) -> Identifier | None:
        """Return the chosen name, or by default the view's with a suffix."""
        if chosen is None:
            return Identifier(view.catalog, view.namespace, f"{view.name[:200]}__storage")
        if chosen == view.name:
            raise InvalidIdentifierError(
                f"view {view}: the name of its storage table must differ from that of the view"
            )
        if "." in chosen or "`" in chosen:
            raise InvalidIdentifierError(
                f"view {view}: {chosen!r} is not a name for its storage table: give one part without dots and "
                "backticks, the table is in the view's namespace"
            )
        return Identifier(view.catalog, view.namespace, chosen)

    @classmethod
    def beside(cls, view: LoadedView, location: str) -> tuple[str, ...]:
        """Return the folder that a REST server chose for the table."""
        return in_folder(view.metadata.properties.get(STORAGE_FOLDER_PROPERTY, ""), location)

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

    @property
    def target(self) -> Target:
        """A branch of it. Another copy of the table is written by its metadata file."""
        if self.name is None:
            return self.replacing_target
        name = self.name.sql()
        return Target(name, f"{name}.{quote(f'branch_{BRANCH}')}", branch=True, start=self.rows_snapshot)

    def staged_rows(self, refresh_id: str, metadata_location: str | None) -> tuple[StoragePlace, int | None] | None:
        """Return the newest snapshot of a complete run of the refresh."""
        done = {REFRESH_ID_KEY: refresh_id, COMPLETE_KEY: "true"}.items()
        whole = [snapshot for snapshot in self.table.snapshots if done <= snapshot.summary.items()]
        if not whole:
            return None
        return self.place, max(whole, key=lambda item: item.sequence_number).snapshot_id


@dataclass(frozen=True, slots=True)
class TableStorage(RegisteredStorage):
    """The view's name is the name of the storage table, which holds the definition in a property."""

    layout = "table"

    @classmethod
    def claims(cls, view: LoadedView) -> bool:
        """Whether the view names itself as its storage table."""
        return view.metadata.properties.get(STORAGE_TABLE_PROPERTY) == view.identifier.within_catalog

    @classmethod
    def lacking(cls, catalog: ViewSupport, existing: LoadedView | None = None) -> str | None:  # noqa: ARG003
        """Refuse a plain view of the catalog: it cannot become a table of its name."""
        return "has a view of this name, which cannot become a table" if existing and not existing.holder else None

    @classmethod
    def storage_name(cls, view: Identifier, chosen: str | None) -> Identifier | None:  # noqa: ARG003
        """Return none: the view itself is the storage table."""
        return None

    @classmethod
    def beside(cls, view: LoadedView, location: str) -> tuple[str, ...]:  # noqa: ARG003
        """Return none: the view's folder is the table's."""
        return ()


#: Layouts by name. The first one that a catalog supports is its default.
STORED_LAYOUTS: dict[Layout, type[LoadedStorage]] = {
    storage.layout: storage for storage in (PointedStorage, TableStorage, RegisteredStorage)
}


def supported_layouts(
    catalog: ViewSupport, first: str | None, existing: LoadedView | None = None
) -> tuple[Layout, ...]:
    """Return the layouts that views of a catalog can have; the first is the default.

    Args:
        catalog: How it supports views.
        first: The one that comes first, if it is supported.
        existing: A view of the catalog that is to be materialized.
    """
    found = (name for name, layout in STORED_LAYOUTS.items() if layout.lacking(catalog, existing) is None)
    return tuple(sorted(found, key=lambda name: name != first))


def stored_layout(view: LoadedView) -> type[LoadedStorage]:
    """Return the layout that a view has."""
    return next(layout for layout in STORED_LAYOUTS.values() if layout.claims(view))


def restored(storage: LoadedStorage, view: LoadedView) -> LoadedStorage:
    """Return a storage table without what other programs have altered, as the next refresh makes it before its plan."""
    schema_id, spec_id, order_id = storage.altered(view).shape
    table = msgspec.structs.replace(
        storage.table,
        current_schema_id=storage.table.current_schema_id if schema_id is None else schema_id,
        default_spec_id=storage.table.default_spec_id if spec_id is None else spec_id,
        default_sort_order_id=storage.table.default_sort_order_id if order_id is None else order_id,
    )
    return replace(storage, table=table)


def how_to_read(view: LoadedView, storage: LoadedStorage) -> str:
    """Return where people read a view's stored rows, and what a query by the view's name does."""
    name, table = view.identifier, storage.name
    recomputes = "A Spark query by the view's name does not use them: it runs the view's SQL"
    if table is None:
        in_python = f"airflow_mv.scan({str(name)!r}) in Python, airflow_mv.read(spark, {str(name)!r}) in Spark"
        how = f"`airflow-mv read {name}`, {in_python}. {recomputes}"
    else:
        then = ": it is the view itself" if table == name else f". {recomputes}"
        how = f"the table {table}, in every engine that uses this catalog{then}"
    return f"stored rows of {name}: {how}"


def storage_place(view: LoadedView) -> StoragePlace:
    """Return where a view's storage table is: a name in the catalog, or a metadata file.

    Raises:
        InvalidMetadataError: The view names neither, because another program has removed a property.
    """
    name = view.storage_table
    place = view.materialized.storage_table_location if name is None else name
    if place is None:
        raise InvalidMetadataError(unnamed(view))
    return place


def frame_of(storage: LoadedStorage, reader: Any) -> Any:
    """Return the rows of a storage table through Spark's ``DataFrameReader``."""
    return reader.load(storage.location) if storage.name is None else reader.table(storage.name.sql())


def view_with_storage_at(view: LoadedView, place: str) -> LoadedView:
    """Return a view as it was when its storage table was at a place. A table of the catalog keeps its name.

    Args:
        place: The storage table's place at that time, as text.
    """
    named = view.storage_table is not None
    return view if named else replace(view, settings=view.materialized.repointed(place))


def state_of(view: LoadedView, table: TableMetadata, location: str) -> StorageState | None:
    """Return the refresh history in a storage table; ``None`` if the view was never refreshed.

    Raises:
        InvalidMetadataError: The record is broken.
    """
    state = parse_storage_state(table.properties, view=str(view.identifier), location=location)
    return state.with_full_names(view.default_catalog, view.default_namespace) if state else None


def all_refreshes(view: LoadedView, storage: LoadedStorage) -> tuple[RefreshRecord, ...]:
    """Return the recorded refreshes of a view and those in its log, oldest first.

    Raises:
        InvalidMetadataError: The log is broken.
    """
    if storage.state is None:
        return ()
    source = f"view {view.identifier}, storage table file {storage.location}, property {LOG_PROPERTY}"
    recorded = {record.refresh_id for record in storage.state.refreshes}
    past = past_refreshes(storage.table.properties, source=source)
    records = [*(record for record in past if record.refresh_id not in recorded), *storage.state.refreshes]
    return tuple(sorted(records, key=lambda record: record.refreshed_at_ms or 0)) if past else storage.state.refreshes


def readable_refreshes(view: LoadedView, storage: LoadedStorage) -> tuple[RefreshRecord, ...]:
    """Return :func:`all_refreshes`, or the recorded ones if the log is broken: that must not stop a refresh."""
    try:
        return all_refreshes(view, storage)
    except InvalidMetadataError:
        return storage.state.refreshes if storage.state else ()


def unnamed(view: LoadedView) -> str:
    """Return the error for a view that no longer names its storage table in the catalog."""
    return (
        f"view {view.identifier}, file {view.metadata_location}: neither its property {STORAGE_TABLE_PROPERTY} nor the "
        f"field 'storage-table-location' of its property {PROPERTY} names its storage table. If another program has "
        f"removed the property, `airflow-mv repair {view.identifier} --yes` puts it back"
    )
