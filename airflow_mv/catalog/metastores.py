# SPDX-License-Identifier: Apache-2.0
"""AWS Glue: its tables' metadata files, without opening them.

Glue has no Iceberg views. A view there is a table (layout ``table``), and pyiceberg's commit is conditional: it checks
the requirements on the table as loaded, and ``UpdateTable`` names the version of the loaded entry. A drop takes no
condition.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog

from airflow_mv.catalog.answers import answered
from airflow_mv.errors import InvalidIdentifierError
from airflow_mv.spec.identifiers import Identifier

if TYPE_CHECKING:
    from pyiceberg.catalog.glue import GlueCatalog

#: Names that Iceberg's Java catalog accepts there. Glue stores names in lower case.
_NAME = re.compile(r"[a-z0-9_]{1,255}")


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


def metastore_of(catalog: Catalog) -> GlueTables | None:
    """Return the entries of a catalog that is a metastore; ``None`` for other catalogs."""
    # The class can be loaded only where its client is installed, and an instance exists only after that.
    glue = sys.modules.get("pyiceberg.catalog.glue")
    return GlueTables(catalog) if glue is not None and isinstance(catalog, glue.GlueCatalog) else None


def require_name(service: str, view: Identifier) -> None:
    """Refuse a name of a new view that not all clients of a metastore can use.

    Raises:
        InvalidIdentifierError: Names the service and the rule.
    """
    for part in (*view.namespace, view.name):
        if not _NAME.fullmatch(part):
            raise InvalidIdentifierError(
                f"view {view}: {service} stores names in lower case, and Iceberg's catalogs in Java accept only "
                f"a-z, 0-9 and _ there: {part!r} is not such a name; choose another one"
            )


def _metadata_location(parameters: Mapping[str, Any]) -> str | None:
    """Return the metadata file that a table's entry names; ``None`` if it is not an Iceberg table."""
    is_iceberg = str(parameters.get("table_type", "")).lower() == "iceberg"
    return str(parameters["metadata_location"]) if is_iceberg and "metadata_location" in parameters else None
