# SPDX-License-Identifier: Apache-2.0
"""Catalogs: load, list, create, swap and drop materialized views."""

from airflow_mv.catalog.catalog import MaterializedViewCatalog as MaterializedViewCatalog
from airflow_mv.catalog.layout import Layout as Layout
from airflow_mv.catalog.layout import StoredLayout as StoredLayout
from airflow_mv.catalog.layouts import STORED_LAYOUTS as STORED_LAYOUTS
from airflow_mv.catalog.layouts import stored_layout as stored_layout
from airflow_mv.catalog.loaded import LoadedStorage as LoadedStorage
from airflow_mv.catalog.loaded import LoadedView as LoadedView
from airflow_mv.catalog.loaded import Located as Located
from airflow_mv.catalog.tables import TableChange as TableChange
