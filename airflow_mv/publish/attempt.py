# SPDX-License-Identifier: Apache-2.0
"""What both layouts do to publish: send a change again and again, and record the refresh in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Protocol

from airflow_mv.catalog import LoadedStorage, LoadedView
from airflow_mv.errors import ConfigurationError
from airflow_mv.spec.duration import duration
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.interval import Interval
from airflow_mv.spec.interval_parts import IntervalPart, after, bounds
from airflow_mv.spec.materialized_view import (
    METADATA_LOCATION,
    NO_SNAPSHOT,
    TIME_TRAVEL_PROPERTY,
    BaseTable,
    NestedViewVersion,
    RefreshRecord,
    StorageState,
    refresh_tag,
)
from airflow_mv.spec.reasons import Mode, Reason
from airflow_mv.spec.stored import whole_number
from airflow_mv.spec.table import Snapshot

#: View properties: how many refresh records are kept with time travel, and how old they may be, like ``30 days``.
MAX_COUNT_PROPERTY = "airflow-mv.history.max-count"
MAX_AGE_PROPERTY = "airflow-mv.history.max-age"
DEFAULT_MAX_COUNT = 100


class PlannedRefresh(Protocol):
    """What publishing needs to know of a refresh plan."""

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
        """The storage state that the plan was made from; only another refresh changes it."""

    @property
    def storage_table(self) -> Identifier | None:
        """The storage table's name in the registered layout."""

    @property
    def mode(self) -> Mode:
        """What the refresh does."""

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Why."""

    @property
    def refresh_id(self) -> str:
        """The refresh."""

    @property
    def records(self) -> tuple[BaseTable, ...]:
        """What the refresh will record for each base table."""

    @property
    def nested_views(self) -> tuple[NestedViewVersion, ...]:
        """The plain views that the query is expanded through."""

    @property
    def interval(self) -> Interval | None:
        """The rows that the refresh is for; ``None`` for the whole view."""


@dataclass(frozen=True, slots=True)
class RefreshMetrics:
    """What a refresh did, in numbers, for its record; ``None`` where it is not known.

    Args:
        rows_written: Rows written to the storage table.
        rows_changed: Rows of base tables found changed.
        rows_deleted: Stored rows taken away.
        bytes_read: Bytes of base table files read to know the change.
        rows_read: Rows in these files.
        factors: How many times its estimate a refresh took, by its mode.
        checks: What came of the checks of the rows.
    """

    rows_written: int = 0
    rows_changed: int | None = None
    rows_deleted: int | None = None
    bytes_read: int | None = None
    rows_read: int | None = None
    factors: Mapping[str, float] | None = None
    checks: tuple[dict[str, str], ...] | None = None

    def document(self, before: RefreshRecord | None) -> dict[str, Any]:
        """Return the record's fields; what an earlier refresh has taught about estimates is kept.

        Args:
            before: The record of the refresh before.
        """
        known = {name.replace("_", "-"): value for name, value in asdict(self).items() if value is not None}
        factors = {**(before.factors if before else {}), **(self.factors or {})}
        return {**known, **({"factors": factors} if factors else {})}


@dataclass(frozen=True, slots=True)
class Staged:
    """What is to be published.

    Args:
        plan: What was planned, and from which state.
        where: The staged storage metadata file (pointed layout) or the branch with the staged rows (registered);
            ``None`` for a fast-forward.
        figures: For the record.
        now_ms: The clock.
    """

    plan: PlannedRefresh
    where: str | None
    figures: RefreshMetrics
    now_ms: Callable[[], int]


class Attempt(Protocol):
    """One attempt to publish, in one layout: it may send its change several times."""

    @property
    def base(self) -> str | None:
        """The view's metadata file that the last change was sent from: once the view has left it, it can never land.

        ``None`` where a change needs nothing of the view to be as it was.
        """

    @property
    def ours(self) -> tuple[str, ...]:
        """The storage metadata files that only this publication writes."""

    def send(self, view: LoadedView, storage: LoadedStorage) -> str | None:
        """Send the change to the catalog, the same one while the base is the same.

        Returns:
            The storage metadata file that is published, or ``None`` where the catalog refused: that does not prove
            that an earlier copy of the change did not land.

        Raises:
            CommitStateUnknownError: No answer; the change may land, even later.
        """

    def is_ours(self, storage: LoadedStorage) -> bool:
        """Whether a refresh that has landed was published by this publication, not by another of the same refresh.

        Args:
            storage: The storage table now.
        """

    def landed(self) -> None:
        """Told that the refresh is published, by this publication or by another one of the same refresh."""

    def clean_up(self) -> None:
        """Take away what was written and cannot be published any more; what stays is only waste."""


def keeps_history(view: LoadedView) -> bool:
    """Whether each refresh stays in the history, with its rows."""
    return view.metadata.properties.get(TIME_TRAVEL_PROPERTY, "false").lower() == "true"


@dataclass(frozen=True, slots=True)
class HistoryLimits:
    """How many refresh records a view keeps.

    Args:
        max_count: At most so many, the current one among them.
        max_age: None that is older than this, but for the current one; ``None`` for no such limit.
    """

    max_count: int
    max_age: timedelta | None


def history_limits(properties: Mapping[str, str], *, view: str) -> HistoryLimits:
    """Return how many refresh records a view keeps, by its properties.

    Args:
        properties: The view's properties.
        view: For the message.

    Raises:
        ConfigurationError: A limit is not one.
    """
    if properties.get(TIME_TRAVEL_PROPERTY, "false").lower() != "true":
        return HistoryLimits(1, None)
    text = properties.get(MAX_COUNT_PROPERTY, str(DEFAULT_MAX_COUNT))
    count = whole_number(text.strip(), 0)
    if count < 1:
        raise ConfigurationError(
            f"view {view}, property {MAX_COUNT_PROPERTY}: {text!r} is not a number of records; write a whole number of "
            "at least 1"
        )
    return HistoryLimits(
        count, duration(properties.get(MAX_AGE_PROPERTY), what=f"view {view}, property {MAX_AGE_PROPERTY}")
    )


def dropped_tags(view: LoadedView, before: StorageState | None, after: StorageState) -> list[str]:
    """Return the tags on the rows of refreshes whose records a new state does not hold any more.

    A view that keeps no history has no such tags, or keeps those of the time when it did.
    """
    if before is None or not keeps_history(view):
        return []
    kept = {record.refresh_id for record in after.refreshes}
    return [refresh_tag(record.refresh_id) for record in before.refreshes if record.refresh_id not in kept]


def next_state(
    staged: Staged, view: LoadedView, storage: LoadedStorage, snapshot: Snapshot | None, *, now_ms: int
) -> StorageState:
    """Return the refresh history with the staged refresh as the current one.

    Args:
        staged: The refresh.
        view: The view now.
        storage: Its storage table now.
        snapshot: The snapshot with the refresh's rows.
        now_ms: The clock, read once for each publication.
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
    oldest = None if limits.max_age is None else refreshed_at_ms - limits.max_age // timedelta(milliseconds=1)
    return StorageState.after(storage.state, record, keep=limits.max_count, not_before_ms=oldest)


def _rows(plan: PlannedRefresh, before: RefreshRecord | None, refreshed_at_ms: int) -> dict[str, Any]:
    """Return the fields that say which rows are of which snapshots."""
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
    """A base table as an interval records it: there may be a thousand of them."""
    document = table.document()
    kept = {key: value for key, value in table.properties.items() if key != METADATA_LOCATION}
    return BaseTable.read({**document, "properties": kept}, source=f"base table {table.identifier}")
