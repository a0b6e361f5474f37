# SPDX-License-Identifier: Apache-2.0
"""Read and write single files in Spark's driver, with the access to the store that a catalog of the session has."""

from __future__ import annotations

import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pyspark.sql import SparkSession

from airflow_mv.core.job.session import CATALOG, settings_below
from airflow_mv.foundation.redaction import hide

#: Settings of a catalog for access to files, as opposed to access to pointers.
_FILE_ACCESS = ("io-impl", "io.", "s3.", "client.", "gcs.", "adls.", "http-client.", "hadoop.")
_SECRET = re.compile(r"(?i)secret|token|access-key|sas")
HADOOP = "org.apache.iceberg.hadoop.HadoopFileIO"
#: What Iceberg uses for a catalog of a type if no setting names another.
_DEFAULT_IO = {
    "rest": "org.apache.iceberg.io.ResolvingFileIO",
    "glue": "org.apache.iceberg.aws.s3.S3FileIO",
}


def file_access(spark: SparkSession, catalog: str) -> dict[str, str]:
    """Return the settings with which a catalog of a session accesses files; ``io-impl`` is always among them.

    Args:
        spark: A session, classic or Connect.
        catalog: The catalog's name in Spark.
    """
    own = settings_below(spark, f"{CATALOG}{catalog}.")
    return {"io-impl": _DEFAULT_IO.get(own.get("type", ""), HADOOP), **only_access(own)}


def only_access(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties for access to files among those of a catalog or of a Java ``FileIO``.

    Not an endpoint that renews credentials: only the REST catalog has the ``uri`` and the account for it.
    """
    return {
        key: value
        for key, value in properties.items()
        if key.startswith(_FILE_ACCESS) and "refresh-credentials" not in key
    }


class DriverFiles(ABC):
    """Files of a run: its script, its outcome, and the file that shows the store's time."""

    def vended(self, location: str) -> dict[str, str]:  # noqa: ARG002 (only tables of REST catalogs have some)
        """Return the properties with which the server of a REST catalog gives access to a location."""
        return {}

    @abstractmethod
    def read_text(self, location: str) -> str:
        """Return a file's text (UTF-8)."""

    @abstractmethod
    def write_text(self, location: str, text: str) -> None:
        """Write a file, or replace it as a whole."""

    @abstractmethod
    def modified(self, folder: str) -> dict[str, int]:
        """Return the names of the files in a folder, and when each was written, by the store's clock in milliseconds.

        A missing folder has no files.
        """

    @abstractmethod
    def store_ms(self, location: str) -> int:
        """Return the store's clock, milliseconds since the epoch: the modification time of a small new file.

        Args:
            location: The small file is written beside this one, and deleted again.
        """


def open_files(spark: SparkSession, catalog: str | None, table: str | None = None) -> DriverFiles:
    """Return the files as a catalog accesses them: through Iceberg's FileIO, or through Hadoop where it uses that.

    Args:
        spark: A classic session.
        catalog: The catalog's name in Spark; ``None`` for Hadoop.
        table: The quoted name of a table whose files they are beside. The server of a REST catalog may vend
            credentials with it.
    """
    access = file_access(spark, catalog) if catalog else {"io-impl": HADOOP}
    if access["io-impl"] == HADOOP:
        return HadoopFiles(spark)
    jvm: Any = spark._jvm
    if table and settings_below(spark, f"{CATALOG}{catalog}.").get("type") == "rest":
        loaded = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, table)
        return TableFiles(loaded.io(), spark)
    io = jvm.org.apache.iceberg.CatalogUtil.loadFileIO(access["io-impl"], access, _hadoop_settings(spark))
    return IcebergFiles(io, spark)


class IcebergFiles(DriverFiles):
    """Files in a store that Iceberg's FileIO opens, such as ``s3://``: its writes are complete or invisible.

    Args:
        io: A Java ``FileIO``.
        spark: A classic session.
    """

    def __init__(self, io: Any, spark: SparkSession) -> None:
        self._io = io
        self._jvm: Any = spark._jvm

    def read_text(self, location: str) -> str:
        """Return a file's text (UTF-8)."""
        stream = self._io.newInputFile(location).newStream()
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write_text(self, location: str, text: str) -> None:
        """Write a file, or replace it as a whole."""
        stream = self._io.newOutputFile(location).createOrOverwrite()
        stream.write(bytearray(text, "utf-8"))
        stream.close()

    def modified(self, folder: str) -> dict[str, int]:
        """Return the names of the files below a folder, and when each was written."""
        found: dict[str, int] = {}
        items = self._io.listPrefix(f"{folder}/").iterator()
        while items.hasNext():
            item = items.next()
            found[str(item.location()).rpartition("/")[2]] = int(item.createdAtMillis())
        return found

    def store_ms(self, location: str) -> int:
        """Return the modification time of a small new file."""
        beside = f"{location}.{uuid.uuid4().hex}.tmp"
        self.write_text(beside, "{}")
        try:
            return int(self._io.listPrefix(beside).iterator().next().createdAtMillis())
        finally:
            with suppress(Exception):  # py4j's, which has no types. Spark needs no permission to delete
                self._io.deleteFile(beside)


class TableFiles(IcebergFiles):
    """Files beside a table of a REST catalog, whose server may have vended credentials for them."""

    def vended(self, location: str) -> dict[str, str]:
        """Return the properties of the table's access; those of the location's longest prefix take precedence."""
        found = {str(key): str(value) for key, value in dict(self._io.properties()).items()}
        for prefix, properties in sorted(self._by_prefix(), key=lambda item: len(item[0])):
            if location.startswith(prefix):
                found |= properties
        access = only_access(found)
        hide(value for key, value in access.items() if _SECRET.search(key))
        return access

    def _by_prefix(self) -> list[tuple[str, dict[str, str]]]:
        try:
            credentials = list(self._io.credentials())
        except Exception:  # noqa: BLE001 (py4j's, which has no types: not every FileIO has this method)
            return []
        return [(str(item.prefix()), dict(item.config())) for item in credentials]


class HadoopFiles(DriverFiles):
    """Files at a local path, or at any location that Hadoop opens (``file:/``, ``s3a://``, ``hdfs://``…).

    Args:
        spark: A classic session.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        self._settings = _hadoop_settings(spark)

    def read_text(self, location: str) -> str:
        """Return a file's text (UTF-8)."""
        path, files = self._opened(location)
        stream = files.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write_text(self, location: str, text: str) -> None:
        """Write a temporary file, and rename it over an older one."""
        path, files = self._opened(location)
        beside = path.suffix(f".{uuid.uuid4().hex}.tmp")
        stream = files.create(beside, True)  # noqa: FBT003 (Java's overwrite)
        try:
            stream.write(bytearray(text, "utf-8"))
        finally:
            stream.close()
        if files.exists(path):
            files.delete(path, False)  # noqa: FBT003 (Java's recursive)
        if not files.rename(beside, path):
            raise OSError(f"{location}: cannot be written")

    def modified(self, folder: str) -> dict[str, int]:
        """Return the names of the files in a folder, and when each was written."""
        path, files = self._opened(folder)
        if not files.exists(path):
            return {}
        return {str(item.getPath().getName()): int(item.getModificationTime()) for item in files.listStatus(path)}

    def store_ms(self, location: str) -> int:
        """Return the modification time of a small new file."""
        path, files = self._opened(location)
        beside = path.suffix(f".{uuid.uuid4().hex}.tmp")
        files.create(beside, True).close()  # noqa: FBT003 (Java's overwrite)
        try:
            return int(files.getFileStatus(beside).getModificationTime())
        finally:
            files.delete(beside, False)  # noqa: FBT003 (Java's recursive)

    def _opened(self, location: str) -> tuple[Any, Any]:
        hadoop = self._jvm.org.apache.hadoop.fs
        path = hadoop.Path(location)
        if path.toUri().getScheme() is None:
            # Without a scheme Hadoop would use its default file system, but a local path is meant.
            path = hadoop.Path(self._jvm.java.io.File(location).getAbsoluteFile().toURI())
        return path, path.getFileSystem(self._settings)


def _hadoop_settings(spark: SparkSession) -> Any:
    return spark._jsparkSession.sessionState().newHadoopConf()
