# SPDX-License-Identifier: Apache-2.0
"""One chain of views with two DAGs: new orders start one of them, and the other one can be backfilled."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import Asset, CronDataIntervalTimetable  # in Airflow 3.1: from airflow.timetables.interval

from airflow_mv.dags import materialized_views_dags

# The task that writes the orders has this asset as an outlet.
ORDERS = Asset(name="lake.sales.orders", uri="x-iceberg://lake/sales/orders")

on_orders, daily = materialized_views_dags(
    "on_orders",
    {"lake.sales.daily": [], "lake.sales.total": ["lake.sales.daily"]},
    on=[ORDERS],
    every=CronDataIntervalTimetable("@daily", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
)
