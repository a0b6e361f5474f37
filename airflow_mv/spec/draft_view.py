# SPDX-License-Identifier: Apache-2.0
"""Iceberg view metadata as the older draft wrote it, turned into version 1.

The draft kept default catalog and namespace, schema id, field aliases and field docs inside the SQL
representation; they are lifted to where version 1 has them.
"""

from __future__ import annotations

import uuid
from typing import Any

from airflow_mv.errors import InvalidMetadataError


def lift_draft(raw: dict[str, Any], source: str) -> dict[str, Any]:
    """Turn the older draft's shape into version 1, in place; version 1 passes unchanged."""
    versions = raw.get("versions")
    if not isinstance(versions, list):
        return raw
    location = str(raw.get("location")).encode("utf-8", "replace").decode()  # half a surrogate pair has no bytes
    raw.setdefault("view-uuid", str(uuid.uuid5(uuid.NAMESPACE_URL, location)))
    raw.setdefault("schemas", [{"type": "struct", "schema-id": 0, "fields": []}])
    for version in versions:
        if isinstance(version, dict):
            _lift_version(version, raw, source)
    return raw


def _lift_version(version: dict[str, Any], document: dict[str, Any], source: str) -> None:
    representations = version.get("representations")
    first = representations[0] if isinstance(representations, list) and representations else {}
    if not isinstance(first, dict):
        return
    fallback = {"default-namespace": [], "schema-id": document.get("current-schema-id", 0)}
    for key in ("default-catalog", "default-namespace", "schema-id"):
        if key not in version and (key in first or key in fallback):
            version[key] = first.get(key, fallback.get(key))
    version.setdefault("summary", {})
    names, docs = first.get("field-aliases"), first.get("field-docs")
    if names or docs:
        version["schema-id"] = _aliased(document, version["schema-id"], names, docs, source)


def _aliased(document: dict[str, Any], schema_id: object, names: object, docs: object, source: str) -> int:
    """Return the id of the schema with the draft's field aliases and docs applied, added if new."""
    stored = document["schemas"] if isinstance(document["schemas"], list) else []
    schemas: dict[int, dict[str, Any]] = {
        item["schema-id"]: item for item in stored if isinstance(item, dict) and _has_id(item)
    }
    base = schemas.get(schema_id) if type(schema_id) is int else None
    fields = base.get("fields") if base else None
    if base is None or not isinstance(fields, list) or not all(isinstance(field, dict) for field in fields):
        raise InvalidMetadataError(f"{source}: field-aliases or field-docs without the schema {schema_id!r}")
    given_names = names or [field.get("name") for field in fields]
    given_docs = docs or [field.get("doc") for field in fields]
    if not (isinstance(given_names, list) and isinstance(given_docs, list)) or not (
        len(given_names) == len(given_docs) == len(fields)
    ):
        raise InvalidMetadataError(
            f"{source}: field-aliases and field-docs must have one entry for each of the columns"
        )
    renamed = [
        {**field, "name": name, **({"doc": doc} if doc is not None else {})}
        for field, name, doc in zip(fields, given_names, given_docs, strict=True)
    ]
    same = next((known for known, item in schemas.items() if item.get("fields") == renamed), None)
    if same is not None:
        return same
    new_id = max(schemas) + 1
    document["schemas"] = [*stored, {**base, "fields": renamed, "schema-id": new_id}]
    return new_id


def _has_id(schema: dict[str, Any]) -> bool:
    return type(schema.get("schema-id")) is int
