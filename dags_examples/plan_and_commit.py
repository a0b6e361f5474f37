# SPDX-License-Identifier: Apache-2.0
"""Run the Spark job with another operator: plan, submit, commit."""

from __future__ import annotations

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG

from airflow_mv.assets import materialized_view_asset
from airflow_mv.operators import CommitRefreshOperator, PlanRefreshOperator

VIEW = "lake.sales.daily"

with DAG("plan_and_commit", schedule=None, tags=["airflow-mv"]):
    # Where no Spark job is needed, `spark` is skipped and `commit` still runs.
    plan = PlanRefreshOperator(task_id="plan", view=VIEW, spark_task_ids="spark")
    spark = SparkSubmitOperator(
        task_id="spark",
        application=plan.output["application"],
        application_args=plan.output["application_args"],
        py_files=plan.output["py_files"],
        packages=plan.output["packages"],
        conf=plan.output["conf"],
    )
    commit = CommitRefreshOperator(task_id="commit", plan=plan.output, outlets=[materialized_view_asset(VIEW)])
    plan >> spark >> commit
