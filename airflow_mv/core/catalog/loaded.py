# SPDX-License-Identifier: Apache-2.0
"""The objects that a catalog loads: a view, its storage table, and a located name."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, Self

import msgspec
from pyiceberg.table import Table

from airflow_mv.core.catalog.files import MetadataFiles
from airflow_mv.core.catalog.locations import lies_in
from airflow_mv.core.script import Target
from airflow_mv.core.spec.identifiers import Identifier, StoragePlace, split
from airflow_mv.core.spec.materialized_view import (
    ADOPTED_PROPERTY,
    CREATION_ID_PROPERTY,
    LOG_PROPERTY,
    PROPERTY,
    STORAGE_TABLE_PROPERTY,
    STORAGE_TABLE_UUID_PROPERTY,
    RefreshRecord,
    StorageState,
    ViewSettings,
    definition_tag,
    parse_storage_state,
    past_refreshes,
)
from airflow_mv.core.spec.table import Alterations, TableMetadata, sequence_number
from airflow_mv.core.spec.view import ViewMetadata
from airflow_mv.errors import InvalidIdentifierError, InvalidMetadataError, NotMaterializedError

#: What a query by a view's name does, if the name is not a table.
RECOMPUTES = "A Spark query by the view's name does not use them: it runs the view's SQL"
#: The name of a metadata file of a table without a catalog.
_NUMBERED = re.compile(r"v[0-9]+(?:\.gz)?\.metadata\.json(?:\.gz)?")


#: Properties that a view has only if it is, or was, materialized.
_OF_MATERIALIZED = frozenset({STORAGE_TABLE_PROPERTY, STORAGE_TABLE_UUID_PROPERTY, CREATION_ID_PROPERTY})


@dataclass(frozen=True, slots=True)
class LoadedStorage(ABC):
    """The state of a storage table in one metadata file. Each layout has its own class.

    Args:
        location: The metadata file.
        table: Its content, reduced to the fields that are used.
        state: The refresh history; ``None`` if the view was never refreshed.
    """

    location: str
    table: TableMetadata
    state: StorageState | None

    @property
    def record(self) -> RefreshRecord | None:
        """The current refresh, if there is one."""
        return self.state.current if self.state else None

    @property
    def published_files(self) -> frozenset[str]:
        """The table's metadata file and the earlier ones in its metadata log."""
        return frozenset({self.location, *(entry.metadata_file for entry in self.table.metadata_log)})

    @property
    def tagged(self) -> int | None:
        """The snapshot with the current refresh's tag."""
        ref = self.table.refs.get(self.state.tag) if self.state else None
        return ref.snapshot_id if ref else None

    def snapshot_of(self, record: RefreshRecord) -> int | None:
        """Return the snapshot with the rows of a recorded refresh; ``None`` if they have expired.

        The sequence number decides. A tag of an earlier refresh may have been moved by another writer.
        """
        return self.snapshots_of([record])[record.refresh_id]

    def snapshots_of(self, records: Iterable[RefreshRecord]) -> dict[str, int | None]:
        """Return :meth:`snapshot_of` several records, by refresh id. The table's snapshots are read once."""
        by_number = {item.sequence_number: item.snapshot_id for item in reversed(self.table.snapshots)}
        found = {
            record.refresh_id: None if record.sequence_number is None else by_number.get(record.sequence_number)
            for record in records
        }
        if self.record is not None and self.record.refresh_id in found:
            found[self.record.refresh_id] = self.rows_snapshot
        return found

    @property
    def rows_table(self) -> TableMetadata:
        """The table as a base table of other views: with the rows of the refresh, even after other writers' commits."""
        return msgspec.structs.replace(self.table, current_snapshot_id=self.rows_snapshot)

    @property
    @abstractmethod
    def name(self) -> Identifier | None:
        """Its name in the catalog, if it has one."""

    @property
    @abstractmethod
    def place(self) -> StoragePlace:
        """How a query reads it: by its name in the catalog or, without one, by its metadata file."""

    @property
    @abstractmethod
    def pointers(self) -> dict[Identifier, str]:
        """The catalog's own entries for the table, each with the metadata file that it names."""

    @property
    @abstractmethod
    def base(self) -> str:
        """The state that a refresh is planned on: it changes with every refresh, and not with irrelevant commits."""

    @property
    @abstractmethod
    def intact(self) -> bool:
        """Whether only refreshes and compactions have changed the stored rows."""

    @abstractmethod
    def altered(self, view: LoadedView) -> Alterations:
        """Return what other programs have changed of its columns, partitioning and sort order since the last refresh.

        Args:
            view: The view.
        """

    def restored(self, view: LoadedView) -> Self:
        """Return it without :meth:`altered`, as the next refresh makes it before it is planned."""
        schema_id, spec_id, order_id = self.altered(view).shape
        table = msgspec.structs.replace(
            self.table,
            current_schema_id=self.table.current_schema_id if schema_id is None else schema_id,
            default_spec_id=self.table.default_spec_id if spec_id is None else spec_id,
            default_sort_order_id=self.table.default_sort_order_id if order_id is None else order_id,
        )
        return replace(self, table=table)

    @property
    @abstractmethod
    def rows_snapshot(self) -> int | None:
        """The snapshot with the current refresh's rows; ``None`` if there are no rows."""

    @property
    @abstractmethod
    def target(self) -> Target:
        """How the statements of a refresh name the table."""

    @property
    def replacing_target(self) -> Target:
        """How the statements of a refresh that replaces the columns name the table."""
        return self.target

    @property
    @abstractmethod
    def view_properties(self) -> dict[str, str]:
        """The properties by which a view names the table, beside ``storage-table-location``."""

    @abstractmethod
    def remove(self, tables: DropsTables, owner: Identifier) -> bool:
        """Remove the table from the catalog, if it is the owner's. Its files stay.

        Args:
            tables: The catalog's tables.
            owner: The view that it was made for.

        Returns:
            Whether the catalog held it, if it is a table that a catalog holds.
        """

    @abstractmethod
    def staged_rows(self, refresh_id: str, metadata_location: str | None) -> tuple[StoragePlace, int | None] | None:
        """Return the place and the snapshot of a refresh's staged rows; ``None`` if they no longer exist.

        Args:
            refresh_id: The refresh.
            metadata_location: The metadata file that its job has written.
        """

    @abstractmethod
    def has_landed(self, refresh_id: str, ours: Collection[str]) -> bool:
        """Whether a refresh that its record does not name is part of the published history.

        Args:
            refresh_id: The refresh.
            ours: The storage metadata files that only this refresh writes.
        """

    @abstractmethod
    def clock_folder(self, view: LoadedView) -> str:
        """Return the folder whose store's clock is used for time limits."""

    def folders(self, view: LoadedView) -> tuple[str, ...]:
        """Return the view's folder, and the storage table's if it is outside of it."""
        base, beside = view.metadata.location, self.table.location
        return (base,) if lies_in(beside, (base,)) else (base, beside)

    @abstractmethod
    def dead_branches(self, limit_ms: int) -> list[str]:
        """Return the branches of refreshes that were not published and can no longer be.

        Args:
            limit_ms: Only branches that ended before this time, by the times in the metadata.
        """

    @abstractmethod
    def open(self, tables: OpensTables) -> Table:
        """Return the table for pyiceberg to read."""

    @abstractmethod
    def frame(self, reader: Any) -> Any:
        """Return the rows through Spark's ``DataFrameReader``."""

    @abstractmethod
    def how_to_read(self, view: Identifier) -> str:
        """Return where the stored rows can be read, and what a query by the view's name does, for people."""


class OpensTables(Protocol):
    """The methods of a catalog's tables that open a storage table."""

    def open_file(self, location: str) -> Table:
        """Return the table of a metadata file."""

    def open(self, name: Identifier) -> Table:
        """Return a table of the catalog."""


class DropsTables(Protocol):
    """The method of a catalog's tables that drops one."""

    def drop(self, name: Identifier, *, uuid: str | None, owner: Identifier) -> bool:
        """Drop a table if it has this uuid and belongs to this view; whether it existed."""


class ReadsTables(Protocol):
    """How a catalog reads a table's metadata."""

    files: MetadataFiles

    def load_table(self, name: Identifier, *, what: str) -> tuple[str, TableMetadata]:
        """Return a table's metadata file and its content."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The table that holds a view's definition, in the layout ``table``.

    Args:
        table: The table, as it was when the definition was read.
        definition_id: The id of the change that wrote the definition.
    """

    table: TableMetadata
    definition_id: str

    @property
    def tag(self) -> str:
        """The tag that exists as long as this is the definition."""
        return definition_tag(self.definition_id)

    @property
    def tagged(self) -> int | None:
        """The snapshot with the tag; ``None`` if another writer has removed the tag."""
        ref = self.table.refs.get(self.tag)
        return ref.snapshot_id if ref else None


@dataclass(frozen=True, slots=True)
class LoadedView:
    """The state of a view in one metadata file; the base of every swap.

    Args:
        identifier: The view.
        metadata_location: The file that the pointer named when it was read.
        metadata: Its content.
        settings: The materialization's settings, or ``None`` for a plain view.
        holder: The table that holds the definition, if it is not a view's metadata file.
    """

    identifier: Identifier
    metadata_location: str
    metadata: ViewMetadata
    settings: ViewSettings | None
    holder: Holder | None = None

    @property
    def base(self) -> str:
        """The state that a change of the definition requires: as long as it is the same, the change may be applied."""
        if self.holder is None:
            return self.metadata_location
        return f"{self.holder.table.table_uuid}@{self.holder.tagged}#{self.holder.definition_id}"

    @property
    def adopted_at(self) -> int | None:
        """The table's last sequence number before it was adopted; ``None`` for a table that was made for the view.

        Raises:
            InvalidMetadataError: The property is not a number.
        """
        text = self.metadata.properties.get(ADOPTED_PROPERTY)
        if text is None:
            return None
        if (number := sequence_number(text)) is None:
            source = f"view {self.identifier}, file {self.metadata_location}, property {ADOPTED_PROPERTY}"
            raise InvalidMetadataError(f"{source}: {text[:80]!r} is not a sequence number")
        return number

    @property
    def default_catalog(self) -> str:
        """The catalog of names in the query that do not name one."""
        return self.metadata.current_version.default_catalog or self.identifier.catalog

    @property
    def default_namespace(self) -> tuple[str, ...]:
        """The namespace of names in the query that do not name one."""
        return self.metadata.current_version.default_namespace

    @property
    def context(self) -> Identifier:
        """A name in the catalog and the namespace in which short names in the query are resolved."""
        return Identifier(
            self.default_catalog, self.default_namespace or self.identifier.namespace, self.identifier.name
        )

    @property
    def was_materialized(self) -> bool:
        """Whether another program has removed the settings of a materialized view: its other properties are there."""
        return self.settings is None and not _OF_MATERIALIZED.isdisjoint(self.metadata.properties)

    @property
    def materialized(self) -> ViewSettings:
        """The settings of a materialized view.

        Raises:
            NotMaterializedError: It is a plain view.
        """
        if self.was_materialized:
            raise NotMaterializedError(
                f"view {self.identifier} was a materialized view: another program has removed its property {PROPERTY}. "
                f"`airflow-mv repair {self.identifier} --yes` puts it back from an earlier metadata file; if there is "
                "none, drop the view with the program that made it, and create it again"
            )
        if self.settings is None:
            raise NotMaterializedError(
                f"view {self.identifier} is a plain view, not a materialized one; "
                f"`airflow-mv create {self.identifier}` (without --sql) turns it into one"
            )
        return self.settings

    @property
    def storage_table(self) -> Identifier | None:
        """The storage table's name in the registered layout; it is in the view's own catalog.

        Raises:
            InvalidMetadataError: The property is not a name.
        """
        text = self.metadata.properties.get(STORAGE_TABLE_PROPERTY)
        if text is None:
            return None
        try:
            parts = split(text)
            return Identifier(self.identifier.catalog, parts[:-1], parts[-1])
        except InvalidIdentifierError as error:
            source = f"view {self.identifier}, file {self.metadata_location}, property {STORAGE_TABLE_PROPERTY}"
            raise InvalidMetadataError(f"{source}: {error}") from None


def state_of(view: LoadedView, table: TableMetadata, location: str) -> StorageState | None:
    """Return the refresh history in a storage table; ``None`` if the view was never refreshed.

    Args:
        view: The view.
        table: Its storage table.
        location: The table's metadata file, for messages.

    Raises:
        InvalidMetadataError: The record is broken.
    """
    state = parse_storage_state(table.properties, view=str(view.identifier), location=location)
    return state.with_full_names(view.default_catalog, view.default_namespace) if state else None


def all_refreshes(view: LoadedView, storage: LoadedStorage) -> tuple[RefreshRecord, ...]:
    """Return the recorded refreshes of a view and those in its log, oldest first.

    Args:
        view: The view.
        storage: Its storage table.

    Raises:
        InvalidMetadataError: The log is broken.
    """
    if storage.state is None:
        return ()
    source = f"view {view.identifier}, storage table file {storage.location}, property {LOG_PROPERTY}"
    recorded = {record.refresh_id for record in storage.state.refreshes}
    past = past_refreshes(storage.table.properties, source=source)
    records = [*(record for record in past if record.refresh_id not in recorded), *storage.state.refreshes]
    return tuple(sorted(records, key=lambda record: record.refreshed_at_ms or 0)) if past else storage.state.refreshes


def readable_refreshes(view: LoadedView, storage: LoadedStorage) -> tuple[RefreshRecord, ...]:
    """Return :func:`all_refreshes`, or the recorded ones if the log is broken: that must not stop a refresh."""
    try:
        return all_refreshes(view, storage)
    except InvalidMetadataError:
        return storage.state.refreshes if storage.state else ()


@dataclass(frozen=True, slots=True)
class Located:
    """A table or view that a name in a query stands for.

    Args:
        kind: Whether it is a table or a view.
        metadata_location: Its current metadata file.
        table: A table's metadata, if the catalog returned it with the pointer.
        view: A view, if the catalog returned it with the pointer.
        place: How a query reads the table if not by the located name: by another name, or by this metadata file.
    """

    kind: Literal["table", "view"]
    metadata_location: str
    table: TableMetadata | None = None
    view: LoadedView | None = None
    place: StoragePlace | None = None

    def is_still(self, metadata_location: str | None) -> bool:
        """Whether the table certainly is as it was when its metadata file had this location.

        Metadata that came with the pointer is to be compared itself: a table that was created again may reuse a name.
        """
        return (
            self.table is None
            and self.metadata_location == metadata_location
            and not may_be_reused(self.metadata_location)
        )


def may_be_reused(metadata_location: str) -> bool:
    """Whether a table that is dropped and created again may have a metadata file of this name again.

    Catalogs put a new uuid into the name. ``HadoopTableOperations`` names a file by its number, and such a table can be
    registered in a catalog.
    """
    return _NUMBERED.fullmatch(metadata_location.rpartition("/")[2]) is not None
