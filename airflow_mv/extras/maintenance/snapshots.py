# SPDX-License-Identifier: Apache-2.0
"""Decide which snapshots of a table are kept, and drop the others from its metadata.

Pure functions on decoded metadata files, so that unknown fields are kept. Source: Iceberg
``format/spec.md``, "Snapshot Retention Policy" and the ``snapshot-log`` of "Table Metadata Fields".
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from airflow_mv.core.spec.materialized_view import is_staging_branch
from airflow_mv.core.spec.table import TableMetadata

CURRENT = "current"
NAMED = "named"
YOUNG = "young"
ADOPTED = "adopted"
#: Why a snapshot is kept.
REASONS = (CURRENT, NAMED, YOUNG, ADOPTED)


def kept_snapshots(table: TableMetadata, *, not_current_since_ms: int, adopted_at: int | None = None) -> dict[int, str]:
    """Return which snapshots must be kept, and why. All others may be dropped.

    Args:
        not_current_since_ms: Snapshots that were current, or made, later than this are kept. The age of a snapshot
            counts from when another one replaced it, because readers used it until then.
        adopted_at: Snapshots up to this sequence number were not written for the view.

    Returns:
        :data:`CURRENT`, :data:`NAMED` (by a tag or branch), :data:`YOUNG` or :data:`ADOPTED`, by snapshot id.
    """
    ended = _last_current_ms(table)
    named = {ref.snapshot_id for ref in table.refs.values()}
    kept = {}
    for snapshot in table.snapshots:
        identity = snapshot.snapshot_id
        if identity == table.head:
            kept[identity] = CURRENT
        elif identity in named:
            kept[identity] = NAMED
        elif adopted_at is not None and snapshot.sequence_number <= adopted_at:
            kept[identity] = ADOPTED
        elif ended[identity] > not_current_since_ms:
            kept[identity] = YOUNG
    return kept


def dead_branches(table: TableMetadata, *, current: Collection[int | None], not_current_since_ms: int) -> list[str]:
    """Return the staging branches that no running refresh can still use.

    Args:
        current: The snapshots from which a refresh starts its branch now. A branch at one of them may just be starting.
        not_current_since_ms: The age of a branch counts from its last snapshot. If its run has written none, it counts
            from when the snapshot that it started from was replaced: from then on its refresh cannot be published.
    """
    ended = _last_current_ms(table)
    return sorted(
        name
        for name, ref in table.refs.items()
        if ref.type == "branch"
        and is_staging_branch(name)
        and ref.snapshot_id not in current
        and ended.get(ref.snapshot_id, 0) <= not_current_since_ms
    )


def _last_current_ms(table: TableMetadata) -> dict[int, int]:
    """Return when each snapshot was replaced by another one, or else when it was made."""
    ended = {item.snapshot_id: item.timestamp_ms for item in table.snapshots}
    for entry, following in zip(table.snapshot_log, table.snapshot_log[1:], strict=False):
        ended[entry.snapshot_id] = max(ended.get(entry.snapshot_id, 0), following.timestamp_ms)
    return ended


def without_snapshots(document: dict[str, Any], dropped: Collection[int]) -> dict[str, Any]:
    """Return table metadata without some snapshots and all references to them.

    Args:
        document: A decoded metadata file; not changed.
        dropped: Ids of snapshots, none of them current, tagged or branched.
    """
    changed = dict(document)
    for name in ("snapshots", "statistics", "partition-statistics"):
        if name in document:
            changed[name] = [item for item in document[name] if item["snapshot-id"] not in dropped]
    history = document.get("snapshot-log", [])
    gaps = [number for number, entry in enumerate(history) if entry["snapshot-id"] in dropped]
    # A log with a gap would give wrong results for "as of": by the specification the log is cut at the gap.
    return {**changed, "snapshot-log": history[gaps[-1] + 1 :] if gaps else history}
