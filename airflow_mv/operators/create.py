# SPDX-License-Identifier: Apache-2.0
"""Create a view from a task. Idempotent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.sdk import Context

from airflow_mv.checks import as_documents, read_checks
from airflow_mv.errors import AlreadyExistsError
from airflow_mv.hooks import DEFAULT_ICEBERG_CONN_ID, DEFAULT_SPARK_CONN_ID, MaterializedViewHook
from airflow_mv.links import show_link
from airflow_mv.operators.spark import MaterializedViewSparkOperator
from airflow_mv.retries import task_errors

if TYPE_CHECKING:
    from airflow_mv.catalog import Layout, LoadedView


class CreateMaterializedViewOperator(MaterializedViewSparkOperator):
    """Create a materialized view, with an empty storage table; a refresh fills it.

    Idempotent: an existing materialized view with the same query is not changed, so the task may be the first of a
    DAG. Another query is refused, or with ``replace`` becomes the view's next version. Until the next refresh the
    rows are those of the old version.

    Returns (XCom) the document of ``airflow-mv status``.

    Args:
        view: ``catalog.namespace.name`` (templated).
        sql: The query (templated); names without a catalog are resolved in the view's catalog and namespace.
        iceberg_conn_id: Connection of type ``iceberg`` (templated).
        spark_conn_id: Connection of type ``spark`` or ``spark_connect`` (templated).
        refresh_strategy: ``full`` or ``incremental``.
        allow_stale_data: Whether stale rows may be read.
        time_travel: Whether each refresh stays in the history.
        partition_by: Partition transforms of the storage table, e.g. ``days(ts)``. With ``replace`` a view gets them
            with the next recomputed rows.
        properties: More view properties.
        checks: The view's own checks, which the rows of every refresh must pass before they are published
            (templated); see :mod:`airflow_mv.checks`.
        layout: ``pointed``, ``registered`` or ``table``; by default the catalog's preferred layout.
        dialects: Further SQL dialects in which the query is stored, such as ``trino``; sqlglot writes it. Without
            any, a view keeps those that it has. An existing view gets them with ``replace``.
        storage_name: With the layout ``registered``: the storage table's name in the view's namespace (templated); by
            default the view's name and ``__storage``. An existing view keeps its storage table's name: another one is
            refused.
        replace: Give an existing materialized view this definition.
        adopt: Make the existing table of this name the view, if it is not a view yet; it must fit the query.
        **kwargs: All that ``SparkSubmitOperator`` takes.
    """

    template_fields: Sequence[str] = (
        *MaterializedViewSparkOperator.template_fields,
        "sql",
        "partition_by",
        "properties",
        "checks",
        "storage_name",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"sql": "sql"}

    def __init__(  # noqa: PLR0913 (each is a field of the definition)
        self,
        *,
        view: str,
        sql: str,
        iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID,
        spark_conn_id: str = DEFAULT_SPARK_CONN_ID,
        refresh_strategy: Literal["full", "incremental"] = "full",
        allow_stale_data: bool = False,
        time_travel: bool = False,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        checks: Any = None,
        layout: Layout | None = None,
        dialects: Sequence[str] = (),
        storage_name: str | None = None,
        replace: bool = False,
        adopt: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(view=view, iceberg_conn_id=iceberg_conn_id, spark_conn_id=spark_conn_id, **kwargs)
        self.sql = sql
        self.refresh_strategy = refresh_strategy
        self.allow_stale_data = allow_stale_data
        self.time_travel = time_travel
        self.partition_by = list(partition_by)
        self.properties = dict(properties or {})
        self.checks = as_documents(checks)
        self.layout = layout
        self.dialects = list(dialects)
        self.storage_name = storage_name
        self.replace = replace
        self.adopt = adopt

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Create the view if needed.

        Raises:
            InvalidQueryError, AlreadyExistsError: The query is wrong, or the name is taken by another definition.
            JobError: A retry may help.
        """
        from airflow_mv.freshness.status import how_to_read, status
        from airflow_mv.refresh.adopt import adopt
        from airflow_mv.refresh.create import Definition, create, require_storage_name
        from airflow_mv.sql.translation import texts_of

        with task_errors():
            hook = MaterializedViewHook(self.iceberg_conn_id, self.spark_conn_id)
            catalog, view = hook.catalog_for(self.view), hook.identify(self.view)
            show_link(context, view)
            existing = catalog.load(view) if catalog.exists(view) else None
            if existing is not None and not self.replace:
                self._require_same(existing)
                require_storage_name(catalog, existing, self.storage_name)
                self.log.info("%s exists with this query: left alone", view)
                return status(catalog, view).to_dict()
            definition = Definition(
                sql=self.sql,
                refresh_strategy=self.refresh_strategy,
                allow_stale_data=self.allow_stale_data,
                time_travel=self.time_travel,
                partition_by=tuple(self.partition_by),
                properties=self.properties,
                layout=self.layout,
                dialects=self.dialects,
                storage_name=self.storage_name,
                checks=read_checks(self.checks, source="checks"),
            )
            adopts = self.adopt and existing is None
            with self.stager(catalog, context) as stager:
                if adopts:
                    loaded = adopt(catalog, view, definition, stager=stager)
                else:
                    loaded = create(catalog, view, definition, stager=stager, replace=self.replace)
            done = "Adopted" if adopts else "Created" if existing is None else "Replaced"
            self.log.info("%s %s, version %d", done, view, loaded.metadata.current_version_id)
            self.log.info("%s", how_to_read(loaded, catalog.load_storage(loaded)))
            for dialect, text in texts_of(loaded.metadata, view=str(view)).items():
                self.log.info("SQL for %s: %s", dialect, text)
            return status(catalog, view).to_dict()

    def _require_same(self, existing: LoadedView) -> None:
        from airflow_mv.sql.translation import spark_sql

        view = existing.identifier
        if existing.settings is None:
            raise AlreadyExistsError(
                f"{view} is a plain view; `airflow-mv create {view}` (without --sql) turns it into a materialized one"
            )
        if _normal(spark_sql(existing.metadata, view=str(view))) != _normal(self.sql):
            raise AlreadyExistsError(
                f"view {view} exists with another query; set replace=True to give it this one, or choose another name"
            )


def _normal(sql: str) -> str:
    return sql.strip().rstrip(";").strip()
