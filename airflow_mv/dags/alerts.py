# SPDX-License-Identifier: Apache-2.0
"""A DAG that sends alerts for late views. It is independent of the DAGs that refresh them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Unpack

from airflow.sdk import DAG

from airflow_mv.dags.arguments import dag_arguments
from airflow_mv.hooks import DEFAULT_ICEBERG_CONN_ID
from airflow_mv.operators.alert import FreshnessAlertOperator, Listener

if TYPE_CHECKING:
    from airflow_mv.tasks.keywords import DagKeywords


def freshness_alerts_dag(
    dag_id: str,
    views: str | Sequence[str] = (),
    *,
    namespace: str | None = None,
    max_staleness: timedelta | float | str | None = None,
    on_breach: Listener | Sequence[Listener] = (),
    on_recovery: Listener | Sequence[Listener] = (),
    schedule: Any = timedelta(minutes=10),
    iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID,
    **kwargs: Unpack[DagKeywords],
) -> DAG:
    """Make a DAG of one task that sends a message when a view exceeds its ``max_staleness`` and when it has recovered.

    Args:
        dag_id: The DAG's id.
        views: Names of the views.
        namespace: Instead of ``views``: all views of a namespace that have the property ``airflow-mv.max-staleness``.
        max_staleness: The freshness SLO; see :class:`airflow_mv.operators.FreshnessAlertOperator`.
        on_breach: Receivers; likewise.
        on_recovery: Likewise.
        schedule: How often to check.
        iceberg_conn_id: Connection of the views' catalog.
        **kwargs: All that ``DAG`` takes. By default ``catchup=False``, ``max_active_runs=1``, two retries, and the tag
            ``airflow-mv``.

    Raises:
        ConfigurationError: Neither views nor a namespace, or both.
    """
    own = dag_arguments(
        kwargs,
        doc_md="Reports when materialized views are late, and when they are on time again.",
        retry_delay=timedelta(minutes=1),
    )
    with DAG(dag_id, schedule=schedule, **own) as dag:
        FreshnessAlertOperator(
            task_id="freshness",
            views=views,
            namespace=namespace,
            max_staleness=max_staleness,
            on_breach=on_breach,
            on_recovery=on_recovery,
            iceberg_conn_id=iceberg_conn_id,
        )
    return dag
