# SPDX-License-Identifier: Apache-2.0
"""Make views what a folder of SQL files says, in a task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from airflow.sdk import Context

from airflow_mv.hooks import DEFAULT_ICEBERG_CONN_ID, DEFAULT_SPARK_CONN_ID, MaterializedViewHook
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
            hook = MaterializedViewHook(self.iceberg_conn_id, self.spark_conn_id)
            return hook.apply(self.folder, namespace=self.namespace, prune=self.prune, on_diff=self.on_diff)
