# SPDX-License-Identifier: Apache-2.0
"""Restrict the folders of a view's files. Metadata files are untrusted input, but are read with this process's rights.

A view names its storage table by a path. A user who can write a view could name any file of any store that this
process can reach, and have it read, or have new files written beside it. The path must therefore be below a folder
that the catalog's owner has chosen: the warehouse, the folder of the view's own pointer, or one in the catalog
property ``airflow-mv.allowed-locations``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.io import FileIO
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import StaticTable, Table, TableProperties
from pyiceberg.table.metadata import TableMetadata as PyIcebergTable

from airflow_mv.catalog.files import GuardedIO, MetadataFiles, check_location
from airflow_mv.catalog.limits import STORE_LIMITS, store_timeout
from airflow_mv.catalog.places import check_regular, exact_form, lies_in
from airflow_mv.catalog.pyiceberg_compat import LoadFileIO, on_loaded_tables, wrap_file_io
from airflow_mv.catalog.store_deadlines import within
from airflow_mv.catalog.stores import on_disk
from airflow_mv.catalog.vended import Vended, VendedCredentials, without_classes
from airflow_mv.errors import InvalidMetadataError, RefusedLocationError
from airflow_mv.spec.table import TableMetadata

Result = TypeVar("Result")

#: Catalog property: more folders, separated by commas.
ALLOWED = "airflow-mv.allowed-locations"
#: Table properties that set where Iceberg writes files, in all versions of the format.
PLACES = {"write.data.path", "write.metadata.path", "write.folder-storage.path", "write.object-storage.path"}


def allowed_folders(properties: Mapping[str, str], metadata_location: str) -> tuple[str, ...]:
    """Return the folders that may contain a view's files.

    Args:
        properties: The catalog's properties.
        metadata_location: The view's pointer, from the catalog.
    """
    listed = properties.get(ALLOWED, "").split(",")
    own = metadata_location.rpartition("/")[0].removesuffix("/metadata")
    folders = (properties.get("warehouse", ""), own, *(folder.strip() for folder in listed))
    return tuple(dict.fromkeys(folder for folder in folders if _is_folder(folder)))


def beside_first(first: str, pointer: str) -> tuple[str, ...]:
    """Return the folder of a table if its catalog chose it and the table was not moved since.

    Args:
        first: The table's first metadata file, as recorded in the view.
        pointer: The metadata file that the catalog names now.
    """
    folders = [location.rpartition("/")[0].removesuffix("/metadata") for location in (first, pointer)]
    same = all(map(_is_folder, folders)) and exact_form(folders[0]) == exact_form(folders[1])
    return (folders[1],) if same else ()


def check_confined(location: str, folders: Iterable[str], *, what: str) -> None:
    """Refuse a location that is in none of the folders. Links are followed.

    Args:
        location: A file or folder.
        folders: From :func:`allowed_folders`.
        what: Names the view and the role of the location, for the message.

    Raises:
        RefusedLocationError: It is outside of all of them.
        InvalidMetadataError: It is not a location.
    """
    check_location(location, what=what)
    allowed = tuple(folders)
    if not lies_in(location, allowed):
        raise RefusedLocationError(
            f"{what}: {location!r} lies outside of this catalog's folders ({', '.join(allowed) or 'none'}). If it "
            f"may be read, list its folder in the catalog property {ALLOWED!r}"
        )


def check_places(table: TableMetadata, folders: Iterable[str], *, what: str) -> None:
    """Refuse a storage table whose files would be written outside of the folders.

    Args:
        table: The table. Its properties may name other folders than its location for new files.
        folders: From :func:`allowed_folders`.
        what: Names the view and the table, for the message.

    Raises:
        RefusedLocationError: One of its places is outside of all of them.
        InvalidMetadataError: One of them is not a location.
    """
    places = {"field 'location'": table.location}
    places |= {f"property {key!r}": table.properties[key] for key in PLACES & table.properties.keys()}
    for name, place in places.items():
        check_confined(place, folders, what=f"{what}, {name}")
        check_regular(place, what=f"{what}, {name}")


def check_own_file(location: str, own: str, folders: Iterable[str], *, what: str) -> None:
    """Refuse a metadata file that is in the view's folder, but belongs elsewhere by its content.

    It is a copy of another view's or table's file, and using it would read or write the other one.

    Args:
        location: The file.
        own: The folder that is known to be the view's.
        folders: The folders for metadata files in its content.
        what: Names the view and the role of the file, for the message.

    Raises:
        InvalidMetadataError: It is such a copy.
    """
    wanted = tuple(folders)
    if lies_in(location, (own,)) and not lies_in(location, wanted):
        raise InvalidMetadataError(
            f"{what}: {location} is the metadata file of another view or table: its content belongs in {wanted[0]}"
        )


def metadata_folders(table: TableMetadata) -> tuple[str, ...]:
    """Return the folders that a table's metadata files are written to."""
    own = (f"{table.location.rstrip('/')}/metadata", table.properties.get("write.metadata.path", ""))
    return tuple(folder for folder in own if folder)


def _is_folder(location: str) -> bool:
    """Whether this is a folder of a store. A REST catalog's warehouse may be just a name."""
    try:
        check_location(location, what="folder")
    except InvalidMetadataError:
        return False
    parts = urlsplit(location)
    # The root of a machine's disk is not allowed: every file is below it.
    return bool(parts.path.strip("/")) or (bool(parts.netloc) and parts.scheme != "file")


def restrain(catalog: Catalog) -> None:
    """Make a catalog's tables open their files with the catalog's properties only, and with deadlines.

    A REST server's answer mixes the table's properties with the server's own (credentials for this table), so for REST
    only properties that name a class are removed.
    """
    mixed, seconds = isinstance(catalog, RestCatalog), store_timeout(catalog.properties)
    missing = {key: value for key, value in STORE_LIMITS.items() if key not in catalog.properties}

    def restrained(inner: LoadFileIO) -> LoadFileIO:
        def load(properties: Mapping[str, str], location: str | None) -> FileIO:
            io = inner({**missing, **(without_classes(properties) if mixed else {})}, location)
            if location is not None and on_disk(location):
                return io

            def with_io(location: str, what: str, act: Callable[[FileIO], Result]) -> Result:  # noqa: ARG001
                return within(location, seconds, lambda: act(io))

            return GuardedIO(with_io, seconds, io.properties)

        return load

    wrap_file_io(catalog, restrained)


def note_tables(catalog: RestCatalog, vended: VendedCredentials) -> None:
    """Keep the credentials that a REST server vends with each table that is loaded or created from now on.

    Args:
        catalog: The catalog.
        vended: Where they are kept.
    """

    def seen(
        name: tuple[str, ...],
        table: PyIcebergTable,
        config: Mapping[str, str],
        prefixes: Mapping[str, Mapping[str, str]],
    ) -> None:
        what = f"table {'.'.join((catalog.name, *name))}"
        places = (table.properties[key] for key in PLACES & table.properties.keys())
        vended.note(Vended(what, config, prefixes, partial(catalog.load_table, name)), (table.location, *places))

    on_loaded_tables(catalog, seen)


def require_no_writer(table: Table, name: object) -> None:
    """Refuse to change a table whose properties name a class: pyiceberg would load it to locate the metadata file.

    Raises:
        InvalidMetadataError: There is such a property.
    """
    key = TableProperties.WRITE_PY_LOCATION_PROVIDER_IMPL
    if key in table.properties and not isinstance(table.catalog, RestCatalog):
        raise InvalidMetadataError(
            f"table {name}: its property {key!r} names a class, and no class that a table names is loaded. Remove it"
        )


def static_table(files: MetadataFiles, location: str, *, what: str) -> StaticTable:
    """Return the table of a metadata file, for pyiceberg to read.

    Args:
        files: The store.
        location: The metadata file.
        what: Names the file's role, for messages.

    Raises:
        InvalidMetadataError: The location is not valid.
    """
    io = files.io(location, what=what)
    metadata = FromInputFile.table_metadata(io.new_input(location))
    return StaticTable(("static-table", location), metadata, location, io, NoopCatalog("static-table"))
