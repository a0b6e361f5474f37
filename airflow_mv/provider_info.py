# SPDX-License-Identifier: Apache-2.0
"""What Airflow is told about this package."""

from __future__ import annotations

from typing import Any

_NAME = "Iceberg materialized views"


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description. Airflow calls it through the entry point at every start: it imports nothing.

    There is no connection type here: the ``iceberg`` and ``spark`` providers' own are used. There is no handler for
    the assets' URIs either: they need no normalising.
    """
    return {
        "package-name": "airflow-mv",
        "name": _NAME,
        "description": "Materialized views in Apache Iceberg, refreshed through Spark and gated on freshness.",
        "integrations": [
            {"integration-name": _NAME, "external-doc-url": "https://iceberg.apache.org/", "tags": ["apache"]}
        ],
        "operators": [_modules("airflow_mv.operators")],
        "sensors": [_modules("airflow_mv.sensors")],
        "hooks": [_modules("airflow_mv.hooks")],
        "triggers": [_modules("airflow_mv.triggers")],
    }


def _modules(*names: str) -> dict[str, Any]:
    return {"integration-name": _NAME, "python-modules": list(names)}
