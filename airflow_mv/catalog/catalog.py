# SPDX-License-Identifier: Apache-2.0
"""A catalog that holds materialized views, on top of a pyiceberg catalog."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.utils.config import Config
from sqlalchemy.exc import SQLAlchemyError

from airflow_mv.catalog.files import MetadataFiles, join, path_segment
from airflow_mv.catalog.sql import VIEW, SqlPointers
from airflow_mv.errors import (
    AlreadyExistsError,
    CatalogNotFoundError,
    ConfigurationError,
    InvalidIdentifierError,
    InvalidMetadataError,
    NotFoundError,
    NotMaterializedError,
    UnsupportedError,
    ViewNotFoundError,
)
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.materialized_view import StorageState, ViewSettings, parse_settings, parse_storage_state
from airflow_mv.spec.stored import whole_number
from airflow_mv.spec.table import TableMetadata, parse_table
from airflow_mv.spec.view import ViewMetadata, parse_view

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedStorage:
    """A storage table as one metadata file tells it.

    Args:
        location: That metadata file.
        table: Its content, cut down to what is used.
        state: The refresh history, or ``None`` where it was never refreshed.
    """

    location: str
    table: TableMetadata
    state: StorageState | None


@dataclass(frozen=True, slots=True)
class LoadedView:
    """A view as one metadata file tells it; the base of every swap.

    Args:
        identifier: The view.
        metadata_location: The file that the pointer named when it was read.
        metadata: Its content.
        settings: The materialization's settings, or ``None`` for a plain view.
    """

    identifier: Identifier
    metadata_location: str
    metadata: ViewMetadata
    settings: ViewSettings | None

    @property
    def default_catalog(self) -> str:
        """The catalog of names in the query that have none of their own."""
        return self.metadata.current_version.default_catalog or self.identifier.catalog

    @property
    def materialized(self) -> ViewSettings:
        """The settings of a materialized view.

        Raises:
            NotMaterializedError: It is a plain view.
        """
        if self.settings is None:
            raise NotMaterializedError(
                f"view {self.identifier} is a plain view, not a materialized one; "
                f"`airflow-mv create {self.identifier}` (without --sql) turns it into one"
            )
        return self.settings


@dataclass(frozen=True, slots=True)
class Located:
    """Where a name in a query leads.

    Args:
        kind: What the catalog holds under the name.
        metadata_location: Its current metadata file.
        table: Its metadata, where the catalog gave it along with the pointer.
    """

    kind: Literal["table", "view"]
    metadata_location: str
    table: TableMetadata | None = None


class MaterializedViewCatalog:
    """Materialized views in a pyiceberg catalog.

    Args:
        catalog: A pyiceberg catalog, or the name of one in pyiceberg's configuration
            (``.pyiceberg.yaml`` or ``PYICEBERG_CATALOG__<NAME>__…``).

    Raises:
        CatalogNotFoundError: No catalog of this name is configured.
        ConfigurationError: The catalog cannot be reached or is of a layout that holds no views.
    """

    def __init__(self, catalog: Catalog | str) -> None:
        self._catalog = _open(catalog) if isinstance(catalog, str) else catalog
        self.name: str = self._catalog.name
        self.properties: dict[str, str] = dict(self._catalog.properties)
        self.files = MetadataFiles(self.properties)
        self._pointers = SqlPointers(self._catalog) if isinstance(self._catalog, SqlCatalog) else None
        self._others: dict[str, MaterializedViewCatalog] = {self.name: self}

    def other(self, name: str) -> MaterializedViewCatalog:
        """Return the catalog that a base table's first name part means; this one for its own name."""
        if name not in self._others:
            self._others[name] = MaterializedViewCatalog(name)
        return self._others[name]

    @property
    def holds_views(self) -> bool:
        """Whether materialized views can be in this catalog; base tables can be in any."""
        return self._pointers is not None

    def opened(self) -> dict[str, MaterializedViewCatalog]:
        """This catalog and the others that names have led to so far, by name."""
        return dict(self._others)

    def identify(self, view: str | Identifier) -> Identifier:
        """Parse a view's name; the catalog's name may be left out of ``catalog.namespace.name``."""
        if isinstance(view, Identifier):
            return view
        return Identifier.parse(view, default_catalog=self.name)

    # -- views ---------------------------------------------------------------------------------

    def load(self, view: str | Identifier) -> LoadedView:
        """Load a view, materialized or plain.

        Raises:
            ViewNotFoundError: The catalog has no such view.
            InvalidMetadataError: Its metadata is broken.
            MetadataFileNotFoundError: Its metadata file is gone.
        """
        identifier = self.identify(view)
        location, kind = self._views.get(identifier)
        if kind != VIEW:
            what = f"{identifier} is a table, not a view" if location else f"there is no view {identifier}"
            raise ViewNotFoundError(f"{what} in catalog {self.name!r}")
        return self.load_at(identifier, location or "")

    def load_at(self, identifier: Identifier, location: str) -> LoadedView:
        """Load a view's given metadata file."""
        data = self.files.read(location, what=f"view {identifier}, metadata file")
        metadata = parse_view(data, view=str(identifier), location=location)
        settings = parse_settings(metadata.properties, view=str(identifier), location=location)
        return LoadedView(identifier, location, metadata, settings)

    def load_storage(self, view: LoadedView) -> LoadedStorage:
        """Load the storage table that a loaded view points at.

        Raises:
            NotMaterializedError: The view is a plain one.
        """
        location = view.materialized.storage_table_location
        what = f"view {view.identifier}, storage table file"
        data = self.files.read(location, what=what)
        table = parse_table(data, source=f"{what} {location}")
        state = parse_storage_state(table.properties, view=str(view.identifier), location=location)
        return LoadedStorage(location, table, state)

    def list(self, namespace: str | tuple[str, ...] | None = None) -> list[Identifier]:
        """List the views of a namespace, or of the whole catalog, plain ones included.

        Raises:
            NotFoundError: The namespace does not exist.
        """
        wanted = tuple(namespace.split(".")) if isinstance(namespace, str) else namespace
        found = []
        for space, name in self._views.names(wanted):
            try:
                found.append(Identifier(self.name, space, name))
            except InvalidIdentifierError as error:
                # Someone else's row must not hide all the others.
                log.warning("Catalog %r holds a view that has no legal name, left out: %s", self.name, error)
        if wanted is not None and not found:
            self._namespace(wanted)
        return found

    def exists(self, view: str | Identifier) -> bool:
        """Whether the catalog holds a view of this name."""
        return self._views.get(self.identify(view))[1] == VIEW

    def new_location(self, view: Identifier) -> str:
        """Return a fresh directory for a view: names become harmless segments, and a uuid keeps it unique.

        Raises:
            NotFoundError: The namespace does not exist.
            ConfigurationError: The catalog has no warehouse.
        """
        base = self._namespace(view.namespace).get("location")
        if base is None:
            warehouse = self.properties.get("warehouse")
            if not warehouse:
                raise ConfigurationError(f"catalog {self.name!r} has no property 'warehouse' to put {view} under")
            base = join(warehouse, *(path_segment(part) for part in view.namespace))
        return join(base, f"{path_segment(view.name)[:100]}-{uuid.uuid4().hex[:12]}")

    def _namespace(self, namespace: tuple[str, ...]) -> Mapping[str, str]:
        """Return a namespace's properties."""
        try:
            return self._catalog.load_namespace_properties(namespace)
        except NoSuchNamespaceError:
            raise NotFoundError(
                f"namespace {'.'.join(namespace)!r} does not exist in catalog {self.name!r}; create it first"
            ) from None

    def create(self, view: str | Identifier, metadata: ViewMetadata) -> LoadedView:
        """Write the first metadata file of a view and add its row.

        Raises:
            AlreadyExistsError: The name is taken.
        """
        identifier = self.identify(view)
        location = self.write_metadata(metadata, number=0)
        try:
            self._views.insert(identifier, location)
        except AlreadyExistsError:
            self.files.delete(location)
            raise
        settings = parse_settings(metadata.properties, view=str(identifier), location=location)
        return LoadedView(identifier, location, metadata, settings)

    def write_metadata(self, metadata: ViewMetadata, *, number: int) -> str:
        """Write a view metadata file under a fresh name; nothing points at it yet.

        Returns:
            Its location.
        """
        location = join(metadata.location, "metadata", f"{number:05d}-{uuid.uuid4()}{metadata.file_suffix}")
        self.files.write(location, metadata.to_bytes())
        return location

    def swap(self, view: Identifier, base: str, new: str) -> bool:
        """Move the view's pointer if it still is at ``base``: one statement, see :meth:`SqlPointers.swap`."""
        return self._views.swap(view, base, new)

    def replace(self, view: LoadedView, metadata: ViewMetadata) -> bool:
        """Publish changed metadata on top of a loaded view; whether the swap matched."""
        new = self.write_metadata(metadata, number=next_number(view.metadata_location))
        matched = self.swap(view.identifier, view.metadata_location, new)
        if not matched:
            self.files.delete(new)
        return matched

    def drop(self, view: str | Identifier) -> None:
        """Remove the view from the catalog; its files stay.

        Raises:
            ViewNotFoundError: There was no such view.
        """
        identifier = self.identify(view)
        if not self._views.delete(identifier):
            raise ViewNotFoundError(f"there is no view {identifier} in catalog {self.name!r}")

    # -- base tables ---------------------------------------------------------------------------

    def locate(self, identifiers: Sequence[Identifier]) -> dict[Identifier, Located]:
        """Find what names in a query lead to, across catalogs; names that lead nowhere are left out.

        A SQL catalog answers for all of its names in one query, and opens no file.
        """
        found: dict[Identifier, Located] = {}
        for name in sorted({identifier.catalog for identifier in identifiers}):
            found |= self.other(name)._locate_own([item for item in identifiers if item.catalog == name])
        return found

    def _locate_own(self, identifiers: Sequence[Identifier]) -> dict[Identifier, Located]:
        if self._pointers is None:
            return {item: located for item in identifiers if (located := self._load_table(item))}
        return {
            item: Located("view" if kind == VIEW else "table", location)
            for item, (location, kind) in self._pointers.locate(identifiers).items()
        }

    def _load_table(self, identifier: Identifier) -> Located | None:
        try:
            table = self._catalog.load_table((*identifier.namespace, identifier.name))
        except NoSuchTableError:
            return None
        metadata = parse_table(table.metadata.model_dump_json().encode(), source=f"table {identifier}")
        return Located("table", table.metadata_location, metadata)

    def table_metadata(self, identifier: Identifier, located: Located) -> TableMetadata:
        """Return a located table's metadata, read from its file where it was not given along."""
        if located.table is not None:
            return located.table
        what = f"table {identifier}, metadata file"
        data = self.other(identifier.catalog).files.read(located.metadata_location, what=what)
        return parse_table(data, source=f"{what} {located.metadata_location}")

    @property
    def _views(self) -> SqlPointers:
        if self._pointers is None:
            raise UnsupportedError(
                f"catalog {self.name!r} ({type(self._catalog).__name__}) cannot swap a view's pointer atomically; "
                "materialized views need a SQL catalog (type=sql), base tables may be anywhere"
            )
        return self._pointers


def next_number(metadata_location: str) -> int:
    """Return the number of the metadata file after this one; names from other writers count from 0."""
    head = metadata_location.rsplit("/", 1)[-1].split("-", 1)[0]
    return whole_number(head, 0) + 1


def _open(name: str) -> Catalog:
    known: Mapping[str, object] = Config().config.get("catalog") or {}  # type: ignore[assignment]
    if name.lower() not in {key.lower() for key in known}:
        listed = ", ".join(sorted(known)) or "none"
        underscore = " (pyiceberg takes '_' in a variable's name for '-')" if "_" in name else ""
        raise CatalogNotFoundError(
            f"no catalog {name!r} is configured (configured: {listed}). Set PYICEBERG_CATALOG__{name.upper()}__TYPE "
            f"and its other properties{underscore}, write a .pyiceberg.yaml, or name an Airflow connection "
            "with --conn-id"
        )
    try:
        return load_catalog(name)
    except InvalidMetadataError:
        raise
    except SQLAlchemyError as error:
        raise ConfigurationError(f"catalog {name!r} cannot be opened: {type(error).__name__}; check its uri") from None
    except Exception as error:  # noqa: BLE001 (each catalog type has its own)
        raise ConfigurationError(f"catalog {name!r} cannot be opened: {type(error).__name__}: {error}") from None
