# SPDX-License-Identifier: Apache-2.0
"""Whether tasks can wait in a triggerer."""

from __future__ import annotations

import logging
import os
import ssl

from airflow_mv.tasks.older_airflow import conf

SETTING = "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE"
_HEALTH = "/api/v2/monitor/health"
_EXECUTION = "/execution"
#: Airflow's own default.
_LOCAL = "http://localhost:8080"
_SECONDS = 5.0
_HEALTHY = "healthy"

log = logging.getLogger(__name__)


def deferrable_by_default() -> bool | None:
    """Whether tasks wait in the triggerer by default, from the environment.

    ``None`` where ``AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE`` is not set there. The option in
    ``airflow.cfg`` is not used, because Airflow itself writes its default there.
    """
    return conf.getboolean("operators", "default_deferrable") if SETTING in os.environ else None


def triggerer_runs() -> bool | None:
    """Return whether the API server reports a triggerer with a recent heartbeat. This needs no login.

    Returns:
        ``None`` if this is unknown: the server does not respond, or does not serve this API to its workers.
    """
    import httpx

    try:
        answer = httpx.get(_address(), timeout=_SECONDS, verify=_authorities()).raise_for_status().json()
        if answer["metadatabase"]["status"] != _HEALTHY:
            return None
        return bool(answer["triggerer"]["status"] == _HEALTHY)
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, KeyError, TypeError) as error:
        log.debug("Could not check the health of the triggerer: %s: %s", type(error).__name__, error)
        return None


def _address() -> str:
    """Return the URL of the server's health endpoint. The API for tasks has another path."""
    given = conf.get("core", "execution_api_server_url", fallback=None) or conf.get("api", "base_url", fallback=None)
    base = (given or "").rstrip("/").removesuffix(_EXECUTION)
    return f"{base if '://' in base else f'{_LOCAL}{base}'}{_HEALTH}"


def _authorities() -> ssl.SSLContext:
    """Return the TLS context: the system's authorities, and those that Airflow's own client uses."""
    context = ssl.create_default_context()
    for option in ("ssl_ca_file", "ssl_cert"):
        if file := conf.get("api", option, fallback=None):
            context.load_verify_locations(file)
    return context
