# SPDX-License-Identifier: Apache-2.0
"""pyiceberg's tables, without what their own properties would choose.

pyiceberg lets a table's properties override the catalog's where files are reached: classes to import, endpoints,
signers. They are data from strangers; the catalog's owner chooses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.io import FileIO
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import StaticTable, Table, TableProperties

from airflow_mv.catalog.files import MetadataFiles
from airflow_mv.catalog.waits import STORE_LIMITS
from airflow_mv.errors import InvalidMetadataError

_NAMES_A_CLASS = re.compile(r"(?i)(^|[.-])impl$|(^|\.)auth$|provider$|\.factory$|io-impl")


def restrain(catalog: Catalog) -> None:
    """Have a catalog's tables reach their files as the catalog does.

    A REST server's answer mixes the table's properties with the server's own (credentials for this table), so there
    only those that name a class are left out.
    """
    inner, mixed = catalog._load_file_io, isinstance(catalog, RestCatalog)
    missing = {key: value for key, value in STORE_LIMITS.items() if key not in catalog.properties}

    def load(properties: Mapping[str, str] | None = None, location: str | None = None) -> FileIO:
        given = properties or {}
        kept = {key: value for key, value in given.items() if mixed and not _NAMES_A_CLASS.search(key)}
        return inner({**missing, **kept}, location)

    catalog._load_file_io = load  # type: ignore[method-assign]


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
