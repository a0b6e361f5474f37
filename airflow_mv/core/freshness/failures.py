# SPDX-License-Identifier: Apache-2.0
"""Refreshes that failed in Spark or did not pass their checks: their outcomes stay until maintenance deletes them."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterator
from typing import Any

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.catalog.files import StoredFile
from airflow_mv.core.catalog.locations import join
from airflow_mv.core.freshness.status import timestamp
from airflow_mv.core.script import Outcome
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.errors import InvalidMetadataError, MaterializedViewError

log = logging.getLogger(__name__)

#: The most failed refreshes that are looked for, newest first.
MAX_FAILURES = 50
_NO_FIGURES = (
    *("version_id", "sequence_number", "refreshed_at", "rows_written", "rows_deleted", "rows_changed", "rows_read"),
    *("bytes_read", "snapshot_id", "bytes", "bytes_held", "interval"),
)


def with_failures(
    catalog: MaterializedViewCatalog, view: Identifier, refreshes: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the documents of a view's refreshes and of those that failed, oldest first; ``error`` says why.

    Known are failures of the job and of checks. A failure before the job, and a killed worker, leave nothing. A refresh
    that failed and succeeded later is not a failure. If the files cannot be read, that is only logged.

    Args:
        refreshes: The documents of its published refreshes, see :func:`airflow_mv.core.freshness.status.history`.
    """
    published = {document["refresh_id"] for document in refreshes}
    try:
        found = [item for item in _failures(catalog, view) if item["refresh_id"] not in published]
    except MaterializedViewError as error:
        log.info("Could not read the failed refreshes of %s: %s", view, error)
        found = []
    fields = dict.fromkeys({*_NO_FIGURES, *(key for document in refreshes for key in document)})
    lists: dict[str, Any] = {"reasons": [], "base_tables": [], "checks": [], "current": False}
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
