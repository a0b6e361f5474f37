# SPDX-License-Identifier: Apache-2.0
"""Alert when a view is later than its property `airflow-mv.max-staleness` allows, even if its refresh DAG is paused."""

from __future__ import annotations

import logging

from airflow_mv.dags import freshness_alerts_dag
from airflow_mv.operators import FreshnessAlert

log = logging.getLogger(__name__)


def page(alert: FreshnessAlert) -> None:
    """Alert the person on duty; any of Airflow's notifiers can be used instead."""
    log.error("Paging: %s", alert.message)


def all_clear(alert: FreshnessAlert) -> None:
    """Report a recovery; called once, when the view is on time again."""
    log.info(alert.message)


dag = freshness_alerts_dag("lag_alerts", namespace="lake.sales", on_breach=page, on_recovery=all_clear)
