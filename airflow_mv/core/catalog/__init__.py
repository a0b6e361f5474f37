# SPDX-License-Identifier: Apache-2.0
"""Catalogs: load, list, create, swap and drop materialized views.

Names are imported on first use: a look at pointers needs nothing of pyiceberg, whose import takes most of a second.
"""

from typing import TYPE_CHECKING

from airflow_mv.foundation.lazy import on_first_use

if TYPE_CHECKING:
    from airflow_mv.core.catalog.catalog import MaterializedViewCatalog as MaterializedViewCatalog
    from airflow_mv.core.catalog.catalog import stored_table as stored_table
    from airflow_mv.core.catalog.catalog import stored_view as stored_view
    from airflow_mv.core.catalog.layouts import STORED_LAYOUTS as STORED_LAYOUTS
    from airflow_mv.core.catalog.layouts import Layout as Layout
    from airflow_mv.core.catalog.layouts import LoadedStorage as LoadedStorage
    from airflow_mv.core.catalog.layouts import storage_place as storage_place
    from airflow_mv.core.catalog.layouts import stored_layout as stored_layout
    from airflow_mv.core.catalog.loaded import LoadedView as LoadedView
    from airflow_mv.core.catalog.loaded import Located as Located
    from airflow_mv.core.catalog.tables import TableChange as TableChange

_MODULES = {
    "MaterializedViewCatalog": "airflow_mv.core.catalog.catalog",
    "stored_table": "airflow_mv.core.catalog.catalog",
    "stored_view": "airflow_mv.core.catalog.catalog",
    "Layout": "airflow_mv.core.catalog.layouts",
    "STORED_LAYOUTS": "airflow_mv.core.catalog.layouts",
    "stored_layout": "airflow_mv.core.catalog.layouts",
    "LoadedStorage": "airflow_mv.core.catalog.layouts",
    "storage_place": "airflow_mv.core.catalog.layouts",
    "LoadedView": "airflow_mv.core.catalog.loaded",
    "Located": "airflow_mv.core.catalog.loaded",
    "TableChange": "airflow_mv.core.catalog.tables",
}
__getattr__ = on_first_use(__name__, _MODULES)
