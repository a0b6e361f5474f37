# SPDX-License-Identifier: Apache-2.0
"""Views that are tables: the definition is a property of the table under the view's name (layout ``table``).

A table is such a view if it has a definition that names it: by its name, in the property ``airflow-mv.storage-of``, and
by its uuid, in the definition. A table that was renamed, or copied with its properties, is an ordinary table.

No requirement of a table commit can name a property. So each definition has an id, and a tag with this id in its name:
a change of the definition requires the tag of the earlier definition, and replaces it. Of all changes that were made
from one definition at most one is applied, in catalogs with and without a server.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.table import CreateTableTransaction
from pyiceberg.table.update.snapshot import ManageSnapshots

from airflow_mv.catalog.answers import answered
from airflow_mv.catalog.durability import first_folder, flush
from airflow_mv.catalog.entries import read_places
from airflow_mv.catalog.files import METADATA_SUFFIXES, MetadataFiles
from airflow_mv.catalog.loaded import Holder, LoadedView
from airflow_mv.catalog.metastores import Metastore
from airflow_mv.catalog.rest import CHOSEN_BY_THE_CATALOG, RestViews, TableProperties, namespaces_of
from airflow_mv.catalog.sql import SqlPointers
from airflow_mv.catalog.tables import NewTable, StorageTables, TableChange, taken
from airflow_mv.errors import (
    CatalogUnavailableError,
    ConfigurationError,
    InvalidIdentifierError,
    InvalidMetadataError,
    MaterializedViewError,
    NotFoundError,
    StoreUnavailableError,
    UnsupportedError,
)
from airflow_mv.spec.definition import definition_text, parse_definition
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.materialized_view import (
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
from airflow_mv.spec.stored import decode_text
from airflow_mv.spec.table import TableMetadata
from airflow_mv.spec.view import ViewMetadata

log = logging.getLogger(__name__)

_MAIN = "main"
_READERS = 8
#: Fewer tables than this are looked at sequentially.
_FEW = 16
#: The most earlier metadata files that are read to find out whether a table was a view.
_EARLIER = 10
#: If a server fails for so many tables and returns none, it does not respond.
_MANY_FAILED = 3
#: Errors that leave unknown whether a table is a view.
_OF_ONE_TABLE = (CatalogUnavailableError, ConfigurationError, InvalidMetadataError, NotFoundError, UnsupportedError)
#: How long a listing does not read a table again that was not a view, where the catalog does not show that it changed.
ORDINARY_SECONDS = 60.0


def view_in_table(view: Identifier, location: str, table: TableMetadata) -> LoadedView | None:
    """Return the view whose definition a table holds; ``None`` for an ordinary table.

    Args:
        view: The table's name.
        location: Its metadata file.
        table: Its content.

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

    Args:
        view: The view.
        metadata: Its metadata.
        location: The table's location.
        table_uuid: The table's uuid.
    """
    document = metadata.document()
    settings = ViewSettings.read(
        {**decode_text(metadata.properties[PROPERTY], source=PROPERTY), "storage-table-location": location},
        source=PROPERTY,
    )
    own = {
        PROPERTY: property_text(settings),
        STORAGE_TABLE_PROPERTY: view.within_catalog,
        STORAGE_TABLE_UUID_PROPERTY: table_uuid,
    }
    folder = location if metadata.location == CHOSEN_BY_THE_CATALOG else metadata.location
    document |= {"location": folder, "properties": {**metadata.properties, **own}}
    return ViewMetadata.read(document, source=f"definition of view {view}")


def definition_change(view: Identifier, holder: Holder, metadata: ViewMetadata) -> TableChange:
    """Return the commit that writes another definition, if the loaded one is still the present one.

    Args:
        view: The view.
        holder: Its table.
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
        view: The view.
        table: The table.
        metadata: The view's metadata.
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
        identifier: Its name.
        location: Its metadata file, if the catalog lists it.
    """

    identifier: Identifier
    location: str | None


@dataclass(frozen=True, slots=True)
class _Seen:
    """What an earlier listing found.

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
        tables: Its tables.
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
        or an earlier metadata file shows that it was a view, or if its server failed: loading it tells why. The others
        are in :attr:`unread`.

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
        """Forget the tables that could not be read and do not exist any more."""
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
            known = "it may be one" if may_be_view else "it is left out"
            # Those of a store are reported together, by `left_out`.
            level = logging.INFO if isinstance(error, StoreUnavailableError) else logging.WARNING
            log.log(level, "It is not known whether the table %s is a view (%s): %s", name, known, error)
            return _Seen(item.location, may_be_view, soon, error)
        is_view = _names(name, found.properties) or (found.has_definition and self._was_view(name, found.properties))
        if item.location is not None:
            return _Seen(item.location, is_view, until=math.inf)  # a metadata file never changes
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
                    return _names(item.identifier, read_places(self._files, location, what="earlier file").properties)
        return False

    def _properties(self, item: _Listed) -> TableProperties:
        if item.location is not None:
            return read_places(self._files, item.location, what=f"table {item.identifier}, metadata file")
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
            log.warning("Catalog %r holds a table that has no legal name, left out: %s", self._catalog.name, error)

    # -- creation ----------------------------------------------------------------------------------

    def create(self, view: Identifier, metadata: ViewMetadata, template: Identifier) -> None:
        """Create a view's table with its definition and without rows, in one commit.

        The commit adds an empty snapshot, because the definition's tag needs one.

        Args:
            view: The view.
            metadata: Its first metadata. Its location is used where the client chooses locations.
            template: The table with the view's columns and partitioning.

        Raises:
            AlreadyExistsError: The name is taken, by a view or a table.
            CommitStateUnknownError: No answer. The view may be created, even later.
        """
        self._seen.pop(view, None)
        new = NewTable(template, view, metadata.location, _token(metadata))
        with taken(f"a table or view {view} exists already"):
            creation = self._tables.staged(view, new)
            self._define(view, metadata, creation)
            self._tables.send(view, creation)

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


def _token(metadata: ViewMetadata) -> uuid.UUID:
    """Return the uuid of a new view's table: all copies of a creation have the same."""
    return uuid.UUID(metadata.view_uuid)
