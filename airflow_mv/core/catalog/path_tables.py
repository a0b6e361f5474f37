# SPDX-License-Identifier: Apache-2.0
"""Find and read base tables that are named by path and are in no catalog.

The extra that has the name of a table's format finds its current state, and reads its metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module

from airflow_mv.core.catalog.files import MetadataFiles
from airflow_mv.core.catalog.loaded import Located
from airflow_mv.core.catalog.locations import allowed_folders, check_confined, check_regular
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.table_metadata import TableMetadata
from airflow_mv.errors import UnsupportedError


def locate_path(files: MetadataFiles, properties: Mapping[str, str], identifier: Identifier) -> Located | None:
    """Locate a table that is named by path.

    Args:
        properties: The properties of the catalog whose access to stores is used, with its allowed folders.

    Returns:
        ``None`` if there is no table in the folder.

    Raises:
        InvalidMetadataError: The path is not allowed, or there is not one current metadata file.
    """
    check_path(properties, identifier, what=f"base table {identifier}")
    return _format_of(identifier).locate(files, properties, identifier)


def read_path(
    files: MetadataFiles, properties: Mapping[str, str], identifier: Identifier, pointer: str
) -> TableMetadata:
    """Return the metadata of a table that is named by path, at a pointer that was located before.

    Args:
        properties: As in :func:`locate_path`.

    Raises:
        InvalidMetadataError: The path is not allowed, or the table cannot be read.
        MetadataFileNotFoundError: The table no longer has such a state.
    """
    check_path(properties, identifier, what=f"base table {identifier}")
    return _format_of(identifier).read(files, properties, identifier, pointer)


def check_path(properties: Mapping[str, str], identifier: Identifier, *, what: str) -> None:
    """Refuse a table that is named by a path outside of the allowed folders.

    Args:
        properties: The properties of the catalog whose access to stores is used.

    Raises:
        InvalidMetadataError: The path is not allowed, or not a location.
    """
    path, what = (identifier.path or "").rstrip("/"), f"{what}, path"
    check_confined(path, allowed_folders(properties, ""), what=what)
    check_regular(path, what=what)


@dataclass(frozen=True, slots=True)
class TableFormat:
    """Reads tables of one format that are named by path.

    Args:
        locate: Returns the current pointer, or ``None`` if there is no table.
        read: Returns the metadata at a pointer.
    """

    locate: Callable[[MetadataFiles, Mapping[str, str], Identifier], Located | None]
    read: Callable[[MetadataFiles, Mapping[str, str], Identifier, str], TableMetadata]


def _format_of(identifier: Identifier) -> TableFormat:
    """Return what reads a table: the module ``tables`` of the extra that has the name of its format.

    Raises:
        UnsupportedError: There is no such extra.
    """
    name = identifier.kind.data_source
    try:
        tables = import_module(f"airflow_mv.extras.{name}.tables")
    except ModuleNotFoundError:
        raise UnsupportedError(f"base table {identifier}: this installation cannot read {name} tables") from None
    return TableFormat(tables.locate, tables.read)
