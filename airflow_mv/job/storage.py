# SPDX-License-Identifier: Apache-2.0
"""The statement that creates a storage table, and how names and strings are written in one."""

from __future__ import annotations

from collections import Counter

from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StructField, StructType

from airflow_mv.errors import InvalidQueryError
from airflow_mv.script import CreateStorageStep, quote

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
    properties = ", ".join(
        f"{literal(key)} = {literal(value)}" for key, value in {**dict(step.properties), **KEEP_METADATA}.items()
    )
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
