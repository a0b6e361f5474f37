# SPDX-License-Identifier: Apache-2.0
"""Find and read Iceberg tables that are in no catalog, and are named by path: ``iceberg.`/path/to/table```.

Iceberg's ``HadoopTableOperations`` names metadata files ``v<number>.metadata.json`` and writes the newest number to
``version-hint.text``. Catalogs name them ``<number>-<uuid>.metadata.json``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from airflow_mv.core.catalog.files import MetadataFiles
from airflow_mv.core.catalog.loaded import Located
from airflow_mv.core.catalog.locations import allowed_folders, check_confined, join
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.table_metadata import TableMetadata
from airflow_mv.errors import InvalidMetadataError

_HINT = "version-hint.text"
_FILE = re.compile(r"v?(?P<number>[0-9]{1,18})(?:-[^/]*)?(?:\.gz)?\.metadata\.json(?:\.gz)?")
_NUMBER = re.compile(r"[0-9]{1,18}")
_SUFFIXES = (".metadata.json", ".gz.metadata.json", ".metadata.json.gz")
#: The hint may be behind by the commits of writers that died before they wrote it.
_MAX_VERSIONS_AHEAD = 1000


def locate(files: MetadataFiles, properties: Mapping[str, str], identifier: Identifier) -> Located | None:
    """Locate a table; ``None`` if there is none in the folder.

    Args:
        properties: The properties of the catalog whose access to stores is used, with its allowed folders.

    Raises:
        InvalidMetadataError: There is not one current metadata file.
    """
    location = _hinted(files, identifier) or _highest(files, identifier)
    if location is None:
        return None
    table = read(files, properties, identifier, location)
    return Located("table", location, table, place=location)


def read(files: MetadataFiles, properties: Mapping[str, str], identifier: Identifier, location: str) -> TableMetadata:
    """Read a metadata file of a table.

    Args:
        properties: As in :func:`locate`.
    """
    what = f"base table {identifier}, metadata file"
    table = files.read_table(location, what=what)
    check_confined(table.location, allowed_folders(properties, ""), what=f"{what} {location}, field 'location'")
    return table


def _folder(identifier: Identifier) -> str:
    """Return the folder of the metadata files, as a URI: pyiceberg and Spark must read it alike."""
    path = (identifier.path or "").rstrip("/")
    return join(path if urlsplit(path).scheme else f"file://{path}", "metadata")


def _hinted(files: MetadataFiles, identifier: Identifier) -> str | None:
    """Return the metadata file that the hint names, or a later one; ``None`` if there is no hint or no such file."""
    folder = _folder(identifier)
    text = files.read_text(join(folder, _HINT))
    hint = (text or "").strip()
    if not _NUMBER.fullmatch(hint):
        name = f"{hint.removesuffix('.metadata.json')}.metadata.json"
        return join(folder, name) if _FILE.fullmatch(name) and _exists(files, join(folder, name), identifier) else None
    found, version = _of_version(files, identifier, int(hint)), int(hint)
    if found is None:
        return None
    for later in range(version + 1, version + _MAX_VERSIONS_AHEAD):
        following = _of_version(files, identifier, later)
        if following is None:
            break
        found = following
    return found


def _of_version(files: MetadataFiles, identifier: Identifier, version: int) -> str | None:
    candidates = (join(_folder(identifier), f"v{version}{suffix}") for suffix in _SUFFIXES)
    return next((location for location in candidates if _exists(files, location, identifier)), None)


def _exists(files: MetadataFiles, location: str, identifier: Identifier) -> bool:
    return files.exists(location, what=f"base table {identifier}, metadata file")


def _highest(files: MetadataFiles, identifier: Identifier) -> str | None:
    """Return the metadata file with the highest number.

    Raises:
        InvalidMetadataError: Several have it: one of them may be of a commit that failed.
    """
    numbered: dict[int, list[str]] = {}
    folder = _folder(identifier)
    for file in files.list(folder):
        parent, _, name = file.location.rpartition("/")
        match = _FILE.fullmatch(name)
        if match and parent == folder:
            numbered.setdefault(int(match["number"]), []).append(file.location)
    if not numbered:
        return None
    newest = sorted(numbered[max(numbered)])
    if len(newest) > 1:
        raise InvalidMetadataError(
            f"base table {identifier}: {len(newest)} metadata files have the highest number, {max(numbered)}, and one "
            f"may be of a commit that failed: {', '.join(item.rpartition('/')[2] for item in newest[:3])}. Name the "
            f"table by its catalog, or write the right name to {folder}/{_HINT}"
        )
    return newest[0]
