# SPDX-License-Identifier: Apache-2.0
"""The statement that creates a storage table, and how names and strings are written in one."""

from __future__ import annotations

from collections import Counter

from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StructField, StructType

from airflow_mv.errors import InvalidQueryError
from airflow_mv.job.work import incomparable
from airflow_mv.script import STAGING_CATALOG, CreateStorageStep, quote

_SINCE_VERSION_3 = ("variant", "geometry", "geography")
KEEP_METADATA = {"write.metadata.delete-after-commit.enabled": "false"}


def create_table(step: CreateStorageStep, schema: StructType) -> str:
    """Return the CREATE TABLE of a storage table with the columns of a query.

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
    given = {**dict(step.properties), **KEEP_METADATA}
    if any(_since_version_3(field, step) for field in schema.fields):
        given["format-version"] = "3"
    properties = ", ".join(f"{literal(key)} = {literal(value)}" for key, value in given.items())
    partitioning = f" PARTITIONED BY ({', '.join(step.partition_by)})" if step.partition_by else ""
    location = f" LOCATION {literal(step.location)}" if step.location else ""
    return (
        f"CREATE TABLE {step.table} ({', '.join(_column(field, ' ') for field in schema.fields)}) USING iceberg"
        f"{partitioning}{location} TBLPROPERTIES ({properties})"
    )


def _column(field: StructField, separator: str) -> str:
    """Return a column or a field of a struct. Nullable, as a view's columns are."""
    comment = field.metadata.get("comment")
    text = f" COMMENT {literal(str(comment))}" if comment else ""
    return f"{quote(field.name)}{separator}{_type(field.dataType)}{text}"


def _since_version_3(field: StructField, step: CreateStorageStep) -> bool:
    """Whether a column's type, or one within it, is only in tables of Iceberg's format version 3.

    Raises:
        InvalidQueryError: It is, and the table is to be one of the catalog, where pyiceberg has to read it.
    """
    kind = incomparable(field.dataType, _SINCE_VERSION_3)
    if kind is not None and not step.table.startswith(quote(STAGING_CATALOG)[:-1]):
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


def literal(text: str) -> str:
    """Return a string as Spark writes it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
