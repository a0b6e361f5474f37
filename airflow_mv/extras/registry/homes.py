# SPDX-License-Identifier: Apache-2.0
"""Where a registry's tables are: in a namespace of the view's catalog, or in a folder with a SQLite catalog."""

from __future__ import annotations

import types
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BooleanType,
    DoubleType,
    IcebergType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    TimestamptzType,
)
from sqlalchemy.exc import IntegrityError, OperationalError

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.catalog.answers import answered
from airflow_mv.core.catalog.files import local_path
from airflow_mv.core.catalog.limits import require_no_writer
from airflow_mv.core.catalog.locations import (
    check_confined,
    check_places,
    join,
    lies_in,
    metadata_folders,
)
from airflow_mv.core.spec.table_metadata import parse_table
from airflow_mv.errors import ConfigurationError, InvalidMetadataError
from airflow_mv.extras.registry.model import Kind
from airflow_mv.extras.registry.settings import PLACE, RegistrySettings

#: Table property: the component of a registry that a table is. Other tables are never changed.
COMPONENT_PROPERTY = "airflow-mv.registry-component"
#: The SQLite database of a registry in a folder, and the name and namespace of its catalog.
CATALOG_FILE = "catalog.db"
_NAME = "registry"
#: Seconds that SQLite waits for another process.
_SQLITE_TIMEOUT = 60
#: The number of the first partition field, as the Iceberg specification has it.
_FIRST_PARTITION_FIELD = 1000
_TYPES: dict[Any, IcebergType] = {
    str: StringType(),
    int: LongType(),
    float: DoubleType(),
    bool: BooleanType(),
    datetime: TimestamptzType(),
}


@dataclass(frozen=True)
class Home:
    """A namespace with the tables of a registry.

    Args:
        catalog: The catalog whose views are registered.
    """

    catalog: MaterializedViewCatalog
    settings: RegistrySettings

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.catalog.name}.{self.settings.place}"

    @property
    def namespace(self) -> tuple[str, ...]:
        """The namespace in the catalog that has the tables."""
        return self.settings.namespace

    @property
    def exists(self) -> bool:
        """Whether the catalog that has the tables exists."""
        return True

    @property
    def iceberg(self) -> Catalog:
        """The catalog that has the tables."""
        return self.catalog.iceberg

    def location(self, kind: Kind[Any]) -> str | None:
        """Return the folder of a new table; ``None``: the catalog chooses it."""
        return self.settings.components[kind.name].location

    def folders(self, table: Table) -> tuple[str, ...]:
        """Return the folders in which a table's files may be."""
        return self.catalog.folders.allowed(table.metadata_location, table.location())

    def open(self, kind: Kind[Any]) -> Table | None:
        """Return the table of a component, or ``None`` if it does not exist yet.

        Raises:
            InvalidMetadataError: It is another table, or its metadata names files elsewhere.
        """
        if not self.exists:
            return None
        with answered(self.catalog.name, f"loading the registry's table {kind.name}"):
            try:
                table = self.iceberg.load_table((*self.namespace, kind.name))
            except NoSuchTableError:
                return None
        return _checked(self.catalog, kind, table, self.folders(table))

    def create(self, kind: Kind[Any]) -> Table:
        """Return the table of a component, and create it if it does not exist."""
        if (found := self.open(kind)) is not None:
            return _with_new_columns(kind, found)
        schema = schema_of(kind)
        with answered(self.catalog.name, f"creating the registry's table {kind.name}"):
            iceberg = self.iceberg
            # Another process may create it at the same time, which pyiceberg's SQL catalog does not expect.
            with suppress(NamespaceAlreadyExistsError, IntegrityError):
                iceberg.create_namespace_if_not_exists(self.namespace)
            with suppress(TableAlreadyExistsError):
                return iceberg.create_table(
                    (*self.namespace, kind.name),
                    schema,
                    location=self.location(kind),
                    partition_spec=spec_of(kind, schema),
                    properties={**self.settings.components[kind.name].properties, COMPONENT_PROPERTY: kind.name},
                )
        found = self.open(kind)
        if found is None:
            raise InvalidMetadataError(f"registry table {kind.name} in {self.name} was dropped while it was opened")
        return found


class FolderHome(Home):
    """A folder of a file system, with a SQLite database as its Iceberg catalog."""

    @property
    def name(self) -> str:
        """For messages."""
        return self.settings.place

    @property
    def namespace(self) -> tuple[str, ...]:
        """The namespace in the folder's catalog."""
        return (_NAME,)

    @property
    def _folder(self) -> Path:
        return local_path(self.settings.place) or Path()

    @property
    def exists(self) -> bool:
        """Whether the folder has its database."""
        return (self._folder / CATALOG_FILE).exists()

    @cached_property
    def iceberg(self) -> Catalog:
        """The catalog in the folder's database, which is created if it does not exist."""
        from pyiceberg.catalog.sql import SqlCatalog

        folder = self._folder
        folder.mkdir(parents=True, exist_ok=True)
        uri = f"sqlite:///{folder / CATALOG_FILE}?timeout={_SQLITE_TIMEOUT}"
        try:
            return SqlCatalog(_NAME, uri=uri, warehouse=f"file://{folder}")
        except OperationalError:  # another process creates its tables
            return SqlCatalog(_NAME, uri=uri, warehouse=f"file://{folder}")

    def location(self, kind: Kind[Any]) -> str:
        """Return the folder of a new table."""
        own = self.settings.components[kind.name].location or kind.name
        return join(f"file://{self._folder}", own.strip("/"))

    def folders(self, table: Table) -> tuple[str, ...]:  # noqa: ARG002
        """Return the folder of the registry."""
        return (f"file://{self._folder}",)


def home_of(catalog: MaterializedViewCatalog, settings: RegistrySettings) -> Home:
    """Return where the tables of a catalog's registry are.

    Raises:
        ConfigurationError: The place is a folder of an object store, which cannot hold a SQLite database.
    """
    if not settings.is_folder:
        return Home(catalog, settings)
    if local_path(settings.place) is None:
        raise ConfigurationError(
            f"catalog property {PLACE}: {settings.place!r} is a folder of an object store. A registry in a folder "
            "has a SQLite database and needs a file system; name a namespace of the catalog instead"
        )
    return FolderHome(catalog, settings)


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


def schema_of(kind: Kind[Any]) -> Schema:
    """Return the Iceberg schema of a component's rows: a column for each field of the model."""
    fields, number = [], len(kind.model.model_fields)
    for at, (name, field) in enumerate(kind.model.model_fields.items(), 1):
        annotation = field.annotation
        optional = get_origin(annotation) in (Union, types.UnionType)
        if optional:
            (annotation,) = (item for item in get_args(annotation) if item is not type(None))
        found, number = _type(annotation, number)
        required = field.is_required() and not optional
        fields.append(NestedField(at, name, found, required=required, doc=field.description))
    return Schema(*fields)


def _type(annotation: Any, number: int) -> tuple[IcebergType, int]:
    """Return an Iceberg type, and the last field id that is used then."""
    while get_origin(annotation) not in (None, tuple, Mapping) and annotation not in _TYPES:
        annotation = get_args(annotation)[0]  # Annotated
    origin = get_origin(annotation)
    if origin is tuple:
        return ListType(number + 1, StringType(), element_required=True), number + 1
    if origin is not None:
        value = StringType() if get_args(annotation)[1] is str else LongType()
        return MapType(number + 1, StringType(), number + 2, value, value_required=True), number + 2
    return _TYPES[annotation], number


def spec_of(kind: Kind[Any], schema: Schema) -> PartitionSpec:
    """Return a component's partitioning: by the values of its partition columns."""
    fields = [
        PartitionField(schema.find_field(name).field_id, _FIRST_PARTITION_FIELD + at, IdentityTransform(), name)
        for at, name in enumerate(kind.partitions)
    ]
    return PartitionSpec(*fields)
