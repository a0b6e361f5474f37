# SPDX-License-Identifier: Apache-2.0
"""Maintenance of a storage table: compaction, expiry and orphans in one call, also after a refresh."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from airflow_mv.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog
from airflow_mv.errors import ConfigurationError, MaterializedViewError
from airflow_mv.maintenance.base_snapshots import keep_base_snapshots
from airflow_mv.maintenance.compact import compact
from airflow_mv.maintenance.expire import count_old
from airflow_mv.maintenance.orphans import maintain
from airflow_mv.publish.refresh import DEFAULT_GRACE
from airflow_mv.script import Stager
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.stored import whole_number
from airflow_mv.spec.table import Snapshot, TableMetadata

log = logging.getLogger(__name__)

#: View properties: with how many files, or old snapshots, of its storage table a refresh is followed by maintenance.
COMPACT_PROPERTY = "airflow-mv.maintenance.compact-files"
EXPIRE_PROPERTY = "airflow-mv.maintenance.expire-snapshots"
#: The old snapshots that stay without maintenance, if the view's property does not say otherwise. A run of maintenance
#: lists the view's folders, so it pays for many refreshes.
DEFAULT_OLD_SNAPSHOTS = 100
#: The value of :data:`EXPIRE_PROPERTY` of a view that only commands and tasks maintain.
NEVER = "never"
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
        older_than: See :func:`airflow_mv.maintenance.orphans.maintain`.
        dry_run: Only report what would be done.
        stager: Runs the job of a compaction; ``None`` for none.
        report: Receives progress messages.

    Returns:
        What the command line prints: the document of the maintenance, with ``compaction`` if it was asked for.

    Raises:
        MaterializedViewError: See :func:`airflow_mv.maintenance.compact.compact` and
            :func:`airflow_mv.maintenance.orphans.maintain`.
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
        older_than: See :func:`airflow_mv.maintenance.orphans.maintain`.
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
    most = bound(view.metadata.properties, COMPACT_PROPERTY, view=view.identifier)
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
    most = _most_old(view, storage.table)
    if most is None or count_old(view, storage, older_than=older_than) <= most:
        return
    found = maintain(catalog, view.identifier, older_than=older_than, report=report)
    expired, deleted = len(found.expired.snapshot_ids), len(found.collected.files)
    report(f"{view.identifier}: maintenance after the refresh: {expired} snapshots expired, {deleted} files deleted")


def _most_old(view: LoadedView, table: TableMetadata) -> int | None:
    """Return how many old snapshots may stay; ``None``: any number."""
    properties = view.metadata.properties
    if properties.get(EXPIRE_PROPERTY, "").strip() == NEVER:
        return None
    most = bound(properties, EXPIRE_PROPERTY, view=view.identifier)
    return most or (None if _has_own_retention(table) else DEFAULT_OLD_SNAPSHOTS)


def _has_own_retention(table: TableMetadata) -> bool:
    """Whether somebody has said in the storage table how long its snapshots stay."""
    return (
        table.properties.get("gc.enabled", "true").lower() == "false"
        or any(key.startswith("history.expire.") for key in table.properties)
        or any(ref.max_snapshot_age_ms or ref.min_snapshots_to_keep for ref in table.refs.values())
    )


def bound(properties: Mapping[str, str], key: str, *, view: Identifier) -> int | None:
    """Return a bound that a view's property sets; ``None`` if it sets none.

    Args:
        properties: The view's.
        key: The property.
        view: For the message.

    Raises:
        ConfigurationError: It is not a whole number of at least 1.
    """
    text = properties.get(key)
    if text is None:
        return None
    if (number := whole_number(text.strip(), 0)) < 1:
        raise ConfigurationError(f"view {view}, property {key}: {text!r} is not a whole number of at least 1")
    return number


def _files(snapshot: Snapshot) -> int:
    return sum(snapshot.count(key) for key in _FILES)
