# SPDX-License-Identifier: Apache-2.0
"""Whether a triggerer runs, as Airflow's API server tells its monitoring."""

from __future__ import annotations

import logging
import ssl

from airflow.sdk import conf

_HEALTH = "/api/v2/monitor/health"
_EXECUTION = "/execution"
#: Airflow's own default.
_LOCAL = "http://localhost:8080"
_SECONDS = 5.0
_HEALTHY = "healthy"

log = logging.getLogger(__name__)


def triggerer_runs() -> bool | None:
    """Ask the API server that tasks report to for a triggerer with a heartbeat of late. Anybody may: it needs no login.

    Returns:
        ``None`` where that cannot be known: the server does not answer, or does not serve the API to its workers.
    """
    import httpx

    try:
        answer = httpx.get(_address(), timeout=_SECONDS, verify=_authorities()).raise_for_status().json()
        if answer["metadatabase"]["status"] != _HEALTHY:
            return None
        return bool(answer["triggerer"]["status"] == _HEALTHY)
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, KeyError, TypeError) as error:
        log.debug("Whether a triggerer runs is not known: %s: %s", type(error).__name__, error)
        return None


def _address() -> str:
    """Return where the server tells its health: it has the API for tasks under another path."""
    told = conf.get("core", "execution_api_server_url", fallback=None) or conf.get("api", "base_url", fallback=None)
    base = (told or "").rstrip("/").removesuffix(_EXECUTION)
    return f"{base if '://' in base else f'{_LOCAL}{base}'}{_HEALTH}"


def _authorities() -> ssl.SSLContext:
    """Return whom to believe: the system's authorities, and those that Airflow's own client is told."""
    context = ssl.create_default_context()
    for option in ("ssl_ca_file", "ssl_cert"):
        if file := conf.get("api", option, fallback=None):
            context.load_verify_locations(file)
    return context
