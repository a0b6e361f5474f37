# SPDX-License-Identifier: Apache-2.0
"""The lag of views as a metric of Airflow: OpenTelemetry or StatsD, as ``[metrics]`` says."""

from __future__ import annotations

import logging

#: Name of the gauge, after Airflow's own prefix; the tag ``view`` says of which view.
LAG_SECONDS = "airflow_mv.lag_seconds"

log = logging.getLogger(__name__)


def report_lag(view: str, seconds: float | None) -> None:
    """Set the gauge of a view's lag. Never fails: a metric is not worth a task.

    Args:
        view: The view.
        seconds: Its lag; ``None``, where it cannot be told, leaves the gauge as it is.
    """
    if seconds is None:
        return
    try:
        from airflow.providers.common.compat.sdk import Stats

        Stats.gauge(LAG_SECONDS, seconds, tags={"view": view})
    except Exception as error:  # noqa: BLE001 (each backend has its own)
        log.debug("The metric %s of %s was not sent: %s: %s", LAG_SECONDS, view, type(error).__name__, error)
