# SPDX-License-Identifier: Apache-2.0
"""Keep a view fresh, once a day. A run that finds it fresh starts no Spark."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DAG

from airflow_mv.operators import CreateMaterializedViewOperator, RefreshMaterializedViewOperator

VIEW = "lake.sales.daily"
START = datetime(2026, 1, 1, tzinfo=UTC)

with DAG("refresh_daily", schedule="@daily", start_date=START, catchup=False, tags=["airflow-mv"]):
    create = CreateMaterializedViewOperator(
        task_id="create",
        view=VIEW,
        sql="SELECT region, count(*) AS orders, sum(amount) AS amount FROM orders GROUP BY region",
        retries=2,
    )
    refresh = RefreshMaterializedViewOperator(task_id="refresh", view=VIEW, retries=2)
    create >> refresh
