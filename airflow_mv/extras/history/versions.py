# SPDX-License-Identifier: Apache-2.0
"""The definitions that a view has had, from ``versions`` and ``version-log`` of its metadata.

Source: Iceberg ``format/view-spec.md``, "Versions" and "Version Log".
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.times import from_ms, parse_time, to_ms
from airflow_mv.core.spec.view import CHANGE_ID, ViewMetadata, ViewVersion
from airflow_mv.core.sql.types import spark_type
from airflow_mv.errors import SnapshotNotFoundError

_ENGINE = ("engine-name", "engine-version")


def versions(
    catalog: MaterializedViewCatalog, view: str | Identifier, *, at: datetime | None = None
) -> list[dict[str, Any]]:
    """Return the retained versions of a view's definition, oldest first. Plain views also have versions.

    Args:
        at: Only the version that was current at this time; a time without a zone is UTC.

    Raises:
        SnapshotNotFoundError: The view's version log begins later.
    """
    identifier = catalog.identify(view)
    metadata = catalog.load(identifier).metadata
    if at is not None:
        return [_document(metadata, version_at(metadata, at, view=str(identifier)))]
    return [_document(metadata, item) for item in sorted(metadata.versions, key=lambda item: item.version_id)]


def version_at(metadata: ViewMetadata, at: datetime, *, view: str) -> ViewVersion:
    """Return the version that was current at a time: that of the last entry of the log at or before it.

    Args:
        at: The time; without a zone it is UTC.

    Raises:
        SnapshotNotFoundError: The log begins later. The message has its first time.
    """
    time = parse_time(at)
    time_ms = to_ms(time)
    known = {item.version_id: item for item in metadata.versions}
    entries = [entry for entry in metadata.version_log if entry.version_id in known]
    past = [entry for entry in entries if entry.timestamp_ms <= time_ms]
    if past:
        return known[past[-1].version_id]
    oldest = min((entry.timestamp_ms for entry in entries), default=None)
    begins = "is empty" if oldest is None else f"begins at {from_ms(oldest).isoformat()}"
    raise SnapshotNotFoundError(
        f"view {view}: cannot determine the version that was current at {time.isoformat()}: its version log {begins}"
    )


def _document(metadata: ViewMetadata, version: ViewVersion) -> dict[str, Any]:
    schema = next((item for item in metadata.schemas if item.schema_id == version.schema_id), None)
    log = [entry for entry in metadata.version_log if entry.version_id == version.version_id]
    return {
        "version_id": version.version_id,
        "current": version.version_id == metadata.current_version_id,
        "created_at": from_ms(version.timestamp_ms).isoformat(),
        "current_since": [from_ms(entry.timestamp_ms).isoformat() for entry in log],
        "operation": version.summary.get("operation"),
        "engine": " ".join(version.summary[key] for key in _ENGINE if key in version.summary) or None,
        "summary": {key: text for key, text in version.summary.items() if key != CHANGE_ID},
        "texts": version.texts,
        "columns": [_column(field) for field in (schema.fields if schema else ())],
        "default_catalog": version.default_catalog,
        "default_namespace": list(version.default_namespace),
    }


def _column(field: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": field["name"], "type": spark_type(field["type"]), "comment": field.get("doc")}
