# SPDX-License-Identifier: Apache-2.0
"""Where a registry's tables are: in a namespace of the view's catalog, or in a folder without a catalog."""

from __future__ import annotations

import os
import re
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata
from sqlalchemy.exc import IntegrityError

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.catalog.answers import answered
from airflow_mv.core.catalog.files import flush, local_path
from airflow_mv.core.catalog.limits import require_no_writer
from airflow_mv.core.catalog.locations import (
    allowed_folders,
    check_confined,
    check_places,
    is_local,
    join,
    lies_in,
    metadata_folders,
)
from airflow_mv.core.spec.table import parse_table
from airflow_mv.errors import ConfigurationError, InvalidMetadataError
from airflow_mv.extras.registry.model import Kind
from airflow_mv.extras.registry.settings import PLACE, RegistrySettings
from airflow_mv.extras.registry.tables import Home, schema_of, spec_of

#: Table property: the component of a registry that a table is. Other tables are never changed.
COMPONENT_PROPERTY = "airflow-mv.registry-component"
_VERSION = re.compile(r"v(\d{1,9})\.metadata\.json", re.ASCII)


def home_of(catalog: MaterializedViewCatalog, settings: RegistrySettings) -> Home:
    """Return where the tables of a catalog's registry are.

    Raises:
        ConfigurationError: The place is a folder of an object store, which cannot create a file atomically.
    """
    if not settings.is_folder:
        return NamespaceHome(catalog, settings)
    if not is_local(settings.place):
        raise ConfigurationError(
            f"catalog property {PLACE}: {settings.place!r} is a folder of an object store. A registry without a "
            "catalog needs a file system; name a namespace of the catalog instead"
        )
    return FolderHome(catalog, settings)


def _properties(kind: Kind[Any], settings: RegistrySettings) -> dict[str, str]:
    return {**settings.components[kind.name].properties, COMPONENT_PROPERTY: kind.name}


def _checked(catalog: MaterializedViewCatalog, kind: Kind[Any], table: Table, folders: tuple[str, ...]) -> Table:
    """Return a table after a check that it is the registry's and that its files are in its folder.

    Raises:
        InvalidMetadataError: It is another table, or its metadata names files elsewhere.
    """
    what = f"registry table {kind.name} in {catalog.name}"
    found = table.properties.get(COMPONENT_PROPERTY)
    if found != kind.name:
        raise InvalidMetadataError(
            f"{what}: there is another table of this name (its property {COMPONENT_PROPERTY} is {found!r}). Name "
            f"another namespace in the catalog property {PLACE}"
        )
    parsed = parse_table(table.metadata.model_dump_json().encode(), source=what)
    check_confined(parsed.location, folders, what=what)
    check_places(parsed, (parsed.location,), what=what)
    require_no_writer(table, what)
    # pyiceberg deletes old metadata files by their names in the metadata log.
    for entry in table.metadata.metadata_log:
        if not lies_in(entry.metadata_file, metadata_folders(parsed)):
            raise InvalidMetadataError(f"{what}: its metadata log names {entry.metadata_file!r}, which is not its file")
    return table


def _with_new_columns(kind: Kind[Any], table: Table) -> Table:
    """Return a table after the columns that it lacks were added: an older version of this package made it."""
    if set(kind.model.model_fields) <= set(table.schema().column_names):
        return table
    with suppress(CommitFailedException), table.update_schema() as update:  # another process may have added them
        update.union_by_name(schema_of(kind))
    return table.refresh()


class NamespaceHome:
    """Tables in a namespace of the view's catalog. Every engine reads them by their names.

    Args:
        catalog: The catalog.
        settings: The registry's settings.
    """

    def __init__(self, catalog: MaterializedViewCatalog, settings: RegistrySettings) -> None:
        self.catalog, self._settings = catalog, settings
        self.name = f"{catalog.name}.{settings.place}"

    def open(self, kind: Kind[Any]) -> Table | None:
        """Return the table of a component, or ``None`` if it does not exist yet."""
        with answered(self.catalog.name, f"loading the registry's table {kind.name}"):
            try:
                table = self.catalog.iceberg.load_table((*self._settings.namespace, kind.name))
            except NoSuchTableError:
                return None
        folders = allowed_folders(self.catalog.properties, table.metadata_location)
        if self.catalog.is_rest:
            folders = (*folders, table.location())
        return _checked(self.catalog, kind, table, folders)

    def create(self, kind: Kind[Any]) -> Table:
        """Return the table of a component, and create it if it does not exist."""
        if (found := self.open(kind)) is not None:
            return _with_new_columns(kind, found)
        namespace, schema = self._settings.namespace, schema_of(kind)
        with answered(self.catalog.name, f"creating the registry's table {kind.name}"):
            # Another process may create it at the same time, which pyiceberg's SQL catalog does not expect.
            with suppress(NamespaceAlreadyExistsError, IntegrityError):
                self.catalog.iceberg.create_namespace_if_not_exists(namespace)
            with suppress(TableAlreadyExistsError):
                return self.catalog.iceberg.create_table(
                    (*namespace, kind.name),
                    schema,
                    location=self._settings.components[kind.name].location,
                    partition_spec=spec_of(kind, schema),
                    properties=_properties(kind, self._settings),
                )
        found = self.open(kind)
        if found is None:
            raise InvalidMetadataError(f"registry table {kind.name} in {self.name} was dropped while it was opened")
        return found


class FolderHome:
    """Tables in a folder of a file system, each with ``metadata/v<N>.metadata.json``, as Iceberg's Hadoop tables.

    A commit creates the next file by a link, which fails if another writer has created it.

    Args:
        catalog: The catalog of the views.
        settings: The registry's settings.
    """

    def __init__(self, catalog: MaterializedViewCatalog, settings: RegistrySettings) -> None:
        self.catalog, self._settings = catalog, settings
        self.name = settings.place

    def _location(self, kind: Kind[Any]) -> str:
        base = f"file://{local_path(self._settings.place)}"
        return join(base, (self._settings.components[kind.name].location or kind.name).strip("/"))

    def open(self, kind: Kind[Any]) -> Table | None:
        """Return the table of a component, or ``None`` if it does not exist yet."""
        location = self._location(kind)
        found = _load(self.catalog, location)
        return None if found is None else _checked(self.catalog, kind, found, (location,))

    def create(self, kind: Kind[Any]) -> Table:
        """Return the table of a component, and create it if it does not exist."""
        if (found := self.open(kind)) is not None:
            return _with_new_columns(kind, found)
        schema, location = schema_of(kind), self._location(kind)
        metadata = new_table_metadata(
            schema, spec_of(kind, schema), UNSORTED_SORT_ORDER, location, _properties(kind, self._settings)
        )
        with suppress(CommitFailedException):  # another process has created it
            _write_version(metadata, 1)
        return self.create(kind)


class _FolderCatalog(NoopCatalog):
    """Commits to the one table of a folder."""

    def __init__(self, catalog: MaterializedViewCatalog, location: str) -> None:
        super().__init__("folder")
        self._views, self._location = catalog, location

    def load_table(self, identifier: Any) -> Table:  # noqa: ARG002 (there is only one)
        found = _load(self._views, self._location)
        if found is None:
            raise NoSuchTableError(f"there is no table in {self._location}")
        return found

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        current = self.load_table(table.name())
        for requirement in requirements:
            requirement.validate(current.metadata)
        new = update_table_metadata(
            current.metadata, updates, enforce_validation=False, metadata_location=current.metadata_location
        )
        place = _write_version(new, _number(current.metadata_location) + 1, base=current.metadata_location)
        return CommitTableResponse(metadata=new, metadata_location=place)


def _load(catalog: MaterializedViewCatalog, location: str) -> Table | None:
    folder = local_path(location) / "metadata"
    files = list(folder.iterdir()) if folder.is_dir() else []
    numbers = [int(match[1]) for file in files if (match := _VERSION.fullmatch(file.name))]
    if not numbers:
        return None
    place = f"file://{folder}/v{max(numbers)}.metadata.json"
    what = "registry table file"
    text = catalog.files.read(place, what=what)
    parse_table(text, source=f"{what} {place}")
    metadata = TableMetadataUtil.parse_raw(text.decode())
    io = catalog.files.io(place, what=what)
    return Table(("folder", location), metadata, place, io, _FolderCatalog(catalog, location))


def _number(location: str) -> int:
    match = _VERSION.fullmatch(location.rpartition("/")[2])
    return int(match[1]) if match else 0


def _write_version(metadata: TableMetadata, number: int, *, base: str | None = None) -> str:
    """Create the next metadata file, atomically.

    Raises:
        CommitFailedException: Another writer has created it, or the base is so old that it was deleted.
    """
    folder = local_path(metadata.location) / "metadata"
    folder.mkdir(parents=True, exist_ok=True)
    written, place = folder / f".{uuid.uuid4()}.tmp", folder / f"v{number}.metadata.json"
    try:
        written.write_text(metadata.model_dump_json(), encoding="utf-8")
        flush(str(written))
        os.link(written, place)
    except FileExistsError:
        # A network file system may send a link again whose answer was lost.
        if not place.samefile(written):
            raise CommitFailedException(f"another writer has created {place.name}") from None
    finally:
        written.unlink(missing_ok=True)
    if base is not None and not local_path(base).exists():
        place.unlink()  # many later versions exist: nobody reads this one
        raise CommitFailedException(f"{place.name} was created and expired before")
    flush(str(place), folder.parent)
    _write_hint(folder, number)
    return f"file://{place}"


def _write_hint(folder: Path, number: int) -> None:
    """Write the file by which Iceberg's Hadoop tables find the last version. They look for later ones, too."""
    written = folder / f".{uuid.uuid4()}.tmp"
    written.write_text(str(number), encoding="ascii")
    written.replace(folder / "version-hint.text")
