# SPDX-License-Identifier: Apache-2.0
"""Keep Apache Iceberg materialized views fresh from Apache Airflow.

Public names are imported on first use, so that importing the package is cheap in a DAG file, and works in a Spark
driver that has only PySpark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_mv.foundation.lazy import on_first_use
from airflow_mv.version import __version__ as __version__

if TYPE_CHECKING:
    from airflow_mv.actions import changes as changes
    from airflow_mv.actions import read as read
    from airflow_mv.actions import register as register
    from airflow_mv.actions import scan as scan
    from airflow_mv.core.catalog import MaterializedViewCatalog as MaterializedViewCatalog
    from airflow_mv.errors import MaterializedViewError as MaterializedViewError

_MODULES = {
    "MaterializedViewCatalog": "airflow_mv.core.catalog",
    "MaterializedViewError": "airflow_mv.errors",
    "changes": "airflow_mv.actions",
    "read": "airflow_mv.actions",
    "register": "airflow_mv.actions",
    "scan": "airflow_mv.actions",
}
__all__ = ["MaterializedViewCatalog", "MaterializedViewError", "__version__", "changes", "read", "register", "scan"]
__getattr__ = on_first_use(__name__, _MODULES)
