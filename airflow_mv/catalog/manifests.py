# SPDX-License-Identifier: Apache-2.0
"""Compare the files of two snapshots of a table, by their manifest lists."""

from __future__ import annotations

import hashlib
import logging
import threading

from airflow_mv.catalog.avro import read_manifests
from airflow_mv.catalog.files import MetadataFiles, parsed
from airflow_mv.errors import MaterializedViewError
from airflow_mv.spec.table import Snapshot

log = logging.getLogger(__name__)

#: Digests of manifest lists that this process has read, by location: they never change.
_read: dict[str, bytes] = {}
_MOST_KEPT = 10_000
_lock = threading.Lock()


def have_same_files(files: MetadataFiles, one: Snapshot, other: Snapshot) -> bool:
    """Whether two snapshots have the same manifests, and so the same data and delete files.

    Args:
        files: The table's store.
        one: A snapshot.
        other: Another one of the same table.

    Returns:
        ``False`` also where a manifest list cannot be read.
    """
    if one.manifest_list is None or other.manifest_list is None:
        return False
    try:
        return _digest(files, one.manifest_list) == _digest(files, other.manifest_list)
    except MaterializedViewError as error:
        log.warning("Snapshot %d counts as a change of rows: %s", one.snapshot_id, error)
        return False


def _digest(files: MetadataFiles, location: str) -> bytes:
    known = _read.get(location)
    if known is not None:
        return known
    what = "manifest list"
    with parsed(location, what):
        _, listed = read_manifests(files.io(location, what=what).new_input(location))
        entries = sorted(
            (item.manifest_path, int(item.content), item.partition_spec_id, item.sequence_number or 0)
            for item in listed
        )
    digest = hashlib.sha256(repr(entries).encode()).digest()
    with _lock:
        if len(_read) >= _MOST_KEPT:
            _read.clear()
        _read[location] = digest
    return digest
