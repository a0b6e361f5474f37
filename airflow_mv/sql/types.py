# SPDX-License-Identifier: Apache-2.0
"""Convert Iceberg's types to Spark SQL.

Source: Iceberg ``format/spec.md``, "Schemas and Data Types", and Iceberg's Spark type conversion.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
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
#: Accesses to a nested field, from the outside in: the name of a field, or a key; ``None`` for an index or another key.
Accesses = tuple[str | None, ...]
#: What does not change what a field is.
_BESIDE = ("doc", "required", "element-required", "value-required")
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


def is_same_for(then: Mapping[str, Any], now: Mapping[str, Any], uses: Collection[Accesses]) -> bool:
    """Whether a column of two schemas is the same one for a query, by field ids and types: for each part that it reads.

    Args:
        then: The stored field of the column in one schema.
        now: The field in the other one.
        uses: What the query reads of it, see :func:`airflow_mv.sql.column_names.uses_of_column`.
    """
    return then.get("id") == now.get("id") and all(_is_same(then["type"], now["type"], accesses) for accesses in uses)


def _is_same(then: Any, now: Any, accesses: Accesses) -> bool:
    """Whether accesses lead to the same fields of the same type. Where that is not certain, all of it is compared."""
    nested = isinstance(then, Mapping) and isinstance(now, Mapping) and then.get("type") == now.get("type")
    if not accesses or not nested:
        return bool(_bare(then) == _bare(now))
    name, *rest = accesses
    kind = then.get("type")
    if kind == "map":
        keys = [(item.get("key-id"), _bare(item.get("key")), item.get("value-id")) for item in (then, now)]
        return keys[0] == keys[1] and _is_same(then["value"], now["value"], tuple(rest))
    if kind == "list":
        # A field's name takes the field of each element.
        inner = accesses if name is not None else tuple(rest)
        return then.get("element-id") == now.get("element-id") and _is_same(then["element"], now["element"], inner)
    fields = [[item for item in stored["fields"] if str(item["name"]).casefold() == name] for stored in (then, now)]
    if kind != "struct" or any(len(found) != 1 for found in fields):
        return bool(_bare(then) == _bare(now))
    (one,), (other,) = fields
    return one.get("id") == other.get("id") and _is_same(one["type"], other["type"], tuple(rest))


def _bare(stored: Any) -> Any:
    """Return a stored type without comments, and without what says where NULL is allowed."""
    if isinstance(stored, Mapping):
        return {key: _bare(item) for key, item in stored.items() if key not in _BESIDE}
    return [_bare(item) for item in stored] if isinstance(stored, list | tuple) else stored


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
