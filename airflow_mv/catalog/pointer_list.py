# SPDX-License-Identifier: Apache-2.0
"""All pointers of a SQL catalog in one query, without opening the catalog and without pyiceberg.

For looks at many views: opening a catalog takes longer than the query. What is listed here decides which views have to
be observed, and those are observed through the catalog.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)

_QUERY = (
    "SELECT table_namespace, table_name, metadata_location, iceberg_type FROM iceberg_tables "
    "WHERE catalog_name = :name AND metadata_location IS NOT NULL"
)
_SCHEMES = ("sqlite", "postgresql", "mysql", "mariadb")
VIEW = "VIEW"

#: A namespace, its parts joined by dots, and a name.
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class PointerList:
    """The pointers of a catalog at one time: the metadata file of each name."""

    views: Mapping[Key, str]
    tables: Mapping[Key, str]

    def location(self, key: Key) -> str | None:
        """Return the metadata file of a view or table."""
        return self.views.get(key) or self.tables.get(key)


def list_pointers(name: str, properties: Mapping[str, Any]) -> PointerList | None:
    """Return a SQL catalog's pointers.

    Args:
        name: The catalog.
        properties: Its properties.

    Returns:
        ``None`` if it is no SQL catalog, or they cannot be read: opening the catalog tells why.
    """
    uri = str(properties.get("uri", ""))
    kind = properties.get("type") or ("sql" if uri.partition("://")[0].partition("+")[0] in _SCHEMES else None)
    if kind != "sql" or not uri or "py-catalog-impl" in properties:
        return None
    from airflow_mv.catalog.database_limits import in_memory, one_connection, require_locks

    try:
        engine = one_connection(uri, properties)
        if in_memory(engine):
            return None  # each connection has its own database
        require_locks(engine, properties)
        return _read(engine, name)
    except Exception as error:  # noqa: BLE001 (of any driver; the catalog is opened next, and raises a better one)
        log.debug("The pointers of catalog %r cannot be listed: %s", name, type(error).__name__)
        return None


def _read(engine: Any, name: str) -> PointerList:
    from sqlalchemy import text

    views: dict[Key, str] = {}
    tables: dict[Key, str] = {}
    with engine.connect() as connection:
        for space, item, location, kind in connection.execute(text(_QUERY), {"name": name}):
            (views if kind == VIEW else tables)[space, item] = location
    engine.dispose()
    return PointerList(views, tables)
