# SPDX-License-Identifier: Apache-2.0
"""Run the Spark job with Kubeflow's Spark operator on Kubernetes."""

from __future__ import annotations

from airflow.providers.cncf.kubernetes.operators.spark_kubernetes import SparkKubernetesOperator
from airflow.sdk import DAG

from airflow_mv.assets import materialized_view_asset
from airflow_mv.operators import CommitRefreshOperator, PlanRefreshOperator

VIEW = "lake.sales.daily"
# The driver reads the catalog's password from a file: ~/.pgpass in this secret, which PostgreSQL's JDBC driver opens.
SECRET = {"name": "lake-pgpass", "path": "/etc/pgpass", "secretType": "Generic"}

with DAG("managed_spark_kubernetes", schedule=None, tags=["airflow-mv"]):
    plan = PlanRefreshOperator(task_id="plan", view=VIEW, spark_task_ids="spark")
    spark = SparkKubernetesOperator(
        task_id="spark",
        name="airflow-mv-sales-daily",
        namespace="spark",
        template_spec={
            "spark": {
                "apiVersion": "sparkoperator.k8s.io/v1beta2",
                "kind": "SparkApplication",
                "metadata": {"name": "airflow-mv-sales-daily", "namespace": "spark"},
                "spec": {
                    "type": "Python",
                    "pythonVersion": "3",
                    "mode": "cluster",
                    "sparkVersion": "4.1.3",
                    "image": "apache/spark:4.1.3-python3",
                    "restartPolicy": {"type": "Never"},
                    "mainApplicationFile": plan.output["application"],
                    "arguments": plan.output["application_args"],
                    "deps": {"pyFiles": [plan.output["py_files"]]},
                    "sparkConf": plan.output["properties"],
                    "driver": {
                        "cores": 1,
                        "memory": "2g",
                        "serviceAccount": "spark",
                        "env": [{"name": "PGPASSFILE", "value": "/etc/pgpass/pgpass"}],
                        "secrets": [SECRET],
                    },
                    "executor": {"instances": 2, "cores": 1, "memory": "2g"},
                },
            }
        },
    )
    commit = CommitRefreshOperator(task_id="commit", plan=plan.output, outlets=[materialized_view_asset(VIEW)])
    plan >> spark >> commit
