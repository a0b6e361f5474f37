# SPDX-License-Identifier: Apache-2.0
"""Bring a catalog's registry up to date."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from airflow.sdk import Context

from airflow_mv.hooks import DEFAULT_ICEBERG_CONN_ID, MaterializedViewHook

if TYPE_CHECKING:
    from airflow_mv.tasks.keywords import TaskKeywords
from airflow_mv.retries import RetriedOperator, task_errors


class SyncRegistryOperator(RetriedOperator):
    """Bring the refreshes of the last time into a catalog's registry by one commit, and look at all of its views.

    Run it in a DAG of its own, such as every hour. Tasks at the same time, or a retry, do no harm.

    Returns (XCom) the document of ``airflow-mv registry sync``.

    Args:
        catalog: The catalog's name (templated).
        iceberg_conn_id: Its connection of type ``iceberg`` (templated).
        **kwargs: All that ``BaseOperator`` takes.
    """

    template_fields: Sequence[str] = ("catalog", "iceberg_conn_id")
    ui_color: str = "#e4e2f3"

    def __init__(
        self,
        *,
        catalog: str,
        iceberg_conn_id: str = DEFAULT_ICEBERG_CONN_ID,
        **kwargs: Unpack[TaskKeywords],
    ) -> None:
        super().__init__(**kwargs)
        self.catalog = catalog
        self.iceberg_conn_id = iceberg_conn_id

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 (Airflow gives it)
        """Bring the registry up to date.

        Raises:
            ConfigurationError: The catalog has no registry.
            CommitConflictError: Others changed it each time. A retry may help.
        """
        from airflow_mv.extras.registry.sync import sync

        with task_errors(self):
            done = sync(MaterializedViewHook(self.iceberg_conn_id).catalog_named(self.catalog))
        self.log.info("%s: %d refreshes written, %d views", done.registry, done.refreshes, done.views)
        for what, why in done.faults.items():
            self.log.warning("not read: %s: %s", what, why)
        return done.to_dict()
