# SPDX-License-Identifier: Apache-2.0
"""Flush files to disk before a pointer names them.

After a power failure a local file system may have lost a file that was written but not flushed, while the database
that names it has kept its commit. The file and its folders are therefore flushed first. An object store keeps what it
has confirmed and needs no flush.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table.metadata import TableMetadata as IcebergMetadata

from airflow_mv.catalog.avro import read_entries, read_manifests
from airflow_mv.catalog.places import lies_in
from airflow_mv.catalog.pyiceberg_compat import WriteMetadata, wrap_metadata_writer
from airflow_mv.catalog.stores import is_local

log = logging.getLogger(__name__)


def first_folder(location: str) -> Path | None:
    """Return the nearest existing folder of a new local file; ``None`` for other stores."""
    if not is_local(location):
        return None
    return next((folder for folder in local_path(location).parents if folder.is_dir()), None)


def flush(location: str, up_to: Path | None = None) -> None:
    """Flush a local file and its folder. Nothing is done for other stores.

    Args:
        location: The file.
        up_to: A folder above it. The folders up to this one are new, and are flushed too.
    """
    if not is_local(location):
        return
    path = local_path(location)
    _fsync(path)
    for folder in path.parents:
        with suppress(PermissionError):  # a folder that can be entered but not read
            _fsync(folder)
        if up_to is None or folder == up_to or up_to not in folder.parents:
            return


def local_path(location: str) -> Path:
    """Return the path of a local file."""
    return Path(urlsplit(location).path)


def _fsync(path: Path) -> None:
    """Flush a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_snapshots(io: FileIO, manifest_lists: Mapping[int, str], folders: tuple[str, ...]) -> None:
    """Flush the local files that snapshots have added: manifest lists, manifests, data and delete files.

    Args:
        io: Reads the manifests.
        manifest_lists: The manifest lists of the snapshots to be published, by snapshot id; all are local files.
        folders: The folders that may contain the view's files. Nothing outside of them is opened.
    """
    try:
        found = set(_added(io, manifest_lists, folders))
        for location in found:
            _fsync(local_path(location))
    except Exception as error:  # noqa: BLE001 (a manifest that only Spark reads must not stop the publication)
        log.warning(
            "The files of snapshots %s cannot be flushed one by one (%s): flushing all", list(manifest_lists), error
        )
        os.sync()
        return
    for folder in _above((local_path(location) for location in found), folders):
        _fsync(folder)


def _above(paths: Iterable[Path], folders: tuple[str, ...]) -> set[Path]:
    """Return the folders that lead to files, up to the folders that may contain them: each may be a new one."""
    tops = {local_path(folder) for folder in folders if is_local(folder)}
    return {above for path in paths for above in path.parents if not tops.isdisjoint((above, *above.parents))}


def flush_table_commits(catalog: Catalog) -> None:
    """Make pyiceberg flush the metadata file of a commit before it moves the table's pointer."""
    if not isinstance(catalog, MetastoreCatalog):
        return

    def flushed(inner: WriteMetadata) -> WriteMetadata:
        def write(metadata: IcebergMetadata, io: FileIO, metadata_path: str) -> None:
            folder = first_folder(metadata_path)
            inner(metadata, io, metadata_path)
            flush(metadata_path, folder)

        return write

    wrap_metadata_writer(catalog, flushed)


def _added(io: FileIO, manifest_lists: Mapping[int, str], folders: tuple[str, ...]) -> Iterator[str]:
    for place in (item for item in manifest_lists.values() if lies_in(item, folders)):
        yield place
        for manifest in read_manifests(io.new_input(place))[1]:
            if manifest.added_snapshot_id not in manifest_lists or not lies_in(manifest.manifest_path, folders):
                continue
            yield manifest.manifest_path
            for entry in read_entries(manifest, io):
                if entry.status == ManifestEntryStatus.ADDED and lies_in(entry.data_file.file_path, folders):
                    yield entry.data_file.file_path
