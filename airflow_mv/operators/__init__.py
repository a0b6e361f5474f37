# SPDX-License-Identifier: Apache-2.0
"""Create, refresh, plan and commit materialized views in Airflow tasks."""

from airflow_mv.hooks.dag_run import refresh_params as refresh_params
from airflow_mv.operators.alert import FreshnessAlertOperator as FreshnessAlertOperator
from airflow_mv.operators.create import CreateMaterializedViewOperator as CreateMaterializedViewOperator
from airflow_mv.operators.pin import PinBaseTablesOperator as PinBaseTablesOperator
from airflow_mv.operators.refresh import RefreshMaterializedViewOperator as RefreshMaterializedViewOperator
from airflow_mv.operators.registry import SyncRegistryOperator as SyncRegistryOperator
from airflow_mv.operators.steps import CommitRefreshOperator as CommitRefreshOperator
from airflow_mv.operators.steps import PlanRefreshOperator as PlanRefreshOperator
