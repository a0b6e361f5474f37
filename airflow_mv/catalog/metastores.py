# SPDX-License-Identifier: Apache-2.0
"""AWS Glue and Hive Metastores: the metadata files of their tables, without opening them.

pyiceberg has no views there. A view is a table (layout ``table``), and pyiceberg's commit is conditional: it checks the
requirements on the table as loaded. Then Glue's ``UpdateTable`` names the version of the loaded entry, and in a Hive
Metastore the table is locked from before it is loaded until it is changed. A drop takes no condition.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog

from airflow_mv.catalog.answers import answered
from airflow_mv.catalog.limits import HIVE_SECONDS
from airflow_mv.catalog.pyiceberg_compat import HiveConnections
from airflow_mv.errors import InvalidIdentifierError
from airflow_mv.spec.identifiers import Identifier

if TYPE_CHECKING:
    from pyiceberg.catalog.glue import GlueCatalog
    from pyiceberg.catalog.hive import HiveCatalog

#: Names that all clients of both accept. They store names in lower case.
_NAME = re.compile(r"[a-z0-9_]{1,255}")
#: Entries in one answer of a Hive Metastore.
_PAGE = 100


class GlueTables:
    """The entries of the Iceberg tables of a Glue catalog.

    Args:
        catalog: pyiceberg's catalog.
    """

    service = "AWS Glue"

    def __init__(self, catalog: GlueCatalog) -> None:
        self._catalog, self._glue = catalog, catalog.glue

    def location(self, name: Identifier) -> str | None:
        """Return the metadata file of an Iceberg table; ``None`` if there is no such table."""
        if len(name.namespace) != 1:
            return None
        with answered(self._catalog.name, f"loading table {name}"):
            try:
                entry = self._glue.get_table(DatabaseName=name.namespace[0], Name=name.name)["Table"]
            except self._glue.exceptions.EntityNotFoundException:
                return None
        return _metadata_location(entry.get("Parameters", {}))

    def tables(self, namespace: tuple[str, ...] | None) -> Iterator[tuple[tuple[str, ...], str, str]]:
        """Yield namespace, name and metadata file of each Iceberg table of a namespace, or of the whole catalog."""
        with answered(self._catalog.name, "listing tables"):
            spaces = [namespace] if namespace is not None else [tuple(one) for one in self._catalog.list_namespaces()]
            for space in spaces:
                yield from self._of(space)

    def _of(self, space: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str, str]]:
        if len(space) != 1:
            return
        try:
            for page in self._glue.get_paginator("get_tables").paginate(DatabaseName=space[0]):
                for entry in page["TableList"]:
                    if location := _metadata_location(entry.get("Parameters", {})):
                        yield space, entry["Name"], location
        except self._glue.exceptions.EntityNotFoundException:
            return


class HiveTables:
    """The entries of the Iceberg tables of a Hive Metastore.

    Args:
        catalog: pyiceberg's catalog.
    """

    service = "a Hive Metastore"

    def __init__(self, catalog: HiveCatalog) -> None:
        self._catalog, self._connections = catalog, HiveConnections(catalog, HIVE_SECONDS)

    def location(self, name: Identifier) -> str | None:
        """Return the metadata file of an Iceberg table; ``None`` if there is no such table."""
        from hive_metastore.ttypes import NoSuchObjectException

        if len(name.namespace) != 1:
            return None
        with answered(self._catalog.name, f"loading table {name}"), self._connections as client:
            try:
                entry = client.get_table(dbname=name.namespace[0], tbl_name=name.name)
            except NoSuchObjectException:
                return None
        return _metadata_location(entry.parameters or {})

    def tables(self, namespace: tuple[str, ...] | None) -> Iterator[tuple[tuple[str, ...], str, str]]:
        """Yield namespace, name and metadata file of each Iceberg table of a namespace, or of the whole catalog."""
        with answered(self._catalog.name, "listing tables"):
            spaces = [namespace] if namespace is not None else [tuple(one) for one in self._catalog.list_namespaces()]
            for space in spaces:
                yield from self._of(space)

    def _of(self, space: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str, str]]:
        if len(space) != 1:
            return
        with self._connections as client:
            names = client.get_all_tables(db_name=space[0])
            for start in range(0, len(names), _PAGE):
                chunk = names[start : start + _PAGE]
                for entry in client.get_table_objects_by_name(dbname=space[0], tbl_names=chunk):
                    if location := _metadata_location(entry.parameters or {}):
                        yield space, entry.tableName, location


#: The entries of a catalog that is a metastore.
Metastore = GlueTables | HiveTables


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
    return str(parameters["metadata_location"]) if is_iceberg and "metadata_location" in parameters else None
