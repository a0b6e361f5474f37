# SPDX-License-Identifier: Apache-2.0
"""Run the Spark job on Databricks: a job cluster installs the job's wheel (`make job-wheel`)."""

from __future__ import annotations

from airflow.providers.databricks.operators.databricks import DatabricksSubmitRunOperator
from airflow.sdk import DAG

from airflow_mv.assets import materialized_view_asset
from airflow_mv.operators import CommitRefreshOperator, PlanRefreshOperator

VIEW = "lake.sales.daily"
WHEEL = "/Volumes/main/default/wheels/airflow_mv_job-0.1.0-py3-none-any.whl"
# What the plan's XCom `packages` names for Spark 4.0 and a catalog on PostgreSQL.
JARS = ("org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0", "org.postgresql:postgresql:42.7.7")
# Databricks resolves this reference. The plan passes it on as it is.
PASSWORD = {"spark.sql.catalog.lake.jdbc.password": "{{secrets/airflow-mv/lake-password}}"}

with DAG("managed_spark_databricks", schedule=None, tags=["airflow-mv"]):
    plan = PlanRefreshOperator(task_id="plan", view=VIEW, spark_task_ids="spark", spark_version="4.0", conf=PASSWORD)
    spark = DatabricksSubmitRunOperator(
        task_id="spark",
        json={
            "run_name": f"airflow-mv {VIEW}",
            "tasks": [
                {
                    "task_key": "refresh",
                    "new_cluster": {
                        "spark_version": "17.3.x-scala2.13",  # Spark 4.0
                        "node_type_id": "m6gd.large",
                        "num_workers": 1,
                        "data_security_mode": "SINGLE_USER",  # the job needs the driver's JVM
                        "spark_conf": plan.output["conf"],
                    },
                    "python_wheel_task": {
                        "package_name": "airflow_mv_job",
                        "entry_point": "airflow-mv-job",
                        "parameters": plan.output["application_args"],
                    },
                    "libraries": [{"whl": WHEEL}, *({"maven": {"coordinates": jar}} for jar in JARS)],
                }
            ],
        },
        deferrable=True,
    )
    commit = CommitRefreshOperator(task_id="commit", plan=plan.output, outlets=[materialized_view_asset(VIEW)])
    plan >> spark >> commit
