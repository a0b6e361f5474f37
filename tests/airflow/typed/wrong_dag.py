# SPDX-License-Identifier: Apache-2.0
"""Mistakes, one a line. ``test_signatures.py`` runs type checkers on it: they find each, and nothing else."""

from airflow_mv.dags import ChainedView, materialized_views_dag
from airflow_mv.operators import CreateMaterializedViewOperator, RefreshMaterializedViewOperator
from airflow_mv.sensors import MaterializedViewFreshSensor

RefreshMaterializedViewOperator(task_id="a", view="lake.sales.daily", scope="intervall")  # wrong
RefreshMaterializedViewOperator(task_id="b", view="lake.sales.daily", scpoe="interval")  # wrong
RefreshMaterializedViewOperator(task_id="c", view="lake.sales.daily", checks=7)  # wrong
RefreshMaterializedViewOperator(task_id="d", view="lake.sales.daily", executor_cores="four")  # wrong
RefreshMaterializedViewOperator(task_id="e", view="lake.sales.daily", retires=2)  # wrong
RefreshMaterializedViewOperator(task_id="f", view=7)  # wrong
RefreshMaterializedViewOperator(task_id="g", view="lake.sales.daily", on_fallback="ful")  # wrong
CreateMaterializedViewOperator(task_id="h", view="lake.sales.daily", refresh_strategy="incremetal")  # wrong
CreateMaterializedViewOperator(task_id="i", view="lake.sales.daily", on_change="aply")  # wrong
MaterializedViewFreshSensor(task_id="j", view="lake.sales.daily", freshness="chian")  # wrong
RefreshMaterializedViewOperator.partial(task_id="k", scope="intervall")  # wrong
ChainedView("lake.sales.daily", refresh={"max_byte": 7})  # wrong
materialized_views_dag("l", ["lake.sales.daily"], refresh={"scope": "intervall"})  # wrong
materialized_views_dag("m", ["lake.sales.daily"], spark={"executor_core": 4})  # wrong
materialized_views_dag("n", ["lake.sales.daily"], tag=["sales"])  # wrong
