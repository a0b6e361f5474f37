# SPDX-License-Identifier: Apache-2.0
"""The entries of a metastore: the metadata files of its tables, without opening them.

pyiceberg has no views there. A view is a table (layout ``table``), and pyiceberg's commit is conditional: it checks the
requirements on the table as loaded. Then Glue's ``UpdateTable`` names the version of the loaded entry, and in a Hive
Metastore the table is locked from before it is loaded until it is changed. A drop takes no condition.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pyiceberg.catalog import Catalog

from airflow_mv.core.catalog.answers import answered
from airflow_mv.core.catalog.loaded import Row
from airflow_mv.core.catalog.sql import TABLE
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.errors import CatalogUnavailableError, CommitStateUnknownError, InvalidIdentifierError

#: Names that all clients of both accept. They store names in lower case.
_NAME = re.compile(r"[a-z0-9_]{1,255}")
_LOCATION = "metadata_location"
_PREVIOUS = "previous_metadata_location"


class MetastoreEntries(ABC):
    """The entries of the Iceberg tables of a catalog that is a metastore. A namespace is a database.

    Args:
        catalog: pyiceberg's catalog.
    """

    #: For messages.
    service: ClassVar[str]

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def require_name(self, view: Identifier) -> None:
        """Refuse a name of a new view that not all clients of the metastore can use.

        Raises:
            InvalidIdentifierError: Names the service and the rule.
        """
        for part in (*view.namespace, view.name):
            if not _NAME.fullmatch(part):
                raise InvalidIdentifierError(
                    f"view {view}: {self.service} stores names in lower case, and not all of its clients accept more "
                    f"than a-z, 0-9 and _: {part!r} is not such a name; choose another one"
                )

    def row(self, name: Identifier) -> Row | None:
        """Return the entry of an Iceberg table; ``None`` if there is no such table."""
        if len(name.namespace) != 1:
            return None
        with answered(self._catalog.name, f"loading table {name}"):
            parameters = self._parameters(name.namespace[0], name.name) or {}
        location = metadata_location(parameters)
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
                    if location := metadata_location(parameters):
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


def metadata_location(parameters: Mapping[str, Any]) -> str | None:
    """Return the metadata file that a table's entry names; ``None`` if it is not an Iceberg table."""
    is_iceberg = str(parameters.get("table_type", "")).lower() == "iceberg"
    return str(parameters[_LOCATION]) if is_iceberg and _LOCATION in parameters else None
