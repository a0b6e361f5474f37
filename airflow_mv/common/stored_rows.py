# SPDX-License-Identifier: Apache-2.0
"""Read a storage table in Spark: by its name, or by its metadata file if no catalog lists it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession

from airflow_mv.core.catalog.layouts import LoadedStorage, frame_of
from airflow_mv.core.job.context import table_at
from airflow_mv.core.job.driver import open_staging, reason, staging_catalog
from airflow_mv.core.job.driver_files import HADOOP, file_access
from airflow_mv.core.job.session import made_active, temporary_settings
from airflow_mv.core.script import STAGING_CATALOG, STAGING_NAMESPACE, Outcome
from airflow_mv.core.spec.identifiers import Identifier, quote, string_literal
from airflow_mv.errors import JobError, MaterializedViewError

#: The staging catalogs that sessions keep, by the name of the catalog whose access to files they have.
_kept: WeakKeyDictionary[SparkSession, dict[str, str]] = WeakKeyDictionary()


@contextmanager
def spark_errors(what: str) -> Iterator[None]:
    """Translate the errors of Spark, which have no common base.

    Args:
        what: What Spark does, for the message.

    Raises:
        JobError: Spark's reason, without its stack trace.
    """
    try:
        yield
    except MaterializedViewError:
        raise
    except Exception as error:  # noqa: BLE001
        raise JobError(f"{what}: {reason(error)}") from None


def stored_rows(spark: SparkSession, view: Identifier, storage: LoadedStorage, snapshot_id: int | None) -> DataFrame:
    """Return the rows of a view's storage table at a snapshot.

    Args:
        spark: A session that knows the view's catalog, classic or Connect.
        snapshot_id: The snapshot; ``None`` for the current rows.
    """
    with made_active(spark), spark_errors(f"reading the rows of view {view}"):
        frame: DataFrame = frame_of(storage, _TableReader(spark, view.catalog, snapshot_id))
        return frame


def staged_rows(spark: SparkSession, view: Identifier, table: Identifier | None, outcome: Outcome) -> DataFrame:
    """Return the rows that a job has staged.

    Args:
        spark: A session that knows the view's catalog, classic or Connect.
        table: The storage table, if a catalog holds it.
        outcome: What the job did; it has not failed.
    """
    with made_active(spark), spark_errors(f"reading the staged rows of view {view}"):
        if table is not None and outcome.branch is not None:
            version = f"VERSION AS OF {string_literal(outcome.branch)}"
            return spark.sql(f"SELECT * FROM {table.sql()} {version}")  # noqa: S608 (both are quoted)
        return _TableReader(spark, view.catalog, None).load(outcome.metadata_location or "")


class _TableReader:
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
        table is registered in a staging catalog, which the session keeps.
        """
        access = file_access(self._spark, self._catalog)
        if access["io-impl"] == HADOOP:
            options = {} if self._snapshot_id is None else {"versionAsOf": str(self._snapshot_id)}
            return self._spark.read.format("iceberg").options(**options).load(location)
        kept = _kept.setdefault(self._spark, {})
        if self._catalog not in kept:
            kept[self._catalog] = kept_staging(self._spark, access)
        table = f"{STAGING_NAMESPACE}.read_{uuid.uuid4().hex}"
        arguments = f"table => {string_literal(table)}, metadata_file => {string_literal(location)}"
        self._spark.sql(f"CALL {quote(kept[self._catalog])}.system.register_table({arguments})")
        return self.table(f"{quote(kept[self._catalog])}.{table}")


def kept_staging(spark: SparkSession, access: Mapping[str, str]) -> str:
    """Open a staging catalog that the session keeps, and return its name: a frame may be read at any later time.

    Args:
        spark: A session, classic or Connect.
        access: The settings for access to files.
    """
    name = f"{STAGING_CATALOG}_{uuid.uuid4().hex[:12]}"
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is not None:
        jvm.java.lang.System.setProperty("derby.stream.error.file", "/dev/null")  # else ./derby.log
    with temporary_settings(spark, staging_catalog(name)):
        open_staging(spark, name, access)
    return name
