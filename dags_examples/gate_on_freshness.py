# SPDX-License-Identifier: Apache-2.0
"""Start a report only when its view is fresh, or lacks no commit that is older than an hour."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task

from airflow_mv.assets import materialized_view_asset
from airflow_mv.hooks import MaterializedViewHook
from airflow_mv.sensors import MaterializedViewFreshSensor

VIEW = "lake.sales.daily"


@task
def report(status: dict[str, Any]) -> dict[str, Any]:
    """Read the view's rows as a stream, without Spark, and report their lag."""
    rows = MaterializedViewHook().read(VIEW, refresh=False)
    counted = sum(batch.num_rows for batch in rows.to_arrow_batch_reader())
    return {"rows": counted, "columns": len(rows.columns), "lag_seconds": status["lag_seconds"]}


# It runs whenever a refresh has published something new. The sensor waits in the triggerer and holds no worker slot;
# if the view is not fresh enough within six hours, the report is skipped.
with DAG("gate_on_freshness", schedule=[materialized_view_asset(VIEW)], tags=["airflow-mv"]):
    fresh = MaterializedViewFreshSensor(
        task_id="fresh", view=VIEW, max_staleness=timedelta(hours=1), timeout=timedelta(hours=6), soft_fail=True
    )
    report(fresh.output)
