# SPDX-License-Identifier: Apache-2.0
"""Pin base tables for a run of several refreshes, and select the views to refresh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from airflow.sdk import Context

from airflow_mv.core.spec.identifiers import Identifier, split_namespace
from airflow_mv.errors import ConfigurationError
from airflow_mv.hooks import DEFAULT_ICEBERG_CONN_ID, MaterializedViewHook
from airflow_mv.hooks.dag_run import run_facts
from airflow_mv.operators.options import run_pins
from airflow_mv.retries import RetriedOperator, task_errors
from airflow_mv.tasks.literals import CheckedOperator, Reader, words
from airflow_mv.tasks.scope import moment, scope_of, word_of

if TYPE_CHECKING:
    from airflow_mv.core.catalog import MaterializedViewCatalog
    from airflow_mv.extras.pins import RunPins
    from airflow_mv.tasks.keywords import TaskKeywords


class PinBaseTablesOperator(CheckedOperator, RetriedOperator):
    """Pin the base tables of several views to one consistent snapshot set.

    Every refresh that gets ``pins=pin.output`` computes its view from these, whenever it runs: the views agree.
    Reads metadata only. A view or table that cannot be read fails only the refreshes that need it.

    A cleared or retried refresh keeps the pins of its run. Also clear this task to pin again.

    Returns (XCom) the document of ``airflow-mv pin``: the views in order, each base table's snapshot, and what could
    not be pinned.

    Args:
        views: The views that the run refreshes (templated); a mapping gives for each view the views that the DAG
            refreshes before it. A view that reads another one without that order is reported.
        namespace: Instead of ``views``: all materialized views of ``catalog.namespace`` at run time (templated).
        iceberg_conn_id: Connection of type ``iceberg`` (templated).
        as_of: Pin the base tables as they were then (templated), e.g. ``{{ data_interval_end }}``.
        scope: ``whole`` (as they are now) or ``as_of`` (as they were at the end of the run's data interval or
            partition), if ``as_of`` is not given (templated). A run's params override it, see
            :func:`~airflow_mv.operators.refresh_params`.
        definitions: Queries by view, for views that are created in the same run (templated).
        depth: Number of dependency levels that the DAG has tasks for. More levels fail the task.
        **kwargs: All that ``BaseOperator`` takes.
    """

    template_fields: Sequence[str] = ("views", "namespace", "iceberg_conn_id", "as_of", "scope", "definitions")
    literals: ClassVar[Mapping[str, Reader]] = {"scope": words("whole", "as_of")}
    ui_color: str = "#d9efe5"

    def __init__(
        self,
        *,
        views: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
        namespace: str | None = None,
        iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID,
        as_of: str | datetime | None = None,
        scope: str = "whole",
        definitions: Mapping[str, str] | None = None,
        depth: int | None = None,
        **kwargs: Unpack[TaskKeywords],
    ) -> None:
        super().__init__(**kwargs)
        if (views is None) == (namespace is None):
            raise ConfigurationError(f"{type(self).__name__} takes either views or namespace")
        self.views = views
        self.namespace = namespace
        self.iceberg_conn_id = iceberg_conn_id
        self.as_of = as_of
        self.scope = scope
        self.definitions = dict(definitions or {})
        self.depth = depth
        self.check_literals()

    def execute(self, context: Context) -> dict[str, Any]:
        """Pin the base tables.

        Raises:
            ConfigurationError: The views are in several catalogs, or on more levels than the DAG has.
            InvalidQueryError: The views read each other in a cycle.
        """
        from airflow_mv.common.each import left_out
        from airflow_mv.extras.pins import pin_base_tables

        with task_errors(self):
            hook = MaterializedViewHook(self.iceberg_conn_id)
            catalog, views = self._listed(hook)
            order = None
            if isinstance(self.views, Mapping):
                order = {
                    hook.connection.identify(view): [*map(hook.connection.identify, names)]
                    for view, names in self.views.items()
                }
            run = pin_base_tables(
                catalog,
                views,
                as_of=moment(self.as_of, field="as_of") or self._time_of(context),
                definitions={hook.connection.identify(view): sql for view, sql in self.definitions.items()},
                order=order,
            )
            if self.namespace is not None:
                run.faults.update({error.location: str(error) for error in left_out(catalog)})
            self._say(run)
            if self.depth is not None and len(run.levels) > self.depth:
                raise ConfigurationError(
                    f"the views are on {len(run.levels)} levels, and the DAG has tasks for {self.depth}: "
                    f"give it depth={len(run.levels)}"
                )
        return run.document()

    def _time_of(self, context: Context) -> datetime | None:
        found = scope_of(run_facts(context), word_of(self.scope, ("whole", "as_of"), field="scope") or "whole")
        if found.as_of is not None:
            self.log.info("This run pins %s", found.why)
        return found.as_of

    def _listed(self, hook: MaterializedViewHook) -> tuple[MaterializedViewCatalog, list[Identifier]]:
        from airflow_mv.common.each import materialized_views

        if self.namespace is not None:
            name, namespace = split_namespace(self.namespace)
            catalog = hook.catalog_named(name)
            return catalog, materialized_views(catalog, namespace)
        views = [hook.connection.identify(view) for view in self.views or ()]
        names = sorted({view.catalog for view in views})
        if len(names) != 1:
            raise ConfigurationError(
                f"the views are in {len(names)} catalogs ({', '.join(names)}): pin each on its own"
            )
        return hook.catalog_named(names[0]), views

    def _say(self, run: RunPins) -> None:
        when = f" as of {run.as_of}" if run.as_of else ""
        self.log.info("Pinned %d base tables of %d views%s", len(run.base_tables), len(run.views), when)
        for name, pin in run.base_tables.items():
            self.log.info("  %s at snapshot %s", name, pin.snapshot_id or "none")
        for view, names in run.views.items():
            self.log.info("  %s%s", view, f", after {', '.join(names)}" if names else "")
        for name, why in run.faults.items():
            self.log.warning("  not pinned: %s: %s", name, why)


class ReadyViewsOperator(RetriedOperator):
    """Return the views of a level that can be refreshed: all except those that read a view whose refresh failed.

    For a task that is mapped over views that are known only at run time.

    Returns (XCom) their names.

    Args:
        pins: The :class:`PinBaseTablesOperator`'s output (templated).
        level: The level, from 0.
        refreshed: Results of the refreshes of the levels before (templated).
        **kwargs: All that ``BaseOperator`` takes.
    """

    template_fields: Sequence[str] = ("pins", "refreshed")
    ui_color: str = "#d9efe5"

    def __init__(
        self,
        *,
        pins: Any,
        level: int,
        refreshed: Any = (),
        **kwargs: Unpack[TaskKeywords],
    ) -> None:
        super().__init__(**kwargs)
        self.pins = pins
        self.level = level
        self.refreshed = refreshed

    def execute(self, context: Context) -> list[str]:  # noqa: ARG002 (Airflow names it)
        """Return the views.

        Raises:
            ConfigurationError: ``pins`` is something else.
        """
        with task_errors(self):
            run = run_pins(self.pins)
        results = [result for level in self.refreshed for result in level or ()]
        ready, held = run.ready(self.level, {result["view"] for result in results})
        for view, names in held.items():
            self.log.warning("%s is blocked: %s was not refreshed in this run", view, ", ".join(names))
        self.log.info("%d views", len(ready))
        return ready
