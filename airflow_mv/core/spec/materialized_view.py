# SPDX-License-Identifier: Apache-2.0
"""The two ``materialized_view_metadata`` records: the view's settings and the storage table's refreshes.

Source: "Iceberg Materialized View Spec", Design 1 (dev@iceberg mail, 2024), sections "common view
properties" and "storage table properties". Fields marked *ours* are additions that other readers keep
as unknown fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from airflow_mv.core.spec.identifiers import FORMATS, METASTORE, Identifier, kind_of, split
from airflow_mv.core.spec.interval import Interval
from airflow_mv.core.spec.stored import FirstFault, Int, Long, Numbers, StoredModel, Texts, decode_text
from airflow_mv.errors import InvalidIdentifierError, InvalidMetadataError

#: Snapshot reference of a table that was never written.
NO_SNAPSHOT = -1
#: Keys in a recorded base table's properties.
TABLE_UUID = "table-uuid"
SCHEMA_ID = "schema-id"

#: The property key, in the view's and in the storage table's properties.
PROPERTY = "materialized_view_metadata"
#: View properties of the registered layout: the storage table's namespace and name, and its uuid.
STORAGE_TABLE_PROPERTY = "airflow-mv.storage-table"
STORAGE_TABLE_UUID_PROPERTY = "airflow-mv.storage-table-uuid"
#: View property of the registered layout: the folder of the storage table's metadata files, as the catalog chose it.
STORAGE_FOLDER_PROPERTY = "airflow-mv.storage-table-folder"
#: View property: the id of the creation that was applied. A REST server chooses the view's uuid itself.
CREATION_ID_PROPERTY = "airflow-mv.creation-id"
#: Table property of a storage table in the catalog: the namespace and name of the one view that may write to it.
STORAGE_OF_PROPERTY = "airflow-mv.storage-of"
#: Table properties of the layout ``table``: the view's definition, and the id of the change that wrote it.
DEFINITION_PROPERTY = "airflow-mv.definition"
DEFINITION_ID_PROPERTY = "airflow-mv.definition-id"

#: View property: the partitioning that the next recomputed rows get, and the partition spec that it replaces (ours).
PARTITIONING_PROPERTY = "airflow-mv.partitioning"

#: View property of an adopted table: its last sequence number before the adoption. What has no later one is not ours.
ADOPTED_PROPERTY = "airflow-mv.adopted"
#: Properties of a view that only this package writes.
OWN_PROPERTIES = frozenset(
    {
        STORAGE_TABLE_PROPERTY,
        STORAGE_TABLE_UUID_PROPERTY,
        STORAGE_FOLDER_PROPERTY,
        CREATION_ID_PROPERTY,
        STORAGE_OF_PROPERTY,
        DEFINITION_PROPERTY,
        DEFINITION_ID_PROPERTY,
        PARTITIONING_PROPERTY,
        ADOPTED_PROPERTY,
    }
)
#: The tag on the rows that an adopted table had before.
ADOPTED_TAG = "airflow_mv_adopted"

#: Key in a base table's ``properties``: its metadata file at the snapshot that was read.
METADATA_LOCATION = "metadata-location"

#: Key in a base table's ``properties``: the table whose branch, tag or snapshot the identifier selects.
SELECTS_FROM = "selects-from"
#: Key in a base table's ``properties``: the materialized view whose rows the table has.
VIEW = "view"
#: Key in a base table's ``properties``: the catalog in which the writer has found the table, if it is not the view's.
CATALOG = "catalog"
#: What that catalog is, for a program that has it under another name: keys in ``properties`` begin so.
CATALOG_PREFIX = "catalog-"
#: Key in a stored base table's ``properties``: its full name, beside ``identifier``, which is as in the SQL.
FULL_NAME = "full-name"
#: The same in memory, where ``identifier`` is the full name: the name as in the SQL.
SQL_IDENTIFIER = "sql-identifier"
#: A name with at most so many parts has no catalog.
_WITHOUT_CATALOG = 2

_REFS = "airflow_mv_"
_KEEP = "keep_"
#: Branches and tags of a layout. Tags that keep snapshots belong to the views that read the table.
_LAYOUT_REF = re.compile(rf"{_REFS}(?!{_KEEP}).*", re.ASCII)
_OWN_REF = re.compile(rf"{_LAYOUT_REF.pattern}|refresh-[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}", re.ASCII)
_STAGING_BRANCH = re.compile(r"airflow_mv_[0-9a-f]{8}(_[0-9a-f]{4}){3}_[0-9a-f]{12}_[0-9a-f]{8}", re.ASCII)

#: The most rollbacks that a storage state keeps.
KEPT_ROLLBACKS = 50

NonEmpty = Annotated[str, Field(min_length=1)]
#: Property of a storage table: the records of past refreshes, oldest first.
LOG_PROPERTY = "airflow-mv.refresh-log"
#: The most bytes of the property; older records are dropped. Each refresh writes it again.
MAX_LOG_BYTES = 256 * 1024
_REFRESHES = "refreshes"


class ViewSettings(StoredModel):
    """The view's settings for its materialization."""

    storage_table_location: NonEmpty | None = None
    """Path of the storage table's current metadata file. ``None`` if the storage table is a table of a catalog, which
    has the path: a refresh commits to that table and does not write the view, so a path would be of an earlier state.
    There the property ``airflow-mv.storage-table`` names the table."""
    allow_stale_data: bool = False
    """Whether stored rows may be returned although base tables have changed since."""
    refresh_strategy: Literal["full", "incremental"] = "full"

    def repointed(self, location: str | None) -> ViewSettings:
        """Return these settings with another storage metadata file, or with none; unknown fields are kept."""
        document = self.document()
        document.pop("storage-table-location", None)
        named = {} if location is None else {"storage-table-location": location}
        return type(self).read({**named, **document}, source=PROPERTY)


class NestedViewVersion(StoredModel):
    """A plain view that the query reads (ours): its version is part of a refresh's input."""

    identifier: NonEmpty
    uuid: NonEmpty
    version_id: Int


class BaseTable(StoredModel):
    """One base table as a refresh read it."""

    type: Literal["iceberg-metastore", "iceberg-filesystem", "deltalake-filesystem"]
    identifier: NonEmpty
    """Identifier in the SQL expression, as it is stored. In a state that was loaded it is the full name."""
    location: NonEmpty | None = None
    """Directory of the table; required for the two filesystem types."""
    snapshot_reference: Long
    """Snapshot id (Delta: version). -1 stands for a table without any snapshot."""
    properties: Texts = Field(default_factory=dict)

    @model_validator(mode="after")
    def _location_of_a_directory(self) -> BaseTable:
        if self.type != METASTORE.type and self.location is None:
            raise ValueError(f"location is required for type {self.type!r}")
        return self

    def full_name(self, default_catalog: str, default_namespace: tuple[str, ...]) -> str:
        """Return the table's full name. Another writer may record it as it stands in the SQL, which may be shorter.

        Args:
            default_catalog: The view's, for a record whose properties do not name another one.
        """
        try:
            return str(self._full_name(default_catalog, default_namespace))
        except InvalidIdentifierError:
            return self.identifier

    def _full_name(self, default_catalog: str, default_namespace: tuple[str, ...]) -> Identifier:
        if (full := self.properties.get(FULL_NAME)) is not None:
            return Identifier.parse(full)
        parts = split(self.identifier)
        if self.type != METASTORE.type:
            named = kind_of(parts) is not METASTORE
            return Identifier.of(parts if named else (FORMATS[self.type], self.location or ""))
        catalog = self.properties.get(CATALOG)
        if catalog is not None and (len(parts) <= _WITHOUT_CATALOG or parts[0] != catalog):
            parts = (catalog, *(default_namespace if len(parts) == 1 else ()), *parts)
        return Identifier.of(parts, default_catalog=default_catalog, default_namespace=default_namespace)


class IntervalBounds(StoredModel):
    """An interval of one column (ours)."""

    column: NonEmpty
    start_us: Long
    """The start (included), µs since the epoch."""
    end_us: Long
    """The end (excluded), µs since the epoch."""

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        try:
            Interval.of_micros(self.column, self.start_us, self.end_us)
        except OverflowError as error:
            raise ValueError(f"a time is out of range: {error}") from None
        return self

    @property
    def interval(self) -> Interval:
        """The value."""
        return Interval.of_micros(self.column, self.start_us, self.end_us)


class RefreshedInterval(IntervalBounds):
    """Rows that were refreshed separately, and the snapshots from which they were computed (ours)."""

    refresh_id: NonEmpty
    refreshed_at_ms: Long | None = None
    base_tables: Annotated[tuple[BaseTable, ...], FirstFault]


class RefreshRecord(StoredModel):
    """One refresh operation and the snapshots from which it was computed."""

    refresh_id: NonEmpty
    version_id: Int
    """The view's version at that time."""
    base_tables: Annotated[tuple[BaseTable, ...], FirstFault]
    sequence_number: Long | None = None
    """Sequence number of the storage snapshot that holds the refreshed files."""
    nested_views: Annotated[tuple[NestedViewVersion, ...], FirstFault] = ()
    """Ours: the plain views that the query was expanded through."""
    mode: str | None = None
    """Ours: the mode that ran."""
    reasons: Annotated[tuple[Texts, ...], FirstFault] = ()
    """Ours: why that mode, as ``{"code", "message"}``."""
    refreshed_at_ms: Long | None = None
    """Ours: when the refresh was published, ms since the epoch."""
    rows_written: Long | None = None
    """Ours: rows that the refresh wrote."""
    rows_changed: Long | None = None
    """Ours: rows of base tables that an incremental refresh found changed."""
    rows_deleted: Long | None = None
    """Ours: stored rows that an incremental refresh removed."""
    bytes_read: Long | None = None
    """Ours: bytes of base table files that were read to find the change."""
    rows_read: Long | None = None
    """Ours: rows in these files."""
    seconds: float | None = None
    """Ours: wall-clock seconds from the plan to the publication, with the start of Spark."""
    job_seconds: float | None = None
    """Ours: wall-clock seconds of the job's statements."""
    executor_seconds: float | None = None
    """Ours: run time of Spark's tasks, added up."""
    requested_by: Texts = Field(default_factory=dict)
    """Ours: ``user`` and ``host``, or ``dag-id``, ``run-id`` and ``task-id``."""
    factors: Numbers = Field(default_factory=dict)
    """Ours: the measured duration of the view's refreshes divided by the estimate, by mode."""
    checks: Annotated[tuple[Texts, ...], FirstFault] = ()
    """Ours: the results of the checks of the rows, as ``{"name", "result"}``; failed ones also have ``observed``."""
    interval: IntervalBounds | None = None
    """Ours: the refreshed interval, if the refresh was not for the whole view."""
    intervals: Annotated[tuple[RefreshedInterval, ...], FirstFault] = ()
    """Ours: intervals whose rows were computed from other snapshots than ``base-tables``. They do not overlap."""
    only_intervals: bool = False
    """Ours: whether only the rows of ``intervals`` were ever computed; then each of ``base-tables`` has -1."""
    interval_base_tables: Annotated[tuple[BaseTable, ...], FirstFault] = ()
    """Ours: in the log, the base tables as the refresh of ``interval`` read them. ``intervals`` is not kept there."""

    @model_validator(mode="after")
    def _one_line(self) -> Self:
        parts = sorted((part.interval for part in self.intervals), key=lambda interval: interval.start)
        if len({part.column for part in parts}) > 1:
            raise ValueError("the intervals are of several columns")
        if any(later.start < earlier.end for earlier, later in pairwise(parts)):
            raise ValueError("two intervals overlap")
        return self

    @property
    def snapshots(self) -> dict[str, int]:
        """Recorded snapshot reference by base table identifier."""
        return {table.identifier: table.snapshot_reference for table in self.base_tables}


class Rollback(StoredModel):
    """A rollback, which made an earlier refresh current again (ours)."""

    rollback_id: NonEmpty
    refresh_id: NonEmpty
    """The refresh that became current. Its record may have been dropped since."""
    rolled_back_at_ms: Long
    """When, ms since the epoch; later than everything that was published before."""


class StorageState(StoredModel):
    """The storage table's refresh history, oldest first."""

    refreshes: Annotated[tuple[RefreshRecord, ...], Field(min_length=1), FirstFault]
    current_refresh_id: NonEmpty
    rollback_id: NonEmpty | None = None
    """Ours: the rollback that made the current refresh current. It makes this state differ from the earlier one."""
    rollbacks: Annotated[tuple[Rollback, ...], FirstFault] = ()
    """Ours: the last rollbacks, oldest first. A rollback whose answer was lost is found here if it was applied."""
    spec_id: Int | None = None
    """Ours: the partition spec that the table had after the last refresh; only of a table that a catalog holds."""
    sort_order_id: Int | None = None
    """Ours: its sort order at that time."""

    @model_validator(mode="after")
    def _current_is_recorded(self) -> StorageState:
        ids = [record.refresh_id for record in self.refreshes]
        if len(set(ids)) != len(ids):
            raise ValueError("a refresh-id occurs twice in refreshes")
        if self.current_refresh_id not in ids:
            raise ValueError(f"current-refresh-id {self.current_refresh_id!r} is not in refreshes")
        return self

    @property
    def tag(self) -> str:
        """The tag on the current refresh's rows (registered layout). A rollback never uses an earlier tag again."""
        tag = current_tag(self.current_refresh_id)
        return f"{tag}_{self.rollback_id}" if self.rollback_id else tag

    def with_full_names(self, default_catalog: str, default_namespace: tuple[str, ...]) -> StorageState:
        """Return the history with the full names of the base tables, see :meth:`BaseTable.full_name`."""
        tables = [
            table
            for record in self.refreshes
            for recorded in (record.base_tables, *(part.base_tables for part in record.intervals))
            for table in recorded
        ]
        if all(table.full_name(default_catalog, default_namespace) == table.identifier for table in tables):
            return self

        def named(table: dict[str, Any]) -> dict[str, Any]:
            read, properties = BaseTable.read(table, source=PROPERTY), dict(table.get("properties", {}))
            full = read.full_name(default_catalog, default_namespace)
            if properties.pop(FULL_NAME, None) is not None or full != read.identifier:
                properties[SQL_IDENTIFIER] = read.identifier
            return {**table, "identifier": full, "properties": properties}

        document = self.document()
        for record in document["refreshes"]:
            for part in (record, *record.get("intervals", ())):
                part["base-tables"] = [named(table) for table in part["base-tables"]]
        return type(self).read(document, source=PROPERTY)

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
    def after(
        cls,
        previous: StorageState | None,
        record: RefreshRecord,
        *,
        keep: int,
        not_before_ms: int | None = None,
        shape: Mapping[str, int] = MappingProxyType({}),
    ) -> StorageState:
        """Return the state after a new refresh: the newest records of the history, and the new one.

        Args:
            previous: The state before.
            record: The new record.
            keep: How many records are kept, including the new one.
            not_before_ms: Records of refreshes before that time are dropped.
            shape: The values of ``spec-id`` and ``sort-order-id``; those of the state before are not kept.
        """
        older = previous.document() if previous else {}
        kept = [
            historic(item)
            for item in older.get("refreshes", [])
            if item["refresh-id"] != record.refresh_id
            and (not_before_ms is None or (item.get("refreshed-at-ms") or 0) >= not_before_ms)
        ]
        document = {
            **{key: value for key, value in older.items() if key not in ("rollback-id", "spec-id", "sort-order-id")},
            **shape,
            "refreshes": [*kept[max(0, len(kept) - keep + 1) :], record.document()],
            "current-refresh-id": record.refresh_id,
        }
        return cls.read(document, source=PROPERTY)


def historic(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record without its base tables' metadata locations, which are only read from the newest record."""
    tables = [
        {
            **table,
            "properties": {key: text for key, text in table["properties"].items() if key != METADATA_LOCATION},
        }
        if "properties" in table
        else table
        for table in record["base-tables"]
    ]
    return {**{key: value for key, value in record.items() if key != "factors"}, "base-tables": tables}


def current_tag(refresh_id: str) -> str:
    """Return the tag that a refresh puts on its rows (registered layout): see :attr:`StorageState.tag`."""
    return f"airflow_mv_at_{refresh_id.replace('-', '_')}"


def refresh_tag(refresh_id: str) -> str:
    """Return the tag that keeps the rows of a refresh, for a view that keeps its history."""
    return f"refresh-{refresh_id}"


def definition_tag(definition_id: str) -> str:
    """Return the tag by which a commit requires a definition (layout ``table``). No requirement can name a property."""
    return f"airflow_mv_definition_{definition_id}"


def is_definition_tag(name: str) -> bool:
    """Whether a branch or tag of a table is that of a definition."""
    return name.startswith(definition_tag(""))


def keeping_tags(view_uuid: str) -> str:
    """Return how the tags begin that keep the snapshots of base tables for a view. The snapshot's id follows."""
    return f"{_REFS}{_KEEP}{view_uuid.replace('-', '_')}_"


def staging_branch(refresh_id: str) -> str:
    """Return the branch on which a refresh is staged (registered layout). Each run adds a suffix."""
    return f"airflow_mv_{refresh_id.replace('-', '_')}"


def is_layout_ref(name: str) -> bool:
    """Whether a branch or tag of a storage table belongs to its layout."""
    return _LAYOUT_REF.fullmatch(name) is not None


def is_own_ref(name: str) -> bool:
    """Whether a branch or tag of a storage table is one of its view: of its layout, or of a refresh."""
    return _OWN_REF.fullmatch(name) is not None


def is_staging_branch(name: str) -> bool:
    """Whether a name is that of a staging branch of a run of a refresh."""
    return _STAGING_BRANCH.fullmatch(name) is not None


def storage_table_field(properties: Mapping[str, str], view: Identifier) -> dict[str, Any] | None:
    """Return the field ``storage-table`` of a view's versions, as the draft of materialized views has it.

    ``None`` if the view names no table beside itself.
    """
    text = properties.get(STORAGE_TABLE_PROPERTY)
    if text is None or text == view.within_catalog:
        return None
    *namespace, name = split(text)
    return {"namespace": namespace, "name": name}


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
    """Read the storage table's record, or ``None`` if it was never refreshed.

    Raises:
        InvalidMetadataError: Names the view, the storage metadata file and the field.
    """
    text = properties.get(PROPERTY)
    if text is None:
        return None
    source = f"view {view}, storage table file {location}, property {PROPERTY}"
    document = decode_text(text, source=source)
    if document.get("refreshes") == []:
        # Another writer's form of "never refreshed": the format allows it, and there is no current refresh.
        return None
    return StorageState.read(document, source=source)


def property_text(record: ViewSettings | StorageState) -> str:
    """Write a record as the property's value."""
    try:
        document = record.document()
        for item in document.get(_REFRESHES, ()):
            for part in (item, *item.get("intervals", ())):
                for table in part["base-tables"]:
                    # A base table is stored with its name as in the SQL, and beside it its full name.
                    properties = dict(table.get("properties", {}))
                    text = properties.pop(SQL_IDENTIFIER, None)
                    if text is not None:
                        table["properties"] = {**properties, FULL_NAME: table["identifier"]}
                        table["identifier"] = text
        return json.dumps(document, separators=(",", ":"))
    except ValueError as error:
        raise InvalidMetadataError(f"{PROPERTY}: {error}") from None


def log_text(
    properties: Mapping[str, str],
    before: StorageState | None,
    after: StorageState,
    *,
    keep: int,
    not_before_ms: int | None = None,
) -> str:
    """Return the log of past refreshes after a change of the history: it has the records that the change has dropped.

    A log that cannot be read begins anew, because it must not stop a refresh.

    Args:
        before: The history before; ``None`` before the first refresh.
        after: The history after.
        keep: How many records the log and the history have together, at most.
        not_before_ms: Records of refreshes before that time are dropped.
    """
    try:
        logged = [_without_intervals(item.document()) for item in past_refreshes(properties, source=LOG_PROPERTY)]
    except InvalidMetadataError:
        logged = []
    replaced = [historic(item) for item in before.document()[_REFRESHES]] if before else []
    recorded = {item.refresh_id for item in after.refreshes}
    past = {item["refresh-id"]: item for item in (*logged, *replaced) if item["refresh-id"] not in recorded}
    texts: list[str] = []
    room = MAX_LOG_BYTES
    for item in sorted(past.values(), key=_time, reverse=True)[: max(0, keep - len(recorded))]:
        text = json.dumps(item, separators=(",", ":"))
        room -= len(text)
        if room < 0 or (not_before_ms is not None and _time(item) < not_before_ms):
            break
        texts.append(text)
    return f'{{"{_REFRESHES}":[{",".join(reversed(texts))}]}}'


def has_log(properties: Mapping[str, str]) -> bool:
    """Whether a storage table has a log of past refreshes. Each refresh writes one, which may be empty."""
    return properties.get(LOG_PROPERTY, "").startswith("{")


def past_refreshes(properties: Mapping[str, str], *, source: str) -> tuple[RefreshRecord, ...]:
    """Read the log of a storage table, oldest first.

    Args:
        source: The view and the table's metadata file, for messages.

    Raises:
        InvalidMetadataError: Names the field.
    """
    text = properties.get(LOG_PROPERTY)
    if text is None:
        return ()
    records = decode_text(text, source=source).get(_REFRESHES)
    if not isinstance(records, list):
        raise InvalidMetadataError(f"{source}: field '{_REFRESHES}': it is not a list")
    return tuple(RefreshRecord.read(item, source=source) for item in records)


def _without_intervals(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record without the intervals that were current with it: there may be a thousand."""
    kept = {key: value for key, value in record.items() if key != "intervals"}
    start = record["interval"]["start-us"] if "interval" in record else None
    for item in record.get("intervals", ()) if start is not None else ():
        if item["start-us"] <= start < item["end-us"]:
            kept["interval-base-tables"] = item["base-tables"]
    return kept


def _time(record: Mapping[str, Any]) -> int:
    return int(record.get("refreshed-at-ms") or 0)


# ----------------------------------------------------- Find and correct times in table metadata that are in the future
# Java Iceberg refuses to read or to change a table whose times go back by more than one minute. A table that holds
# a time two hours in the future can therefore not be changed by anyone for two hours. All functions here are pure.


_LAST = "last-updated-ms"
_LOGS = ("snapshot-log", "metadata-log")
_LISTS = ("snapshots", *_LOGS)
#: What Java Iceberg tolerates between two entries of a log.
_TOLERATED_MS = 60_000
#: Properties with refresh records.
_RECORDS = (PROPERTY, LOG_PROPERTY)
_STAMP = "timestamp-ms"
_REFRESHED = "refreshed-at-ms"
_ROLLED_BACK = "rolled-back-at-ms"


def latest_ms(document: Mapping[str, Any]) -> int:
    """Return the latest time in table metadata, milliseconds since the epoch.

    Args:
        document: A decoded metadata file.
    """
    return max(_times(document), default=0)


def is_ahead(document: Mapping[str, Any], limit_ms: int) -> bool:
    """Whether table metadata holds a time later than a limit.

    Args:
        document: A decoded metadata file.
        limit_ms: The latest time that is allowed.
    """
    return latest_ms(document) > limit_ms


def goes_back(document: Mapping[str, Any]) -> bool:
    """Whether the times of table metadata go back further than Java Iceberg tolerates: it cannot read such a table.

    Args:
        document: A decoded metadata file.
    """
    last = int(document.get(_LAST, 0))
    for name in _LOGS:
        stamps = [int(item.get(_STAMP, 0)) for item in document.get(name) or ()]
        if any(earlier > later + _TOLERATED_MS for earlier, later in pairwise([*stamps, last])):
            return True
    return False


def is_false(document: Mapping[str, Any], limit_ms: int) -> bool:
    """Whether table metadata shows the work of a wrong clock, see :func:`is_ahead` and :func:`goes_back`.

    Args:
        document: A decoded metadata file.
        limit_ms: The latest time that is allowed.
    """
    return is_ahead(document, limit_ms) or goes_back(document)


def corrected(document: Mapping[str, Any], store_ms: int) -> dict[str, Any]:
    """Return table metadata in which no time is in the future, and none goes back.

    Args:
        document: A decoded metadata file; not changed.
        store_ms: The store's clock: no time is later than that.
    """
    changed = not_after(document, store_ms)
    for name in _LOGS:
        limit, entries = int(changed.get(_LAST, store_ms)), []
        for item in reversed(changed.get(name) or ()):
            entries.append(_capped(item, _STAMP, limit))
            limit = min(limit, int(entries[-1].get(_STAMP, limit)))
        if name in changed:
            changed[name] = entries[::-1]
    return changed


def not_after(document: Mapping[str, Any], limit_ms: int) -> dict[str, Any]:
    """Return table metadata in which no time is later than a limit.

    Later times are replaced by the limit, so the order of all entries is kept. The times of the refresh records
    in the table's property are limited too.

    Args:
        document: A decoded metadata file; not changed.
        limit_ms: The latest time that is allowed.
    """
    changed = dict(document)
    if _LAST in document:
        changed[_LAST] = min(int(document[_LAST]), limit_ms)
    for name in _LISTS:
        if name in document:
            changed[name] = [_capped(item, _STAMP, limit_ms) for item in document[name]]
    properties = document.get("properties", {})
    if PROPERTY in properties:
        texts = {key: _records_not_after(properties[key], limit_ms) for key in _RECORDS if key in properties}
        changed["properties"] = {**properties, **texts}
    return changed


def _times(document: Mapping[str, Any]) -> Iterator[int]:
    if _LAST in document:
        yield int(document[_LAST])
    for name in _LISTS:
        for item in document.get(name) or ():
            yield int(item.get(_STAMP, 0))


def _capped(item: Mapping[str, Any], key: str, limit_ms: int) -> dict[str, Any]:
    return {**item, key: min(int(item[key]), limit_ms)} if isinstance(item.get(key), int) else dict(item)


def _records_not_after(text: str, limit_ms: int) -> str:
    """Limit the times in the property with the refresh records. Text in another format is unchanged."""
    try:
        state = json.loads(text)
        changed = {**state, "refreshes": [_record_not_after(record, limit_ms) for record in state["refreshes"]]}
        if "rollbacks" in state:
            changed["rollbacks"] = [_capped(rollback, _ROLLED_BACK, limit_ms) for rollback in state["rollbacks"]]
    except (ValueError, TypeError, KeyError, AttributeError):
        return text
    return json.dumps(changed, separators=(",", ":"))


def _record_not_after(record: Mapping[str, Any], limit_ms: int) -> dict[str, Any]:
    capped = _capped(record, _REFRESHED, limit_ms)
    if "intervals" in record:
        capped["intervals"] = [_capped(part, _REFRESHED, limit_ms) for part in record["intervals"]]
    return capped
