# SPDX-License-Identifier: Apache-2.0
"""A catalog that holds materialized views, on top of a pyiceberg catalog."""

from __future__ import annotations

import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ForbiddenError, NoSuchNamespaceError, NoSuchTableError, NotInstalledError
from pyiceberg.utils.config import Config
from sqlalchemy.exc import DBAPIError

from airflow_mv.core.catalog.answers import AWAY, REFUSED_CREDENTIALS, answered
from airflow_mv.core.catalog.avro import flush_snapshots
from airflow_mv.core.catalog.configured import LAYOUT_PROPERTY, spark_settings_of
from airflow_mv.core.catalog.files import MetadataFiles, discard, flush, flush_table_commits, local_path
from airflow_mv.core.catalog.first_commit import is_unfinished
from airflow_mv.core.catalog.layouts import (
    Layout,
    LoadedStorage,
    ViewSupport,
    storage_place,
    stored_layout,
    supported_layouts,
    unnamed,
)
from airflow_mv.core.catalog.limits import note_tables, opening, restrain
from airflow_mv.core.catalog.loaded import LoadedView, Located, Row
from airflow_mv.core.catalog.locations import (
    allowed_folders,
    check_confined,
    check_own_file,
    check_regular,
    is_local,
    join,
    lies_in,
    path_segment,
)
from airflow_mv.core.catalog.lost_properties import LostProperties, lost_properties
from airflow_mv.core.catalog.metastores import Metastore, metastore_of
from airflow_mv.core.catalog.path_tables import locate_path, read_path
from airflow_mv.core.catalog.pyiceberg_compat import session_of
from airflow_mv.core.catalog.rest import CHOSEN_BY_THE_CATALOG, NAMES_NO_VIEWS, RestViews
from airflow_mv.core.catalog.rest_session import CONCURRENT
from airflow_mv.core.catalog.sql import TABLE, VIEW, SqlPointers
from airflow_mv.core.catalog.tables import (
    StorageTables,
    TableViews,
    definition_change,
    names_other,
    view_in_table,
)
from airflow_mv.core.catalog.vended import VendedCredentials
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import (
    DEFINITION_PROPERTY,
    STORAGE_OF_PROPERTY,
    is_definition_tag,
    parse_settings,
)
from airflow_mv.core.spec.stored import decode, whole_number
from airflow_mv.core.spec.table_metadata import Snapshot, TableMetadata, parse_table, selected
from airflow_mv.core.spec.times import from_ms
from airflow_mv.core.spec.view import ViewMetadata, parse_view
from airflow_mv.errors import (
    AlreadyExistsError,
    CatalogNotFoundError,
    CatalogUnavailableError,
    ConfigurationError,
    InvalidIdentifierError,
    InvalidMetadataError,
    InvalidQueryError,
    MaterializedViewError,
    MetadataFileNotFoundError,
    NewerFormatError,
    NotFoundError,
    RefusedLocationError,
    UnsupportedError,
    ViewNotFoundError,
)
from airflow_mv.foundation.redaction import hide_secrets, quiet_warnings, without_secrets

log = logging.getLogger(__name__)

#: How databases refuse a connection that no later try can make.
_REFUSED_BY_DATABASE = re.compile(
    r"(?i)authentication failed|access denied|(database|role) .* does not exist|no pg_hba\.conf entry"
    r"|no password supplied|file is not a database"
)
#: A database's URI with two ``@``. SQLAlchemy would take the rest of the password for a part of the host.
_TWO_AT = re.compile(r"(?!https?:)[\w+]+://[^/?]*@[^/?]*@")


class CatalogFolders:
    """Where the files of a catalog's views may be, and are written.

    Args:
        catalog: pyiceberg's catalog.
        files: The store behind it.
        by_server: Whether a REST server chooses the locations of views and tables.
        metastore: The metastore, if the catalog is one.
    """

    def __init__(
        self,
        catalog: Catalog,
        properties: Mapping[str, str],
        files: MetadataFiles,
        *,
        by_server: bool,
        metastore: Metastore | None,
    ) -> None:
        self._catalog = catalog
        self._properties = properties
        self._files = files
        self._by_server = by_server
        self._metastore = metastore

    def new(self, view: Identifier) -> str:
        """Return a new directory for a view: its names as safe path segments, and a uuid.

        Raises:
            NotFoundError: The namespace does not exist.
            InvalidIdentifierError: The catalog does not accept the name.
            ConfigurationError: The catalog has no warehouse, or stores may read the warehouse's or the namespace's
                location in different ways.
        """
        if self._metastore is not None:
            self._metastore.require_name(view)
        if self._by_server:
            self._folder_of(view.namespace)
            return CHOSEN_BY_THE_CATALOG
        base = self._checked_folder(view.namespace, f"put {view} under")
        return join(base, f"{path_segment(view.name)[:100]}-{uuid.uuid4().hex[:12]}")

    def of_application(self, namespace: tuple[str, ...]) -> str | None:
        """Return a new folder for a shared Spark application; ``None`` where a server chooses the folders.

        Raises:
            NotFoundError, ConfigurationError: As for :meth:`new`.
        """
        if self._by_server:
            return None
        # Iceberg's removal of orphan files skips folders whose names begin with an underscore.
        return join(self._checked_folder(namespace, "keep files in"), "_airflow_mv_applications", uuid.uuid4().hex)

    def shared(self, view: Identifier) -> tuple[str, ...]:
        """Return the folders that several views share: the warehouse, and that of the view's namespace."""
        return tuple(filter(None, (self._properties.get("warehouse"), self._folder_of(view.namespace))))

    def of(self, view: LoadedView) -> tuple[str, ...]:
        """Return the folders that may contain a view's files.

        Raises:
            InvalidMetadataError: Its own metadata files would be written elsewhere.
        """
        folders = allowed_folders(self._properties, view.metadata_location)
        what = f"view {view.identifier}, place of its metadata"
        for place in (view.metadata.location, view.metadata.metadata_folder):
            check_confined(place, folders, what=what)
            check_regular(place, what=what)
        return folders

    def below(self, location: str, name: str) -> str | None:
        """Return a place in a folder, such as a storage table's; ``None`` where a server chooses places."""
        return None if self._by_server else join(location, name)

    def allowed(self, metadata_location: str, location: str) -> tuple[str, ...]:
        """Return the folders that may contain the files of a table that is not a view's.

        Args:
            location: Its folder, which is allowed if a server chose it.
        """
        folders = allowed_folders(self._properties, metadata_location)
        return (*folders, location) if self._by_server else folders

    def now_ms(self, folder: str, own_ms: int) -> int:
        """Return the clock of a folder's store; where a server writes the times, this host's: the server's decides.

        Args:
            own_ms: This host's clock.
        """
        return own_ms if self._by_server else self._files.now_ms(folder)

    def ahead_ms(self, location: str, time_ms: int) -> int:
        """Return how far a time in a file is ahead of the store's clock; 0 where a server writes the times."""
        return 0 if self._by_server else time_ms - self._files.modified_ms(location)

    def discard(self, location: str) -> None:
        """Delete a table's metadata file that was not published. A server deletes the files that it has written."""
        if not self._by_server:
            discard(self._files, location)

    def flush_new(self, location: str) -> None:
        """Flush a local file that Spark has written, and the folders from there up to the warehouse."""
        if self._by_server:
            return
        warehouse = self._properties.get("warehouse", "")
        flush(location, local_path(warehouse) if warehouse else None)

    def flush(self, view: LoadedView, snapshots: Sequence[Snapshot]) -> None:
        """Flush the local files that new snapshots of a view's storage table have added, before they are published."""
        lists = {item.snapshot_id: item.manifest_list for item in snapshots if item.manifest_list is not None}
        local = {snapshot: location for snapshot, location in lists.items() if is_local(location)}
        if local:
            io = self._files.io(next(iter(local.values())), what=f"view {view.identifier}, manifest list")
            flush_snapshots(io, local, self.of(view))

    def _checked_folder(self, namespace: tuple[str, ...], purpose: str) -> str:
        base = self._folder_of(namespace)
        if base is None:
            raise ConfigurationError(f"catalog {self._catalog.name!r} has no property 'warehouse' to {purpose}")
        given = "property 'warehouse'"
        if self.namespace(namespace).get("location"):
            given = f"property 'location' of the namespace {'.'.join(namespace)!r}"
        try:
            check_regular(base, what=f"catalog {self._catalog.name!r}, {given}")
        except InvalidMetadataError as error:
            raise ConfigurationError(str(error)) from None
        return base

    def _folder_of(self, namespace: tuple[str, ...]) -> str | None:
        location, warehouse = self.namespace(namespace).get("location"), self._properties.get("warehouse")
        by_name = join(warehouse, *(path_segment(part) for part in namespace)) if warehouse else None
        return location or by_name

    def namespace(self, namespace: tuple[str, ...]) -> Mapping[str, str]:
        """Return a namespace's properties.

        Raises:
            NotFoundError: It does not exist.
        """
        try:
            with answered(self._catalog.name, f"loading namespace {'.'.join(namespace)}"):
                return self._catalog.load_namespace_properties(namespace)
        except NoSuchNamespaceError:
            raise NotFoundError(
                f"namespace {'.'.join(namespace)!r} does not exist in catalog {self._catalog.name!r}; create it first"
            ) from None


class MaterializedViewCatalog:
    """Materialized views in a pyiceberg catalog.

    Args:
        catalog: A pyiceberg catalog, or its name in pyiceberg's configuration: ``PYICEBERG_CATALOG__<NAME>__…``.

    Raises:
        CatalogNotFoundError: No catalog of this name is configured.
        CatalogUnavailableError: The catalog does not respond.
        ConfigurationError: The catalog cannot be opened, or its tables have an old layout that cannot hold views.
    """

    #: The views of a REST catalog.
    rest: RestViews | None = None
    #: The entries of a metastore.
    metastore: Metastore | None = None

    def __init__(self, catalog: Catalog | str) -> None:
        self._catalog = open_configured(catalog) if isinstance(catalog, str) else catalog
        #: The pyiceberg catalog, for tables that belong to no view.
        self.iceberg: Catalog = self._catalog
        self.name: str = self._catalog.name
        self.properties: dict[str, str] = dict(self._catalog.properties)
        rest = self._catalog if isinstance(self._catalog, RestCatalog) else None
        #: Whether a REST server chooses locations, and returns metadata with each answer.
        self.is_rest: bool = rest is not None
        #: Whether views are rows of a database, which are found in one query, and swapped.
        self.is_sql: bool = isinstance(self._catalog, SqlCatalog)
        self._vended = VendedCredentials(self.name, self.properties) if rest else None
        self.files = MetadataFiles(self.properties, self._vended)
        self._pointers = SqlPointers(self._catalog) if isinstance(self._catalog, SqlCatalog) else None
        self.rest = RestViews(rest, self._vended) if rest and self._vended else None
        self.tables = StorageTables(self._catalog, self.files)
        self.metastore = None if rest or self._pointers else metastore_of(self._catalog)
        #: The entries of a SQL catalog or a metastore; a REST server exposes none.
        self.entries = self._pointers or self.metastore
        self.folders = CatalogFolders(
            self._catalog,
            self.properties,
            self.files,
            by_server=self.is_rest,
            metastore=self.metastore,
        )
        self.table_views = TableViews(
            self._catalog,
            self.files,
            self.tables,
            self.entries,
            self.rest,
            lambda name: _may_have_lost(self, name),
        )
        restrain(self._catalog)
        if rest and self._vended:
            note_tables(rest, self._vended)
        flush_table_commits(self._catalog)
        hide_secrets(self.properties)
        self._others: dict[str, MaterializedViewCatalog] = {self.name: self}
        self._opening = threading.RLock()
        #: The formats of the tables named by path that were looked for so far: Spark needs a package for some.
        self.formats: set[str] = set()
        #: Opens other catalogs by name; the default is pyiceberg's configuration.
        self.openers: Mapping[str, Callable[[], MaterializedViewCatalog]] = {}

    def other(self, name: str) -> MaterializedViewCatalog:
        """Return the catalog with a name, which may be this one."""
        with self._opening:
            if name not in self._others:
                opener = self.openers.get(name)
                self._others[name] = opener() if opener else MaterializedViewCatalog(name)
            return self._others[name]

    @property
    def holds_views(self) -> bool:
        """Whether materialized views can be in this catalog; base tables can be in any."""
        if self.rest is not None:
            return self.rest.supported or self.rest.commits_tables
        return self._pointers is not None or self.metastore is not None

    @property
    def _lists_tables(self) -> bool:
        """Whether views may be among the catalog's tables."""
        return self.rest is None or self.rest.commits_tables

    @property
    def _has_view_entries(self) -> bool:
        """Whether the catalog itself has views, beside tables. If it can have neither, the request for views fails."""
        if self.rest is None:
            return self.metastore is None
        return self.rest.supported or not self._lists_tables

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The layouts that views of this catalog can have; the first is the default.

        The catalog property ``airflow-mv.layout`` chooses it, if the catalog supports that layout.
        """
        return supported_layouts(self.view_support, self.properties.get(LAYOUT_PROPERTY))

    @property
    def view_support(self) -> ViewSupport:
        """Whether the catalog has views, and can swap their pointers."""
        if self._has_view_entries:
            return ViewSupport(self.is_sql, None)
        return ViewSupport(
            self.is_sql, f"has no support for views {NAMES_NO_VIEWS}" if self.is_rest else "has no support for views"
        )

    @property
    def pointers(self) -> SqlPointers:
        """The rows of a SQL catalog.

        Raises:
            UnsupportedError: The catalog is of another kind.
        """
        if self.metastore is not None:
            raise UnsupportedError(
                f"catalog {self.name!r} ({self.metastore.service}) supports materialized views of the layout 'table' "
                "only"
            )
        if self._pointers is None:
            raise UnsupportedError(
                f"catalog {self.name!r} ({type(self._catalog).__name__}) cannot hold materialized views. Use a SQL "
                "catalog (type=sql), a REST catalog (type=rest), AWS Glue (type=glue) or a Hive Metastore (type=hive) "
                "for them; base tables may be in any catalog"
            )
        return self._pointers

    def home_of(self, identifier: Identifier) -> MaterializedViewCatalog:
        """Return the catalog of a name. A table that is named by path is read with this catalog's access to stores."""
        return self if identifier.path is not None else self.other(identifier.catalog)

    def opened(self) -> dict[str, MaterializedViewCatalog]:
        """This catalog and the others that have been opened so far, by name."""
        return dict(self._others)

    def close(self) -> None:
        """Close the connections of this catalog and of those that it has opened. Later calls open new ones."""
        for catalog in list(self._others.values()):
            if isinstance(catalog._catalog, SqlCatalog):
                catalog._catalog.engine.dispose()
            elif isinstance(catalog._catalog, RestCatalog):
                session_of(catalog._catalog).close()

    def identify(self, view: str | Identifier) -> Identifier:
        """Parse a view's name; the catalog's name may be left out of ``catalog.namespace.name``."""
        if isinstance(view, Identifier):
            return view
        return Identifier.parse(view, default_catalog=self.name)

    # -- views ---------------------------------------------------------------------------------

    def load(self, view: str | Identifier, located: Located | None = None) -> LoadedView:
        """Load a view, materialized or plain.

        Args:
            located: The view, if it was located.

        Raises:
            ViewNotFoundError: The catalog has no such view.
            InvalidMetadataError: Its metadata is broken.
            MetadataFileNotFoundError: Its metadata file does not exist.
        """
        identifier = self.identify(view)
        if located is not None and located.view is not None:
            return located.view
        if located is not None:
            with repairable(identifier):
                return self._require_own(self.load_at(identifier, located.metadata_location))
        found = None
        if self.rest is not None:
            found = self.rest.load(identifier) if self._has_view_entries else None
            located = None if found else self._load_table(identifier)
        elif self._has_view_entries:
            location, kind = self.pointers.get(identifier)
            if kind == VIEW:
                with repairable(identifier):
                    return self._require_own(self.load_at(identifier, location or ""))
            located = Located("table", location) if location else None
        else:
            located = self._locate_own([identifier]).get(identifier)
        if found is None:
            with repairable(identifier):
                found = self._table_view(identifier, located)
        if found is None:
            what = f"{identifier} is a table, not a view" if located else f"there is no view {identifier}"
            raise ViewNotFoundError(f"{what} in catalog {self.name!r}")
        return found

    def _table_view(self, identifier: Identifier, located: Located | None) -> LoadedView | None:
        """Return the view whose definition a located table holds; ``None`` if it holds none."""
        location, table = self._opened_table(identifier, located)
        found = view_in_table(identifier, location, table) if table is not None else None
        if found is None and table is not None and any(map(is_definition_tag, table.refs)):
            self._require_definition(identifier, location, table)
        other = table.properties.get(STORAGE_OF_PROPERTY) if table is not None else None
        if found is None and table is not None and is_unfinished(identifier, table.properties, table.refs):
            raise ViewNotFoundError(
                f"{identifier} is an empty table, not a view in catalog {self.name!r}: the creation of the view did "
                "not finish. Create the view again, or drop the table"
            )
        if found is None and table is not None and DEFINITION_PROPERTY in table.properties:
            raise ViewNotFoundError(
                f"{identifier} is a table, not a view in catalog {self.name!r}: its metadata file {location} was "
                f"written for the view {other!r}. A renamed view is an ordinary table; if it was not renamed, "
                f"`airflow-mv repair {identifier}` shows what can be done"
            )
        return found

    def _require_definition(self, identifier: Identifier, location: str, table: TableMetadata) -> None:
        """Raise if another program has taken the definition of a view from its table. A renamed view is no longer one.

        Raises:
            InvalidMetadataError: Names the properties, and the time until which they were there.
        """
        definition = table.properties.get(DEFINITION_PROPERTY)
        if definition is not None and names_other(identifier, definition):
            return
        lost = _lost_from(self.files, identifier, location, table)
        if lost is not None:
            until = from_ms(lost.until_ms).isoformat(timespec="seconds")
            raise InvalidMetadataError(
                f"{identifier} was a view until {until}: another program has removed or changed {lost.names} of its "
                f"table. `airflow-mv repair {identifier} --yes` restores it"
            )
        if table.properties.get(STORAGE_OF_PROPERTY) == identifier.within_catalog:
            raise InvalidMetadataError(
                f"{identifier} was a view: another program has removed {DEFINITION_PROPERTY} of its table, and no "
                f"earlier metadata file has it: `airflow-mv drop {identifier} --force`, and create it again"
            )

    def load_at(self, identifier: Identifier, location: str) -> LoadedView:
        """Load a view's given metadata file."""
        what = f"view {identifier}, metadata file"
        data = self.files.read(location, what=what)
        metadata = parse_view(data, view=str(identifier), location=location)
        settings = parse_settings(metadata.properties, view=str(identifier), location=location)
        return LoadedView(identifier, location, metadata, settings)

    def _require_own(self, view: LoadedView) -> LoadedView:
        """Return a view of a SQL catalog after a check that its metadata file is not a copy of another view's.

        Raises:
            InvalidMetadataError: The file is in this view's folder, but by its content it belongs elsewhere.
        """
        location, folder = view.metadata_location, view.metadata.metadata_folder
        if view.settings is None or lies_in(location, (folder,)):
            return view
        before = self.pointers.previous(view.identifier) or location
        what = f"view {view.identifier}, metadata file"
        check_own_file(location, before.rpartition("/")[0], (folder,), what=what)
        return view

    def load_storage(self, view: LoadedView) -> LoadedStorage:
        """Load the storage table of a loaded view.

        Raises:
            NotMaterializedError: The view is a plain one.
            NotFoundError: The table that it names was dropped, renamed or replaced by another.
            CatalogUnavailableError: Another command changed the view since it was loaded, and the table is gone with
                the state that was loaded.
        """
        try:
            return self._load_storage(view)
        except NotFoundError:
            if self.load(view.identifier).metadata_location != view.metadata_location:
                raise CatalogUnavailableError(
                    f"view {view.identifier} was changed by another command while it was read: try again"
                ) from None
            raise

    def _load_storage(self, view: LoadedView) -> LoadedStorage:
        with repairable(view.identifier):
            layout, place = stored_layout(view), storage_place(view)
            folders = self.folders.of(view)
            if isinstance(place, Identifier):
                # One metadata file has the definition and the rows: both are of the same state.
                held = view.holder
                found = None if held else self.locate([place]).get(place)
                location, table = (view.metadata_location, held.table) if held else self._opened_table(place, found)
                folders += layout.beside(view, location) if self.is_rest else ()
                what = f"view {view.identifier}, storage table {place}"
            else:
                if layout.lacking(self.view_support):
                    raise InvalidMetadataError(unnamed(view))
                what = f"view {view.identifier}, storage table file {place}"
                location, table = place, self._table_in(view, place, folders)
            return layout.opened(view, location, table, folders, what=what)

    def _opened_table(self, name: Identifier, located: Located | None) -> tuple[str, TableMetadata | None]:
        """Return a table's metadata file and its content; an empty text and ``None`` if there is no such table."""
        found = self.table_metadata(name, located, unique=True) if located and located.kind == "table" else None
        return located.metadata_location if located else "", found

    def _table_in(self, view: LoadedView, location: str, folders: tuple[str, ...]) -> TableMetadata:
        what = f"view {view.identifier}, storage table file"
        check_confined(location, folders, what=what)
        check_regular(location, what=what)
        data = self.files.read(location, what=what)
        return parse_table(data, source=f"{what} {location}", unique=True)

    def list(self, namespace: str | tuple[str, ...] | None = None) -> list[Identifier]:
        """List the views of a namespace, or of the whole catalog, plain ones included.

        Raises:
            NotFoundError: The namespace does not exist.
        """
        wanted = tuple(namespace.split(".")) if isinstance(namespace, str) else namespace
        found = []
        entries = (self.rest or self.pointers).names(wanted) if self._has_view_entries else ()
        for space, name in entries:
            try:
                found.append(Identifier(self.name, space, name))
            except InvalidIdentifierError as error:
                # A row with an invalid name must not prevent the listing of the others.
                log.warning("Catalog %r: skipping a view with an invalid name: %s", self.name, error)
        if self._lists_tables:
            found += self.table_views.names(wanted)
        if wanted is not None and not found:
            self.folders.namespace(wanted)
        return sorted(found, key=attrgetter("parts"))

    def exists(self, view: str | Identifier) -> bool:
        """Whether the catalog holds a view of this name, or one that cannot be read."""
        identifier = self.identify(view)
        if self._pointers is not None and self._pointers.get(identifier)[1] == VIEW:
            return True  # even if its metadata file is lost
        try:
            self.load(identifier)
        except ViewNotFoundError:
            return False
        except (InvalidMetadataError, MetadataFileNotFoundError, NewerFormatError):
            return True
        return True

    def create(
        self,
        view: str | Identifier,
        metadata: ViewMetadata,
        location: str | None = None,
        *,
        template: Identifier | None = None,
    ) -> LoadedView:
        """Write the first metadata file of a view and add its row.

        Args:
            location: The metadata file, if it is already written. The caller deletes it if the name is taken.
            template: The table with the view's columns, if the view itself becomes a table.

        Raises:
            AlreadyExistsError: The name is taken.
            CommitStateUnknownError: No answer. The view may be created, even later. Nothing is deleted.
        """
        identifier = self.identify(view)
        if template is not None:
            return self._create_table(identifier, metadata, template)
        if self.rest is not None:
            return self.rest.create(identifier, metadata)
        first = location or self.write_metadata(metadata, number=0)
        try:
            self.pointers.insert(identifier, first)
        except AlreadyExistsError:
            if location is None:
                discard(self.files, first)
            raise
        settings = parse_settings(metadata.properties, view=str(identifier), location=first)
        return LoadedView(identifier, first, metadata, settings)

    def _create_table(self, view: Identifier, metadata: ViewMetadata, template: Identifier) -> LoadedView:
        try:
            self.table_views.create(view, metadata, template)
        except AlreadyExistsError:
            kind = "view" if self.exists(view) else "table"
            raise AlreadyExistsError(f"a {kind} {view} exists already; choose another name or use replace") from None
        return self.load(view)

    def write_metadata(self, metadata: ViewMetadata, *, number: int) -> str:
        """Write a view metadata file under a new name, and return the name. No pointer names it yet."""
        location = join(metadata.metadata_folder, f"{number:05d}-{uuid.uuid4()}{metadata.file_suffix}")
        self.files.write(location, metadata.to_bytes())
        return location

    def swap(self, name: Identifier, base: str, new: str, *, kind: str = VIEW) -> bool:
        """Make an entry name another metadata file if it names ``base`` now, in one conditional change.

        Args:
            name: The view; or a table, with the ``kind`` ``TABLE``: for repairs only, commits use ``tables.commit``.
            base: The metadata file that the entry must name.
            new: The metadata file that it names afterwards.
            kind: The kind that the entry must have.

        Returns:
            Whether the entry matched. ``False`` does not prove that an earlier, identical swap was not applied.

        Raises:
            UnsupportedError: Only the catalog's server can change pointers.
            CommitStateUnknownError: No answer. The change may be applied, even later.
        """
        if self.metastore is not None and kind == TABLE:
            return self.metastore.swap(name, base, new)
        return self.pointers.swap(name, base, new, kind=kind)

    def replace(self, view: LoadedView, metadata: ViewMetadata) -> bool:
        """Publish changed metadata of a loaded view, and return whether it was published.

        A REST catalog applies the changes to the current state of the view, which may be newer.
        """
        if view.holder is not None:
            change = definition_change(view.identifier, view.holder, metadata)
            return self.tables.commit(view.identifier, view.holder.table.table_uuid or "", change) is not None
        if self.rest is not None:
            return self.rest.replace(view, metadata)
        new = self.write_metadata(metadata, number=next_number(view.metadata_location))
        if self.swap(view.identifier, view.metadata_location, new):
            return True
        # If no row matched, nothing is proven: the statement may have been sent twice, or may still be applied.
        now = self.pointers.get(view.identifier)[0]
        if now not in (new, view.metadata_location):
            discard(self.files, new)
        return now == new

    def drop_table(
        self, name: Identifier, table: TableMetadata, location: str, *, owner: Identifier, purges: bool = False
    ) -> bool:
        """Remove a table that was made for a view, if it is as it was loaded. A server can only require its uuid.

        Args:
            table: Its content when it was loaded.
            location: Its metadata file at that time.
            purges: Whether a server may delete its files, if it drops no table without them.
        """
        if self.is_sql:
            return self.pointers.delete(name, base=location, kind=TABLE)
        return self.tables.drop(name, uuid=table.table_uuid, owner=owner, purges=purges)

    def drop(self, view: str | Identifier) -> None:
        """Remove the view of a name from the catalog, whichever view it is; its files stay.

        Raises:
            ViewNotFoundError: There was no such view.
            CommitStateUnknownError: No answer. The view may be removed, even later.
        """
        identifier = self.identify(view)
        if not (self.rest or self.pointers).delete(identifier):
            raise ViewNotFoundError(f"there is no view {identifier} in catalog {self.name!r}")

    def row(self, name: Identifier) -> Row | None:
        """Return the entry of a table or view in a SQL catalog, or of a table in a metastore.

        Returns:
            ``None`` if there is none, or if the catalog is a REST server, which does not expose entries.
        """
        return self.entries.row(name) if self.entries is not None else None

    # -- base tables ---------------------------------------------------------------------------

    def locate(self, identifiers: Sequence[Identifier]) -> dict[Identifier, Located]:
        """Locate the names of a query, across catalogs. Unknown names are left out.

        A SQL catalog locates all of its names in one query, without opening a file.

        Raises:
            InvalidQueryError: A name such as ``branch_x`` selects from a view, or is also a table's name.
            InvalidMetadataError: A path is not allowed, or there is not one current metadata file.
        """
        selecting = {name: table for name in identifiers if name.selector and (table := name.selects_from)}
        wanted = tuple(dict.fromkeys((*identifiers, *selecting.values())))
        places: dict[Identifier, Located] = {}
        by_catalog: dict[str, list[Identifier]] = {}
        for identifier in wanted:
            if identifier.path is None:
                by_catalog.setdefault(identifier.catalog, []).append(identifier)
            elif identifier not in selecting:
                self.formats.add(identifier.kind.data_source)
                located = locate_path(self.files, self.properties, identifier)
                places |= {identifier: located} if located is not None else {}
        for catalog in sorted(by_catalog):
            places |= self.other(catalog)._locate_own(by_catalog[catalog])
        for name, table in selecting.items():
            if table in places:
                places[name] = _selecting(name, places.get(name), table, places[table])
        return {name: places[name] for name in identifiers if name in places}

    def _locate_own(self, identifiers: Sequence[Identifier]) -> dict[Identifier, Located]:
        if self.metastore is not None:
            rows = {item: self.metastore.row(item) for item in identifiers}
            return {item: Located("table", row.location) for item, row in rows.items() if row}
        if self._pointers is None:
            with ThreadPoolExecutor(CONCURRENT) as readers:
                each = readers.map(lambda item: self._load_table(item) or self._load_view(item), identifiers)
                return {item: located for item, located in zip(identifiers, each, strict=True) if located}
        return {
            item: Located("view" if kind == VIEW else "table", location)
            for item, (location, kind) in self._pointers.locate(identifiers).items()
        }

    def _load_table(self, identifier: Identifier) -> Located | None:
        try:
            with answered(self.name, f"loading table {identifier}"):
                table = self._catalog.load_table((*identifier.namespace, identifier.name))
        except NoSuchTableError:
            return None
        metadata = parse_table(table.metadata.model_dump_json().encode(), source=f"table {identifier}")
        return Located("table", table.metadata_location, metadata)

    def _load_view(self, identifier: Identifier) -> Located | None:
        if self.rest is None or not self.rest.supported:
            return None
        view = self.rest.load(identifier)
        return Located("view", view.metadata_location, view=view) if view else None

    def table_metadata(self, identifier: Identifier, located: Located, *, unique: bool = False) -> TableMetadata:
        """Return a located table's metadata. If the catalog did not return it, it is read by :func:`parse_table`.

        Raises:
            SnapshotNotFoundError: The name selects a branch, tag, snapshot or time that the table does not have.
        """
        table = located.table
        if table is None and identifier.path is not None:
            named = identifier.selects_from or identifier
            table = read_path(self.files, self.properties, named, located.metadata_location)
        if table is None:
            what = f"table {identifier}, metadata file"
            data = self.home_of(identifier).files.read(located.metadata_location, what=what)
            table = parse_table(data, source=f"{what} {located.metadata_location}", unique=unique)
        selector = identifier.selector
        if located.place is None or selector is None:
            return table
        return selected(table, selector, name=str(identifier.selects_from), now_ms=time.time_ns() // 1_000_000)

    def load_table(self, name: Identifier, *, what: str) -> tuple[str, TableMetadata]:
        """Return a table's metadata file and its content."""
        located = self._locate_own([name]).get(name)
        if located is None:
            raise NotFoundError(f"{what}: there is no table {name} in catalog {self.name!r}")
        return located.metadata_location, self.table_metadata(name, located)


def write_first(catalog: MaterializedViewCatalog, metadata: ViewMetadata, template: Identifier | None) -> str | None:
    """Write a view's first metadata file; ``None`` if a server writes it, or the view becomes a table.

    Args:
        catalog: Where the view is created.
        template: The table with the view's columns, if the view itself becomes a table.
    """
    return None if catalog.is_rest or template is not None else catalog.write_metadata(metadata, number=0)


def pointers_of(catalog: MaterializedViewCatalog, names: Sequence[Identifier]) -> dict[Identifier, str]:
    """Return the metadata files that names stand for, as far as that costs a query and no request for each name."""
    if catalog.is_rest:
        return {}
    return {name: place.metadata_location for name, place in catalog.locate(names).items()}


def reusable(
    catalog: MaterializedViewCatalog, wanted: Sequence[Identifier], located: Mapping[Identifier, Located]
) -> dict[Identifier, Located]:
    """Return the earlier answers that do not have to be asked for again.

    A catalog that can locate several names in one query gets one query: separate answers may be of states that never
    existed together.
    """
    return {
        name: located[name]
        for name in wanted
        if name in located and (len(wanted) == 1 or not catalog.home_of(name).is_sql)
    }


def stored_view(catalog: MaterializedViewCatalog, view: LoadedView) -> dict[str, Any]:
    """Return a view's metadata as stored, or as a REST catalog returns it."""
    if catalog.is_rest or view.holder is not None:
        return view.metadata.document()
    what = f"view {view.identifier}, metadata file"
    return decode(catalog.files.read(view.metadata_location, what=what), source=what)


def stored_table(catalog: MaterializedViewCatalog, view: LoadedView, storage: LoadedStorage) -> dict[str, Any]:
    """Return a storage table's metadata as stored, or as a REST catalog returns it."""
    what = f"view {view.identifier}, storage table file"
    if catalog.is_rest:
        text = storage.open(catalog.tables).metadata.model_dump_json()
        return decode(text.encode(), source=what)
    return decode(catalog.files.read(storage.location, what=what), source=what)


def lost_properties_of(catalog: MaterializedViewCatalog, name: Identifier, owner: Identifier) -> LostProperties | None:
    """Return what another program has removed or changed of the properties of a view's table.

    Args:
        name: The table: the view itself, or its storage table.

    Raises:
        InvalidMetadataError, MetadataFileNotFoundError: The table cannot be read.
        NewerFormatError: A newer program wrote its record.
    """
    located = catalog.locate([name]).get(name)
    if located is None or located.kind != "table":
        return None
    table = catalog.table_metadata(name, located, unique=True)
    return _lost_from(catalog.files, owner, located.metadata_location, table)


def _lost_from(files: MetadataFiles, owner: Identifier, location: str, table: TableMetadata) -> LostProperties | None:
    def read(earlier: str) -> TableMetadata | None:
        try:
            return files.read_table(earlier, what=f"view {owner}, earlier metadata file")
        except (InvalidMetadataError, NotFoundError):
            return None

    return lost_properties(owner, location, table, read)


def _may_have_lost(catalog: MaterializedViewCatalog, name: Identifier) -> bool:
    """Whether a table has lost the properties of a view, for a listing: one that cannot be read may have."""
    try:
        return lost_properties_of(catalog, name, name) is not None
    except MaterializedViewError:
        return True


def _selecting(name: Identifier, own: Located | None, table: Identifier, located: Located) -> Located:
    """Return where a name such as ``orders.branch_x`` is, given where the table ``orders`` is."""
    if own is not None:
        raise InvalidQueryError(
            f"{name} is ambiguous: it is a table, and a branch, tag or snapshot of the table {table}. Readers differ "
            "in which one they read: rename one of them"
        )
    if located.kind == "view":
        raise InvalidQueryError(f"{name} selects a snapshot of {table}, which is a view: only tables have snapshots")
    return replace(located, place=located.place or table)


@contextmanager
def repairable(view: Identifier) -> Iterator[None]:
    """Add a hint on ``airflow-mv repair`` to errors about broken or missing files."""
    try:
        yield
    except RefusedLocationError:
        raise  # nothing is known to be broken
    except (InvalidMetadataError, MetadataFileNotFoundError) as error:
        advice = f"`airflow-mv repair {view}` shows what can be done"
        raise error if advice in str(error) else type(error)(f"{error}. {advice}") from None


def next_number(metadata_location: str) -> int:
    """Return the number of the next metadata file; 0 follows the names of other writers."""
    head = metadata_location.rsplit("/", 1)[-1].split("-", 1)[0]
    return whole_number(head, 0) + 1


def open_configured(name: str) -> Catalog:
    """Open a configured catalog.

    Raises:
        CatalogNotFoundError: There is none of this name.
        ConfigurationError, CatalogUnavailableError: See :func:`catalog_errors`.
    """
    known: Mapping[str, Any] = Config().config.get("catalog") or {}  # type: ignore[assignment]
    properties = {key.lower(): value for key, value in known.items()}.get(name.lower())
    if properties is None:
        listed = ", ".join(sorted(known)) or "none"
        underscore = " (pyiceberg takes '_' in a variable's name for '-')" if "_" in name else ""
        raise CatalogNotFoundError(
            f"no catalog {name!r} is configured (configured: {listed}). Set PYICEBERG_CATALOG__{name.upper()}__TYPE "
            f"and its other properties{underscore}, write a .pyiceberg.yaml, or name an Airflow connection "
            "with --conn-id"
        )
    with catalog_errors(f"catalog {name!r}", properties):
        catalog = load_catalog(name)
    written = spark_settings_of(name)
    catalog.properties = {written.get(key, key): value for key, value in catalog.properties.items()}
    return catalog


def _refusal(error: Exception, text: str, cause: str, properties: Mapping[str, Any]) -> str | None:
    """Return why a database can never be opened with these properties; ``None``: it may only not respond now."""
    if isinstance(error, DBAPIError) and _REFUSED_BY_DATABASE.search(text):
        return f"{cause}; check its uri, user and password"
    uri = str(properties.get("uri", ""))
    folder = Path(uri.removeprefix("sqlite:///").partition("?")[0]).parent
    if uri.startswith("sqlite:///") and not folder.is_dir():
        return f"there is no folder {folder}; see its uri"
    return None


@contextmanager
def catalog_errors(what: str, properties: Mapping[str, Any]) -> Iterator[None]:
    """Translate errors of opening a catalog. The secrets in its properties are removed from errors and warnings.

    Args:
        what: What is opened, for the message.

    Raises:
        CatalogUnavailableError: The catalog does not respond.
        ConfigurationError: The catalog cannot be opened.
    """
    _require_escaped(what, str(properties.get("uri", "")))
    try:
        with quiet_warnings(properties), opening():
            yield
    except MaterializedViewError:
        raise
    except NotInstalledError as error:
        extra = without_secrets(str(error), properties).replace("pyiceberg[", "airflow-mv[")
        raise ConfigurationError(f"{what} cannot be opened: {extra}") from None
    except (*REFUSED_CREDENTIALS, ForbiddenError) as error:
        raise ConfigurationError(
            f"{what} cannot be opened: its server refused the credentials ({type(error).__name__}); check token, "
            "credential and oauth2-server-uri in its properties"
        ) from None
    except (DBAPIError, OSError, *AWAY) as error:
        text = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        notes = getattr(getattr(error, "orig", None) or error, "__notes__", ())
        cause = without_secrets(": ".join((text, *notes)), properties)
        if refusal := _refusal(error, text, cause, properties):
            raise ConfigurationError(f"{what} cannot be opened: {refusal}") from None
        raise CatalogUnavailableError(f"{what} does not respond: {type(error).__name__}: {cause}") from None
    except Exception as error:  # noqa: BLE001 (each catalog type has its own)
        if isinstance(error, ValidationError) and error.title.endswith("Response"):
            cause = "the server at its uri does not implement Iceberg's REST catalog API; check the uri"
            raise ConfigurationError(f"{what} cannot be opened: {cause}") from None
        cause = without_secrets(str(error), properties)
        raise ConfigurationError(f"{what} cannot be opened: {type(error).__name__}: {cause}") from None


def _require_escaped(what: str, uri: str) -> None:
    if _TWO_AT.match(uri):
        raise ConfigurationError(
            f"{what} cannot be opened: the user or password in its uri holds an '@'. Write it as %40: the host begins "
            "after the first '@'"
        )
