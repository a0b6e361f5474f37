# SPDX-License-Identifier: Apache-2.0
"""Add a published refresh to the catalog's registry, if it has one. A refresh never fails because of it."""

from __future__ import annotations

import logging
import time

from airflow_mv.catalog import MaterializedViewCatalog
from airflow_mv.catalog.loaded import readable_refreshes
from airflow_mv.refresh.plan import RefreshPlan, RefreshResult
from airflow_mv.registry.model import RefreshRow, Requester
from airflow_mv.registry.settings import PLACE
from airflow_mv.script import Outcome
from airflow_mv.spec.interval_parts import bounds
from airflow_mv.spec.materialized_view import RefreshRecord
from airflow_mv.spec.reasons import Mode

log = logging.getLogger(__name__)


def add_to_registry(
    catalog: MaterializedViewCatalog,
    plan: RefreshPlan,
    outcome: Outcome | None,
    result: RefreshResult,
    *,
    requester: Requester,
) -> None:
    """Leave the row of a refresh for the registry. A failure is logged as a warning.

    Args:
        catalog: Where the view is.
        plan: The plan.
        outcome: What the job did, if there was one.
        result: The result. Nothing is added if it published nothing.
        requester: Who requested the refresh.
    """
    if not catalog.properties.get(PLACE) or not result.published:
        return
    try:
        _leave(catalog, plan, outcome, result, requester)
    except Exception as error:  # noqa: BLE001 (the rows are published; what follows must not fail the task)
        log.warning(
            "%s was refreshed, but its refresh %s could not be added to the registry (%s: %s). `airflow-mv registry "
            "rebuild --catalog %s` adds what the view records of it",
            plan.view,
            result.refresh_id,
            type(error).__name__,
            error,
            catalog.name,
        )


def _leave(
    catalog: MaterializedViewCatalog,
    plan: RefreshPlan,
    outcome: Outcome | None,
    result: RefreshResult,
    requester: Requester,
) -> None:
    from airflow_mv.registry.registry import leave, registry_of

    registry = registry_of(catalog)
    if registry is not None:
        leave(registry, _measured(_recorded(catalog, plan, result), plan, outcome, result, requester))


def _recorded(catalog: MaterializedViewCatalog, plan: RefreshPlan, result: RefreshResult) -> RefreshRow:
    """Return the row of the refresh record, or of the result if later refreshes have replaced the record already."""
    from airflow_mv.registry.rows import refresh_row

    view = catalog.load(plan.view)
    records = readable_refreshes(view, catalog.load_storage(view))
    found = [item for item in records if item.refresh_id == result.refresh_id]
    if found:
        return refresh_row(plan.view, plan.view_uuid, found[0])
    document = {
        "refresh-id": result.refresh_id,
        "version-id": plan.version_id,
        "base-tables": [item.document() for item in plan.records],
        "mode": str(result.mode),
        "reasons": [reason.to_dict() for reason in result.reasons],
        "refreshed-at-ms": time.time_ns() // 1_000_000,
        "rows-written": result.rows_written,
        **({"interval": bounds(plan.interval)} if plan.interval else {}),
    }
    return refresh_row(plan.view, plan.view_uuid, RefreshRecord.read(document, source=f"refresh of {plan.view}"))


def _measured(
    row: RefreshRow, plan: RefreshPlan, outcome: Outcome | None, result: RefreshResult, requester: Requester
) -> RefreshRow:
    """Return a row with what only this process knows."""
    full = next((item for item in plan.estimates if item.mode == Mode.FULL), None)
    return row.model_copy(
        update={
            "outcome": result.outcome,
            "base_snapshots": {item.identifier: item.snapshot_reference for item in plan.records},
            "seconds": round(result.seconds, 3),
            "job_seconds": round(sum(outcome.step_seconds), 3) if outcome else 0.0,
            "executor_seconds": outcome.executor_seconds if outcome else 0.0,
            "full_seconds": full.seconds if full else None,
            "full_bytes": full.bytes_read if full else None,
            "lag_seconds": result.lag_seconds,
            "application_id": outcome.application_id if outcome else None,
            "dag_id": requester.dag_id,
            "run_id": requester.run_id,
            "task_id": requester.task_id,
            "requested_by": requester.user,
        }
    )
