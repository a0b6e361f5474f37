# SPDX-License-Identifier: Apache-2.0
"""Decide which views must be refreshed now so that each keeps its target lag, and pin their base tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.operators.pin import PinBaseTablesOperator

if TYPE_CHECKING:
    from airflow_mv.core.catalog import MaterializedViewCatalog
    from airflow_mv.extras.lag.decide import Decision
    from airflow_mv.hooks import MaterializedViewHook


class PinDueViewsOperator(PinBaseTablesOperator):
    """Pin the base tables of those views of a namespace that must be refreshed now to keep the target lags.

    It decides from recorded snapshots and the commits of the base tables, not from events: see
    :func:`airflow_mv.extras.lag.decide.decide`. A target that cannot be kept is a warning in the log, with the code
    ``TARGET_LAG_AT_RISK``.

    Returns (XCom) the document of ``airflow-mv pin``, for these views only.

    Args:
        period: The time between two runs of the DAG.
        slots: How many refreshes run at a time.
        **kwargs: As for :class:`~airflow_mv.operators.PinBaseTablesOperator`, with ``namespace``.
    """

    def __init__(self, *, period: timedelta, slots: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.period = period
        self.slots = slots

    def _listed(self, hook: MaterializedViewHook) -> tuple[MaterializedViewCatalog, list[Identifier]]:
        from airflow_mv.common.each import raise_if_retryable
        from airflow_mv.extras.lag.decide import decide
        from airflow_mv.extras.lag.views import lag_reports

        catalog, views = super()._listed(hook)
        now = datetime.now(UTC)
        told = []
        for result in lag_reports(catalog, views, now):
            raise_if_retryable(result.error)
            if result.error is not None:
                self.log.warning("%s", result.error)
            elif result.value is not None:
                told.append(result.value.for_decision(now))
        found = decide(told, now, period=self.period, slots=self.slots)
        self._say_what_is_due(found)
        return catalog, [run.view for run in found.runs]

    def _say_what_is_due(self, found: Decision) -> None:
        self.log.info("%d views are refreshed now, in about %.0f s", len(found.runs), found.seconds)
        for run in found.runs:
            self.log.info("  %s, until %s: %s", run.view, run.due.isoformat(timespec="seconds"), run.why)
        for view, due in found.waiting:
            self.log.info("  %s waits; it is due at %s", view, due.isoformat(timespec="seconds"))
        for risk in found.risks:
            self.log.warning("TARGET_LAG_AT_RISK %s: %s", risk.view, risk.why)
