# SPDX-License-Identifier: Apache-2.0
"""Backfill the demo's flights from the UI, day by day: Trigger → Backfill, and any days of January to June 2013."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DAG, CronDataIntervalTimetable

from airflow_mv.operators import CreateMaterializedViewOperator, RefreshMaterializedViewOperator, refresh_params

VIEW = "lake.nyc.by_day"

# A run refreshes the day of its data interval; a second run for the same day is a no-op.
with DAG(
    "nyc_backfill",
    schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
    start_date=datetime(2013, 1, 1, tzinfo=UTC),
    end_date=datetime(2013, 6, 30, tzinfo=UTC),
    catchup=False,
    params=refresh_params(),
    doc_md=__doc__,
    tags=["airflow-mv"],
):
    create = CreateMaterializedViewOperator(
        task_id="create",
        view=VIEW,
        sql="""
SELECT make_date(year, month, day) AS day, origin, count(*) AS flights, avg(dep_delay) AS mean_delay
FROM flights GROUP BY make_date(year, month, day), origin""",
        partition_by=["day"],
        properties={"airflow-mv.interval-column": "day"},
    )
    refresh = RefreshMaterializedViewOperator(task_id="refresh", view=VIEW, scope="interval", retries=2)
    create >> refresh
