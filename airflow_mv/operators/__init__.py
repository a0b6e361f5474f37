# SPDX-License-Identifier: Apache-2.0
"""Create, refresh, plan, commit, maintain, verify, roll back, convert and drop materialized views in Airflow tasks.

Names are imported on first use: a DAG file of alerts needs nothing of the Spark provider.
"""

from typing import TYPE_CHECKING

from airflow_mv.foundation.lazy import on_first_use

if TYPE_CHECKING:
    from airflow_mv.extras.fleet.alerts import FreshnessAlert as FreshnessAlert
    from airflow_mv.hooks.dag_run import refresh_params as refresh_params
    from airflow_mv.operators.alert import FreshnessAlertOperator as FreshnessAlertOperator
    from airflow_mv.operators.application import SharedSparkApplicationOperator as SharedSparkApplicationOperator
    from airflow_mv.operators.application import share_spark_application as share_spark_application
    from airflow_mv.operators.create import CreateMaterializedViewOperator as CreateMaterializedViewOperator
    from airflow_mv.operators.folder import ApplyMaterializedViewsOperator as ApplyMaterializedViewsOperator
    from airflow_mv.operators.maintenance import ConvertMaterializedViewOperator as ConvertMaterializedViewOperator
    from airflow_mv.operators.maintenance import DropMaterializedViewOperator as DropMaterializedViewOperator
    from airflow_mv.operators.maintenance import MaintainMaterializedViewOperator as MaintainMaterializedViewOperator
    from airflow_mv.operators.maintenance import RollbackMaterializedViewOperator as RollbackMaterializedViewOperator
    from airflow_mv.operators.maintenance import VerifyMaterializedViewOperator as VerifyMaterializedViewOperator
    from airflow_mv.operators.pin import PinBaseTablesOperator as PinBaseTablesOperator
    from airflow_mv.operators.refresh import RefreshMaterializedViewOperator as RefreshMaterializedViewOperator
    from airflow_mv.operators.registry import SyncRegistryOperator as SyncRegistryOperator
    from airflow_mv.operators.steps import CommitRefreshOperator as CommitRefreshOperator
    from airflow_mv.operators.steps import PlanRefreshOperator as PlanRefreshOperator

_MODULES = {
    "FreshnessAlert": "airflow_mv.extras.fleet.alerts",
    "refresh_params": "airflow_mv.hooks.dag_run",
    "FreshnessAlertOperator": "airflow_mv.operators.alert",
    "SharedSparkApplicationOperator": "airflow_mv.operators.application",
    "share_spark_application": "airflow_mv.operators.application",
    "CreateMaterializedViewOperator": "airflow_mv.operators.create",
    "ApplyMaterializedViewsOperator": "airflow_mv.operators.folder",
    "ConvertMaterializedViewOperator": "airflow_mv.operators.maintenance",
    "DropMaterializedViewOperator": "airflow_mv.operators.maintenance",
    "MaintainMaterializedViewOperator": "airflow_mv.operators.maintenance",
    "RollbackMaterializedViewOperator": "airflow_mv.operators.maintenance",
    "VerifyMaterializedViewOperator": "airflow_mv.operators.maintenance",
    "PinBaseTablesOperator": "airflow_mv.operators.pin",
    "RefreshMaterializedViewOperator": "airflow_mv.operators.refresh",
    "SyncRegistryOperator": "airflow_mv.operators.registry",
    "CommitRefreshOperator": "airflow_mv.operators.steps",
    "PlanRefreshOperator": "airflow_mv.operators.steps",
}
__all__ = [  # for ``import *``, which knows nothing of names that are imported on first use
    "ApplyMaterializedViewsOperator",
    "CommitRefreshOperator",
    "ConvertMaterializedViewOperator",
    "CreateMaterializedViewOperator",
    "DropMaterializedViewOperator",
    "FreshnessAlert",
    "FreshnessAlertOperator",
    "MaintainMaterializedViewOperator",
    "PinBaseTablesOperator",
    "PlanRefreshOperator",
    "RefreshMaterializedViewOperator",
    "RollbackMaterializedViewOperator",
    "SharedSparkApplicationOperator",
    "SyncRegistryOperator",
    "VerifyMaterializedViewOperator",
    "refresh_params",
    "share_spark_application",
]
__getattr__ = on_first_use(__name__, _MODULES)
