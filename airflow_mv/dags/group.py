# SPDX-License-Identifier: Apache-2.0
"""The tasks of a chain: pin the base tables, create missing views, refresh each view after those that it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import BaseOperator, TaskGroup

from airflow_mv.core.spec.identifiers import Identifier, split_namespace
from airflow_mv.dags.chain import Chain, Views, read_chain
from airflow_mv.errors import ConfigurationError
from airflow_mv.foundation.words import one_of
from airflow_mv.operators import (
    CreateMaterializedViewOperator,
    PinBaseTablesOperator,
    RefreshMaterializedViewOperator,
    SharedSparkApplicationOperator,
    share_spark_application,
)
from airflow_mv.operators.pin import ReadyViewsOperator
from airflow_mv.operators.spark_arguments import SPARK_ARGUMENTS
from airflow_mv.tasks.scope import ScopeName

if TYPE_CHECKING:
    from airflow_mv.tasks.keywords import Connections, GroupKeywords, RefreshKeywords, SparkTaskArguments

#: Whether each task starts a Spark application of its own, or those of a DAG run share one; by the number of views.
Applications = Literal["auto", "per-task", "shared"]
#: Tasks that differ in one of these arguments cannot share an application.
_CONNECTIONS = frozenset({"iceberg_conn_id", "spark_conn_id"})
_SHARED = SPARK_ARGUMENTS | _CONNECTIONS
#: Default number of dependency levels that a namespace's DAG has tasks for.
DEFAULT_DEPTH = 3


def materialized_views_group(
    group_id: str,
    views: Views | None = None,
    *,
    namespace: str | None = None,
    depth: int = DEFAULT_DEPTH,
    scope: ScopeName = "whole",
    connections: Connections | None = None,
    spark: SparkTaskArguments | None = None,
    refresh: RefreshKeywords | None = None,
    spark_application: Applications = "auto",
    **kwargs: Unpack[GroupKeywords],
) -> TaskGroup:
    """Add a chain of views to the current DAG, as a task group.

    Args:
        group_id: The group's id.
        views: The views: with their SQL, or with the names of those that they read (see :mod:`airflow_mv.dags.chain`).
        namespace: Instead of ``views``: all materialized views of ``catalog.namespace``, listed when the DAG runs.
        depth: With ``namespace``: number of dependency levels with tasks.
        scope: What a run refreshes: ``whole`` views as the base tables are now, ``as_of`` the end of the run's data
            interval or partition, or only the rows of that ``interval``.
        connections: ``iceberg_conn_id`` and ``spark_conn_id``, if they are not the default ones.
        spark: Arguments of every task that runs Spark, as for ``SparkSubmitOperator``.
        refresh: Arguments of every ``RefreshMaterializedViewOperator``.
        spark_application: ``shared``: the tasks of a DAG run share one Spark application, which the task
            ``spark_application`` runs; views of another catalog or with Spark arguments of their own do not.
            ``per-task``: each has its own. ``auto``: ``shared`` if there may be several views.
        **kwargs: All that ``TaskGroup`` takes.

    Raises:
        ConfigurationError, InvalidIdentifierError, InvalidQueryError: See :func:`airflow_mv.dags.chain.read_chain`.
    """
    with TaskGroup(group_id, **kwargs) as group:
        add_tasks(
            chain_of(views, namespace),
            namespace,
            depth=depth,
            scope=scope,
            connections=connections,
            spark=spark,
            refresh=refresh,
            spark_application=spark_application,
        )
    return group


def chain_of(views: Views | None, namespace: str | None) -> Chain | None:
    """Read the views; ``None`` if they are known only at run time.

    Raises:
        ConfigurationError: Neither or both are given, or the namespace's catalog is missing.
    """
    if (views is None) == (namespace is None):
        raise ConfigurationError("a chain is made of either views or a namespace")
    if namespace is not None:
        split_namespace(namespace)
    return None if views is None else read_chain(views)


def add_tasks(
    chain: Chain | None,
    namespace: str | None,
    *,
    depth: int,
    scope: ScopeName,
    connections: Connections | None,
    spark: SparkTaskArguments | None,
    refresh: RefreshKeywords | None,
    spark_application: Applications,
    pinning: Callable[..., PinBaseTablesOperator] = PinBaseTablesOperator,
) -> None:
    """Add a chain's tasks to the current DAG and group.

    Args:
        chain: The views, or ``None`` for those of the namespace.
        namespace: ``catalog.namespace``.
        depth: Levels of the namespace's views.
        scope: What a run refreshes.
        connections: Connection ids by argument.
        spark: Arguments of tasks that run Spark.
        refresh: Arguments of refreshes.
        spark_application: Whether these tasks share a Spark application.
        pinning: Makes the task that lists the namespace's views.

    Raises:
        ConfigurationError: ``spark_application`` is another word, or an argument is unknown.
    """
    one_of(spark_application, get_args(Applications), field="spark_application")
    connections, spark = connections or {}, spark or {}
    for key in connections:
        one_of(key, sorted(_CONNECTIONS), field="an argument in connections")
    iceberg = {key: value for key, value in connections.items() if key == "iceberg_conn_id"}
    # The pin task takes the time, each refresh takes the interval.
    times, rows = ("as_of", "whole") if scope == "as_of" else ("whole", scope)
    pin: dict[str, Any] = {"task_id": "pin", "scope": times, **iceberg}
    options = {"scope": rows, **connections, **spark, **(refresh or {})}
    if spark_application == "auto":
        spark_application = "per-task" if chain is not None and len(chain.views) == 1 else "shared"
    application = _application(spark_application, namespace or _namespace_of(chain), options)
    if chain is None:
        tasks = _add_levels(pinning(namespace=namespace, depth=depth, **pin), depth, options, application)
    else:
        order = {str(view): [str(name) for name in names] for view, names in chain.reads.items()}
        definitions = {str(view): item.sql for view, item in chain.views.items() if item.sql is not None}
        pinned = PinBaseTablesOperator(views=order, definitions=definitions, **pin)
        tasks = _add_views(chain, pinned, options, {**connections, **spark}, application)
    if application is not None:
        application.tasks = [task.task_id for task in tasks]


def _namespace_of(chain: Chain | None) -> str:
    view = next(iter(chain.views)) if chain else None
    return view.full_namespace if view else ""


def _application(
    wanted: Applications, namespace: str, options: Mapping[str, Any]
) -> SharedSparkApplicationOperator | None:
    if wanted == "per-task":
        return None
    given = {key: value for key, value in options.items() if key in (*_SHARED, "queue", "executor")}
    return share_spark_application(namespace=namespace, **given)


def _sharing(
    application: SharedSparkApplicationOperator | None,
    of_all: Mapping[str, Any],
    own: Mapping[str, Any],
    view: Identifier | None = None,
) -> dict[str, str]:
    """Return the argument of a task that may use the application.

    A task may not if it wants another Spark than the others. Nor may a view of another catalog, whose access to files
    may not include the application's folder.
    """
    if application is None or any(own.get(key) != of_all.get(key) for key in _SHARED):
        return {}
    if view is not None and view.catalog != split_namespace(application.namespace)[0]:
        return {}
    return {"spark_application": application.task_id}


def _add_views(
    chain: Chain,
    pin: BaseOperator,
    options: Mapping[str, Any],
    creating: Mapping[str, Any],
    application: SharedSparkApplicationOperator | None,
) -> list[BaseOperator]:
    """A task for each view, and one that creates it if the DAG file has its SQL."""
    names = chain.task_names
    created: dict[Any, BaseOperator] = {}
    refreshed: dict[Any, BaseOperator] = {}
    for view, item in chain.views.items():
        given = {**options, **(item.refresh or {})}
        refreshed[view] = RefreshMaterializedViewOperator(
            task_id=f"refresh_{names[view]}",
            view=str(view),
            **{"pins": pin.output, **_sharing(application, options, given, view), **given},
        )
        if item.sql is not None:
            given = {**creating, **(item.create or {})}
            created[view] = CreateMaterializedViewOperator(
                task_id=f"create_{names[view]}",
                view=str(view),
                sql=item.sql,
                **{**_sharing(application, options, given, view), **given},
            )
            created[view] >> refreshed[view]
        for name in chain.reads[view]:
            refreshed[name] >> refreshed[view]
            if name in created and view in created:
                created[name] >> created[view]
    return [*created.values(), *refreshed.values()]


def _add_levels(
    pin: BaseOperator,
    depth: int,
    options: Mapping[str, Any],
    application: SharedSparkApplicationOperator | None,
) -> list[Any]:
    """Two tasks for each level: one selects the views, a mapped one refreshes them."""
    results: list[Any] = []
    tasks: list[Any] = []
    end = EmptyOperator(task_id="refreshed", trigger_rule="none_failed")
    for level in range(depth):
        turn = ReadyViewsOperator(
            task_id=f"views_{level + 1}",
            pins=pin.output,
            level=level,
            refreshed=[*results],
            # A failed view holds up only the views that read it. Without pins there is nothing to do.
            trigger_rule="all_done_min_one_success",
        )
        task = RefreshMaterializedViewOperator.partial(
            task_id=f"refresh_{level + 1}", **{"pins": pin.output, **_sharing(application, options, options), **options}
        ).expand(view=turn.output)
        results.append(task.output)
        tasks += [turn, task]
        [turn, task] >> end
    return tasks
