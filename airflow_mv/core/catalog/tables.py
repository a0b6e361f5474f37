# SPDX-License-Identifier: Apache-2.0
"""Storage tables by their names in the catalog: create, open, change in one commit, drop."""

from __future__ import annotations

import logging
import math
import secrets
import socket
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from pydantic import ValidationError as UnreadableAnswerError
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
)
from pyiceberg.table import CreateTableTransaction, StagedTable, Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertLastAssignedFieldId,
    AssertLastAssignedPartitionId,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.table.update.snapshot import ManageSnapshots

from airflow_mv.core.catalog.answers import NO_ANSWER, answered, brief, refusal_of, refusals
from airflow_mv.core.catalog.files import METADATA_SUFFIXES, MetadataFiles, first_folder, flush, static_table
from airflow_mv.core.catalog.first_commit import first_content, is_unfinished
from airflow_mv.core.catalog.limits import require_no_writer
from airflow_mv.core.catalog.loaded import Holder, LoadedView
from airflow_mv.core.catalog.metastores import Metastore
from airflow_mv.core.catalog.rest import CHOSEN_BY_THE_CATALOG, RestViews, TableProperties, namespaces_of
from airflow_mv.core.catalog.sql import SqlPointers
from airflow_mv.core.script import MAX_AHEAD_MS
from airflow_mv.core.spec.definition_text import definition_text, parse_definition
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import (
    DEFINITION_ID_PROPERTY,
    DEFINITION_PROPERTY,
    PROPERTY,
    STORAGE_OF_PROPERTY,
    STORAGE_TABLE_PROPERTY,
    STORAGE_TABLE_UUID_PROPERTY,
    ViewSettings,
    definition_tag,
    parse_settings,
    property_text,
)
from airflow_mv.core.spec.new_columns import NewColumns
from airflow_mv.core.spec.stored import decode_text, unpacked
from airflow_mv.core.spec.table_metadata import TableMetadata, TableShape
from airflow_mv.core.spec.view import ViewMetadata
from airflow_mv.errors import (
    AlreadyExistsError,
    CatalogUnavailableError,
    ClockError,
    CommitStateUnknownError,
    ConfigurationError,
    InvalidIdentifierError,
    InvalidMetadataError,
    MaterializedViewError,
    MetadataFileNotFoundError,
    NotFoundError,
    StoreUnavailableError,
    UnsupportedError,
)

log = logging.getLogger(__name__)

Part = TypeVar("Part")

#: The newest format version that pyiceberg writes.
WRITABLE_FORMAT = 2
_FORMAT_VERSION = "format-version"
_MAIN = "main"


@dataclass(frozen=True, slots=True)
class TableChange:
    """One atomic commit to a table.

    Args:
        requires: Required snapshot id by branch or tag; ``None`` for one that must not exist.
        branches: Snapshot id by branch to set.
        tags: Snapshot id by tag to set.
        ages: Age in ms of a tag's snapshot after which an expiry removes the tag, by tag; by default it stays.
        removes: Branches and tags to remove.
        properties: Properties to set.
        unsets: Properties to remove.
        drops: Ids of snapshots to remove.
        columns: Rows with other columns to add.
        shape: The schema, partition spec and sort order to make current, of those that the table has.
    """

    requires: Mapping[str, int | None] = field(default_factory=dict)
    branches: Mapping[str, int] = field(default_factory=dict)
    tags: Mapping[str, int] = field(default_factory=dict)
    ages: Mapping[str, int] = field(default_factory=dict)
    removes: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    unsets: tuple[str, ...] = ()
    drops: tuple[int, ...] = ()
    columns: NewColumns | None = None
    shape: TableShape | None = None


@dataclass(frozen=True, slots=True)
class NewTable:
    """An empty table that is to be created for a view.

    Args:
        like: The table with its columns and partitioning.
        location: Its folder. A REST server chooses its own.
        token: Its uuid where the client chooses it; part of its folder's name otherwise.
        properties: Properties that it has beside those of ``like``.
    """

    like: Identifier
    owner: Identifier
    location: str
    token: UUID
    properties: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def taken(what: str) -> Iterator[None]:
    """Translate the errors of a creation whose name is taken.

    Args:
        what: What has the name, for the message.

    Raises:
        AlreadyExistsError: Instead of pyiceberg's errors.
    """
    try:
        yield
    except (TableAlreadyExistsError, CommitFailedException):
        raise AlreadyExistsError(f"{what}; choose another name or use replace") from None


def require_own(view: LoadedView, name: Identifier, table: TableMetadata | None) -> TableMetadata:
    """Return the table that a view names, after a check that it is that view's storage table.

    The table must also name the view. Otherwise a user who can write a view could have any table overwritten, with the
    permissions of the user who refreshes the view.

    Args:
        table: The table; ``None`` if it does not exist.

    Raises:
        NotFoundError: The table was dropped, renamed or replaced by another.
        InvalidMetadataError: It is not a storage table, or that of another view.
    """
    who = view.identifier
    advice = (
        f"Put it back, or make a new one with `airflow-mv create {who} --replace` and a refresh; `airflow-mv repair "
        f"{who}` shows what is left of it"
    )
    if table is None:
        raise NotFoundError(
            f"view {who}: its storage table {name} is not in the catalog: it was dropped or renamed. {advice}"
        )
    wanted = view.metadata.properties.get(STORAGE_TABLE_UUID_PROPERTY)
    if table.table_uuid != wanted:
        raise NotFoundError(
            f"view {who}: the table {name} is not its storage table (uuid {table.table_uuid}, not {wanted}): it was "
            f"dropped and recreated. {advice}"
        )
    owner = table.properties.get(STORAGE_OF_PROPERTY)
    if owner != who.within_catalog:
        raise InvalidMetadataError(
            f"view {who}: the table {name} is not marked as this view's storage table (property "
            f"{STORAGE_OF_PROPERTY}: {owner!r}). If another program has removed or changed the property, `airflow-mv "
            f"repair {who} --yes` restores it; else make a new table with `airflow-mv create {who} --replace` and a "
            "refresh"
        )
    return table


class StorageTables:
    """The tables of one pyiceberg catalog.

    Args:
        catalog: A catalog whose table commits check their requirements.
        files: The store behind it, whose clock is used.
    """

    def __init__(self, catalog: Catalog, files: MetadataFiles) -> None:
        self._catalog = catalog
        self._files = files
        self._keeps_refs = False

    def open(self, name: Identifier) -> Table:
        """Return the table.

        Raises:
            NotFoundError: There is no such table.
            MetadataFileNotFoundError: Its metadata file does not exist.
            InvalidMetadataError: Its metadata file is truncated or broken.
            CatalogUnavailableError: The catalog did not respond.
        """
        with answered(self._catalog.name, f"loading table {name}"):
            try:
                table = self._catalog.load_table((*name.namespace, name.name))
            except NoSuchTableError:
                raise NotFoundError(f"there is no table {name} in catalog {self._catalog.name!r}") from None
            except FileNotFoundError:
                raise MetadataFileNotFoundError(f"table {name}: its metadata file does not exist") from None
            except (ValueError, ValidationError) as error:
                # pyiceberg raises these for a metadata file that it cannot parse.
                raise InvalidMetadataError(f"table {name}: its metadata cannot be read: {brief(error)}") from None
        if self._files.vends(table.location()):
            table.io = self._files.io(table.location(), what=f"table {name}")
        return table

    def open_file(self, location: str) -> Table:
        """Return the storage table of a metadata file, which no catalog may name."""
        return static_table(self._files, location, what="storage table file")

    def commit(self, name: Identifier, uuid: str, change: TableChange) -> str | None:
        """Change a table in one commit.

        Args:
            uuid: The table's uuid, because another table may have taken the name.

        Returns:
            The table's new metadata file, or ``None`` if the catalog refused the commit: a requirement was not met,
            or another commit came first. This does not prove that an earlier, identical commit was not applied.

        Raises:
            CommitStateUnknownError: No answer, or an inconclusive one. The commit may be applied, even later.
            InvalidMetadataError: A property of the table names a class to load.
        """
        try:
            table = self.open(name)
        except MetadataFileNotFoundError:
            raise
        except NotFoundError:
            return None  # the requirement of the uuid is not met
        require_no_writer(table, name)
        self._require_clock(table, name)
        if not _fits(table, change):
            return None
        requirements: tuple[TableRequirement, ...] = (
            AssertTableUUID(uuid=uuid),
            *(AssertRefSnapshotId(ref=ref, snapshot_id=snapshot) for ref, snapshot in _refs_required(table, change)),
            *(_required(key, value) for key, value in (change.columns.required if change.columns else {}).items()),
        )
        with answered(self._catalog.name, f"a commit to table {name}"), self._changing(name, "a commit"):
            try:
                return self._catalog.commit_table(table, requirements, _updates(change)).metadata_location
            except CommitFailedException:
                return None
            except ValueError as error:
                # pyiceberg raises these for a change that no longer fits the table, or for an unreadable answer.
                log.warning("A commit to table %s was refused: %s", name, brief(error))
                return None

    def create(self, name: Identifier, new: NewTable) -> None:
        """Create an empty table in one request.

        Raises:
            AlreadyExistsError: The name is taken.
            CommitStateUnknownError: No answer. The table may be created, even later.
        """
        with taken(f"a table or view {name} exists already"):
            if isinstance(self._catalog, RestCatalog):
                self._create_on_server(name, new)
            else:
                self.send(name, self.staged(name, new))

    def register(self, name: Identifier, location: str) -> None:
        """Register a table by its metadata file. If the name is taken, nothing is done.

        Raises:
            CatalogUnavailableError: No answer. The entry may be added, even later.
        """
        with answered(self._catalog.name, f"registering table {name}"), suppress(TableAlreadyExistsError):
            self._catalog.register_table((*name.namespace, name.name), location)

    def _create_on_server(self, name: Identifier, new: NewTable) -> None:
        """Send the request that creates a table: a plain one, since not each server has staged creations."""
        like = self.open(new.like)
        with self._changing(name, "its creation"):
            self._catalog.create_table(
                (*name.namespace, name.name),
                like.schema(),
                location=_location_beside(like, new.token),
                partition_spec=like.spec(),
                sort_order=like.sort_order(),
                properties=_properties(like, new),
            )

    def staged(self, name: Identifier, new: NewTable) -> CreateTableTransaction:
        """Return the commit that creates a table where the client writes its metadata.

        All copies of it have one folder and one uuid: the files of a copy that is not applied are the table's own.
        """
        like = self.open(new.like)
        with answered(self._catalog.name, f"creating table {name}"):
            self.require_clock_at(new.location, f"table {name}")
            shape = (like.schema(), like.spec(), like.sort_order())
            metadata = new_table_metadata(*shape, new.location, _properties(like, new), new.token)
            io = self._files.io(new.location, what=f"table {name}")
            return CreateTableTransaction(
                StagedTable((*name.namespace, name.name), metadata, f"{new.location}/metadata", io, self._catalog)
            )

    def send(self, name: Identifier, creation: CreateTableTransaction) -> None:
        """Send the commit that creates a table.

        Raises:
            TableAlreadyExistsError, CommitFailedException: The name is taken.
            CommitStateUnknownError: No answer. The table may be created, even later.
        """
        with self._changing(name, "its creation"):
            creation.commit_transaction()

    @contextmanager
    def _changing(self, name: Identifier, what: str) -> Iterator[None]:
        """Translate the errors of a change of a table: only its state shows whether it has landed.

        Raises:
            CommitStateUnknownError: No answer, or an inconclusive one.
        """
        try:
            yield
        except NO_ANSWER as error:
            refusal = refusal_of(self._catalog.name, f"{what} (table {name})", error)
            raise CommitStateUnknownError(f"table {name}: no response to {what}: {brief(error)}", refusal) from None
        except refusals() as error:
            refusal = refusal_of(self._catalog.name, f"{what} (table {name})", error)
            raise CommitStateUnknownError(f"table {name}: {what} was refused: {brief(error)}", refusal) from None
        except UnreadableAnswerError:
            raise CommitStateUnknownError(f"table {name}: the response to {what} cannot be parsed") from None

    def _require_clock(self, table: Table, name: Identifier) -> None:
        """Check this host's clock if pyiceberg will write its time into the table's metadata.

        Raises:
            ClockError: It is ahead of the store's clock, or behind the table's last change.
        """
        if isinstance(self._catalog, RestCatalog):
            return  # the server's clock decides
        now_ms = time.time_ns() // 1_000_000
        behind_ms = table.metadata.last_updated_ms - now_ms
        if behind_ms > MAX_AHEAD_MS:
            raise ClockError(
                f"table {name}: its last change is {behind_ms / 1000:.0f} s ahead of the clock of this host "
                f"({socket.gethostname()}). Nothing was published. Set that clock right; if it is right, the table has "
                "timestamps of a wrong clock: correct them with `airflow-mv repair VIEW`"
            )
        # The file was written before now, by the store's clock: if it is recent, the clock need not be read.
        if now_ms <= self._files.modified_ms(table.metadata_location) + MAX_AHEAD_MS:
            return
        self.require_clock_at(table.metadata_location.rpartition("/")[0], f"table {name}", now_ms)

    def require_clock_at(self, folder: str, what: str, now_ms: int | None = None) -> None:
        """Check that this host's clock is not ahead of a store's clock.

        Args:
            what: What is changed, for the message.
            now_ms: This host's time; by default it is read.

        Raises:
            ClockError: It is ahead.
        """
        ahead_ms = (time.time_ns() // 1_000_000 if now_ms is None else now_ms) - self._files.now_ms(folder)
        if ahead_ms > MAX_AHEAD_MS:
            raise ClockError(
                f"{what}: the clock of this host ({socket.gethostname()}) is {ahead_ms / 1000:.0f} s ahead of "
                "the store's clock. Nothing was published. Set it right, then try again"
            )

    def require_refs(self, name: Identifier) -> None:
        """Check that the server keeps a branch and a tag: a commit sets them on a new table, which is loaded again.

        Servers that commit by their own means, such as Nessie, accept both and drop them. No refresh could be staged.

        Args:
            name: A table that no view names yet. What is added to it is removed again.

        Raises:
            NoCredentialsError: The server signs requests to the store, and vends no credentials for it.
            UnsupportedError: The server has dropped one of them.
        """
        if self._keeps_refs or not isinstance(self._catalog, RestCatalog):
            return  # elsewhere pyiceberg itself writes the metadata
        branch, tag = (f"airflow_mv_probe_{kind}_{secrets.token_hex(4)}" for kind in ("branch", "tag"))
        table, what = self.open(name), f"a branch and a tag of table {name}"
        self._files.require_access(table.location())
        with answered(self._catalog.name, what):
            snapshot_id, manifest_list = _set_refs(self._catalog, table, branch, tag)
        kept = self.open(name)
        dropped = [ref for ref in (branch, tag) if ref not in kept.refs()]
        if dropped:
            raise UnsupportedError(
                f"catalog {self._catalog.name!r} accepted {what} but did not keep them, so no refresh can be staged or "
                "published there. Nothing was created. Use a catalog whose server keeps branches and tags of tables "
                "(Nessie's does not); base tables may be in this one"
            )
        self._keeps_refs = True
        change = TableChange(removes=(branch, tag), drops=(snapshot_id,))
        self.commit(name, str(kept.metadata.table_uuid), change)
        with suppress(OSError):  # an unneeded file does no harm
            kept.io.delete(manifest_list)

    def has_file(self, name: Identifier, location: str) -> bool:
        """Whether a file of the table exists, by the table's own ``FileIO``."""
        with answered(self._catalog.name, f"looking for {location}"):
            return self.open(name).io.new_input(location).exists()

    def drop(self, name: Identifier, *, uuid: str | None, owner: Identifier, purges: bool = False) -> bool:
        """Remove the table from the catalog if it still is this table and belongs to this view. Its files stay.

        Args:
            purges: Whether a server may delete its files, if it drops no table without them.

        Returns:
            Whether it existed.

        Raises:
            UnsupportedError: The server drops a table only with its files.
            MetadataFileNotFoundError, InvalidMetadataError: It exists, but its metadata file is lost or truncated.
        """
        try:
            table = self.open(name)
        except MetadataFileNotFoundError:
            raise
        except NotFoundError:
            return False
        own = table.properties.get(STORAGE_OF_PROPERTY) == owner.within_catalog
        if not own or str(table.metadata.table_uuid) != uuid:
            return False
        try:
            with answered(self._catalog.name, f"dropping table {name}"):
                self._drop(table, name, purges=purges)
        except NoSuchTableError:
            return not self._is_there(name, uuid)
        except MaterializedViewError:
            if self._is_there(name, uuid):
                raise
        return True

    def _drop(self, table: Table, name: Identifier, *, purges: bool) -> None:
        try:
            self._catalog.drop_table(table.name())
        except (BadRequestError, ForbiddenError) as error:
            # S3 Tables drops no table without its files. Of an empty one none is needed.
            if purges or not table.snapshots():
                self._catalog.purge_table(table.name())
                return
            if "purge" not in str(error).lower():
                raise
            raise UnsupportedError(
                f"catalog {self._catalog.name!r} drops no table without its files ({brief(error)}): "
                f"`airflow-mv drop {name} --purge` drops both"
            ) from None

    def _is_there(self, name: Identifier, uuid: str | None) -> bool:
        """Whether the catalog still has this table; true also if it does not respond."""
        try:
            return str(self.open(name).metadata.table_uuid) == uuid
        except NotFoundError:
            return False
        except MaterializedViewError:
            return True


def _properties(like: Table, new: NewTable) -> dict[str, str]:
    own = {STORAGE_OF_PROPERTY: new.owner.within_catalog, _FORMAT_VERSION: str(like.metadata.format_version)}
    return {**like.properties, **own, **new.properties}


def _set_refs(catalog: Catalog, table: Table, branch: str, tag: str) -> tuple[int, str]:
    """Set a branch and a tag of a table to a new snapshot without rows; return its id and its manifest list."""
    change = table.transaction()  # pyiceberg writes a table's first snapshot to ``main`` only, so this is not sent
    with change.update_snapshot().fast_append():
        pass
    snapshot = change.table_metadata.snapshots[-1]
    catalog.commit_table(
        table,
        (AssertTableUUID(uuid=str(table.metadata.table_uuid)),),
        (
            AddSnapshotUpdate(snapshot=snapshot),
            _ref(branch, SnapshotRefType.BRANCH, snapshot.snapshot_id),
            _ref(tag, SnapshotRefType.TAG, snapshot.snapshot_id),
        ),
    )
    return snapshot.snapshot_id, snapshot.manifest_list


def _updates(change: TableChange) -> tuple[TableUpdate, ...]:
    branches = ((name, SnapshotRefType.BRANCH, snapshot) for name, snapshot in change.branches.items())
    tags = ((name, SnapshotRefType.TAG, snapshot) for name, snapshot in change.tags.items())
    return (
        *(_adding(change.columns) if change.columns else ()),
        *(_reshaping(change.shape) if change.shape else ()),
        *(_ref(*ref, age_ms=change.ages.get(ref[0])) for ref in (*branches, *tags)),
        *((SetPropertiesUpdate(updates=dict(change.properties)),) if change.properties else ()),
        *((RemovePropertiesUpdate(removals=list(change.unsets)),) if change.unsets else ()),
        *(RemoveSnapshotRefUpdate(ref_name=name) for name in change.removes),
        *((_forget(change.drops),) if change.drops else ()),
    )


def _fits(table: Table, change: TableChange) -> bool:
    """Whether a table has the snapshots that a change names, and has room for the ones that it adds.

    No requirement covers this, and Java's server calls the request malformed.
    """
    if change.columns is not None and not change.columns.fits(getattr(table.metadata, "last_sequence_number", 0)):
        return False
    added = {item["snapshot-id"] for item in change.columns.snapshots} if change.columns else set()
    named = {*change.drops, *change.branches.values(), *change.tags.values()}
    return named <= added | {item.snapshot_id for item in table.snapshots()}


def _refs_required(table: Table, change: TableChange) -> Iterable[tuple[str, int | None]]:
    """Return the requirements for branches and tags.

    pyiceberg refuses any for another branch or tag than ``main`` if the table has no snapshot. There are none then, and
    ``main`` must not exist either: all copies of the change set it.
    """
    if table.snapshots() or change.requires.get(_MAIN, 0) is not None:
        return change.requires.items()
    return [item for item in change.requires.items() if item[0] == _MAIN or item[1] is not None]


#: The requirements for the fields of :attr:`NewColumns.required`, each with the name of its value.
_REQUIREMENTS: dict[str, tuple[type[TableRequirement], str]] = {
    "current-schema-id": (AssertCurrentSchemaId, "current-schema-id"),
    "last-column-id": (AssertLastAssignedFieldId, "last-assigned-field-id"),
    "default-spec-id": (AssertDefaultSpecId, "default-spec-id"),
    "last-partition-id": (AssertLastAssignedPartitionId, "last-assigned-partition-id"),
}


def _required(key: str, value: int) -> TableRequirement:
    kind, name = _REQUIREMENTS[key]
    return kind.model_validate({name: value})


def _adding(columns: NewColumns) -> Iterator[TableUpdate]:
    for schema in columns.schemas:
        yield AddSchemaUpdate.model_validate({"schema": schema})
    yield SetCurrentSchemaUpdate.model_validate({"schema-id": columns.schema_id})
    for spec in columns.specs:
        yield AddPartitionSpecUpdate.model_validate({"spec": spec})
    yield SetDefaultSpecUpdate.model_validate({"spec-id": columns.spec_id})
    for snapshot in columns.snapshots:
        yield AddSnapshotUpdate.model_validate({"snapshot": snapshot})


def _reshaping(shape: TableShape) -> Iterator[TableUpdate]:
    if shape.schema_id is not None:
        yield SetCurrentSchemaUpdate.model_validate({"schema-id": shape.schema_id})
    if shape.spec_id is not None:
        yield SetDefaultSpecUpdate.model_validate({"spec-id": shape.spec_id})
    if shape.order_id is not None:
        yield SetDefaultSortOrderUpdate.model_validate({"sort-order-id": shape.order_id})


def _location_beside(like: Table, token: UUID) -> str | None:
    """Return a new folder beside the one that a server chose for the template; ``None`` if it named it in its own way.

    In a folder by the table's name there may be files of a table that was dropped, which are not the new one's.
    """
    parent, _, last = like.location().rstrip("/").rpartition("/")
    if last != like.name()[-1]:
        return None
    return f"{parent}/{last.rpartition('__columns_')[0]}-{token.hex[:12]}"


def _ref(name: str, kind: SnapshotRefType, snapshot_id: int, *, age_ms: int | None = None) -> SetSnapshotRefUpdate:
    document = {"ref-name": name, "type": kind, "snapshot-id": snapshot_id, "max-ref-age-ms": age_ms}
    return SetSnapshotRefUpdate.model_validate(document)


def _forget(snapshot_ids: tuple[int, ...]) -> RemoveSnapshotsUpdate:
    return RemoveSnapshotsUpdate.model_validate({"snapshot-ids": list(snapshot_ids)})


# ----------- Views that are tables: the definition is a property of the table under the view's name (layout ``table``)
# A table is such a view if it has a definition that names it: by its name, in the property ``airflow-mv.storage-of``,
# and by its uuid, in the definition. A table that was renamed, or copied with its properties, is an ordinary table.
#
# No requirement of a table commit can name a property. So each definition has an id, and a tag with this id in its
# name: a change of the definition requires the tag of the earlier definition, and replaces it. Of all changes that
# were made from one definition at most one is applied, in catalogs with and without a server.


_READERS = 8
#: Fewer tables than this are looked at sequentially.
_FEW = 16
#: The most earlier metadata files that are read to find out whether a table was a view.
_EARLIER = 10
#: If a server fails for so many tables and returns none, it does not respond.
_MANY_FAILED = 3
#: Errors that leave unknown whether a table is a view.
_OF_ONE_TABLE = (CatalogUnavailableError, ConfigurationError, InvalidMetadataError, NotFoundError, UnsupportedError)
#: How often a creation looks for what has taken the name.
_CREATIONS = 3
#: How long a listing does not read a table again that was not a view, where the catalog does not show that it changed.
ORDINARY_SECONDS = 60.0


def view_in_table(view: Identifier, location: str, table: TableMetadata) -> LoadedView | None:
    """Return the view whose definition a table holds; ``None`` for an ordinary table.

    Raises:
        InvalidMetadataError: The definition is broken. The message names the view, the file and the field.
    """
    text = table.properties.get(DEFINITION_PROPERTY)
    if text is None or table.properties.get(STORAGE_OF_PROPERTY) != view.within_catalog:
        return None
    metadata = parse_definition(text, view=str(view), location=location)
    if metadata.properties.get(STORAGE_TABLE_UUID_PROPERTY) != table.table_uuid:
        return None
    source = f"{location}, property {DEFINITION_PROPERTY}"
    settings = parse_settings(metadata.properties, view=str(view), location=source)
    if settings is None or metadata.properties.get(STORAGE_TABLE_PROPERTY) != view.within_catalog:
        raise InvalidMetadataError(f"view {view}, file {source}: it is not the definition of a materialized view")
    holder = Holder(table, table.properties.get(DEFINITION_ID_PROPERTY, ""))
    return LoadedView(view, location, metadata, settings, holder)


def definition_of(view: Identifier, metadata: ViewMetadata, *, location: str, table_uuid: str) -> ViewMetadata:
    """Return a view's metadata as its table holds it: with the table's name and uuid.

    Its location is the table's. A view that had another layout before keeps its own folder.
    """
    document = metadata.document()
    settings = ViewSettings.read(decode_text(metadata.properties[PROPERTY], source=PROPERTY), source=PROPERTY)
    own = {
        PROPERTY: property_text(settings.repointed(None)),
        STORAGE_TABLE_PROPERTY: view.within_catalog,
        STORAGE_TABLE_UUID_PROPERTY: table_uuid,
    }
    folder = location if metadata.location == CHOSEN_BY_THE_CATALOG else metadata.location
    document |= {"location": folder, "properties": {**metadata.properties, **own}}
    return ViewMetadata.read(document, source=f"definition of view {view}")


def definition_change(view: Identifier, holder: Holder, metadata: ViewMetadata) -> TableChange:
    """Return the commit that writes another definition, if the loaded one is still the present one.

    Args:
        metadata: The view's new metadata.
    """
    table, definition_id = holder.table, uuid.uuid4().hex
    snapshot = table.head if holder.tagged is None else holder.tagged
    return TableChange(
        requires={_MAIN: table.head, holder.tag: holder.tagged},
        tags={definition_tag(definition_id): snapshot} if snapshot is not None else {},
        removes=(holder.tag,) if holder.tagged is not None else (),
        properties=definition_properties(view, table, metadata, definition_id),
    )


def definition_properties(
    view: Identifier, table: TableMetadata, metadata: ViewMetadata, definition_id: str
) -> dict[str, str]:
    """Return the properties of a table that hold a view's definition.

    Args:
        definition_id: The id of the change that writes it.
    """
    definition = definition_of(view, metadata, location=table.location, table_uuid=table.table_uuid or "")
    return {
        DEFINITION_PROPERTY: definition_text(definition, view=str(view)),
        DEFINITION_ID_PROPERTY: definition_id,
    }


@dataclass(frozen=True, slots=True)
class _Listed:
    """A table of a listing.

    Args:
        location: Its metadata file, if the catalog lists it.
    """

    identifier: Identifier
    location: str | None


@dataclass(frozen=True, slots=True)
class _Seen:
    """The result of an earlier listing.

    Args:
        location: The table's metadata file at that time, if the catalog listed it.
        is_view: Whether the table was a view; of one that could not be read, whether it may be one.
        until: When the table is to be read again, by the monotonic clock.
        error: Why it could not be read.
    """

    location: str | None
    is_view: bool
    until: float
    error: MaterializedViewError | None = None


class TableViews:
    """The views of a catalog that are tables.

    Args:
        catalog: A catalog whose table commits check their requirements.
        files: The store behind it.
        entries: Its entries, if they name the tables' metadata files. A REST server has none.
        rest: The server, if there is one.
        has_lost: Whether a table has lost the properties by which it was a view of its name.
    """

    def __init__(
        self,
        catalog: Catalog,
        files: MetadataFiles,
        tables: StorageTables,
        entries: SqlPointers | Metastore | None,
        rest: RestViews | None = None,
        has_lost: Callable[[Identifier], bool] = lambda _: False,
    ) -> None:
        self._catalog, self._files, self._tables, self._entries, self._rest = catalog, files, tables, entries, rest
        self._has_lost = has_lost
        self._seen: dict[Identifier, _Seen] = {}

    def names(self, namespace: tuple[str, ...] | None) -> list[Identifier]:
        """Return the views among the tables of a namespace, or of the whole catalog.

        A table is read again if the catalog names another metadata file for it. Where the catalog names none, views are
        read each time, and ordinary tables once a minute. A table that cannot be read is returned if an earlier listing
        or an earlier metadata file shows that it was a view, or if its server failed: loading it raises the error. The
        others are in :attr:`unread`.

        Raises:
            CatalogUnavailableError: The catalog does not respond.
        """
        listed, now = list(self._listed(namespace)), time.monotonic()
        new = [item for item in listed if not self._is_known(item, now)]
        for item, seen in zip(new, self._looked(new), strict=True):
            self._seen[item.identifier] = seen
        self._forget_errors(namespace, {item.identifier for item in listed})
        failed = [self._seen[item.identifier].error for item in new]
        away = [error for error in failed if isinstance(error, CatalogUnavailableError)]
        of_server = [error for error in away if not isinstance(error, StoreUnavailableError)]
        if len(of_server) >= _MANY_FAILED and len(of_server) == len(failed):
            raise of_server[0]
        return [item.identifier for item in listed if self._seen[item.identifier].is_view]

    @property
    def unread(self) -> dict[Identifier, MaterializedViewError]:
        """The tables that the listings so far could not read and did not return, and why."""
        return {name: seen.error for name, seen in self._seen.items() if seen.error is not None and not seen.is_view}

    @property
    def ordinary(self) -> dict[Identifier, str]:
        """The tables that are no views, with the metadata files in which that was seen."""
        return {
            name: seen.location
            for name, seen in self._seen.items()
            if seen.location is not None and not seen.is_view and seen.until == math.inf
        }

    def note_ordinary(self, tables: Mapping[Identifier, str]) -> None:
        """Take from an earlier process what :attr:`ordinary` was there, so that these files are not read again."""
        for name, location in tables.items():
            self._seen.setdefault(name, _Seen(location, is_view=False, until=math.inf))

    def _forget_errors(self, namespace: tuple[str, ...] | None, listed: Collection[Identifier]) -> None:
        """Forget the tables that could not be read and no longer exist."""
        for name, seen in list(self._seen.items()):
            if seen.error is not None and namespace in (None, name.namespace) and name not in listed:
                del self._seen[name]

    def _is_known(self, item: _Listed, now: float) -> bool:
        seen = self._seen.get(item.identifier)
        return seen is not None and seen.location == item.location and now < seen.until

    def _looked(self, wanted: Sequence[_Listed]) -> list[_Seen]:
        if len(wanted) < _FEW:
            return [self._look(item) for item in wanted]
        context = copy_context()
        with ThreadPoolExecutor(_READERS) as readers:
            return list(readers.map(lambda item: context.copy().run(self._look, item), wanted))

    def _look(self, item: _Listed) -> _Seen:
        name, soon = item.identifier, time.monotonic() + ORDINARY_SECONDS
        try:
            found = self._properties(item)
        except _OF_ONE_TABLE as error:
            # A table that cannot be read, or was dropped in between, must not prevent the listing of the others.
            may_be_view = self._may_be_view(item, error)
            known = "treating it as one" if may_be_view else "skipping it"
            # Those of a store are reported together, by `left_out`.
            level = logging.INFO if isinstance(error, StoreUnavailableError) else logging.WARNING
            log.log(level, "Could not determine whether the table %s is a view, %s: %s", name, known, error)
            return _Seen(item.location, may_be_view, soon, error)
        is_view = _names(name, found.properties) or (found.has_definition and self._was_view(name, found.properties))
        if item.location is not None:
            return _Seen(item.location, is_view, until=math.inf)  # a metadata file never changes
        soon = 0.0 if DEFINITION_ID_PROPERTY in found.properties else soon  # it may be one that is being created
        return _Seen(None, is_view, until=0.0 if is_view else soon)

    def _was_view(self, name: Identifier, properties: Mapping[str, Any]) -> bool:
        """Whether a table with the tag of a definition has lost properties by which it was a view of its name."""
        if properties.get(STORAGE_OF_PROPERTY) == name.within_catalog:
            return True
        if DEFINITION_PROPERTY in properties and names_other(name, str(properties[DEFINITION_PROPERTY])):
            return False  # it was renamed, or is a copy
        return self._has_lost(name)

    def _may_be_view(self, item: _Listed, error: MaterializedViewError) -> bool:
        """Whether a table that cannot be read was a view before; or the server failed, and nothing is known of it."""
        seen = self._seen.get(item.identifier)
        if seen is not None and seen.is_view:
            return True
        if item.location is None:
            return seen is None and isinstance(error, CatalogUnavailableError)
        if isinstance(error, StoreUnavailableError):
            return False  # its earlier files are in the same store
        with suppress(MaterializedViewError):
            folder = item.location.rpartition("/")[0]
            names = sorted(
                file.location for file in self._files.list(folder) if file.location.endswith(METADATA_SUFFIXES)
            )
            for location in names[: -_EARLIER - 1 : -1]:
                with suppress(MaterializedViewError):
                    found = read_part(self._files, location, TableProperties, what="earlier file")
                    return _names(item.identifier, found.properties)
        return False

    def _properties(self, item: _Listed) -> TableProperties:
        if item.location is not None:
            return read_part(
                self._files, item.location, TableProperties, what=f"table {item.identifier}, metadata file"
            )
        if self._rest is not None:
            return self._rest.table_properties(item.identifier)
        return TableProperties(self._tables.open(item.identifier).properties)

    def _listed(self, namespace: tuple[str, ...] | None) -> Iterator[_Listed]:
        if self._entries is not None:
            for space, name, location in self._entries.tables(namespace):
                yield from self._legal(space, name, location)
            return
        with answered(self._catalog.name, "listing tables"):
            spaces = [namespace] if namespace is not None else list(namespaces_of(self._catalog))
            for each in spaces:
                try:
                    listed = self._catalog.list_tables(each)
                except NoSuchNamespaceError:
                    continue
                for *parts, name in listed:
                    yield from self._legal(tuple(parts), name, None)

    def _legal(self, space: tuple[str, ...], name: str, location: str | None) -> Iterator[_Listed]:
        try:
            yield _Listed(Identifier(self._catalog.name, space, name), location)
        except InvalidIdentifierError as error:
            log.warning("Catalog %r: skipping a table with an invalid name: %s", self._catalog.name, error)

    # -- creation ----------------------------------------------------------------------------------

    def create(self, view: Identifier, metadata: ViewMetadata, template: Identifier) -> None:
        """Create a view's table with its definition and without rows.

        One commit adds the definition and an empty snapshot, because the definition's tag needs one. It also creates
        the table, but not behind a REST server: see :mod:`airflow_mv.core.catalog.first_commit`.

        Args:
            metadata: Its first metadata. Its location is used where the client chooses locations.
            template: The table with the view's columns and partitioning.

        Raises:
            AlreadyExistsError: The name is taken, by a view or a table.
            CommitStateUnknownError: No answer. The view may be created, even later.
        """
        self._seen.pop(view, None)
        token = uuid.UUID(metadata.view_uuid)  # all copies of a creation have the same
        if self._rest is not None:
            own = {DEFINITION_ID_PROPERTY: token.hex}
            self._create_on_server(view, metadata, NewTable(template, view, metadata.location, token, own))
            return
        new = NewTable(template, view, metadata.location, token)
        with taken(f"a table or view {view} exists already"):
            creation = self._tables.staged(view, new)
            self._define(view, metadata, creation)
            self._tables.send(view, creation)

    def _create_on_server(self, view: Identifier, metadata: ViewMetadata, new: NewTable) -> None:
        like = self._tables.open(new.like)
        # A definition that is too long is refused before anything is made.
        definition_text(definition_of(view, metadata, location=like.location(), table_uuid=_uuid(like)), view=str(view))
        for _ in range(_CREATIONS):
            taken_by: AlreadyExistsError | None = None
            try:
                self._tables.create(view, new)
            except AlreadyExistsError as error:
                taken_by = error
            table = self._unfinished(view)
            if table is None and taken_by is not None:
                raise taken_by
            if table is not None and self._tables.commit(view, _uuid(table), _first(view, table, metadata, new, like)):
                return
        raise AlreadyExistsError(f"a table or view {view} exists already; choose another name or use replace")

    def _unfinished(self, view: Identifier) -> Table | None:
        """Return the table that a creation of the view has made, this one or another, if it has no definition yet."""
        try:
            table = self._tables.open(view)
        except NotFoundError:
            return None
        return table if is_unfinished(view, table.properties, table.refs()) else None

    def _define(self, view: Identifier, metadata: ViewMetadata, creation: CreateTableTransaction) -> None:
        table, definition_id = creation.table_metadata, uuid.uuid4().hex
        definition = definition_of(view, metadata, location=table.location, table_uuid=str(table.table_uuid))
        text = definition_text(definition, view=str(view))
        with answered(self._catalog.name, f"creating view {view}"):
            creation.set_properties({DEFINITION_PROPERTY: text, DEFINITION_ID_PROPERTY: definition_id})
            folder = first_folder(table.location)
            with creation.update_snapshot().fast_append():
                pass
            snapshot = creation.table_metadata.current_snapshot()
            if snapshot is None:
                raise InvalidMetadataError(f"view {view}: its table was staged without a snapshot")
            flush(snapshot.manifest_list, folder)
            tag = definition_tag(definition_id)
            ManageSnapshots(creation).create_tag(snapshot.snapshot_id, tag).commit()


def read_part(files: MetadataFiles, location: str, part: type[Part], *, what: str) -> Part:
    """Read some fields of a metadata file.

    Args:
        part: A structure with these fields.

    Raises:
        InvalidMetadataError: It is not a metadata file.
        MetadataFileNotFoundError: It does not exist.
    """
    try:
        return msgspec.json.decode(unpacked(files.read(location, what=what), f"{what} {location}"), type=part)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidMetadataError(f"{what} {location}: {error}") from None


def names_other(view: Identifier, definition: str) -> bool:
    """Whether a table's definition is of a view of another name."""
    try:
        metadata = parse_definition(definition, view=str(view), location="")
    except InvalidMetadataError:
        return False
    return metadata.properties.get(STORAGE_TABLE_PROPERTY) != view.within_catalog


def _names(view: Identifier, properties: Mapping[str, object]) -> bool:
    """Whether a table's properties have a definition for the table's name."""
    return DEFINITION_PROPERTY in properties and properties.get(STORAGE_OF_PROPERTY) == view.within_catalog


def _first(view: Identifier, table: Table, metadata: ViewMetadata, new: NewTable, like: Table) -> TableChange:
    """Return the commit that adds a new view's definition to its table."""
    snapshot_id, content = first_content(table, like)
    definition = definition_of(view, metadata, location=table.location(), table_uuid=_uuid(table))
    return TableChange(
        requires={_MAIN: None},
        branches={_MAIN: snapshot_id},
        tags={definition_tag(new.token.hex): snapshot_id},
        properties={**new.properties, DEFINITION_PROPERTY: definition_text(definition, view=str(view))},
        columns=content,
    )


def _uuid(table: Table) -> str:
    return str(table.metadata.table_uuid)
