# SPDX-License-Identifier: Apache-2.0
"""Start a report only when its view is fresh, or lacks nothing that is older than an hour."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, task

from airflow_mv.assets import materialized_view_asset
from airflow_mv.hooks import MaterializedViewHook
from airflow_mv.sensors import MaterializedViewFreshSensor

VIEW = "lake.sales.daily"


@task
def report() -> dict[str, int]:
    """Read the view's rows, streamed, without Spark."""
    rows = MaterializedViewHook().read(VIEW, refresh=False)
    return {"rows": sum(batch.num_rows for batch in rows.batches), "columns": len(rows.columns)}


# It runs whenever a refresh has published something new.
with DAG("gate_on_freshness", schedule=[materialized_view_asset(VIEW)], tags=["airflow-mv"]):
    fresh = MaterializedViewFreshSensor(
        task_id="fresh", view=VIEW, max_staleness=timedelta(hours=1), deferrable=True, timeout=timedelta(hours=6)
    )
    fresh >> report()
