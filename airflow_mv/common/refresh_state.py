# SPDX-License-Identifier: Apache-2.0
"""The refresh state in a snapshot's summary, by the draft "Materialized View Spec" (apache/iceberg#11041).

The draft is not merged, and its field names have changed. The form of June 2026 is what the branches for Spark
(apache/iceberg#9830) and Trino (trinodb/trino#31027) read and write. The form of October 2024 has one list of tables
and one of views, without names. The crate iceberg-rust-spec writes a form in between: ``refresh-version-id`` with
``source-states``. All are read, and a view property chooses which of the two dated ones is written.

The refresh state is for other engines. Our own record in the storage table's property remains authoritative.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from airflow_mv.core.refresh.inputs import RefreshInputs
from airflow_mv.core.spec.identifiers import Identifier, Selector
from airflow_mv.core.spec.materialized_view import SELECTS_FROM, BaseTable, NestedViewVersion, NonEmpty
from airflow_mv.core.spec.properties import refresh_state_of
from airflow_mv.core.spec.stored import Int, Long, StoredModel, decode_text
from airflow_mv.errors import InvalidIdentifierError, InvalidMetadataError

#: Key in the summary of a storage table's snapshot.
REFRESH_STATE_KEY = "refresh-state"
#: The form of June 2026.
_NOW = "2026-06"
_STATES = "source-states"
#: The lists of the form of October 2024, by the type of their records, and the field names of a record.
_LISTS = {"table": "source-table-states", "view": "source-view-states"}
_FIELDS_OF_2024 = ("uuid", "snapshot-id", "ref", "version-id")


class SourceTable(StoredModel):
    """A base table at the snapshot that was read."""

    type: Literal["table"] = "table"
    name: NonEmpty | None = None
    """``None`` in the form of October 2024, as is ``namespace``."""
    namespace: tuple[str, ...] = ()
    uuid: NonEmpty
    snapshot_id: Long
    """-1 for a table that was never written, as Spark and Trino record it."""
    catalog: str | None = None
    """``None`` means the materialized view's own catalog."""
    ref: str | None = None
    """The branch or tag; ``None`` means ``main``."""


class SourceView(StoredModel):
    """A plain view at the version that was expanded."""

    type: Literal["view"] = "view"
    name: NonEmpty | None = None
    namespace: tuple[str, ...] = ()
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
        tables: The base tables and their snapshots. A branch or tag is named by ``ref``, which a reader resolves.
            A fixed snapshot is not listed: it never makes the view stale, and a reader would compare it with the newest
            one. Nor are tables with an unknown uuid, and tables in no catalog, which the draft cannot name.
        nested_views: The plain views that the query is expanded through.
        catalog: The view's catalog, which is left out in the document.
    """
    states: list[dict[str, Any]] = []
    for table in tables:
        uuid = table.properties.get("table-uuid")
        source, selector = table.properties.get(SELECTS_FROM), _selector(table)
        fixed = selector is not None and selector.pins
        if uuid is not None and table.location is None and not fixed:
            named = _named(source or table.identifier, catalog) | ({"ref": selector.value} if selector else {})
            states.append({"type": "table", **named, "uuid": uuid, "snapshot-id": table.snapshot_reference})
    states += [
        {"type": "view", **_named(view.identifier, catalog), "uuid": view.uuid, "version-id": view.version_id}
        for view in nested_views
    ]
    document = {"view-version-id": version_id, "refresh-start-timestamp-ms": started_ms, "source-states": states}
    return RefreshState.read(document, source=REFRESH_STATE_KEY)


def written(state: RefreshState, form: str = _NOW) -> str:
    """Return the summary's text.

    Args:
        form: One of :data:`airflow_mv.core.spec.properties.REFRESH_STATES` but ``none``.
    """
    document = state.document()
    if form != _NOW:
        document["refresh-version-id"] = document.pop("view-version-id")
        states = document.pop(_STATES)
        for kind, key in _LISTS.items():
            listed = [item for item in states if item["type"] == kind]
            document[key] = [{field: item[field] for field in _FIELDS_OF_2024 if field in item} for item in listed]
    return json.dumps(document, separators=(",", ":"))


def parse(text: str, *, source: str) -> RefreshState:
    """Read the summary's text, in any form of the draft.

    Raises:
        InvalidMetadataError: Names ``source`` and the field.
    """
    document = dict(decode_text(text, source=source))
    if "view-version-id" not in document and "refresh-version-id" in document:
        document["view-version-id"] = document.pop("refresh-version-id")
    if _STATES not in document:
        lists = {kind: document.pop(key, []) for kind, key in _LISTS.items()}
        document[_STATES] = [
            {"type": kind, **item} if isinstance(item, dict) else item
            for kind, listed in lists.items()
            for item in (listed if isinstance(listed, list) else [listed])
        ]
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
    form = refresh_state_of(loaded.metadata.properties, view=str(loaded.identifier))
    if form is None:
        return {}
    state = refresh_state(
        version_id=loaded.metadata.current_version_id,
        started_ms=inputs.started_ms,
        tables=tables,
        nested_views=observation.nested_views,
        catalog=loaded.identifier.catalog,
    )
    return {REFRESH_STATE_KEY: written(state, form)}
