# SPDX-License-Identifier: Apache-2.0
"""Find the files that a storage table needs: all that its retained snapshots reach."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from pyiceberg.manifest import ManifestFile

from airflow_mv.common.manifests import files_of, manifests_at
from airflow_mv.core.catalog.catalog import MaterializedViewCatalog
from airflow_mv.core.catalog.layouts import LoadedStorage
from airflow_mv.core.catalog.locations import lies_in
from airflow_mv.core.spec.stored import decode
from airflow_mv.core.spec.table_metadata import Snapshot
from airflow_mv.errors import ConfigurationError, InvalidMetadataError, MetadataFileNotFoundError
from airflow_mv.extras.maintenance.expire import without_snapshots

log = logging.getLogger(__name__)

_REPORT_EACH = 100

#: Lists every file that the snapshots of a storage table reach: manifest lists, manifests, data, delete and
#: statistics files. Not the metadata files themselves. Raises a typed error where one cannot be read.
FilesOf = Callable[[MaterializedViewCatalog, LoadedStorage], Iterable[str]]

#: Lists the files that one snapshot reaches, as far as they can be read, for one catalog and the folders to stay in.
PastFilesOf = Callable[[MaterializedViewCatalog, tuple[str, ...]], Callable[[Snapshot], Iterable[str]]]


def snapshot_files(
    catalog: MaterializedViewCatalog,
    storage: LoadedStorage,
    *,
    without: Collection[int] = (),
    report: Callable[[str], None] = log.info,
) -> Iterator[str]:
    """Yield every file that the retained snapshots of a storage table reach; some more than once.

    Args:
        storage: One state of the storage table.
        without: Ids of snapshots to leave out.
        report: Called with the progress.

    Raises:
        MetadataFileNotFoundError: A manifest list or a manifest does not exist.
        InvalidMetadataError: One of them does not follow the format.
    """
    what = f"storage table file {storage.location}"
    document = decode(catalog.files.read(storage.location, what="storage table file"), source=what)
    if without:
        document = without_snapshots(document, without)
    manifests: dict[str, ManifestFile] = {}
    for snapshot in _entries(document, "snapshots", what):
        lists = _text(snapshot, "manifest-list", what)
        yield lists
        manifests |= {manifest.manifest_path: manifest for manifest in manifests_at(catalog.files, lists)}
    for name in ("statistics", "partition-statistics"):
        yield from (_text(item, "statistics-path", what) for item in _entries(document, name, what))
    for number, (location, manifest) in enumerate(manifests.items(), 1):
        yield location
        yield from files_of(catalog.files, manifest)
        if number % _REPORT_EACH == 0 or number == len(manifests):
            report(f"{number} of {len(manifests)} manifests read")


def past_files(catalog: MaterializedViewCatalog, folders: tuple[str, ...]) -> Callable[[Snapshot], Iterator[str]]:
    """Return a function that lists the files of snapshots that may be incomplete: expired or never published ones.

    Files that cannot be read or are outside of the folders are left out. Each manifest is read once.

    Args:
        folders: Only files in these folders are read.

    Raises:
        CatalogUnavailableError: The store did not respond.
    """
    seen: set[str] = set()

    def files(snapshot: Snapshot) -> Iterator[str]:
        lists = snapshot.manifest_list
        if lists is None or lists in seen or not lies_in(lists, folders):
            return
        seen.add(lists)
        yield lists
        for manifest in _readable(lambda: manifests_at(catalog.files, lists)):
            location = manifest.manifest_path
            if location not in seen and lies_in(location, folders):
                seen.add(location)
                yield location
                yield from _readable(lambda manifest=manifest: files_of(catalog.files, manifest))  # type: ignore[misc]

    return files


def _readable(read: Callable[[], list[Any]]) -> list[Any]:
    try:
        return read()
    except (MetadataFileNotFoundError, InvalidMetadataError, ConfigurationError) as error:
        log.info("Could not read a file, so the files that it lists are unknown: %s", error)
        return []


def _entries(document: dict[str, Any], name: str, source: str) -> list[dict[str, Any]]:
    found = document.get(name) or []
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise InvalidMetadataError(f"{source}: field {name!r}: expected a list of objects")
    return found


def _text(item: dict[str, Any], name: str, source: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidMetadataError(f"{source}: field {name!r} of snapshot {item.get('snapshot-id')} is missing")
    return value
