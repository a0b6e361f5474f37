# SPDX-License-Identifier: Apache-2.0
"""Create, refresh, plan, commit, maintain, verify, roll back, convert and drop materialized views in Airflow tasks.

Names are imported on first use: a DAG file of alerts needs nothing of the Spark provider.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_mv.hooks.dag_run import refresh_params as refresh_params
    from airflow_mv.operators.alert import FreshnessAlertOperator as FreshnessAlertOperator
    from airflow_mv.operators.application import SharedSparkApplicationOperator as SharedSparkApplicationOperator
    from airflow_mv.operators.application import share_spark_application as share_spark_application
    from airflow_mv.operators.create import CreateMaterializedViewOperator as CreateMaterializedViewOperator
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

_NAMES = {
    "refresh_params": "hooks.dag_run",
    "FreshnessAlertOperator": "operators.alert",
    "SharedSparkApplicationOperator": "operators.application",
    "share_spark_application": "operators.application",
    "CreateMaterializedViewOperator": "operators.create",
    "ConvertMaterializedViewOperator": "operators.maintenance",
    "DropMaterializedViewOperator": "operators.maintenance",
    "MaintainMaterializedViewOperator": "operators.maintenance",
    "RollbackMaterializedViewOperator": "operators.maintenance",
    "VerifyMaterializedViewOperator": "operators.maintenance",
    "PinBaseTablesOperator": "operators.pin",
    "RefreshMaterializedViewOperator": "operators.refresh",
    "SyncRegistryOperator": "operators.registry",
    "CommitRefreshOperator": "operators.steps",
    "PlanRefreshOperator": "operators.steps",
}
__all__ = [  # for ``import *``, which knows nothing of names that are imported on first use
    "CommitRefreshOperator",
    "ConvertMaterializedViewOperator",
    "CreateMaterializedViewOperator",
    "DropMaterializedViewOperator",
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


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(import_module(f"airflow_mv.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'airflow_mv.operators' has no attribute {name!r}")
