# SPDX-License-Identifier: Apache-2.0
"""The invariants of the commit protocol, and the reported outcomes. They are checked at every change."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import greenlet

from airflow_mv.core.catalog import LoadedStorage, LoadedView
from airflow_mv.core.catalog.layouts import all_refreshes
from airflow_mv.core.refresh.plan import RefreshPlan, RefreshResult
from airflow_mv.core.script import MAX_AHEAD_MS
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import ADOPTED_TAG, RefreshRecord, parse_storage_state
from airflow_mv.core.spec.reasons import Mode
from airflow_mv.core.spec.table_metadata import Snapshot, parse_table
from airflow_mv.errors import (
    AlreadyExistsError,
    CommitConflictError,
    MaterializedViewError,
    MetadataFileNotFoundError,
    NotFoundError,
)
from tests.builders import State
from tests.protocol.simulation.queries import columns_of
from tests.protocol.simulation.world import BASES, MINUTE, OWNER, STORAGE, VIEW, Violation, World

#: The history position of each base table's current snapshot, as a refresher saw it.
Seen = dict[Identifier, int]


@dataclass
class Ledger:
    """Records every refresh that landed and every outcome that was reported.

    Args:
        world: The simulated world.
        landed: The published refresh ids in order, each with the view's uuid.
        refuted: The refresh ids that were reported as never to be published.
        records: All refreshes that were ever current, in order.
        landed_before: The number of earlier refreshes when a storage metadata file became current.
        seen: The states of the base tables that each running try has read last.
        plans: The input of each running try's plan: states of the base tables, and the number of refreshes.
        position: The position of the current rows in the base tables' histories.
        rollbacks: The rollbacks that landed.
        versions: The view's version that each running process has read last.
        changed: The definitions, properties and creations of the view that have landed.
        impossible: Those that were reported as never to land.
        foreign: The files of adopted tables from before their adoption.
    """

    world: World
    landed: list[str] = field(default_factory=list)
    refuted: set[str] = field(default_factory=set)
    records: list[RefreshRecord] = field(default_factory=list)
    landed_before: dict[str, int] = field(default_factory=dict)
    seen: dict[greenlet.greenlet, Seen] = field(default_factory=dict)
    plans: dict[greenlet.greenlet, tuple[Seen, int]] = field(default_factory=dict)
    position: Seen = field(default_factory=lambda: dict.fromkeys(BASES, 0))
    rollbacks: set[str] = field(default_factory=set)
    versions: dict[greenlet.greenlet, int] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    impossible: set[str] = field(default_factory=set)
    foreign: set[str] = field(default_factory=set)
    _reach: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)

    def view_created(self) -> None:
        """Start the records of a new view without refreshes."""
        view = self.view()
        assert view is not None
        for mark in (view.metadata.view_uuid, creation_of(_sql(view, 1))):
            # If the view was dropped in between, a second copy of its creation is applied, too.
            self.changed.add(mark)
            self._check_possible(mark)
        self.position = dict.fromkeys(BASES, 0)
        self.storage_created()

    def storage_created(self) -> None:
        """Note the first state of a view's storage table, if the view has it already."""
        if (state := self.state()) is not None:
            self.landed_before.setdefault(state.storage.location, len(self.records))

    def left_table_changed(self, location: str) -> None:
        """Note a commit to a storage table whose view was dropped: a refresh that has loaded the view before lands."""
        self.landed_before.setdefault(location, len(self.records))
        table = parse_table(self.world.files[location].data, source=location)
        state = parse_storage_state(table.properties, view=str(VIEW), location=location)
        if state is not None and state.current.refresh_id not in self.landed:
            self.landed.append(state.current.refresh_id)

    # -- the pointer -------------------------------------------------------------------------------

    def view(self) -> LoadedView | None:
        """Return the view, or ``None`` if there is none."""
        with self.world.at_once():
            try:
                return self.world.catalog.load(VIEW) if self.world.has_view else None
            except MetadataFileNotFoundError as error:
                raise Violation(f"I2: the pointer leads to a missing file: {error}") from None

    def state(self) -> State | None:
        """Return the state that the pointer leads to, or ``None`` if the view is dropped.

        Of two creations one may have removed the other's storage table, which then creates another one: until then the
        view has none.
        """
        view = self.view()
        if view is None:
            return None
        with self.world.at_once():
            try:
                return State(view, self.world.catalog.load_storage(view))
            except MetadataFileNotFoundError:
                raise
            except NotFoundError:
                return None

    def before_swap(self, base: str) -> tuple[LoadedView | None, State | None]:
        """Check the state before a swap."""
        if self.world.rows[VIEW].location != base:
            raise Violation("I1: the swap did not start from the current pointer")
        return self.view(), self.state()

    def after_swap(self, found: tuple[LoadedView | None, State | None], role: str, version: int | None = None) -> None:
        """Check the state after a change of the pointer.

        Args:
            found: The view and its state before it.
            role: What its sender does.
            version: The view's version that its sender has read last; a swap requires the current one.
        """
        try:
            view, after, live = self.view(), self.state(), self.live()
        except MetadataFileNotFoundError as error:
            raise Violation(f"I2: the pointer leads to a missing file: {error}") from None
        for name in live:
            if name not in self.world.files:
                raise Violation(f"I2: a live file is missing: {name}")
        earlier, before = found
        if earlier is not None and view is not None:
            self._view_changed(earlier, view)
        elif view is not None and after is not None:
            self._adopted(view, after)
        if before is None or after is None:
            self.storage_created()
            return
        _check_clock(before, after, self.world.now)
        _check_size(after)
        if after.storage.location != before.storage.location:
            try:
                self._storage_changed(before, after, role, version)
            finally:  # clean-up after a violation plans on this state
                self.landed_before[after.storage.location] = len(self.records)

    def _adopted(self, view: LoadedView, state: State) -> None:
        """Check that the adoption started from the rows that the table had, and has all of them as those of others."""
        table, adopted_at = state.storage.table, view.adopted_at
        if adopted_at is None or any(item.sequence_number > adopted_at for item in table.snapshots):
            raise Violation("I11: rows that others have written before an adoption count as the view's")
        if table.refs[ADOPTED_TAG].snapshot_id != table.head:
            raise Violation("I1: an adoption did not start from the table's current rows")
        with self.world.at_once():
            own = files_of(self.world.catalog, state.storage)
        self.foreign |= {*own, *(entry.metadata_file for entry in table.metadata_log)}
        self.view_created()
        self.world.events["view adopted"] += 1

    def _view_changed(self, before: LoadedView, after: LoadedView) -> None:
        if after.metadata.view_uuid != before.metadata.view_uuid:
            raise Violation("I1: another view took the place of a view that was not dropped")
        if after.metadata.current_version_id != before.metadata.current_version_id:
            self._note(f"{after.metadata.view_uuid}: {_sql(after, after.metadata.current_version_id)}")
        owner = after.metadata.properties.get(OWNER)
        if owner is not None and owner != before.metadata.properties.get(OWNER):
            self.changed.add(owner)  # setting a property twice is the same as setting it once
            self._check_possible(owner)

    def _note(self, mark: str) -> None:
        if mark in self.changed:
            raise Violation(f"I3: a change of the view landed twice: {mark}")
        self.changed.add(mark)
        self._check_possible(mark)

    def _check_possible(self, mark: str) -> None:
        if mark in self.impossible:
            raise Violation(f"I5: a change of the view that was called impossible landed: {mark}")

    def change_ended(self, mark: str, error: MaterializedViewError | None) -> None:
        """Check the reported outcome of a change of the view: landed, never to land, or unknown."""
        if error is None and mark not in self.changed:
            raise Violation(f"I4: success was reported for a change of the view that has not landed: {mark}")
        if isinstance(error, (CommitConflictError, AlreadyExistsError)):
            created = isinstance(error, AlreadyExistsError) or mark.startswith(creation_of(""))
            if mark in (self._present() if created else self.changed):
                raise Violation(f"I5: a change of the view has landed, and was called impossible: {mark}")
            self.impossible.add(mark)
        self.world.events[f"view change: {type(error).__name__ if error else 'done'}"] += 1

    def _present(self) -> tuple[str, ...]:
        """The marks of the creation of the present view: one that was dropped again may be called impossible."""
        view = self.view()
        if view is None:
            return ()
        first = [item for item in view.metadata.versions if item.version_id == 1]
        return view.metadata.view_uuid, *(creation_of(_sql(view, item.version_id)) for item in first)

    def _storage_changed(self, before: State, after: State, role: str, version: int | None) -> None:
        if before.storage.location not in {entry.metadata_file for entry in after.storage.table.metadata_log}:
            raise Violation("I1: the storage table does not follow from the one before")
        if after.record is None:
            if before.record is None and before.storage.table.head == after.storage.table.head:
                return  # a branch of the table, which is not read
            raise Violation("I8: the storage table changed without a record")
        known = _known(before, role)
        _check_numbers(after)
        _check_columns(after, after.record)
        if after.record.refresh_id not in known:
            self._refreshed(before, after, after.record, version)
        elif role == "roll back":
            self._rolled_back(after, after.record)
        elif role == "compact" and before.storage.table.head != after.storage.table.head:
            self._compacted(before, after, after.record)
        elif before.storage.table.head != after.storage.table.head or before.record != after.record:
            raise Violation("I1: maintenance changed the rows or their record")
        else:
            self._check_content(after, after.record)
            self.world.events["storage table expired"] += role == "expire"

    def _rolled_back(self, after: State, record: RefreshRecord) -> None:
        rollback_id = after.storage.state.rollback_id if after.storage.state else None
        if rollback_id is None or rollback_id in self.rollbacks:
            raise Violation("I3: a rollback landed twice")
        self.rollbacks.add(rollback_id)
        self.position = dict.fromkeys(BASES, 0)
        self.records.append(record)
        self._check_content(after, record)
        self.world.events["view rolled back"] += 1

    def _compacted(self, before: State, after: State, record: RefreshRecord) -> None:
        """Check that the current refresh is the same, and that its rows were replaced and nothing else."""
        head = after.storage.table.find(after.storage.table.head or 0)
        earlier = None if before.record is None else before.record.model_copy(update={"sequence_number": None})
        if earlier != record.model_copy(update={"sequence_number": None}):
            raise Violation("I6: a compaction changed the record of the refresh")
        if head is None or head.operation != "replace" or head.parent_snapshot_id != before.storage.table.head:
            raise Violation("I1: a compaction did not replace the current rows")
        if head.sequence_number != record.sequence_number:
            raise Violation("I6: the record is not that of the compacted rows")
        self._check_content(after, record)
        self.world.events["rows compacted"] += 1

    def _refreshed(self, before: State, after: State, record: RefreshRecord, version: int | None) -> None:
        if record.refresh_id in self.landed:
            raise Violation("I3: a refresh landed twice")
        if record.refresh_id in self.refuted:
            raise Violation("I5: a refresh that was called impossible landed")
        # A table's commit cannot require the view's version: it has the one read last. Readers check the record.
        if record.version_id != (version if self.world.registered else after.view.metadata.current_version_id):
            raise Violation("I9: rows of another definition than the view's")
        if before.record and _input(before.record) == _input(record):
            raise Violation("I3: two refreshes in a row from the same input")
        self._check_content(after, record)
        self._check_direction(record)
        self.landed.append(record.refresh_id)
        self.records.append(record)
        self.world.events[f"refreshed: {record.mode}"] += 1

    def _check_content(self, after: State, record: RefreshRecord) -> None:
        if all(item.version_id != record.version_id for item in after.view.metadata.versions):
            return  # the definition has changed so often since that its text is gone
        snapshot = after.storage.table.find(after.storage.table.head or 0)
        content = json.loads(snapshot.summary["content"]) if snapshot else None
        if content is None or content["version"] != _number(after.view, record.version_id):
            raise Violation(f"I6: rows of {content}, recorded as of version {record.version_id}")
        for base in BASES:
            pinned, recorded = content["pins"][str(base)], record.snapshots[str(base)]
            if self.rows(base, pinned) != self.rows(base, recorded):
                raise Violation(f"I6: rows of {content['pins']}, recorded {record.snapshots}")

    def _check_direction(self, record: RefreshRecord) -> None:
        for base in BASES:
            heads, recorded = self.world.bases[base].heads, record.snapshots[str(base)]
            later = [place for place in range(self.position[base], len(heads)) if heads[place] == recorded]
            if not later:
                raise Violation(f"I7: {base} went back to {recorded}")
            self.position[base] = later[0]

    def rows(self, base: Identifier, snapshot: int) -> int | None:
        """The number that stands for the rows of a base table's snapshot."""
        return self.world.bases[base].rows.get(snapshot)

    # -- files -------------------------------------------------------------------------------------

    def live(self) -> frozenset[str]:
        """Return every file that a reader of the view needs."""
        row, table = self.world.rows.get(VIEW), self.world.rows.get(STORAGE)
        if row is None:
            return frozenset()
        key = (row.location, table.location if table else "")
        if key not in self._reach:
            state = self.state()
            named = {state.storage.location, *files_of(self.world.catalog, state.storage)} if state else ()
            self._reach[key] = frozenset({row.location, *named})
        return self._reach[key]

    def deleted(self, location: str) -> None:
        """Check that a deleted file is not a live one."""
        if location in self.live():
            raise Violation(f"I2: a live file was deleted: {location}")
        if location in self.foreign:
            raise Violation(f"I11: a file from before the adoption was deleted: {location}")
        if not location.startswith(("s3://w/v", "s3://w/s/v")):
            raise Violation(f"I11: a foreign file was deleted: {location}")

    # -- reported outcomes -------------------------------------------------------------------------

    def view_was_seen(self, location: str) -> None:
        """Note which version of the view the running process has read."""
        if not self.world.has_view:
            return
        with self.world.at_once():
            view = self.world.catalog.load(VIEW) if self.world.is_table else self.world.catalog.load_at(VIEW, location)
        self.versions[greenlet.getcurrent()] = view.metadata.current_version_id

    def bases_were_seen(self) -> None:
        """Note the states of the base tables that the running try has read."""
        self.seen[greenlet.getcurrent()] = {base: len(self.world.bases[base].heads) - 1 for base in BASES}

    def planned(self, plan: RefreshPlan, before: RefreshPlan | None) -> None:
        """Check a new plan; it replaces the one before in the same try."""
        if before is not None:
            self.world.events["planned again"] += 1
            # A table's commit of another try may land just after the view got another definition.
            redefined = before.layout == "registered" and before.version_id != plan.version_id
            # Rows with other columns are staged again after any snapshot of others. Another try may publish them.
            columns = before.layout != "pointed" and before.script is not None and before.script.branch is None
            # Another try may publish the same refresh in the layout that the view has by now.
            possible = redefined or columns or before.layout != self.world.layout
            if not possible:
                self.refuted.add(before.refresh_id)
            if not possible and self._is_recorded(before.refresh_id):
                raise Violation("I5: a refresh that is recorded was given up")
        self.world.events[f"planned: {plan.mode}"] += 1
        for reason in plan.reasons:
            self.world.events[f"reason: {reason.code}"] += 1
        seen = self.seen[greenlet.getcurrent()]
        self.plans[greenlet.getcurrent()] = (seen, self._landed_before(plan.storage_table_location))
        for record in plan.records:
            base = Identifier.parse(record.identifier)
            if record.snapshot_reference != self.world.bases[base].heads[seen[base]]:
                raise Violation(f"I15: planned {record.snapshot_reference} of {base}, which was not current")
        if plan.mode == Mode.NOOP:
            self._check_noop(plan)

    def _landed_before(self, storage: str) -> int:
        if storage not in self.landed_before:
            raise Violation(f"I8: planned on a storage table that was never current: {storage}")
        return self.landed_before[storage]

    def _is_recorded(self, refresh_id: str) -> bool:
        state = self.state()
        records = state.storage.state.refreshes if state and state.storage.state else ()
        return any(record.refresh_id == refresh_id for record in records)

    def _check_noop(self, plan: RefreshPlan) -> None:
        location = plan.storage_table_location
        table = parse_table(self.world.files[location].data, source=location)
        state = parse_storage_state(table.properties, view=str(VIEW), location=location)
        if (
            state is None
            or state.current.version_id != plan.version_id
            or any(state.current.snapshots[record.identifier] != record.snapshot_reference for record in plan.records)
        ):
            raise Violation("I4: a stale view was called fresh")

    def ended(self, plan: RefreshPlan, result: RefreshResult) -> None:
        """Check what a task reports as its success."""
        self.world.events[f"ended: {result.outcome}"] += 1
        if result.outcome in ("refreshed", "already-committed") and plan.refresh_id not in self.landed:
            raise Violation("I4: success was reported for a refresh that has not landed")
        if result.outcome == "superseded" and not self._superseded(plan):
            raise Violation("I4: superseded by rows that are older")

    def _superseded(self, plan: RefreshPlan) -> bool:
        """Whether a refresh since the plan has read every base table at the same or a later state."""
        seen, earlier = self.plans[greenlet.getcurrent()]

        def covers(theirs: RefreshRecord) -> bool:
            return theirs.version_id == plan.version_id and all(
                theirs.snapshots[str(base)] in self.world.bases[base].heads[place:] for base, place in seen.items()
            )

        return any(covers(record) for record in self.records[earlier:])


def files_of(catalog: Any, storage: LoadedStorage) -> list[str]:
    """List all files that the snapshots of a storage table reach."""
    found = []
    for snapshot in storage.table.snapshots:
        listing = snapshot.summary["files"]
        found += [listing, *json.loads(catalog.files.read(listing, what="manifest list"))]
    return found


def past_files(catalog: Any, _: tuple[str, ...]) -> Callable[[Snapshot], list[str]]:
    """List the files of snapshots that need not be complete any more."""

    def files(snapshot: Snapshot) -> list[str]:
        listing = snapshot.summary["files"]
        try:
            return [listing, *json.loads(catalog.files.read(listing, what="manifest list"))]
        except MetadataFileNotFoundError:
            return [listing]

    return files


def creation_of(sql: str) -> str:
    """The mark of a creation with a query of its own."""
    return f"created: {sql}"


def _sql(view: LoadedView, version_id: int) -> str:
    (version,) = [item for item in view.metadata.versions if item.version_id == version_id]
    return next(item.sql for item in version.representations if item.sql)


def _number(view: LoadedView, version_id: int) -> int:
    """Return the number in the SQL of a version; the simulated job stores it with the rows."""
    return int(re.findall(r"/\* version (\d+) \*/", _sql(view, version_id))[0])


def _input(record: RefreshRecord) -> tuple[Any, ...]:
    tables = {
        (item.identifier, item.snapshot_reference, item.properties.get("table-uuid")) for item in record.base_tables
    }
    return record.version_id, tables


def _check_clock(before: State, after: State, store_ms: int) -> None:
    """Times never decrease by more than Iceberg's readers tolerate, and are not in the future, whatever the clock."""
    table = after.storage.table
    stamps = [table.last_updated_ms, *(snapshot.timestamp_ms for snapshot in table.snapshots)]
    if max(stamps) > store_ms + MAX_AHEAD_MS and after.storage.location != before.storage.location:
        raise Violation("I15: a time in the storage table's metadata is ahead of the store's clock")
    for log in (table.metadata_log, table.snapshot_log):
        times = [*(entry.timestamp_ms for entry in log), table.last_updated_ms]
        if any(later < earlier - MINUTE for earlier, later in pairwise(times)):
            raise Violation("I15: a time in the storage table's metadata goes back")
    times = [entry.timestamp_ms for entry in after.view.metadata.version_log]
    if times != sorted(times):
        raise Violation("I15: a time in the view's metadata goes back")


def _check_columns(after: State, record: RefreshRecord) -> None:
    """The columns are those of the definition that the rows were computed by: both change at once."""
    if all(item.version_id != record.version_id for item in after.view.metadata.versions):
        return
    named = [field["name"] for field in after.storage.table.current_schema["fields"]]
    if named != [field["name"] for field in columns_of(_sql(after.view, record.version_id))["fields"]]:
        raise Violation(f"I6: the columns {named} are not those of version {record.version_id}, whose rows are stored")


def _check_numbers(after: State) -> None:
    """Each snapshot has a sequence number of its own, and none is above the table's last one: Iceberg reads no such."""
    table = after.storage.table
    numbers = [item.sequence_number for item in table.snapshots]
    if len(set(numbers)) < len(numbers) or max(numbers, default=0) > table.last_sequence_number:
        raise Violation("I1: the snapshots of the storage table have wrong sequence numbers")


def _check_size(after: State) -> None:
    """The size of a view's metadata does not grow with every refresh."""
    view = after.view.metadata
    if len(view.versions) > 10 or len(view.schemas) > 10 or len(after.storage.table.metadata_log) > 100:
        raise Violation("I25: the metadata grows without bounds")


def _known(before: State, role: str) -> set[str]:
    """Return the refreshes that a change may make current again. Only a rollback may take one from the log."""
    recorded = before.storage.state.refreshes if before.storage.state else ()
    records = all_refreshes(before.view, before.storage) if role == "roll back" else recorded
    return {record.refresh_id for record in records}
