# SPDX-License-Identifier: Apache-2.0
"""Where a view's files may lie. A metadata file is data from strangers, and is read with this process's rights.

A view names its storage table by a path. Whoever may write a view could name any file of any store that this
process can reach, and have it read, or have new files written beside it. So the path must lie below a folder that
the catalog's owner has chosen: the warehouse, the folder that the view's own pointer leads to, or one that the
catalog property ``airflow-mv.allowed-locations`` lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.io import FileIO
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import StaticTable, Table, TableProperties

from airflow_mv.catalog.files import MetadataFiles, check_location
from airflow_mv.catalog.limits import STORE_LIMITS
from airflow_mv.catalog.places import check_regular, exact_form, lies_in
from airflow_mv.catalog.pyiceberg_compat import LoadFileIO, wrap_file_io
from airflow_mv.errors import InvalidMetadataError
from airflow_mv.spec.table import TableMetadata

#: Catalog property: more folders, separated by commas.
ALLOWED = "airflow-mv.allowed-locations"
#: Table properties by which Iceberg's writers go, in all versions of the format.
PLACES = {"write.data.path", "write.metadata.path", "write.folder-storage.path", "write.object-storage.path"}


def allowed_folders(properties: Mapping[str, str], metadata_location: str) -> tuple[str, ...]:
    """Return the folders that a view's files may lie in.

    Args:
        properties: The catalog's properties.
        metadata_location: The view's pointer, from the catalog.
    """
    listed = properties.get(ALLOWED, "").split(",")
    own = metadata_location.rpartition("/")[0].removesuffix("/metadata")
    folders = (properties.get("warehouse", ""), own, *(folder.strip() for folder in listed))
    return tuple(dict.fromkeys(folder for folder in folders if _is_folder(folder)))


def beside_first(first: str, pointer: str) -> tuple[str, ...]:
    """Return the folder of a table whose catalog chose it, and has not let it be moved since; else nothing.

    Args:
        first: The table's first metadata file, as the view tells it.
        pointer: The one that the catalog names now.
    """
    folders = [location.rpartition("/")[0].removesuffix("/metadata") for location in (first, pointer)]
    same = all(map(_is_folder, folders)) and exact_form(folders[0]) == exact_form(folders[1])
    return (folders[1],) if same else ()


def check_confined(location: str, folders: Iterable[str], *, what: str) -> None:
    """Refuse a location that is in none of the folders, links followed.

    Args:
        location: A file or folder.
        folders: From :func:`allowed_folders`.
        what: Names the view and the role of the location, for the message.

    Raises:
        InvalidMetadataError: It is outside of all of them, or no location.
    """
    check_location(location, what=what)
    allowed = tuple(folders)
    if not lies_in(location, allowed):
        raise InvalidMetadataError(
            f"{what}: {location!r} lies outside of this catalog's folders ({', '.join(allowed) or 'none'}). If it "
            f"belongs to the view, list its folder in the catalog property {ALLOWED!r}"
        )


def check_places(table: TableMetadata, folders: Iterable[str], *, what: str) -> None:
    """Refuse a storage table that would have files written to a place in none of the folders.

    Args:
        table: The table. Its properties may send new files elsewhere than its location.
        folders: From :func:`allowed_folders`.
        what: Names the view and the table, for the message.

    Raises:
        InvalidMetadataError: One of its places is outside of all of them, or no location.
    """
    places = {"field 'location'": table.location}
    places |= {f"property {key!r}": table.properties[key] for key in PLACES & table.properties.keys()}
    for name, place in places.items():
        check_confined(place, folders, what=f"{what}, {name}")
        check_regular(place, what=f"{what}, {name}")


def check_own_file(location: str, own: str, folders: Iterable[str], *, what: str) -> None:
    """Refuse a metadata file that lies in a folder of the view, and says that it belongs elsewhere.

    It is a copy of another view's or table's file: whoever went by it would read, or write, the other one.

    Args:
        location: The file.
        own: The folder that is known to be the view's.
        folders: The folders that its content names for its metadata files.
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
    """Whether this is a folder of a store: a REST catalog's warehouse may be a mere name."""
    try:
        check_location(location, what="folder")
    except InvalidMetadataError:
        return False
    parts = urlsplit(location)
    # The root of a machine's disk is no choice: all would be below it.
    return bool(parts.path.strip("/")) or (bool(parts.netloc) and parts.scheme != "file")


_NAMES_A_CLASS = re.compile(r"(?i)(^|[.-])impl$|(^|\.)auth$|provider$|\.factory$|io-impl")


def restrain(catalog: Catalog) -> None:
    """Have a catalog's tables reach their files as the catalog does.

    A REST server's answer mixes the table's properties with the server's own (credentials for this table), so there
    only those that name a class are left out.
    """
    mixed = isinstance(catalog, RestCatalog)
    missing = {key: value for key, value in STORE_LIMITS.items() if key not in catalog.properties}

    def restrained(inner: LoadFileIO) -> LoadFileIO:
        def load(properties: Mapping[str, str], location: str | None) -> FileIO:
            kept = {key: value for key, value in properties.items() if mixed and not _NAMES_A_CLASS.search(key)}
            return inner({**missing, **kept}, location)

        return load

    wrap_file_io(catalog, restrained)


def require_no_writer(table: Table, name: object) -> None:
    """Refuse to change a table whose properties name a class: pyiceberg would ask it where the metadata file goes.

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
        what: For messages.

    Raises:
        InvalidMetadataError: The location is none.
    """
    io = files.io(location, what=what)
    metadata = FromInputFile.table_metadata(io.new_input(location))
    return StaticTable(("static-table", location), metadata, location, io, NoopCatalog("static-table"))
