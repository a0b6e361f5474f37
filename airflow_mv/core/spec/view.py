# SPDX-License-Identifier: Apache-2.0
"""Iceberg view metadata: read version 1 and the older draft, write version 1; changes are functions.

Source: Iceberg ``format/view-spec.md``; where that is silent, what Java's ``ViewMetadata.Builder`` does.
"""

from __future__ import annotations

import gzip
import uuid
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from airflow_mv.core.spec.stored import (
    MAX_VIEW_BYTES,
    MAX_VIEW_MARKS,
    FirstFault,
    Int,
    Long,
    StoredModel,
    Texts,
    decode,
    encode,
    newer,
    shown,
    whole_number,
)
from airflow_mv.errors import InvalidMetadataError, UnsupportedError

FORMAT_VERSION = 1
DIALECT = "spark"
#: View property: the view's comment, as Spark and other engines show it.
COMMENT_PROPERTY = "comment"
#: Summary key of a version: the id of the change that made it.
CHANGE_ID = "airflow-mv.change-id"
_HISTORY_SIZE = "version.history.num-entries"
_CODEC = "write.metadata.compression-codec"
_FOLDER = "write.metadata.path"
_DROP_DIALECT = "replace.drop-dialect.allowed"
_STORAGE_TABLE = "storage-table"
#: The fields of a version that define the view, without its columns.
_DEFINITION = ("representations", "default-catalog", "default-namespace")


class Representation(StoredModel):
    """How the view is expressed. ``sql`` is the only type that the format defines."""

    type: str
    sql: str | None = None
    dialect: str | None = None


class ViewVersion(StoredModel):
    """One version of the view's definition. Never changed once written."""

    version_id: Int
    schema_id: Int
    timestamp_ms: Long
    summary: Texts
    representations: Annotated[tuple[Representation, ...], FirstFault]
    default_namespace: Annotated[tuple[str, ...], FirstFault]
    default_catalog: str | None = None
    storage_table: Any = None
    """Of the draft of materialized views: the storage table's namespace and name, as another writer may have it."""

    @property
    def stored_in(self) -> Any:
        """The field ``storage-table``."""
        return self.storage_table

    @property
    def texts(self) -> dict[str, str]:
        """The query in each SQL dialect; a dialect's name is in lower case."""
        return {(item.dialect or DIALECT).lower(): item.sql for item in self.representations if item.sql}


class VersionLogEntry(StoredModel):
    """When a version became current."""

    timestamp_ms: Long
    version_id: Int


class ViewSchema(StoredModel):
    """The view's columns, in Iceberg's types. Only the names are checked."""

    type: Literal["struct"] = "struct"
    schema_id: Int = 0
    fields: Annotated[tuple[Mapping[str, Any], ...], FirstFault]

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(str(field["name"]) for field in self.fields)


class ViewMetadata(StoredModel):
    """A view metadata file."""

    view_uuid: Annotated[str, Field(min_length=1)]
    format_version: Int
    location: Annotated[str, Field(min_length=1)]
    schemas: Annotated[tuple[ViewSchema, ...], FirstFault]
    current_version_id: Int
    versions: Annotated[tuple[ViewVersion, ...], Field(min_length=1), FirstFault]
    version_log: Annotated[tuple[VersionLogEntry, ...], FirstFault]
    properties: Texts = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits_together(self) -> ViewMetadata:
        for number, schema in enumerate(self.schemas):
            if not all(isinstance(field.get("name"), str) and "type" in field for field in schema.fields):
                raise ValueError(f"schemas.{number}: each field needs a name and a type")
        ids = [version.version_id for version in self.versions]
        if len(set(ids)) != len(ids):
            raise ValueError("versions: a version-id occurs twice")
        if self.current_version_id not in ids:
            raise ValueError(f"current-version-id {self.current_version_id} is not in versions")
        known = {schema.schema_id for schema in self.schemas}
        if self.current_version.schema_id not in known:
            raise ValueError(f"schema-id {self.current_version.schema_id} of the current version is not in schemas")
        return self

    @cached_property
    def current_version(self) -> ViewVersion:
        """The current version."""
        return next(item for item in self.versions if item.version_id == self.current_version_id)

    @cached_property
    def schema_(self) -> ViewSchema:
        """The current version's schema."""
        return next(item for item in self.schemas if item.schema_id == self.current_version.schema_id)

    def has_version_of(self, change_id: str | None) -> bool:
        """Whether a change made one of the versions, see :data:`CHANGE_ID`."""
        return change_id is not None and any(item.summary.get(CHANGE_ID) == change_id for item in self.versions)

    def sql(self, *, view: str) -> str:
        """Return the current version's SQL in Spark's dialect.

        Raises:
            InvalidMetadataError: The view has no text in this dialect, or more than one.
        """
        mine = [item for item in self.current_version.representations if (item.dialect or DIALECT).lower() == DIALECT]
        texts = {item.sql for item in mine if item.type == "sql" and item.sql}
        if len(texts) > 1:
            raise InvalidMetadataError(
                f"view {view}, version {self.current_version_id}: two texts in the dialect {DIALECT!r}; one is allowed"
            )
        if texts:
            return texts.pop()
        dialects = (
            shown(", ".join(sorted(str(item.dialect) for item in self.current_version.representations))) or "none"
        )
        raise InvalidMetadataError(
            f"view {view}, version {self.current_version_id}: no SQL in the dialect {DIALECT!r} (it has: {dialects}). "
            f"`airflow-mv create {view} --transpile` lets sqlglot translate it"
        )

    @cached_property
    def metadata_folder(self) -> str:
        """Where the view's metadata files are written."""
        return (self.properties.get(_FOLDER) or f"{self.location.rstrip('/')}/metadata").rstrip("/")

    def to_bytes(self) -> bytes:
        """Return the bytes of the metadata file. It is compressed only if the view's property requires gzip."""
        data = encode(self.document())
        return gzip.compress(data) if self.properties.get(_CODEC, "none").lower() == "gzip" else data

    @property
    def file_suffix(self) -> str:
        """The file name's ending for :meth:`to_bytes`."""
        return ".gz.metadata.json" if self.properties.get(_CODEC, "none").lower() == "gzip" else ".metadata.json"


def parse_view(data: bytes, *, view: str, location: str) -> ViewMetadata:
    """Read a view metadata file, gzip or plain, version 1 or the older draft.

    Raises:
        InvalidMetadataError: Names the view, the file and the field.
        NewerFormatError: The file is complete, and of a later version.
    """
    source = f"view {view}, file {location}"
    raw = decode(data, source=source, limit=MAX_VIEW_BYTES, marks=MAX_VIEW_MARKS)
    if "current-version-id" not in raw and "table-uuid" in raw:
        raise InvalidMetadataError(f"{source}: this is a table's metadata file, not a view's")
    version = raw.get("format-version")
    if type(version) is int and version > FORMAT_VERSION:
        raise newer(f"{source}: field 'format-version': {version} is not supported (only {FORMAT_VERSION})")
    if type(version) is not int or version != FORMAT_VERSION:
        raise InvalidMetadataError(
            f"{source}: field 'format-version': {shown(repr(version))} is not supported (only 1)"
        )
    return ViewMetadata.read(lift_draft(raw, source), source=source)


def new_view(
    *,
    view_uuid: str,
    location: str,
    schema: Mapping[str, Any],
    sql: str | Mapping[str, str],
    default_catalog: str | None,
    default_namespace: tuple[str, ...],
    properties: Mapping[str, str],
    summary: Mapping[str, str],
    now_ms: int,
    storage_table: Mapping[str, Any] | None = None,
) -> ViewMetadata:
    """Return the metadata of a new view with one version.

    Args:
        view_uuid: Its identity.
        location: Its directory.
        sql: The query, in Spark's dialect or, as a mapping, in each dialect.
        default_catalog: The catalog of names without one; ``None`` for the view's own.
        default_namespace: The namespace of names without one.
        summary: Additional fields of the version's summary.
        now_ms: The time of its creation.
        storage_table: The version's field ``storage-table``.
    """
    version = {
        "version-id": 1,
        "schema-id": 0,
        "timestamp-ms": now_ms,
        "summary": {"operation": "create", **summary},
        **_definition(sql, default_catalog, default_namespace, storage_table),
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
    sql: str | Mapping[str, str],
    default_catalog: str | None,
    default_namespace: tuple[str, ...],
    summary: Mapping[str, str],
    now_ms: int,
    storage_table: Mapping[str, Any] | None = None,
) -> ViewMetadata:
    """Return the view with a new current version. The oldest versions beyond the history size are dropped.

    A definition that equals the current one changes nothing, and one that equals an older version makes that version
    current again, because a new version means that something changed. See :func:`new_view` for the arguments.

    Raises:
        UnsupportedError: The view has a text in another dialect, which would be lost.
    """
    definition = _definition(sql, default_catalog, default_namespace, storage_table)
    same = _version_like(view, definition, schema)
    if same is not None:
        return view if same == view.current_version_id else roll_back(view, same, now_ms=now_ms)
    return _with_version(view, definition, schema, summary, now_ms)


def with_storage_table(
    view: ViewMetadata, storage_table: Mapping[str, Any] | None, *, summary: Mapping[str, str], now_ms: int
) -> ViewMetadata:
    """Return the view with a storage table in its current version, which becomes a new version if it has another one.

    See :func:`new_view` for the arguments.
    """
    current = view.current_version
    if storage_table is None or current.stored_in == storage_table:
        return view
    stored = current.document()
    definition: dict[str, Any] = {key: stored[key] for key in _DEFINITION if key in stored}
    definition[_STORAGE_TABLE] = dict(storage_table)
    return _with_version(view, definition, view.schema_.document(), summary, now_ms)


def _with_version(
    view: ViewMetadata,
    definition: Mapping[str, Any],
    schema: Mapping[str, Any],
    summary: Mapping[str, str],
    now_ms: int,
) -> ViewMetadata:
    document = view.document()
    now = _not_before(view, now_ms)
    version_id = max(item.version_id for item in view.versions) + 1
    document["schemas"], schema_id = _with_schema(document["schemas"], schema)
    version = {
        "version-id": version_id,
        "schema-id": schema_id,
        "timestamp-ms": now,
        "summary": {"operation": "replace", **summary},
        **definition,
    }
    # Sorted by id, because other writers list them in another order.
    size = max(whole_number(view.properties.get(_HISTORY_SIZE, ""), 10), 1)
    kept = sorted((item.version_id for item in view.versions), reverse=True)[: size - 1]
    document["versions"] = [item for item in document["versions"] if item["version-id"] in kept] + [version]
    # Schemas of dropped versions go too, or the file grows with every replace (apache/iceberg#18155).
    used = {item["schema-id"] for item in document["versions"]}
    document["schemas"] = [item for item in document["schemas"] if item.get("schema-id", 0) in used]
    document["version-log"] = _log_of_retained(document)
    return _made_current(view, document, version_id, now, source="replaced view")


def roll_back(view: ViewMetadata, version_id: int, *, now_ms: int) -> ViewMetadata:
    """Return the view with an older version current again.

    Raises:
        InvalidMetadataError: The version is not retained.
        UnsupportedError: It lacks a dialect that the current version has.
    """
    return _made_current(view, view.document(), version_id, _not_before(view, now_ms), source="rolled back view")


def with_view_properties(view: ViewMetadata, updates: Mapping[str, str]) -> ViewMetadata:
    """Return the view with properties set. The version does not change."""
    document = view.document()
    document["properties"] = {**document.get("properties", {}), **updates}
    return ViewMetadata.read(document, source="view properties")


def _definition(
    sql: str | Mapping[str, str],
    default_catalog: str | None,
    default_namespace: tuple[str, ...],
    storage_table: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the part of a version that defines the view."""
    texts = {DIALECT: sql} if isinstance(sql, str) else sql
    return {
        "representations": [{"type": "sql", "sql": text, "dialect": dialect} for dialect, text in texts.items()],
        **({} if default_catalog is None else {"default-catalog": default_catalog}),
        "default-namespace": list(default_namespace),
        **({} if storage_table is None else {_STORAGE_TABLE: dict(storage_table)}),
    }


def _version_like(view: ViewMetadata, definition: Mapping[str, Any], schema: Mapping[str, Any]) -> int | None:
    """Return the id of a version with the same definition, the current one first.

    Additional dialects do not matter, nor does a missing storage table: other writers drop the field.
    """
    wanted = {item["dialect"].lower(): item["sql"] for item in definition["representations"]}
    names = (definition.get("default-catalog"), tuple(definition["default-namespace"]))
    schemas = {item.schema_id for item in view.schemas if _columns(item.document()) == _columns(schema)}
    newest_first = sorted(view.versions, key=lambda item: item.version_id, reverse=True)
    for item in (view.current_version, *newest_first):
        same_names = (item.default_catalog, item.default_namespace) == names
        if item.stored_in not in (None, definition.get(_STORAGE_TABLE)):
            continue
        if same_names and item.schema_id in schemas and wanted.items() <= item.texts.items():
            return item.version_id
    return None


def _log_of_retained(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the log after its last entry of a dropped version, as Iceberg does, so that it does not grow forever."""
    retained = {item["version-id"] for item in document["versions"]}
    log: list[dict[str, Any]] = document["version-log"]
    dropped = [number for number, entry in enumerate(log) if entry["version-id"] not in retained]
    return log[dropped[-1] + 1 :] if dropped else log


def _made_current(
    view: ViewMetadata, document: dict[str, Any], version_id: int, now_ms: int, *, source: str
) -> ViewMetadata:
    entry = {"timestamp-ms": now_ms, "version-id": version_id}
    changed = {**document, "current-version-id": version_id, "version-log": [*document["version-log"], entry]}
    made = ViewMetadata.read(changed, source=source)
    lost = sorted(view.current_version.texts.keys() - made.current_version.texts.keys())
    if lost and view.properties.get(_DROP_DIALECT, "false").lower() != "true":
        raise UnsupportedError(
            f"{source} at {view.location}: the current version has SQL in the dialect {', '.join(lost)} too, which "
            f"would be lost. Set the view property {_DROP_DIALECT}=true to drop it"
        )
    return made


def _not_before(view: ViewMetadata, now_ms: int) -> int:
    last = max((entry.timestamp_ms for entry in view.version_log), default=0)
    return max(now_ms, last)


def _columns(schema: Mapping[str, Any]) -> list[tuple[Any, Any, Any]]:
    """Names, types and comments, without field ids, which differ between analyses and mean nothing in a view."""
    fields = schema.get("fields", [])
    return [(field.get("name"), _without_ids(field.get("type")), field.get("doc") or None) for field in fields]


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


def lift_draft(raw: dict[str, Any], source: str) -> dict[str, Any]:
    """Convert the older draft's form into version 1, in place. Version 1 is not changed."""
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
