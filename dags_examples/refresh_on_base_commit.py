# SPDX-License-Identifier: Apache-2.0
"""Refresh views when their base tables have new commits with changed rows; compaction starts nothing."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Asset, AssetWatcher

from airflow_mv.operators import RefreshMaterializedViewOperator
from airflow_mv.triggers import BaseTablesChangedTrigger

VIEW = "lake.sales.daily"

# A writer that commits ten times in a row starts one run; one that never pauses starts one every half hour.
commits = BaseTablesChangedTrigger(
    views=VIEW,
    quiet_period=timedelta(minutes=2),
    wait_at_most=timedelta(minutes=30),
    at_most_every=timedelta(minutes=5),
)
behind = Asset("lake.sales.daily/behind", watchers=[AssetWatcher(name="base_commits", trigger=commits)])

with DAG("refresh_on_base_commit", schedule=[behind], max_active_runs=1, tags=["airflow-mv"]):
    RefreshMaterializedViewOperator(task_id="refresh", view=VIEW, retries=2)
