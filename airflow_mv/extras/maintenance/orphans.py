# SPDX-License-Identifier: Apache-2.0
"""After-commit maintenance: expire old snapshots of a storage table, and delete orphan files.

A file is deleted only with a proof of ownership, see :mod:`airflow_mv.extras.maintenance.history`. The order of reads
makes it
safe: the store's clock first, then the listing, and only then the pointer. A listed file that is older than the grace
was written long before the pointer was read: either it has been published by then, or it never will be.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any

from airflow_mv.core.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog
from airflow_mv.core.catalog.files import StoredFile, named
from airflow_mv.core.publish.protocol import Effects
from airflow_mv.core.publish.refresh import DEFAULT_GRACE as DEFAULT_GRACE
from airflow_mv.core.spec.identifiers import Identifier, id_text
from airflow_mv.errors import AccessDeniedError, ConfigurationError, MetadataFileNotFoundError, UnsupportedError
from airflow_mv.extras.maintenance.deletion_log import DeletionLog, log_location, read_log, write_log
from airflow_mv.extras.maintenance.expire import REASONS
from airflow_mv.extras.maintenance.expire import ExpiryResult as ExpiryResult
from airflow_mv.extras.maintenance.expire import expire as expire
from airflow_mv.extras.maintenance.folders import OtherTables, others_in, own_folders
from airflow_mv.extras.maintenance.history import UNPROVEN, History, Proof, owner
from airflow_mv.extras.maintenance.matcher import LocationMatcher, leads_out
from airflow_mv.extras.maintenance.reachable_files import FilesOf, PastFilesOf, past_files, snapshot_files
from airflow_mv.extras.maintenance.removal import require_same

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CollectionResult:
    """The result of a collection of orphan files.

    Args:
        files: What was deleted, or would be with ``dry_run``.
        kept_young: How many unreachable files stay because they are younger than the grace.
        reachable: How many files the view needs.
        dry_run: Whether nothing was deleted.
        proofs: Why each of ``files`` is the view's, by its location.
        waiting: Files known to be unreachable for less than the grace, each with its proof.
        unproven: Unreachable files that are not proven the view's: why each stays, by its location.
    """

    view: Identifier
    files: tuple[StoredFile, ...]
    kept_young: int
    reachable: int
    dry_run: bool
    proofs: Mapping[str, str] = field(default_factory=dict)
    waiting: Mapping[str, str] = field(default_factory=dict)
    unproven: Mapping[str, str] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """The total size of the files."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """The result of maintenance of a view.

    Args:
        expired: The snapshots, and branches of killed refreshes.
    """

    expired: ExpiryResult
    collected: CollectionResult

    def to_dict(self) -> dict[str, Any]:
        """Return what the command line prints."""
        collected, expired = self.collected, self.expired
        reasons = Counter(expired.kept.values())
        return {
            "view": str(collected.view),
            "dry_run": collected.dry_run,
            "expired_snapshots": [id_text(snapshot) for snapshot in expired.snapshot_ids],
            "kept_snapshots": {reason: reasons.get(reason, 0) for reason in REASONS},
            "dropped_branches": list(expired.branches),
            "deleted_files": len(collected.files),
            "deleted_bytes": collected.size_bytes,
            "kept_files": {
                "reachable": collected.reachable,
                "young": collected.kept_young,
                "waiting": len(collected.waiting),
                "unproven": len(collected.unproven),
            },
            "files": [file.location for file in collected.files],
            "proofs": dict(collected.proofs),
            "waiting": dict(collected.waiting),
            "unproven": dict(collected.unproven),
        }


@dataclass(frozen=True, slots=True)
class _Folder:
    """A view's own folders and their files.

    Args:
        bases: The folders.
        files: Their files by exact form.
        now_ms: The store's time before they were listed.
    """

    view: LoadedView
    bases: tuple[str, ...]
    files: dict[str, StoredFile]
    compare: LocationMatcher
    now_ms: int

    @property
    def left_out(self) -> tuple[str, ...]:
        """The view's folder, if it is not among these folders: no credentials for it are known."""
        own = self.view.metadata.location
        return () if any(self.compare.may_lie_in(own, base) for base in self.bases) else (own,)

    def holds(self, location: str) -> bool:
        """Whether a file is below one of the folders."""
        return any(self.compare.may_lie_in(location, base) for base in self.bases)

    def others(self, reached: _Reached) -> Iterator[StoredFile]:
        """Yield the unreachable files."""
        deletions = self.compare.exact(log_location(self.bases[0]))
        for key, file in self.files.items():
            if key != deletions and not self.compare.forms(owner(file.location)) & reached.forms:
                yield file


@dataclass(frozen=True, slots=True)
class _Reached:
    """One state of the view, and the files that it needs.

    Args:
        state: The view's metadata file, and the storage table's.
        count: How many files.
    """

    state: tuple[str, str]
    storage: LoadedStorage
    forms: frozenset[str]
    count: int


@dataclass(slots=True)
class _Decision:
    """The decision on each unreachable file.

    Args:
        doomed: The files to delete, in this order.
        proofs: The proofs of all that are proven, by location.
        young: Those of them that are younger than the grace.
        waiting: Those of them that wait.
        unproven: Why a file is not proven, by location.
        marks: For the deletion log: since when each proven file is known to be unreachable.
    """

    doomed: list[StoredFile] = field(default_factory=list)
    proofs: dict[str, Proof] = field(default_factory=dict)
    young: list[StoredFile] = field(default_factory=list)
    waiting: list[StoredFile] = field(default_factory=list)
    unproven: dict[str, str] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)


def maintain(
    catalog: MaterializedViewCatalog,
    view: str | Identifier,
    *,
    older_than: timedelta = DEFAULT_GRACE,
    dry_run: bool = False,
    report: Callable[[str], None] = log.info,
    effects: Effects | None = None,
) -> MaintenanceResult:
    """Expire the old snapshots of a view's storage table, then delete its orphan files.

    Args:
        older_than: How long a snapshot stays after another one replaced it, and how long an unreachable file stays.
        dry_run: Only report what would be done.
        report: Receives progress messages.
        effects: Clock, sleep and jitter.

    Raises:
        MaterializedViewError: See :func:`expire` and :func:`collect_orphans`.
    """
    expired = expire(catalog, view, older_than=older_than, dry_run=dry_run, effects=effects)
    without = expired.snapshot_ids if dry_run else ()
    files_of = partial(snapshot_files, without=without, report=report)
    collected = collect_orphans(catalog, view, older_than=older_than, dry_run=dry_run, files_of=files_of)
    return MaintenanceResult(expired, collected)


def collect_orphans(
    catalog: MaterializedViewCatalog,
    view: str | Identifier,
    *,
    older_than: timedelta = DEFAULT_GRACE,
    dry_run: bool = False,
    files_of: FilesOf = snapshot_files,
    past_files_of: PastFilesOf = past_files,
) -> CollectionResult:
    """Delete the files below a view's own folders that are proven the view's and that no retained metadata reaches.

    A file must be known to be unreachable for the grace: the first collection that finds it records it in the view's
    deletion log, a later one deletes it.

    It reads and writes in this order: ``catalog.load``, ``load_storage`` and ``shared_folders`` (for the folders),
    ``files.now_ms``, ``files.list``; then ``catalog.load``, ``load_storage``, ``previous_location``, ``files_of``;
    the deletion log and the metadata files that were listed; where something is to be deleted ``other_entries``,
    ``catalog.load`` and ``load_storage`` once more; then ``files.delete`` for each file, and the deletion
    log is written.

    Args:
        older_than: How long an unreachable file stays, by the store's clock. A refresh that takes longer from its
            first file to its publication could lose its staged files.
        dry_run: Only report what would be deleted.
        files_of: Lists the files that the snapshots of a storage table reach.
        past_files_of: Lists the files that earlier snapshots reach, as far as they can be read.

    Raises:
        MetadataFileNotFoundError: A file that the view needs is missing. Nothing was deleted.
        InvalidMetadataError: A file that the view needs cannot be read. Nothing was deleted.
        UnsupportedError: The view needs files outside its folders, or another table also uses its folder.
    """
    loaded = catalog.load(view)
    storage = catalog.load_storage(loaded)
    folder = _look_into(catalog, loaded, storage)
    reached = _reach(catalog, loaded, folder, files_of)
    before = read_log(catalog, loaded, folder.bases[0])
    history = None
    if any(folder.others(reached)):
        history = _history(catalog, reached.storage, folder, past_files_of, reached.forms)
    grace_ms = older_than // timedelta(milliseconds=1)
    judged = _judge(folder, reached, history, before, grace_ms)
    if judged.doomed and history is not None:
        others = _others(catalog, loaded, storage, folder, history, files_of)
        if _state(catalog, loaded) != reached.state:
            # A refresh published in between may have used files that an earlier try staged.
            reached = _reach(catalog, loaded, folder, files_of)
        judged = _judge(folder, reached, history, before, grace_ms, others)
    if not dry_run:
        _delete(catalog, loaded.identifier, folder.bases, judged.doomed, judged.proofs)
        after = _after(before, judged, folder.now_ms)
        write_log(catalog, loaded, folder.bases[0], after, before)
    return _collected(loaded.identifier, judged, reached.count, dry_run=dry_run)


def delete_all(
    catalog: MaterializedViewCatalog,
    view: LoadedView,
    drop: Callable[[], object],
) -> CollectionResult:
    """Drop a view and delete the files below its folders that are proven its own.

    Args:
        view: The view, as it was loaded.
        drop: Removes its row.

    Raises:
        UnsupportedError: Another table also uses the folder. Nothing was dropped, or only the view: then the message
            says so, and no file was deleted. Its storage table may have been renamed meanwhile.
        ConfigurationError: This user may not delete files. Nothing was dropped, or the message says so.
        ViewNotFoundError: The view was dropped meanwhile. Nothing was deleted.
    """
    storage = catalog.load_storage(view)
    bases, compare = own_folders(catalog, view, storage), LocationMatcher()
    for base in bases:
        catalog.files.require_deletes(base)
    before = _listed(catalog, view, bases, compare)
    history = later = _history(catalog, storage, before, past_files)
    _others(catalog, view, storage, before, history, snapshot_files)  # refused before anything is dropped
    require_same(view, catalog.load(view.identifier))
    drop()
    # Listed after the drop, so no new file can become part of the view.
    folder = _listed(catalog, view, bases, compare)
    if folder.files != before.files:
        later = _history(catalog, storage, folder, past_files)
    # What was read before the drop may be minutes old.
    try:
        others = _others(catalog, view, storage, folder, later, snapshot_files, dropped=True)
    except UnsupportedError as error:
        raise UnsupportedError(f"{error}. The view was dropped; none of its files was deleted") from None
    judged = _Decision()
    for file in folder.files.values():
        proof = later.proof(file.location) or history.proof(file.location)
        whose = others.owner(file.location)
        if proof is None or whose is not None:
            judged.unproven[file.location] = f"it belongs to {whose}" if whose else later.why_not(file.location)
        else:
            judged.proofs[file.location] = proof
            judged.doomed.append(file)
    judged.doomed.sort(key=partial(_first_to_go, judged.proofs))
    try:
        _delete(catalog, view.identifier, bases, judged.doomed, judged.proofs)
    except (AccessDeniedError, ConfigurationError) as error:  # vended credentials ended: no table has new ones
        left = ", ".join(bases)
        raise ConfigurationError(f"{error}. The view was dropped; the rest of its files is below {left}") from None
    for base in bases:
        catalog.files.remove_empty_folders(base, [file.location for file in judged.doomed])
    return _collected(view.identifier, judged, 0, dry_run=False)


# -- files in the folders and reachable files ---------------------------------------------------------


def _listed(
    catalog: MaterializedViewCatalog,
    view: LoadedView,
    bases: tuple[str, ...],
    compare: LocationMatcher,
    now_ms: int = 0,
) -> _Folder:
    found = {compare.exact(file.location): file for base in bases for file in catalog.files.list(base)}
    log.info("%s: %d files below %s", view.identifier, len(found), ", ".join(bases))
    return _Folder(view, bases, found, compare, now_ms)


def _look_into(catalog: MaterializedViewCatalog, view: LoadedView, storage: LoadedStorage) -> _Folder:
    bases = own_folders(catalog, view, storage)
    now_ms = min(catalog.files.now_ms(base) for base in bases)
    return _listed(catalog, view, bases, LocationMatcher(), now_ms)


def _history(
    catalog: MaterializedViewCatalog,
    storage: LoadedStorage,
    folder: _Folder,
    past_files_of: PastFilesOf,
    reached: frozenset[str] = frozenset(),
) -> History:
    return History(
        catalog,
        folder.view,
        storage,
        folder.files.values(),
        folder.bases,
        compare=folder.compare,
        past_files_of=past_files_of,
        reached=reached,
    )


def _others(
    catalog: MaterializedViewCatalog,
    view: LoadedView,
    storage: LoadedStorage,
    folder: _Folder,
    history: History,
    files_of: FilesOf,
    *,
    dropped: bool = False,
) -> OtherTables:
    found, compare = history.others, folder.compare
    try:
        return others_in(
            catalog, view, storage, folder.bases, compare=compare, files_of=files_of, found=found, dropped=dropped
        )
    except UnsupportedError:
        if not dropped:  # by now the other entry may be the view's own, in another layout
            require_same(view, catalog.load(view.identifier))
        raise


def _state(catalog: MaterializedViewCatalog, view: LoadedView) -> tuple[str, str]:
    _, now = _now(catalog, view)
    return now


def _now(catalog: MaterializedViewCatalog, view: LoadedView) -> tuple[LoadedStorage, tuple[str, str]]:
    """Load the view's current state. If it is another view by now, nothing may be deleted."""
    again = catalog.load(view.identifier)
    require_same(view, again)
    storage = catalog.load_storage(again)
    return storage, (again.metadata_location, storage.location)


def _reach(catalog: MaterializedViewCatalog, view: LoadedView, folder: _Folder, files_of: FilesOf) -> _Reached:
    storage, state = _now(catalog, view)
    needed = dict.fromkeys((*state, *files_of(catalog, storage)))
    _check_needed(catalog, view.identifier, folder, needed)
    # A reader may have read the pointer just before it moved. Older files may be missing.
    row = catalog.row(view.identifier)
    previous = row.previous if row else None
    history = [entry.metadata_file for entry in storage.table.metadata_log]
    also = dict.fromkeys((*needed, *history, *([previous] if previous else [])))
    return _Reached(state, storage, frozenset(form for item in also for form in folder.compare.forms(item)), len(also))


def _check_needed(catalog: MaterializedViewCatalog, view: Identifier, folder: _Folder, needed: Iterable[str]) -> None:
    """Refuse to continue if a needed file is not listed: the listing is incomplete, or the view is damaged."""
    for location in needed:
        if any(folder.compare.may_lie_in(location, place) for place in folder.left_out):
            continue
        if not folder.holds(location):
            raise UnsupportedError(
                f"view {view} needs {location}, which is not below {' or '.join(folder.bases)}: orphans are "
                "only removed if all files of the view are in its folder. Nothing was deleted"
            )
        # A file that is younger than the listing is not in it.
        listed = folder.compare.exact(location) in folder.files
        if not listed and not catalog.files.exists(location, what=f"view {view}, file"):
            raise MetadataFileNotFoundError(
                f"view {view} needs the file {location}, which does not exist. Nothing was deleted; restore it, or "
                "recompute the rows with `refresh --full` and expire the older snapshots"
            )


# -- decision on each file -------------------------------------------------------------------------


def _judge(
    folder: _Folder,
    reached: _Reached,
    history: History | None,
    deletions: DeletionLog,
    grace_ms: int,
    others: OtherTables | None = None,
) -> _Decision:
    """Decide for each unreachable file whether it is deleted, waits, or stays."""
    judged, limit = _Decision(), folder.now_ms - grace_ms
    for file in folder.others(reached):
        whose = others.owner(file.location) if others else None
        proof = history.proof(file.location) if history else None
        if proof is None or history is None or whose is not None:
            why = UNPROVEN if history is None else history.why_not(file.location)
            judged.unproven[file.location] = f"it belongs to {whose}" if whose else why
            continue
        judged.proofs[file.location] = proof
        not_before_ms = history.since_ms(file, proof)
        since_ms = deletions.since_ms(file.location, now_ms=folder.now_ms, not_before_ms=not_before_ms)
        judged.marks[file.location] = since_ms
        due = max(since_ms, file.modified_ms) <= limit
        (judged.doomed if due else judged.young if file.modified_ms > limit else judged.waiting).append(file)
    _hold_proofs(folder, judged)
    judged.doomed.sort(key=partial(_first_to_go, judged.proofs))
    return judged


def _hold_proofs(folder: _Folder, judged: _Decision) -> None:
    """Keep a metadata file while a file that it proves is kept."""
    exact = folder.compare.exact
    held = {exact(by) for file in (*judged.young, *judged.waiting) if (by := judged.proofs[file.location].by)}
    while held:
        waits = [file for file in judged.doomed if exact(owner(file.location)) in held]
        judged.doomed = [file for file in judged.doomed if exact(owner(file.location)) not in held]
        judged.waiting += waits
        held = {exact(by) for file in waits if (by := judged.proofs[file.location].by)}


def _after(deletions: DeletionLog, judged: _Decision, now_ms: int) -> DeletionLog:
    """Return the deletion log after a collection. Reachable and deleted files no longer have a mark."""
    gone = {file.location for file in judged.doomed}
    marks = {location: since for location, since in judged.marks.items() if location not in gone}
    proofs = {file.location: judged.proofs[file.location].text for file in judged.doomed}
    return replace(deletions, marks=marks).with_run(now_ms, proofs)


def _collected(view: Identifier, judged: _Decision, reachable: int, *, dry_run: bool) -> CollectionResult:
    texts = {location: proof.text for location, proof in judged.proofs.items()}
    return CollectionResult(
        view,
        tuple(judged.doomed),
        len(judged.young),
        reachable,
        dry_run,
        {file.location: texts[file.location] for file in judged.doomed},
        {file.location: texts[file.location] for file in judged.waiting},
        judged.unproven,
    )


# -- deleting --------------------------------------------------------------------------------------


def _first_to_go(proofs: Mapping[str, Proof], file: StoredFile) -> tuple[int, str, bool]:
    """Order files so that an interrupted deletion leaves the proofs of the remaining files, and no staged outcome."""
    own = owner(file.location)
    return proofs[file.location].rank, own, own == file.location


def _delete(
    catalog: MaterializedViewCatalog,
    view: Identifier,
    bases: Sequence[str],
    files: Iterable[StoredFile],
    proofs: Mapping[str, Proof],
) -> None:
    for file in _confined(files, bases):
        with named(file.location, f"view {view}, file that nothing reaches"):
            catalog.files.delete(file.location)
        why = proofs[file.location].text
        log.info("Deleted %s (%d bytes), which %s no longer reaches: %s", file.location, file.size_bytes, view, why)


def _confined(files: Iterable[StoredFile], bases: Sequence[str]) -> Iterator[StoredFile]:
    """Leave out files whose path leads elsewhere through a symbolic link since they were listed."""
    for file in files:
        if all(leads_out(file.location, base) for base in bases):
            log.warning("Not deleted: %s leads out of the view's folder", file.location)
        else:
            yield file
