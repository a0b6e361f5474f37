# SPDX-License-Identifier: Apache-2.0
"""Run the Spark job through a Livy server. Passwords are in the server's spark-defaults.conf."""

from __future__ import annotations

from airflow.providers.apache.livy.operators.livy import LivyOperator
from airflow.sdk import DAG

from airflow_mv.assets import materialized_view_asset
from airflow_mv.operators import CommitRefreshOperator, PlanRefreshOperator

VIEW = "lake.sales.daily"

with DAG("managed_spark_livy", schedule=None, tags=["airflow-mv"]):
    plan = PlanRefreshOperator(task_id="plan", view=VIEW, spark_task_ids="spark")
    spark = LivyOperator(
        task_id="spark",
        file=plan.output["application"],
        args=plan.output["application_args"],
        py_files=[plan.output["py_files"]],
        conf=plan.output["properties"],
        polling_interval=15,
        deferrable=True,
    )
    commit = CommitRefreshOperator(task_id="commit", plan=plan.output, outlets=[materialized_view_asset(VIEW)])
    plan >> spark >> commit
