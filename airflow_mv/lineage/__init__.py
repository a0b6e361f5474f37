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


class RefreshLineage:
    """The lineage of a task that refreshes a view. It never fails the task.

    The facts are read while the task runs, because OpenLineage's provider collects them in a separate process that must
    not use the task's connections. They are read only if events are sent.
    """

    def __init__(self) -> None:
        self._facts: Facts | None = None

    def note_plan(self, catalog: MaterializedViewCatalog, plan: RefreshPlan) -> None:
        """Store what a plan reads and writes."""
        if not _listening():
            return
        from airflow_mv.lineage.facts import gather

        try:
            self._facts = gather(catalog, plan)
        except Exception as error:  # noqa: BLE001 (a failure of lineage must not fail the refresh)
            self._facts = None
            log.warning("Could not report the lineage of %s: %s: %s", plan.view, type(error).__name__, error)

    def note_result(self, result: RefreshResult) -> None:
        """Store the result of the refresh."""
        if self._facts is not None:
            self._facts = replace(self._facts, result=result)

    def of_success(self) -> Any:
        """Return inputs, output and facets for the OpenLineage provider, or ``None``."""
        result = None if self._facts is None else self._facts.result
        return self._events(published=result is not None and result.published)

    def of_failure(self) -> Any:
        """Return the planned inputs and output for the OpenLineage provider, or ``None``."""
        return self._events(published=True)

    def _events(self, *, published: bool) -> Any:
        if self._facts is None:
            return None
        from airflow_mv.lineage.facets import operator_lineage

        return operator_lineage(self._facts, published=published)


def _listening() -> bool:
    """Whether OpenLineage's provider is installed and sends events."""
    try:
        from airflow.providers.openlineage.conf import is_disabled

        return not is_disabled()
    except Exception:  # noqa: BLE001 (absent, broken, or its setting is no JSON)
        return False
