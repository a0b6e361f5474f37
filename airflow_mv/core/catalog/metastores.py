# SPDX-License-Identifier: Apache-2.0
"""Find the module of the extra ``metastores`` for a kind of catalog that is neither a database nor a REST server."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Protocol

from pyiceberg.catalog import Catalog

from airflow_mv.core.catalog.loaded import Row
from airflow_mv.core.spec.identifiers import Identifier

_CATALOGS = "pyiceberg.catalog."


class Metastore(Protocol):
    """The entries of the Iceberg tables of a catalog that is a metastore. A namespace is a database.

    Args:
        service: Its name, for messages.
    """

    service: str

    def require_name(self, view: Identifier) -> None:
        """Refuse a name of a new view that not all clients of the metastore can use."""

    def row(self, name: Identifier) -> Row | None:
        """Return the entry of an Iceberg table; ``None`` if there is no such table."""

    def swap(self, name: Identifier, base: str, new: str) -> bool:
        """Make the entry of a table name another metadata file, if it names ``base`` now; see ``SqlPointers.swap``."""

    def tables(self, namespace: tuple[str, ...] | None) -> Iterator[tuple[tuple[str, ...], str, str]]:
        """Yield namespace, name and metadata file of each Iceberg table of a namespace, or of the whole catalog."""

    def locations(self) -> Iterator[tuple[str, str]]:
        """Yield name and metadata file of each Iceberg table."""


def metastore_module(kind: str) -> ModuleType | None:
    """Return the extra's module for a type of catalogs, or for a client of theirs; ``None`` if there is none."""
    try:
        return import_module(f"airflow_mv.extras.metastores.{kind}")
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("airflow_mv."):
            raise
        return None


def metastore_of(catalog: Catalog) -> Metastore | None:
    """Return the entries of a catalog that is a metastore; ``None`` for other catalogs."""
    modules = [base.__module__ for base in type(catalog).__mro__ if base.__module__.startswith(_CATALOGS)]
    found = metastore_module(modules[0].removeprefix(_CATALOGS)) if modules else None
    return None if found is None else found.entries_of(catalog)
