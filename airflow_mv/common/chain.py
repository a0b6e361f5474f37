# SPDX-License-Identifier: Apache-2.0
"""The lag of a view, and an observation of a view that counts the materialized views that it reads.

Lag is the time since the first base commit that a view does not contain. It is not the time since the last refresh: a
view that was refreshed a week ago has no lag if no base table changed since. Times are commit times, by the clocks of
the base tables' writers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Self

from airflow_mv.core.freshness.changes import Kind, changes_rows
from airflow_mv.core.freshness.observe import Observation
from airflow_mv.core.freshness.state import BaseTableChange, ObservedTable, State
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.reasons import Code, Reason
from airflow_mv.core.spec.table_metadata import Snapshot, TableMetadata, ancestors, snapshots_between
from airflow_mv.core.spec.times import from_ms

#: Maximum of views that a path to a stale view names.
_MAX_PATH = 5


@dataclass(frozen=True, slots=True)
class StaleInput:
    """A materialized view that a view reads, directly or through others, and that is not fresh.

    Args:
        state: Its state by its own base tables.
        through: The views between its reader and it, the one that the reader reads first.
    """

    view: Identifier
    state: State
    why: str
    through: tuple[Identifier, ...] = ()

    @property
    def reason(self) -> Reason:
        """The reason for the reader's state."""
        path = [str(view) for view in self.through]
        if len(path) > _MAX_PATH:
            path[1:-1] = [f"{len(path) - 2} views"]
        through = f" through {' → '.join(path)}" if path else ""
        code = Code.BASE_UNREADABLE if self.state == State.UNKNOWN else Code.INPUT_STALE
        return Reason(code, f"{self.view}, which it reads{through}, is {self.state} ({self.why})")

    def read_by(self, view: Identifier) -> StaleInput:
        """Return the same for the readers of a view that reads it."""
        return replace(self, through=(view, *self.through))


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


@dataclass(frozen=True, slots=True)
class ObservedChain(Observation):
    """The observation of a view, with the freshness of the materialized views that it reads.

    Args:
        inputs: Those that are not fresh, the nearest first. A refresh of the view alone does not change them, so its
            decision is made without them.
        behind: The lag through them.
    """

    inputs: tuple[StaleInput, ...] = ()
    behind: Lag = field(default_factory=lambda: Lag(State.UNKNOWN))

    @classmethod
    def of(cls, seen: Observation, inputs: tuple[StaleInput, ...], behind: Lag) -> Self:
        """Add them to a view's own observation."""
        own = {item.name: getattr(seen, item.name) for item in fields(Observation)}
        return cls(**own, inputs=inputs, behind=behind)


def inputs_of(view: Observation) -> tuple[StaleInput, ...]:
    """Return the materialized views that a view reads and that are not fresh, as far as they were observed."""
    return view.inputs if isinstance(view, ObservedChain) else ()


def lag(view: Observation) -> Lag:
    """Return the lag of a view."""
    if isinstance(view, ObservedChain):
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
