# SPDX-License-Identifier: Apache-2.0
"""Build DAGs: of views that read each other, in dependency order; of alerts; of maintenance.

Names are imported on first use: a DAG file imports only the operators of its own DAGs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_mv.dags.alerts import freshness_alerts_dag as freshness_alerts_dag
    from airflow_mv.dags.chain import ChainedView as ChainedView
    from airflow_mv.dags.factory import materialized_views_dag as materialized_views_dag
    from airflow_mv.dags.factory import materialized_views_dags as materialized_views_dags
    from airflow_mv.dags.group import materialized_views_group as materialized_views_group
    from airflow_mv.dags.maintenance import maintenance_dag as maintenance_dag

_NAMES = {
    "freshness_alerts_dag": "dags.alerts",
    "ChainedView": "dags.chain",
    "materialized_views_dag": "dags.factory",
    "materialized_views_dags": "dags.factory",
    "materialized_views_group": "dags.group",
    "maintenance_dag": "dags.maintenance",
}
__all__ = [  # for ``import *``, which knows nothing of names that are imported on first use
    "ChainedView",
    "freshness_alerts_dag",
    "maintenance_dag",
    "materialized_views_dag",
    "materialized_views_dags",
    "materialized_views_group",
]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(import_module(f"airflow_mv.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'airflow_mv.dags' has no attribute {name!r}")
