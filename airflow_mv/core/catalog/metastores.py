# SPDX-License-Identifier: Apache-2.0
"""AWS Glue and Hive Metastores: the metadata files of their tables, without opening them.

pyiceberg has no views there. A view is a table (layout ``table``), and pyiceberg's commit is conditional: it checks the
requirements on the table as loaded. Then Glue's ``UpdateTable`` names the version of the loaded entry, and in a Hive
Metastore the table is locked from before it is loaded until it is changed. A drop takes no condition.
"""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pyiceberg.catalog import Catalog

from airflow_mv.core.catalog.answers import answered
from airflow_mv.core.catalog.limits import HIVE_SECONDS
from airflow_mv.core.catalog.pyiceberg_compat import HiveConnections, hive_lock
from airflow_mv.core.catalog.sql import TABLE, Row
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.errors import CatalogUnavailableError, CommitStateUnknownError, InvalidIdentifierError

if TYPE_CHECKING:
    from pyiceberg.catalog.glue import GlueCatalog
    from pyiceberg.catalog.hive import HiveCatalog

#: Names that all clients of both accept. They store names in lower case.
_NAME = re.compile(r"[a-z0-9_]{1,255}")
#: Entries in one answer of a Hive Metastore.
_PAGE = 100
#: The fields of Glue's entry of a table that a client may send back.
_GLUE_FIELDS = ("Name", "Description", "Owner", "Retention", "StorageDescriptor", "PartitionKeys", "TableType")
_LOCATION = "metadata_location"
_PREVIOUS = "previous_metadata_location"


class Metastore(ABC):
    """The entries of the Iceberg tables of a catalog that is a metastore. A namespace is a database.

    Args:
        catalog: pyiceberg's catalog.
    """

    #: For messages.
    service: ClassVar[str]

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def location(self, name: Identifier) -> str | None:
        """Return the metadata file of an Iceberg table; ``None`` if there is no such table."""
        row = self.row(name)
        return row.location if row else None

    def row(self, name: Identifier) -> Row | None:
        """Return the entry of an Iceberg table; ``None`` if there is no such table."""
        if len(name.namespace) != 1:
            return None
        with answered(self._catalog.name, f"loading table {name}"):
            parameters = self._parameters(name.namespace[0], name.name) or {}
        location = _metadata_location(parameters)
        return Row(TABLE, location, parameters.get(_PREVIOUS)) if location else None

    def swap(self, name: Identifier, base: str, new: str) -> bool:
        """Make the entry of a table name another metadata file, if it names ``base`` now. Nothing else is changed.

        Returns:
            Whether the entry was changed. ``False`` does not prove that an earlier, identical swap was not applied.

        Raises:
            CommitStateUnknownError: No answer. The swap may be applied, even later.
        """
        try:
            with answered(self._catalog.name, f"a change of the entry of table {name}"):
                return self._swap(name.namespace[0], name.name, base, {_LOCATION: new, _PREVIOUS: base})
        except CatalogUnavailableError as error:
            raise CommitStateUnknownError(f"table {name}: no response to the swap {base} -> {new}: {error}") from None

    def tables(self, namespace: tuple[str, ...] | None) -> Iterator[tuple[tuple[str, ...], str, str]]:
        """Yield namespace, name and metadata file of each Iceberg table of a namespace, or of the whole catalog."""
        with answered(self._catalog.name, "listing tables"):
            spaces = [namespace] if namespace is not None else [tuple(one) for one in self._catalog.list_namespaces()]
            for space in spaces:
                for name, parameters in self._entries(space[0]) if len(space) == 1 else ():
                    if location := _metadata_location(parameters):
                        yield space, name, location

    def locations(self) -> Iterator[tuple[str, str]]:
        """Yield name and metadata file of each Iceberg table."""
        for space, name, location in self.tables(None):
            yield ".".join((self._catalog.name, *space, name)), location

    @abstractmethod
    def _parameters(self, database: str, name: str) -> Mapping[str, Any] | None:
        """Return the parameters of a table's entry; ``None`` if there is no such table."""

    @abstractmethod
    def _swap(self, database: str, name: str, base: str, parameters: dict[str, str]) -> bool:
        """Change parameters of a table's entry, if it names a metadata file, in one conditional change."""

    @abstractmethod
    def _entries(self, database: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the name and the parameters of each table of a database. A missing database has none."""


class GlueTables(Metastore):
    """The entries of a Glue catalog.

    Args:
        catalog: pyiceberg's catalog.
    """

    service = "AWS Glue"

    def __init__(self, catalog: GlueCatalog) -> None:
        super().__init__(catalog)
        self._glue = catalog.glue

    def _parameters(self, database: str, name: str) -> Mapping[str, Any] | None:
        try:
            entry: Mapping[str, Any] = self._glue.get_table(DatabaseName=database, Name=name)["Table"]
        except self._glue.exceptions.EntityNotFoundException:
            return None
        return entry.get("Parameters")

    def _swap(self, database: str, name: str, base: str, parameters: dict[str, str]) -> bool:
        try:
            entry: Mapping[str, Any] = self._glue.get_table(DatabaseName=database, Name=name)["Table"]
            if _metadata_location(entry.get("Parameters", {})) != base:
                return False
            fields = {key: entry[key] for key in _GLUE_FIELDS if key in entry}
            changed = {**fields, "Parameters": {**entry["Parameters"], **parameters}}
            self._glue.update_table(DatabaseName=database, TableInput=changed, VersionId=entry["VersionId"])
        except (self._glue.exceptions.EntityNotFoundException, self._glue.exceptions.ConcurrentModificationException):
            return False
        return True

    def _entries(self, database: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        try:
            for page in self._glue.get_paginator("get_tables").paginate(DatabaseName=database):
                for entry in page["TableList"]:
                    yield entry["Name"], entry.get("Parameters", {})
        except self._glue.exceptions.EntityNotFoundException:
            return


class HiveTables(Metastore):
    """The entries of a Hive Metastore.

    Args:
        catalog: pyiceberg's catalog.
    """

    service = "a Hive Metastore"

    def __init__(self, catalog: HiveCatalog) -> None:
        super().__init__(catalog)
        self._hive, self._connections = catalog, HiveConnections(catalog, HIVE_SECONDS)

    def _parameters(self, database: str, name: str) -> Mapping[str, Any] | None:
        from hive_metastore.ttypes import NoSuchObjectException

        with self._connections as client:
            try:
                entry: Any = client.get_table(dbname=database, tbl_name=name)
            except NoSuchObjectException:
                return None
        return entry.parameters or {}

    def _swap(self, database: str, name: str, base: str, parameters: dict[str, str]) -> bool:
        from hive_metastore.ttypes import EnvironmentContext, NoSuchObjectException

        keep = EnvironmentContext(properties={"DO_NOT_UPDATE_STATS": "true"})
        with self._connections as client, hive_lock(self._hive, client, database, name):
            try:
                entry: Any = client.get_table(dbname=database, tbl_name=name)
            except NoSuchObjectException:
                return False
            if _metadata_location(entry.parameters or {}) != base:
                return False
            entry.parameters = {**entry.parameters, **parameters}
            client.alter_table_with_environment_context(database, name, entry, keep)
        return True

    def _entries(self, database: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        with self._connections as client:
            names = client.get_all_tables(db_name=database)
            for start in range(0, len(names), _PAGE):
                chunk = names[start : start + _PAGE]
                for entry in client.get_table_objects_by_name(dbname=database, tbl_names=chunk):
                    yield entry.tableName, entry.parameters or {}


def metastore_of(catalog: Catalog) -> Metastore | None:
    """Return the entries of a catalog that is a metastore; ``None`` for other catalogs."""
    # The classes can be loaded only where their clients are installed, and an instance exists only after that.
    glue, hive = (sys.modules.get(f"pyiceberg.catalog.{name}") for name in ("glue", "hive"))
    if glue is not None and isinstance(catalog, glue.GlueCatalog):
        return GlueTables(catalog)
    return HiveTables(catalog) if hive is not None and isinstance(catalog, hive.HiveCatalog) else None


def require_name(service: str, view: Identifier) -> None:
    """Refuse a name of a new view that not all clients of a metastore can use.

    Raises:
        InvalidIdentifierError: Names the service and the rule.
    """
    for part in (*view.namespace, view.name):
        if not _NAME.fullmatch(part):
            raise InvalidIdentifierError(
                f"view {view}: {service} stores names in lower case, and not all of its clients accept more than "
                f"a-z, 0-9 and _: {part!r} is not such a name; choose another one"
            )


def _metadata_location(parameters: Mapping[str, Any]) -> str | None:
    """Return the metadata file that a table's entry names; ``None`` if it is not an Iceberg table."""
    is_iceberg = str(parameters.get("table_type", "")).lower() == "iceberg"
    return str(parameters[_LOCATION]) if is_iceberg and _LOCATION in parameters else None
