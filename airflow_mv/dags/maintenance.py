# SPDX-License-Identifier: Apache-2.0
"""A DAG that maintains views. It is independent of the DAGs that refresh them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Unpack

from airflow.sdk import DAG, task

from airflow_mv.dags.arguments import dag_arguments
from airflow_mv.errors import ConfigurationError
from airflow_mv.hooks import DEFAULT_ICEBERG_CONN_ID, DEFAULT_SPARK_CONN_ID, MaterializedViewHook
from airflow_mv.operators.maintenance import MaintainMaterializedViewOperator
from airflow_mv.tasks.literals import check_literals

if TYPE_CHECKING:
    from airflow_mv.tasks.keywords import DagKeywords


def maintenance_dag(
    dag_id: str,
    views: Sequence[str] = (),
    *,
    namespace: str | None = None,
    older_than: timedelta | float | str | None = None,
    compact: bool = False,
    schedule: Any = "@daily",
    iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID,
    spark_conn_id: str = DEFAULT_SPARK_CONN_ID,
    **kwargs: Unpack[DagKeywords],
) -> DAG:
    """Make a DAG that expires old snapshots and deletes orphan files, with one mapped task for each view.

    Args:
        dag_id: The DAG's id.
        views: Names of the views.
        namespace: Instead of ``views``: all materialized views of ``catalog.namespace`` at run time.
        older_than: See :class:`airflow_mv.operators.MaintainMaterializedViewOperator`.
        compact: Whether to compact the views' files before, see the same operator.
        schedule: How often.
        iceberg_conn_id: Connection of the views' catalog.
        spark_conn_id: Connection of type ``spark`` or ``spark_connect``, for ``compact``.
        **kwargs: All that ``DAG`` takes. By default ``catchup=False``, ``max_active_runs=1``, two retries, and the tag
            ``airflow-mv``.

    Raises:
        ConfigurationError: Neither views nor a namespace, or both.
    """
    if bool(views) == bool(namespace):
        raise ConfigurationError(f"DAG {dag_id}: give either views or a namespace")
    check_literals(f"DAG {dag_id}", {"views": views, "namespace": namespace})
    own = dag_arguments(
        kwargs, doc_md="Expires old snapshots of materialized views, and deletes files that no snapshot needs."
    )
    with DAG(dag_id, schedule=schedule, **own) as dag:

        @task(task_id="views")
        def listed() -> list[str]:
            return MaterializedViewHook(iceberg_conn_id).views_of(str(namespace))

        MaintainMaterializedViewOperator.partial(
            task_id="maintain",
            older_than=older_than,
            compact=compact,
            spark_conn_id=spark_conn_id,
            iceberg_conn_id=iceberg_conn_id,
            map_index_template="{{ task.view }}",
        ).expand(view=listed() if namespace else list(views))
    return dag
