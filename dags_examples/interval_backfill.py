# SPDX-License-Identifier: Apache-2.0
"""Recompute only the rows of each run's day. A backfill from the UI brings a month up to date, day by day."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DAG

from airflow_mv.operators import CreateMaterializedViewOperator, RefreshMaterializedViewOperator, refresh_params

VIEW = "lake.sales.by_day"
START = datetime(2024, 1, 1, tzinfo=UTC)

# The params add a form to manual runs: an interval, a point in time, a forced recompute.
with DAG(
    "interval_backfill",
    schedule="@daily",
    start_date=START,
    catchup=False,
    params=refresh_params(),
    tags=["airflow-mv"],
):
    create = CreateMaterializedViewOperator(
        task_id="create",
        view=VIEW,
        sql="SELECT day, count(*) AS orders, sum(amount) AS amount FROM sold GROUP BY day",
        partition_by=["day"],
        properties={"airflow-mv.interval-column": "day"},
    )
    refresh = RefreshMaterializedViewOperator(task_id="refresh", view=VIEW, scope="interval", retries=2)
    create >> refresh
