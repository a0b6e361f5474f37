# SPDX-License-Identifier: Apache-2.0
"""The files that a table's metadata names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.table import StaticTable

from airflow_mv.core.catalog.avro import read_entries, read_manifests
from airflow_mv.core.catalog.files import MetadataFiles, parsed, static_table
from airflow_mv.errors import InvalidMetadataError


@contextmanager
def read_by_pyiceberg(files: MetadataFiles, location: str) -> Iterator[StaticTable]:
    """Yield the table of a metadata file, for pyiceberg to read its manifests in the block.

    Raises:
        InvalidMetadataError: The metadata file, a manifest list or a manifest cannot be read.
        MetadataFileNotFoundError: One of them does not exist.
    """
    what = "table metadata file"
    with parsed(location, what):
        yield static_table(files, location, what=what)


def manifests_at(files: MetadataFiles, location: str) -> list[ManifestFile]:
    """Read the manifests that a manifest list names. Errors as of :func:`read_manifests`."""
    return read_manifests(files.io(location, what="manifest list").new_input(location))[1]


def data_files_of(files: MetadataFiles, manifest: ManifestFile) -> list[DataFile]:
    """Read the data and delete files of a manifest. Errors as of :func:`read_entries`, and if one is not listed."""
    location = manifest.manifest_path
    entries = read_entries(manifest, files.io(location, what="manifest"))
    added, existing = manifest.added_files_count, manifest.existing_files_count
    if added is not None and existing is not None and added + existing != len(entries):
        # A file that was truncated between two blocks reads like a complete one.
        wanted = added + existing
        raise InvalidMetadataError(
            f"manifest: {location} has {len(entries)} entries, but its manifest list counts {wanted}"
        )
    return [entry.data_file for entry in entries]


def files_of(files: MetadataFiles, manifest: ManifestFile) -> list[str]:
    """Return the locations of :func:`data_files_of` a manifest."""
    return [file.file_path for file in data_files_of(files, manifest)]
