# SPDX-License-Identifier: Apache-2.0
"""Refresh a view: plan, run Spark if need be, publish. One idempotent task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context

from airflow_mv.hooks import DEFAULT_ICEBERG_CONN_ID, DEFAULT_SPARK_CONN_ID, MaterializedViewHook, airflow_errors
from airflow_mv.operators.spark import MaterializedViewSparkOperator
from airflow_mv.operators.task import announce, log_plan, log_result, refresh_options, view_outlet

if TYPE_CHECKING:
    from airflow_mv.plan.planner import RefreshPlan
    from airflow_mv.results import RefreshResult


class RefreshMaterializedViewOperator(MaterializedViewSparkOperator):
    """Make a materialized view fresh.

    What is done follows from the recorded refresh and the base tables' snapshots, so the task may run as often as
    it likes: a fresh view costs a look at metadata and starts no Spark. A try that died after its Spark job is
    taken up where it stopped; one that died after publishing is found and not repeated.

    The task has the view's asset as an outlet (:func:`airflow_mv.assets.materialized_view_asset`) where ``view`` is
    plain text. An event is made only when something was published; its extra holds refresh id, mode, base
    snapshots and rows.

    Returns (XCom) the document of ``airflow-mv refresh``.

    Args:
        view: ``catalog.namespace.name`` (templated).
        iceberg_conn_id: Connection of type ``iceberg`` (templated).
        spark_conn_id: Connection of type ``spark`` or ``spark_connect`` (templated).
        as_of: Read the base tables as they were then (templated), e.g. ``{{ data_interval_end }}``.
        full: Recompute although nothing may have changed (templated).
        on_fallback: ``full``, ``fail`` or ``skip``, where an incremental view must be recomputed (templated); by
            default what the view's property ``airflow-mv.on-fallback`` says, else ``full``.
        max_full_bytes: Bytes of base table files that such a recompute may read, more fails the task (templated).
        **kwargs: All that ``SparkSubmitOperator`` takes (``conf``, ``packages``, ``executor_memory`` …).
    """

    template_fields: Sequence[str] = (
        *MaterializedViewSparkOperator.template_fields,
        "as_of",
        "full",
        "on_fallback",
        "max_full_bytes",
    )

    def __init__(
        self,
        *,
        view: str,
        iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID,
        spark_conn_id: str = DEFAULT_SPARK_CONN_ID,
        as_of: str | datetime | None = None,
        full: bool | str = False,
        on_fallback: str | None = None,
        max_full_bytes: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(view=view, iceberg_conn_id=iceberg_conn_id, spark_conn_id=spark_conn_id, **kwargs)
        self.as_of = as_of
        self.full = full
        self.on_fallback = on_fallback
        self.max_full_bytes = max_full_bytes
        named = {getattr(outlet, "uri", None) for outlet in self.outlets}
        self.outlets = [*self.outlets, *(asset for asset in view_outlet(view) if asset.uri not in named)]

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Refresh the view.

        Raises:
            AirflowFailException: A retry cannot help: the SQL, the definition or a connection is wrong.
            JobError, CommitError: A retry may help.
        """
        from airflow_mv.refresh import refresh

        with airflow_errors():
            hook = MaterializedViewHook(self.iceberg_conn_id, self.spark_conn_id)
            catalog, view = hook.catalog_for(self.view), hook.identify(self.view)
            options = refresh_options(self.as_of, self.full, self.on_fallback, self.max_full_bytes)
            memory = _Memory(context)

            def told(plan: RefreshPlan) -> None:
                log_plan(self.log, plan)
                memory.keep(plan)

            with self.stager(catalog, context) as stager:
                (result,) = refresh(catalog, [view], stager=stager, options=options, on_plan=told)
        result = memory.settle(result)
        log_result(self.log, result)
        announce(self, context, result)
        return result.to_dict()


class _Memory:
    """Tells a view that an earlier try of this very task refreshed from one that was fresh anyway.

    A worker may die between publishing and reporting success. The next try finds the view fresh, and yet the asset
    event is still due. The key holds the run's ``clear_number``: a cleared task starts afresh.
    """

    def __init__(self, context: Context) -> None:
        self._store = context.get("task_state_store")
        self._key = f"airflow_mv_refresh_id:{context['dag_run'].clear_number}"
        self._earlier = self._store.get(self._key) if self._store else None

    def keep(self, plan: RefreshPlan) -> None:
        if self._store is not None and plan.mode != "noop":
            self._store.set(self._key, plan.refresh_id)

    def settle(self, result: RefreshResult) -> RefreshResult:
        if result.outcome == "fresh" and result.refresh_id == self._earlier:
            return replace(result, outcome="already-committed")
        return result
