# SPDX-License-Identifier: Apache-2.0
"""Compact a storage table: write the rows of small files, and of files with deleted rows, into few files.

The rows stay the same. A Spark job stages the new files where no reader sees them, with Iceberg's procedure
``rewrite_data_files``: on a branch of its own, or in a metadata file that no view names. The change is then published
as any other: it requires the storage state that the job started from. If a refresh was published meanwhile, that one
wins, and the compaction begins again.

What is published is checked to consist of snapshots with the operation ``replace``: by the format they add and remove
files, but no rows. The record of the current refresh goes over to the last of them.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_mv.common.manifests import data_files_of, manifests_at
from airflow_mv.core.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog, TableChange
from airflow_mv.core.catalog.locations import join
from airflow_mv.core.publish.layout import ChangedMetadata
from airflow_mv.core.publish.pointed import check_staged, require_inside
from airflow_mv.core.publish.protocol import Effects, Verdict, commit
from airflow_mv.core.publish.publications import layout_of_view
from airflow_mv.core.publish.refresh import Current, load_current
from airflow_mv.core.publish.registered import drop_branch, holds_files
from airflow_mv.core.publish.storage_change import StorageChange
from airflow_mv.core.script import BRANCH, CLOCK, SESSION_CONFS, Outcome, RewriteStep, Script, Stager, job_error
from airflow_mv.core.spec.identifiers import Identifier, id_text
from airflow_mv.core.spec.materialized_view import PROPERTY, StorageState, property_text, refresh_tag, staging_branch
from airflow_mv.core.spec.properties import sort_order_of
from airflow_mv.core.spec.stored import decode, whole_number
from airflow_mv.core.spec.table_metadata import Snapshot, TableMetadata, parse_table, snapshots_between
from airflow_mv.errors import ClockError, InvalidMetadataError, JobError, MaterializedViewError

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

log = logging.getLogger(__name__)

#: How often a compaction begins again, because refreshes were published while its job ran.
ROUNDS = 3
#: All small files of a partition are written into one, and deleted rows are removed for good.
_OPTIONS = (("min-input-files", "2"), ("delete-file-threshold", "1"), ("remove-dangling-deletes", "true"))


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """The result of a compaction.

    Args:
        outcome: ``compacted``, ``not-needed``, ``superseded`` (a refresh was published while each job ran), or with
            ``dry_run`` ``would-compact``.
        why: What decided, as text.
        before: The files of the rows before.
        after: The files of the rows after; ``None`` if nothing was compacted.
        snapshot_id: The snapshot with the rows now; ``None`` if there are no rows.
    """

    view: Identifier
    outcome: str
    why: str
    before: StoredFiles | None = None
    after: StoredFiles | None = None
    snapshot_id: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return what the command line prints."""
        return {
            "outcome": self.outcome,
            "why": self.why,
            "before": _numbers(self.before),
            "after": _numbers(self.after),
            "snapshot_id": id_text(self.snapshot_id),
        }


def compact(
    catalog: MaterializedViewCatalog,
    view: str | Identifier,
    *,
    stager: Stager,
    dry_run: bool = False,
    effects: Effects | None = None,
) -> CompactionResult:
    """Compact the files of a view's rows, if there are many small ones, or many with deleted rows.

    Whether there are is decided from metadata, without Spark. The rows, the refresh history, and what the next refresh
    does stay the same. Files that are no longer needed are deleted by the collection of orphans.

    A refresh that was planned before the compaction and is published after it plans again.

    Args:
        dry_run: Only report what would be done.
        effects: Clock, sleep and jitter.

    Raises:
        JobError, ClockError, AccessDeniedError: The Spark job failed. Nothing was published.
        CommitConflictError, CommitStateUnknownError: See :func:`airflow_mv.core.publish.protocol.commit`.
    """
    identifier, result = catalog.identify(view), None
    for _ in range(ROUNDS):
        planned = load_current(catalog, identifier, None)
        result = _decided(catalog, planned, dry_run=dry_run)
        if result.outcome != _NEEDED:
            return result
        rewritten = _rewritten(catalog, planned, stager, effects or Effects())
        if rewritten is None:
            return CompactionResult(identifier, "not-needed", "Spark found no files to rewrite", result.before)
        if _Compaction(catalog, planned, rewritten, effects).applied():
            after = _files(catalog, rewritten.table, rewritten.head)
            log.info("Compacted %s: %s; before: %s", identifier, after.describe(), result.why)
            return CompactionResult(
                identifier, "compacted", result.why, result.before, after, rewritten.head.snapshot_id
            )
        log.info("%s changed while it was compacted", identifier)
    why = f"the view changed while each of {ROUNDS} jobs ran; nothing was published"
    return CompactionResult(identifier, "superseded", why, result.before if result else None)


_NEEDED = "needed"


def _lost(target: str, branch: str) -> JobError:
    return JobError(f"{target}: the branch {branch} with the compacted files was dropped meanwhile: compact it again")


def _decided(catalog: MaterializedViewCatalog, current: Current, *, dry_run: bool) -> CompactionResult:
    """Return the result if there is nothing to do, or nothing is to be done."""
    view, storage = current.view.identifier, current.storage
    head = None if storage.rows_snapshot is None else storage.table.find(storage.rows_snapshot)
    if storage.state is None or head is None:
        return CompactionResult(view, "not-needed", "the view has no rows yet")
    if not storage.intact or storage.altered(current.view).columns:
        return CompactionResult(
            view, "not-needed", f"another writer has changed {storage.name}: refresh the view first"
        )
    files = _files(catalog, storage.table, head)
    outcome = "not-needed" if not files.are_many else "would-compact" if dry_run else _NEEDED
    return CompactionResult(view, outcome, files.describe(), files, None, head.snapshot_id)


def _files(catalog: MaterializedViewCatalog, table: TableMetadata, snapshot: Snapshot) -> StoredFiles:
    manifests = manifests_at(catalog.files, snapshot.manifest_list) if snapshot.manifest_list is not None else ()
    files = (file for manifest in manifests for file in data_files_of(catalog.files, manifest))
    return stored_files(files, target_bytes(table))


def _numbers(files: StoredFiles | None) -> dict[str, int] | None:
    if files is None:
        return None
    return {"data_files": files.data_files, "delete_files": files.delete_files, "bytes": files.size_bytes}


# --------------------------------------------------------------------------------------- the job


@dataclass(frozen=True, slots=True)
class _Rewritten:
    """The staged rows.

    Args:
        table: The storage table's metadata with the staged snapshots.
        snapshots: The staged snapshots, oldest first; at least one.
        branch: The branch that holds them, if the storage table is in the catalog.
        document: The staged metadata file, decoded; else empty.
    """

    table: TableMetadata
    snapshots: tuple[Snapshot, ...]
    branch: str | None
    document: dict[str, Any]

    @property
    def head(self) -> Snapshot:
        """The snapshot with the rows."""
        return self.snapshots[-1]


def _rewritten(
    catalog: MaterializedViewCatalog, planned: Current, stager: Stager, effects: Effects
) -> _Rewritten | None:
    """Run the job; ``None`` if it has found nothing to do."""
    view, storage = planned
    outcome = stager(_script(view, storage))
    if outcome.error is not None or outcome.metadata_location is None:
        text = f"view {view.identifier}: the Spark job of the compaction failed, nothing was published: {outcome.error}"
        raise ClockError(text) if outcome.error_class == CLOCK else job_error(text, storage.table.location)
    try:
        found = _staged(catalog, planned, outcome)
    except MaterializedViewError:
        drop_branch(catalog, storage.name, outcome.branch, effects)
        raise
    if found is None:
        drop_branch(catalog, storage.name, outcome.branch, effects)
    return found


def _script(view: LoadedView, storage: LoadedStorage) -> Script:
    token, target = str(uuid.uuid4()), storage.target
    rewrite = RewriteStep(
        target.table, BRANCH if target.branch else "", _OPTIONS, sorts=bool(sort_order_of(storage.table))
    )
    return Script(
        view=str(view.identifier),
        refresh_id=token,
        table=target.table,
        steps=(*target.opening, rewrite),
        outcome_location=join(storage.table.location, "staged", f"{token}.json"),
        confs=SESSION_CONFS,
        branch=staging_branch(token) if target.branch else None,
    )


def _staged(catalog: MaterializedViewCatalog, planned: Current, outcome: Outcome) -> _Rewritten | None:
    """Return what the job has staged, after a check that only files have changed and no rows.

    Raises:
        InvalidMetadataError: The job's report does not fit the storage table.
        JobError: The staged files are lost.
    """
    view, storage = planned.view.identifier, planned.storage
    document: dict[str, Any] = {}
    if outcome.branch is not None:
        table = load_current(catalog, view, planned.view.metadata.view_uuid).storage.table
        ref = table.refs.get(outcome.branch)
        if ref is None:
            raise _lost(f"view {view}", outcome.branch)
        head: int | None = ref.snapshot_id
    else:
        location, what = outcome.metadata_location or "", f"view {view}, staged storage table file"
        require_inside(location, storage, what=what)
        data = catalog.files.read(location, what=what)
        table, document = parse_table(data, source=f"{what} {location}"), decode(data, source=f"{what} {location}")
        check_staged(view, storage.location, storage, table, location)
        head = table.head
    added = None if head is None else snapshots_between(table, storage.rows_snapshot, head)
    if added is None or any(snapshot.operation != "replace" for snapshot in added):
        raise InvalidMetadataError(f"view {view}: what the compaction has staged does not hold the view's rows")
    if not added:
        return None
    if not holds_files(catalog, storage, added[-1]):
        raise JobError(f"view {view}: the staged snapshot {added[-1].snapshot_id} has lost its files: compact it again")
    catalog.folders.flush(planned.view, added)
    return _Rewritten(table, added, outcome.branch, document)


# --------------------------------------------------------------------------------- the publication


class _Compaction(StorageChange):
    """Publish staged files. It has landed if the view's rows descend from the staged snapshots.

    Args:
        planned: The state that the job started from.
        rewritten: What it has staged.
        effects: Clock, sleep and jitter.
    """

    def __init__(
        self, catalog: MaterializedViewCatalog, planned: Current, rewritten: _Rewritten, effects: Effects | None
    ) -> None:
        super().__init__(catalog, planned.view.identifier, "the compaction", effects)
        self._uuid = planned.view.metadata.view_uuid
        self._base, self._planned_layout = planned.storage.base, layout_of_view(planned.view)
        self._rewritten = rewritten
        self._now = planned

    def applied(self) -> bool:
        """Run the protocol; ``False`` if another change came first. Nothing was published then."""
        return commit(self).verdict == Verdict.LANDED

    def load(self) -> Current:
        """Load the view and its storage table."""
        self._now = super().load()
        return self._now

    def is_needed(self, _view: LoadedView, storage: LoadedStorage) -> bool:
        """Whether the rows do not descend from the staged snapshots."""
        staged = self._rewritten.head.snapshot_id
        return snapshots_between(storage.table, staged, storage.table.head) is None

    def judge(self, state: Current) -> Verdict:
        """``SUPERSEDED`` if the rows are not those that the job has read."""
        verdict = super().judge(state)
        same = state.storage.base == self._base and layout_of_view(state.view) is self._planned_layout
        return verdict if verdict == Verdict.LANDED or same else Verdict.SUPERSEDED

    def send(self, state: Current) -> bool:
        """Send it in the way of the view's layout.

        Raises:
            JobError: The staged files can no longer be published.
        """
        branch = self._rewritten.branch
        if branch is not None and branch not in state.storage.table.refs:
            raise _lost(self.target, branch)
        if self._attempt is None:  # else the first one would drop the branch as that of another layout
            self._attempt, self._layout = self.attempt(self._planned_layout), self._planned_layout
        return super().send(state)

    def changed_metadata(self, storage: LoadedStorage, document: dict[str, Any], _now_ms: int) -> ChangedMetadata:
        """Return the staged metadata. The files that the job has written in between were never published."""
        head, staged = self._rewritten.head, dict(self._rewritten.document)
        if (tag := self._kept_tag(storage)) is not None:
            staged["refs"] = {**staged["refs"], tag: {**staged["refs"][tag], "snapshot-id": head.snapshot_id}}
        staged["metadata-log"] = document.get("metadata-log", [])
        return ChangedMetadata(staged, {PROPERTY: self._record(storage)})

    def table_change(self, storage: LoadedStorage) -> TableChange:
        """Move ``main`` and the tags of the current refresh, and drop the branch. The state must be as it was."""
        state, branch = storage.state, self._rewritten.branch
        snapshot_id, kept = self._rewritten.head.snapshot_id, self._kept_tag(storage)
        own = {**({state.tag: storage.tagged} if state else {}), **self._now.view.definition_tags}
        return TableChange(
            requires={"main": storage.table.head, **own, **({branch: snapshot_id} if branch else {})},
            branches={"main": snapshot_id},
            tags=dict.fromkeys([*own, *([kept] if kept else [])], snapshot_id),
            removes=(branch,) if branch else (),
            properties={PROPERTY: self._record(storage)},
        )

    def clean_up(self) -> None:
        """Drop the branch, or delete the metadata file. The staged files are left as orphans."""
        super().clean_up()
        drop_branch(self._catalog, self._now.storage.name, self._rewritten.branch, self.effects)

    def _record(self, storage: LoadedStorage) -> str:
        """Return the refresh history: the current refresh's rows are in the staged snapshot."""
        if storage.state is None:
            raise InvalidMetadataError(f"{self.target}: it was never refreshed")
        return property_text(moved_to(storage.state, self._rewritten.head.sequence_number))

    def _kept_tag(self, storage: LoadedStorage) -> str | None:
        """Return the tag that keeps the current refresh's rows for time travel, if there is one."""
        tag = refresh_tag(storage.state.current_refresh_id) if storage.state else ""
        return tag if tag in storage.table.refs else None


# --------------------------------------- Decide from metadata whether a compaction of stored rows is worth a Spark job


#: So many small data files in one partition, or so many delete files in all, are worth a compaction.
MIN_FILES = 5
_TARGET_PROPERTY, _TARGET_BYTES = "write.target-file-size-bytes", 512 * 1024 * 1024
#: A data file below this share of the target size is small. Iceberg's ``rewrite_data_files`` has the same default.
_SMALL = 0.75
#: The content of a file with rows; every other file holds deleted rows.
_DATA = 0


@dataclass(frozen=True, slots=True)
class StoredFiles:
    """The files of one snapshot of a storage table.

    Args:
        data_files: How many data files it has.
        delete_files: How many files with deleted rows it has: position deletes and deletion vectors.
        size_bytes: The size of all of them.
        most_small: The most small data files in one partition.
    """

    data_files: int
    delete_files: int
    size_bytes: int
    most_small: int

    @property
    def are_many(self) -> bool:
        """Whether a compaction is worth a Spark job."""
        return self.most_small >= MIN_FILES or self.delete_files >= MIN_FILES

    def describe(self) -> str:
        """Return the numbers on which the decision is based, as text."""
        return (
            f"data files: {self.data_files}, the most small ones in a partition: {self.most_small}, "
            f"delete files: {self.delete_files}"
        )


def target_bytes(table: TableMetadata) -> int:
    """Return the size that a table's data files should have."""
    return whole_number(table.properties.get(_TARGET_PROPERTY, ""), 0) or _TARGET_BYTES


def stored_files(files: Iterable[DataFile], target: int) -> StoredFiles:
    """Count the files of a snapshot.

    Args:
        files: Its data and delete files.
        target: The size in bytes that a data file should have.
    """
    data = deletes = size = 0
    small: dict[tuple[int, object], int] = {}
    for file in files:
        size += file.file_size_in_bytes
        if int(file.content) != _DATA:
            deletes += 1
            continue
        data += 1
        if file.file_size_in_bytes < target * _SMALL:
            key = (file.spec_id, file.partition)
            small[key] = small.get(key, 0) + 1
    return StoredFiles(data, deletes, size, max(small.values(), default=0))


def moved_to(state: StorageState, sequence_number: int) -> StorageState:
    """Return the state with the current refresh's rows, unchanged, in another snapshot.

    Args:
        sequence_number: The snapshot's.
    """
    document = state.document()
    for record in document["refreshes"]:
        if record["refresh-id"] == state.current_refresh_id:
            record["sequence-number"] = sequence_number
    return StorageState.read(document, source=PROPERTY)
