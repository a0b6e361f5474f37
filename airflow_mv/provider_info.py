# SPDX-License-Identifier: Apache-2.0
"""The description of this provider package for Airflow."""

from __future__ import annotations

from typing import Any

_NAME = "Iceberg materialized views"
_ABOUT = "Incremental materialized views in Apache Iceberg, refreshed from Apache Airflow with Apache Spark."
_CONFIG: dict[str, Any] = {
    "description": "Materialized views in Apache Iceberg.",
    "options": {
        "page_conn_ids": {
            "description": (
                "Connections (type iceberg) whose views the page in the UI shows, separated by commas. Where a "
                "connection has no extra catalog_name, write conn_id:catalog, or the names that DAGs use are taken."
            ),
            "version_added": "0.1.0",
            "type": "string",
            "example": "iceberg_default, iceberg_reports:reports",
            "default": "iceberg_default",
        },
        "page_cache_seconds": {
            "description": "The age in seconds up to which the page in the UI shows a catalog's cached rows.",
            "version_added": "0.1.0",
            "type": "float",
            "example": None,
            "default": "10",
        },
        "layout": {
            "description": (
                "The layout of materialized views that are created without one: pointed, registered or table. A "
                "connection's extra airflow-mv.layout comes first. Empty: the default of the catalog."
            ),
            "version_added": "0.1.0",
            "type": "string",
            "example": "table",
            "default": "",
        },
        "registry": {
            "description": (
                "The namespace of the registry in the catalog of each connection, or a folder. A connection's extra "
                "airflow-mv.registry comes first. Empty: no registry."
            ),
            "version_added": "0.1.0",
            "type": "string",
            "example": "airflow_mv",
            "default": "",
        },
        "spark_application_url": {
            "description": (
                "Where a Spark application is shown, with {application_id} in its place: Spark's history server, or "
                "the cluster's own UI. Tasks that have run Spark link to it. Empty: no link."
            ),
            "version_added": "0.1.0",
            "type": "string",
            "example": "https://history.example.com/history/{application_id}/jobs/",
            "default": "",
        },
    },
}


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description. Airflow calls it at every start, so it imports nothing.

    The package defines no connection type: it uses those of the ``iceberg`` and ``spark`` providers.
    """
    return {
        "package-name": "airflow-mv",
        "name": _NAME,
        "description": _ABOUT,
        "integrations": [
            {"integration-name": _NAME, "external-doc-url": "https://iceberg.apache.org/", "tags": ["apache"]}
        ],
        "operators": [_modules("airflow_mv.operators")],
        "sensors": [_modules("airflow_mv.sensors")],
        "hooks": [_modules("airflow_mv.hooks")],
        "triggers": [_modules("airflow_mv.triggers")],
        "config": {"airflow_mv": _CONFIG},
        "asset-uris": [
            {
                "schemes": ["iceberg-mv"],
                "handler": "airflow_mv.assets.checked_uri",
                "to_openlineage_converter": "airflow_mv.assets.openlineage_dataset",
            }
        ],
        "extra-links": ["airflow_mv.tasks.links.MaterializedViewLink", "airflow_mv.tasks.links.SparkApplicationLink"],
    }


def _modules(*names: str) -> dict[str, Any]:
    return {"integration-name": _NAME, "python-modules": list(names)}
