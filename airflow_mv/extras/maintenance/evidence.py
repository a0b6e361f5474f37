# SPDX-License-Identifier: Apache-2.0
"""Read the remaining files of a view whose files may be lost or truncated. Nothing is changed or decided here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from airflow_mv.core.catalog import storage_place, stored_table
from airflow_mv.core.catalog.catalog import MaterializedViewCatalog, next_number
from airflow_mv.core.catalog.files import METADATA_SUFFIXES
from airflow_mv.core.catalog.layouts import LoadedStorage, stored_layout
from airflow_mv.core.catalog.loaded import LoadedView, Row
from airflow_mv.core.catalog.locations import allowed_folders, check_confined, check_own_file
from airflow_mv.core.catalog.sql import TABLE, VIEW
from airflow_mv.core.catalog.tables import view_in_table
from airflow_mv.core.script import REFRESH_ID_KEY
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import (
    PROPERTY,
    STORAGE_FOLDER_PROPERTY,
    STORAGE_TABLE_PROPERTY,
    STORAGE_TABLE_UUID_PROPERTY,
    StorageState,
)
from airflow_mv.core.spec.stored import decode
from airflow_mv.core.spec.table_metadata import TableMetadata, parse_table
from airflow_mv.errors import (
    InvalidMetadataError,
    MetadataFileNotFoundError,
    NotFoundError,
    NotMaterializedError,
    RefusedLocationError,
    ViewNotFoundError,
)

#: The properties of a view that make it materialized, and name its storage table.
_NAMING = (PROPERTY, STORAGE_TABLE_PROPERTY, STORAGE_TABLE_UUID_PROPERTY, STORAGE_FOLDER_PROPERTY)
#: The number of earlier metadata files that are read to find an earlier state, newest first.
MAX_EARLIER = 50


@dataclass(frozen=True, slots=True)
class ViewFile:
    """A view metadata file.

    Args:
        view: Its content; ``None`` if the file is not complete.
        why: What is wrong with it.
        refused: Set if the configuration does not allow its location, or one in it: it may be intact.
    """

    location: str
    view: LoadedView | None
    why: str = ""
    refused: RefusedLocationError | None = None

    @property
    def number(self) -> int:
        """The number at the start of its name. Each file has a higher number than the one that it replaced."""
        return next_number(self.location) - 1

    @property
    def uuid(self) -> str | None:
        """The view's uuid in this file."""
        return self.view.metadata.view_uuid if self.view else None


@dataclass(frozen=True, slots=True)
class TableFile:
    """A storage table's metadata file.

    Args:
        document: Its decoded content; ``None`` if the file is not complete.
        why: What is wrong with it.
        refused: As for :class:`ViewFile`.
    """

    location: str
    document: dict[str, Any] | None = None
    storage: LoadedStorage | None = None
    why: str = ""
    refused: RefusedLocationError | None = None

    @property
    def number(self) -> int:
        """The number at the start of its name."""
        return next_number(self.location) - 1

    @property
    def table(self) -> TableMetadata | None:
        """The table's metadata."""
        return self.storage.table if self.storage else None

    @property
    def state(self) -> StorageState | None:
        """The refresh history."""
        return self.storage.state if self.storage else None

    @property
    def log(self) -> tuple[str, ...]:
        """The metadata files that came before this one, oldest first."""
        return tuple(item.metadata_file for item in self.table.metadata_log) if self.table else ()

    @property
    def consistent(self) -> bool:
        """Whether the file's refresh record belongs to its current snapshot.

        A refresh job writes metadata files with the new snapshot and the old record. These are never published.
        """
        table, state = self.table, self.state
        if table is None:
            return False
        head = table.find(table.head) if table.head is not None else None
        number = state.current.sequence_number if state else None
        if state is None or number is None:
            return head is None
        return head is not None and head.sequence_number == number

    @property
    def committed(self) -> bool:
        """Whether a commit to a table of the catalog may have written the file.

        A refresh job that changes the columns writes metadata files beside the table's, with new columns or rows and
        the old record. These are never committed.
        """
        if self.storage is None:
            return False
        table = self.storage.table
        head = table.find(table.head) if table.head is not None else None
        if head is not None and head.schema_id not in (None, table.current_schema_id):
            return False
        if self.storage.state is None:
            return head is None or REFRESH_ID_KEY not in head.summary
        return self.storage.intact


@dataclass
class Evidence:
    """The files of one view.

    Args:
        row: Its row in the catalog; ``None`` in a REST catalog, which does not expose it, and for a view that is a
            table.
    """

    catalog: MaterializedViewCatalog
    view: Identifier
    row: Row | None
    _views: dict[str, ViewFile] = field(default_factory=dict)
    _tables: dict[str, TableFile] = field(default_factory=dict)

    @classmethod
    def of(cls, catalog: MaterializedViewCatalog, view: str | Identifier) -> Self:
        """Start from the catalog's row, if it exposes one."""
        identifier = catalog.identify(view)
        row = catalog.row(identifier)
        # A view that is a table has the table's row, and no file of its own.
        return cls(catalog, identifier, row if row is not None and row.kind == VIEW else None)

    # -- view metadata files --------------------------------------------------------------------

    def view_file(self, location: str) -> ViewFile:
        """Read a view metadata file."""
        if location not in self._views:
            self._views[location] = self._view_file(location)
        return self._views[location]

    def _view_file(self, location: str) -> ViewFile:
        try:
            view = self.catalog.load_at(self.view, location)
            if self.row is not None and view.settings is not None:
                own = (self.row.previous or self.row.location).rpartition("/")[0]
                what = f"view {self.view}, metadata file"
                check_own_file(location, own, (view.metadata.metadata_folder,), what=what)
            return ViewFile(location, view)
        except (InvalidMetadataError, MetadataFileNotFoundError) as error:
            return ViewFile(location, None, _why(error, location), _refused(error))

    @property
    def folder(self) -> str:
        """The folder of the view's metadata files, by the catalog's row."""
        return self.row.location.rpartition("/")[0] if self.row else ""

    def view_files(self, *, above: int = -1) -> list[ViewFile]:
        """Read the complete view metadata files in the view's metadata folder, and the one that the row named before.

        Args:
            above: Only files in the folder with a higher number.
        """
        listed = [location for location in self.files_in(self.folder) if next_number(location) - 1 > above]
        found = [self.view_file(location) for location in listed]
        if self.row is not None and self.row.previous:
            found.append(self.view_file(self.row.previous))
        return [item for item in {item.location: item for item in found}.values() if item.view is not None]

    def earlier_view(self) -> LoadedView | None:
        """Return the view from an earlier metadata file, if the current one cannot be read.

        This is the file that the row named before, or else the newest in the metadata folder, if all files there
        belong to one view.
        """
        files = [item for item in self.view_files() if self.row is None or item.location != self.row.location]
        before = [item.view for item in files if self.row and item.location == self.row.previous]
        alone = len({item.uuid for item in files}) == 1
        newest = max(files, key=lambda item: (item.number, item.location), default=None)
        return next(iter(before), newest.view if newest and alone else None)

    def files_in(self, folder: str) -> Iterator[str]:
        """Yield the metadata files in a folder."""
        for file in self.catalog.files.list(folder) if folder else ():
            if file.location.endswith(METADATA_SUFFIXES) and file.location.rpartition("/")[0] == folder.rstrip("/"):
                yield file.location

    # -- storage metadata files -----------------------------------------------------------------

    def table_file(self, location: str, view: LoadedView) -> TableFile:
        """Read a metadata file of a view's storage table."""
        if location not in self._tables:
            self._tables[location] = self._table_file(location, view)
        return self._tables[location]

    def _table_file(self, location: str, view: LoadedView) -> TableFile:
        what, layout = f"view {self.view}, storage table file", stored_layout(view)
        try:
            folders = self._folders(view, location)
            check_confined(location, folders, what=what)
            data = self.catalog.files.read(location, what=what)
            document = decode(data, source=f"{what} {location}")
            table = parse_table(data, source=f"{what} {location}")
            storage = layout.opened(view, location, table, folders, what=f"{what} {location}")
        except (InvalidMetadataError, NotFoundError) as error:
            return TableFile(location, why=_why(error, location), refused=_refused(error))
        return TableFile(location, document, storage)

    def _folders(self, view: LoadedView, location: str) -> tuple[str, ...]:
        beside = stored_layout(view).beside(view, location)
        return (*allowed_folders(self.catalog.properties, view.metadata_location), *beside)

    def table_row(self, view: LoadedView) -> Row | None:
        """Return the row of a storage table in a SQL catalog."""
        place = storage_place(view)
        row = self.catalog.row(place) if isinstance(place, Identifier) else None
        return row if row is not None and row.kind == TABLE else None

    def table_files(self, folder: str, view: LoadedView) -> list[TableFile]:
        """Read the newest :data:`MAX_EARLIER` complete metadata files of a storage table in a folder."""
        newest = sorted(self.files_in(folder), key=next_number, reverse=True)[:MAX_EARLIER]
        found = [self.table_file(location, view) for location in newest]
        uuid = view.metadata.properties.get(STORAGE_TABLE_UUID_PROPERTY)
        return [item for item in found if item.table is not None and uuid in (None, item.table.table_uuid)]

    def view_of_table(self) -> LoadedView | None:
        """Return a view without a row of its own; one that is a table from an earlier file, if its current one is lost.

        ``None``: the current file is lost, and no earlier one proves that the table is a view.

        Raises:
            ViewNotFoundError: There is no such view.
        """
        try:
            return self.catalog.load(self.view)
        except RefusedLocationError:
            raise
        except (InvalidMetadataError, MetadataFileNotFoundError):
            if self.catalog.row(self.view) is None:
                raise
            return earlier_table_view(self.catalog, self.view)
        except ViewNotFoundError:
            before = self._replaced_view()
            if before is None:
                raise
            return before

    def _replaced_view(self) -> LoadedView | None:
        """Return the view that the row named before, if it names the file of another table now.

        A table keeps its uuid for as long as it has its row.
        """
        row = self.catalog.row(self.view)
        if row is None or row.kind != TABLE or not row.previous:
            return None
        now, before = table_at(self.catalog, row.location), table_at(self.catalog, row.previous)
        if now is None or before is None or now.table_uuid == before.table_uuid:
            return None
        return view_in_table(self.view, row.previous, before)

    def served_table(self, view: LoadedView) -> TableFile:
        """Return the storage table as a REST server returns it."""
        storage = self.catalog.load_storage(view)
        return TableFile(storage.location, stored_table(self.catalog, view, storage), storage)


def earlier_table_view(catalog: MaterializedViewCatalog, view: Identifier) -> LoadedView | None:
    """Return a view that is a table from an earlier metadata file, if the table's current one cannot be read.

    This is the file that the row named before, or else the newest in the metadata folder. Each of them names the view.
    """
    row = catalog.row(view)
    if row is None or row.kind != TABLE:
        return None
    folder = row.location.rpartition("/")[0]
    listed = [file.location for file in catalog.files.list(folder) if file.location.endswith(METADATA_SUFFIXES)]
    newest = sorted(listed, key=next_number, reverse=True)[:MAX_EARLIER]
    for location in (*([row.previous] if row.previous else []), *newest):
        table = table_at(catalog, location)
        try:
            found = view_in_table(view, location, table) if table is not None else None
        except InvalidMetadataError:
            continue
        if found is not None:
            return found
    return None


def lost_view_properties(catalog: MaterializedViewCatalog, view: LoadedView) -> tuple[dict[str, str], str] | None:
    """Return the properties of a view that another program has removed or changed, and the earlier file that has them.

    It is the newest one with whose properties the view's storage table is found, and names the view.

    Args:
        view: The view as it was loaded.
    """
    if view.holder is not None or _has_storage(catalog, view):
        return None
    evidence, folder = Evidence(catalog, view.identifier, None), view.metadata_location.rpartition("/")[0]
    row = catalog.row(view.identifier)
    previous = row.previous if row else None  # others may be of a refresh that was never published
    newest = sorted(evidence.files_in(folder), key=next_number, reverse=True)[:MAX_EARLIER]
    # The settings change with each refresh in the layout ``pointed``: they are lost only if they no longer exist.
    naming = _NAMING if view.settings is None else _NAMING[1:]
    for location in dict.fromkeys((*([previous] if previous else ()), *newest)):
        before = evidence.view_file(location).view
        if before is None or before.settings is None or before.metadata.view_uuid != view.metadata.view_uuid:
            continue
        had = {key: before.metadata.properties[key] for key in naming if key in before.metadata.properties}
        lost = {key: text for key, text in had.items() if view.metadata.properties.get(key) != text}
        if lost and _has_storage(catalog, before):
            return lost, location
    return None


def _has_storage(catalog: MaterializedViewCatalog, view: LoadedView) -> bool:
    try:
        return view.settings is not None and catalog.load_storage(view) is not None
    except (InvalidMetadataError, NotFoundError):
        return False


def table_at(catalog: MaterializedViewCatalog, location: str) -> TableMetadata | None:
    """Return the metadata in a table's file, or ``None`` if the file is lost or truncated."""
    try:
        return catalog.files.read_table(location, what="table metadata file")
    except (InvalidMetadataError, MetadataFileNotFoundError):
        return None


def folder_of(catalog: MaterializedViewCatalog, view: Identifier) -> str:
    """Return the folder of a view's files, by the catalog's row."""
    row = catalog.row(view)
    location = row.location if row is not None else catalog.load(view).metadata_location
    return location.rpartition("/")[0].removesuffix("/metadata")


def _refused(error: Exception) -> RefusedLocationError | None:
    return error if isinstance(error, RefusedLocationError) else None


def _why(error: Exception, location: str) -> str:
    if isinstance(error, MetadataFileNotFoundError):
        return "it does not exist"
    text = str(error)
    # The finding already names the file.
    return text.rpartition(f"{location}: ")[2] or text


def require_materialized(view: LoadedView) -> None:
    """Refuse a plain view.

    Raises:
        NotMaterializedError: It is one.
    """
    if view.settings is None:
        raise NotMaterializedError(f"view {view.identifier} is a plain view: there is nothing here to repair")
