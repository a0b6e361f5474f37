# SPDX-License-Identifier: Apache-2.0
"""What the tests need where older versions of Airflow and pyiceberg are installed."""

from __future__ import annotations

from importlib import import_module

from pyiceberg.catalog.sql import SqlCatalog

from airflow_mv.core.catalog.pyiceberg_compat import ROWS
from airflow_mv.older_airflow import BEFORE_3_2

_EXCEPTIONS = import_module("airflow.exceptions" if BEFORE_3_2 else "airflow.sdk.exceptions")
AirflowFailException = _EXCEPTIONS.AirflowFailException
AirflowRescheduleException = _EXCEPTIONS.AirflowRescheduleException
AirflowSkipException = _EXCEPTIONS.AirflowSkipException
TaskDeferred = _EXCEPTIONS.TaskDeferred
#: The module of the timetable with data intervals, for DAG files.
TIMETABLES = "airflow.timetables.interval" if BEFORE_3_2 else "airflow.sdk"


def create_tables_with_kinds() -> None:
    """Let pyiceberg 0.11 create the tables of a SQL catalog with the column ``iceberg_type``."""
    create_tables = SqlCatalog.create_tables

    def create(catalog: SqlCatalog) -> None:
        ROWS.create(catalog.engine, checkfirst=True)
        create_tables(catalog)

    SqlCatalog.create_tables = create
