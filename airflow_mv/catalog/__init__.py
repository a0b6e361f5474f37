# SPDX-License-Identifier: Apache-2.0
"""Where pointers live: load, list, create, swap and drop materialized views in a catalog."""

from airflow_mv.catalog.catalog import LoadedStorage as LoadedStorage
from airflow_mv.catalog.catalog import LoadedView as LoadedView
from airflow_mv.catalog.catalog import Located as Located
from airflow_mv.catalog.catalog import MaterializedViewCatalog as MaterializedViewCatalog
