# SPDX-License-Identifier: Apache-2.0
"""Run a script in a Spark session, classic or Connect, and say what it did."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StructField, StructType

from airflow_mv.errors import InvalidQueryError
from airflow_mv.script import STAGING_CATALOG, CreateStorageStep, Outcome, Script, SqlStep, Step

_STAMP = "spark.sql.iceberg.snapshot-property.airflow-mv.refresh-id"
_CATALOG = "spark.sql.catalog."
#: Settings of the view's catalog that say how files are reached, not where pointers are.
_FILE_ACCESS = ("io-impl", "io.", "s3.", "client.", "gcs.", "adls.", "http-client.", "hadoop.")
_DEFAULT_IO = {
    "rest": "org.apache.iceberg.io.ResolvingFileIO",
    "glue": "org.apache.iceberg.aws.s3.S3FileIO",
}
_KEEP_METADATA = {"write.metadata.delete-after-commit.enabled": "false"}
_LONGEST_REASON = 2000
#: Staging catalogs that no run of a classic session is using, by session and by how they reach files.
_idle: WeakKeyDictionary[SparkSession, dict[frozenset[tuple[str, str]], list[str]]] = WeakKeyDictionary()


def run(spark: SparkSession, script: Script, *, report: Callable[[str], None] = print) -> Outcome:
    """Run the steps of a script in order; the first failure ends it. Nothing is published here.

    While it runs, the staging catalog is this run's alone: in the session it carries a name of its own in
    place of ``airflow_mv_staging``, since Spark never reads a catalog's settings twice. A classic session
    lends it to its next run: Derby's databases take longer to make and to drop than all else around a refresh.

    Args:
        spark: A session that knows the base tables' catalogs, classic or Connect. Its settings are as
            before when this returns.
        script: What to run.
        report: Told a line before and after each step.

    Returns:
        What was staged, or the reason why not; a failing statement never raises.
    """
    seconds: list[float] = []
    name = f"{STAGING_CATALOG}_{uuid.uuid4().hex[:12]}"
    sql = ""
    try:
        access = _file_access(spark, script.view)
        name = _take_idle(spark, access) or name
        with (
            _quiet(),
            _settings(spark, {**_staging(script, name, access), **dict(script.confs)}),
            _tables(spark, script, name, access),
        ):
            for number, step in enumerate(script.steps, 1):
                report(f"statement {number}/{len(script.steps)}: {_brief(step.describe())}")
                started = time.monotonic()
                try:
                    sql = _here(step.sql if isinstance(step, SqlStep) else step.query, name)
                    _run_step(spark, step, sql, name)
                finally:
                    seconds.append(round(time.monotonic() - started, 3))
                report(f"statement {number}/{len(script.steps)}: {seconds[-1]:.1f} s")
            return Outcome(
                refresh_id=script.refresh_id,
                metadata_location=_newest_metadata_file(spark, _here(script.table, name)),
                rows_written=_rows_written(spark, _here(script.table, name), script.refresh_id),
                step_seconds=tuple(seconds),
                application_id=_application_id(spark),
            )
    except Exception as error:  # noqa: BLE001 (Spark's, py4j's and gRPC's errors have no common base)
        return Outcome(
            refresh_id=script.refresh_id,
            metadata_location=None,
            step_seconds=tuple(seconds),
            error=reason(error, sql).replace(name, STAGING_CATALOG),
            error_class=_condition(error),
            query_error=isinstance(error, AnalysisException | InvalidQueryError),
            application_id=_application_id(spark),
        )


# ------------------------------------------------------------------------------------ the session


def _staging(script: Script, name: str, access: Mapping[str, str]) -> dict[str, str]:
    catalog = f"{_CATALOG}{name}"
    return {
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        f"{catalog}.uri": f"jdbc:derby:memory:{name};create=true",
        f"{catalog}.jdbc.schema-version": "V1",
        f"{catalog}.cache-enabled": "false",
        f"{catalog}.warehouse": "file:///nowhere",  # JdbcCatalog wants one; every table names its location
        **{f"{catalog}.{key}": value for key, value in access.items()},
        # INSERT OVERWRITE replaces the whole table, whatever the session's owner prefers.
        "spark.sql.sources.partitionOverwriteMode": "static",
        _STAMP: script.refresh_id,
    }


def _file_access(spark: SparkSession, view: str) -> dict[str, str]:
    """Return the settings by which the view's catalog reaches files."""
    quoted = re.match(r"`((?:[^`]|``)+)`", view)
    base = f"{_CATALOG}{quoted[1].replace('``', '`') if quoted else view.partition('.')[0]}"
    confs: Mapping[str, str] = spark.conf.getAll
    own = {key.removeprefix(f"{base}."): value for key, value in confs.items() if key.startswith(f"{base}.")}
    access = {key: value for key, value in own.items() if key.startswith(_FILE_ACCESS)}
    default = _DEFAULT_IO.get(own.get("type", ""), "org.apache.iceberg.hadoop.HadoopFileIO")
    return {"io-impl": default, **access}


@contextmanager
def _settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Set what a run needs, and put back what was there."""
    before: dict[str, str | None] = {}
    try:
        for key, value in wanted.items():
            before[key] = spark.conf.get(key, None)
            spark.conf.set(key, value)
        yield
    finally:
        with suppress(Exception):  # a session that has died keeps no settings
            for key, old in before.items():
                if old is None:
                    spark.conf.unset(key)
                else:
                    spark.conf.set(key, old)


def _take_idle(spark: SparkSession, access: Mapping[str, str]) -> str | None:
    names = _idle.get(spark, {}).get(frozenset(access.items()))
    return names.pop() if names else None


def _give_back(spark: SparkSession, access: Mapping[str, str], name: str) -> None:
    _idle.setdefault(spark, {}).setdefault(frozenset(access.items()), []).append(name)


@contextmanager
def _tables(spark: SparkSession, script: Script, name: str, access: Mapping[str, str]) -> Iterator[None]:
    """Forget what a run registered: without PURGE, since the files belong to the published table or the refresh."""
    if (jvm := getattr(spark, "_jvm", None)) is not None:
        jvm.java.lang.System.setProperty("derby.stream.error.file", "/dev/null")  # else ./derby.log
    head = script.table.rsplit(".", 1)[0]
    try:
        yield
    finally:
        clean = False
        with suppress(Exception):  # a failure here must not hide what the run has to say
            for table in (script.table, *(f"{head}.`base_{number}`" for number in range(script.nested))):
                spark.sql(f"DROP TABLE IF EXISTS {_here(table, name)}").collect()
            clean = True
        if clean and jvm is not None:
            _give_back(spark, access, name)
        else:
            with suppress(Exception):  # Derby reports the successful end of a database as an error
                _drop_database(spark, name)


def _drop_database(spark: SparkSession, name: str) -> None:
    """Free the memory of a run's database: a Connect server lives for months."""
    address = f"jdbc:derby:memory:{name};drop=true"
    if (jvm := getattr(spark, "_jvm", None)) is not None:
        jvm.java.sql.DriverManager.getConnection(address)
        return
    # Over Connect a catalog is the only thing that opens a JDBC connection.
    wanted = {
        f"{_CATALOG}{name}_end": "org.apache.iceberg.spark.SparkCatalog",
        f"{_CATALOG}{name}_end.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        f"{_CATALOG}{name}_end.uri": address,
        f"{_CATALOG}{name}_end.warehouse": "file:///nowhere",
    }
    with _settings(spark, wanted):
        spark.sql(f"SHOW TABLES IN `{name}_end`.`staged`").collect()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep PySpark from printing a Java stack for an error that is told in the outcome."""
    # PySpark's own kind of logger: a plain one of this name would break it for the whole process.
    loggers = [PySparkLogger.getLogger(name) for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _here(text: str, name: str) -> str:
    return re.sub(rf"\b{STAGING_CATALOG}\b", name, text)


def _application_id(spark: SparkSession) -> str | None:
    try:
        return spark.conf.get("spark.app.id", None)
    except Exception:  # noqa: BLE001 (the session may be what has failed)
        return None


# -------------------------------------------------------------------------------------- the steps


def _run_step(spark: SparkSession, step: Step, sql: str, name: str) -> None:
    if isinstance(step, CreateStorageStep):
        spark.sql(_here(_create_table(step, spark.sql(sql).schema), name)).collect()
    else:
        spark.sql(sql).collect()


def _create_table(step: CreateStorageStep, schema: StructType) -> str:
    counts = Counter(field.name.lower() for field in schema.fields)
    for field in schema.fields:
        if counts[field.name.lower()] > 1:
            raise InvalidQueryError(f"the query has two columns named {field.name!r}: give one another name with AS")
        if isinstance(field.dataType, NullType):
            raise InvalidQueryError(
                f"the column {field.name!r} is always NULL and has no type: give it one with CAST(NULL AS …)"
            )
    properties = ", ".join(
        f"{_literal(key)} = {_literal(value)}" for key, value in {**dict(step.properties), **_KEEP_METADATA}.items()
    )
    partitioning = f" PARTITIONED BY ({', '.join(step.partition_by)})" if step.partition_by else ""
    return (
        f"CREATE TABLE {step.table} ({', '.join(_column(field, ' ') for field in schema.fields)}) USING iceberg"
        f"{partitioning} LOCATION {_literal(step.location)} TBLPROPERTIES ({properties})"
    )


def _column(field: StructField, separator: str) -> str:
    """Return a column or a field of a struct. Nullable, as a view's columns are."""
    comment = field.metadata.get("comment")
    text = f" COMMENT {_literal(str(comment))}" if comment else ""
    return f"{_quote(field.name)}{separator}{_type(field.dataType)}{text}"


def _type(kind: DataType) -> str:
    # simpleString() quotes no field name.
    if isinstance(kind, StructType):
        return f"struct<{', '.join(_column(field, ': ') for field in kind.fields)}>"
    if isinstance(kind, ArrayType):
        return f"array<{_type(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{_type(kind.keyType)}, {_type(kind.valueType)}>"
    return kind.simpleString()


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _newest_metadata_file(spark: SparkSession, table: str) -> str:
    # In the log's order the current file is last. By timestamp it need not be: writers' clocks differ.
    return str(spark.sql(f"SELECT file FROM {table}.metadata_log_entries").collect()[-1][0])


def _rows_written(spark: SparkSession, table: str, refresh_id: str) -> int:
    summaries = [row[0] for row in spark.sql(f"SELECT summary FROM {table}.snapshots").collect()]
    stamped = [summary for summary in summaries if summary.get("airflow-mv.refresh-id") == refresh_id]
    return sum(int(summary.get("added-records", 0)) for summary in stamped)


def _brief(sql: str) -> str:
    line = " ".join(sql.strip().splitlines()[:1])
    line = f"{line} …" if len(sql.strip().splitlines()) > 1 else line
    return line if len(line) <= 160 else f"{line[:159]}…"


# ------------------------------------------------------------------------------------- the reason


def reason(error: BaseException, sql: str = "") -> str:
    """Return an error of Spark in one paragraph: what, where in the SQL, and the root cause. No stack, no plan.

    Args:
        error: What a statement raised.
        sql: The statement.
    """
    text, _, stack = str(error).partition("JVM stacktrace:")
    head = re.sub(r"^An error occurred while calling \S+\s*:?\s*", "", text.strip())
    coded = re.match(r"(?s)(.*?SQLSTATE: \w{5})(?:[;(\s]+line (\d+),? pos(?:ition)? (\d+))?", head)
    message = coded[1] if coded else re.split(r"\n\s+at |\nDriver stacktrace|\nCaused by", head)[0]
    place = _place(error, sql, coded)
    causes = re.findall(r"(?m)^Caused by: (.+)$", text + stack)
    cause = f" Caused by: {causes[-1]}" if causes and not coded and causes[-1] not in message else ""
    paragraph = " ".join(f"{message}{place}{cause}".split())
    if not paragraph:
        return type(error).__name__
    return paragraph if len(paragraph) <= _LONGEST_REASON else f"{paragraph[: _LONGEST_REASON - 1]}…"


def _place(error: BaseException, sql: str, coded: re.Match[str] | None) -> str:
    contexts: list[Any] = []
    with suppress(Exception):  # not every error has a context, and asking may need the JVM
        contexts = list(error.getQueryContext() or [])  # type: ignore[attr-defined]
    for context in contexts:
        with suppress(Exception):
            return f" In the SQL: {_brief(context.fragment())}"
    lines = sql.splitlines()
    if coded and coded[2] and int(coded[2]) <= len(lines):
        line = lines[int(coded[2]) - 1]
        start = max(0, int(coded[3]) - 60)
        return f" In the SQL, line {coded[2]}: {_brief(line[start : int(coded[3]) + 60])}"
    return ""


def _condition(error: BaseException) -> str | None:
    with suppress(Exception):
        condition = error.getCondition()  # type: ignore[attr-defined]
        return str(condition) if condition else None
    return None
