# SPDX-License-Identifier: Apache-2.0
"""Convert Iceberg's types to Spark SQL.

Source: Iceberg ``format/spec.md``, "Schemas and Data Types", and Iceberg's Spark type conversion.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from airflow_mv.quoting import quote
from airflow_mv.spec.table import TableMetadata

_NAMES = {
    "long": "bigint",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    "timestamp_ns": "timestamp_ntz",
    "timestamptz_ns": "timestamp",
    "uuid": "string",
}
#: Types of format version 3 that pyiceberg 0.12 does not read, or not with all their parameters.
_UNKNOWN_TYPES = ("variant", "geometry", "geography")


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


def rebound_columns(then: Mapping[str, Any], now: Mapping[str, Any]) -> frozenset[str]:
    """Return the columns of an older schema whose name, or a nested field's name, now means another field or none.

    Args:
        then: A stored schema.
        now: The table's current one.
    """
    current = dict(_paths(now.get("fields", ()), ()))
    return frozenset(path[0] for path, identity in _paths(then.get("fields", ()), ()) if current.get(path) != identity)


def _paths(fields: Iterable[Mapping[str, Any]], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield the path of names to each field, and its id."""
    for field in fields:
        path = (*above, str(field["name"]))
        yield path, field.get("id")
        yield from _within(field["type"], path)


def _within(stored: str | Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    if isinstance(stored, str):
        return
    if stored.get("type") == "struct":
        yield from _paths(stored["fields"], path)
    for part in ("element", "key", "value"):
        if part in stored:
            yield (*path, part), stored.get(f"{part}-id")
            yield from _within(stored[part], (*path, part))


def columns_of(schema: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return name and Spark type of each top-level column of a stored schema, in order."""
    return tuple((str(field["name"]), spark_type(field["type"])) for field in schema.get("fields", []))


def unknown_type(table: TableMetadata) -> str | None:
    """Return the first type among a table's columns because of which pyiceberg cannot read its metadata.

    Args:
        table: The table. Its earlier schemas count too, because pyiceberg reads them.
    """
    types = (kind for schema in (table.current_schema, *table.schemas) for kind in _type_names(schema))
    return next((kind for kind in types if kind.startswith(_UNKNOWN_TYPES)), None)


def _type_names(kind: Any) -> Iterator[str]:
    if isinstance(kind, str):
        yield kind.lower()
    elif isinstance(kind, Mapping):
        inner = [field.get("type") for field in kind.get("fields", ()) if isinstance(field, Mapping)]
        for item in (*inner, *(kind.get(name) for name in ("element", "key", "value"))):
            yield from _type_names(item)
