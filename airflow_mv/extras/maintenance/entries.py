# SPDX-License-Identifier: Apache-2.0
"""Find the folders in which the other tables and views of a catalog have files or write new ones."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, NoSuchViewError

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.catalog.answers import answered
from airflow_mv.core.catalog.files import MetadataFiles
from airflow_mv.core.catalog.locations import PLACES
from airflow_mv.core.catalog.rest import RestViews, TableProperties, namespaces_of
from airflow_mv.core.catalog.tables import read_part
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.errors import (
    CatalogUnavailableError,
    ConfigurationError,
    InvalidMetadataError,
    MetadataFileNotFoundError,
    StoreUnavailableError,
    UnsupportedError,
)
from airflow_mv.extras.maintenance.matcher import lies_elsewhere

log = logging.getLogger(__name__)

_READERS = 8
#: Errors for a table or view that the caller may not read, or that the server cannot return. If the server does not
#: respond at all, the view cannot be loaded once more, and nothing is deleted.
_UNKNOWN = (CatalogUnavailableError, ConfigurationError, UnsupportedError)
#: Fewer files than this are read sequentially.
_FEW = 16


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A table or view of a catalog, and where its files are.

    Args:
        places: The folders in which it has files or writes new ones.
        uuid: Its uuid; ``None`` where its metadata could not be read.
        is_table: Whether it is a table.
        write_paths: Those of the places that only its properties name.
    """

    name: str
    metadata_location: str
    places: tuple[str, ...]
    uuid: str | None
    is_table: bool = True
    write_paths: frozenset[str] = frozenset()


class MetadataPlaces(TableProperties, rename="kebab", kw_only=True):
    """The locations in a metadata file of a table or view."""

    location: str
    table_uuid: str | None = None
    view_uuid: str | None = None

    @property
    def folders(self) -> tuple[str, ...]:
        """The folder of the table or view, and those that its properties name for new files."""
        return (self.location, *self.write_paths)

    @property
    def write_paths(self) -> tuple[str, ...]:
        """The folders that its properties name for new files."""
        return tuple(str(self.properties[key]) for key in sorted(PLACES & self.properties.keys()))


def other_entries(
    catalog: MaterializedViewCatalog, own: frozenset[str], folders: Sequence[str]
) -> tuple[CatalogEntry, ...]:
    """Return the other tables and views of a catalog, and where their files are.

    For a SQL catalog these are all in its database, of any catalog name; for another one those that it lists.

    Args:
        own: Names to leave out, each with its parts joined by dots.
        folders: The folders in which something is to be deleted, see :func:`from_files`.

    Raises:
        StoreUnavailableError: A store of these folders did not respond.
    """
    if catalog.rest is not None:
        return tuple(from_server(catalog.iceberg, catalog.rest, own))
    rows = catalog.entries.locations() if catalog.entries is not None else ()
    return tuple(from_files(catalog.files, [row for row in rows if row[0] not in own], folders))


def from_files(files: MetadataFiles, rows: Iterable[tuple[str, str]], folders: Iterable[str]) -> list[CatalogEntry]:
    """Read the metadata files of tables and views.

    Args:
        files: Their stores.
        folders: The folders in which something is to be deleted. Of a table that certainly lies in another store, which
            does not respond, only the folder is known.

    Raises:
        StoreUnavailableError: A store of these folders did not respond.
    """
    wanted, deleting = list(rows), tuple(folders)
    if len(wanted) < _FEW:
        return [_from_file(files, deleting, *row) for row in wanted]
    with ThreadPoolExecutor(_READERS) as readers:
        return list(readers.map(lambda row: _from_file(files, deleting, *row), wanted))


def _from_file(files: MetadataFiles, folders: tuple[str, ...], name: str, location: str) -> CatalogEntry:
    own = _folder(location)
    try:
        found = read_part(files, location, MetadataPlaces, what=f"{name}, metadata file")
    except StoreUnavailableError as error:
        if not all(lies_elsewhere(location, folder) for folder in folders):
            raise StoreUnavailableError(
                f"{error}. It may have files in a folder of the view. Nothing was deleted", location
            ) from None
        log.warning(
            "Could not read the metadata of %s, which is in another store; only its folder is known: %s", name, error
        )
        return CatalogEntry(name, location, (own,), None)
    except (MetadataFileNotFoundError, InvalidMetadataError, ConfigurationError) as error:
        # Its other places are unknown. Deletion additionally needs proof that a file is the view's own.
        log.warning("Could not read the metadata of %s; only its folder is known: %s", name, error)
        return CatalogEntry(name, location, (own,), None)
    uuid = found.table_uuid or found.view_uuid
    paths = frozenset(found.write_paths) - {own, found.location}
    return CatalogEntry(
        name, location, tuple(dict.fromkeys((own, *found.folders))), uuid, found.view_uuid is None, paths
    )


def _folder(metadata_location: str) -> str:
    """Return the folder of a table or view from its metadata file's location: the parent of ``metadata``."""
    return metadata_location.rpartition("/")[0].removesuffix("/metadata")


def from_server(catalog: Catalog, views: RestViews, own: frozenset[str]) -> Iterator[CatalogEntry]:
    """Yield the tables and views that a REST server lists; it may hide some.

    Args:
        catalog: pyiceberg's catalog.
        own: Names that are left out.
    """
    with answered(catalog.name, "listing tables"):
        spaces = list(namespaces_of(catalog))
    for space in spaces:
        yield from _tables(catalog, space, own)
    for space, name in views.names(None) if views.supported else ():
        if _dotted(space, name, catalog.name) not in own:
            yield from _view(views, Identifier(catalog.name, space, name))


def _view(views: RestViews, identifier: Identifier) -> Iterator[CatalogEntry]:
    try:
        view = views.load(identifier)
    except (InvalidMetadataError, *_UNKNOWN) as error:
        log.warning("Could not read the locations of %s: %s", identifier, error)
        return
    if view is not None:
        places = (_folder(view.metadata_location), view.metadata.location, view.metadata.metadata_folder)
        yield CatalogEntry(str(identifier), view.metadata_location, places, view.metadata.view_uuid, is_table=False)


def _dotted(space: tuple[str, ...], name: str, catalog: str) -> str:
    """Return a name as the catalog's rows store it: its parts joined by dots."""
    return ".".join((catalog, *space, name))


def _tables(catalog: Catalog, space: tuple[str, ...], own: frozenset[str]) -> Iterator[CatalogEntry]:
    try:
        with answered(catalog.name, "listing tables"):
            listed = catalog.list_tables(space)
    except NoSuchNamespaceError:
        return
    for *parts, name in listed:
        full = _dotted(tuple(parts), name, catalog.name)
        if full in own:
            continue
        try:
            with answered(catalog.name, f"loading table {full}"):
                table = catalog.load_table((*parts, name))
        except (NoSuchTableError, NoSuchViewError):
            continue
        except (ValueError, *_UNKNOWN) as error:  # pyiceberg's error for an answer that it cannot read
            log.warning("Could not read the locations of %s: %s", full, error)
            continue
        found = MetadataPlaces(location=table.location(), properties=dict(table.properties))
        folder, uuid = _folder(table.metadata_location), str(table.metadata.table_uuid)
        paths = frozenset(found.write_paths) - {folder, found.location}
        places = tuple(dict.fromkeys((folder, *found.folders)))
        yield CatalogEntry(full, table.metadata_location, places, uuid, write_paths=paths)
