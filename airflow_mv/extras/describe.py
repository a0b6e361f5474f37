# SPDX-License-Identifier: Apache-2.0
"""Describe a view: its refreshes, those that failed, and its metadata as stored."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Collection, Iterator
from typing import Any

from airflow_mv.common.queries import texts_of
from airflow_mv.common.refresh_state import REFRESH_STATE_KEY, parse
from airflow_mv.common.snapshots import snapshots_of, tables_read
from airflow_mv.common.status import timestamp
from airflow_mv.core.catalog import LoadedStorage, MaterializedViewCatalog, stored_layout, stored_table, stored_view
from airflow_mv.core.catalog.files import StoredFile
from airflow_mv.core.catalog.layouts import all_refreshes, how_to_read, readable_refreshes
from airflow_mv.core.catalog.locations import join
from airflow_mv.core.script import Outcome
from airflow_mv.core.spec.identifiers import Identifier, id_text
from airflow_mv.core.spec.table_metadata import TableMetadata, ancestors
from airflow_mv.errors import InvalidMetadataError, MaterializedViewError, NewerFormatError

log = logging.getLogger(__name__)

#: The most failed refreshes that are looked for, newest first.
MAX_FAILURES = 50
_NO_FIGURES = (
    *("version_id", "sequence_number", "refreshed_at", "rows_written", "rows_deleted", "rows_changed", "rows_read"),
    *("bytes_read", "seconds", "job_seconds", "executor_seconds", "snapshot_id", "bytes", "bytes_held", "interval"),
)


def history(catalog: MaterializedViewCatalog, view: str | Identifier) -> list[dict[str, Any]]:
    """Return the recorded refreshes of a view, oldest first.

    ``rows`` and ``bytes`` are the size of the view after the refresh. ``bytes_held`` is the size of the files that are
    no longer the view's, and are kept for this refresh and earlier ones. All are ``None`` if its rows have expired.
    """
    loaded = catalog.load(view)
    storage = catalog.load_storage(loaded)
    state = storage.state
    if state is None:
        return []
    records = all_refreshes(loaded, storage)
    heads = snapshots_of(storage, records)
    held = held_bytes(storage.table, [head for head in heads.values() if head is not None])
    return [
        {
            "refresh_id": record.refresh_id,
            "version_id": record.version_id,
            "sequence_number": record.sequence_number,
            "mode": record.mode,
            "reasons": [dict(reason) for reason in record.reasons],
            "base_tables": [
                {
                    "identifier": table.identifier,
                    "type": table.type,
                    "snapshot_reference": id_text(table.snapshot_reference),
                }
                for table in tables_read(record)
            ],
            "refreshed_at": timestamp(record.refreshed_at_ms),
            "rows_written": record.rows_written,
            "rows_deleted": record.rows_deleted,
            "rows_changed": record.rows_changed,
            "rows_read": record.rows_read,
            "bytes_read": record.bytes_read,
            "seconds": record.seconds,
            "job_seconds": record.job_seconds,
            "executor_seconds": record.executor_seconds,
            "requested_by": dict(record.requested_by),
            "snapshot_id": id_text(head),
            "rows": None if head is None else storage.table.rows_at(head),
            "bytes": None if head is None else storage.table.bytes_at(head),
            "bytes_held": None if head is None else held.get(head),
            "checks": [dict(check) for check in record.checks],
            "current": record.refresh_id == state.current_refresh_id,
            "interval": record.interval.interval.to_dict() if record.interval else None,
        }
        for record in records
        for head in [heads[record.refresh_id]]
    ]


def durations(catalog: MaterializedViewCatalog, view: str | Identifier) -> list[dict[str, Any]]:
    """Return how long the recorded refreshes of a view took, oldest first; see :func:`history` for the fields."""
    loaded = catalog.load(view)
    return [
        {"mode": record.mode, "seconds": record.seconds, "job_seconds": record.job_seconds}
        for record in readable_refreshes(loaded, catalog.load_storage(loaded))
    ]


def with_failures(
    catalog: MaterializedViewCatalog, view: Identifier, refreshes: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the documents of a view's refreshes and of those that failed, oldest first; ``error`` says why.

    Known are failures of the job and of checks. A failure before the job, and a killed worker, leave nothing. A refresh
    that failed and succeeded later is not a failure. If the files cannot be read, that is only logged.

    Args:
        refreshes: The documents of its published refreshes, see :func:`history`.
    """
    published = {document["refresh_id"] for document in refreshes}
    try:
        found = [item for item in _failures(catalog, view) if item["refresh_id"] not in published]
    except MaterializedViewError as error:
        log.info("Could not read the failed refreshes of %s: %s", view, error)
        found = []
    fields = dict.fromkeys({*_NO_FIGURES, *(key for document in refreshes for key in document)})
    lists: dict[str, Any] = {"reasons": [], "base_tables": [], "checks": [], "requested_by": {}, "current": False}
    every = [
        *({**document, "failed_at": None, "error": None} for document in refreshes),
        *({**fields, **lists, **document} for document in found),
    ]
    return sorted(every, key=lambda item: str(item["failed_at"] or item["refreshed_at"]))


def _failures(catalog: MaterializedViewCatalog, view: Identifier) -> Iterator[dict[str, Any]]:
    storage = catalog.load_storage(catalog.load(view))
    files = catalog.files.list(join(storage.table.location, "staged"))
    outcomes = (file for file in files if file.location.endswith(".json") and ".script." not in file.location)
    for file in heapq.nlargest(MAX_FAILURES, outcomes, key=lambda item: item.modified_ms):
        outcome = _outcome(catalog, file)
        why = None if outcome is None else outcome.error or _stopping_checks(outcome)
        if outcome is not None and why:
            yield {
                "refresh_id": outcome.refresh_id,
                "mode": outcome.mode if outcome.mode != "none" else None,
                "failed_at": timestamp(file.modified_ms),
                "error": why,
            }


def _outcome(catalog: MaterializedViewCatalog, file: StoredFile) -> Outcome | None:
    text = catalog.files.read_text(file.location)
    try:
        return None if text is None else Outcome.from_json(text)
    except InvalidMetadataError:
        return None  # it is being written


def _stopping_checks(outcome: Outcome) -> str:
    return "; ".join(f"check {check.name} did not pass" for check in outcome.checks if check.stops)


def stored_metadata(catalog: MaterializedViewCatalog, view: str | Identifier) -> dict[str, Any]:
    """Return the metadata of a view and of its storage table, as stored."""
    loaded = catalog.load(view)
    storage = catalog.load_storage(loaded)
    return {
        "view": str(loaded.identifier),
        "layout": stored_layout(loaded).layout,
        "metadata_location": loaded.metadata_location,
        "metadata": stored_view(catalog, loaded),
        "storage_table": str(storage.name) if storage.name else None,
        "storage_table_location": storage.location,
        "how_to_read": how_to_read(loaded, storage),
        "texts": texts_of(loaded.metadata, view=str(loaded.identifier)),
        "storage_table_metadata": stored_table(catalog, loaded, storage),
        "refresh_state": _refresh_state(storage),
    }


def _refresh_state(storage: LoadedStorage) -> dict[str, Any] | None:
    """Return the refresh state in the current snapshot's summary, in any version of the draft specification."""
    snapshot = None if storage.table.head is None else storage.table.find(storage.table.head)
    text = snapshot.summary.get(REFRESH_STATE_KEY) if snapshot else None
    if text is None:
        return None
    try:
        return parse(text, source=f"storage table {storage.name}, summary key {REFRESH_STATE_KEY}").document()
    except (InvalidMetadataError, NewerFormatError) as error:
        log.warning("%s", error)
        return None


def held_bytes(table: TableMetadata, kept: Collection[int]) -> dict[int, int]:
    """Return the bytes of files that are kept for earlier snapshots only, by the last snapshot that has them.

    They are freed when that snapshot and all earlier ones have expired. Source: the summaries' ``removed-files-size``
    and ``added-files-size``; a summary without them counts as 0.

    Args:
        kept: The snapshots, such as those of recorded refreshes. Files of others between them count for the one before.
    """
    lineage = list(ancestors(table, table.head))
    current = {snapshot.snapshot_id for snapshot in lineage}
    found = dict.fromkeys((snapshot_id for snapshot_id in kept if table.find(snapshot_id) is not None), 0)
    removed = 0
    for snapshot in lineage:
        if snapshot.snapshot_id in found:
            found[snapshot.snapshot_id], removed = removed, 0
        removed += snapshot.count("removed-files-size")
    for snapshot_id in found.keys() - current:  # a rollback went back before it
        for snapshot in ancestors(table, snapshot_id):
            if snapshot.snapshot_id in current or (
                snapshot.snapshot_id in found and snapshot.snapshot_id != snapshot_id
            ):
                break
            found[snapshot_id] += snapshot.count("added-files-size")
    return found
