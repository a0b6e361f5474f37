# SPDX-License-Identifier: Apache-2.0
"""Read a storage table in Spark: by its name, or by its metadata file if no catalog lists it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession

from airflow_mv.core.job.context import table_at
from airflow_mv.core.job.driver import open_staging, staging_catalog
from airflow_mv.core.job.driver_files import HADOOP, file_access
from airflow_mv.core.job.session import temporary_settings
from airflow_mv.core.script import STAGING_CATALOG, STAGING_NAMESPACE
from airflow_mv.core.spec.identifiers import quote, string_literal

#: The staging catalogs that sessions keep, by the name of the catalog whose access to files they have.
_kept: WeakKeyDictionary[SparkSession, dict[str, str]] = WeakKeyDictionary()


class TableReader:
    """Reads an Iceberg table at a snapshot.

    Args:
        spark: A session that knows the catalog, classic or Connect.
        catalog: The catalog, by its name in Spark, whose access to the store opens a metadata file.
        snapshot_id: The snapshot; ``None`` for the current one.
    """

    def __init__(self, spark: SparkSession, catalog: str, snapshot_id: int | None) -> None:
        self._spark = spark
        self._catalog = catalog
        self._snapshot_id = snapshot_id

    def table(self, name: str) -> DataFrame:
        """Read a table by its quoted name."""
        return table_at(self._spark, name, self._snapshot_id)

    def load(self, location: str) -> DataFrame:
        """Read the table of a metadata file.

        Iceberg's data source opens a metadata file through Hadoop only. Where the catalog uses another FileIO, the
        table is registered in a staging catalog, which the session keeps: a frame may be read at any later time.
        """
        access = file_access(self._spark, self._catalog)
        if access["io-impl"] == HADOOP:
            options = {} if self._snapshot_id is None else {"versionAsOf": str(self._snapshot_id)}
            return self._spark.read.format("iceberg").options(**options).load(location)
        kept = _kept.setdefault(self._spark, {})
        if self._catalog not in kept:
            kept[self._catalog] = self._opened(access)
        table = f"{STAGING_NAMESPACE}.read_{uuid.uuid4().hex}"
        arguments = f"table => {string_literal(table)}, metadata_file => {string_literal(location)}"
        self._spark.sql(f"CALL {quote(kept[self._catalog])}.system.register_table({arguments})")
        return self.table(f"{quote(kept[self._catalog])}.{table}")

    def _opened(self, access: Mapping[str, str]) -> str:
        """Open a staging catalog with this access to files, and return its name."""
        name = f"{STAGING_CATALOG}_{uuid.uuid4().hex[:12]}"
        jvm: Any = getattr(self._spark, "_jvm", None)
        if jvm is not None:
            jvm.java.lang.System.setProperty("derby.stream.error.file", "/dev/null")  # else ./derby.log
        with temporary_settings(self._spark, staging_catalog(name)):
            open_staging(self._spark, name, access)
        return name
