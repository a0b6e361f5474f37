# SPDX-License-Identifier: Apache-2.0
"""Pending changes: changes of base tables that the recorded refresh of a view does not contain.

A new snapshot id alone is not a pending change. The base tables are compared with the recorded refresh, so a lost
event is found again, a repeated or late event finds nothing, and compaction does not count.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_mv.common.status import lag
from airflow_mv.core.freshness.changes import changes_rows
from airflow_mv.core.freshness.observe import Observation, require_readable
from airflow_mv.core.freshness.state import BaseTableChange, Lag, State
from airflow_mv.core.spec.identifiers import Identifier, id_text
from airflow_mv.core.spec.table_metadata import Snapshot, TableMetadata, ancestors
from airflow_mv.core.spec.times import to_ms
from airflow_mv.errors import ConfigurationError
from airflow_mv.extras.pending.criteria import PendingCriteria

#: States that a refresh would change.
_BEHIND = frozenset({State.STALE, State.NEVER_REFRESHED, State.DEFINITION_CHANGED})


@dataclass(frozen=True, slots=True)
class PendingChanges:
    """The pending changes of a view.

    Args:
        changes: The changed base tables, of those that count.
        mark: Identifies the pending changes. It stays equal when only compactions follow. It differs after each
            commit that may have changed rows, and after a refresh that left some changes for the next one.
    """

    observation: Observation
    changes: tuple[BaseTableChange, ...]
    lag: Lag
    mark: str

    @property
    def view(self) -> Identifier:
        """The view."""
        return self.observation.view.identifier

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form. Snapshot ids are strings, because they exceed JavaScript's safe integers."""
        record = self.observation.record
        return {
            "view": str(self.view),
            "state": str(self.observation.freshness.state),
            "refresh_id": record.refresh_id if record else None,
            "lag_seconds": self.lag.seconds(),
            "reasons": [reason.to_dict() for reason in self.observation.freshness.reasons],
            "tables": [_table(change) for change in self.changes],
        }


def _table(change: BaseTableChange) -> dict[str, Any]:
    return {
        "identifier": change.identifier,
        "from": id_text(change.recorded),
        "to": id_text(change.current),
        "change": str(change.range.kind),
        "snapshots": change.range.snapshots,
        "rows_added": change.range.size.rows_added,
        "rows_deleted": change.range.size.rows_deleted,
    }


def pending_changes(
    seen: Observation, wanted: PendingCriteria | None = None, *, now: datetime | None = None
) -> PendingChanges | None:
    """Return the pending changes of a view, or ``None`` if none of them is wanted now.

    For a view that was never refreshed, or whose definition changed, every base table has pending changes.

    Args:
        seen: The view, observed.
        wanted: Which pending changes count.
        now: The current time, for ``quiet``.

    Raises:
        BaseTableNotFoundError: A base table cannot be read.
        ConfigurationError: The view does not read a table that should count.
    """
    wanted = wanted or PendingCriteria()
    counted = _counted(seen, wanted)
    require_readable(seen.view.identifier, seen.tables)
    if seen.freshness.of_rows not in _BEHIND:
        return None
    changes = tuple(change for change in counted if change.changed)
    enough = len(changes) == len(counted) if wanted.require == "all" else bool(changes)
    if seen.freshness.of_rows == State.STALE and not enough:
        return None
    found = PendingChanges(seen, changes, lag(seen), _mark(seen, changes))
    return found if _quiet(found, wanted, now or datetime.now(UTC)) else None


def _counted(seen: Observation, wanted: PendingCriteria) -> tuple[BaseTableChange, ...]:
    names = {str(Identifier.parse(name, default_catalog=seen.view.identifier.catalog)) for name in wanted.tables}
    found = seen.freshness.base_tables
    missing = names - {change.identifier for change in found}
    if missing:
        raise ConfigurationError(
            f"view {seen.view.identifier} does not read {', '.join(sorted(missing))} (named in 'tables'); it reads "
            f"{', '.join(change.identifier for change in found) or 'no table'}"
        )
    return tuple(change for change in found if change.identifier in names) if names else found


def _mark(seen: Observation, changes: Sequence[BaseTableChange]) -> str:
    tables = {table.identifier: table for table in seen.tables}
    nested = [[view.identifier, view.uuid, view.version_id] for view in seen.nested_views]
    facts: list[Any] = [seen.view.metadata.current_version_id, nested]
    for change in changes:
        table, same_rows = tables[change.identifier].table, tables[change.identifier].same_rows
        last = last_change(table, change.current, same_rows) if table else None
        now = [table.table_uuid if table else None, last.snapshot_id if last else None]
        facts.append([change.identifier, change.recorded, *now])
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _quiet(found: PendingChanges, wanted: PendingCriteria, now: datetime) -> bool:
    if not wanted.quiet or not found.changes:
        return True
    tables = {table.identifier: table for table in found.observation.tables}
    last = [
        item.timestamp_ms
        for change in found.changes
        if (table := tables[change.identifier].table)
        and (item := last_change(table, change.current, tables[change.identifier].same_rows))
    ]
    now_ms = to_ms(now)
    if now_ms - max(last, default=0) >= wanted.quiet.total_seconds() * 1000:
        return True
    waited = found.lag.seconds(now)
    return wanted.wait_at_most is not None and waited is not None and waited >= wanted.wait_at_most.total_seconds()


def last_change(table: TableMetadata, snapshot_id: int | None, same_rows: Collection[int] = ()) -> Snapshot | None:
    """Return the last snapshot, up to this one, that may have changed rows. Compaction does not move it.

    Args:
        snapshot_id: The newest snapshot that counts.
        same_rows: See :func:`airflow_mv.core.freshness.changes.between`.
    """
    kept = list(ancestors(table, snapshot_id))
    return next((item for item in kept if changes_rows(item, same_rows)), kept[-1] if kept else None)
