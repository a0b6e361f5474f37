# SPDX-License-Identifier: Apache-2.0
"""Find the files that a storage table needs: all that its retained snapshots reach."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestFile

from airflow_mv.core.catalog.avro import read_entries, read_manifests
from airflow_mv.core.catalog.catalog import MaterializedViewCatalog
from airflow_mv.core.catalog.files import parsed
from airflow_mv.core.catalog.layouts import LoadedStorage
from airflow_mv.core.catalog.locations import lies_in
from airflow_mv.core.spec.snapshots import without_snapshots
from airflow_mv.core.spec.stored import decode
from airflow_mv.core.spec.table import Snapshot
from airflow_mv.errors import ConfigurationError, InvalidMetadataError, MetadataFileNotFoundError

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
        manifests |= {manifest.manifest_path: manifest for manifest in _manifests(catalog, lists)}
    for name in ("statistics", "partition-statistics"):
        yield from (_text(item, "statistics-path", what) for item in _entries(document, name, what))
    for number, (location, manifest) in enumerate(manifests.items(), 1):
        yield location
        yield from _files_of(catalog, manifest)
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
        for manifest in _readable(lambda: _manifests(catalog, lists)):
            location = manifest.manifest_path
            if location not in seen and lies_in(location, folders):
                seen.add(location)
                yield location
                yield from _readable(lambda manifest=manifest: _files_of(catalog, manifest))  # type: ignore[misc]

    return files


def files_of_lists(catalog: MaterializedViewCatalog, lists: Iterable[str]) -> set[str]:
    """Return every file that manifest lists reach: themselves, their manifests and the files in these.

    Args:
        catalog: Its store has the files.
        lists: The manifest lists. Each manifest is read once.

    Raises:
        MetadataFileNotFoundError: One of them does not exist.
        InvalidMetadataError: One of them does not follow the format.
    """
    found = set(lists)
    manifests = {item.manifest_path: item for location in sorted(found) for item in _manifests(catalog, location)}
    found.update(manifests)
    for manifest in manifests.values():
        found.update(_files_of(catalog, manifest))
    return found


def _readable(read: Callable[[], list[Any]]) -> list[Any]:
    try:
        return read()
    except (MetadataFileNotFoundError, InvalidMetadataError, ConfigurationError) as error:
        log.info("Not followed: %s", error)
        return []


def _manifests(catalog: MaterializedViewCatalog, location: str) -> list[ManifestFile]:
    return _read(catalog, location, "manifest list", lambda io, at: read_manifests(io.new_input(at))[1])


def files_at(catalog: MaterializedViewCatalog, snapshot: Snapshot) -> Iterator[DataFile]:
    """Yield the data and delete files of one snapshot.

    Args:
        catalog: Its store has the files.

    Raises:
        MetadataFileNotFoundError: The manifest list or a manifest does not exist.
        InvalidMetadataError: One of them does not follow the format.
    """
    if snapshot.manifest_list is not None:
        for manifest in _manifests(catalog, snapshot.manifest_list):
            yield from _data_files(catalog, manifest)


def _files_of(catalog: MaterializedViewCatalog, manifest: ManifestFile) -> list[str]:
    return [file.file_path for file in _data_files(catalog, manifest)]


def _data_files(catalog: MaterializedViewCatalog, manifest: ManifestFile) -> list[DataFile]:
    location = manifest.manifest_path
    entries = _read(catalog, location, "manifest", lambda io, _: read_entries(manifest, io))
    added, existing = manifest.added_files_count, manifest.existing_files_count
    if added is not None and existing is not None and added + existing != len(entries):
        # A file that was truncated between two blocks reads like a complete one.
        wanted = added + existing
        raise InvalidMetadataError(
            f"manifest: {location} has {len(entries)} entries, but its manifest list counts {wanted}"
        )
    return [entry.data_file for entry in entries]


def _read(
    catalog: MaterializedViewCatalog, location: str, what: str, read: Callable[[FileIO, str], Iterable[Any]]
) -> list[Any]:
    io = catalog.files.io(location, what=what)
    with parsed(location, what):
        return list(read(io, location))


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
