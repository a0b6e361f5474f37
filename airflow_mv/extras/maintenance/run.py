# SPDX-License-Identifier: Apache-2.0
"""Maintenance of a storage table after a refresh."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta

from airflow_mv.core.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog
from airflow_mv.core.publish.refresh import DEFAULT_GRACE
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.properties import most_files, most_old_snapshots
from airflow_mv.core.spec.table_metadata import TableMetadata
from airflow_mv.errors import MaterializedViewError
from airflow_mv.extras.maintenance.expire import count_old, keep_base_snapshots
from airflow_mv.extras.maintenance.orphans import maintain

log = logging.getLogger(__name__)

#: The old snapshots that stay without maintenance, if the view's property does not say otherwise. A run of maintenance
#: lists the view's folders, so it pays for many refreshes.
DEFAULT_OLD_SNAPSHOTS = 100
_FILES = ("total-data-files", "total-delete-files")


def maintain_after_refresh(
    catalog: MaterializedViewCatalog,
    view: str | Identifier,
    *,
    published: bool,
    compact: Callable[[Identifier], None] | None = None,
    older_than: timedelta = DEFAULT_GRACE,
    report: Callable[[str], None] = log.info,
) -> None:
    """Do what a view's properties ask for after a refresh. It never fails the refresh.

    Args:
        published: Whether the refresh has published something. Otherwise only the tags in base tables are renewed.
        compact: Called if the view has more files than its property ``airflow-mv.maintenance.compact-files``.
        older_than: See :func:`airflow_mv.extras.maintenance.orphans.maintain`.
        report: Receives a line for what was done.
    """
    try:
        loaded = catalog.load(view)
        keep_base_snapshots(catalog, loaded)
        if published:
            storage = catalog.load_storage(loaded)
            _expire_if_many(catalog, loaded, storage, older_than, report)
            if compact is not None and _has_many_files(loaded, storage):
                compact(loaded.identifier)
    except MaterializedViewError as error:
        log.warning("%s is refreshed, but its maintenance failed; the next refresh tries again: %s", view, error)


def _has_many_files(view: LoadedView, storage: LoadedStorage) -> bool:
    most = most_files(view.metadata.properties, view=str(view.identifier))
    snapshot = storage.rows_snapshot
    head = None if snapshot is None else storage.table.find(snapshot)
    return most is not None and head is not None and sum(head.count(key) for key in _FILES) > most


def _expire_if_many(
    catalog: MaterializedViewCatalog,
    view: LoadedView,
    storage: LoadedStorage,
    older_than: timedelta,
    report: Callable[[str], None],
) -> None:
    default = None if _has_own_retention(storage.table) else DEFAULT_OLD_SNAPSHOTS
    most = most_old_snapshots(view.metadata.properties, view=str(view.identifier), default=default)
    if most is None or count_old(view, storage, older_than=older_than) <= most:
        return
    found = maintain(catalog, view.identifier, older_than=older_than, report=report)
    expired, deleted = len(found.expired.snapshot_ids), len(found.collected.files)
    report(f"{view.identifier}: maintenance after the refresh: {expired} snapshots expired, {deleted} files deleted")


def _has_own_retention(table: TableMetadata) -> bool:
    """Whether a property of the storage table sets how long its snapshots are kept."""
    return (
        table.properties.get("gc.enabled", "true").lower() == "false"
        or any(key.startswith("history.expire.") for key in table.properties)
        or any(ref.max_snapshot_age_ms or ref.min_snapshots_to_keep for ref in table.refs.values())
    )
