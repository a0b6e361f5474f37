# SPDX-License-Identifier: Apache-2.0
"""Run the Spark job on a Dataproc cluster, image 3.0 (Spark 4.1). Passwords are in its spark-defaults.conf."""

from __future__ import annotations

from airflow.providers.google.cloud.operators.dataproc import DataprocSubmitJobOperator
from airflow.sdk import DAG

from airflow_mv.assets import materialized_view_asset
from airflow_mv.operators import CommitRefreshOperator, PlanRefreshOperator

VIEW = "lake.sales.daily"
PROJECT, REGION, CLUSTER = "my-project", "europe-west3", "airflow-mv"

with DAG("managed_spark_dataproc", schedule=None, tags=["airflow-mv"]):
    plan = PlanRefreshOperator(task_id="plan", view=VIEW, spark_task_ids="spark", spark_version="4.1")
    spark = DataprocSubmitJobOperator(
        task_id="spark",
        project_id=PROJECT,
        region=REGION,
        job={
            "reference": {"project_id": PROJECT},
            "placement": {"cluster_name": CLUSTER},
            "pyspark_job": {
                "main_python_file_uri": plan.output["application"],
                "args": plan.output["application_args"],
                "python_file_uris": [plan.output["py_files"]],
                "properties": plan.output["properties"],
            },
        },
        deferrable=True,
    )
    commit = CommitRefreshOperator(task_id="commit", plan=plan.output, outlets=[materialized_view_asset(VIEW)])
    plan >> spark >> commit
