# SPDX-License-Identifier: Apache-2.0
"""All refreshes of a view: those that the view records, and those that only the registry still has."""

from __future__ import annotations

import logging
from typing import Any

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.spec.identifiers import Identifier, id_text
from airflow_mv.errors import MaterializedViewError
from airflow_mv.extras.registry.filters import of_view
from airflow_mv.extras.registry.model import RefreshRow
from airflow_mv.extras.registry.registry import Registry, registry_of

log = logging.getLogger(__name__)

#: What a refresh cost, in seconds: see the registry's columns of these names.
COSTS = ("seconds", "job_seconds", "executor_seconds")


def with_registry(
    catalog: MaterializedViewCatalog, view: Identifier, recorded: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the documents of a view's refreshes, oldest first, as ``airflow-mv history --json`` prints them.

    The :data:`COSTS` of a refresh are those of the registry, if it has them. A registry that cannot be
    read is only logged: the view's own records are returned.

    Args:
        recorded: The documents of the refreshes that the view records.

    Raises:
        ViewNotFoundError: There is no such view.
    """
    try:
        registry = registry_of(catalog)
        rows = [] if registry is None else _rows(registry, view)
    except MaterializedViewError as error:
        log.warning("The registry cannot be read, so only the refreshes that %s records are shown: %s", view, error)
        rows = []
    uuid = catalog.load(view).metadata.view_uuid if rows else None
    known = {row.refresh_id: row for row in rows if row.view_uuid == uuid}
    kept = {item["refresh_id"] for item in recorded}
    earlier = sorted((row for row in known.values() if row.refresh_id not in kept), key=lambda row: row.refreshed_at)
    documents = [*map(_document, earlier), *recorded]
    return [
        {**item, **_costs(known[item["refresh_id"]])} if item["refresh_id"] in known else item for item in documents
    ]


def _costs(row: RefreshRow) -> dict[str, float]:
    return {name: getattr(row, name) for name in COSTS if getattr(row, name) is not None}


def _rows(registry: Registry, view: Identifier) -> list[RefreshRow]:
    """Return the rows of a view, in the table and staged."""
    return [*registry.refreshes.rows(of_view(view)), *registry.staged().rows.values()]


def _document(row: RefreshRow) -> dict[str, Any]:
    interval = None
    if row.interval_column and row.interval_start and row.interval_end:
        start, end = row.interval_start.isoformat(), row.interval_end.isoformat()
        interval = {"column": row.interval_column, "start": start, "end": end}
    task = {"dag-id": row.dag_id, "run-id": row.run_id, "task-id": row.task_id}
    who = {**task, "user": row.requested_by, "host": row.host}
    return {
        "refresh_id": row.refresh_id,
        "version_id": row.version_id,
        "sequence_number": row.sequence_number,
        "mode": row.mode,
        "reasons": [
            {"code": code, "message": message} for code, message in zip(row.reasons, row.messages, strict=False)
        ],
        "base_tables": [
            {"identifier": name, "type": None, "snapshot_reference": id_text(snapshot)}
            for name, snapshot in row.base_snapshots.items()
        ],
        "refreshed_at": row.refreshed_at.isoformat(),
        "rows_written": row.rows_written,
        "rows_deleted": row.rows_deleted,
        "rows_changed": row.rows_changed,
        "rows_read": row.rows_read,
        "bytes_read": row.bytes_read,
        "seconds": row.seconds,
        "job_seconds": row.job_seconds,
        "executor_seconds": row.executor_seconds,
        "requested_by": {key: value for key, value in who.items() if value is not None},
        "snapshot_id": None,
        "bytes": None,
        "rows": None,
        "bytes_held": None,
        "checks": [],
        "current": False,
        "interval": interval,
    }
