# SPDX-License-Identifier: Apache-2.0
"""Create, refresh, plan, commit, maintain, verify, roll back, convert and drop materialized views in Airflow tasks."""

from airflow_mv.hooks.dag_run import refresh_params as refresh_params
from airflow_mv.operators.alert import FreshnessAlertOperator as FreshnessAlertOperator
from airflow_mv.operators.application import SharedSparkApplicationOperator as SharedSparkApplicationOperator
from airflow_mv.operators.create import CreateMaterializedViewOperator as CreateMaterializedViewOperator
from airflow_mv.operators.pin import PinBaseTablesOperator as PinBaseTablesOperator
from airflow_mv.operators.refresh import RefreshMaterializedViewOperator as RefreshMaterializedViewOperator
from airflow_mv.operators.registry import SyncRegistryOperator as SyncRegistryOperator
from airflow_mv.operators.steps import CommitRefreshOperator as CommitRefreshOperator
from airflow_mv.operators.steps import PlanRefreshOperator as PlanRefreshOperator
from airflow_mv.operators.upkeep import ConvertMaterializedViewOperator as ConvertMaterializedViewOperator
from airflow_mv.operators.upkeep import DropMaterializedViewOperator as DropMaterializedViewOperator
from airflow_mv.operators.upkeep import MaintainMaterializedViewOperator as MaintainMaterializedViewOperator
from airflow_mv.operators.upkeep import RollbackMaterializedViewOperator as RollbackMaterializedViewOperator
from airflow_mv.operators.upkeep import VerifyMaterializedViewOperator as VerifyMaterializedViewOperator
