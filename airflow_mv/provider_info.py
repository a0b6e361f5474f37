# SPDX-License-Identifier: Apache-2.0
"""What Airflow is told about this package."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description. Airflow calls it through the entry point at every start: it imports nothing.

    There is no connection type here: the ``iceberg`` and ``spark`` providers' own are used.
    """
    return {
        "package-name": "airflow-mv",
        "name": "Iceberg materialized views",
        "description": "Materialized views in Apache Iceberg, refreshed through Spark and gated on freshness.",
    }
