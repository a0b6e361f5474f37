# SPDX-License-Identifier: Apache-2.0
"""Make views what a folder of SQL files says, in a task."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from airflow.sdk import Context

from airflow_mv.errors import ConfigurationError
from airflow_mv.hooks import DEFAULT_ICEBERG_CONN_ID, DEFAULT_SPARK_CONN_ID, MaterializedViewHook
from airflow_mv.hooks.views import LazyStager
from airflow_mv.retries import RetriedOperator, task_errors
from airflow_mv.tasks.literals import CheckedOperator

if TYPE_CHECKING:
    from airflow_mv.tasks.keywords import TaskKeywords


class ApplyMaterializedViewsOperator(CheckedOperator, RetriedOperator):
    """Make views what a folder of SQL files says, as ``airflow-mv apply --yes`` does.

    The views change in the order in which they read each other. A view whose file is refused, or that cannot be
    changed, fails the task after the others were changed; those that read it are skipped. Spark runs in the worker, if
    it is needed: in a session on the connection's master, or over Spark Connect.

    Returns (XCom) the document of ``airflow-mv apply --json``.

    Args:
        folder: The folder (templated), as the worker sees it.
        namespace: ``catalog.namespace`` of files whose names have fewer parts (templated).
        prune: Whether materialized views of the same namespaces that no file defines are dropped.
        on_diff: Which differences of rows are accepted (templated), such as ``fail, rows=1%``; by default as each
            view's property ``airflow-mv.on-diff`` says. ``ask`` fails, since nobody can be asked.
        iceberg_conn_id: Connection of type ``iceberg`` (templated).
        spark_conn_id: Connection of type ``spark`` or ``spark_connect`` (templated).
        **kwargs: All that ``BaseOperator`` takes.
    """

    template_fields: Sequence[str] = ("folder", "namespace", "on_diff", "iceberg_conn_id", "spark_conn_id")
    ui_color: str = "#dfe3ea"

    def __init__(
        self,
        *,
        folder: str,
        namespace: str | None = None,
        prune: bool = False,
        on_diff: str | None = None,
        iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID,
        spark_conn_id: str = DEFAULT_SPARK_CONN_ID,
        **kwargs: Unpack[TaskKeywords],
    ) -> None:
        super().__init__(**kwargs)
        self.folder = folder
        self.namespace = namespace
        self.prune = prune
        self.on_diff = on_diff
        self.iceberg_conn_id = iceberg_conn_id
        self.spark_conn_id = spark_conn_id
        self.check_literals()

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002
        """Apply the folder.

        Raises:
            MaterializedViewError: A file is refused, or a view could not be changed.
        """
        with task_errors(self):
            return self._applied(MaterializedViewHook(self.iceberg_conn_id, self.spark_conn_id))

    def _applied(self, hook: MaterializedViewHook) -> dict[str, Any]:
        from airflow_mv.actions import Rebuilds, apply_views, plan_views
        from airflow_mv.core.spec.properties import DiffPolicy
        from airflow_mv.extras.folder.files import read_folder

        files = read_folder(Path(self.folder), namespace=self.namespace)
        if len({file.view.catalog for file in files}) > 1:
            raise ConfigurationError(f"{self.folder}: its views are of several catalogs; apply a folder for each")
        first = str(files[0].view)
        catalog = hook.catalog_for(first)
        plan = plan_views(catalog, files, prune=self.prune)
        policy = None if self.on_diff is None else DiffPolicy.read(self.on_diff, source="on_diff")
        applied = []
        with closing(LazyStager(hook, first)) as stager:
            how = Rebuilds(stager, session=lambda: stager.session, on_diff=policy, report=self.log.info)
            for item in apply_views(catalog, plan, how):
                applied.append(item)
                for line in item.lines:
                    self.log.info("%s", line)
        for change in plan.refused:
            self.log.error("%s: %s", change.view, change.reason)
        error = next((item.error for item in applied if item.error is not None), None)
        if plan.refused:
            names = ", ".join(str(change.view) for change in plan.refused)
            error = ConfigurationError(f"{self.folder}: refused: {names}: {plan.refused[0].reason}")
        if error is not None:
            raise error
        return {**plan.to_dict(), "applied": [item.to_dict() for item in applied]}
