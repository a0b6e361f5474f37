# SPDX-License-Identifier: Apache-2.0
"""Observe a view, its storage table and its base tables: the input of freshness and of a refresh plan."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import msgspec

from airflow_mv.core.catalog import LoadedStorage, LoadedView, Located, MaterializedViewCatalog
from airflow_mv.core.catalog.catalog import reusable
from airflow_mv.core.catalog.loaded import may_be_reused
from airflow_mv.core.catalog.manifest_changes import changed_files
from airflow_mv.core.catalog.path_tables import check_path
from airflow_mv.core.freshness.changes import as_in_manifests, ends_of_commits, is_in_doubt
from airflow_mv.core.freshness.state import Freshness, ObservedTable, Reads, State, assess
from airflow_mv.core.spec.choices import OnSchemaChange
from airflow_mv.core.spec.identifiers import Identifier, StoragePlace
from airflow_mv.core.spec.interval import Interval, Span
from airflow_mv.core.spec.interval_parts import parts_of
from airflow_mv.core.spec.materialized_view import (
    METADATA_LOCATION,
    NO_SNAPSHOT,
    SCHEMA_ID,
    TABLE_UUID,
    VIEW,
    BaseTable,
    NestedViewVersion,
    RefreshRecord,
)
from airflow_mv.core.spec.properties import on_schema_change
from airflow_mv.core.spec.reasons import Code, Reason
from airflow_mv.core.spec.table_metadata import Snapshot, TableMetadata, ancestors, is_branch, snapshot_as_of
from airflow_mv.core.spec.times import to_ms
from airflow_mv.core.sql.interval_columns import resolve
from airflow_mv.core.sql.query import (
    Dependencies,
    NestedView,
    ParsedQuery,
    base_tables,
    names_to_load,
    parse_query,
    spark_sql,
)
from airflow_mv.core.sql.types import Accesses, is_same_for, rebound_columns, spark_type, uses_in
from airflow_mv.errors import (
    BaseTableNotFoundError,
    CatalogNotFoundError,
    InvalidIdentifierError,
    MetadataFileNotFoundError,
    SnapshotNotFoundError,
)

#: The limit of commits whose manifests are read. Older ones in doubt count as changes of any rows.
_MAX_LOOKS = 100

_METADATA_TABLES = frozenset(
    {
        prefix + name
        for prefix in ("", "all_")
        for name in ("files", "data_files", "delete_files", "entries", "manifests")
    }
    | {"snapshots", "history", "partitions", "refs", "metadata_log_entries", "position_deletes"}
)


class _NotSelectedError(Exception):
    """A table does not have the state that its name selects."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One consistent observation of a materialized view.

    Args:
        query: The current version's query.
        dependencies: The base tables and nested views of the query.
        tables: The base tables as they are now, or were at ``as_of``.
        places: Where the rows of a base table are read, if not by its own name: the storage table of a materialized
            view, the table that a branch is of, or the metadata file of a table that is in no catalog.
        interval: The interval to which the freshness applies; ``None`` for all rows.
        record: The current refresh, if there is one.
        nested_views: The nested plain views as a refresh records them.
        pointers: The catalogs' pointers that determine the freshness of all rows, exactly as they were read; ``None``
            if it depends on more: on files that were found by their folder, or could not be read.
    """

    view: LoadedView
    storage: LoadedStorage
    query: ParsedQuery
    dependencies: Dependencies
    tables: tuple[ObservedTable, ...]
    places: dict[Identifier, StoragePlace]
    record: RefreshRecord | None
    nested_views: tuple[NestedViewVersion, ...]
    freshness: Freshness
    interval: Interval | None = None
    pointers: Mapping[Identifier, str] | None = None

    @property
    def queries(self) -> tuple[ParsedQuery, ...]:
        """The view's query and those of the nested views."""
        return (self.query, *(view.query for view in self.dependencies.views))


def observe(
    catalog: MaterializedViewCatalog,
    view: str | Identifier | LoadedView,
    *,
    as_of: datetime | None = None,
    reads: Reads | None = None,
    span: Span | None = None,
) -> Observation:
    """Observe a view.

    Args:
        view: Its name, or the view as it was loaded.
        as_of: Compare with the base tables as of this time, instead of their current state.
        reads: What was read before. Base tables are taken from here, and new ones are added. With a
            :class:`~airflow_mv.core.freshness.state.SnapshotSet` all views of a run are computed from the same ones.
        span: Consider only the rows of this interval.

    Raises:
        ConfigurationError: The span is not an interval of the view.
        NotMaterializedError: It is a plain view.
        SnapshotNotFoundError: A base table has no snapshot as of the time.
    """
    loaded = view if isinstance(view, LoadedView) else catalog.load(view)
    storage = catalog.load_storage(loaded)
    record = storage.record
    query = query_of(loaded, reads)
    located: dict[Identifier, Located] = {}
    dependencies = load_dependencies(catalog, query, reads=reads, located=located)
    tables, places = observe_tables(catalog, dependencies.tables, record, as_of=as_of, reads=reads, located=located)
    tables, known = _settled(catalog, tables, record)
    nested = tuple(map(_version, dependencies.views))
    unjudged = Freshness(State.UNKNOWN, (), ())
    interval = None if span is None else _interval(loaded, storage, span)
    observation = Observation(loaded, storage, query, dependencies, tables, places, record, nested, unjudged, interval)
    pointers = _pointers(observation, located) if as_of is None and known else None
    return replace(observation, freshness=freshness_of(observation), pointers=pointers)


def _pointers(seen: Observation, located: Mapping[Identifier, Located]) -> dict[Identifier, str] | None:
    """Return the pointers that determine a view's freshness, if all are known."""
    found = {seen.view.identifier: seen.view.metadata_location, **seen.storage.pointers}
    found |= {view.identifier: view.metadata_location for view in seen.dependencies.views}
    for table in seen.tables:
        name = table.name
        location = table.metadata_location
        if location is None or may_be_reused(location) or name.path is not None or name.selector is not None:
            return None
        found[name] = location
        place = seen.places.get(name)
        if place is not None:  # the storage table of a materialized view, which names it
            view = located.get(name)
            if view is None or view.kind != "view":
                return None
            found |= {place: location} if isinstance(place, Identifier) else {}
            found[name] = view.metadata_location
    return found


def _settled(
    catalog: MaterializedViewCatalog, observed: Iterable[ObservedTable], record: RefreshRecord | None
) -> tuple[tuple[ObservedTable, ...], bool]:
    """Return the base tables with what manifests show of commits in doubt, and whether all of these could be read."""
    pairs = [_settled_table(catalog, table, record) for table in observed]
    return tuple(table for table, _ in pairs), all(known for _, known in pairs)


def _settled_table(
    catalog: MaterializedViewCatalog, observed: ObservedTable, record: RefreshRecord | None
) -> tuple[ObservedTable, bool]:
    """Return a base table whose commits in doubt have what their manifests show, and whether all could be read.

    Manifests that are unreadable now may be readable later. Such a commit may have changed any row.
    """
    table, name = observed.table, observed.name
    if table is None or not name.kind.is_iceberg:
        return observed, True
    parts = parts_of(record) if record else ()
    recorded = {item.snapshot_reference for part in parts for item in part.base_tables}
    doubts = _in_doubt(table, observed.head, recorded)
    if not doubts:
        return observed, True
    files = catalog.home_of(name).files
    found = {
        item.snapshot_id: changed_files(files, parent, item) if number < _MAX_LOOKS else None
        for number, (item, parent) in enumerate(doubts)
    }
    same = frozenset(
        key for key, change in found.items() if change is not None and not (change.added or change.removed)
    )
    other = {item.snapshot_id: as_in_manifests(item, found[item.snapshot_id]) for item, _ in doubts}
    snapshots = [item if item.snapshot_id in same else other.get(item.snapshot_id, item) for item in table.snapshots]
    settled = msgspec.structs.replace(table, snapshots=snapshots)
    corrected = frozenset(other.keys() - same)
    return replace(observed, table=settled, same_rows=same, corrected=corrected), None not in found.values()


def _in_doubt(
    table: TableMetadata, head: int | None, recorded: Collection[int]
) -> list[tuple[Snapshot, Snapshot | None]]:
    """Return the commits in doubt since the oldest recorded snapshot, the newest first, and their parents."""
    found: list[tuple[Snapshot, Snapshot | None]] = []
    left = {identity for identity in recorded if identity == NO_SNAPSHOT or table.find(identity) is not None}
    for snapshot in ancestors(table, head):
        left.discard(snapshot.snapshot_id)
        if not left:
            break
        # A later snapshot without a parent has lost it by an expiry: what it added cannot be counted.
        is_first = snapshot.parent_snapshot_id is None and (snapshot.sequence_number or 0) <= 1
        parent = None if snapshot.parent_snapshot_id is None else table.find(snapshot.parent_snapshot_id)
        if (is_first or parent is not None) and is_in_doubt(snapshot, parent):
            found.append((snapshot, parent))
    return found


def _interval(view: LoadedView, storage: LoadedStorage, span: Span) -> Interval:
    metadata = view.metadata
    return resolve(span, metadata.schema_.fields, metadata.properties, storage.table, view=str(view.identifier))


def freshness_of(observation: Observation) -> Freshness:
    """Determine the freshness of the observed rows."""
    storage = observation.storage
    record = observation.record
    freshness = assess(
        record,
        version_id=observation.view.metadata.current_version_id,
        nested_views=observation.nested_views,
        observed=observation.tables,
        interval=observation.interval,
    )
    if not storage.intact:
        freshness = _without_rows_of_its_own(freshness, storage)
    if record is not None:
        freshness = freshness.with_drift(_drift(observation, record))
    return _with_alterations(freshness, observation)


def _drift(observation: Observation, record: RefreshRecord) -> tuple[Reason, ...]:
    metadata = observation.view.metadata
    return drift(
        record,
        observation.tables,
        query=observation.query,
        dependencies=observation.dependencies,
        columns=metadata.schema_.names,
        policy=on_schema_change(metadata.properties, view=str(observation.view.identifier)),
    )


def _without_rows_of_its_own(freshness: Freshness, storage: LoadedStorage) -> Freshness:
    """Mark the rows as stale if other writers changed the storage table in the catalog."""
    if freshness.state not in (State.FRESH, State.STALE):
        return freshness
    why = Reason(
        Code.STORAGE_CHANGED,
        f"another writer has changed the storage table {storage.name}: no refresh wrote its current snapshot "
        f"{storage.table.head}",
    )
    return replace(freshness, state=State.STALE, reasons=(why, *freshness.reasons))


def _with_alterations(freshness: Freshness, observation: Observation) -> Freshness:
    """Add what other programs have changed of the storage table's columns, partitioning and sort order.

    With other columns engines read other values than the view's, so the view is not fresh. Its rows may be.
    """
    storage = observation.storage
    altered = storage.altered(observation.view)
    found = tuple(
        Reason(
            Code.STORAGE_ALTERED,
            f"another program changed the storage table {storage.name}: {text}; the next refresh restores it",
        )
        for text in (*altered.columns, *altered.settings)
    )
    if not found:
        return freshness
    if not altered.columns or freshness.state != State.FRESH:
        return replace(freshness, reasons=(*found, *freshness.reasons))
    kept = tuple(reason for reason in freshness.reasons if reason.code != Code.FRESH)
    return replace(freshness, state=State.STALE, rows=State.FRESH, reasons=(*found, *kept))


def query_of(view: LoadedView, reads: Reads | None = None) -> ParsedQuery:
    """Return the parsed query of a view's current version.

    Args:
        reads: What was read before. Its query of this view is returned if it is still the current one.

    Raises:
        InvalidQueryError: It cannot be parsed.
    """
    return _parsed(view, str(view.identifier), reads)


def _parsed(view: LoadedView, name: str, reads: Reads | None) -> ParsedQuery:
    """Parse a view's query, unless the run has parsed it before, for the same name in messages."""
    catalog, namespace = view.default_catalog, view.default_namespace
    text = spark_sql(view.metadata, view=str(view.identifier))
    found = None if reads is None else reads.queries.get(view.identifier)
    if found is None or found.view != name or not found.is_of(text, catalog, namespace):
        found = parse_query(text, view=name, default_catalog=catalog, default_namespace=namespace)
    if reads is not None:
        reads.queries[view.identifier] = found
    return found


def load_dependencies(
    catalog: MaterializedViewCatalog,
    query: ParsedQuery,
    *,
    reads: Reads | None = None,
    located: dict[Identifier, Located] | None = None,
) -> Dependencies:
    """Return the base tables and nested plain views of a query.

    Args:
        catalog: Where the lookup begins.
        reads: What was read before: names of base tables, and queries of nested views.
        located: Receives the locations of base tables, so that no name is located twice.

    Raises:
        InvalidMetadataError: The query names a table by a path that is not allowed.
        InvalidQueryError: A nested view is not readable, or views are nested in a cycle or too deeply.
    """
    known: dict[Identifier, NestedView | None] = dict.fromkeys(reads.tables if reads is not None else ())
    while names := names_to_load(query, known):
        known |= {name: _load_plain_view(catalog, name, query.view, reads, located) for name in names}
    found = base_tables(query, known)
    for name in found.tables:
        if name.path is not None:
            check_path(catalog.properties, name, what=f"view {query.view}, base table {name}")
    return found


def _load_plain_view(
    catalog: MaterializedViewCatalog,
    identifier: Identifier,
    reader: str,
    reads: Reads | None,
    located: dict[Identifier, Located] | None,
) -> NestedView | None:
    """Return a nested plain view, or ``None`` if the name is a table, a materialized view or unknown."""
    if identifier.path is not None:
        catalog.formats.add(identifier.kind.data_source)  # known before the first of several views is refreshed
        return None
    try:
        home, place = _located(catalog, identifier, reads)
    except CatalogNotFoundError:
        return None
    loaded = home.load(identifier, place) if place and place.kind == "view" else None
    if loaded is None or loaded.settings is not None:
        if place is not None and located is not None:
            located[identifier] = place
        return None
    version = loaded.metadata.current_version
    return NestedView(
        identifier=identifier,
        query=_parsed(loaded, f"{reader}, nested view {identifier}", reads),
        columns=loaded.metadata.schema_.names,
        version_id=version.version_id,
        uuid=loaded.metadata.view_uuid,
        version_ms=version.timestamp_ms,
        metadata_location=loaded.metadata_location,
    )


def _located(
    catalog: MaterializedViewCatalog, identifier: Identifier, reads: Reads | None
) -> tuple[MaterializedViewCatalog, Located | None]:
    """Return the catalog and the location of a name."""

    def ask() -> tuple[MaterializedViewCatalog, Located | None]:
        home = catalog.other(identifier.catalog)
        return home, home.locate([identifier]).get(identifier)

    return ask() if reads is None or identifier.catalog == catalog.name else reads.asked(identifier.catalog, ask)


def observe_tables(
    catalog: MaterializedViewCatalog,
    identifiers: Iterable[Identifier],
    record: RefreshRecord | None,
    *,
    as_of: datetime | None = None,
    reads: Reads | None = None,
    located: dict[Identifier, Located] | None = None,
) -> tuple[tuple[ObservedTable, ...], dict[Identifier, StoragePlace]]:
    """Observe base tables: with at most one catalog query, and a metadata file only if the table may have changed.

    What was located before is taken from ``located``, and what is located here is added to it.

    Returns:
        The tables, and where their rows are read, if not by their names; see :class:`Observation`.
    """
    wanted = tuple(identifiers)
    # If parts of the rows are of several snapshots, the file is needed for the changes since each of them.
    single = record is not None and not as_of and not (record.intervals or record.only_intervals)
    known = {table.identifier: table for table in record.base_tables} if record and single else {}
    pinned = {} if reads is None else reads.tables
    located = {} if located is None else located
    places = _places(catalog, [name for name in wanted if name not in pinned], located)
    located |= {name: place for name, place in places.items() if isinstance(place, Located)}
    storages: dict[Identifier, StoragePlace] = {}
    tables = []
    for identifier in wanted:
        table = pinned.get(identifier)
        if table is None:
            table = _observed(catalog, identifier, places[identifier], known.get(str(identifier)), storages, as_of)
            # A materialized view that the same run refreshes earlier must be read as that refresh left it.
            if identifier not in storages:
                pinned[identifier] = table
        elif _lacks_history(table, known.get(str(identifier))):
            table = pinned[identifier] = _with_history(catalog, identifier, table)
        if reads is not None and reads.rereads and _is_outdated(table, record):
            place = _places(catalog, [identifier], {})[identifier]
            if isinstance(place, str) or place.metadata_location != table.metadata_location:
                table = _observed(catalog, identifier, place, known.get(str(identifier)), storages, as_of)
                pinned[identifier] = table
        if table.storage is not None:
            storages[identifier] = table.storage
        tables.append(table)
    return tuple(tables), storages


def _lacks_history(pinned: ObservedTable, recorded: BaseTable | None) -> bool:
    """Whether a table was pinned for another view by its pointer only, and this view has read another state."""
    return (
        pinned.table is None
        and pinned.metadata_location is not None
        and (recorded is None or recorded.properties.get(METADATA_LOCATION) != pinned.metadata_location)
    )


def _is_outdated(pinned: ObservedTable, record: RefreshRecord | None) -> bool:
    """Whether a view may have been refreshed from a later state of a table than the pinned one."""
    table = pinned.table
    recorded = [item for part in (parts_of(record) if record else ()) for item in part.base_tables]
    return table is not None and any(
        item.identifier == pinned.identifier
        and item.snapshot_reference != NO_SNAPSHOT
        and table.find(item.snapshot_reference) is None
        and item.properties.get(METADATA_LOCATION) != pinned.metadata_location
        for item in recorded
    )


def _with_history(catalog: MaterializedViewCatalog, identifier: Identifier, pinned: ObservedTable) -> ObservedTable:
    """Open the metadata file of a pin. The file never changes, so the pin stays the same."""
    try:
        place = Located("table", pinned.metadata_location or "", place=pinned.storage)
        found = _read(catalog, identifier, place, None)
        return replace(found, view=pinned.view or found.view)
    except (MetadataFileNotFoundError, _NotSelectedError) as error:
        return ObservedTable(identifier, error=str(error))


def _observed(
    catalog: MaterializedViewCatalog,
    identifier: Identifier,
    place: Located | str,
    recorded: BaseTable | None,
    storages: dict[Identifier, StoragePlace],
    as_of: datetime | None,
) -> ObservedTable:
    if isinstance(place, str):
        return ObservedTable(identifier, error=place)
    view = identifier if place.kind == "view" else None
    try:
        place = _through_materialized_view(catalog, identifier, place, storages)
        if recorded and place.is_still(recorded.properties.get(METADATA_LOCATION)):
            head = None if recorded.snapshot_reference == NO_SNAPSHOT else recorded.snapshot_reference
            uuid = recorded.properties.get(TABLE_UUID)
            schema_id = recorded.properties.get(SCHEMA_ID)
            view = view or _recorded_view(recorded)
            return ObservedTable(
                identifier, place.metadata_location, head, None, uuid, schema_id, storage=place.place, view=view
            )
        found = _read(catalog, identifier, place, as_of)
        return replace(found, view=view) if view else found
    except (MetadataFileNotFoundError, _NotSelectedError) as error:
        return ObservedTable(identifier, error=str(error))


def _recorded_view(recorded: BaseTable) -> Identifier | None:
    """Return the materialized view whose rows a table had when it was recorded, by its metadata at that time."""
    name = recorded.properties.get(VIEW)
    try:
        return None if name is None else Identifier.parse(name)
    except InvalidIdentifierError:
        return None


def require_readable(view: Identifier, tables: Iterable[ObservedTable]) -> None:
    """Raise if a base table cannot be read.

    Raises:
        BaseTableNotFoundError: Names the tables and the reasons.
    """
    errors = [table.error for table in tables if table.error]
    if errors:
        raise BaseTableNotFoundError(f"view {view}: " + "; ".join(errors))


def _places(
    catalog: MaterializedViewCatalog, wanted: Sequence[Identifier], located: Mapping[Identifier, Located]
) -> dict[Identifier, Located | str]:
    """Return the location of each name, or why there is none."""
    found: dict[Identifier, Located | str] = dict(reusable(catalog, wanted, located))
    left = [name for name in wanted if name not in found]
    for own in located_together(left):
        try:
            places = catalog.locate(own)
        except (CatalogNotFoundError, MetadataFileNotFoundError) as error:
            found |= dict.fromkeys(own, str(error))
            continue
        for identifier in own:
            found[identifier] = places.get(identifier, _missing(identifier))
    return found


def located_together(names: Iterable[Identifier]) -> list[list[Identifier]]:
    """Return the names that are located together: those of one catalog, and each path on its own."""
    groups: dict[str, list[Identifier]] = {}
    for name in names:
        groups.setdefault(name.path or f"catalog {name.catalog}", []).append(name)
    return list(groups.values())


def _missing(identifier: Identifier) -> str:
    why = "it was dropped or never created"
    if len(identifier.namespace) > 1 and identifier.name.lower() in _METADATA_TABLES:
        why = (
            f"{identifier.name} is one of Iceberg's metadata tables, which have no snapshots: a view of it cannot be "
            "kept fresh"
        )
    if identifier.path is not None:
        what = "no metadata file is in its folder metadata" if identifier.kind.is_iceberg else "it has no commit"
        return f"base table {identifier}: there is no table in {identifier.path}: {what}"
    return f"base table {identifier} does not exist in catalog {identifier.catalog!r}: {why}"


def _through_materialized_view(
    catalog: MaterializedViewCatalog,
    identifier: Identifier,
    place: Located,
    storages: dict[Identifier, StoragePlace],
) -> Located:
    """For a base table that is a materialized view, return its storage table."""
    if place.kind != "view":
        return place
    home = catalog.home_of(identifier)
    storage = home.load_storage(home.load(identifier, place))
    storages[identifier] = storage.place
    return replace(place, metadata_location=storage.location, table=storage.rows_table)


def _read(
    catalog: MaterializedViewCatalog, identifier: Identifier, place: Located, as_of: datetime | None
) -> ObservedTable:
    try:
        table: TableMetadata = catalog.table_metadata(identifier, place)
    except SnapshotNotFoundError as error:
        raise _NotSelectedError(str(error)) from None
    head = table.head
    if as_of is not None:
        head = snapshot_as_of(_of_ends(table), to_ms(as_of), name=str(identifier)).snapshot_id
    # A recorded location means the snapshot that is current in it, with its columns, not an older one.
    same = head == table.head and not any(changed_columns(str(identifier), table, head))
    location = place.metadata_location if same else None
    return ObservedTable.at(identifier, table, head, location, place.place)


def _of_ends(table: TableMetadata) -> TableMetadata:
    """Return a table whose log has no snapshots within refreshes of a materialized view."""
    logged = [table.find(entry.snapshot_id) for entry in table.snapshot_log]
    ends = ends_of_commits(logged)
    log = [
        entry
        for entry, snapshot in zip(table.snapshot_log, logged, strict=True)
        if snapshot is None or snapshot.snapshot_id in ends
    ]
    return msgspec.structs.replace(table, snapshot_log=log)


def _version(view: NestedView) -> NestedViewVersion:
    document = {"identifier": str(view.identifier), "uuid": view.uuid, "version-id": view.version_id}
    return NestedViewVersion.read(document, source=f"nested view {view.identifier}")


# ---------- Drift: columns of base tables that were dropped, renamed or retyped since the rows of a view were computed
# Of a column with nested fields only the fields that a query reads matter, as far as its text shows.
#
# A change of a schema makes no snapshot, and earlier snapshots are still read with their own columns. So a view may
# be up to date with all snapshots, although its query no longer fits the tables.


def drift(
    record: RefreshRecord,
    observed: Iterable[ObservedTable],
    *,
    query: ParsedQuery,
    dependencies: Dependencies,
    columns: tuple[str, ...],
    policy: OnSchemaChange,
) -> tuple[Reason, ...]:
    """Return the changed columns that matter to a view, as reasons.

    A table whose metadata file was not opened has not changed.

    Args:
        record: The refresh that computed the rows.
        observed: The base tables as they are now.
        dependencies: Its base tables and nested views.
        policy: Which columns matter.
    """
    recorded: dict[str, dict[int, BaseTable]] = {}
    for base in (base for part in parts_of(record) if part.computed for base in part.base_tables):
        recorded.setdefault(base.identifier, {})[base.snapshot_reference] = base
    queries = ((query, columns), *((view.query, view.columns) for view in dependencies.views))
    found: list[Reason] = []
    for item in observed:
        name, table = item.name, item.table
        selector = name.selector if item.storage is not None else None
        if table is None or (selector is not None and not is_branch(table, selector)):
            continue  # a tag or a fixed snapshot keeps its columns
        for known in recorded.get(item.identifier, {}).values():
            uuid = known.properties.get(TABLE_UUID)
            if table.find(known.snapshot_reference) is None or (uuid and item.table_uuid and uuid != item.table_uuid):
                continue  # another table: its rows are recomputed anyway
            found += (
                change.reason
                for change in changed_columns(item.identifier, table, known.snapshot_reference)
                if policy == "fail" or change.matters(uses_in(queries, name, change.column))
            )
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class ChangedColumn:
    """A column that a snapshot was read with and that the table no longer has, or not with all of its fields.

    Args:
        then: The stored field in the snapshot's schema.
        now: The stored field with the same id and name in the table's current schema; ``None`` if there is none.
        reason: How it changed.
    """

    then: Mapping[str, Any]
    now: Mapping[str, Any] | None
    reason: Reason

    @property
    def column(self) -> str:
        """Its name."""
        return str(self.then["name"])

    def matters(self, uses: Collection[Accesses]) -> bool:
        """Whether it has changed for queries that read these parts of it."""
        return bool(uses) and (self.now is None or not is_same_for(self.then, self.now, uses))


def changed_columns(name: str, table: TableMetadata, snapshot_id: int | None) -> Iterator[ChangedColumn]:
    """Yield each column that a snapshot was read with and that the table no longer has, with a reason."""
    then, now = table.schema_at(snapshot_id), table.current_schema
    if then == now:
        return
    rebound = rebound_columns(then, now)
    current: dict[object, Mapping[str, Any]] = {item.get("id"): item for item in now.get("fields", ())}
    for before in then.get("fields", ()):
        column, successor = str(before["name"]), current.get(before.get("id"))
        if successor is None:
            yield ChangedColumn(before, None, Reason(Code.COLUMN_DROPPED, f"{name}: the column {column} was dropped"))
        elif successor["name"] != column:
            text = f"{name}: the column {column} was renamed to {successor['name']}"
            yield ChangedColumn(before, None, Reason(Code.COLUMN_RENAMED, text))
        elif (kinds := (spark_type(before["type"]), spark_type(successor["type"])))[0] != kinds[1]:
            text = f"{name}: the type of the column {column} changed from {kinds[0]} to {kinds[1]}"
            yield ChangedColumn(before, successor, Reason(Code.COLUMN_RETYPED, text))
        elif column in rebound:
            text = f"{name}: a nested field of the column {column} was replaced by another field"
            yield ChangedColumn(before, successor, Reason(Code.COLUMN_RETYPED, text))
