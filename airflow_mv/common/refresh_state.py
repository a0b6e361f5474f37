# SPDX-License-Identifier: Apache-2.0
"""The refresh state in a snapshot's summary, by the draft "Materialized View Spec" (apache/iceberg#11041).

The draft is not merged, and its field names have changed. This module writes the form of June 2026, as a named
dialect. It also reads ``refresh-version-id``, an earlier name of ``view-version-id``, which the crate
iceberg-rust-spec writes. The refresh state is for other engines. Our own record in the storage table's property
remains authoritative.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from airflow_mv.core.refresh.inputs import RefreshInputs
from airflow_mv.core.spec.identifiers import Identifier, Selector
from airflow_mv.core.spec.materialized_view import NO_SNAPSHOT, SELECTS_FROM, BaseTable, NestedViewVersion, NonEmpty
from airflow_mv.core.spec.properties import refresh_state_of
from airflow_mv.core.spec.stored import Int, Long, StoredModel, decode_text
from airflow_mv.errors import InvalidIdentifierError, InvalidMetadataError

#: Key in the summary of a storage table's snapshot.
REFRESH_STATE_KEY = "refresh-state"


class SourceTable(StoredModel):
    """A base table at the snapshot that was read."""

    type: Literal["table"] = "table"
    name: NonEmpty
    namespace: tuple[str, ...]
    uuid: NonEmpty
    snapshot_id: Long
    catalog: str | None = None
    """``None`` means the materialized view's own catalog."""
    ref: str | None = None
    """``None`` means ``main``."""


class SourceView(StoredModel):
    """A plain view at the version that was expanded."""

    type: Literal["view"] = "view"
    name: NonEmpty
    namespace: tuple[str, ...]
    uuid: NonEmpty
    version_id: Int
    catalog: str | None = None


class RefreshState(StoredModel):
    """One refresh in the draft's format."""

    view_version_id: Int
    refresh_start_timestamp_ms: Long
    source_states: tuple[Annotated[SourceTable | SourceView, Field(discriminator="type")], ...]


def refresh_state(
    *,
    version_id: int,
    started_ms: int,
    tables: Iterable[BaseTable],
    nested_views: Sequence[NestedViewVersion],
    catalog: str,
) -> RefreshState:
    """Return a refresh in the draft's format.

    Args:
        started_ms: When the refresh began, ms since the epoch.
        tables: The base tables and their snapshots. Tables that were never written are not listed.
            Tables with an unknown uuid are not listed either, nor tables in no catalog, which the draft cannot name,
            nor fixed snapshots, which a reader would compare with the newest one.
        nested_views: The plain views that the query is expanded through.
        catalog: The view's catalog, which is left out in the document.
    """
    states: list[dict[str, Any]] = []
    for table in tables:
        uuid = table.properties.get("table-uuid")
        source, selector = table.properties.get(SELECTS_FROM), _selector(table)
        fixed = selector is not None and selector.pins
        if uuid is not None and table.snapshot_reference != NO_SNAPSHOT and table.location is None and not fixed:
            named = _named(source or table.identifier, catalog) | ({"ref": selector.value} if selector else {})
            states.append({"type": "table", **named, "uuid": uuid, "snapshot-id": table.snapshot_reference})
    states += [
        {"type": "view", **_named(view.identifier, catalog), "uuid": view.uuid, "version-id": view.version_id}
        for view in nested_views
    ]
    document = {"view-version-id": version_id, "refresh-start-timestamp-ms": started_ms, "source-states": states}
    return RefreshState.read(document, source=REFRESH_STATE_KEY)


def written(state: RefreshState) -> str:
    """Return the summary's text."""
    return json.dumps(state.document(), separators=(",", ":"))


def parse(text: str, *, source: str) -> RefreshState:
    """Read the summary's text, with either name of the view's version.

    Raises:
        InvalidMetadataError: Names ``source`` and the field.
    """
    document = dict(decode_text(text, source=source))
    if "view-version-id" not in document and "refresh-version-id" in document:
        document["view-version-id"] = document.pop("refresh-version-id")
    if "source-states" not in document:
        document["source-states"] = []
    return RefreshState.read(document, source=source)


def _selector(table: BaseTable) -> Selector | None:
    return Identifier.parse(table.identifier).selector if SELECTS_FROM in table.properties else None


def _named(text: str, catalog: str) -> dict[str, Any]:
    try:
        name = Identifier.parse(text)
    except InvalidIdentifierError as error:
        raise InvalidMetadataError(f"{REFRESH_STATE_KEY}: {error}") from None
    other = {"catalog": name.catalog} if name.catalog != catalog else {}
    return {"name": name.name, "namespace": list(name.namespace), **other}


def summary_fields(inputs: RefreshInputs) -> dict[str, str]:
    """Return the summary fields that the draft specification defines for a storage table's snapshot."""
    observation = inputs.observation
    loaded, record = observation.view, observation.record
    tables = tuple(table.record() for table in observation.tables)
    if observation.interval is not None:
        # The draft knows refreshes of whole views only. For its readers the last one of these is the newest.
        if record is None or record.only_intervals:
            return {}
        tables = record.base_tables
    if refresh_state_of(loaded.metadata.properties, view=str(loaded.identifier)) is None:
        return {}
    state = refresh_state(
        version_id=loaded.metadata.current_version_id,
        started_ms=inputs.started_ms,
        tables=tables,
        nested_views=observation.nested_views,
        catalog=loaded.identifier.catalog,
    )
    return {REFRESH_STATE_KEY: written(state)}
