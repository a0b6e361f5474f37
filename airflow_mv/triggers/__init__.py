# SPDX-License-Identifier: Apache-2.0
"""Triggers that wait for fresh views, for pending changes of their base tables, or for a Spark job elsewhere.

Names are imported on first use: a triggerer imports only what its triggers need.
"""

from typing import TYPE_CHECKING

from airflow_mv.foundation.lazy import on_first_use

if TYPE_CHECKING:
    from airflow_mv.triggers.application import SharedApplicationTrigger as SharedApplicationTrigger
    from airflow_mv.triggers.base_tables import BaseTablesChangedOnceTrigger as BaseTablesChangedOnceTrigger
    from airflow_mv.triggers.base_tables import BaseTablesChangedTrigger as BaseTablesChangedTrigger
    from airflow_mv.triggers.freshness import MaterializedViewFreshTrigger as MaterializedViewFreshTrigger
    from airflow_mv.triggers.outcome import JobOutcomeTrigger as JobOutcomeTrigger

_MODULES = {
    "SharedApplicationTrigger": "airflow_mv.triggers.application",
    "BaseTablesChangedOnceTrigger": "airflow_mv.triggers.base_tables",
    "BaseTablesChangedTrigger": "airflow_mv.triggers.base_tables",
    "MaterializedViewFreshTrigger": "airflow_mv.triggers.freshness",
    "JobOutcomeTrigger": "airflow_mv.triggers.outcome",
}
__all__ = [  # for ``import *``, which knows nothing of names that are imported on first use
    "BaseTablesChangedOnceTrigger",
    "BaseTablesChangedTrigger",
    "JobOutcomeTrigger",
    "MaterializedViewFreshTrigger",
    "SharedApplicationTrigger",
]
__getattr__ = on_first_use(__name__, _MODULES)
