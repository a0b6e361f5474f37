# SPDX-License-Identifier: Apache-2.0
"""Triggers that wait for fresh views, for pending changes of their base tables, or for a Spark job elsewhere.

Names are imported on first use: a triggerer imports only what its triggers need.
"""

from typing import TYPE_CHECKING

from airflow_mv.lazy import on_first_use

if TYPE_CHECKING:
    from airflow_mv.triggers.application import SharedApplicationTrigger as SharedApplicationTrigger
    from airflow_mv.triggers.base_tables import BaseTablesChangedOnceTrigger as BaseTablesChangedOnceTrigger
    from airflow_mv.triggers.base_tables import BaseTablesChangedTrigger as BaseTablesChangedTrigger
    from airflow_mv.triggers.base_tables import PendingReport as PendingReport
    from airflow_mv.triggers.base_tables import find_pending as find_pending
    from airflow_mv.triggers.freshness import FreshnessPoll as FreshnessPoll
    from airflow_mv.triggers.freshness import MaterializedViewFreshTrigger as MaterializedViewFreshTrigger
    from airflow_mv.triggers.freshness import judge as judge
    from airflow_mv.triggers.freshness import span_of as span_of
    from airflow_mv.triggers.outcome import JobOutcomeTrigger as JobOutcomeTrigger
    from airflow_mv.triggers.views import read_view as read_view

_MODULES = {
    "SharedApplicationTrigger": "airflow_mv.triggers.application",
    "BaseTablesChangedOnceTrigger": "airflow_mv.triggers.base_tables",
    "BaseTablesChangedTrigger": "airflow_mv.triggers.base_tables",
    "PendingReport": "airflow_mv.triggers.base_tables",
    "find_pending": "airflow_mv.triggers.base_tables",
    "FreshnessPoll": "airflow_mv.triggers.freshness",
    "MaterializedViewFreshTrigger": "airflow_mv.triggers.freshness",
    "judge": "airflow_mv.triggers.freshness",
    "span_of": "airflow_mv.triggers.freshness",
    "JobOutcomeTrigger": "airflow_mv.triggers.outcome",
    "read_view": "airflow_mv.triggers.views",
}
__all__ = [  # for ``import *``, which knows nothing of names that are imported on first use
    "BaseTablesChangedOnceTrigger",
    "BaseTablesChangedTrigger",
    "FreshnessPoll",
    "JobOutcomeTrigger",
    "MaterializedViewFreshTrigger",
    "PendingReport",
    "SharedApplicationTrigger",
    "find_pending",
    "judge",
    "read_view",
    "span_of",
]
__getattr__ = on_first_use(__name__, _MODULES)
