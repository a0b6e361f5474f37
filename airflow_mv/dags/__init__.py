# SPDX-License-Identifier: Apache-2.0
"""Build DAGs: of views that read each other, in dependency order; of alerts; of maintenance; of target lags.

Names are imported on first use: a DAG file imports only the operators of its own DAGs.
"""

from typing import TYPE_CHECKING

from airflow_mv.foundation.lazy import on_first_use

if TYPE_CHECKING:
    from airflow_mv.dags.alerts import freshness_alerts_dag as freshness_alerts_dag
    from airflow_mv.dags.chain import ChainedView as ChainedView
    from airflow_mv.dags.factory import materialized_views_dag as materialized_views_dag
    from airflow_mv.dags.factory import materialized_views_dags as materialized_views_dags
    from airflow_mv.dags.group import materialized_views_group as materialized_views_group
    from airflow_mv.dags.lag import target_lag_dag as target_lag_dag
    from airflow_mv.dags.maintenance import maintenance_dag as maintenance_dag

_MODULES = {
    "freshness_alerts_dag": "airflow_mv.dags.alerts",
    "ChainedView": "airflow_mv.dags.chain",
    "materialized_views_dag": "airflow_mv.dags.factory",
    "materialized_views_dags": "airflow_mv.dags.factory",
    "materialized_views_group": "airflow_mv.dags.group",
    "maintenance_dag": "airflow_mv.dags.maintenance",
    "target_lag_dag": "airflow_mv.dags.lag",
}
__all__ = [  # for ``import *``, which knows nothing of names that are imported on first use
    "ChainedView",
    "freshness_alerts_dag",
    "maintenance_dag",
    "materialized_views_dag",
    "materialized_views_dags",
    "materialized_views_group",
    "target_lag_dag",
]
__getattr__ = on_first_use(__name__, _MODULES)
