# SPDX-License-Identifier: Apache-2.0
"""Catalogs: load, list, create, swap and drop materialized views.

Names are imported on first use: a look at pointers needs nothing of pyiceberg, whose import takes most of a second.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_mv.catalog.catalog import MaterializedViewCatalog as MaterializedViewCatalog
    from airflow_mv.catalog.layout import Layout as Layout
    from airflow_mv.catalog.layout import StoredLayout as StoredLayout
    from airflow_mv.catalog.layouts import STORED_LAYOUTS as STORED_LAYOUTS
    from airflow_mv.catalog.layouts import stored_layout as stored_layout
    from airflow_mv.catalog.loaded import LoadedStorage as LoadedStorage
    from airflow_mv.catalog.loaded import LoadedView as LoadedView
    from airflow_mv.catalog.loaded import Located as Located
    from airflow_mv.catalog.tables import TableChange as TableChange

_NAMES = {
    "MaterializedViewCatalog": "catalog",
    "Layout": "layout",
    "StoredLayout": "layout",
    "STORED_LAYOUTS": "layouts",
    "stored_layout": "layouts",
    "LoadedStorage": "loaded",
    "LoadedView": "loaded",
    "Located": "loaded",
    "TableChange": "tables",
}


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(import_module(f"airflow_mv.catalog.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'airflow_mv.catalog' has no attribute {name!r}")
