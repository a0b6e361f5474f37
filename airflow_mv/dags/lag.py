# SPDX-License-Identifier: Apache-2.0
"""A DAG that keeps the target lags of the views of a namespace."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from airflow.sdk import DAG

from airflow_mv.core.spec.identifiers import split_namespace
from airflow_mv.dags.arguments import dag_arguments
from airflow_mv.dags.group import DEFAULT_DEPTH, Applications, add_tasks
from airflow_mv.operators.lag import PinDueViewsOperator

if TYPE_CHECKING:
    from airflow_mv.tasks.keywords import Connections, DagKeywords, RefreshKeywords, SparkTaskArguments


def target_lag_dag(
    dag_id: str,
    *,
    namespace: str,
    period: timedelta = timedelta(minutes=1),
    slots: int = 4,
    depth: int = DEFAULT_DEPTH,
    connections: Connections | None = None,
    spark: SparkTaskArguments | None = None,
    refresh: RefreshKeywords | None = None,
    spark_application: Applications = "auto",
    **kwargs: Unpack[DagKeywords],
) -> DAG:
    """Make a DAG that keeps the target lags of the views of a namespace: their property ``airflow-mv.target-lag``.

    A run of each period decides from metadata which views must be refreshed now, and refreshes them in the order of the
    chain, each in a mapped task, from one set of base snapshots. The others wait. A run without a view that is due ends
    after its first task, without Spark.

    Args:
        dag_id: The DAG's id.
        namespace: ``catalog.namespace``.
        period: The time between two runs.
        slots: How many refreshes of a run are executed at a time.
        depth: Number of dependency levels with tasks.
        connections: ``iceberg_conn_id`` and ``spark_conn_id``, if they are not the default ones.
        spark: Arguments of every task that runs Spark, as for ``SparkSubmitOperator``.
        refresh: Arguments of every ``RefreshMaterializedViewOperator``.
        spark_application: As for :func:`materialized_views_dag`.
        **kwargs: All that ``DAG`` takes; see :func:`materialized_views_dag`.

    Raises:
        ConfigurationError: The namespace's catalog is missing.
    """
    split_namespace(namespace)
    limited: Any = {"max_active_tis_per_dagrun": slots, **(refresh or {})}
    doc = f"Keeps the target lags of the views of `{namespace}`: the task `pin` decides which are refreshed now."
    with DAG(dag_id, schedule=period, **dag_arguments(kwargs, doc_md=doc)) as dag:
        add_tasks(
            None,
            namespace,
            depth=depth,
            scope="whole",
            connections=connections,
            spark=spark,
            refresh=limited,
            spark_application=spark_application,
            pinning=partial(PinDueViewsOperator, period=period, slots=slots),
        )
    return dag
