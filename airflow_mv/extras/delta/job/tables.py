# SPDX-License-Identifier: Apache-2.0
"""Read Delta tables in Spark: their versions, and the files in which two versions differ.

A file of a Delta table never changes. The rows of the files that only the new version has, minus those of the files
that only the old one has, are the change, whatever commits are between: a file with another deletion vector is another
file. Delta's own relation reads the files, so that column mapping, deletion vectors and partition values are as in a
query. The classes of Delta are used in this module only.
"""

from __future__ import annotations

import json
import pkgutil
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from airflow_mv.core.job.context import JobContext
from airflow_mv.core.job.delta import cancelled, no_change, signed
from airflow_mv.core.job.foreign import ChangeRead
from airflow_mv.core.script import Delta, DeltaStep, TableRead
from airflow_mv.errors import ConfigurationError, IncrementalRefusedError, UnsupportedError
from airflow_mv.version import SPARK_WITH_DELTA, minor

EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
#: The column of Delta's change data feed that names the kind of change, and the weight of each kind.
_CHANGE_TYPE = "_change_type"
_WEIGHTS = {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}

_NAME = re.compile(r"`delta`\.`((?:[^`]|``)+)`")
_FEED = "delta.enableChangeDataFeed"
_PHYSICAL_NAME = "delta.columnMapping.physicalName"
_COLLATIONS = "__COLLATIONS"
_INDEX = "org.apache.spark.sql.delta.files.TahoeLogFileIndex"


def delta_path(table: str) -> str | None:
    """Return the path of a Delta table, or ``None`` for another table.

    Args:
        table: The quoted name, as in a script.
    """
    match = _NAME.fullmatch(table)
    return None if match is None else match[1].replace("``", "`")


def require(context: JobContext, table: str) -> None:
    """Check that the session can read Delta tables.

    Raises:
        ConfigurationError: The session was started without Delta Lake.
        UnsupportedError: It is of a Spark for which there is no such Delta Lake.
    """
    if minor(context.spark.version) not in SPARK_WITH_DELTA:
        wanted = " or ".join(SPARK_WITH_DELTA)
        raise UnsupportedError(f"{table}: Delta tables need Spark {wanted}, not {context.spark.version}")
    if context.jvm is None:
        raise ConfigurationError(
            f"{table}: Delta tables cannot be read over Spark Connect: only a classic session shows which version of a "
            "table is read"
        )
    keys = ("spark.sql.extensions", "spark.sql.catalog.spark_catalog")
    extensions, catalog = (str(context.spark.conf.get(key, "")) for key in keys)
    if EXTENSION not in extensions or catalog in ("", "builtin"):
        raise ConfigurationError(
            f"{table}: the Spark session was started without Delta Lake. Start it with the package delta-spark, "
            f"{EXTENSION} in spark.sql.extensions, and spark.sql.catalog.spark_catalog={CATALOG}"
        )


@contextmanager
def reading(context: JobContext) -> Iterator[None]:
    """Let statements that write into Iceberg tables read Delta tables with deletion vectors.

    Delta prepares the scans of a query, but not those of a statement that writes; then it refuses deletion vectors
    (delta-io/delta, ``PrepareDeltaScan`` and ``PreprocessTableWithDVs``). The session has ``DeltaWrites.java`` as one
    more rule of its optimizer for the run. It is not left there, because it must not touch writes into Delta tables.
    """
    methods = context.spark._jsparkSession.experimental()
    before = methods.extraOptimizations()
    getattr(methods, "extraOptimizations_$eq")(before.appended(_rule(context)))
    try:
        yield
    finally:
        getattr(methods, "extraOptimizations_$eq")(before)


def _rule(context: JobContext) -> Any:
    compiler = context.java.find("org.codehaus.janino.SimpleCompiler")()
    compiler.setParentClassLoader(context.java.find("java.lang.Thread").currentThread().getContextClassLoader())
    compiler.cook((pkgutil.get_data("airflow_mv.extras.delta.job", "DeltaWrites.java") or b"").decode())
    constructor = compiler.getClassLoader().loadClass("DeltaWrites").getConstructors()[0]
    return constructor.newInstance(context.java.array("Object", [context.spark._jsparkSession]))


def table_of(leaf: Any, reads: Collection[TableRead]) -> tuple[str, str] | None:
    """Return the name and version of the Delta table that a leaf of a plan reads; ``None`` if it reads something else.

    Args:
        leaf: A ``LogicalRelation``.
        reads: The tables that may be read: a path can be written in several ways.
    """
    try:
        index = leaf.relation().location()
    except Exception:  # noqa: BLE001 (py4j's error for a relation that has no files)
        return None
    if str(index.getClass().getName()) != _INDEX:
        return None
    found, version = str(index.path().toString()), str(index.getSnapshot().version())
    own = (read.table for read in reads if _uri(delta_path(read.table)) == _uri(found))
    return next(own, found), version


def _uri(path: str | None) -> str | None:
    """Return a path in one form: Hadoop writes ``file:/path``."""
    return None if path is None else re.sub(r"^file:/*", "/", path).rstrip("/")


class Sizes(NamedTuple):
    """The sizes of files; ``rows`` is ``None`` if that of one is unknown."""

    files: int
    bytes: int
    rows: int | None


class DeltaVersions:
    """Two versions of a Delta table.

    Args:
        start: The old version.
        end: The new one.
    """

    def __init__(self, context: JobContext, path: str, start: int, end: int) -> None:
        self._work, self._path = context, path
        self.start, self.end = start, end

    @cached_property
    def old(self) -> Any:
        """Delta's snapshot of the old version."""
        return snapshot_at(self._work, self._path, self.start)

    @cached_property
    def new(self) -> Any:
        """Delta's snapshot of the new version."""
        return snapshot_at(self._work, self._path, self.end)

    def problem(self, columns: Collection[str]) -> str | None:
        """Return why values of these columns cannot be compared; ``None`` if they can."""
        before, after = _columns(self.old), _columns(self.new)
        for name in columns:
            if name not in before or before[name] != after.get(name):
                return f"its column {name} is not the same in version {self.start} and version {self.end}"
            if _COLLATIONS in repr(before[name]):
                return f"its column {name} has a collation, by which different values are equal"
        return None

    @property
    def has_feed(self) -> bool:
        """Whether the table writes a change data feed. It may have begun after the old version."""
        options = (item.metadata().configuration().get(_FEED) for item in (self.old, self.new))
        return all(option.isDefined() and str(option.get()).lower() == "true" for option in options)

    def feed(self) -> tuple[DataFrame, Column]:
        """Return the rows of the change data feed, and their weight."""
        reader = self._work.spark.read.format("delta").option("readChangeFeed", "true")
        reader = reader.option("startingVersion", self.start + 1).option("endingVersion", self.end)
        weights = F.create_map(*(F.lit(item) for pair in _WEIGHTS.items() for item in pair))
        return reader.load(self._path), weights[F.col(_CHANGE_TYPE)]

    @cached_property
    def removed(self) -> Files:
        """The files that only the old version has."""
        return Files(self._work, self.old, self.new)

    @cached_property
    def added(self) -> Files:
        """The files that only the new version has."""
        return Files(self._work, self.new, self.old)


class Files:
    """The files of one snapshot that another one does not have.

    Args:
        here: The snapshot.
        there: The other one.
    """

    def __init__(self, context: JobContext, here: Any, there: Any) -> None:
        self._work, self._snapshot = context, here
        mine, others = (DataFrame(item.allFiles().toDF(), context.spark) for item in (here, there))
        self._files = _keyed(mine).join(_keyed(others).select("__key"), "__key", "left_anti").drop("__key")

    @cached_property
    def _actions(self) -> Any:
        """The files as Delta's own objects."""
        encoder = self._snapshot.allFiles().encoder()
        return getattr(self._files._jdf, "as")(encoder).collectAsList()

    @cached_property
    def sizes(self) -> Sizes:
        """The number of files, bytes and rows; the rows are unknown if a file has no statistics."""
        records, size = 0, 0
        known = True
        for action in self._actions:
            size += int(action.size())
            rows = action.numLogicalRecords()
            known = known and bool(rows.isDefined())
            records += int(rows.get()) if known else 0
        return Sizes(len(self._actions), size, records if known else None)

    def frame(self) -> DataFrame:
        """Return their rows, with the columns of the snapshot."""
        converters = self._work.java.find("scala.jdk.javaapi.CollectionConverters")
        actions = converters.asScala(self._actions).toSeq()
        none = self._work.java.find("scala.Option").empty()
        java = self._snapshot.deltaLog().createDataFrame(self._snapshot, actions, False, none)  # noqa: FBT003
        return DataFrame(java, self._work.spark)


def has_version(context: JobContext, table: str, version: int) -> bool:
    """Whether the log of a table has a version."""
    try:
        snapshot_at(context, delta_path(table) or "", version)
    except Exception:  # noqa: BLE001 (a log that was cleaned up, in one of several ways)
        return False
    return True


def change(context: JobContext, step: DeltaStep, start: int, end: int) -> ChangeRead:
    """Read the rows of the files that only one version has, or the change data feed if files were replaced.

    Raises:
        IncrementalRefusedError: Code ``schema-changed``.
    """
    versions = DeltaVersions(context, delta_path(step.table) or "", start, end)
    if (problem := versions.problem(step.columns)) is not None:
        raise IncrementalRefusedError("schema-changed", f"{step.table}: {problem}")
    removed, added = versions.removed.sizes, versions.added.sizes
    facts = Delta(
        step.table,
        old_tasks=removed.files,
        new_tasks=added.files,
        old_bytes=removed.bytes,
        new_bytes=added.bytes,
        rows_read=None if removed.rows is None or added.rows is None else removed.rows + added.rows,
    )
    if not removed.files and not added.files:
        return no_change(context, step, facts)
    if not removed.files:
        rows = replace(facts, read_by=("append",), rows=facts.rows_read)
        return ChangeRead(signed(versions.added.frame(), step, 1), rows, added=True)
    if versions.has_feed and (read := _by_feed(context, step, versions, facts)) is not None:
        return read
    parts = [signed(files.frame(), step, sign) for files, sign in ((versions.removed, -1), (versions.added, 1))]
    # Files of an old version may have been removed by VACUUM, so they are read here.
    held = context.kept(cancelled(parts[0].unionAll(parts[1]), step), facts.rows_read)
    return ChangeRead(held.frame, replace(facts, read_by=("diff",), rows=held.rows))


def _by_feed(context: JobContext, step: DeltaStep, versions: DeltaVersions, facts: Delta) -> ChangeRead | None:
    """Read the change data feed; ``None`` if it is not complete: a version was written without it, or its files."""
    try:
        frame, weight = versions.feed()
        held = context.kept(cancelled(signed(frame, step, weight), step))
    except Exception:  # noqa: BLE001 (Delta's errors have no common base)
        return None
    return ChangeRead(held.frame, replace(facts, read_by=("feed",), rows_read=held.rows, rows=held.rows))


def snapshot_at(context: JobContext, path: str, version: int) -> Any:
    """Return Delta's snapshot of a version, as a query resolves it.

    Raises:
        Py4JJavaError, AnalysisException: The log does not have it.
    """
    frame = context.spark.read.format("delta").option("versionAsOf", version).load(path)
    leaf = frame._jdf.queryExecution().analyzed().collectLeaves().apply(0)
    return leaf.relation().location().getSnapshot()


def _keyed(files: DataFrame) -> DataFrame:
    """Add a key that two files share only if they have the same rows: the path and the deletion vector."""
    vector = F.to_json(F.col("deletionVector"))
    return files.withColumn("__key", F.struct(F.col("path"), F.coalesce(vector, F.lit("")).alias("vector")))


def _columns(snapshot: Any) -> Mapping[str, Any]:
    fields = json.loads(str(snapshot.metadata().schema().json()))["fields"]
    return {str(field["name"]): _identity(field) for field in fields}


def _identity(field: Mapping[str, Any]) -> Any:
    """Return what decides the values of a column: the name in the files, the type, and the collation."""
    metadata = {key: value for key, value in field["metadata"].items() if key.startswith("__") or "default" in key}
    return field["metadata"].get(_PHYSICAL_NAME, field["name"]), _type(field["type"]), metadata


def _type(stored: Any) -> Any:
    if isinstance(stored, Mapping) and stored.get("type") == "struct":
        return [(item["name"], _identity(item)) for item in stored["fields"]]
    if isinstance(stored, Mapping):
        parts = ("elementType", "keyType", "valueType")
        return [stored["type"], *(_type(stored[part]) for part in parts if part in stored)]
    return stored
