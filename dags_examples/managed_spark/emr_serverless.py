# SPDX-License-Identifier: Apache-2.0
"""Run the Spark job on an EMR Serverless application with Spark 4."""

from __future__ import annotations

from airflow.providers.amazon.aws.operators.emr import EmrServerlessStartJobOperator
from airflow.sdk import DAG

from airflow_mv.assets import materialized_view_asset
from airflow_mv.operators import CommitRefreshOperator, PlanRefreshOperator

VIEW = "lake.sales.daily"
OPTIONS = "{{ ti.xcom_pull('plan', key='spark_submit_conf') }} --py-files {{ ti.xcom_pull('plan', key='py_files') }}"
# EMR resolves this reference with AWS Secrets Manager.
PASSWORD = {"spark.sql.catalog.lake.jdbc.password": "EMR.secret@airflow-mv/lake-password"}

with DAG("managed_spark_emr_serverless", schedule=None, tags=["airflow-mv"]):
    plan = PlanRefreshOperator(task_id="plan", view=VIEW, spark_task_ids="spark", spark_version="4.0")
    spark = EmrServerlessStartJobOperator(
        task_id="spark",
        application_id="00example",
        execution_role_arn="arn:aws:iam::123456789012:role/airflow-mv",
        name=f"airflow-mv {VIEW}",
        job_driver={
            "sparkSubmit": {
                "entryPoint": plan.output["application"],
                "entryPointArguments": plan.output["application_args"],
                "sparkSubmitParameters": OPTIONS,
            }
        },
        configuration_overrides={
            "applicationConfiguration": [{"classification": "spark-defaults", "properties": PASSWORD}]
        },
        deferrable=True,
    )
    commit = CommitRefreshOperator(task_id="commit", plan=plan.output, outlets=[materialized_view_asset(VIEW)])
    plan >> spark >> commit
