# SPDX-License-Identifier: Apache-2.0
"""Storage tables by their names in the catalog: create, open, change in one commit, drop."""

from __future__ import annotations

import logging
import secrets
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from uuid import UUID

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
)
from pyiceberg.schema import Schema
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
from pyiceberg.types import BooleanType, NestedField

from airflow_mv.catalog.answers import NO_ANSWER, answered, brief, refusal_of, refusals
from airflow_mv.catalog.empty_table import EmptyTable
from airflow_mv.catalog.files import MetadataFiles
from airflow_mv.catalog.loaded import LoadedView
from airflow_mv.catalog.untrusted_input import require_no_writer
from airflow_mv.errors import (
    AlreadyExistsError,
    ClockError,
    CommitStateUnknownError,
    InvalidMetadataError,
    MaterializedViewError,
    MetadataFileNotFoundError,
    NotFoundError,
    UnsupportedError,
)
from airflow_mv.script import MAX_AHEAD_MS
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.materialized_view import STORAGE_OF_PROPERTY, STORAGE_TABLE_UUID_PROPERTY
from airflow_mv.spec.new_columns import NewColumns
from airflow_mv.spec.table import TableMetadata, TableShape

log = logging.getLogger(__name__)

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
        owner: The view.
        location: Its folder. A REST server chooses its own.
        token: Its uuid where the client chooses it; part of its folder's name otherwise.
    """

    like: Identifier
    owner: Identifier
    location: str
    token: UUID


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
        view: The view.
        name: The table's name in the view.
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
            f"view {who}: the table {name} is not its storage table (uuid {table.table_uuid}, not {wanted}): someone "
            f"dropped it and created another. {advice}"
        )
    owner = table.properties.get(STORAGE_OF_PROPERTY)
    if owner != who.within_catalog:
        raise InvalidMetadataError(
            f"view {who}: the table {name} does not say that it is this view's storage table (property "
            f"{STORAGE_OF_PROPERTY}: {owner!r}). If another program has removed or changed the property, `airflow-mv "
            f"repair {who} --yes` puts it back; else make a new table with `airflow-mv create {who} --replace` and a "
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

    def commit(self, name: Identifier, uuid: str, change: TableChange) -> str | None:
        """Change a table in one commit.

        Args:
            name: The table.
            uuid: The table's uuid, because another table may have taken the name.
            change: The change.

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
        with answered(self._catalog.name, f"a commit to table {name}"):
            try:
                return self._catalog.commit_table(table, requirements, _updates(change)).metadata_location
            except CommitFailedException:
                return None
            except ValueError as error:
                # pyiceberg raises these for a change that no longer fits the table, or for an unreadable answer.
                log.warning("A commit to table %s was refused: %s", name, brief(error))
                return None
            except NO_ANSWER as error:
                refusal = refusal_of(self._catalog.name, f"a commit to table {name}", error)
                raise CommitStateUnknownError(
                    f"table {name}: no response to a commit: {brief(error)}", refusal
                ) from None
            except refusals() as error:
                refusal = refusal_of(self._catalog.name, f"a commit to table {name}", error)
                raise CommitStateUnknownError(f"table {name}: a commit was refused: {brief(error)}", refusal) from None

    def create(self, name: Identifier, new: NewTable) -> None:
        """Create an empty table in one commit.

        Raises:
            AlreadyExistsError: The name is taken.
            CommitStateUnknownError: No answer. The table may be created, even later.
        """
        with taken(f"a table or view {name} exists already"):
            self.send(name, self.staged(name, new))

    def register(self, name: Identifier, location: str) -> None:
        """Add the entry of a table of which there is a metadata file. If the name is taken, nothing is done.

        Raises:
            CatalogUnavailableError: No answer. The entry may be added, even later.
        """
        with answered(self._catalog.name, f"registering table {name}"), suppress(TableAlreadyExistsError):
            self._catalog.register_table((*name.namespace, name.name), location)

    def staged(self, name: Identifier, new: NewTable) -> CreateTableTransaction:
        """Return the commit that creates a table.

        All copies of it have one folder, and one uuid if the client chooses it: the files of a copy that is not
        applied are the table's own.

        Raises:
            TableAlreadyExistsError: The name is taken.
        """
        like = self.open(new.like)
        properties = {
            **like.properties,
            STORAGE_OF_PROPERTY: new.owner.within_catalog,
            _FORMAT_VERSION: str(like.metadata.format_version),
        }
        full_name = (*name.namespace, name.name)
        with answered(self._catalog.name, f"creating table {name}"):
            if isinstance(self._catalog, RestCatalog):
                created: CreateTableTransaction = self._catalog.create_table_transaction(
                    full_name,
                    like.schema(),
                    location=_location_beside(like, new.token),
                    partition_spec=like.spec(),
                    sort_order=like.sort_order(),
                    properties=properties,
                )
                return created
            self.require_clock_at(new.location, f"table {name}")
            shape = (like.schema(), like.spec(), like.sort_order())
            metadata = new_table_metadata(*shape, new.location, properties, new.token)
            io = self._files.io(new.location, what=f"table {name}")
            return CreateTableTransaction(
                StagedTable(full_name, metadata, f"{new.location}/metadata", io, self._catalog)
            )

    @contextmanager
    def temporary(self, name: Identifier, owner: Identifier) -> Iterator[str]:
        """Create an empty table in a folder that the catalog chooses, yield the folder, and drop the table at the end.

        A process that is killed in between leaves the table.

        Args:
            name: The table.
            owner: The view for which it is created.

        Raises:
            AlreadyExistsError: The name is taken.
            CatalogUnavailableError: The catalog did not respond.
        """
        schema = Schema(NestedField(1, "nothing", BooleanType()))
        properties = {STORAGE_OF_PROPERTY: owner.within_catalog}
        with taken(f"a table or view {name} exists already"), answered(self._catalog.name, f"creating table {name}"):
            table = self._catalog.create_table((*name.namespace, name.name), schema, properties=properties)
        try:
            yield table.location()
        finally:
            try:
                self.drop(name, uuid=str(table.metadata.table_uuid), owner=owner)
            except MaterializedViewError as error:
                log.warning("The empty table %s stays, though it is unneeded: %s", name, error)

    def create_empty(self, name: Identifier, location: str | None, table: EmptyTable) -> str:
        """Create an empty table, and return its metadata file.

        Args:
            name: Its name.
            location: Its folder; ``None``: the catalog chooses it.
            table: The table.

        Raises:
            AlreadyExistsError: The name is taken.
            NotFoundError: The namespace does not exist.
            CatalogUnavailableError: No answer. The table may be created, even later.
        """
        with taken(f"a table or view {name} exists already"), answered(self._catalog.name, f"creating table {name}"):
            try:
                made = self._catalog.create_table(
                    (*name.namespace, name.name),
                    table.schema,
                    location=location,
                    partition_spec=table.spec,
                    properties=table.all_properties,
                )
            except NoSuchNamespaceError:
                raise NotFoundError(f"there is no namespace {'.'.join(name.namespace)} for table {name}") from None
        return made.metadata_location

    def send(self, name: Identifier, creation: CreateTableTransaction) -> None:
        """Send the commit that creates a table.

        Raises:
            TableAlreadyExistsError, CommitFailedException: The name is taken.
            CommitStateUnknownError: No answer. The table may be created, even later.
        """
        try:
            creation.commit_transaction()
        except NO_ANSWER as error:
            refusal = refusal_of(self._catalog.name, f"creating table {name}", error)
            text = f"table {name}: no response to its creation: {brief(error)}"
            raise CommitStateUnknownError(text, refusal) from None
        except refusals() as error:
            refusal = refusal_of(self._catalog.name, f"creating table {name}", error)
            raise CommitStateUnknownError(f"table {name}: its creation was refused: {brief(error)}", refusal) from None

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
                f"table {name} was last changed {behind_ms / 1000:.0f} s in the future of the clock of this host "
                f"({socket.gethostname()}). Nothing was published. Set that clock right; if it is right, the view "
                "holds times of a wrong clock: correct them with `airflow-mv repair VIEW`"
            )
        # The file was written before now, by the store's clock: if it is recent, the clock need not be read.
        if now_ms <= self._files.modified_ms(table.metadata_location) + MAX_AHEAD_MS:
            return
        self.require_clock_at(table.metadata_location.rpartition("/")[0], f"table {name}", now_ms)

    def require_clock_at(self, folder: str, what: str, now_ms: int | None = None) -> None:
        """Check that this host's clock is not ahead of a store's clock.

        Args:
            folder: A folder of the store.
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
            UnsupportedError: The server has dropped one of them.
        """
        if self._keeps_refs or not isinstance(self._catalog, RestCatalog):
            return  # elsewhere pyiceberg itself writes the metadata
        branch, tag = (f"airflow_mv_probe_{kind}_{secrets.token_hex(4)}" for kind in ("branch", "tag"))
        table, what = self.open(name), f"a branch and a tag of table {name}"
        with answered(self._catalog.name, what):
            snapshot_id, manifest_list = _set_refs(self._catalog, table, branch, tag)
        kept = self.open(name)
        dropped = [ref for ref in (branch, tag) if ref not in kept.refs()]
        if dropped:
            raise UnsupportedError(
                f"catalog {self._catalog.name!r} accepted {what} and does not keep them: no refresh could be staged or "
                "published there. Nothing was created; keep materialized views in a catalog whose server keeps "
                "branches and tags of tables (Nessie's does not), base tables may be in this one"
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

    def drop(self, name: Identifier, *, uuid: str | None, owner: Identifier) -> bool:
        """Remove the table from the catalog if it still is this table and belongs to this view. Its files stay.

        Returns:
            Whether it existed.

        Raises:
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
                self._catalog.drop_table((*name.namespace, name.name))
        except NoSuchTableError:
            return not self._is_there(name, uuid)
        except MaterializedViewError:
            if self._is_there(name, uuid):
                raise
        return True

    def _is_there(self, name: Identifier, uuid: str | None) -> bool:
        """Whether the catalog still has this table; true also if it does not respond."""
        try:
            return str(self.open(name).metadata.table_uuid) == uuid
        except NotFoundError:
            return False
        except MaterializedViewError:
            return True


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
