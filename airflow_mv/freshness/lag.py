# SPDX-License-Identifier: Apache-2.0
"""Lag: the time since the first base commit that a view does not contain.

It is not the time since the last refresh: a view that was refreshed a week ago has no lag if no base table changed
since. Times are commit times, by the clocks of the base tables' writers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Protocol

from airflow_mv.errors import ConfigurationError
from airflow_mv.freshness.changes import Kind, changes_rows
from airflow_mv.freshness.state import BaseTableChange, Freshness, ObservedTable, State
from airflow_mv.spec.table import Snapshot, TableMetadata, ancestors, snapshots_between
from airflow_mv.spec.times import duration, from_ms

#: View property: how far the view may be behind, like ``2 h``.
MAX_STALENESS_PROPERTY = "airflow-mv.max-staleness"


class Readiness(StrEnum):
    """A view's state for those who wait for it or monitor it."""

    FRESH = "FRESH"
    #: Stale, but within the tolerated lag.
    WITHIN_GRACE = "WITHIN_GRACE"
    STALE = "STALE"
    #: Never refreshed: it has no rows.
    NEVER = "NEVER"
    #: Its rows are those of another definition, or columns that the query names were changed in base tables.
    INVALID = "INVALID"
    #: A base table cannot be read.
    UNKNOWN = "UNKNOWN"

    @classmethod
    def named(cls, word: str) -> Readiness:
        """Return the member of a name (case is ignored) or of a state such as ``never-refreshed``.

        Raises:
            ConfigurationError: There is no such member.
        """
        found = _WORDS.get(word.lower().replace("_", "-"))
        if found is None:
            raise ConfigurationError(f"{word!r} is not one of: {', '.join(cls)}")
        return found


_READINESS = {
    State.FRESH: Readiness.FRESH,
    State.STALE: Readiness.STALE,
    State.NEVER_REFRESHED: Readiness.NEVER,
    State.DEFINITION_CHANGED: Readiness.INVALID,
    State.INVALID: Readiness.INVALID,
    State.UNKNOWN: Readiness.UNKNOWN,
}
_WORDS = {str(state): member for state, member in _READINESS.items()} | {
    str(member).lower().replace("_", "-"): member for member in Readiness
}


class ObservedView(Protocol):
    """The needed part of an observation; :class:`airflow_mv.freshness.observe.Observation` has it."""

    @property
    def freshness(self) -> Freshness:
        """The verdict."""

    @property
    def tables(self) -> tuple[ObservedTable, ...]:
        """The base tables as they are now."""

    @property
    def behind(self) -> Lag | None:
        """The lag through the materialized views that it reads, if that was determined."""


@dataclass(frozen=True, slots=True)
class TableLag:
    """The first commit to a base table that the view does not contain.

    Args:
        identifier: The table.
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


def lag(view: ObservedView) -> Lag:
    """Return the lag of a view.

    Args:
        view: The observation of the view.
    """
    if view.behind is not None:
        return view.behind
    freshness = view.freshness
    if freshness.of_rows != State.STALE:
        return Lag(freshness.of_rows)
    tables = {table.identifier: table for table in view.tables}
    parts = [part for part in freshness.parts if part.part.computed]
    changes = [change for part in parts for change in part.base_tables] if freshness.parts else freshness.base_tables
    found: dict[str, TableLag] = {}
    for change in changes:
        if change.changed:
            one = table_lag(change, tables[change.identifier])
            found[one.identifier] = longer(found.get(one.identifier), one)
    return Lag(State.STALE, tuple(found.values()), whole=len(parts) == len(freshness.parts))


def longer(known: TableLag | None, other: TableLag) -> TableLag:
    """Return the earlier of the first missing commits of two parts of a view."""
    if known is None:
        return other
    since = min((item.since for item in (known, other) if item.since), default=None)
    return TableLag(other.identifier, since, exact=known.exact and other.exact)


def readiness(
    state: State,
    behind: Lag,
    max_staleness: timedelta | None = None,
    *,
    foreign: bool = False,
    now: datetime | None = None,
) -> Readiness:
    """Return a view's state, given a tolerated lag.

    Args:
        state: The view's freshness.
        behind: The view's lag.
        max_staleness: The tolerated lag; ``None``: no lag. A lag with only a known lower bound is not
            tolerated.
        foreign: Whether another writer has written to the storage table: its rows are not of an earlier refresh.
        now: The time to count to.
    """
    found = _READINESS[state]
    if found != Readiness.STALE or max_staleness is None or foreign:
        return found
    seconds = behind.seconds(now)
    within = behind.exact and seconds is not None and seconds <= max_staleness.total_seconds()
    return Readiness.WITHIN_GRACE if within else Readiness.STALE


def max_staleness_of(text: str | None, *, view: str) -> timedelta | None:
    """Return a view's freshness SLO from the text of its property, or ``None`` without one.

    Raises:
        ConfigurationError: The text is not a length of time.
    """
    return duration(text, what=f"view {view}, property {MAX_STALENESS_PROPERTY}")


def last_change(table: TableMetadata, snapshot_id: int | None, same_rows: Collection[int] = ()) -> Snapshot | None:
    """Return the last snapshot, up to this one, that may have changed rows. Compaction does not move it.

    Args:
        table: The table.
        snapshot_id: The newest snapshot that counts.
        same_rows: See :func:`airflow_mv.freshness.changes.between`.
    """
    kept = list(ancestors(table, snapshot_id))
    return next((item for item in kept if changes_rows(item, same_rows)), kept[-1] if kept else None)


def table_lag(change: BaseTableChange, observed: ObservedTable) -> TableLag:
    """Return the first commit to a base table that rows of its recorded snapshot do not contain."""
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
    # The first commit has expired. The oldest retained one is not in the view either.
    known = [item.timestamp_ms for item in ancestors(table, change.current)]
    return TableLag(change.identifier, from_ms(min(known, default=table.last_updated_ms)), exact=False)


def _first(missing: Sequence[Snapshot], same_rows: Collection[int]) -> int:
    """Return the time of the first of these commits that may have changed rows."""
    changing = [item for item in missing if changes_rows(item, same_rows)]
    return min(item.timestamp_ms for item in changing or missing)


def _left(table: TableMetadata, snapshot_id: int | None) -> int | None:
    """Return when a table that was rolled back, or set to another branch, left a snapshot, from its log."""
    if snapshot_id is None or table.find(snapshot_id) is None:
        return None
    log = table.snapshot_log
    places = [place for place, entry in enumerate(log) if entry.snapshot_id == snapshot_id]
    after = log[places[-1] + 1 :] if places else []
    return after[0].timestamp_ms if after else None
