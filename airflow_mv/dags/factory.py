# SPDX-License-Identifier: Apache-2.0
"""Build a chain of views as one DAG, or as two DAGs with the same tasks: one for events, one for backfills."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from airflow.sdk import DAG

from airflow_mv.dags.arguments import dag_arguments
from airflow_mv.dags.chain import Chain, Views
from airflow_mv.dags.group import DEFAULT_DEPTH, Applications, add_tasks, chain_of
from airflow_mv.operators import refresh_params
from airflow_mv.tasks.scope import ScopeName

if TYPE_CHECKING:
    from airflow_mv.tasks.keywords import ChainKeywords, Connections, DagKeywords, RefreshKeywords, SparkTaskArguments


def materialized_views_dag(
    dag_id: str,
    views: Views | str | Path | None = None,
    *,
    namespace: str | None = None,
    schedule: Any = None,
    depth: int = DEFAULT_DEPTH,
    scope: ScopeName = "whole",
    connections: Connections | None = None,
    spark: SparkTaskArguments | None = None,
    refresh: RefreshKeywords | None = None,
    spark_application: Applications = "auto",
    **kwargs: Unpack[DagKeywords],
) -> DAG:
    """Make a DAG of a chain of views: in dependency order, siblings in parallel, from one set of base snapshots.

    The DAG file reads no catalog, because it is parsed every few seconds. The order follows from the views' SQL, or
    from the dependencies in the file; the first task compares it with the catalog. With ``namespace`` that task lists
    the views, and mapped tasks refresh them.

    Args:
        dag_id: The DAG's id.
        views: ``{"lake.sales.daily": "SELECT …"}``, ``{"lake.sales.total": ["lake.sales.daily"]}`` or a list of names
            and :class:`~airflow_mv.dags.chain.ChainedView`. Or a folder of SQL files, as ``airflow-mv apply`` reads it:
            views are created with all that their files say, and the DAG has the views' tags. The file ``dag.yaml`` in
            it may have ``schedule``, ``description``, ``tags`` and ``namespace``.
        namespace: Instead of ``views``: all materialized views of ``catalog.namespace``. With a folder: that of files
            whose names have fewer parts.
        schedule: As for ``DAG``.
        depth: With ``namespace``: number of dependency levels with tasks.
        scope: What a run refreshes: ``whole`` views as the base tables are now, ``as_of`` the end of the run's data
            interval or partition, or only the rows of that ``interval``. A manual run can override it in its form.
        connections: ``iceberg_conn_id`` and ``spark_conn_id``, if they are not the default ones.
        spark: Arguments of every task that runs Spark, as for ``SparkSubmitOperator``.
        refresh: Arguments of every ``RefreshMaterializedViewOperator``.
        spark_application: ``shared``: the tasks of a DAG run share one Spark application, which the task
            ``spark_application`` runs; views of another catalog or with Spark arguments of their own do not.
            ``per-task``: each has its own. ``auto``: ``shared`` if there may be several views.
        **kwargs: All that ``DAG`` takes. By default ``catchup=False``, ``max_active_runs=1``, two retries a task, the
            tag ``airflow-mv``, a description of the views as ``doc_md``, and the params of
            :func:`~airflow_mv.operators.refresh_params`; ``params`` and ``default_args`` are added to these.

    Raises:
        ConfigurationError, InvalidIdentifierError, InvalidQueryError: See :func:`airflow_mv.dags.chain.read_chain`.
    """
    if isinstance(views, str | Path):
        from airflow_mv.dags.folder import views_of

        views, said = views_of(views, namespace=namespace)
        in_folder = said.pop("schedule", None)
        namespace, schedule = None, in_folder if schedule is None else schedule
        kwargs = {**said, **kwargs, "tags": [*said.get("tags", ()), *(kwargs.get("tags") or ())]}  # type: ignore[typeddict-item]
    chain = chain_of(views, namespace)
    own = dag_arguments(kwargs, doc_md=_doc(chain, namespace, scope))
    own["params"] = {**refresh_params(), **(kwargs.get("params") or {})}
    with DAG(dag_id, schedule=schedule, **own) as dag:
        add_tasks(
            chain,
            namespace,
            depth=depth,
            scope=scope,
            connections=connections,
            spark=spark,
            refresh=refresh,
            spark_application=spark_application,
        )
    return dag


def materialized_views_dags(
    dag_id: str,
    views: Views | None = None,
    *,
    on: Any,
    every: Any,
    periodic_dag_id: str | None = None,
    periodic: ChainKeywords | None = None,
    **kwargs: Unpack[ChainKeywords],
) -> tuple[DAG, DAG]:
    """Make two DAGs of one chain, because Airflow refuses to backfill a DAG that events start.

    Both may run at once: a refresh is published by one swap, and a later one finds it done. Each DAG can be paused
    without the other.

    Args:
        dag_id: The DAG that events start.
        views: As for :func:`materialized_views_dag`.
        on: Its schedule: assets.
        every: The schedule of the other DAG, any periodic one. This DAG can be backfilled.
        periodic_dag_id: Its id, ``<dag_id>_periodic`` by default.
        periodic: Arguments of the second DAG only, as for :func:`materialized_views_dag`, e.g. ``scope``.
        **kwargs: As for :func:`materialized_views_dag`.

    Returns:
        The DAG that events start, and the periodic one.
    """
    other = periodic_dag_id or f"{dag_id}_periodic"
    first = materialized_views_dag(dag_id, views, schedule=on, **kwargs)
    own: ChainKeywords = {**kwargs, **(periodic or {})}
    second = materialized_views_dag(other, views, schedule=every, **own)
    first.doc_md = f"Started by events; to backfill, use the DAG `{other}`, which has the same tasks.\n\n{first.doc_md}"
    second.doc_md = f"For backfills; the DAG `{dag_id}` has the same tasks, and events start it.\n\n{second.doc_md}"
    return first, second


def _doc(chain: Chain | None, namespace: str | None, scope: ScopeName) -> str:
    when = "of the end of the run's data interval" if scope == "as_of" else "of one moment"
    head = f"Refreshes materialized views, all from base table snapshots {when} (task `pin`)."
    if chain is None:
        return f"{head}\n\nThe views are those of the namespace `{namespace}`, listed when the DAG runs."
    rows = [f"| {number} | `{view}` | {_names(chain.reads[view])} |" for number, view in enumerate(chain.views, 1)]
    return "\n".join([head, "", "| | view | after |", "|---|---|---|", *rows])


def _names(views: Sequence[Any]) -> str:
    return ", ".join(f"`{view}`" for view in views)
