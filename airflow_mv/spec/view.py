# SPDX-License-Identifier: Apache-2.0
"""Iceberg view metadata: read version 1 and the older draft, write version 1; changes are functions.

Source: Iceberg ``format/view-spec.md``. The older draft kept default catalog and namespace, schema id,
field aliases and field docs inside the SQL representation; :func:`parse_view` lifts them to where
version 1 has them.
"""

from __future__ import annotations

import gzip
import uuid
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from airflow_mv.errors import InvalidMetadataError
from airflow_mv.spec.stored import Int, Long, StoredModel, decode, encode, whole_number

FORMAT_VERSION = 1
DIALECT = "spark"
_HISTORY_SIZE = "version.history.num-entries"
_CODEC = "write.metadata.compression-codec"


class Representation(StoredModel):
    """How the view is expressed; ``sql`` is the only type there is."""

    type: str
    sql: str | None = None
    dialect: str | None = None


class ViewVersion(StoredModel):
    """One version of the view's definition. Never changed once written."""

    version_id: Int
    schema_id: Int
    timestamp_ms: Long
    summary: Mapping[str, str]
    representations: tuple[Representation, ...]
    default_namespace: tuple[str, ...]
    default_catalog: str | None = None


class VersionLogEntry(StoredModel):
    """When a version became current."""

    timestamp_ms: Long
    version_id: Int


class ViewSchema(StoredModel):
    """The view's columns, in Iceberg's types; only the names are looked into."""

    type: Literal["struct"] = "struct"
    schema_id: Int = 0
    fields: tuple[Mapping[str, Any], ...]

    @model_validator(mode="after")
    def _fields_are_columns(self) -> ViewSchema:
        if not all(isinstance(field.get("name"), str) and "type" in field for field in self.fields):
            raise ValueError("each field needs a name and a type")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(str(field["name"]) for field in self.fields)


class ViewMetadata(StoredModel):
    """A view metadata file."""

    view_uuid: Annotated[str, Field(min_length=1)]
    format_version: Int
    location: Annotated[str, Field(min_length=1)]
    schemas: tuple[ViewSchema, ...]
    current_version_id: Int
    versions: Annotated[tuple[ViewVersion, ...], Field(min_length=1)]
    version_log: tuple[VersionLogEntry, ...]
    properties: Mapping[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _ids_fit_together(self) -> ViewMetadata:
        ids = [version.version_id for version in self.versions]
        if len(set(ids)) != len(ids):
            raise ValueError("versions: a version-id occurs twice")
        if self.current_version_id not in ids:
            raise ValueError(f"current-version-id {self.current_version_id} is not in versions")
        known = {schema.schema_id for schema in self.schemas}
        if self.current_version.schema_id not in known:
            raise ValueError(f"schema-id {self.current_version.schema_id} of the current version is not in schemas")
        return self

    @property
    def current_version(self) -> ViewVersion:
        """The version in force."""
        return next(item for item in self.versions if item.version_id == self.current_version_id)

    @property
    def schema_(self) -> ViewSchema:
        """The current version's schema."""
        return next(item for item in self.schemas if item.schema_id == self.current_version.schema_id)

    def sql(self, *, view: str) -> str:
        """Return the current version's SQL in Spark's dialect.

        Raises:
            InvalidMetadataError: If the view has no text in this dialect.
        """
        for item in self.current_version.representations:
            if item.type == "sql" and item.sql and (item.dialect or DIALECT).lower() == DIALECT:
                return item.sql
        dialects = ", ".join(sorted(str(item.dialect) for item in self.current_version.representations)) or "none"
        raise InvalidMetadataError(
            f"view {view}, version {self.current_version_id}: no SQL in the dialect {DIALECT!r} (it has: {dialects})"
        )

    def to_bytes(self) -> bytes:
        """Write the metadata file; gzip only where the view's own property asks for it."""
        data = encode(self.document())
        return gzip.compress(data) if self.properties.get(_CODEC, "none").lower() == "gzip" else data

    @property
    def file_suffix(self) -> str:
        """File name ending that goes with :meth:`to_bytes`."""
        return ".gz.metadata.json" if self.properties.get(_CODEC, "none").lower() == "gzip" else ".metadata.json"


def parse_view(data: bytes, *, view: str, location: str) -> ViewMetadata:
    """Read a view metadata file, gzip or plain, version 1 or the older draft.

    Raises:
        InvalidMetadataError: Names the view, the file and the field.
    """
    source = f"view {view}, file {location}"
    raw = decode(data, source=source)
    version = raw.get("format-version")
    if type(version) is not int or version != FORMAT_VERSION:
        raise InvalidMetadataError(f"{source}: field 'format-version': {version!r} is not supported (only 1)")
    if "current-version-id" not in raw and "table-uuid" in raw:
        raise InvalidMetadataError(f"{source}: this is a table's metadata file, not a view's")
    return ViewMetadata.read(_lift_draft(raw, source), source=source)


def new_view(
    *,
    view_uuid: str,
    location: str,
    schema: Mapping[str, Any],
    sql: str,
    default_catalog: str,
    default_namespace: tuple[str, ...],
    properties: Mapping[str, str],
    summary: Mapping[str, str],
    now_ms: int,
) -> ViewMetadata:
    """Return the metadata of a new view with one version."""
    version = {
        "version-id": 1,
        "schema-id": 0,
        "timestamp-ms": now_ms,
        "summary": {"operation": "create", **summary},
        "representations": [{"type": "sql", "sql": sql, "dialect": DIALECT}],
        "default-catalog": default_catalog,
        "default-namespace": list(default_namespace),
    }
    document = {
        "view-uuid": view_uuid,
        "format-version": FORMAT_VERSION,
        "location": location,
        "schemas": [{**schema, "schema-id": 0}],
        "current-version-id": 1,
        "versions": [version],
        "version-log": [{"timestamp-ms": now_ms, "version-id": 1}],
        "properties": dict(properties),
    }
    return ViewMetadata.read(document, source=f"new view at {location}")


def replace_version(
    view: ViewMetadata,
    *,
    schema: Mapping[str, Any],
    sql: str,
    default_catalog: str,
    default_namespace: tuple[str, ...],
    summary: Mapping[str, str],
    now_ms: int,
) -> ViewMetadata:
    """Return the view with a new current version, the oldest versions dropped beyond the history size.

    A definition that equals the current one gives the same view: a version says that something changed.
    """
    current = view.current_version
    same_names = (current.default_catalog, current.default_namespace) == (default_catalog, default_namespace)
    texts = [item.sql for item in current.representations if (item.dialect or "").lower() == DIALECT]
    if same_names and texts == [sql] and _columns(view.schema_.document()) == _columns(schema):
        return view
    document = view.document()
    now = _not_before(view, now_ms)
    version_id = max(item.version_id for item in view.versions) + 1
    document["schemas"], schema_id = _with_schema(document["schemas"], schema)
    version = {
        "version-id": version_id,
        "schema-id": schema_id,
        "timestamp-ms": now,
        "summary": {"operation": "replace", **summary},
        "representations": [{"type": "sql", "sql": sql, "dialect": DIALECT}],
        "default-catalog": default_catalog,
        "default-namespace": list(default_namespace),
    }
    document["versions"] = [*document["versions"], version][-_history_size(view) :]
    # Schemas of dropped versions go too, or the file grows with every replace (apache/iceberg#18155).
    used = {item["schema-id"] for item in document["versions"]}
    document["schemas"] = [item for item in document["schemas"] if item.get("schema-id", 0) in used]
    return _made_current(document, version_id, now, source="replaced view")


def roll_back(view: ViewMetadata, version_id: int, *, now_ms: int) -> ViewMetadata:
    """Return the view with an older version current again.

    Raises:
        InvalidMetadataError: If the version is not retained.
    """
    return _made_current(view.document(), version_id, _not_before(view, now_ms), source="rolled back view")


def with_view_properties(view: ViewMetadata, updates: Mapping[str, str]) -> ViewMetadata:
    """Return the view with properties set; the version stays."""
    document = view.document()
    document["properties"] = {**document.get("properties", {}), **updates}
    return ViewMetadata.read(document, source="view properties")


def _made_current(document: dict[str, Any], version_id: int, now_ms: int, *, source: str) -> ViewMetadata:
    entry = {"timestamp-ms": now_ms, "version-id": version_id}
    changed = {**document, "current-version-id": version_id, "version-log": [*document["version-log"], entry]}
    return ViewMetadata.read(changed, source=source)


def _not_before(view: ViewMetadata, now_ms: int) -> int:
    last = max((entry.timestamp_ms for entry in view.version_log), default=0)
    return max(now_ms, last)


def _history_size(view: ViewMetadata) -> int:
    return max(whole_number(view.properties.get(_HISTORY_SIZE, ""), 10), 1)


def _columns(schema: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """Names and types; field ids differ from one analysis to the next and mean nothing in a view."""
    return [(field.get("name"), _without_ids(field.get("type"))) for field in schema.get("fields", [])]


def _without_ids(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_ids(item) for key, item in value.items() if key != "id" and not key.endswith("-id")}
    if isinstance(value, list | tuple):
        return [_without_ids(item) for item in value]
    return value


def _with_schema(schemas: list[dict[str, Any]], schema: Mapping[str, Any]) -> tuple[list[dict[str, Any]], int]:
    for item in schemas:
        if _columns(item) == _columns(schema):
            return schemas, int(item.get("schema-id", 0))
    schema_id = max((int(item.get("schema-id", 0)) for item in schemas), default=-1) + 1
    return [*schemas, {**schema, "schema-id": schema_id}], schema_id


def _lift_draft(raw: dict[str, Any], source: str) -> dict[str, Any]:
    """Turn the older draft's shape into version 1, in place; version 1 passes unchanged."""
    versions = raw.get("versions")
    if not isinstance(versions, list):
        return raw
    raw.setdefault("view-uuid", str(uuid.uuid5(uuid.NAMESPACE_URL, str(raw.get("location")))))
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
