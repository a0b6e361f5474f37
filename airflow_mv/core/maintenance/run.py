# SPDX-License-Identifier: Apache-2.0
"""Maintenance of a storage table: compaction, expiry and orphans in one call, also after a refresh."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from airflow_mv.core.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog
from airflow_mv.core.maintenance.compact import compact
from airflow_mv.core.maintenance.expire import count_old, keep_base_snapshots
from airflow_mv.core.maintenance.orphans import maintain
from airflow_mv.core.publish.refresh import DEFAULT_GRACE
from airflow_mv.core.script import Stager
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.storage_settings import most_files, most_old_snapshots
from airflow_mv.core.spec.table import Snapshot, TableMetadata
from airflow_mv.errors import MaterializedViewError

log = logging.getLogger(__name__)

#: The old snapshots that stay without maintenance, if the view's property does not say otherwise. A run of maintenance
#: lists the view's folders, so it pays for many refreshes.
DEFAULT_OLD_SNAPSHOTS = 100
_FILES = ("total-data-files", "total-delete-files")


def maintain_view(
    catalog: MaterializedViewCatalog,
    view: str | Identifier,
    *,
    older_than: timedelta = DEFAULT_GRACE,
    dry_run: bool = False,
    stager: Stager | None = None,
    report: Callable[[str], None] = log.info,
) -> dict[str, Any]:
    """Compact a view's files if asked for, then expire old snapshots and delete orphan files.

    Args:
        catalog: Where the view is.
        view: The view.
        older_than: See :func:`airflow_mv.core.maintenance.orphans.maintain`.
        dry_run: Only report what would be done.
        stager: Runs the job of a compaction; ``None`` for none.
        report: Receives progress messages.

    Returns:
        What the command line prints: the document of the maintenance, with ``compaction`` if it was asked for.

    Raises:
        MaterializedViewError: See :func:`airflow_mv.core.maintenance.compact.compact` and
            :func:`airflow_mv.core.maintenance.orphans.maintain`.
    """
    compacted = None if stager is None else compact(catalog, view, stager=stager, dry_run=dry_run)
    done = maintain(catalog, view, older_than=older_than, dry_run=dry_run, report=report).to_dict()
    return done if compacted is None else {**done, "compaction": compacted.to_dict()}


def maintain_after_refresh(
    catalog: MaterializedViewCatalog,
    view: str | Identifier,
    *,
    published: bool,
    stager: Stager | None,
    older_than: timedelta = DEFAULT_GRACE,
    report: Callable[[str], None] = log.info,
) -> None:
    """Do what a view's properties ask for after a refresh. It never fails the refresh.

    Args:
        catalog: Where the view is.
        view: The view.
        published: Whether the refresh has published something. Otherwise only the tags in base tables are renewed.
        stager: Runs the job of a compaction; ``None``: there is no compaction.
        older_than: See :func:`airflow_mv.core.maintenance.orphans.maintain`.
        report: Receives a line for what was done.
    """
    try:
        loaded = catalog.load(view)
        keep_base_snapshots(catalog, loaded)
        if published:
            storage = catalog.load_storage(loaded)
            _expire_if_many(catalog, loaded, storage, older_than, report)
            if stager is not None:
                _compact_if_many(catalog, loaded, storage, stager, report)
    except MaterializedViewError as error:
        log.warning("%s is refreshed, but its maintenance failed; the next refresh tries again: %s", view, error)


def _compact_if_many(
    catalog: MaterializedViewCatalog,
    view: LoadedView,
    storage: LoadedStorage,
    stager: Stager,
    report: Callable[[str], None],
) -> None:
    most = most_files(view.metadata.properties, view=str(view.identifier))
    head = None if storage.rows_snapshot is None else storage.table.find(storage.rows_snapshot)
    if most is not None and head is not None and _files(head) > most:
        done = compact(catalog, view.identifier, stager=stager)
        report(f"{view.identifier}: compaction after the refresh: {done.outcome} ({done.why})")


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
    """Whether somebody has said in the storage table how long its snapshots stay."""
    return (
        table.properties.get("gc.enabled", "true").lower() == "false"
        or any(key.startswith("history.expire.") for key in table.properties)
        or any(ref.max_snapshot_age_ms or ref.min_snapshots_to_keep for ref in table.refs.values())
    )


def _files(snapshot: Snapshot) -> int:
    return sum(snapshot.count(key) for key in _FILES)
