# SPDX-License-Identifier: Apache-2.0
"""What the tests need where older versions of Airflow and pyiceberg are installed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog

from airflow_mv.core.catalog.pyiceberg_compat import PYICEBERG_0_11, ROWS
from airflow_mv.tasks.older_airflow import BEFORE_3_2

_EXCEPTIONS = import_module("airflow.exceptions" if BEFORE_3_2 else "airflow.sdk.exceptions")
AirflowFailException = _EXCEPTIONS.AirflowFailException
AirflowRescheduleException = _EXCEPTIONS.AirflowRescheduleException
AirflowSkipException = _EXCEPTIONS.AirflowSkipException
TaskDeferred = _EXCEPTIONS.TaskDeferred
_SERIALIZED = import_module("airflow.serialization.serialized_objects")
DagSerialization = _SERIALIZED.SerializedDAG if BEFORE_3_2 else _SERIALIZED.DagSerialization
#: The module of DAG files in folders.
DAG_BAGS = "airflow.models.dagbag" if BEFORE_3_2 else "airflow.dag_processing.dagbag"
#: The module of plugins.
PLUGINS = "airflow.plugins_manager" if BEFORE_3_2 else "airflow.sdk.plugins_manager"
#: The module of the timetable with data intervals, for DAG files.
TIMETABLES = "airflow.timetables.interval" if BEFORE_3_2 else "airflow.sdk"


def dag_bag(folder: str, bundle: str | None) -> Any:
    """Read DAG files: one, or those of a folder."""
    bags = import_module(DAG_BAGS)
    return bags.DagBag(folder) if BEFORE_3_2 else bags.DagBag(folder, bundle_name=bundle)


def store_dags(bag: Any, bundle: str) -> None:
    """Write the DAGs to Airflow's database."""
    import_module(DAG_BAGS).sync_bag_to_db(bag, bundle, "1")


def create_tables_with_kinds() -> None:
    """Let pyiceberg create the tables of a SQL catalog with the column ``iceberg_type``, as later versions do."""
    if not PYICEBERG_0_11:
        return
    create_tables = SqlCatalog.create_tables

    def create(catalog: SqlCatalog) -> None:
        ROWS.create(catalog.engine, checkfirst=True)
        create_tables(catalog)

    SqlCatalog.create_tables = create
