# SPDX-License-Identifier: Apache-2.0
"""The log of past refreshes in a storage table: what remains of a refresh whose record another one has overwritten.

Without time travel the format keeps one refresh record. Its predecessors move to a property of their own, which is read
only where somebody asks for the history, and which keeps no snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_mv.errors import InvalidMetadataError
from airflow_mv.spec.materialized_view import RefreshRecord, StorageState, historic
from airflow_mv.spec.stored import decode_text

#: Property of a storage table: the records of past refreshes, oldest first.
LOG_PROPERTY = "airflow-mv.refresh-log"
#: The most bytes of the property; older records are dropped. Each refresh writes it again.
MAX_LOG_BYTES = 256 * 1024
_REFRESHES = "refreshes"


def log_text(
    properties: Mapping[str, str],
    before: StorageState | None,
    after: StorageState,
    *,
    keep: int,
    not_before_ms: int | None = None,
) -> str:
    """Return the log after a change of the refresh history: it has the records that the change has dropped.

    A log that cannot be read begins anew, because it must not stop a refresh.

    Args:
        properties: The storage table's properties.
        before: The history before; ``None`` before the first refresh.
        after: The history after.
        keep: How many records the log and the history have together, at most.
        not_before_ms: Records of refreshes before that time are dropped.
    """
    try:
        logged = [_without_intervals(item.document()) for item in past_refreshes(properties, source=LOG_PROPERTY)]
    except InvalidMetadataError:
        logged = []
    replaced = [historic(item) for item in before.document()[_REFRESHES]] if before else []
    recorded = {item.refresh_id for item in after.refreshes}
    past = {item["refresh-id"]: item for item in (*logged, *replaced) if item["refresh-id"] not in recorded}
    texts: list[str] = []
    room = MAX_LOG_BYTES
    for item in sorted(past.values(), key=_time, reverse=True)[: max(0, keep - len(recorded))]:
        text = json.dumps(item, separators=(",", ":"))
        room -= len(text)
        if room < 0 or (not_before_ms is not None and _time(item) < not_before_ms):
            break
        texts.append(text)
    return f'{{"{_REFRESHES}":[{",".join(reversed(texts))}]}}'


def past_refreshes(properties: Mapping[str, str], *, source: str) -> tuple[RefreshRecord, ...]:
    """Read the log of a storage table, oldest first.

    Args:
        properties: The table's properties.
        source: The view and the table's metadata file, for messages.

    Raises:
        InvalidMetadataError: Names the field.
    """
    text = properties.get(LOG_PROPERTY)
    if text is None:
        return ()
    records = decode_text(text, source=source).get(_REFRESHES)
    if not isinstance(records, list):
        raise InvalidMetadataError(f"{source}: field '{_REFRESHES}': it is not a list")
    return tuple(RefreshRecord.read(item, source=source) for item in records)


def is_complete(record: RefreshRecord) -> bool:
    """Whether a record says from which snapshots each of the view's rows was computed, so that it may be current."""
    return record.interval is None or bool(record.intervals)


def _without_intervals(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record without the intervals that were current with it: there may be a thousand of them."""
    return {key: value for key, value in record.items() if key != "intervals"}


def _time(record: Mapping[str, Any]) -> int:
    return int(record.get("refreshed-at-ms") or 0)
