# SPDX-License-Identifier: Apache-2.0
"""Iceberg's types as Spark writes them.

Source: Iceberg ``format/spec.md``, "Schemas and Data Types", and Iceberg's Spark type conversion.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_mv.script import quote

_NAMES = {
    "long": "bigint",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    "timestamp_ns": "timestamp_ntz",
    "timestamptz_ns": "timestamp",
    "uuid": "string",
}


def spark_type(stored: str | Mapping[str, Any]) -> str:
    """Return a type of an Iceberg schema as Spark SQL writes it.

    Args:
        stored: A type as table metadata holds it: a name, or an object for struct, list and map.
    """
    if isinstance(stored, str):
        return "binary" if stored.startswith("fixed[") else _NAMES.get(stored, stored)
    kind = stored.get("type")
    if kind == "struct":
        fields = ", ".join(f"{quote(str(item['name']))}: {spark_type(item['type'])}" for item in stored["fields"])
        return f"struct<{fields}>"
    if kind == "list":
        return f"array<{spark_type(stored['element'])}>"
    if kind == "map":
        return f"map<{spark_type(stored['key'])}, {spark_type(stored['value'])}>"
    return str(kind)


def columns_of(schema: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return name and Spark type of each top-level column of a stored schema, in order."""
    return tuple((str(field["name"]), spark_type(field["type"])) for field in schema.get("fields", []))
