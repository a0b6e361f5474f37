# SPDX-License-Identifier: Apache-2.0
"""Find the properties of a view's table that another program has removed or changed.

A table whose properties are lost is known by its branches and tags: the tag of the definition, and that of the current
refresh, say which definition and which record the table has. Its metadata log names its earlier metadata files, and the
newest one with exactly these has the properties as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from airflow_mv.core.catalog.locations import lies_in
from airflow_mv.core.catalog.tables import view_in_table
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import (
    DEFINITION_ID_PROPERTY,
    DEFINITION_PROPERTY,
    LOG_PROPERTY,
    PROPERTY,
    STORAGE_OF_PROPERTY,
    current_tag,
    definition_tag,
    has_log,
    parse_storage_state,
)
from airflow_mv.core.spec.table_metadata import TableMetadata
from airflow_mv.errors import InvalidMetadataError

#: The most earlier metadata files that are read, newest first.
_EARLIER = 50
_DEFINITION, _CURRENT = definition_tag(""), current_tag("")
_OWN = (STORAGE_OF_PROPERTY, DEFINITION_PROPERTY, DEFINITION_ID_PROPERTY, PROPERTY, LOG_PROPERTY)


class LostProperties(NamedTuple):
    """The properties that another program has removed or changed.

    Args:
        properties: The properties as they were.
        location: The metadata file that has them.
        until_ms: When the next metadata file followed, ms since the epoch.
        requires: The snapshot of each tag that proves whose properties they are.
    """

    properties: Mapping[str, str]
    location: str
    until_ms: int
    requires: Mapping[str, int]

    @property
    def names(self) -> str:
        """The names of the properties, for messages."""
        return ", ".join(self.properties)


def lost_properties(
    view: Identifier, location: str, table: TableMetadata, read: Callable[[str], TableMetadata | None]
) -> LostProperties | None:
    """Return the lost properties of a view's table; ``None`` if none are lost, or no earlier file has them.

    Args:
        read: Reads an earlier metadata file; ``None`` if that cannot be read.
    """
    tags = {name: ref.snapshot_id for name, ref in table.refs.items() if name.startswith((_DEFINITION, _CURRENT))}
    if not tags or _is_whole(view, location, table, tags):
        return None
    until_ms, folder = table.last_updated_ms, location.rpartition("/")[0]
    for entry in table.metadata_log[: -_EARLIER - 1 : -1]:
        earlier = read(entry.metadata_file) if lies_in(entry.metadata_file, (folder,)) else None
        same = earlier is not None and earlier.table_uuid == table.table_uuid
        if earlier is not None and same and _is_whole(view, entry.metadata_file, earlier, tags):
            own = {key: earlier.properties[key] for key in _OWN if key in earlier.properties}
            lost = {key: text for key, text in own.items() if table.properties.get(key) != text}
            return LostProperties(lost, entry.metadata_file, until_ms, tags) if lost else None
        until_ms = entry.timestamp_ms
    return None


def _is_whole(view: Identifier, location: str, table: TableMetadata, tags: Collection[str]) -> bool:
    """Whether a state of a table names the view, and has the definition, record and log that belong to the tags."""
    if table.properties.get(STORAGE_OF_PROPERTY) != view.within_catalog:
        return False
    try:
        found = view_in_table(view, location, table)
        state = parse_storage_state(table.properties, view=str(view), location=location)
    except InvalidMetadataError:
        return False
    if state is not None and not has_log(table.properties):
        return False
    has = {*(found.definition_tags if found is not None else ()), state.tag if state else ""}
    return has.issuperset(tags)
