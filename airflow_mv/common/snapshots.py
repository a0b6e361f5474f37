# SPDX-License-Identifier: Apache-2.0
"""Snapshots of recorded refreshes: those with their rows, and those that they read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow_mv.core.catalog.layouts import LoadedStorage
from airflow_mv.core.spec.interval_parts import parts_in
from airflow_mv.core.spec.materialized_view import BaseTable, RefreshRecord


def snapshot_of(storage: LoadedStorage, record: RefreshRecord) -> int | None:
    """Return the snapshot with the rows of a recorded refresh; ``None`` if they have expired.

    The sequence number decides. A tag of an earlier refresh may have been moved by another writer.
    """
    return snapshots_of(storage, [record])[record.refresh_id]


def snapshots_of(storage: LoadedStorage, records: Iterable[RefreshRecord]) -> dict[str, int | None]:
    """Return :func:`snapshot_of` several records, by refresh id. The table's snapshots are read once."""
    by_number = {item.sequence_number: item.snapshot_id for item in reversed(storage.table.snapshots)}
    found = {
        record.refresh_id: None if record.sequence_number is None else by_number.get(record.sequence_number)
        for record in records
    }
    if storage.record is not None and storage.record.refresh_id in found:
        found[storage.record.refresh_id] = storage.rows_snapshot
    return found


def is_complete(record: RefreshRecord) -> bool:
    """Whether a record says from which snapshots each of the view's rows was computed, so that it may be current."""
    return record.interval is None or bool(record.intervals)


def tables_read(record: RefreshRecord) -> tuple[BaseTable, ...]:
    """Return the base tables as a refresh itself read them; none if unknown."""
    if record.interval is None:
        return record.base_tables
    if not is_complete(record):
        return record.interval_base_tables
    return parts_in(record, record.interval.interval)[0].base_tables


def with_head(document: dict[str, Any], snapshot_id: int, *, now_ms: int) -> dict[str, Any]:
    """Return table metadata with another one of its snapshots as the current one.

    Args:
        document: A decoded metadata file; not changed.
        now_ms: The time for the snapshot log. If the file's last update is later, that time is used.
    """
    time_ms = max(now_ms, int(document.get("last-updated-ms", 0)))
    refs = document.get("refs", {})
    main = {"type": "branch", **refs.get("main", {}), "snapshot-id": snapshot_id}
    return {
        **document,
        "current-snapshot-id": snapshot_id,
        "refs": {**refs, "main": main},
        "snapshot-log": [*document.get("snapshot-log", []), {"timestamp-ms": time_ms, "snapshot-id": snapshot_id}],
    }
