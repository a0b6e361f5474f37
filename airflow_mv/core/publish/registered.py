# SPDX-License-Identifier: Apache-2.0
"""The registered layout: the storage table is a table of the catalog, and one commit to it publishes.

Each run stages its refresh on a separate branch. Rows with other columns are staged in a metadata file. The commit
moves ``main`` to the staged snapshot, writes the record into the table's property, drops the branch and moves the
*current tag*, all at once. It requires the state that it was planned on: the position of ``main``, and the tag of the
refresh that was current. There is one such tag at a time, and no two refreshes have the same id. So at most one of all
commits from one state is applied, including commits that move no branch. The commit also requires the branch: after
that is dropped, a late copy is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

from airflow_mv.core.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog, TableChange
from airflow_mv.core.catalog.locations import in_folder
from airflow_mv.core.catalog.sql import TABLE
from airflow_mv.core.publish.layout import (
    StorageEdit,
    StorageLayout,
    good_outcome,
)
from airflow_mv.core.publish.pointed import (
    FileEdit,
    PointedPublication,
    check_staged,
    require_inside,
    staged_snapshot,
)
from airflow_mv.core.publish.protocol import Change, Effects, Verdict, commit
from airflow_mv.core.publish.refresh import (
    Attempt,
    PlannedRefresh,
    Staged,
    dropped_tags,
    history_properties,
    keeps_history,
    next_state,
)
from airflow_mv.core.script import (
    COMPLETE_KEY,
    FALLBACK_KEY,
    MAX_AHEAD_MS,
    REFRESH_ID_KEY,
    Outcome,
    Script,
    rows_changed,
)
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import (
    STORAGE_FOLDER_PROPERTY,
    STORAGE_TABLE_PROPERTY,
    STORAGE_TABLE_UUID_PROPERTY,
    corrected,
    current_tag,
    is_ahead,
    refresh_tag,
    staging_branch,
)
from airflow_mv.core.spec.new_columns import NewColumns, new_columns
from airflow_mv.core.spec.reasons import Mode
from airflow_mv.core.spec.stored import decode
from airflow_mv.core.spec.table_metadata import Snapshot, TableMetadata, ancestors, parse_table
from airflow_mv.errors import (
    CatalogUnavailableError,
    InvalidMetadataError,
    JobError,
    MaterializedViewError,
    MetadataFileNotFoundError,
    NewerFormatError,
    ViewNotFoundError,
)

log = logging.getLogger(__name__)

_MAIN = "main"


class RegisteredAttempt(Attempt):
    """One publication by a commit to the storage table.

    Args:
        catalog: Where the view and its storage table are.
        staged: The staged refresh.

    Raises:
        InvalidMetadataError: The branch does not belong to this refresh. It is neither published nor dropped.
    """

    def __init__(self, catalog: MaterializedViewCatalog, staged: Staged) -> None:
        plan, where = staged.plan, staged.where
        self._file = StagedFile(catalog, plan, where) if where is not None and is_file(where) else None
        self._branch = None if self._file else where
        if self._branch is not None and not self._branch.startswith(f"{staging_branch(plan.refresh_id)}_"):
            raise InvalidMetadataError(
                f"view {plan.view}: branch {where!r} does not belong to refresh {plan.refresh_id}"
            )
        self._catalog = catalog
        self._staged = staged
        self._now_ms: int | None = None
        self._checked = False
        self._stamps: set[int | None] = set()
        self._snapshot_id: int | None = None

    def fits(self, view: LoadedView, storage: LoadedStorage) -> bool:
        """Whether no snapshot was added to the table since rows with other columns were staged in a file."""
        return self._file is None or self._file.read(view, storage).columns.fits(storage.table.last_sequence_number)

    def send(self, view: LoadedView, storage: LoadedStorage) -> str | None:
        """Commit to the storage table."""
        table = self._staged.plan.storage_table or _name(storage)
        change = self.change(view, storage)
        location = self._catalog.tables.commit(table, storage.table.table_uuid or "", change)
        log.info("Commit to %s: %s", table, "done" if location else "rejected, the table had changed")
        return location if location is not None and self.is_read(view) else None

    def is_read(self, view: LoadedView) -> bool:
        """Whether the view still names the storage table: a commit to a table cannot require that.

        The view may have been dropped and created again in between, or been given another table because its own was
        lost. Then the refresh is in the old table, where no reader sees it, and is planned again.
        """
        try:
            now = self._catalog.load(view.identifier)
        except ViewNotFoundError:
            return False
        names = (STORAGE_TABLE_PROPERTY, STORAGE_TABLE_UUID_PROPERTY)
        return all(now.metadata.properties.get(key) == view.metadata.properties.get(key) for key in names)

    def change(self, view: LoadedView, storage: LoadedStorage) -> TableChange:
        """Return the commit that publishes the refresh on a state of the view and its storage table."""
        plan, branch = self._staged.plan, self._branch
        snapshot = self.snapshot(view, storage)
        if self._now_ms is None:
            self._now_ms = time_of_commit(self._catalog, storage, self._staged.effects.now_ms())
        columns = self._file.read(view, storage).columns if self._file else None
        spec_id = storage.table.default_spec_id if columns is None else columns.spec_id
        shape = {"spec-id": spec_id, "sort-order-id": storage.table.default_sort_order_id}
        state = next_state(self._staged, view, storage, snapshot, now_ms=self._now_ms, shape=shape)
        self._stamps.add(state.current.refreshed_at_ms)
        self._snapshot_id = snapshot.snapshot_id
        before = storage.state.tag if storage.state else None
        tags = [current_tag(plan.refresh_id), *([refresh_tag(plan.refresh_id)] if keeps_history(view) else [])]
        needless = (before, branch, *_left_over(storage), *dropped_tags(view, storage.state, state))
        return TableChange(
            requires={
                _MAIN: storage.table.head,
                current_tag(plan.refresh_id): None,
                **({before: storage.tagged} if before else {}),
                **({branch: snapshot.snapshot_id} if branch else {}),
            },
            branches={_MAIN: snapshot.snapshot_id} if snapshot.snapshot_id != storage.table.head else {},
            tags=dict.fromkeys(tags, snapshot.snapshot_id),
            removes=tuple(name for name in needless if name in storage.table.refs),
            properties=history_properties(view, storage, state),
            columns=columns,
        )

    def snapshot(self, view: LoadedView, storage: LoadedStorage) -> Snapshot:
        """Return the snapshot with the refresh's rows: the staged one, or the present one."""
        if self._file is not None:
            return self._file.read(view, storage).snapshot
        plan, branch = self._staged.plan, self._branch
        ref = storage.table.refs.get(branch) if branch else None
        found = ref.snapshot_id if ref else None if branch else storage.rows_snapshot
        snapshot = storage.table.find(found) if found is not None else None
        if snapshot is None:
            raise JobError(
                f"view {plan.view}: the branch {branch or _MAIN!r} of the storage table {storage.name}, which had the "
                "staged rows, no longer exists. Run the refresh again"
            )
        if branch:
            self._check(view, storage, branch, snapshot)
        return snapshot

    def _check(self, view: LoadedView, storage: LoadedStorage, branch: str, snapshot: Snapshot) -> None:
        plan = self._staged.plan
        if plan.mode != Mode.FULL and snapshot.snapshot_id == storage.rows_snapshot:
            return  # the job wrote nothing, because no row of the view has changed
        if snapshot.summary.get(REFRESH_ID_KEY) != plan.refresh_id:
            raise InvalidMetadataError(
                f"view {plan.view}: the branch {branch!r} of {storage.name} was not written by refresh "
                f"{plan.refresh_id}: drop it, and run the refresh again"
            )
        if self._checked:
            return
        if not holds_files(self._catalog, storage, snapshot):
            self.clean_up()
            raise JobError(
                f"view {plan.view}: the staged snapshot {snapshot.snapshot_id} of {storage.name} has lost its files "
                f"({snapshot.manifest_list}). Nothing was published; run the refresh again"
            )
        line = ancestors(storage.table, snapshot.snapshot_id)
        # The first branch of an empty table starts with an empty snapshot, which the job writes too.
        first = storage.rows_snapshot is None
        own = [item for item in line if first or item.summary.get(REFRESH_ID_KEY) == plan.refresh_id]
        self._catalog.folders.flush(view, own)
        self._checked = True

    def may_land(self, view: LoadedView, storage: LoadedStorage) -> bool:
        """Always: a commit requires a state of the storage table, but not of the view."""
        return True

    def is_publisher(self, storage: LoadedStorage) -> bool:
        """Whether our record is in the history or, if it was dropped from it, ``main`` descends from our snapshot.

        The branch is dropped, if another run published the refresh. The commit that landed has dropped its own branch.
        """
        self.clean_up()
        refresh_id = self._staged.plan.refresh_id
        recorded = storage.state.refreshes if storage.state else ()
        for record in recorded:
            if record.refresh_id == refresh_id:
                # Another process may have published the same branch. Its record has another time.
                return record.refreshed_at_ms in self._stamps
        return any(item.snapshot_id == self._snapshot_id for item in ancestors(storage.table, storage.table.head))

    def clean_up(self) -> None:
        """Drop the branch. After that no copy of the commit that is still in flight can be applied."""
        drop_branch(self._catalog, self._staged.plan.storage_table, self._branch, self._staged.effects)


def holds_files(catalog: MaterializedViewCatalog, storage: LoadedStorage, snapshot: Snapshot) -> bool:
    """Whether the files of a staged snapshot exist.

    Java's JdbcCatalog deletes the files of a commit whose answer was lost, even if it has landed.

    Args:
        storage: Its storage table. Only if the catalog holds it, a snapshot may have lost its files.
    """
    if snapshot.manifest_list is None or storage.name is None:
        return True
    return catalog.tables.has_file(storage.name, snapshot.manifest_list)


def drop_branch(
    catalog: MaterializedViewCatalog, table: Identifier | None, branch: str | None, effects: Effects
) -> None:
    """Drop a branch that is no longer needed; a failure is logged.

    Args:
        table: The storage table, if the catalog holds it.
        branch: The branch, if there is one.
        effects: Clock, sleep and jitter.
    """
    if branch is None or table is None:
        return
    try:
        commit(DropBranch(catalog, table, branch, effects))
    except MaterializedViewError as error:
        log.warning("Could not drop the unneeded branch %s: %s", branch, error)


class DropBranch(Change[TableMetadata | None]):
    """The removal of a branch from a table of the catalog. It has landed if the branch or the table does not exist.

    Args:
        effects: Clock, sleep and jitter.
    """

    def __init__(self, catalog: MaterializedViewCatalog, table: Identifier, branch: str, effects: Effects) -> None:
        super().__init__(f"table {table}", f"the removal of branch {branch}", effects)
        self._catalog, self._table, self._branch = catalog, table, branch
        self._required: int | None = None

    def load(self) -> TableMetadata | None:
        """Load the table's metadata."""
        located = self._catalog.locate([self._table]).get(self._table)
        return self._catalog.table_metadata(self._table, located) if located is not None else None

    def judge(self, state: TableMetadata | None) -> Verdict:
        """Look for the branch."""
        return Verdict.LANDED if state is None or self._branch not in state.refs else Verdict.READY

    def send(self, state: TableMetadata | None) -> bool:
        """Remove the branch, if it has not moved since it was loaded."""
        if state is None:
            return False
        self._required = state.refs[self._branch].snapshot_id
        change = TableChange(requires={self._branch: self._required}, removes=(self._branch,))
        return self._catalog.tables.commit(self._table, state.table_uuid or "", change) is not None

    def may_land(self, state: TableMetadata | None) -> bool:
        """Whether the branch has not moved since the change was sent."""
        return state is not None and state.refs[self._branch].snapshot_id == self._required


class CommitEdit(Attempt):
    """An edit that is sent as a commit to the storage table."""

    def __init__(self, catalog: MaterializedViewCatalog, change: StorageEdit) -> None:
        self._catalog, self._change = catalog, change
        self._sent: TableChange | None = None

    def send(self, view: LoadedView, storage: LoadedStorage) -> str | None:
        """Commit to the storage table."""
        self._sent = self._change.table_change(storage)
        return self._catalog.tables.commit(_name(storage), storage.table.table_uuid or "", self._sent)

    def may_land(self, view: LoadedView, storage: LoadedStorage) -> bool:
        """Whether what the commit required of the table is as it was."""
        return self._sent is not None and self._change.table_change(storage).requires == self._sent.requires

    def clean_up(self) -> None:
        """Do nothing: no file was written."""


class RowEdit(FileEdit):
    """An edit that swaps the storage table's row in a SQL catalog."""

    def base_of(self, view: LoadedView, storage: LoadedStorage) -> str:
        """Return the table's metadata file."""
        return storage.location

    def swap(self, view: LoadedView, storage: LoadedStorage, location: str) -> bool:
        """Swap the table's row."""
        return self._catalog.swap(_name(storage), storage.location, location, kind=TABLE)


def time_of_commit(catalog: MaterializedViewCatalog, storage: LoadedStorage, now_ms: int) -> int:
    """Return the time for a record that a commit writes: this host's, or the store's if this host's clock is ahead.

    Args:
        now_ms: This host's time.
    """
    if now_ms <= storage.table.last_updated_ms + MAX_AHEAD_MS:
        return now_ms  # staging has just changed the table, so the store's clock need not be read
    try:
        store_ms = catalog.files.now_ms(storage.table.location)
    except MaterializedViewError as error:
        log.warning("Could not read the store's clock for %s: %s", storage.name, error)
        return now_ms
    return now_ms if now_ms <= store_ms + MAX_AHEAD_MS else store_ms


def _name(storage: LoadedStorage) -> Identifier:
    if storage.name is None:
        raise InvalidMetadataError(f"the storage table {storage.location} is not registered in the catalog")
    return storage.name


def _left_over(storage: LoadedStorage) -> list[str]:
    """Return the branches of other runs of the current refresh. It has landed, so they will not be published.

    Without a record, return the tag of the refresh whose record another program has removed.
    """
    if storage.state is None:
        return [name for name in storage.table.refs if name.startswith(current_tag(""))]
    prefix = f"{staging_branch(storage.state.current_refresh_id)}_"
    return [name for name in storage.table.refs if name.startswith(prefix)]


class RegisteredPublication(StorageLayout):
    """A refresh is staged on a branch or in a metadata file, and published by a commit to the storage table."""

    name = "registered"

    def attempt(self, catalog: MaterializedViewCatalog, staged: Staged) -> Attempt:
        """Return the attempt that commits to the storage table."""
        return RegisteredAttempt(catalog, staged)

    def staged_before(
        self, catalog: MaterializedViewCatalog, plan: PlannedRefresh, script: Script
    ) -> Iterator[Outcome]:
        """Yield the branches that runs of the refresh have written completely, by their snapshots' summaries.

        For other columns, yield the complete metadata file.
        """
        if script.branch is None:
            yield from staged_files(catalog, plan, script)
            return
        storage = catalog.load_storage(catalog.load(plan.view))
        prefix, whole = f"{staging_branch(plan.refresh_id)}_", (plan.refresh_id, "true")
        # The outcome records which branch of this refresh was checked, and the results.
        checked = good_outcome(catalog, script) if script.checks else None
        for name, ref in storage.table.refs.items():
            head = storage.table.find(ref.snapshot_id) if name.startswith(prefix) else None
            if head is None or (head.summary.get(REFRESH_ID_KEY), head.summary.get(COMPLETE_KEY)) != whole:
                continue
            found = _branch_outcome(storage, head, name)
            if checked is not None and checked.branch == name:
                found = replace(found, checks=checked.checks, checks_digest=checked.checks_digest)
            yield found

    def edit(
        self, catalog: MaterializedViewCatalog, change: StorageEdit, effects: Effects, *, as_file: bool = False
    ) -> Attempt:
        """Return the attempt that commits to the storage table, or that swaps its row."""
        return RowEdit(catalog, change, effects) if as_file else CommitEdit(catalog, change)

    def drop_storage(self, catalog: MaterializedViewCatalog, view: LoadedView, *, force: bool) -> str | None:
        """Drop the table that the view names, if it is the view's own. Its files stay."""
        text = view.metadata.properties.get(STORAGE_TABLE_PROPERTY)
        try:
            name = view.storage_table
            if name is None:
                return None
            try:
                _drop_table(catalog, view, name)
            except (InvalidMetadataError, MetadataFileNotFoundError):
                if not _drop_row(catalog, view, name, force=force):
                    raise
        except (InvalidMetadataError, MetadataFileNotFoundError, NewerFormatError) as error:
            log.warning("Could not drop the storage table of %s from the catalog: %s", view.identifier, error)
            return f"the storage table {text} was not dropped: {error}"
        return None


def _drop_table(catalog: MaterializedViewCatalog, view: LoadedView, name: Identifier) -> None:
    """Drop a view's storage table. Again if there is no answer: the view is dropped, so no later call would do it."""
    uuid = view.metadata.properties.get(STORAGE_TABLE_UUID_PROPERTY)
    try:
        catalog.tables.drop(name, uuid=uuid, owner=view.identifier)
    except CatalogUnavailableError as error:
        log.warning("Dropping the storage table of %s failed, trying again: %s", view.identifier, error)
        catalog.tables.drop(name, uuid=uuid, owner=view.identifier)


def _drop_row(catalog: MaterializedViewCatalog, view: LoadedView, name: Identifier, *, force: bool) -> bool:
    """Drop the row of a storage table that cannot be loaded, if its place proves whose it is; whether it was done."""
    row = catalog.row(name) if catalog.is_sql else None
    folder = view.metadata.properties.get(STORAGE_FOLDER_PROPERTY, "")
    if row is None or not (force or in_folder(folder, row.location)):
        return False
    catalog.pointers.delete(name, base=row.location, kind=TABLE)
    return True


def _branch_outcome(storage: LoadedStorage, head: Snapshot, branch: str) -> Outcome:
    """Return a run's outcome, as far as its snapshots record it."""
    identity = head.summary[REFRESH_ID_KEY]
    line = ancestors(storage.table, head.snapshot_id)
    own = [item for item in line if item.summary.get(REFRESH_ID_KEY) == identity]
    written, deleted = rows_changed(item.summary for item in own)
    fallback, _, reason = head.summary.get(FALLBACK_KEY, "").partition(": ")
    return Outcome(
        refresh_id=identity,
        metadata_location=storage.location,
        rows_written=written,
        rows_deleted=deleted,
        fallback=fallback or None,
        fallback_reason=reason or None,
        branch=branch,
    )


# -------------------------------------------------------- rows with other columns, staged in a file


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The content of a staged file.

    Args:
        snapshot: The snapshot with the rows.
        columns: What the job has added to the table's metadata.
    """

    snapshot: Snapshot
    columns: NewColumns


class StagedFile:
    """A metadata file with a refresh's rows. It is read once."""

    def __init__(self, catalog: MaterializedViewCatalog, plan: PlannedRefresh, location: str) -> None:
        self._files, self._flush, self._plan, self._location = catalog.files, catalog.folders.flush, plan, location
        self._found: StagedRows | None = None

    def read(self, view: LoadedView, storage: LoadedStorage) -> StagedRows:
        """Return the content, after a check that the refresh wrote it.

        Raises:
            InvalidMetadataError: It belongs to another refresh or table, or does not follow from the planned state.
        """
        if self._found is None:
            self._found = self._read(view, storage)
        return self._found

    def _read(self, view: LoadedView, storage: LoadedStorage) -> StagedRows:
        plan, location, what = self._plan, self._location, _what(self._plan)
        require_inside(location, storage, what=what)
        data = self._files.read(location, what=what)
        table = parse_table(data, source=f"{what} {location}")
        check_staged(plan.view, plan.storage_table_location, storage, table, location)
        head = staged_snapshot(plan, table, location)
        self._flush(view, [item for item in table.snapshots if item.snapshot_id not in storage.table.by_id])
        document = decode(data, source=f"{what} {location}")
        store_ms = self._files.modified_ms(location)
        if is_ahead(document, store_ms + MAX_AHEAD_MS):  # the driver's clock is
            document = corrected(document, store_ms)
        before = self._files.read(plan.storage_table_location, what=f"view {plan.view}, storage table file")
        added = new_columns(decode(before, source=what), document, source=f"{what} {location}")
        return StagedRows(head, added)


def is_file(where: str) -> bool:
    """Whether rows are staged in a metadata file, not on a branch."""
    return "/" in where


def staged_files(catalog: MaterializedViewCatalog, plan: PlannedRefresh, script: Script) -> Iterator[Outcome]:
    """Yield the outcome of an earlier try, if its metadata file follows from the table's present one."""
    for outcome in PointedPublication().staged_before(catalog, plan, script):
        location = outcome.metadata_location or ""
        table = parse_table(catalog.files.read(location, what=_what(plan)), source=f"{_what(plan)} {location}")
        if plan.storage_table_location in {entry.metadata_file for entry in table.metadata_log}:
            yield outcome


def _what(plan: PlannedRefresh) -> str:
    return f"view {plan.view}, staged storage table file"
