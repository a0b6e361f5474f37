# SPDX-License-Identifier: Apache-2.0
"""Lag: the time since the first base commit that a view does not contain.

Not from the last refresh: a view that was refreshed a week ago has no lag where nobody has written since. Times are
those of the base tables' writers, by their clocks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Protocol

from airflow_mv.errors import ConfigurationError
from airflow_mv.freshness.changes import Kind, changes_rows
from airflow_mv.freshness.state import BaseTableChange, Freshness, ObservedTable, State
from airflow_mv.spec.reasons import Code
from airflow_mv.spec.table import Snapshot, TableMetadata, ancestors, snapshots_between
from airflow_mv.spec.times import duration, from_ms

#: View property: how far the view may be behind, like ``2 h``.
MAX_STALENESS_PROPERTY = "airflow-mv.max-staleness"

#: The last moment that can be written as a date: stored times may be anything.


class Readiness(StrEnum):
    """What someone who waits for a view, or watches it, needs to know of it."""

    FRESH = "FRESH"
    #: Stale, but by no more than is tolerated.
    WITHIN_GRACE = "WITHIN_GRACE"
    STALE = "STALE"
    #: Never refreshed: it has no rows.
    NEVER = "NEVER"
    #: Its rows are those of another definition.
    INVALID = "INVALID"
    #: A base table cannot be read.
    UNKNOWN = "UNKNOWN"

    @classmethod
    def named(cls, word: str) -> Readiness:
        """Return the member of a name, in any case, or of a state's word such as ``never-refreshed``.

        Raises:
            ConfigurationError: There is none.
        """
        found = _WORDS.get(word.lower().replace("_", "-"))
        if found is None:
            raise ConfigurationError(f"{word!r} is none of: {', '.join(cls)}")
        return found


_READINESS = {
    State.FRESH: Readiness.FRESH,
    State.STALE: Readiness.STALE,
    State.NEVER_REFRESHED: Readiness.NEVER,
    State.DEFINITION_CHANGED: Readiness.INVALID,
    State.UNKNOWN: Readiness.UNKNOWN,
}
_WORDS = {str(state): member for state, member in _READINESS.items()} | {
    str(member).lower().replace("_", "-"): member for member in Readiness
}


class Seen(Protocol):
    """What is needed of a look at a view; :class:`airflow_mv.freshness.observe.Observation` has it."""

    @property
    def freshness(self) -> Freshness:
        """The verdict."""

    @property
    def tables(self) -> tuple[ObservedTable, ...]:
        """The base tables as they are now."""


@dataclass(frozen=True, slots=True)
class TableLag:
    """The first commit to a base table that is not in the view.

    Args:
        identifier: The table.
        since: When it was made; ``None`` where nothing tells it.
        exact: Whether that is the first one. If not, an earlier one is not known any more: the lag is at least so long.
    """

    identifier: str
    since: datetime | None
    exact: bool


@dataclass(frozen=True, slots=True)
class Lag:
    """How long a view has been behind its base tables.

    Args:
        state: The view's state; only a stale view has a lag, that of a fresh one is 0.
        tables: The base tables that have changed since the rows were computed.
        whole: Whether all rows were computed. Where only intervals were, the lag is that of these.
    """

    state: State
    tables: tuple[TableLag, ...] = ()
    whole: bool = True

    @property
    def since(self) -> datetime | None:
        """When the first commit that is not in the view was made, as far as it is known."""
        return min((table.since for table in self.tables if table.since), default=None)

    @property
    def exact(self) -> bool:
        """Whether nothing older is missing; if not, the lag is a lower bound."""
        return self.state == State.FRESH or (
            self.whole and bool(self.tables) and all(table.exact for table in self.tables)
        )

    def seconds(self, now: datetime | None = None) -> float | None:
        """Return the lag.

        Args:
            now: The time to count to.

        Returns:
            Seconds, 0 for a fresh view; ``None`` where it cannot be told: never refreshed, of another definition, a
            base table that cannot be read.
        """
        if self.state == State.FRESH:
            return 0.0
        since = self.since
        if self.state != State.STALE or since is None:
            return None
        return round(max(0.0, ((now or datetime.now(UTC)) - since).total_seconds()), 3)


def lag(seen: Seen) -> Lag:
    """Return how long a view has been behind its base tables.

    Args:
        seen: A look at the view.
    """
    freshness = seen.freshness
    if freshness.state != State.STALE:
        return Lag(freshness.state)
    tables = {table.identifier: table for table in seen.tables}
    parts = [part for part in freshness.parts if part.part.computed]
    changes = [change for part in parts for change in part.base_tables] if freshness.parts else freshness.base_tables
    found: dict[str, TableLag] = {}
    for change in changes:
        if change.changed:
            one = _table_lag(change, tables[change.identifier])
            found[one.identifier] = _longer(found.get(one.identifier), one)
    return Lag(State.STALE, tuple(found.values()), whole=len(parts) == len(freshness.parts))


def _longer(known: TableLag | None, other: TableLag) -> TableLag:
    """Of what two parts of a view lack of a table, the earlier."""
    if known is None:
        return other
    since = min((item.since for item in (known, other) if item.since), default=None)
    return TableLag(other.identifier, since, exact=known.exact and other.exact)


def readiness(
    seen: Seen, max_staleness: timedelta | None = None, *, behind: Lag | None = None, now: datetime | None = None
) -> Readiness:
    """Say how a view stands for those who tolerate some staleness.

    Args:
        seen: A look at the view.
        max_staleness: The lag that is tolerated; without it none is. A lag of which only a lower bound is known
            is not: nobody can say that it is within.
        behind: Its lag, where that is known already.
        now: The time to count to.
    """
    found = _READINESS[seen.freshness.state]
    # Rows that others have put into the storage table are not old answers.
    foreign = any(reason.code == Code.STORAGE_CHANGED for reason in seen.freshness.reasons)
    if found != Readiness.STALE or max_staleness is None or foreign:
        return found
    behind = behind or lag(seen)
    seconds = behind.seconds(now)
    within = behind.exact and seconds is not None and seconds <= max_staleness.total_seconds()
    return Readiness.WITHIN_GRACE if within else Readiness.STALE


def max_staleness_of(properties: Mapping[str, str], *, view: str) -> timedelta | None:
    """Return how far a view may be behind, by its property; ``None`` where it does not say.

    Raises:
        ConfigurationError: The property is no length of time.
    """
    what = f"view {view}, property {MAX_STALENESS_PROPERTY}"
    return duration(properties.get(MAX_STALENESS_PROPERTY), what=what)


def last_change(table: TableMetadata, snapshot_id: int | None, same_rows: Collection[int] = ()) -> Snapshot | None:
    """Return the last snapshot, up to this one, that may have changed rows: what compaction does not move.

    Args:
        table: The table.
        snapshot_id: The newest snapshot that counts.
        same_rows: See :func:`airflow_mv.freshness.changes.between`.
    """
    kept = list(ancestors(table, snapshot_id))
    return next((item for item in kept if changes_rows(item, same_rows)), kept[-1] if kept else None)


def _table_lag(change: BaseTableChange, observed: ObservedTable) -> TableLag:
    table = observed.table
    if table is None or change.range.kind == Kind.UNKNOWN:
        return TableLag(change.identifier, None, exact=False)
    old = None if change.range.kind == Kind.RECREATED else change.recorded
    missing = snapshots_between(table, old, change.current)
    if missing:
        return TableLag(change.identifier, from_ms(_first(missing, observed.same_rows)), exact=True)
    left = _left(table, old)
    if left is not None:
        return TableLag(change.identifier, from_ms(left), exact=True)
    # What came first has expired. The oldest that is left is not in the view either.
    known = [item.timestamp_ms for item in ancestors(table, change.current)]
    return TableLag(change.identifier, from_ms(min(known, default=table.last_updated_ms)), exact=False)


def _first(missing: Sequence[Snapshot], same_rows: Collection[int]) -> int:
    """When the first of these commits that may have changed rows was made."""
    changing = [item for item in missing if changes_rows(item, same_rows)]
    return min(item.timestamp_ms for item in changing or missing)


def _left(table: TableMetadata, snapshot_id: int | None) -> int | None:
    """When a table that was rolled back, or put on another branch, left a snapshot; by its own log."""
    if snapshot_id is None or table.find(snapshot_id) is None:
        return None
    log = table.snapshot_log
    places = [place for place, entry in enumerate(log) if entry.snapshot_id == snapshot_id]
    after = log[places[-1] + 1 :] if places else []
    return after[0].timestamp_ms if after else None
