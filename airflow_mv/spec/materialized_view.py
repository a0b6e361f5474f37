# SPDX-License-Identifier: Apache-2.0
"""The two ``materialized_view_metadata`` records: the view's settings and the storage table's refreshes.

Source: "Iceberg Materialized View Spec", Design 1 (dev@iceberg mail, 2024), sections "common view
properties" and "storage table properties". Fields marked *ours* are additions that other readers keep
as unknown fields.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from airflow_mv.errors import InvalidMetadataError
from airflow_mv.spec.stored import Int, Long, StoredModel, decode_text

#: The property key, in the view's and in the storage table's properties.
PROPERTY = "materialized_view_metadata"
#: View property: keep every refresh as a record with its own tagged storage snapshot.
TIME_TRAVEL_PROPERTY = "airflow-mv.time-travel"

NonEmpty = Annotated[str, Field(min_length=1)]


class ViewSettings(StoredModel):
    """What the view says about its materialization."""

    storage_table_location: NonEmpty
    """Path of the storage table's current metadata file."""
    allow_stale_data: bool = False
    """Whether stored rows may be returned although base tables have moved on."""
    refresh_strategy: Literal["full", "incremental"] = "full"

    def repointed(self, location: str) -> ViewSettings:
        """Return these settings with another storage metadata file, unknown fields kept."""
        return type(self).read({**self.document(), "storage-table-location": location}, source=PROPERTY)


class NestedViewVersion(StoredModel):
    """A plain view that the query reads (ours): its version is part of a refresh's input."""

    identifier: NonEmpty
    uuid: NonEmpty
    version_id: Int


class BaseTable(StoredModel):
    """One base table as a refresh read it."""

    type: Literal["iceberg-metastore", "iceberg-filesystem", "deltalake-filesystem"]
    identifier: NonEmpty
    """Identifier in the SQL expression."""
    location: NonEmpty | None = None
    """Directory of the table; required for the two filesystem types."""
    snapshot_reference: Long
    """Snapshot id (Delta: version). -1 stands for a table without any snapshot."""
    properties: Mapping[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _location_of_a_directory(self) -> BaseTable:
        if self.type != "iceberg-metastore" and self.location is None:
            raise ValueError(f"location is required for type {self.type!r}")
        return self


class RefreshRecord(StoredModel):
    """One refresh operation and the snapshots it was computed from."""

    refresh_id: NonEmpty
    version_id: Int
    """The view's version at the time."""
    base_tables: tuple[BaseTable, ...]
    sequence_number: Long | None = None
    """Sequence number of the storage snapshot that holds the refreshed files."""
    nested_views: tuple[NestedViewVersion, ...] = ()
    """Ours: the plain views that the query was expanded through."""
    mode: str | None = None
    """Ours: the mode that ran."""
    reasons: tuple[Mapping[str, str], ...] = ()
    """Ours: why that mode, as ``{"code", "message"}``."""
    refreshed_at_ms: Long | None = None
    """Ours: when the refresh was published, ms since the epoch."""
    rows_written: Long | None = None
    """Ours: rows that the refresh wrote."""

    @property
    def snapshots(self) -> dict[str, int]:
        """Recorded snapshot reference by base table identifier."""
        return {table.identifier: table.snapshot_reference for table in self.base_tables}


class StorageState(StoredModel):
    """The storage table's refresh history, oldest first."""

    refreshes: Annotated[tuple[RefreshRecord, ...], Field(min_length=1)]
    current_refresh_id: NonEmpty

    @model_validator(mode="after")
    def _current_is_recorded(self) -> StorageState:
        ids = [record.refresh_id for record in self.refreshes]
        if len(set(ids)) != len(ids):
            raise ValueError("a refresh-id occurs twice in refreshes")
        if self.current_refresh_id not in ids:
            raise ValueError(f"current-refresh-id {self.current_refresh_id!r} is not in refreshes")
        return self

    @property
    def current(self) -> RefreshRecord:
        """The refresh that defines the current rows."""
        return self.find(self.current_refresh_id)

    def find(self, refresh_id: str) -> RefreshRecord:
        """Return the record of one refresh.

        Raises:
            KeyError: If the history holds no such id.
        """
        for record in self.refreshes:
            if record.refresh_id == refresh_id:
                return record
        raise KeyError(refresh_id)

    @classmethod
    def after(cls, previous: StorageState | None, record: RefreshRecord, *, keep_history: bool) -> StorageState:
        """Return the state that a new refresh leaves: its record alone, or added to the history."""
        older = previous.document() if previous else {}
        kept = [item for item in older.get("refreshes", []) if item["refresh-id"] != record.refresh_id]
        document = {
            **older,
            "refreshes": [*(kept if keep_history else []), record.document()],
            "current-refresh-id": record.refresh_id,
        }
        return cls.read(document, source=PROPERTY)


def parse_settings(properties: Mapping[str, str], *, view: str, location: str) -> ViewSettings | None:
    """Read the view's record, or ``None`` for a plain view.

    Raises:
        InvalidMetadataError: Names the view, its metadata file and the field.
    """
    text = properties.get(PROPERTY)
    if text is None:
        return None
    source = f"view {view}, file {location}, property {PROPERTY}"
    return ViewSettings.read(decode_text(text, source=source), source=source)


def parse_storage_state(properties: Mapping[str, str], *, view: str, location: str) -> StorageState | None:
    """Read the storage table's record, or ``None`` where it was never refreshed.

    Raises:
        InvalidMetadataError: Names the view, the storage metadata file and the field.
    """
    text = properties.get(PROPERTY)
    if text is None:
        return None
    source = f"view {view}, storage table file {location}, property {PROPERTY}"
    document = decode_text(text, source=source)
    if document.get("refreshes") == []:
        # Another writer's way to say "never refreshed": legal for the format, no current refresh to name.
        return None
    return StorageState.read(document, source=source)


def property_text(record: ViewSettings | StorageState) -> str:
    """Write a record as the property's value."""
    try:
        return json.dumps(record.document(), separators=(",", ":"))
    except ValueError as error:
        raise InvalidMetadataError(f"{PROPERTY}: {error}") from None
