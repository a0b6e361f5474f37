# SPDX-License-Identifier: Apache-2.0
"""Flush what Spark and pyiceberg have written for a commit, see :mod:`airflow_mv.catalog.durability`."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table.metadata import TableMetadata as IcebergMetadata

from airflow_mv.catalog.avro import read_entries, read_manifests
from airflow_mv.catalog.durability import first_folder, flush, fsync, local_path
from airflow_mv.catalog.places import lies_in
from airflow_mv.catalog.pyiceberg_compat import WriteMetadata, wrap_metadata_writer

log = logging.getLogger(__name__)


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
            fsync(local_path(location))
    except Exception as error:  # noqa: BLE001 (a manifest that only Spark reads must not stop the publication)
        log.warning(
            "The files of snapshots %s cannot be flushed one by one (%s): flushing all", list(manifest_lists), error
        )
        os.sync()
        return
    for parent in {local_path(location).parent for location in found}:
        fsync(parent)


def flush_table_commits(catalog: Catalog) -> None:
    """Make pyiceberg flush the metadata file of a commit before it moves the table's pointer in a SQL database."""
    if not isinstance(catalog, SqlCatalog):
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
