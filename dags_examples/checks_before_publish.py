# SPDX-License-Identifier: Apache-2.0
"""Check the new rows before they are published. If a check fails, readers keep the rows of the last refresh."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_mv.checks import condition, not_null, row_count_change, sql, unique
from airflow_mv.operators import RefreshMaterializedViewOperator

with DAG("checks_before_publish", schedule=None, tags=["airflow-mv"]):
    RefreshMaterializedViewOperator(
        task_id="refresh",
        view="lake.sales.daily",
        checks=[
            not_null("region"),
            unique("region"),
            condition("amount >= 0"),
            row_count_change(at_most_down=0.2),
            # The view's base tables are read at exactly the snapshots of this refresh.
            sql("SELECT (SELECT sum(orders) FROM {rows}) = (SELECT count(*) FROM orders)"),
            # The dictionaries of the common-sql provider's check operators. A warning does not stop the refresh.
            {"orders": {"max": {"leq_to": 1_000_000, "severity": "warn"}}},
        ],
    )
