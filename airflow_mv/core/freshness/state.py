# SPDX-License-Identifier: Apache-2.0
"""Freshness: compare the recorded base snapshots with the current ones. No data is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from airflow_mv.core.freshness.changes import (
    UNCHANGED,
    UNKNOWN,
    UNKNOWN_SIZE,
    Kind,
    Range,
    Size,
    between,
    expired_between,
)
from airflow_mv.core.spec.identifiers import Identifier, StoragePlace, id_text, split
from airflow_mv.core.spec.interval import Interval
from airflow_mv.core.spec.interval_parts import IntervalPart, parts_in, parts_of
from airflow_mv.core.spec.materialized_view import (
    METADATA_LOCATION,
    NO_SNAPSHOT,
    SCHEMA_ID,
    SELECTS_FROM,
    STORAGE_OF_PROPERTY,
    TABLE_UUID,
    VIEW,
    BaseTable,
    NestedViewVersion,
    RefreshRecord,
)
from airflow_mv.core.spec.reasons import Code, Reason
from airflow_mv.core.spec.table_metadata import TableMetadata, is_ancestor
from airflow_mv.errors import InvalidIdentifierError
from airflow_mv.foundation.documents import check_fields, read

if TYPE_CHECKING:
    from airflow_mv.core.sql.query import ParsedQuery  # a DAG file imports this module, and needs no parser of SQL

#: Maximum of stale intervals that are named individually.
_MAX_REASONS = 3


class State(StrEnum):
    """The freshness state of a materialized view."""

    FRESH = "fresh"
    STALE = "stale"
    NEVER_REFRESHED = "never-refreshed"
    DEFINITION_CHANGED = "definition-changed"
    INVALID = "invalid"
    UNKNOWN = "unknown"


Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class ObservedTable:
    """The current state of a base table.

    Args:
        name: Its full name.
        metadata_location: The metadata file in the catalog; ``None`` if ``head`` is not current in it.
        head: The snapshot to compare with, or ``None`` for a table that was never written.
        table: Its metadata; ``None`` if the pointer shows that nothing has changed, and no file was opened.
        table_uuid: Its uuid, if known.
        schema_id: The id of the schema of ``head``, if known.
        error: Why it cannot be read, or ``None``.
        storage: Where its rows are read, if not by its name: another name in a catalog, or a metadata file. For a
            materialized view only if a run has pinned it.
        view: The materialized view whose rows it has. A branch, tag or snapshot of such a table is an ordinary table.
        same_rows: Snapshots whose summaries show no change, and whose manifests prove that they changed no row.
        corrected: Snapshots in ``table`` whose summaries are not those of the metadata file: these contradicted
            themselves or lacked numbers, and are replaced by what the manifests show.
    """

    name: Identifier
    metadata_location: str | None = None
    head: int | None = None
    table: TableMetadata | None = None
    table_uuid: str | None = None
    schema_id: str | None = None
    error: str | None = None
    storage: StoragePlace | None = None
    same_rows: frozenset[int] = frozenset()
    corrected: frozenset[int] = frozenset()
    view: Identifier | None = None
    identifier: str = field(init=False)
    """The name as text, as records have it."""

    def __post_init__(self) -> None:
        """Write the name once."""
        object.__setattr__(self, "identifier", str(self.name))

    @classmethod
    def at(
        cls,
        name: Identifier,
        table: TableMetadata,
        head: int | None,
        location: str | None,
        storage: StoragePlace | None = None,
    ) -> Self:
        """Return a table at one of its snapshots. The arguments are as for the class."""
        # Schemas of other formats are numbered anew with each read.
        schema_id = table.schema_id_at(head) if name.kind.is_iceberg else None
        text = None if schema_id is None else str(schema_id)
        own = storage is None or storage != name.selects_from
        view = _view_of(name, table) if own and name.path is None else None
        return cls(name, location, head, table, table.table_uuid, text, storage=storage, view=view)

    def record(self, more: Mapping[str, str | None] = MappingProxyType({})) -> BaseTable:
        """Return the base table record of a refresh that reads this snapshot.

        Args:
            more: More of its properties; what is ``None`` is left out.
        """
        name = self.name
        properties = {
            METADATA_LOCATION: self.metadata_location,
            TABLE_UUID: self.table_uuid,
            SCHEMA_ID: self.schema_id,
            VIEW: str(self.view) if self.view else None,
            **more,
        }
        if isinstance(self.storage, Identifier) and self.storage == name.selects_from:
            properties[SELECTS_FROM] = str(self.storage)
        document = {
            "type": name.kind.type,
            "identifier": self.identifier,
            **({"location": name.path} if name.path is not None else {}),
            "snapshot-reference": NO_SNAPSHOT if self.head is None else self.head,
            "properties": {key: value for key, value in properties.items() if value},
        }
        return BaseTable.read(document, source=f"base table {self.identifier}")


def _view_of(name: Identifier, table: TableMetadata) -> Identifier | None:
    """Return the materialized view whose storage table this is by its properties; ``None`` for an ordinary table."""
    text = table.properties.get(STORAGE_OF_PROPERTY)
    try:
        return None if text is None else Identifier.of((name.catalog, *split(text)))
    except InvalidIdentifierError:
        return None


@dataclass(frozen=True, slots=True)
class Reads:
    """Tables and queries that earlier observations have read. Each observation that gets it adds to it.

    Args:
        tables: Base tables, by name.
        queries: Queries that were parsed, by the name of their view.
    """

    #: Whether a table is read again where a view was refreshed from a later state, which would seem to be lost.
    rereads: ClassVar[bool] = False
    tables: dict[Identifier, ObservedTable] = field(default_factory=dict)
    queries: dict[Identifier, ParsedQuery] = field(default_factory=dict)

    def asked(self, catalog: str, ask: Callable[[], Answer]) -> Answer:  # noqa: ARG002
        """Return what another catalog answers.

        Args:
            catalog: Its name.
            ask: Asks it.
        """
        return ask()


@dataclass(frozen=True, slots=True)
class SnapshotSet(Reads):
    """The base tables that all views of a run are computed from, each at one snapshot.

    Args:
        refreshed: The views that the run has refreshed.
    """

    refreshed: set[Identifier] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class BaseTableChange:
    """The change of one base table since the recorded refresh.

    Args:
        recorded: Snapshot that the refresh read; ``None`` if the table was empty or not part of it.
        current: Snapshot now.
        moved: Whether the two differ.
        changed: Whether rows may have changed. A compaction moves the table but changes no row.
        range: The changes between the two.
        reason: Why it counts as changed or moved; ``None`` if it did not change.
    """

    identifier: str
    type: str
    recorded: int | None
    current: int | None
    moved: bool = False
    changed: bool = False
    range: Range = UNCHANGED
    reason: Reason | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form of status and plan. :meth:`from_dict` reads it back, except the reason."""
        operations = dict(self.range.operations)
        return {
            "identifier": self.identifier,
            "type": self.type,
            "recorded": id_text(self.recorded),
            "current": id_text(self.current),
            "changed": self.changed,
            "moved": self.moved,
            "change": str(self.range.kind),
            "snapshots": sum(operations.values()),
            "operations": operations,
            **asdict(self.range.size),
            "only_appends": self.range.only_appends,
            "schema_changed": self.range.schema_changed,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> BaseTableChange:
        """Read what :meth:`to_dict` wrote.

        Raises:
            InvalidMetadataError: A field is missing or of another type.
            AttributeError, KeyError, TypeError, ValueError: It is not such a document.
        """
        size = read(Size, {name: document[name] for name in Size.__dataclass_fields__}, "plan")
        kinds = {"identifier": str, "type": str, "recorded": str | None, "current": str | None}
        flags = ("moved", "changed", "only_appends", "schema_changed")
        check_fields(document, {**kinds, **dict.fromkeys(flags, bool)}, "plan")
        check_fields(document["operations"], dict.fromkeys(document["operations"], int), "plan")
        moved, changed, only_appends, schema_changed = (document[name] for name in flags)
        operations = tuple(sorted(document["operations"].items()))
        found = Range(Kind(document["change"]), operations, size, only_appends, schema_changed)
        recorded, current = (document[name] and int(document[name]) for name in ("recorded", "current"))
        return cls(document["identifier"], document["type"], recorded, current, moved, changed, found)


@dataclass(frozen=True, slots=True)
class PartFreshness:
    """The freshness of rows that were computed from one set of snapshots.

    Args:
        part: The rows.
        base_tables: The changes of the base tables since the rows were computed.
    """

    part: IntervalPart
    base_tables: tuple[BaseTableChange, ...]

    @property
    def is_fresh(self) -> bool:
        """Whether the rows were computed, and nothing has changed since."""
        return self.part.computed and not any(change.changed for change in self.base_tables)


@dataclass(frozen=True, slots=True)
class Freshness:
    """The verdict on a view and its evidence."""

    state: State
    reasons: tuple[Reason, ...]
    base_tables: tuple[BaseTableChange, ...]
    parts: tuple[PartFreshness, ...] = ()
    """The freshness of the parts of the observed rows, if intervals were refreshed on their own."""
    drift: tuple[Reason, ...] = ()
    """The changed columns of base tables that make an otherwise fresh or stale view ``invalid``."""
    rows: State | None = None
    """``fresh`` or ``stale``: the state without changed columns of base tables or of the storage table, where these
    make another state of it."""

    def with_drift(self, drift: tuple[Reason, ...]) -> Freshness:
        """Return the verdict with changed columns of base tables; see :mod:`airflow_mv.core.freshness.observe`."""
        if not drift or self.state not in (State.FRESH, State.STALE):
            return self
        kept = tuple(reason for reason in self.reasons if reason.code != Code.FRESH)
        return replace(self, state=State.INVALID, reasons=(*drift, *kept), drift=drift, rows=self.state)

    @property
    def of_rows(self) -> State:
        """The state that decides what a refresh does: it reads snapshots, which have their own columns."""
        return self.rows or self.state

    @property
    def moved(self) -> bool:
        """Whether a recorded snapshot id is no longer the current one."""
        changes = [*self.base_tables, *(change for part in self.parts for change in part.base_tables)]
        return any(change.moved for change in changes)


# Lag: the time since the first base commit that a view does not contain. It is not the time since the last refresh: a
# view that was refreshed a week ago has no lag if no base table changed since. Times are commit times, by the clocks of
# the base tables' writers.


@dataclass(frozen=True, slots=True)
class TableLag:
    """The first commit to a base table that the view does not contain.

    Args:
        since: Its time; ``None`` if it is unknown.
        exact: Whether that is the first one. If not, earlier commits have expired and the lag is a lower bound.
    """

    identifier: str
    since: datetime | None
    exact: bool


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of a view.

    Args:
        state: The state of the view's rows; only stale ones have a lag, that of fresh ones is 0.
        tables: The base tables that changed since the rows were computed.
        whole: Whether all rows were computed. If only intervals were, the lag is theirs.
    """

    state: State
    tables: tuple[TableLag, ...] = ()
    whole: bool = True

    @property
    def since(self) -> datetime | None:
        """Time of the first commit that the view does not contain, if known."""
        return min((table.since for table in self.tables if table.since), default=None)

    @property
    def exact(self) -> bool:
        """Whether this is the first one. If not, the lag is a lower bound."""
        return self.state == State.FRESH or (
            self.whole and bool(self.tables) and all(table.exact for table in self.tables)
        )

    def seconds(self, now: datetime | None = None) -> float | None:
        """Return the lag.

        Args:
            now: The current time.

        Returns:
            Seconds, 0 for a fresh view; ``None`` if it is unknown: the view was never refreshed, its rows are of
            another definition, or a base table cannot be read.
        """
        if self.state == State.FRESH:
            return 0.0
        since = self.since
        if self.state != State.STALE or since is None:
            return None
        return round(max(0.0, ((now or datetime.now(UTC)) - since).total_seconds()), 3)


def assess(
    record: RefreshRecord | None,
    *,
    version_id: int,
    nested_views: Sequence[NestedViewVersion],
    observed: Sequence[ObservedTable],
    interval: Interval | None = None,
) -> Freshness:
    """Compare a recorded refresh with the current state.

    Args:
        record: The current refresh record, or ``None`` if the view was never refreshed.
        nested_views: The plain views that the query reads, as they are now.
        observed: The base tables that the query reads, as they are now.
        interval: Consider only these rows.
    """
    changes = _compared(record.base_tables if record else (), observed)
    broken = tuple(change.reason for change in changes if change.reason and change.reason.code == Code.BASE_UNREADABLE)
    if broken:
        return Freshness(State.UNKNOWN, broken, changes)
    if record is None:
        reason = Reason(Code.NEVER_REFRESHED, "its storage table has no rows yet")
        return Freshness(State.NEVER_REFRESHED, (reason,), changes)
    definition = _definition_reasons(record, version_id, nested_views)
    if definition:
        return Freshness(State.DEFINITION_CHANGED, definition, changes)
    if record.intervals or record.only_intervals:
        return _of_parts(parts_of(record) if interval is None else parts_in(record, interval), changes, observed)
    reasons = tuple(change.reason for change in changes if change.reason)
    if any(change.changed for change in changes):
        return Freshness(State.STALE, reasons, changes)
    fresh = Reason(Code.FRESH, "every base table is at the snapshot that the last refresh read")
    return Freshness(State.FRESH, reasons or (fresh,), changes)


def _of_parts(
    parts: Sequence[IntervalPart], rest: tuple[BaseTableChange, ...], observed: Sequence[ObservedTable]
) -> Freshness:
    """Return the freshness of rows that were computed from several sets of snapshots: fresh only if all parts are."""
    looked = tuple(
        PartFreshness(part, rest if part.interval is None else _compared(part.base_tables, observed)) for part in parts
    )
    stale = [item for item in looked if not item.is_fresh]
    changes = stale[0].base_tables if stale else looked[0].base_tables
    if any(not item.part.computed for item in looked):
        only = Reason(Code.INTERVALS, "rows outside the refreshed intervals were never computed")
        state = State.NEVER_REFRESHED if all(not item.part.computed for item in looked) else State.STALE
        return Freshness(state, (only, *_of_stale(stale)), changes, looked)
    if stale:
        return Freshness(State.STALE, _of_stale(stale), changes, looked)
    fresh = Reason(Code.FRESH, "every base table is at the snapshot that the last refresh of each interval read")
    moved = tuple(dict.fromkeys(change.reason for item in looked for change in item.base_tables if change.reason))
    return Freshness(State.FRESH, moved[:_MAX_REASONS] or (fresh,), changes, looked)


def _of_stale(stale: Sequence[PartFreshness]) -> tuple[Reason, ...]:
    """Return the reasons of some stale parts, and the number of the others."""
    reasons = []
    for item in [item for item in stale if item.part.computed][:_MAX_REASONS]:
        rows = "rows outside the refreshed intervals" if item.part.interval is None else str(item.part.interval)
        why = [change.reason for change in item.base_tables if change.reason]
        reasons += [Reason(reason.code, f"{rows}: {reason.message}") for reason in why]
    more = len([item for item in stale if item.part.computed]) - _MAX_REASONS
    if more > 0:
        reasons.append(Reason(Code.INTERVALS, f"{more} more intervals are stale"))
    return tuple(reasons)


def _compared(recorded: Sequence[BaseTable], observed: Sequence[ObservedTable]) -> tuple[BaseTableChange, ...]:
    by_name = {table.identifier: table for table in recorded}
    return tuple(compare(by_name.get(table.identifier), table) for table in observed)


def compare(recorded: BaseTable | None, observed: ObservedTable) -> BaseTableChange:
    """Return the change of one base table since a refresh recorded it."""
    old = None if recorded is None or recorded.snapshot_reference == NO_SNAPSHOT else recorded.snapshot_reference
    name = observed.identifier
    kind = recorded.type if recorded else observed.name.kind.type
    if observed.error is not None:
        reason = Reason(Code.BASE_UNREADABLE, f"{name} cannot be read: {observed.error}")
        return BaseTableChange(name, kind, old, None, range=UNKNOWN, reason=reason)
    new = observed.head
    if recorded is None:
        reason = Reason(Code.BASE_CHANGED, f"{name} was not part of the last refresh; it is at {_shown(new)}")
        return BaseTableChange(name, kind, None, new, moved=True, changed=True, range=UNKNOWN, reason=reason)
    uuid = recorded.properties.get(TABLE_UUID)
    if uuid and observed.table_uuid and uuid != observed.table_uuid:
        reason = Reason(
            Code.BASE_RECREATED, f"{name} was dropped and recreated since the last refresh (its table-uuid changed)"
        )
        other = Range(Kind.RECREATED, size=UNKNOWN_SIZE)
        return BaseTableChange(name, kind, old, new, moved=True, changed=True, range=other, reason=reason)
    if old == new:
        return BaseTableChange(name, kind, old, new)
    return _follow(kind, old, observed, recorded.properties.get(SCHEMA_ID))


def _follow(kind: str, old: int | None, observed: ObservedTable, schema_id: str | None) -> BaseTableChange:
    name, new, table = observed.identifier, observed.head, observed.table
    same_rows = observed.same_rows
    commits = between(table, old, new, same_rows=same_rows, old_schema_id=schema_id) if table else UNKNOWN
    if commits.kind in (Kind.ROLLED_BACK, Kind.EXPIRED, Kind.UNKNOWN):
        reason = _broken_range(name, old, new, table)
        return BaseTableChange(name, kind, old, new, moved=True, changed=True, range=commits, reason=reason)
    # Unchanged rows read differently with another schema: a dropped and added column is null, a float is a double.
    changed = commits.kind != Kind.REPLACED or commits.schema_changed
    change = f"{commits.snapshots} snapshot{'s' if commits.snapshots != 1 else ''} ({_counted(commits.operations)})"
    if changed:
        columns = ", and its columns may have changed" if commits.kind == Kind.REPLACED else ""
        text = f"{name} advanced {_shown(old)} → {new}: {change}{_rows(commits)}{columns}"
        reason = Reason(Code.BASE_CHANGED, text)
    else:
        how = "by compaction only" if set(dict(commits.operations)) == {"replace"} else "without row changes"
        reason = Reason(Code.ONLY_REPLACED, f"{name} advanced {old} → {new} {how} ({change}): no row changed")
    return BaseTableChange(name, kind, old, new, moved=True, changed=changed, range=commits, reason=reason)


def _shown(snapshot: int | None) -> str:
    return "empty" if snapshot is None else str(snapshot)


def _rows(change: Range) -> str:
    """Return how many rows were added and removed, if known. Copy-on-write commits count copied rows as both."""
    counts = (("+", change.size.rows_added), ("-", change.size.rows_deleted))
    counted = [f"{sign}{'unknown' if count is None else f'{count:,}'}" for sign, count in counts if count != 0]
    rewrites = change.kind == Kind.REWRITTEN and "overwrite" in dict(change.operations)
    copies = " (unchanged rows of rewritten files included)" if rewrites else ""
    return f", {' '.join(counted)} rows{copies}" if counted else ""


def _broken_range(name: str, old: int | None, new: int | None, table: TableMetadata | None) -> Reason:
    if table is not None and old is not None and table.find(old) is None:
        return Reason(Code.SNAPSHOT_EXPIRED, f"{name}: the recorded snapshot {old} has expired; it is at {new} now")
    if table is not None and new is not None and is_ancestor(table, new, old):
        return Reason(Code.ROLLED_BACK, f"{name} was rolled back: {old} → its ancestor {new}")
    if table is not None and old is not None and expired_between(table, old, new):
        return Reason(Code.ROLLED_BACK, f"{name} changed from {old} to {new}: the snapshots in between have expired")
    return Reason(Code.ROLLED_BACK, f"{name}: the recorded snapshot {old} is not an ancestor of {new}")


def _definition_reasons(
    record: RefreshRecord, version_id: int, nested_views: Sequence[NestedViewVersion]
) -> tuple[Reason, ...]:
    reasons = []
    if record.version_id != version_id:
        text = f"the rows are of view version {record.version_id}, the view is at version {version_id}"
        reasons.append(Reason(Code.DEFINITION_CHANGED, text))
    before = {view.identifier: (view.uuid, view.version_id) for view in record.nested_views}
    now = {view.identifier: (view.uuid, view.version_id) for view in nested_views}
    reasons += [
        Reason(
            Code.NESTED_VIEW_CHANGED,
            f"the nested view {name} changed: {_version(before, name)} → {_version(now, name)}",
        )
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]
    return tuple(reasons)


def _version(versions: Mapping[str, tuple[str, int]], name: str) -> str:
    return f"version {versions[name][1]}" if name in versions else "not there"


def _counted(operations: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{count} {operation}" for operation, count in operations)
