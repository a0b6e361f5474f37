# SPDX-License-Identifier: Apache-2.0
"""Undo maintenance: restore expired snapshots whose files still exist, and unmark files."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from airflow_mv.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog
from airflow_mv.catalog.places import lies_in
from airflow_mv.catalog.reachable_files import readable_files
from airflow_mv.errors import InvalidMetadataError, MetadataFileNotFoundError
from airflow_mv.maintenance.folders import accessible_folders
from airflow_mv.maintenance.ledger import Ledger, read_ledger, write_ledger
from airflow_mv.publish.layout import ChangedMetadata
from airflow_mv.publish.protocol import Effects
from airflow_mv.publish.storage_change import StorageChange
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
        lost: Expired snapshots that cannot be restored: files are gone, or the storage table is registered.
        unmarked: How many files are no longer marked for deletion.
        accepted: Whether the storage table accepts expired snapshots.
    """

    view: Identifier
    restored: tuple[int, ...]
    lost: tuple[int, ...]
    unmarked: int
    accepted: bool = True

    @property
    def why_lost(self) -> str | None:
        """Why snapshots cannot be restored; ``None`` if there are none."""
        if not self.lost:
            return None
        if not self.accepted:
            return "the storage table is a table of the catalog, which does not accept expired snapshots"
        return "files of them no longer exist"

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
    """Restore expired snapshots whose files all exist, and unmark the files that were to be deleted.

    The ledger names the expiries; the snapshots themselves are read from the storage metadata files of that time. In
    the registered layout snapshots cannot be restored: a catalog accepts no snapshot older than its newest.

    Args:
        catalog: Where the view is.
        view: The view.
        effects: Clock, sleep and jitter.

    Raises:
        CommitConflictError, CommitStateUnknownError: See :func:`airflow_mv.publish.protocol.commit`.
    """
    loaded = catalog.load(view)
    storage = catalog.load_storage(loaded)
    folder = accessible_folders(catalog, loaded, storage)[0]
    before = read_ledger(catalog, loaded, folder)
    expired = {identity for entry in before.expired for identity in entry.snapshot_ids}
    found = _restorable(catalog, storage, before) if storage.accepts_snapshots else {}
    restored: tuple[int, ...] = ()
    if found:
        change = _Restoration(catalog, loaded.identifier, found, effects)
        change.publish()
        restored = change.restored
    lost = tuple(sorted(expired - set(found) - {item.snapshot_id for item in storage.table.snapshots}))
    write_ledger(catalog, loaded, folder, replace(before, marks={}, expired=()), before)
    log.info("Undone for %s: %d snapshots restored, %d files unmarked", view, len(restored), len(before.marks))
    return Undone(loaded.identifier, restored, lost, len(before.marks), storage.accepts_snapshots)


class _Restoration(StorageChange):
    """Restore expired snapshots (pointed layout). It has landed if all of them are in the metadata.

    Args:
        catalog: Where the view is.
        view: The view.
        found: The storage metadata that has each expired snapshot, by the snapshot's id.
        effects: Clock, sleep and jitter.
    """

    def __init__(
        self,
        catalog: MaterializedViewCatalog,
        view: Identifier,
        found: dict[int, dict[str, Any]],
        effects: Effects | None,
    ) -> None:
        super().__init__(catalog, view, "the restoration of snapshots", effects)
        self._found = found
        #: The restored snapshots.
        self.restored: tuple[int, ...] = ()

    def _missing(self, storage: LoadedStorage) -> dict[int, dict[str, Any]]:
        return {key: source for key, source in self._found.items() if storage.table.find(key) is None}

    def is_needed(self, _view: LoadedView, storage: LoadedStorage) -> bool:
        """Whether one of the snapshots is missing."""
        return bool(self._missing(storage))

    def changed_metadata(self, storage: LoadedStorage, document: dict[str, Any], _now_ms: int) -> ChangedMetadata:
        """Return the metadata with the snapshots."""
        missing = self._missing(storage)
        self.restored = tuple(sorted(missing))
        return ChangedMetadata(_with_all(document, missing))


def _with_all(document: dict[str, Any], missing: dict[int, dict[str, Any]]) -> dict[str, Any]:
    sources: dict[int, tuple[dict[str, Any], list[int]]] = {}
    for identity, source in missing.items():
        sources.setdefault(id(source), (source, []))[1].append(identity)
    for source, ids in sources.values():
        document = with_snapshots(document, source, ids)
    return document


def _restorable(catalog: MaterializedViewCatalog, storage: LoadedStorage, ledger: Ledger) -> dict[int, dict[str, Any]]:
    """Return, by expired snapshot whose files all exist, the storage metadata that has it."""
    found: dict[int, dict[str, Any]] = {}
    for entry in ledger.expired:
        document = _before(catalog, storage, entry.metadata_file)
        if document is not None:
            whole = _whole(catalog, storage, entry.metadata_file, entry.snapshot_ids)
            found |= dict.fromkeys(whole, document)
    return found


def _before(catalog: MaterializedViewCatalog, storage: LoadedStorage, location: str) -> dict[str, Any] | None:
    """Return an earlier metadata file of the storage table; ``None`` if it is gone, or is not the storage table's."""
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
    """Return the snapshots whose files all exist."""
    table = parse_table(catalog.files.read(location, what="earlier storage table file"), source=location)
    there = {file.location for file in catalog.files.list(storage.table.location)}
    whole = []
    for identity in snapshot_ids:
        snapshot = table.find(identity)
        files = readable_files(catalog, snapshot) if snapshot is not None else None
        if files is not None and all(file in there or catalog.files.exists(file, what="file") for file in files):
            whole.append(identity)
    return whole
