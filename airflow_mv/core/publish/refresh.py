# SPDX-License-Identifier: Apache-2.0
"""Publish a staged refresh: how it is judged, what is recorded, and the interface of a layout's attempt.

A refresh was planned from one state of the view and its storage table, and staged: its rows exist, but no reader sees
them. Publishing changes the one thing that all readers load. In the pointed layout this is the view's pointer, changed
by one conditional UPDATE. In the registered layout it is the storage table, changed by one commit that requires its
``main`` branch and its current tag. A refresh has landed if its refresh id is recorded, if its staged file is the
current storage metadata file or in the metadata log, or if ``main`` descends from its snapshot.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from airflow_mv.core.catalog import Layout, LoadedStorage, LoadedView, MaterializedViewCatalog, stored_layout
from airflow_mv.core.publish.protocol import Change, Effects, Verdict, commit
from airflow_mv.core.script import REFRESH_ID_KEY
from airflow_mv.core.spec.choices import TIME_TRAVEL_PROPERTY
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.interval import Interval
from airflow_mv.core.spec.interval_parts import IntervalPart, after, bounds, parts_in, parts_of
from airflow_mv.core.spec.materialized_view import (
    LOG_PROPERTY,
    METADATA_LOCATION,
    NO_SNAPSHOT,
    PROPERTY,
    TABLE_UUID,
    BaseTable,
    NestedViewVersion,
    RefreshRecord,
    StorageState,
    log_text,
    property_text,
    refresh_tag,
)
from airflow_mv.core.spec.properties import history_limits
from airflow_mv.core.spec.reasons import Code, Mode, Reason
from airflow_mv.core.spec.table_metadata import Snapshot, ancestors
from airflow_mv.errors import ViewNotFoundError

#: How long unneeded files are kept. It must be more than twice as long as the longest refresh.
DEFAULT_GRACE = timedelta(days=3)


class PlannedRefresh(Protocol):
    """The part of a refresh plan that publication needs."""

    @property
    def view(self) -> Identifier:
        """The view."""

    @property
    def view_uuid(self) -> str:
        """Its uuid: a view that was dropped and created again has another one."""

    @property
    def version_id(self) -> int:
        """The view version whose query was computed."""

    @property
    def storage_table_location(self) -> str:
        """The storage metadata file that the plan was made from."""

    @property
    def storage_base(self) -> str:
        """The storage state that the plan was made from. Only another refresh changes it."""

    @property
    def storage_table(self) -> Identifier | None:
        """The storage table's name in the registered layout."""

    @property
    def layout(self) -> Layout:
        """The view's layout."""

    @property
    def mode(self) -> Mode:
        """The mode of the refresh."""

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The reasons of the mode."""

    @property
    def refresh_id(self) -> str:
        """The refresh id."""

    @property
    def records(self) -> tuple[BaseTable, ...]:
        """The record of each base table."""

    @property
    def nested_views(self) -> tuple[NestedViewVersion, ...]:
        """The plain views that the query is expanded through."""

    @property
    def interval(self) -> Interval | None:
        """The refreshed interval; ``None`` for the whole view."""


@dataclass(frozen=True, slots=True)
class Requester:
    """Who requested a refresh.

    Args:
        run_id: The DAG run.
        user: The user who triggered the run, or ran the command.
        host: Where the command ran.
    """

    dag_id: str | None = None
    run_id: str | None = None
    task_id: str | None = None
    user: str | None = None
    host: str | None = None

    def document(self) -> dict[str, str]:
        """Return what the refresh record keeps."""
        return {name.replace("_", "-"): value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class RefreshMetrics:
    """A refresh in numbers, for its record. ``None``: unknown.

    Args:
        rows_changed: Changed rows of base tables.
        rows_deleted: Removed stored rows.
        bytes_read: Bytes of base table files that were read to find the change.
        rows_read: Rows in these files.
        seconds: Wall-clock time from the plan to the publication.
        job_seconds: Wall-clock time of the job's statements.
        executor_seconds: Run time of Spark's tasks, added up.
        requested_by: See :meth:`Requester.document`.
        factors: The measured durations divided by the estimates, by mode.
        checks: The results of the checks of the rows.
    """

    rows_written: int = 0
    rows_changed: int | None = None
    rows_deleted: int | None = None
    bytes_read: int | None = None
    rows_read: int | None = None
    seconds: float | None = None
    job_seconds: float | None = None
    executor_seconds: float | None = None
    requested_by: Mapping[str, str] | None = None
    factors: Mapping[str, float] | None = None
    checks: tuple[dict[str, str], ...] | None = None

    def document(self, before: RefreshRecord | None) -> dict[str, Any]:
        """Return the record's fields. The factors of other modes are kept from earlier refreshes.

        Args:
            before: The record of the previous refresh.
        """
        known = {name.replace("_", "-"): value for name, value in asdict(self).items() if value is not None}
        factors = {**(before.factors if before else {}), **(self.factors or {})}
        return {**known, **({"factors": factors} if factors else {})}


@dataclass(frozen=True, slots=True)
class Staged:
    """A staged refresh to be published.

    Args:
        plan: The plan, with the state that it was made from.
        where: The staged storage metadata file (pointed layout) or the branch with the staged rows (registered);
            ``None`` for a fast-forward.
        figures: The refresh in numbers, for the record.
        effects: Clock, sleep and jitter.
    """

    plan: PlannedRefresh
    where: str | None
    figures: RefreshMetrics
    effects: Effects


class Attempt(ABC):
    """How one change of a storage table is sent in one layout, perhaps several times: a refresh, or an edit."""

    @abstractmethod
    def send(self, view: LoadedView, storage: LoadedStorage) -> str | None:
        """Write what is missing, and send the change. As long as the base is the same, the same change is sent.

        Returns:
            The published storage metadata file, or ``None`` if the catalog refused. A refusal does not prove that an
            earlier copy of the change did not land.

        Raises:
            CommitStateUnknownError: No answer; the change may land, even later.
        """

    @abstractmethod
    def may_land(self, view: LoadedView, storage: LoadedStorage) -> bool:
        """Whether a copy of what was sent last may be applied yet."""

    def has_landed(self, storage: LoadedStorage) -> bool:  # noqa: ARG002
        """Whether a file that only this change has written was published. Else it is known by what it leaves."""
        return False

    @abstractmethod
    def clean_up(self) -> None:
        """Delete what was written, when no copy can be applied. A file that is left does no harm."""

    # -- for a refresh

    def fits(self, view: LoadedView, storage: LoadedStorage) -> bool:  # noqa: ARG002
        """Whether the staged rows can be added to the storage table: it may have changed where no reader sees it."""
        return True

    def is_publisher(self, storage: LoadedStorage) -> bool:
        """Whether a landed refresh was published by this attempt, and not by another one. What is left is dropped."""
        return self.has_landed(storage)


class PublishOutcome(StrEnum):
    """How publishing ended. Conflicts and unknown outcomes raise instead."""

    COMMITTED = "committed"
    ALREADY_COMMITTED = "already-committed"
    SUPERSEDED = "superseded"
    REPLAN = "replan"


@dataclass(frozen=True, slots=True)
class Published:
    """The end of a publication.

    Args:
        outcome: How it ended.
        storage_table_location: The storage metadata file that the view names now.
        tries: How often the catalog's state was loaded.
    """

    outcome: PublishOutcome
    storage_table_location: str
    tries: int


class Current(NamedTuple):
    """The published state of a view and its storage table."""

    view: LoadedView
    storage: LoadedStorage


def load_current(catalog: MaterializedViewCatalog, view: Identifier, uuid: str | None) -> Current:
    """Load a view and its storage table.

    Args:
        uuid: The uuid that it must have; ``None`` for any.

    Raises:
        ViewNotFoundError: The view was dropped, or dropped and created again.
    """
    loaded = catalog.load(view)
    if uuid is not None and loaded.metadata.view_uuid != uuid:
        raise ViewNotFoundError(f"view {view} was dropped and created again in the meantime; run it again")
    return Current(loaded, catalog.load_storage(loaded))


class RefreshChange(Change[Current]):
    """The publication of a staged refresh.

    Args:
        staged: The staged refresh.
        attempt: Sends it in the view's layout.
    """

    def __init__(self, catalog: MaterializedViewCatalog, staged: Staged, attempt: Attempt) -> None:
        super().__init__(f"view {staged.plan.view}", f"the refresh {staged.plan.refresh_id}", staged.effects)
        self._catalog, self._plan, self._attempt = catalog, staged.plan, attempt
        self._location: str | None = None

    def load(self) -> Current:
        """Load the view and its storage table; another view of this name is an error."""
        return load_current(self._catalog, self._plan.view, self._plan.view_uuid)

    def judge(self, state: Current) -> Verdict:
        """See :func:`judge`. What cannot be added to the storage table any more is staged again."""
        verdict = judge(
            self._plan,
            state.view,
            state.storage,
            landed=self._attempt.has_landed(state.storage),
            covers=lambda record: _covers(self._catalog, self._plan, record),
        )
        fits = verdict != Verdict.READY or self._attempt.fits(state.view, state.storage)
        return verdict if fits else Verdict.REPLAN

    def send(self, state: Current) -> bool:
        """Send the change in the view's layout."""
        self._location = self._attempt.send(state.view, state.storage)
        return self._location is not None

    def may_land(self, state: Current) -> bool:
        """Whether the storage table, and the view if it matters, have not changed since the change was sent."""
        return self._attempt.may_land(state.view, state.storage)

    def clean_up(self) -> None:
        """Delete the files that the attempt has written."""
        self._attempt.clean_up()

    def publish(self) -> Published:
        """Run the protocol.

        Returns:
            ``REPLAN`` if the refresh must be planned again. Nothing was published then.

        Raises:
            CommitConflictError, CommitStateUnknownError, ConfigurationError, UnsupportedError, ViewNotFoundError: See
                :func:`airflow_mv.core.publish.protocol.commit`.
        """
        ended = commit(self)
        if ended.confirmed and self._location is not None:
            return Published(PublishOutcome.COMMITTED, self._location, ended.tries)
        storage = ended.state.storage
        return Published(self._outcome(ended.verdict, storage), storage.location, ended.tries)

    def _outcome(self, verdict: Verdict, storage: LoadedStorage) -> PublishOutcome:
        if verdict != Verdict.LANDED:
            return PublishOutcome.SUPERSEDED if verdict == Verdict.SUPERSEDED else PublishOutcome.REPLAN
        # A sent change proves nothing, because another process may have published the same refresh.
        ours = self._attempt.is_publisher(storage)
        return PublishOutcome.COMMITTED if ours else PublishOutcome.ALREADY_COMMITTED


def judge(
    plan: PlannedRefresh,
    view: LoadedView,
    storage: LoadedStorage,
    *,
    landed: bool,
    covers: Callable[[RefreshRecord], bool],
) -> Verdict:
    """Decide what the present state means for a staged refresh.

    ===================================================  ==========================
    what changed since the plan                          then
    ===================================================  ==========================
    nothing                                              ``READY``
    only the view's other properties or comment          ``READY``: rebase, no recompute
    this refresh is recorded                             ``LANDED``
    another refresh: our rows at or after our snapshots  ``SUPERSEDED``
    another one, older or of other rows; the definition  ``REPLAN``
    the layout                                           ``REPLAN``
    ===================================================  ==========================

    Args:
        landed: Whether a file that only this refresh has written was published.
        covers: Whether the record of another refresh makes this one unneeded.
    """
    if has_landed(storage, plan.refresh_id, written=landed):
        return Verdict.LANDED
    if view.metadata.current_version_id != plan.version_id or stored_layout(view).layout != plan.layout:
        return Verdict.REPLAN
    if storage.base == plan.storage_base:
        return Verdict.READY
    if storage.state is not None and covers(storage.state.current):
        return Verdict.SUPERSEDED
    return Verdict.REPLAN


def has_landed(storage: LoadedStorage, refresh_id: str, *, written: bool = False) -> bool:
    """Whether a refresh is part of the storage table's published history.

    Args:
        written: Whether a file that only this refresh has written was published.
    """
    if storage.state is not None and any(item.refresh_id == refresh_id for item in storage.state.refreshes):
        return True
    # ``main`` may descend from a snapshot of the refresh, although the record no longer names it.
    history = ancestors(storage.table, storage.table.head)
    return written or any(snapshot.summary.get(REFRESH_ID_KEY) == refresh_id for snapshot in history)


def _covers(catalog: MaterializedViewCatalog, plan: PlannedRefresh, record: RefreshRecord) -> bool:
    """Whether all rows of this refresh's scope were computed from its base snapshots or later ones."""
    if record.version_id != plan.version_id or any(reason.code == Code.FORCED for reason in plan.reasons):
        return False
    if _versions(record.nested_views) != _versions(plan.nested_views):
        return False
    parts = parts_of(record) if plan.interval is None else parts_in(record, plan.interval)
    return all(part.computed and _part_covers(catalog, plan, part) for part in parts)


def _part_covers(catalog: MaterializedViewCatalog, plan: PlannedRefresh, part: IntervalPart) -> bool:
    theirs = {table.identifier: table for table in part.base_tables}
    return all(
        ours.identifier in theirs and _at_or_after(catalog, theirs[ours.identifier], ours) for ours in plan.records
    )


def _at_or_after(catalog: MaterializedViewCatalog, theirs: BaseTable, ours: BaseTable) -> bool:
    """Whether another refresh read a base table at our snapshot, or at a later one that was not rolled back."""
    uuids = (theirs.properties.get(TABLE_UUID), ours.properties.get(TABLE_UUID))
    if all(uuids) and uuids[0] != uuids[1]:
        return False
    if theirs.snapshot_reference == ours.snapshot_reference:
        return True
    identifier = Identifier.parse(ours.identifier)
    located = catalog.locate([identifier]).get(identifier)
    if located is None or located.kind != "table":
        return False
    table = catalog.table_metadata(identifier, located)
    # A snapshot that was rolled back is not on this line, so its rows do not count as later ones.
    line = [snapshot.snapshot_id for snapshot in ancestors(table, table.head)]
    if theirs.snapshot_reference not in line:
        return False
    older = line[line.index(theirs.snapshot_reference) :]
    return ours.snapshot_reference == NO_SNAPSHOT or ours.snapshot_reference in older


def _versions(views: Iterable[NestedViewVersion]) -> set[tuple[str, str, int]]:
    return {(view.identifier, view.uuid, view.version_id) for view in views}


def oldest_lasting_ms(catalog: MaterializedViewCatalog, folder: str) -> int:
    """Return the earliest writing time of a staged file for which half of the grace is still left.

    Args:
        catalog: Where the folder is.
        folder: The folder whose store's clock is used.
    """
    return catalog.files.now_ms(folder) - DEFAULT_GRACE // timedelta(milliseconds=2)


def keeps_history(view: LoadedView) -> bool:
    """Whether each refresh is kept in the history, with its rows."""
    return view.metadata.properties.get(TIME_TRAVEL_PROPERTY, "false").lower() == "true"


def dropped_tags(view: LoadedView, before: StorageState | None, after: StorageState) -> list[str]:
    """Return the tags on the rows of refreshes whose records the new state has dropped.

    A view without a history has no such tags, or keeps those from when it had one.
    """
    if before is None or not keeps_history(view):
        return []
    kept = {record.refresh_id for record in after.refreshes}
    return [refresh_tag(record.refresh_id) for record in before.refreshes if record.refresh_id not in kept]


def next_state(
    staged: Staged,
    view: LoadedView,
    storage: LoadedStorage,
    snapshot: Snapshot | None,
    *,
    now_ms: int,
    shape: Mapping[str, int] = MappingProxyType({}),
) -> StorageState:
    """Return the refresh history with the staged refresh as the current one.

    Args:
        staged: The refresh.
        snapshot: The snapshot with the refresh's rows.
        now_ms: The current time, read once for each publication.
        shape: See :meth:`StorageState.after`.
    """
    plan = staged.plan
    before = storage.record
    refreshed_at_ms = max(now_ms, storage.table.last_updated_ms)
    document = {
        "refresh-id": plan.refresh_id,
        "version-id": plan.version_id,
        **_rows(plan, before, refreshed_at_ms),
        **({"sequence-number": snapshot.sequence_number} if snapshot else {}),
        **({"nested-views": [view.document() for view in plan.nested_views]} if plan.nested_views else {}),
        "mode": str(plan.mode),
        "reasons": [reason.to_dict() for reason in plan.reasons],
        "refreshed-at-ms": refreshed_at_ms,
        **staged.figures.document(before),
    }
    record = RefreshRecord.read(document, source=f"view {plan.view}, refresh record")
    limits = history_limits(view.metadata.properties, view=str(plan.view))
    oldest = limits.oldest_ms(refreshed_at_ms)
    return StorageState.after(storage.state, record, keep=limits.with_rows, not_before_ms=oldest, shape=shape)


def history_properties(view: LoadedView, storage: LoadedStorage, after: StorageState) -> dict[str, str]:
    """Return the properties of a storage table with a changed refresh history, and the log of past refreshes.

    Args:
        storage: Its storage table before the change.
        after: The history after it.
    """
    limits = history_limits(view.metadata.properties, view=str(view.identifier))
    oldest = limits.oldest_ms(max(record.refreshed_at_ms or 0 for record in after.refreshes))
    past = log_text(storage.table.properties, storage.state, after, keep=limits.max_count, not_before_ms=oldest)
    return {PROPERTY: property_text(after), LOG_PROPERTY: past}


def _rows(plan: PlannedRefresh, before: RefreshRecord | None, refreshed_at_ms: int) -> dict[str, Any]:
    """Return the fields that record which rows were computed from which snapshots."""
    read = [record.document() for record in plan.records]
    if plan.interval is None:
        return {"base-tables": read}
    new = IntervalPart(plan.interval, tuple(map(_without_location, plan.records)), plan.refresh_id, refreshed_at_ms)
    whole = None if before is None or before.only_intervals else before.base_tables
    never = [{**_without_location(record).document(), "snapshot-reference": NO_SNAPSHOT} for record in plan.records]
    return {
        "base-tables": never if whole is None else [table.document() for table in whole],
        "interval": bounds(plan.interval),
        "intervals": after(before, plan.interval, new),
        **({"only-intervals": True} if whole is None else {}),
    }


def _without_location(table: BaseTable) -> BaseTable:
    """Return the short record of a base table for an interval, because there may be a thousand of them."""
    document = table.document()
    kept = {key: value for key, value in table.properties.items() if key != METADATA_LOCATION}
    return BaseTable.read({**document, "properties": kept}, source=f"base table {table.identifier}")
