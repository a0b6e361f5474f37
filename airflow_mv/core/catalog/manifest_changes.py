# SPDX-License-Identifier: Apache-2.0
"""In which files two snapshots differ, by their manifests."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator, Sequence

from pyiceberg.manifest import DataFileContent, FileFormat, ManifestContent, ManifestEntry, ManifestFile

from airflow_mv.core.catalog.avro import read_entries, read_manifests
from airflow_mv.core.catalog.files import MetadataFiles
from airflow_mv.core.spec.table_metadata import FileChange, Snapshot
from airflow_mv.errors import MaterializedViewError

log = logging.getLogger(__name__)

#: With more manifests than this they are not read: a Spark job is cheaper.
MAX_MANIFESTS = 50


#: The differences of snapshots that this process has read, by the locations of both manifest lists: they never change.
_changes: dict[tuple[str | None, str], FileChange | None] = {}


_MAX_CHANGES = 10_000


#: Content, whether it is a deletion vector, path, sequence number, rows and bytes.
_FileKey = tuple[DataFileContent, bool, str, int | None, int, int]


_lock = threading.Lock()


def changed_files(files: MetadataFiles, one: Snapshot | None, other: Snapshot) -> FileChange | None:
    """Return the files in which two snapshots differ, from the manifests that only one of them has.

    Args:
        one: A snapshot; ``None`` for the table before its first one.
        other: A later one of the same table.

    Returns:
        ``None`` if a manifest list or a manifest cannot be read, or too many would have to be.
    """
    if other.manifest_list is None or (one is not None and one.manifest_list is None):
        return None
    key = (one.manifest_list if one else None, other.manifest_list)
    if key in _changes:
        return _changes[key]
    try:
        lists = [_manifests(files, place) if place else [] for place in key]
        found = _difference(files, *lists)
    except MaterializedViewError as error:
        log.warning(
            "Could not compare snapshot %d with the one before; assuming that rows changed: %s",
            other.snapshot_id,
            error,
        )
        return None
    with _lock:
        if len(_changes) >= _MAX_CHANGES:
            _changes.clear()
        _changes[key] = found
    return found


def _difference(files: MetadataFiles, old: Sequence[ManifestFile], new: Sequence[ManifestFile]) -> FileChange | None:
    sides = ({item.manifest_path: item for item in side} for side in (old, new))
    before, after = sides
    gone = [item for path, item in before.items() if path not in after]
    come = [item for path, item in after.items() if path not in before]
    if len(gone) + len(come) > MAX_MANIFESTS:
        return None
    removed, added = (Counter(map(_file_key, _live(files, side))) for side in (gone, come))
    deletes = any(item.content == ManifestContent.DELETES for item in old)
    return FileChange(_numbers(added - removed), _numbers(removed - added), deletes)


def _live(files: MetadataFiles, manifests: Sequence[ManifestFile]) -> Iterator[ManifestEntry]:
    for manifest in manifests:
        yield from read_entries(manifest, files.io(manifest.manifest_path, what="manifest"))


def _file_key(entry: ManifestEntry) -> _FileKey:
    """Return what makes a file of a snapshot the same as one of another: deletes apply by sequence numbers."""
    file = entry.data_file
    kind = DataFileContent(file.content)
    vector = kind == DataFileContent.POSITION_DELETES and file.file_format == FileFormat.PUFFIN
    return kind, vector, file.file_path, entry.sequence_number, file.record_count, file.file_size_in_bytes


def _numbers(files: Counter[_FileKey]) -> dict[str, int]:
    """Return the numbers of a summary for files, by keys without ``added-`` or ``removed-``."""
    found: Counter[str] = Counter()
    for (kind, vector, _, _, rows, size), count in files.items():
        found["files-size"] += size * count
        if kind == DataFileContent.DATA:
            found["data-files"] += count
            found["records"] += rows * count
            continue
        name = "position" if kind == DataFileContent.POSITION_DELETES else "equality"
        found["delete-files"] += count
        found["dvs" if vector else f"{name}-delete-files"] += count
        found[f"{name}-deletes"] += rows * count
    return dict(found)


def _manifests(files: MetadataFiles, location: str) -> list[ManifestFile]:
    return read_manifests(files.io(location, what="manifest list").new_input(location))[1]
