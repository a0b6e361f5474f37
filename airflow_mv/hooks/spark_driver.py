# SPDX-License-Identifier: Apache-2.0
"""A driver that runs in a cluster, by the id that the Spark provider gives it. Uses the provider's private names."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook


def attach(hook: SparkSubmitHook, driver: str) -> None:
    """Make a hook use a driver that an earlier process has submitted.

    Args:
        driver: YARN's id of the application, or namespace and name of the driver's pod with a colon in between.
    """
    namespace, colon, pod = driver.partition(":")
    if colon:
        hook._connection["namespace"], hook._kubernetes_driver_pod = namespace, pod
    else:
        hook._yarn_application_id = driver


def kill_driver(spark_conn_id: str, driver: str) -> None:
    """Kill a driver with what its connection says, without the arguments of the task that submitted it.

    Args:
        spark_conn_id: The Spark connection.
        driver: See :func:`attach`.
    """
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    is_pod = ":" in driver
    hook = SparkSubmitHook(
        conn_id=spark_conn_id,
        deploy_mode="cluster",
        track_driver_via_k8s_api=is_pod,
        yarn_track_via_rm_api=not is_pod,
    )
    attach(hook, driver)
    hook.on_kill()
