# SPDX-License-Identifier: Apache-2.0
"""A storage table between its creation and the moment when a view names it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from airflow_mv.catalog import MaterializedViewCatalog
from airflow_mv.catalog.files import discard
from airflow_mv.errors import (
    CatalogUnavailableError,
    CommitStateUnknownError,
    MaterializedViewError,
    ViewNotFoundError,
)
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.materialized_view import STORAGE_TABLE_PROPERTY, STORAGE_TABLE_UUID_PROPERTY
from airflow_mv.spec.table import TableMetadata

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NewStorage:
    """A storage table that was made just now; no view names it yet.

    Args:
        location: Its metadata file.
        table: Its metadata.
        name: Its name in the catalog, in the registered layout.
        owner: The view that it is made for.
    """

    location: str
    table: TableMetadata
    name: Identifier | None
    owner: Identifier

    @property
    def fields(self) -> list[dict[str, Any]]:
        """Its columns."""
        return list(self.table.current_schema["fields"])

    @property
    def columns(self) -> list[str]:
        """The names of its columns."""
        return [str(field["name"]) for field in self.fields]

    @property
    def view_properties(self) -> dict[str, str]:
        """What a view says of it beside the settings."""
        if self.name is None:
            return {}
        uuid = self.table.table_uuid or ""
        return {STORAGE_TABLE_PROPERTY: self.name.within_catalog, STORAGE_TABLE_UUID_PROPERTY: uuid}

    def discard(self, catalog: MaterializedViewCatalog) -> None:
        """Take it away: nothing ever pointed at it."""
        if self.name is not None and not catalog.tables.drop(self.name, uuid=self.table.table_uuid, owner=self.owner):
            return
        if catalog.chooses_locations:
            discard(catalog.files, self.location)


@contextmanager
def discarded_on_failure(catalog: MaterializedViewCatalog, storage: NewStorage) -> Iterator[None]:
    """Take a new storage table out of the catalog again where it is sure that its view did not come to name it."""
    try:
        yield
    except (CommitStateUnknownError, CatalogUnavailableError):
        raise
    except MaterializedViewError:
        if storage.name is not None and _is_needless(catalog, storage):
            storage.discard(catalog)
        raise


def _is_needless(catalog: MaterializedViewCatalog, storage: NewStorage) -> bool:
    """Whether the view is not there, or names another storage table; an error alone is no proof that it failed."""
    try:
        return catalog.load(storage.owner).storage_table != storage.name
    except ViewNotFoundError:
        return True
    except MaterializedViewError as error:
        log.warning("The storage table %s stays, though it may be needless: %s", storage.name, error)
        return False
