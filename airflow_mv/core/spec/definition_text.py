# SPDX-License-Identifier: Apache-2.0
"""A view's definition as one text, for a table property (layout ``table``).

The text is the view's metadata document as the Iceberg view specification defines it, so that any parser of view
metadata reads it. It is bounded: an unlimited version log is cut, and the oldest versions are dropped if the text is
too long.
"""

from __future__ import annotations

from typing import Any

from airflow_mv.core.spec.materialized_view import DEFINITION_PROPERTY
from airflow_mv.core.spec.stored import encode
from airflow_mv.core.spec.view import ViewMetadata, parse_view
from airflow_mv.errors import InvalidMetadataError, UnsupportedError

#: The most characters of a definition's text. Every commit to the table writes it again.
MAX_DEFINITION_TEXT = 256 * 1024
#: The most entries of the version log that are stored.
MAX_VERSION_LOG = 100


def definition_text(metadata: ViewMetadata, *, view: str) -> str:
    """Write a view's definition.

    Raises:
        UnsupportedError: The current version and the properties alone are too long.
    """
    document = metadata.document()
    document["version-log"] = document["version-log"][-MAX_VERSION_LOG:]
    while True:
        # ASCII: a metastore's database may have another character set for its copy of the property.
        text = encode(document).decode("ascii")
        if len(text) <= MAX_DEFINITION_TEXT:
            return text
        shorter = _without_oldest(document)
        if shorter is None:
            raise UnsupportedError(
                f"view {view}: its definition takes {len(text)} characters in the table's properties, and at most "
                f"{MAX_DEFINITION_TEXT} are stored there: shorten the query or the view's properties, or choose "
                "another layout"
            )
        document = shorter


def _without_oldest(document: dict[str, Any]) -> dict[str, Any] | None:
    """Return the document without its oldest version; ``None`` if it has only the current one."""
    current = document["current-version-id"]
    older = [item["version-id"] for item in document["versions"] if item["version-id"] != current]
    if not older:
        return None
    kept = [item for item in document["versions"] if item["version-id"] != min(older)]
    used = {item["schema-id"] for item in kept}
    ids = {item["version-id"] for item in kept}
    return {
        **document,
        "versions": kept,
        "schemas": [item for item in document["schemas"] if item.get("schema-id", 0) in used],
        "version-log": [item for item in document["version-log"] if item["version-id"] in ids],
    }


def parse_definition(text: str, *, view: str, location: str) -> ViewMetadata:
    """Read a view's definition.

    Args:
        text: From :func:`definition_text`.

    Raises:
        InvalidMetadataError: Names the view, the file and the field.
    """
    source = f"file {location}, property {DEFINITION_PROPERTY}"
    if len(text) > MAX_DEFINITION_TEXT:
        raise InvalidMetadataError(f"view {view}, {source}: more than {MAX_DEFINITION_TEXT} characters")
    data = text.encode("utf-8", "surrogatepass")
    return parse_view(data, view=view, location=f"{location}, property {DEFINITION_PROPERTY}")
