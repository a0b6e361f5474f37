# SPDX-License-Identifier: Apache-2.0
"""Refresh a view in one idempotent task: plan, run Spark if needed, publish."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Unpack

from airflow.sdk import Context

from airflow_mv.assets import VIEWS_ALIAS
from airflow_mv.errors import ConfigurationError
from airflow_mv.hooks import DEFAULT_ICEBERG_CONN_ID, DEFAULT_SPARK_CONN_ID, MaterializedViewHook
from airflow_mv.lineage import RefreshLineage
from airflow_mv.operators.deferral import Deferral, Resumption
from airflow_mv.operators.options import REFRESH_ARGUMENTS, RefreshArguments
from airflow_mv.operators.spark import TaskStager
from airflow_mv.operators.spark_arguments import SparkTaskOperator
from airflow_mv.operators.task import announce, log_plan, log_result, plan_text, requester, view_outlet
from airflow_mv.retries import task_errors
from airflow_mv.tasks.links import MaterializedViewLink, SparkApplicationLink, show_link

if TYPE_CHECKING:
    from airflow.sdk.definitions.mappedoperator import OperatorPartial

    from airflow_mv.core.catalog import MaterializedViewCatalog
    from airflow_mv.core.refresh import RefreshOptions, SnapshotSet
    from airflow_mv.core.refresh.plan import RefreshPlan, RefreshResult
    from airflow_mv.core.script import Stager
    from airflow_mv.core.spec.choices import FallbackPolicy
    from airflow_mv.core.spec.identifiers import Identifier
    from airflow_mv.tasks.keywords import Checks, PartialRefreshKeywords, SparkKeywords
    from airflow_mv.tasks.scope import ScopeName


#: Instances of one task that refresh intervals at the same time: enough for a backfill, and few enough for one machine.
INTERVALS_AT_ONCE = 4
_BY_SCOPE: Any = object()


class RefreshMaterializedViewOperator(SparkTaskOperator):
    """Make a materialized view fresh.

    What is done depends on the recorded refresh and the base tables' snapshots, so the task may run any number of
    times: for a fresh view it only reads metadata and does not start Spark. A try that died after its Spark job is
    resumed there. A try that died after publishing is detected and not repeated.

    The task has the view's asset as an outlet (:func:`airflow_mv.assets.materialized_view_asset`) where ``view`` is
    its full name, else and where it is mapped the alias of all of them (:data:`airflow_mv.assets.VIEWS_ALIAS`). An
    event is emitted only if something was published; its extra holds refresh id, mode, base snapshots, rows and lag.

    Returns (XCom) the document of ``airflow-mv refresh``.

    Args:
        view: ``catalog.namespace.name`` (templated).
        name: Name of the Spark application (templated).
        spark_application: Id of the task of this DAG that runs a shared Spark application
            (:class:`~airflow_mv.operators.SharedSparkApplicationOperator`). The script runs there; if that task does
            not run, in an application of its own.
        deferrable: Whether a refresh waits in the triggerer, without a worker slot: for a shared application, or for a
            driver in a cluster whose state the provider can request (``yarn_track_via_rm_api``,
            ``track_driver_via_k8s_api``). ``None``: as ``AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE`` says; if that is
            not set, if a triggerer runs.
        as_of: Read the base tables as they were then (templated), e.g. ``{{ data_interval_end }}``.
        full: Recompute even if nothing has changed (templated).
        on_fallback: ``full``, ``fail`` or ``skip``, if an incremental view must be recomputed (templated). Default: the
            view's property ``airflow-mv.on-fallback``, else ``full``.
        max_full_bytes: Limit in bytes of base table files for a recompute, whatever the strategy; above it the task
            fails (templated). The first refresh may read any number.
        pins: Read the base tables at the run's pins (templated): the output of a
            :class:`~airflow_mv.operators.pin.PinBaseTablesOperator`. That operator also takes ``as_of``.
        checks: Checks of the staged rows (templated), in addition to the view's own checks:
            see :mod:`airflow_mv.checks`, and ``docs/checks.md``.
        scope: What a run refreshes (templated): ``whole`` (the view as the base tables are now), ``as_of`` (as they
            were at the end of the run's data interval or partition) or ``interval`` (only the rows of the run's data
            interval or partition, from the base tables as they are now). A run's params override it, see
            :func:`~airflow_mv.operators.refresh_params`, and :mod:`airflow_mv.tasks.scope` for each kind of run.
        interval_column: The interval column (templated); by default the view's property ``airflow-mv.interval-column``.
        interval_length: Length of the interval if a run gives only one end of it (templated): ``1 d``, ``6 h``.
        max_snapshots: Maximum of new base commits that an incremental refresh reads (templated). The rest is left for
            the next run, and logged.
        max_bytes: Maximum of bytes of files that these commits added and removed (templated). One commit is always
            read.
        with_inputs: Whether to refresh first the materialized views of the same catalog that the view reads, directly
            or through others, all from one set of base snapshots and as a whole. No asset event is emitted for them.
        max_active_tis_per_dag: As for ``BaseOperator``. By default 4 with ``scope="interval"``, so that a backfill
            runs in parallel, and else 1, over all runs: Airflow's backfill ignores ``max_active_runs``, and two
            refreshes of the whole view would repeat work.
        iceberg_conn_id: Connection of type ``iceberg`` (templated).
        spark_conn_id: Connection of type ``spark`` or ``spark_connect`` (templated).
        **kwargs: All that ``SparkSubmitOperator`` takes except the application (``conf``, ``packages``,
            ``executor_memory`` …), and all that ``BaseOperator`` takes. ``packages=""`` adds no Maven packages: the
            cluster has the jars.
    """

    template_fields: Sequence[str] = (
        *SparkTaskOperator.template_fields,
        "view",
        *REFRESH_ARGUMENTS,
        "planned",
    )
    operator_extra_links = (MaterializedViewLink(), SparkApplicationLink())
    #: The plan made at run time is shown among the rendered templates.
    overwrite_rtif_after_execution = True

    def __init__(  # noqa: PLR0913 (each is an argument of the task)
        self,
        *,
        view: str,
        iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID,
        spark_conn_id: str = DEFAULT_SPARK_CONN_ID,
        name: str | None = None,
        spark_application: str | None = None,
        deferrable: bool | None = None,
        as_of: str | datetime | None = None,
        full: bool | str = False,
        on_fallback: FallbackPolicy | None = None,
        max_full_bytes: int | str | None = None,
        pins: Any = None,
        checks: Checks = None,
        scope: ScopeName = "whole",
        interval_column: str | None = None,
        interval_length: str | timedelta | None = None,
        max_snapshots: int | str | None = None,
        max_bytes: int | str | None = None,
        with_inputs: bool = False,
        max_active_tis_per_dag: int | None = _BY_SCOPE,
        **kwargs: Unpack[SparkKeywords],
    ) -> None:
        by_scope = max_active_tis_per_dag is _BY_SCOPE
        super().__init__(
            iceberg_conn_id=iceberg_conn_id,
            spark_conn_id=spark_conn_id,
            name=name or f"airflow-mv {view}",
            max_active_tis_per_dag=1 if by_scope else max_active_tis_per_dag,
            **kwargs,
        )
        self.view = view
        self.spark_application = spark_application
        self.deferrable = deferrable
        self.as_of = as_of
        self.full = full
        self.on_fallback = on_fallback
        self.max_full_bytes = max_full_bytes
        self.pins = pins
        self._takes_pins = pins is not None
        self.checks = self.documents_of(checks)
        self.scope = scope
        self.interval_column = interval_column
        self.interval_length = interval_length
        self.max_snapshots = max_snapshots
        self.max_bytes = max_bytes
        self.with_inputs = with_inputs
        self.check_literals()
        if with_inputs and self._takes_pins:
            raise ConfigurationError(
                f"view {view}: with_inputs and pins exclude each other: a run with pins refreshes each view in a task"
            )
        if by_scope and self.scope == "interval":
            self.max_active_tis_per_dag = INTERVALS_AT_ONCE
        self.planned: str | None = None
        #: Runs the view's scripts, once the task is executed.
        self.stager: TaskStager | None = None
        self._lineage = RefreshLineage()
        named = {getattr(outlet, "uri", None) for outlet in self.outlets}
        # Airflow cannot resolve the name of an asset that is an outlet of only a mapped task instance.
        if VIEWS_ALIAS not in self.outlets:
            found = [outlet for outlet in view_outlet(view) if getattr(outlet, "uri", "") not in named]
            self.outlets = [*self.outlets, *found]

    @classmethod
    def partial(cls, **kwargs: Unpack[PartialRefreshKeywords]) -> OperatorPartial:  # type: ignore[override]
        """Map the task over views: ``.partial(task_id="refresh").expand(view=[…])``.

        Each instance shows its view's name, and emits the event of its view's asset, through
        :data:`airflow_mv.assets.VIEWS_ALIAS`.

        Args:
            **kwargs: As for the operator.
        """
        kwargs.setdefault("map_index_template", "{{ task.view }}")
        kwargs["outlets"] = [*kwargs.get("outlets", ()), VIEWS_ALIAS]
        mapped: OperatorPartial = super().partial(**kwargs)
        return mapped

    def execute(self, context: Context) -> dict[str, Any]:
        """Refresh the view.

        Raises:
            MaterializedViewError: ``retryable`` says whether another try may succeed; the retry policy uses it.
            JobError, CommitError: A retry may help.
        """
        return self._refresh(context, Resumption())

    def execute_complete(
        self,
        context: Context,
        event: Mapping[str, Any],
        plan: str | None = None,
        until: float | None = None,
        waiting: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Go on after the trigger's event: publish what was staged meanwhile, or wait on.

        Args:
            context: The task's context.
            event: The shared application has answered, or has ended; or the driver in the cluster has left its outcome,
                or the cluster has to be asked whether it still runs.
            plan: The plan, if the task waited for the shared application.
            until: When the task's time ends, likewise, in seconds since the epoch.
            waiting: The refresh, if the task waited for a driver.

        Raises:
            MaterializedViewError: As for :meth:`execute`, or the trigger could not read the store.
            StoppedError: The task's time has ended.
        """
        with task_errors(self):
            resumed = Resumption.of(event, plan, until, waiting)
        return self._refresh(context, resumed)

    def on_kill(self) -> None:
        """Stop what this task has started on Spark. Airflow gives it 5 seconds."""
        if self.stager is not None:
            self.stager.kill()

    @property
    def application_id(self) -> str | None:
        """The Spark application that ran for the view, after it ran."""
        return None if self.stager is None else self.stager.application_id

    def _refresh(self, context: Context, resumed: Resumption) -> dict[str, Any]:
        from airflow_mv.actions import maintain_after_refresh, refresh_views

        with task_errors(self):
            hook = MaterializedViewHook(self.iceberg_conn_id, self.spark_conn_id)
            catalog, view = hook.catalog_for(self.view), hook.connection.identify(self.view)
            show_link(context, view)
            arguments = RefreshArguments.of(self, takes_pins=self._takes_pins)
            options, pins = arguments.options(context, self.log), arguments.pinned(catalog, view)
            memory = _EarlierTry(context)
            stager = self.stager = self._new_stager(catalog, context, resumed)

            def planned(plan: RefreshPlan) -> None:
                # Rows of an interval must be staged again if other intervals were published before the task continues.
                stager.may_defer(plan if options.interval is None else None)
                log_plan(self.log, plan)
                self.planned = plan_text(plan)
                memory.keep(plan)
                self._lineage.note_plan(catalog, plan)

            with stager.opened():
                if self.with_inputs and resumed.plan is None:
                    options, pins = self._refresh_inputs(catalog, view, options, stager, context)
                (result,) = refresh_views(
                    catalog,
                    [view],
                    stager=stager,
                    options=options,
                    pins=pins,
                    plan=resumed.plan,
                    on_plan=planned,
                    requester=requester(context),
                )
                maintain_after_refresh(catalog, view, published=result.published, stager=stager, report=self.log.info)
            result = memory.settle(catalog, result)
        self._lineage.note_result(result)
        log_result(self.log, result)
        announce(self, context, result)
        return result.to_dict()

    def _new_stager(self, catalog: MaterializedViewCatalog, context: Context, resumed: Resumption) -> TaskStager:
        task = self.spark_task()
        deferral = Deferral(
            task, self.defer, wanted=self.deferrable, timeout=self.execution_timeout, until=resumed.until
        )
        application = self.spark_application
        return TaskStager(task, catalog, context, spark_application=application, deferral=deferral, resumed=resumed)

    def _refresh_inputs(
        self,
        catalog: MaterializedViewCatalog,
        view: Identifier,
        options: RefreshOptions,
        stager: Stager,
        context: Context,
    ) -> tuple[RefreshOptions, SnapshotSet]:
        """Refresh the views that the view reads, in this worker slot. Return how it is refreshed itself."""
        from airflow_mv.actions import maintain_after_refresh, refresh_views
        from airflow_mv.extras.pins import pinned_chain

        views, pins = pinned_chain(catalog, [view], as_of=options.as_of)
        log_this = functools.partial(log_plan, self.log)
        for name in views[:-1]:
            (result,) = refresh_views(
                catalog, [name], stager=stager, pins=pins, on_plan=log_this, requester=requester(context)
            )
            log_result(self.log, result)
            maintain_after_refresh(catalog, name, published=result.published, stager=stager, report=self.log.info)
        return replace(options, as_of=None), pins

    def get_openlineage_facets_on_complete(self, _task_instance: Any) -> Any:
        """Return the lineage. The OpenLineage provider calls this after a success."""
        return self._lineage.of_success()

    def get_openlineage_facets_on_failure(self, _task_instance: Any) -> Any:
        """Return the planned lineage. The OpenLineage provider calls this after a failure."""
        return self._lineage.of_failure()


class _EarlierTry:
    """Distinguishes a view that an earlier try of this task refreshed from a view that was fresh before.

    A worker may die between publishing and reporting success. The next try finds the view fresh, but the asset
    event is still due. The key contains the run's ``clear_number``, so a cleared task starts from the beginning.
    """

    def __init__(self, context: Context) -> None:
        self._store = context.get("task_state_store")
        self._key = f"airflow_mv_refresh_id:{context['dag_run'].clear_number}"
        self._earlier = self._store.get(self._key) if self._store else None

    def keep(self, plan: RefreshPlan) -> None:
        if self._store is not None and plan.mode != "noop":
            self._store.set(self._key, plan.refresh_id)

    def settle(self, catalog: MaterializedViewCatalog, result: RefreshResult) -> RefreshResult:
        if result.outcome != "fresh" or not isinstance(self._earlier, str):
            return result
        # Other refreshes, such as those of a backfill's other days, may have been published since.
        was_ours = _was_published(catalog, result.view, self._earlier)
        return replace(result, outcome="already-committed") if was_ours else result


def _was_published(catalog: MaterializedViewCatalog, view: Identifier, refresh_id: str) -> bool:
    """Whether a refresh is in the history of a view. Another one may have been published since."""
    from airflow_mv.core.catalog.layouts import readable_refreshes

    loaded = catalog.load(view)
    return any(record.refresh_id == refresh_id for record in readable_refreshes(loaded, catalog.load_storage(loaded)))
