# SPDX-License-Identifier: Apache-2.0
"""All materialized views of a namespace as one DAG. They are listed when the DAG runs."""

from __future__ import annotations

from airflow_mv.dags import materialized_views_dag

# Views that read others are refreshed after them, over three levels at most.
materialized_views_dag("namespace", namespace="lake.sales", depth=3, schedule="@daily")
