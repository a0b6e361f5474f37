# SPDX-License-Identifier: Apache-2.0
"""Undo what maintenance has announced or expired, as long as the files are still there."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from airflow_mv.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog
from airflow_mv.catalog.places import lies_in
from airflow_mv.catalog.reach import readable_files
from airflow_mv.errors import InvalidMetadataError, MetadataFileNotFoundError
from airflow_mv.maintenance.ledger import Ledger, read_ledger, write_ledger
from airflow_mv.publish.amend import ChangedMetadata, StorageChange, commit_change
from airflow_mv.publish.protocol import Effects
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.snapshots import with_snapshots
from airflow_mv.spec.stored import decode
from airflow_mv.spec.table import parse_table

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Undone:
    """What was undone.

    Args:
        view: The view.
        restored: The snapshots that are in the storage table again.
        lost: Expired snapshots that cannot be restored: files are gone, or the storage table is of the catalog.
        unmarked: How many files are no longer announced to be deleted.
        registered: Whether the storage table is of the catalog, which takes no expired snapshot back.
    """

    view: Identifier
    restored: tuple[int, ...]
    lost: tuple[int, ...]
    unmarked: int
    registered: bool = False

    @property
    def why_lost(self) -> str | None:
        """Why snapshots cannot be restored; ``None`` where there are none of these."""
        if not self.lost:
            return None
        if self.registered:
            return "the storage table is a table of the catalog, which takes no expired snapshot back"
        return "files of them are gone"

    def to_dict(self) -> dict[str, Any]:
        """Return what the command line prints."""
        return {
            "view": str(self.view),
            "restored_snapshots": list(self.restored),
            "lost_snapshots": list(self.lost),
            "unmarked_files": self.unmarked,
            "why_lost": self.why_lost,
        }


def undo(catalog: MaterializedViewCatalog, view: str | Identifier, *, effects: Effects | None = None) -> Undone:
    """Put expired snapshots back whose files are all there, and forget which files were to be deleted.

    The ledger names the expiries; the snapshots themselves are read from the storage metadata files of that time. In
    the registered layout snapshots cannot be put back: a catalog takes no snapshot that is older than its newest.

    Args:
        catalog: Where the view is.
        view: The view.
        effects: Clock, sleep and jitter.

    Raises:
        CommitConflictError, CommitStateUnknownError: See :func:`airflow_mv.publish.amend.commit_change`.
    """
    loaded = catalog.load(view)
    storage, before = catalog.load_storage(loaded), read_ledger(catalog, loaded)
    expired = {identity for entry in before.expired for identity in entry.snapshot_ids}
    found = {} if storage.name is not None else _restorable(catalog, storage, before)
    restored: tuple[int, ...] = ()

    def pointed(_: LoadedView, now: LoadedStorage, document: dict[str, Any], __: int) -> ChangedMetadata | None:
        nonlocal restored
        missing = {key: source for key, source in found.items() if now.table.find(key) is None}
        if not missing:
            return None
        restored = tuple(sorted(missing))
        return ChangedMetadata(_with_all(document, missing))

    if found:
        commit_change(catalog, loaded.identifier, StorageChange(pointed, lambda *_: None), effects=effects)
    lost = tuple(sorted(expired - set(found) - {item.snapshot_id for item in storage.table.snapshots}))
    write_ledger(catalog, loaded, replace(before, marks={}, expired=()), before)
    log.info("Undone for %s: %d snapshots restored, %d files unmarked", view, len(restored), len(before.marks))
    return Undone(loaded.identifier, restored, lost, len(before.marks), storage.name is not None)


def _with_all(document: dict[str, Any], missing: dict[int, dict[str, Any]]) -> dict[str, Any]:
    sources: dict[int, tuple[dict[str, Any], list[int]]] = {}
    for identity, source in missing.items():
        sources.setdefault(id(source), (source, []))[1].append(identity)
    for source, ids in sources.values():
        document = with_snapshots(document, source, ids)
    return document


def _restorable(catalog: MaterializedViewCatalog, storage: LoadedStorage, ledger: Ledger) -> dict[int, dict[str, Any]]:
    """Return the storage metadata that has each expired snapshot whose files are all there."""
    found: dict[int, dict[str, Any]] = {}
    for entry in ledger.expired:
        document = _before(catalog, storage, entry.metadata_file)
        if document is not None:
            whole = _whole(catalog, storage, entry.metadata_file, entry.snapshot_ids)
            found |= dict.fromkeys(whole, document)
    return found


def _before(catalog: MaterializedViewCatalog, storage: LoadedStorage, location: str) -> dict[str, Any] | None:
    """Return an earlier metadata file of the storage table; ``None`` where it is gone, or is none of it."""
    if not lies_in(location, (storage.table.location,)):
        return None
    try:
        data = catalog.files.read(location, what="earlier storage table file")
        document = decode(data, source=location)
    except (MetadataFileNotFoundError, InvalidMetadataError) as error:
        log.warning("Snapshots of %s cannot be restored: %s", location, error)
        return None
    return document if document.get("table-uuid") == storage.table.table_uuid else None


def _whole(
    catalog: MaterializedViewCatalog,
    storage: LoadedStorage,
    location: str,
    snapshot_ids: Collection[int],
) -> list[int]:
    """Return those of the snapshots whose files are all there."""
    table = parse_table(catalog.files.read(location, what="earlier storage table file"), source=location)
    there = {file.location for file in catalog.files.list(storage.table.location)}
    whole = []
    for identity in snapshot_ids:
        snapshot = table.find(identity)
        files = readable_files(catalog, snapshot) if snapshot is not None else None
        if files is not None and all(file in there or catalog.files.exists(file, what="file") for file in files):
            whole.append(identity)
    return whole
