# SPDX-License-Identifier: Apache-2.0
"""Build DAGs: of views that read each other, in dependency order; of alerts; of maintenance."""

from airflow_mv.dags.alerts import freshness_alerts_dag as freshness_alerts_dag
from airflow_mv.dags.chain import ChainedView as ChainedView
from airflow_mv.dags.factory import materialized_views_dag as materialized_views_dag
from airflow_mv.dags.factory import materialized_views_dags as materialized_views_dags
from airflow_mv.dags.group import materialized_views_group as materialized_views_group
from airflow_mv.dags.maintenance import maintenance_dag as maintenance_dag
