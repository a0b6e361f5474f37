# SPDX-License-Identifier: Apache-2.0
"""Read manifest lists and manifests that may be truncated or corrupt.

pyiceberg's compiled decoder does not check bounds: a truncated file can crash the process. This module first checks
the structure of the file (header, block sizes, sync markers up to the last byte), and then uses the Python decoder.
"""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterator, Mapping
from typing import TypeVar

from pyiceberg.avro.decoder import StreamingBinaryDecoder
from pyiceberg.io import FileIO, InputFile
from pyiceberg.manifest import (
    DEFAULT_READ_VERSION,
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
)
from pyiceberg.typedef import StructProtocol

from airflow_mv.core.catalog.files import _above, _fsync, local_path, parsed
from airflow_mv.core.catalog.locations import lies_in
from airflow_mv.core.catalog.pyiceberg_compat import WholeAvroFile, inherit_from_manifest

log = logging.getLogger(__name__)

_MAGIC = b"Obj\x01"
_SYNC = 16
D = TypeVar("D", bound=StructProtocol)


class _CheckedAvro(WholeAvroFile[D]):
    """An Avro file that is checked before it is read."""

    def check(self, data: bytes) -> None:
        """Refuse a file that is not complete."""
        require_frame(data)


def require_frame(data: bytes) -> None:
    """Check that data is one complete Avro file, with blocks up to its last byte.

    Raises:
        ValueError: It is not.
    """
    stream = io.BytesIO(data)
    decoder = StreamingBinaryDecoder(stream)
    try:
        if stream.read(len(_MAGIC)) != _MAGIC:
            raise ValueError("it is not an Avro file")
        _skip_map(decoder)
        sync = decoder.read(_SYNC)
        while stream.tell() < len(data):
            decoder.skip_int()
            size = decoder.read_int()
            if not 0 <= size <= len(data):
                raise ValueError("it is truncated")
            stream.seek(size, io.SEEK_CUR)
            if decoder.read(_SYNC) != sync:
                raise ValueError("its blocks do not end where they should")
    except (EOFError, TypeError):
        raise ValueError("it is truncated") from None


def _skip_map(decoder: StreamingBinaryDecoder) -> None:
    while (count := decoder.read_int()) != 0:
        if count < 0:
            decoder.skip_int()
        for _ in range(2 * abs(count)):
            decoder.read_bytes()


def read_manifests(file: InputFile) -> tuple[dict[str, str], list[ManifestFile]]:
    """Read a manifest list: the properties of the file, and its manifests.

    Raises:
        InvalidMetadataError: The file is truncated or corrupt.
        MetadataFileNotFoundError: It does not exist.
        CatalogUnavailableError: The store did not respond.
    """
    with (
        parsed(file.location, "manifest list"),
        _CheckedAvro[ManifestFile](
            file,
            MANIFEST_LIST_FILE_SCHEMAS[DEFAULT_READ_VERSION],
            read_types={-1: ManifestFile, 508: PartitionFieldSummary},
            read_enums={517: ManifestContent},
        ) as reader,
    ):
        return dict(reader.header.meta), list(reader)


def read_entries(manifest: ManifestFile, files: FileIO) -> list[ManifestEntry]:
    """Read the live entries of a manifest, as :meth:`ManifestFile.fetch_manifest_entry` does.

    Raises:
        InvalidMetadataError: The file is truncated or corrupt.
        MetadataFileNotFoundError: It does not exist.
        CatalogUnavailableError: The store did not respond.
    """
    with (
        parsed(manifest.manifest_path, "manifest"),
        _CheckedAvro[ManifestEntry](
            files.new_input(manifest.manifest_path),
            MANIFEST_ENTRY_SCHEMAS[DEFAULT_READ_VERSION],
            read_types={-1: ManifestEntry, 2: DataFile},
            read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
        ) as reader,
    ):
        live = (entry for entry in reader if entry.status != ManifestEntryStatus.DELETED)
        return [inherit_from_manifest(entry, manifest) for entry in live]


def flush_snapshots(io: FileIO, manifest_lists: Mapping[int, str], folders: tuple[str, ...]) -> None:
    """Flush the local files that snapshots have added: manifest lists, manifests, data and delete files.

    Args:
        io: Reads the manifests.
        manifest_lists: The manifest lists of the snapshots to be published, by snapshot id; all are local files.
        folders: The folders that may contain the view's files. Nothing outside of them is opened.
    """
    try:
        locations = set(_added(io, manifest_lists, folders))
        found = {path for location in locations if (path := local_path(location)) is not None}
        for path in found:
            _fsync(path)
    except Exception as error:  # noqa: BLE001 (a manifest that only Spark reads must not stop the publication)
        log.warning(
            "Could not flush the files of snapshots %s one by one (%s): flushing all", list(manifest_lists), error
        )
        os.sync()
        return
    for folder in _above(found, folders):
        _fsync(folder)


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
