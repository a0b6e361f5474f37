# SPDX-License-Identifier: Apache-2.0
"""Drop the empty tables that a killed creation or submission of a view has left beside it in the catalog.

Names: ``<view>__columns_<8 hex digits>`` is the template of a creation, ``<view>__script_<8 hex digits>`` gives a
submitted job a folder.
"""

from __future__ import annotations

import logging
import re
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_mv.core.catalog import LoadedView, MaterializedViewCatalog
from airflow_mv.core.catalog.answers import answered
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import DEFINITION_PROPERTY, PROPERTY, STORAGE_OF_PROPERTY
from airflow_mv.errors import NotFoundError

if TYPE_CHECKING:
    from pyiceberg.table import Table

log = logging.getLogger(__name__)


def drop_temporary_tables(
    catalog: MaterializedViewCatalog, view: str | Identifier, *, older_than: timedelta, dry_run: bool = False
) -> list[str]:
    """Drop what no running creation or submission can still use, and return the names.

    A table is dropped if its name has the form above, it names the view as its owner, it has no rows, and it was last
    changed before the grace, by the store's clock.

    Args:
        older_than: The grace.
        dry_run: Only return the names.

    Raises:
        CatalogUnavailableError: The catalog did not respond.
    """
    loaded = catalog.load(view)
    candidates = _candidates(catalog, loaded.identifier)
    if not candidates:
        return []
    folder = catalog.load_storage(loaded).table.location
    limit = catalog.files.now_ms(folder) - older_than // timedelta(milliseconds=1)
    return [str(name) for name in candidates if _drop(catalog, loaded, name, limit, dry_run=dry_run)]


def _candidates(catalog: MaterializedViewCatalog, view: Identifier) -> list[Identifier]:
    form = re.compile(rf"{re.escape(view.name[:200])}__(columns|script)_[0-9a-f]{{8}}")
    with answered(catalog.name, f"listing the tables of {'.'.join(view.namespace)}"):
        names = [name for *_, name in catalog.iceberg.list_tables(view.namespace)]
    return [Identifier(view.catalog, view.namespace, name) for name in sorted(names) if form.fullmatch(name)]


def _drop(
    catalog: MaterializedViewCatalog, view: LoadedView, name: Identifier, limit_ms: int, *, dry_run: bool
) -> bool:
    try:
        table = catalog.tables.open(name)
    except NotFoundError:
        return False  # its own process has dropped it
    if not _is_temporary(table, view.identifier) or table.metadata.last_updated_ms > limit_ms:
        return False
    if dry_run:
        return True
    log.info("Dropping the empty table %s, which a killed creation or submission of %s has left", name, view.identifier)
    return catalog.tables.drop(name, uuid=str(table.metadata.table_uuid), owner=view.identifier)


def _is_temporary(table: Table, owner: Identifier) -> bool:
    own = table.properties.get(STORAGE_OF_PROPERTY) == owner.within_catalog
    is_view = DEFINITION_PROPERTY in table.properties or PROPERTY in table.properties
    return own and not is_view and table.current_snapshot() is None
