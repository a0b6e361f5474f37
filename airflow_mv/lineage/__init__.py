# SPDX-License-Identifier: Apache-2.0
"""Lineage: report what a refresh read and wrote to OpenLineage, if its provider is installed and configured."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_mv.core.catalog import MaterializedViewCatalog
    from airflow_mv.core.refresh.plan import RefreshPlan, RefreshResult
    from airflow_mv.lineage.facts import Facts

log = logging.getLogger(__name__)


class LineageOfRefresh:
    """The lineage of an operator that refreshes a view. It never fails a task.

    The facts are read while the task runs, because OpenLineage's provider collects them in a separate process that must
    not use the task's connections. They are read only if events are sent.
    """

    _lineage: Facts | None = None

    def note_plan(self, catalog: MaterializedViewCatalog, plan: RefreshPlan) -> None:
        """Store what a plan reads and writes."""
        if not _listening():
            return
        from airflow_mv.lineage.facts import gather

        try:
            self._lineage = gather(catalog, plan)
        except Exception as error:  # noqa: BLE001 (a failure of lineage must not fail the refresh)
            self._lineage = None
            log.warning("No lineage of %s: %s: %s", plan.view, type(error).__name__, error)

    def note_result(self, result: RefreshResult) -> None:
        """Store the result of the refresh."""
        if self._lineage is not None:
            self._lineage = replace(self._lineage, result=result)

    def get_openlineage_facets_on_complete(self, _task_instance: Any) -> Any:
        """Return inputs, output and facets, or ``None``. The OpenLineage provider calls this after a success."""
        if self._lineage is None:
            return None
        from airflow_mv.lineage.facets import operator_lineage

        result = self._lineage.result
        return operator_lineage(self._lineage, published=result is not None and result.published)

    def get_openlineage_facets_on_failure(self, _task_instance: Any) -> Any:
        """Return the planned inputs and output. The provider calls this when the task failed."""
        if self._lineage is None:
            return None
        from airflow_mv.lineage.facets import operator_lineage

        return operator_lineage(self._lineage, published=True)


def _listening() -> bool:
    """Whether OpenLineage's provider is installed and sends events."""
    try:
        from airflow.providers.openlineage.conf import is_disabled

        return not is_disabled()
    except Exception:  # noqa: BLE001 (absent, broken, or its setting is no JSON)
        return False
