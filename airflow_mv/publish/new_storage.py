# SPDX-License-Identifier: Apache-2.0
"""A storage table between its creation and the moment when a view names it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from airflow_mv.catalog import LoadedView, MaterializedViewCatalog
from airflow_mv.catalog.files import discard
from airflow_mv.catalog.untrusted_input import beside_first
from airflow_mv.errors import (
    CatalogUnavailableError,
    CommitStateUnknownError,
    InvalidMetadataError,
    MaterializedViewError,
    MetadataFileNotFoundError,
    ViewNotFoundError,
)
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.materialized_view import (
    STORAGE_TABLE_PROPERTY,
    STORAGE_TABLE_UUID_PROPERTY,
)
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


def _named_storage(view: LoadedView) -> Identifier | None:
    try:
        return view.storage_table
    except InvalidMetadataError:
        return None


def drop_storage(catalog: MaterializedViewCatalog, view: LoadedView, *, force: bool = False) -> str | None:
    """Take a view's storage table out of the catalog; what is left there, and why."""
    uuid_ = view.metadata.properties.get(STORAGE_TABLE_UUID_PROPERTY)
    try:
        name = view.storage_table
        if name is not None:
            catalog.tables.drop(name, uuid=uuid_, owner=view.identifier)
    except (InvalidMetadataError, MetadataFileNotFoundError) as error:
        name = None if catalog.layouts == ("registered",) else _named_storage(view)
        row = catalog.row(name) if name is not None else None
        first = view.materialized.storage_table_location
        if name is not None and row is not None and (force or beside_first(first, row.location)):
            catalog.drop_table_row(name, row.location)
            return None
        log.warning("The storage table of %s stays in the catalog: %s", view.identifier, error)
        return f"the storage table {view.metadata.properties.get(STORAGE_TABLE_PROPERTY)} is still there: {error}"
    return None
