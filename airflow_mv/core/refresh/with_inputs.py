# SPDX-License-Identifier: Apache-2.0
"""The materialized views that views read, for a refresh of all of them from one set of base snapshots."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.freshness.observe import ReadCache, observe, observe_tables
from airflow_mv.core.freshness.state import ObservedTable, SnapshotSet
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.sql.order import in_order
from airflow_mv.errors import NotFoundError, NotMaterializedError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PinnedChain:
    """Views with the materialized views that they read, directly or through others.

    Args:
        views: All of them, each after those that it reads.
        pins: The snapshots of all other tables that they read.
    """

    views: tuple[Identifier, ...]
    pins: SnapshotSet


def pinned_chain(
    catalog: MaterializedViewCatalog, views: Sequence[Identifier], *, as_of: datetime | None = None
) -> PinnedChain:
    """Find the views that views read, and pin the tables of all of them. Views of other catalogs are read as they are.

    Args:
        catalog: Where the views are.
        views: Their names.
        as_of: Pin the tables as they were then.

    Raises:
        InvalidQueryError: The views read each other in a cycle.
        SnapshotNotFoundError: A table has no snapshot as of the time.
    """
    seen, waiting = ReadCache(), list(reversed(views))
    reads: dict[Identifier, tuple[Identifier, ...]] = {}
    tables: dict[Identifier, None] = {}
    while waiting:
        view = waiting.pop()
        if view in reads:
            continue
        inputs: dict[Identifier, None] = {}
        for table in observe(catalog, view, reads=seen).tables:
            below = _refreshable(catalog, table, view)
            if below is None:
                tables[Identifier.parse(table.identifier)] = None
            else:
                inputs[below] = None
        reads[view] = tuple(inputs)
        waiting += reads[view]
    pins = SnapshotSet()
    observe_tables(catalog, tables, None, as_of=as_of, reads=pins)
    return PinnedChain(tuple(in_order(reads)), pins)


def _refreshable(catalog: MaterializedViewCatalog, table: ObservedTable, reader: Identifier) -> Identifier | None:
    """Return the view whose rows a table has; ``None`` for an ordinary table, and for a view of another catalog."""
    view = table.view
    if view is None or view == reader:
        return None
    if view.catalog != catalog.name:
        log.info("%s reads %s, which is in another catalog and is not refreshed", reader, view)
        return None
    with suppress(NotFoundError, NotMaterializedError):
        storage = catalog.load_storage(catalog.load(view))
        return view if table.identifier in (str(view), str(storage.name)) else None
    return None
