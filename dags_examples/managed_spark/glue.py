# SPDX-License-Identifier: Apache-2.0
"""Run the Spark job as a job of Glue 6.0 (Spark 4.1). Glue 5.1 has Spark 3.5: change the version and the jars."""

from __future__ import annotations

from airflow.providers.amazon.aws.operators.glue import GlueJobOperator
from airflow.sdk import DAG

from airflow_mv.assets import materialized_view_asset
from airflow_mv.operators import CommitRefreshOperator, PlanRefreshOperator

VIEW = "lake.sales.daily"
JARS = "s3://bucket/jars/iceberg-spark-runtime-4.1_2.13-1.12.0.jar,s3://bucket/jars/iceberg-aws-bundle-1.12.0.jar"

with DAG("managed_spark_glue", schedule=None, tags=["airflow-mv"]):
    plan = PlanRefreshOperator(task_id="plan", view=VIEW, spark_task_ids="spark", spark_version="4.1")
    spark = GlueJobOperator(
        task_id="spark",
        job_name="airflow-mv-sales-daily",
        script_location=plan.output["application"],
        iam_role_name="airflow-mv",  # the role reads the catalog and the bucket, so there is no secret
        script_args={
            "--airflow-mv-script": "{{ ti.xcom_pull('plan', key='application_args')[0] }}",
            "--airflow-mv-catalog": "{{ ti.xcom_pull('plan', key='application_args')[1] }}",
            "--extra-py-files": plan.output["py_files"],
            "--extra-jars": JARS,
            # Glue adds the first `--conf` itself.
            "--conf": "{{ ti.xcom_pull('plan', key='spark_submit_conf').removeprefix('--conf ') }}",
        },
        deferrable=True,
    )
    commit = CommitRefreshOperator(task_id="commit", plan=plan.output, outlets=[materialized_view_asset(VIEW)])
    plan >> spark >> commit
