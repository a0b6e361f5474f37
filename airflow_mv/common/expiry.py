# SPDX-License-Identifier: Apache-2.0
"""When an expiry may remove a snapshot, by the table's retention policy (``format/spec.md``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from airflow_mv.core.spec.table_metadata import Ref, Snapshot, TableMetadata, ancestors, sequence_number

#: An expiry within so many minutes is shown by ``status``, and in alerts.
SOON_MINUTES = 24 * 60
_HOUR = 60

_MAIN, _TAG = "main", "tag"
_FOREVER = 2**63 - 1
_DEFAULT_AGE_MS = 5 * 86_400_000


def warnings(
    expiring: Mapping[str, datetime], *, now: datetime | None = None, next_refresh: datetime | None = None
) -> Iterator[str]:
    """Yield a sentence for each base table whose recorded snapshot may expire soon, or before the next refresh.

    Args:
        expiring: From :func:`expiries`.
        now: The current time.
        next_refresh: When the next refresh is scheduled, if that is known.
    """
    now = now or datetime.now(UTC)
    for table, moment in expiring.items():
        is_late = next_refresh is not None and moment <= next_refresh
        if is_late or _minutes(now, moment) <= SOON_MINUTES:
            text = f"the recorded snapshot of {table} may expire {_in(now, moment)}"
            if next_refresh is None:
                yield f"{text}; then the next refresh is a full one"
            elif is_late:
                yield f"{text}, and the next refresh is scheduled {_in(now, next_refresh)}: it may be a full one"
            else:
                yield f"{text}; the next refresh is scheduled {_in(now, next_refresh)}, before that"


def _minutes(now: datetime, moment: datetime) -> int:
    return int(moment.timestamp() - now.timestamp()) // 60


def _in(now: datetime, moment: datetime) -> str:
    minutes = _minutes(now, moment)
    hours = f"{minutes // 60} h" if minutes >= _HOUR else f"{minutes} min"
    return f"in about {hours}" if minutes > 0 else "at any time"


def expires_ms(table: TableMetadata, snapshot_id: int) -> int | None:
    """Return the time from which on an expiry by the table's own settings removes a snapshot, in ms since the epoch.

    Returns:
        ``None`` if it stays as the table is now, has expired already, or snapshots of this table never expire.
    """
    snapshot = table.find(snapshot_id)
    if snapshot is None or table.properties.get("gc.enabled", "true").lower() == "false":
        return None
    refs = table.refs if _MAIN in table.refs or table.head is None else {**table.refs, _MAIN: Ref(table.head, "branch")}
    unnamed = snapshot.timestamp_ms + _number(table, "max-snapshot-age-ms", _DEFAULT_AGE_MS)
    kept = max([unnamed, *(_kept_until(table, name, ref, snapshot) for name, ref in refs.items())])
    return None if kept >= _FOREVER else kept


def _kept_until(table: TableMetadata, name: str, ref: Ref, snapshot: Snapshot) -> int:
    """Return until when a branch or tag keeps a snapshot; 0 if it does not."""
    last = table.find(ref.snapshot_id)
    if last is None:
        return 0
    age = ref.max_ref_age_ms or _number(table, "max-ref-age-ms", _FOREVER)
    removed = _FOREVER if name == _MAIN else last.timestamp_ms + age
    if ref.type == _TAG:
        return removed if last == snapshot else 0
    place = next((number for number, item in enumerate(ancestors(table, ref.snapshot_id)) if item == snapshot), None)
    if place is None:
        return 0
    if place < (ref.min_snapshots_to_keep or _number(table, "min-snapshots-to-keep", 1)):
        return removed
    most = ref.max_snapshot_age_ms or _number(table, "max-snapshot-age-ms", _DEFAULT_AGE_MS)
    return min(removed, snapshot.timestamp_ms + most)


def _number(table: TableMetadata, key: str, default: int) -> int:
    found = sequence_number(table.properties.get(f"history.expire.{key}", ""))
    return default if found is None else found
