# SPDX-License-Identifier: Apache-2.0
"""Write the statement that creates a storage table, and read the results of a run from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StructField, StructType

from airflow_mv.errors import InvalidQueryError, JobError
from airflow_mv.job.context import JobContext, incomparable
from airflow_mv.job.history import read_history
from airflow_mv.quoting import quote, string_literal
from airflow_mv.script import (
    REFRESH_ID_KEY,
    SNAPSHOT_PROPERTY,
    CreateStorageStep,
    Script,
    rows_changed,
    with_row_groups,
)

_SINCE_VERSION_3 = ("variant", "geometry", "geography")


def create_table(context: JobContext, step: CreateStorageStep, schema: StructType) -> str:
    """Return the CREATE TABLE of a storage table with the columns of a query.

    Args:
        context: The context of the run.
        step: The step.
        schema: The query's columns.

    Raises:
        InvalidQueryError: A column has no type, or two have one name.
    """
    counts = Counter(field.name.lower() for field in schema.fields)
    for field in schema.fields:
        if counts[field.name.lower()] > 1:
            raise InvalidQueryError(f"the query has two columns named {field.name!r}: give one another name with AS")
        if isinstance(field.dataType, NullType):
            raise InvalidQueryError(
                f"the column {field.name!r} is always NULL and has no type: give it one with CAST(NULL AS …)"
            )
    given = with_row_groups(step.properties, len(schema.fields))
    if any(_since_version_3(field, staged=context.is_staged(step.table)) for field in schema.fields):
        given["format-version"] = "3"
    pairs = ", ".join(f"{string_literal(key)} = {string_literal(value)}" for key, value in given.items())
    properties = f" TBLPROPERTIES ({pairs})" if pairs else ""
    partitioning = f" PARTITIONED BY ({', '.join(step.partition_by)})" if step.partition_by else ""
    location = f" LOCATION {string_literal(step.location)}" if step.location else ""
    comments = dict(step.comments)
    columns = (_column(field, " ", comments.get(field.name)) for field in schema.fields)
    return f"CREATE TABLE {step.table} ({', '.join(columns)}) USING iceberg{partitioning}{location}{properties}"


def _column(field: StructField, separator: str, comment: str | None = None) -> str:
    """Return the SQL of a column or a struct field. It is nullable, like a view's columns."""
    comment = field.metadata.get("comment") if comment is None else comment
    text = f" COMMENT {string_literal(str(comment))}" if comment else ""
    return f"{quote(field.name)}{separator}{_type(field.dataType)}{text}"


def _since_version_3(field: StructField, *, staged: bool) -> bool:
    """Whether a column's type, or a nested type, needs Iceberg's format version 3.

    Raises:
        InvalidQueryError: It does, and the table is to be registered in the catalog, where pyiceberg must read it.
    """
    kind = incomparable(field.dataType, _SINCE_VERSION_3)
    if kind is not None and not staged:
        raise InvalidQueryError(
            f"the column {field.name!r} has the type {kind}, with which pyiceberg cannot read a table of the catalog: "
            "use the layout 'pointed', or show the value as another type"
        )
    return kind is not None


def _type(kind: DataType) -> str:
    # simpleString() quotes no field name.
    if isinstance(kind, StructType):
        return f"struct<{', '.join(_column(field, ': ') for field in kind.fields)}>"
    if isinstance(kind, ArrayType):
        return f"array<{_type(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{_type(kind.keyType)}, {_type(kind.valueType)}>"
    return kind.simpleString()


def written(context: JobContext, script: Script) -> dict[str, Any]:
    """Return ``metadata_location``, ``rows_written`` and ``rows_deleted`` of an outcome.

    Args:
        context: The run's.
        script: The script, bound to the run.

    Raises:
        JobError: The newest snapshot has no refresh id, so it cannot be told from another writer's.
    """
    if context.jvm is None:
        location, head, summaries = _by_history(context, script)
    else:
        location, head, summaries = _by_metadata(context.table(script.table), script)
    # A rewrite is known by its operation: the procedure adds nothing to the summary.
    if (
        context.written_by not in ("none", "rewrite")
        and head is not None
        and head.get(REFRESH_ID_KEY) != script.refresh_id
    ):
        raise JobError(
            f"Spark {context.spark.version} has not written the refresh id ({REFRESH_ID_KEY}) into the summary of the "
            "snapshot that it staged: nothing may be published. Does its Iceberg honour the setting "
            f"{SNAPSHOT_PROPERTY}*?"
        )
    added, deleted = rows_changed(summaries)
    return {"metadata_location": location, "rows_written": added, "rows_deleted": deleted}


_Summary = Mapping[str, str]


def _by_metadata(table: Any, script: Script) -> tuple[str, _Summary | None, list[_Summary]]:
    """Return the metadata location, the newest snapshot's summary and the run's ones, through Java.

    A Spark statement would take longer.
    """
    table.refresh()
    head = table.currentSnapshot() if script.branch is None else table.snapshot(script.branch)
    location = str(table.operations().current().metadataFileLocation())
    return location, None if head is None else head.summary(), list(_own(table, head, script))


def _own(table: Any, snapshot: Any, script: Script) -> Iterator[_Summary]:
    """Yield the summaries of the run's snapshots, newest first. Deletes of whole files have no refresh id in theirs."""
    while snapshot is not None:
        summary = snapshot.summary()
        stamp = summary.get(REFRESH_ID_KEY)
        if stamp == script.refresh_id:
            yield summary
        elif stamp is not None:
            return  # this snapshot and all before it belong to earlier refreshes
        snapshot = None if snapshot.parentId() is None else table.snapshot(snapshot.parentId())


def _by_history(context: JobContext, script: Script) -> tuple[str, _Summary | None, list[_Summary]]:
    """Return the same by metadata tables."""
    past = read_history(context.spark, script.table, "log", "references")
    line = [past.snapshots[item].summary for item in past.ancestors(past.references.get(script.branch or "main"))]
    # Other runs of the same refresh have written to the table, too.
    own = [summary for summary in line if summary.get(REFRESH_ID_KEY) == script.refresh_id]
    return past.log[-1].file, line[0] if line else None, own
