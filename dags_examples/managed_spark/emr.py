# SPDX-License-Identifier: Apache-2.0
"""Run the Spark job as a step of an EMR cluster on EC2 with Spark 4. Passwords: the cluster's spark-defaults.conf."""

from __future__ import annotations

from airflow.providers.amazon.aws.operators.emr import EmrAddStepsOperator
from airflow.sdk import DAG, task

from airflow_mv.assets import materialized_view_asset
from airflow_mv.operators import CommitRefreshOperator, PlanRefreshOperator

VIEW = "lake.sales.daily"


@task
def step(properties: dict[str, str], py_files: str, application: str, application_args: list[str]) -> list[dict]:
    """The step, whose arguments no shell splits."""
    conf = [item for key, value in properties.items() for item in ("--conf", f"{key}={value}")]
    command = [
        "spark-submit",
        "--deploy-mode",
        "cluster",
        *conf,
        "--py-files",
        py_files,
        application,
        *application_args,
    ]
    jar = {"Jar": "command-runner.jar", "Args": command}
    return [{"Name": f"airflow-mv {VIEW}", "ActionOnFailure": "CONTINUE", "HadoopJarStep": jar}]


with DAG("managed_spark_emr", schedule=None, tags=["airflow-mv"]):
    plan = PlanRefreshOperator(task_id="plan", view=VIEW, spark_task_ids=["step", "spark"], spark_version="4.0")
    steps = step(
        properties=plan.output["properties"],
        py_files=plan.output["py_files"],
        application=plan.output["application"],
        application_args=plan.output["application_args"],
    )
    spark = EmrAddStepsOperator(
        task_id="spark", job_flow_id="j-EXAMPLE", steps=steps, wait_for_completion=True, deferrable=True
    )
    commit = CommitRefreshOperator(task_id="commit", plan=plan.output, outlets=[materialized_view_asset(VIEW)])
    plan >> steps >> spark >> commit
