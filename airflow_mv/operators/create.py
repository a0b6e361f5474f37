# SPDX-License-Identifier: Apache-2.0
"""Create a view from a task. Idempotent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from airflow.sdk import Context

from airflow_mv.checks import read_checks
from airflow_mv.hooks import DEFAULT_ICEBERG_CONN_ID, DEFAULT_SPARK_CONN_ID, MaterializedViewHook
from airflow_mv.operators.spark import TaskStager
from airflow_mv.operators.spark_arguments import SparkTaskOperator
from airflow_mv.retries import task_errors
from airflow_mv.tasks.links import MaterializedViewLink, SparkApplicationLink, show_link

if TYPE_CHECKING:
    from airflow_mv.core.script import Outcome, Script, Stager
    from airflow_mv.core.spec.choices import LayoutName, OnChange, RefreshStrategy
    from airflow_mv.tasks.keywords import Checks, SparkKeywords


class CreateMaterializedViewOperator(SparkTaskOperator):
    """Create a materialized view, with an empty storage table; a refresh fills it.

    Idempotent, so the task may be the first of a DAG. The whole definition is compared with an existing view, and
    ``on_change`` says what happens to a difference. An argument that is left out keeps what the view has. The log says
    what was changed, what the next refresh recomputes, and what was kept. Until the next refresh the rows are those of
    the old definition.

    Returns (XCom) the document of ``airflow-mv status``.

    Args:
        view: ``catalog.namespace.name`` (templated).
        sql: The query (templated); names without a catalog are resolved in the view's catalog and namespace. ``None``
            keeps the query of an existing view, and makes a plain one materialized.
        name: Name of the Spark application (templated).
        spark_application: Id of the task of this DAG that runs a shared Spark application
            (:class:`~airflow_mv.operators.SharedSparkApplicationOperator`).
        deferrable: Has no effect: a creation never waits in the triggerer. It is taken because ``default_args`` of a
            DAG may have it for its refreshes.
        max_active_tis_per_dag: As for ``BaseOperator``.
        refresh_strategy: ``incremental`` or ``full``; a new view is ``incremental`` by default.
        allow_stale_data: Whether stale rows may be read; not by default.
        time_travel: Whether each refresh stays in the history; not by default.
        partition_by: Partition transforms of the storage table (templated), e.g. ``days(ts)``. An existing view gets
            others with the next recomputed rows.
        sort_by: The columns by which the rows in the storage table's files are sorted (templated), e.g.
            ``day, region DESC``; an empty text for none. By default the view keeps its order.
        properties: More view properties (templated).
        checks: The view's own checks, which the rows of every refresh must pass before they are published
            (templated); see :mod:`airflow_mv.checks`. ``[]`` removes those of an existing view.
        layout: ``pointed``, ``registered`` or ``table``; by default the catalog's preferred layout.
        dialects: Further SQL dialects in which the query is stored, such as ``trino``; sqlglot writes it. Without
            any, a view keeps those that it has.
        columns: The names of the view's columns (templated), in the order of the query's; by default the query's own.
        comment: The view's comment (templated).
        column_comments: Comments of the view's columns (templated), by column; by default those of the base columns.
        storage_name: With the layout ``registered``: the storage table's name in the view's namespace (templated); by
            default the view's name and ``__storage``. An existing view keeps its storage table's name: another one is
            refused.
        transpile: Without ``sql``: whether the SQL for Spark may be translated from the view's text for another engine.
        on_change: What happens if the view exists with another definition. ``apply``: settings, properties and checks
            are changed, and a difference that needs a recompute of all rows (query, dialects, partitioning) fails the
            task. ``rebuild``: all differences are applied, and the next refresh recomputes the rows where needed.
            ``fail``: every difference fails the task. A task that fails has changed nothing.
        adopt: Make the existing table of this name the view, if it is not a view yet; it must fit the query.
        require: The most expensive modes that refreshes may need (templated), such as ``["merge"]``, or
            ``["append=append", "delete=merge"]`` for kinds of changes of the base tables. If the query needs more, the
            task fails before anything is made, and says why. See ``airflow-mv explain``.
        iceberg_conn_id: Connection of type ``iceberg`` (templated).
        spark_conn_id: Connection of type ``spark`` or ``spark_connect`` (templated).
        **kwargs: All that ``SparkSubmitOperator`` takes except the application, and all that ``BaseOperator`` takes.
    """

    template_fields: Sequence[str] = (
        *SparkTaskOperator.template_fields,
        "view",
        "sql",
        "partition_by",
        "sort_by",
        "properties",
        "checks",
        "columns",
        "comment",
        "column_comments",
        "storage_name",
        "require",
    )
    operator_extra_links = (MaterializedViewLink(), SparkApplicationLink())
    template_fields_renderers: ClassVar[dict[str, str]] = {"sql": "sql"}

    def __init__(  # noqa: PLR0913 (each is a field of the definition)
        self,
        *,
        view: str,
        sql: str | None = None,
        iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID,
        spark_conn_id: str = DEFAULT_SPARK_CONN_ID,
        name: str | None = None,
        spark_application: str | None = None,
        deferrable: bool | None = None,
        max_active_tis_per_dag: int | None = 1,
        refresh_strategy: RefreshStrategy | None = None,
        allow_stale_data: bool | None = None,
        time_travel: bool | None = None,
        partition_by: Sequence[str] = (),
        sort_by: str | None = None,
        properties: Mapping[str, str] | None = None,
        checks: Checks = None,
        layout: LayoutName | None = None,
        dialects: Sequence[str] = (),
        columns: Sequence[str] | None = None,
        comment: str | None = None,
        column_comments: Mapping[str, str] | None = None,
        storage_name: str | None = None,
        transpile: bool = False,
        on_change: OnChange = "apply",
        adopt: bool = False,
        require: Sequence[str] = (),
        **kwargs: Unpack[SparkKeywords],
    ) -> None:
        super().__init__(
            iceberg_conn_id=iceberg_conn_id,
            spark_conn_id=spark_conn_id,
            name=name or f"airflow-mv {view}",
            max_active_tis_per_dag=max_active_tis_per_dag,
            **kwargs,
        )
        self.view = view
        self.spark_application = spark_application
        self.deferrable = deferrable
        self.sql = sql
        self.refresh_strategy = refresh_strategy
        self.allow_stale_data = allow_stale_data
        self.time_travel = time_travel
        self.partition_by = list(partition_by)
        self.sort_by = sort_by
        self.properties = dict(properties or {})
        self.checks = self.documents_of(checks)
        self.layout = layout
        self.dialects = list(dialects)
        self.columns = None if columns is None else list(columns)
        self.comment = comment
        self.column_comments = dict(column_comments or {})
        self.storage_name = storage_name
        self.transpile = transpile
        self.on_change = on_change
        self.adopt = adopt
        self.require = list(require)
        self.check_literals()
        #: Runs the view's scripts, once the task is executed.
        self.stager: TaskStager | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Create the view if needed.

        Raises:
            InvalidQueryError: The query is wrong.
            AlreadyExistsError: The view has another definition, and ``on_change`` does not allow the difference.
            UnsupportedError: A refresh would need a more expensive mode than ``require`` allows.
            JobError: A retry may help.
        """
        from airflow_mv.actions import define_view
        from airflow_mv.common.queries import texts_of
        from airflow_mv.common.status import status
        from airflow_mv.core.catalog.layouts import how_to_read
        from airflow_mv.core.define.definition import Definition
        from airflow_mv.core.spec.properties import SORT_PROPERTY
        from airflow_mv.extras.explain.explain import accepts_modes

        with task_errors(self):
            hook = MaterializedViewHook(self.iceberg_conn_id, self.spark_conn_id)
            catalog, view = hook.catalog_for(self.view), hook.connection.identify(self.view)
            show_link(context, view)
            definition = Definition(
                sql=self.sql,
                refresh_strategy=self.refresh_strategy,
                allow_stale_data=self.allow_stale_data,
                time_travel=self.time_travel,
                partition_by=tuple(self.partition_by),
                properties={**self.properties, **({} if self.sort_by is None else {SORT_PROPERTY: self.sort_by})},
                layout=self.layout,
                dialects=self.dialects,
                columns=self.columns,
                comment=self.comment,
                column_comments=self.column_comments,
                storage_name=self.storage_name,
                transpile=self.transpile,
                accept=accepts_modes(self.require),
                checks=None if self.checks is None else read_checks(self.checks, source="checks"),
            )
            self.stager = TaskStager(self.spark_task(), catalog, context, spark_application=self.spark_application)
            with self.stager.opened() as stager:
                stage = self._with_advice(stager)
                done = define_view(catalog, view, definition, stager=stage, on_change=self.on_change, adopt=self.adopt)
            for line in done.lines:
                self.log.info("%s", line)
            if done.action != "unchanged":
                self.log.info("%s", how_to_read(done.view, catalog.load_storage(done.view)))
                for dialect, text in texts_of(done.view.metadata, view=str(view)).items():
                    self.log.info("SQL for %s: %s", dialect, text)
            return status(catalog, view).to_dict()

    def on_kill(self) -> None:
        """Stop what this task has started on Spark. Airflow gives it 5 seconds."""
        if self.stager is not None:
            self.stager.kill()

    @property
    def application_id(self) -> str | None:
        """The Spark application that ran for the view, after it ran."""
        return None if self.stager is None else self.stager.application_id

    def _with_advice(self, stager: Stager) -> Stager:
        """Return the stager, which says how the refresh gets the Spark that it starts."""

        def stage(script: Script) -> Outcome:
            if self.spark_application is None:
                self.log.info(
                    "This task starts Spark, and so does the refresh. With share_spark_application(create, refresh) in "
                    "the DAG file Spark starts once for both"
                )
            return stager(script)

        return stage
