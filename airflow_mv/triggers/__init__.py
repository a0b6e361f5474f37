# SPDX-License-Identifier: Apache-2.0
"""Triggers that wait for fresh views, for pending changes of their base tables, or for a Spark job elsewhere.

Names are imported on first use: a triggerer imports only what its triggers need.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

_NAMES = {
    "SharedApplicationTrigger": "triggers.application",
    "BaseTablesChangedOnceTrigger": "triggers.base_tables",
    "BaseTablesChangedTrigger": "triggers.base_tables",
    "PendingReport": "triggers.base_tables",
    "find_pending": "triggers.base_tables",
    "FreshnessPoll": "triggers.freshness",
    "MaterializedViewFreshTrigger": "triggers.freshness",
    "judge": "triggers.freshness",
    "span_of": "triggers.freshness",
    "JobOutcomeTrigger": "triggers.outcome",
    "read_view": "triggers.views",
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


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(import_module(f"airflow_mv.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'airflow_mv.triggers' has no attribute {name!r}")
