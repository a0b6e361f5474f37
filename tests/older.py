# SPDX-License-Identifier: Apache-2.0
"""What the tests need where older versions of libraries are installed."""

from __future__ import annotations

from pyiceberg.catalog.sql import SqlCatalog

from airflow_mv.core.catalog.pyiceberg_compat import ROWS


def create_tables_with_kinds() -> None:
    """Let pyiceberg 0.11 create the tables of a SQL catalog with the column ``iceberg_type``."""
    create_tables = SqlCatalog.create_tables

    def create(catalog: SqlCatalog) -> None:
        ROWS.create(catalog.engine, checkfirst=True)
        create_tables(catalog)

    SqlCatalog.create_tables = create
