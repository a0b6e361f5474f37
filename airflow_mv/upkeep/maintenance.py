# SPDX-License-Identifier: Apache-2.0
"""After-commit maintenance: expire old snapshots of a storage table, collect the files that nothing reaches.

Collecting is the only part of this package that deletes what it did not just write. The order makes it safe:
the store's clock first, then the listing, and only then the pointer. A file that is listed and old was written
long before the pointer was read, so whatever was going to publish it has done so and is seen, or never will.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from airflow_mv.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog
from airflow_mv.catalog.files import named
from airflow_mv.catalog.listing import StoredFile, file_keys, leads_out
from airflow_mv.catalog.reach import FilesOf, snapshot_files
from airflow_mv.commit import Effects
from airflow_mv.errors import MetadataFileNotFoundError, UnsupportedError, ViewNotFoundError
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.snapshots import REASONS
from airflow_mv.upkeep.expiry import DEFAULT_GRACE as DEFAULT_GRACE
from airflow_mv.upkeep.expiry import Expired as Expired
from airflow_mv.upkeep.expiry import expire as expire
from airflow_mv.upkeep.folders import own_folders, strangers

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection found and did.

    Args:
        view: The view.
        files: What was deleted, or would be with ``dry_run``.
        kept_young: How many files stay that nothing reaches, because they are younger than the grace.
        reachable: How many files the view needs.
        dry_run: Whether nothing was deleted.
    """

    view: Identifier
    files: tuple[StoredFile, ...]
    kept_young: int
    reachable: int
    dry_run: bool

    @property
    def size_bytes(self) -> int:
        """The size of the files together."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Maintained:
    """What maintenance did to a view.

    Args:
        expired: The snapshots, and branches of dead refreshes.
        collected: The files.
    """

    expired: Expired
    collected: Collected

    def to_dict(self) -> dict[str, Any]:
        """Return what the command line prints."""
        collected, expired = self.collected, self.expired
        reasons = Counter(expired.kept.values())
        return {
            "view": str(collected.view),
            "dry_run": collected.dry_run,
            "expired_snapshots": list(expired.snapshot_ids),
            "kept_snapshots": {reason: reasons.get(reason, 0) for reason in REASONS},
            "dropped_branches": list(expired.branches),
            "deleted_files": len(collected.files),
            "deleted_bytes": collected.size_bytes,
            "kept_files": {"reachable": collected.reachable, "young": collected.kept_young},
            "files": [file.location for file in collected.files],
        }


@dataclass(frozen=True, slots=True)
class _Folder:
    """A view's own folders, and what is in them.

    Args:
        bases: The folders.
        files: Their files by key.
        key: Gives every spelling of one file the same key.
        now_ms: The store's time before they were listed.
    """

    bases: tuple[str, ...]
    files: dict[str, StoredFile]
    key: Callable[[str], str]
    now_ms: int

    def holds(self, key: str) -> bool:
        """Whether a file of this key would be below one of the folders."""
        return any(key.startswith(self.key(f"{base}/").rstrip("/") + "/") for base in self.bases)


@dataclass(frozen=True, slots=True)
class _Reached:
    """One state of the view, and the keys of the files that it needs."""

    state: tuple[str, str]
    keys: frozenset[str]


def maintain(
    catalog: MaterializedViewCatalog,
    view: str | Identifier,
    *,
    older_than: timedelta = DEFAULT_GRACE,
    dry_run: bool = False,
    report: Callable[[str], None] = log.info,
    effects: Effects | None = None,
) -> Maintained:
    """Expire the old snapshots of a view's storage table, then delete the files that nothing reaches.

    Args:
        catalog: Where the view is.
        view: The view.
        older_than: How long a snapshot stays after another one took its place, and a file that nothing reaches.
        dry_run: Only say what would be done.
        report: Told of the progress.
        effects: Clock, sleep and jitter.

    Raises:
        MaterializedViewError: See :func:`expire` and :func:`collect_orphans`.
    """
    expired = expire(catalog, view, older_than=older_than, dry_run=dry_run, effects=effects)
    without = expired.snapshot_ids if dry_run else ()
    files_of = partial(snapshot_files, without=without, report=report)
    collected = collect_orphans(catalog, view, older_than=older_than, dry_run=dry_run, files_of=files_of)
    return Maintained(expired, collected)


def collect_orphans(
    catalog: MaterializedViewCatalog,
    view: str | Identifier,
    *,
    older_than: timedelta = DEFAULT_GRACE,
    dry_run: bool = False,
    files_of: FilesOf = snapshot_files,
) -> Collected:
    """Delete the files below a view's own location that no retained metadata reaches.

    It asks the outside in this order: ``catalog.load``, ``load_storage`` and ``shared_folders`` (for the folders),
    ``files.now_ms``, ``files.list``; then ``catalog.load``, ``load_storage``, ``previous_location``, ``files_of``,
    ``within`` or the metadata files listed; before anything is deleted ``catalog.load`` and ``load_storage`` once
    more; then ``files.delete`` for each file.

    Args:
        catalog: Where the view is.
        view: The view.
        older_than: How long a file stays that nothing reaches, by the store's clock. A refresh that takes longer
            from its first file to its publication could lose what it staged.
        dry_run: Only say what would be deleted.
        files_of: Lists the files that the snapshots of a storage table reach.

    Raises:
        MetadataFileNotFoundError: Something that the view needs is gone. Nothing was deleted.
        InvalidMetadataError: Something that the view needs cannot be read. Nothing was deleted.
        UnsupportedError: The view needs files elsewhere, or its folder holds other tables or views.
    """
    loaded = catalog.load(view)
    storage = catalog.load_storage(loaded)
    folder = _look_into(catalog, loaded, storage)
    reached = _reach(catalog, loaded, folder, files_of)
    theirs = strangers(catalog, loaded, storage, folder.bases, folder.files.values())
    orphans = _orphans(folder, reached, theirs)
    limit = folder.now_ms - older_than // timedelta(milliseconds=1)
    doomed = [file for file in orphans if file.modified_ms <= limit]
    if doomed and _state(catalog, loaded) != reached.state:
        # What was published in between may be a staged refresh that an earlier try had left.
        reached = _reach(catalog, loaded, folder, files_of)
        doomed = [file for file in _orphans(folder, reached, theirs) if file.modified_ms <= limit]
    if not dry_run:
        _delete(catalog, loaded.identifier, folder.bases, doomed)
    young = sum(file.modified_ms > limit for file in orphans)
    return Collected(loaded.identifier, tuple(doomed), young, len(reached.keys), dry_run)


def delete_all(catalog: MaterializedViewCatalog, view: LoadedView, drop: Callable[[], object]) -> Collected:
    """Drop a view and delete every file below its location.

    Args:
        catalog: Where it is.
        view: The view, as it was loaded.
        drop: Removes its row.

    Raises:
        UnsupportedError: The folder holds other tables or views. Nothing was dropped.
    """
    storage = catalog.load_storage(view)
    bases = own_folders(catalog, view, storage)
    strangers(catalog, view, storage, bases, _listed(catalog, bases))
    drop()
    # Listed after the drop: nothing new can become part of the view any more.
    files = _listed(catalog, bases)
    theirs = strangers(catalog, view, storage, bases, files)
    files = [file for file in files if file.location not in theirs]
    _delete(catalog, view.identifier, bases, files)
    for base in bases:
        catalog.files.remove_empty_folders(base)
    return Collected(view.identifier, tuple(files), 0, 0, dry_run=False)


def oldest_lasting_ms(catalog: MaterializedViewCatalog, folder: str) -> int:
    """Return the time since which a file must have been written for half of the grace to be left to it.

    Args:
        catalog: Where the folder is.
        folder: Its store's clock counts.
    """
    return catalog.files.now_ms(folder) - DEFAULT_GRACE // timedelta(milliseconds=2)


# -- what is there, and what is needed -------------------------------------------------------------


def _listed(catalog: MaterializedViewCatalog, bases: Sequence[str]) -> list[StoredFile]:
    return [file for base in bases for file in catalog.files.list(base)]


def _look_into(catalog: MaterializedViewCatalog, view: LoadedView, storage: LoadedStorage) -> _Folder:
    bases, key = own_folders(catalog, view, storage), file_keys()
    now_ms = min(catalog.files.now_ms(base) for base in bases)
    found = {key(file.location): file for file in _listed(catalog, bases)}
    log.info("%s: %d files below %s", view.identifier, len(found), ", ".join(bases))
    return _Folder(bases, found, key, now_ms)


def _state(catalog: MaterializedViewCatalog, view: LoadedView) -> tuple[str, str]:
    _, now = _now(catalog, view)
    return now


def _now(catalog: MaterializedViewCatalog, view: LoadedView) -> tuple[LoadedStorage, tuple[str, str]]:
    """Load what the pointer leads to now: the same view's, or nothing may be deleted."""
    again = catalog.load(view.identifier)
    if again.metadata.view_uuid != view.metadata.view_uuid or again.metadata.location != view.metadata.location:
        raise ViewNotFoundError(
            f"view {view.identifier} was dropped and created again while it was looked at; nothing was deleted"
        )
    storage = catalog.load_storage(again)
    return storage, (again.metadata_location, storage.location)


def _reach(catalog: MaterializedViewCatalog, view: LoadedView, folder: _Folder, files_of: FilesOf) -> _Reached:
    storage, state = _now(catalog, view)
    needed = {folder.key(item): item for item in (*state, *files_of(catalog, storage))}
    _check_needed(catalog, view.identifier, folder, needed)
    # A reader may have read the pointer just before it moved; whether older files are there is nobody's business.
    previous = catalog.previous_location(view.identifier)
    history = [entry.metadata_file for entry in storage.table.metadata_log]
    also = {folder.key(item) for item in (*history, *([previous] if previous else []))}
    return _Reached(state, frozenset(needed) | also)


def _check_needed(catalog: MaterializedViewCatalog, view: Identifier, folder: _Folder, needed: dict[str, str]) -> None:
    """Refuse to go on where the view needs what is not there: then this look at the world is wrong, or it is broken."""
    for key, location in needed.items():
        if not folder.holds(key):
            raise UnsupportedError(
                f"view {view} needs {location}, which is not below {' or '.join(folder.bases)}: a view whose files "
                "are elsewhere, or spelled in two ways, is not cleaned up. Nothing was deleted"
            )
        # A file that is younger than the listing is not in it.
        if key not in folder.files and not catalog.files.exists(location, what=f"view {view}, file"):
            raise MetadataFileNotFoundError(
                f"view {view} needs the file {location}, which does not exist. Nothing was deleted; restore it, or "
                "compute the rows anew with `refresh --full` and expire the older snapshots"
            )


# -- deleting --------------------------------------------------------------------------------------


def _orphans(folder: _Folder, reached: _Reached, theirs: Collection[str]) -> list[StoredFile]:
    stay = reached.keys | {folder.key(location) for location in theirs}
    return sorted((file for key, file in folder.files.items() if _owner(key) not in stay), key=_first_to_go)


def _owner(key: str) -> str:
    """Return the file that a file goes with: Hadoop keeps a checksum ``.x.crc`` beside each local file ``x``."""
    folder, _, name = key.rpartition("/")
    return f"{folder}/{name[1:-4]}" if name.startswith(".") and name.endswith(".crc") else key


def _first_to_go(file: StoredFile) -> tuple[int, str]:
    """Order files so that a deletion that stops halfway leaves nothing that names what is gone."""
    if "/staged/" in file.location:
        return 0, file.location
    return (1 if file.location.endswith(".metadata.json") else 2), file.location


def _delete(
    catalog: MaterializedViewCatalog, view: Identifier, bases: Sequence[str], files: Iterable[StoredFile]
) -> None:
    for file in _confined(files, bases):
        with named(file.location, f"view {view}, file that nothing reaches"):
            catalog.files.delete(file.location)
        log.info("Deleted %s (%d bytes): %s no longer reaches it", file.location, file.size_bytes, view)


def _confined(files: Iterable[StoredFile], bases: Sequence[str]) -> Iterator[StoredFile]:
    """Leave out what has been led elsewhere by a symbolic link since it was listed."""
    for file in files:
        if all(leads_out(file.location, base) for base in bases):
            log.warning("Not deleted: %s leads out of the view's folder", file.location)
        else:
            yield file
