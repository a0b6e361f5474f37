# SPDX-License-Identifier: Apache-2.0
"""Views that read each other as one DAG: each after those that it reads, all from one set of base snapshots."""

from __future__ import annotations

from airflow_mv.dags import materialized_views_dag

# The order follows from the SQL. Views that do not exist yet are created.
materialized_views_dag(
    "chain",
    {
        "lake.sales.share": "SELECT d.region, d.amount / t.amount AS share FROM daily d CROSS JOIN total t",
        "lake.sales.total": "SELECT sum(amount) AS amount FROM daily",
        "lake.sales.daily": "SELECT region, count(*) AS orders, sum(amount) AS amount FROM orders GROUP BY region",
    },
    schedule="@hourly",
)
