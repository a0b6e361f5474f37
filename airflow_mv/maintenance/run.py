# SPDX-License-Identifier: Apache-2.0
"""Maintenance of a storage table: compaction, expiry and orphans in one call, also after a refresh."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from airflow_mv.catalog import LoadedView, MaterializedViewCatalog
from airflow_mv.errors import ConfigurationError, MaterializedViewError
from airflow_mv.maintenance.base_snapshots import keep_base_snapshots
from airflow_mv.maintenance.compact import compact
from airflow_mv.maintenance.expire import expire
from airflow_mv.maintenance.orphans import maintain
from airflow_mv.publish.refresh import DEFAULT_GRACE
from airflow_mv.script import Outcome, Script
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.stored import whole_number
from airflow_mv.spec.table import Snapshot

log = logging.getLogger(__name__)

#: View properties: with how many files, or snapshots, of its storage table a refresh is followed by maintenance.
COMPACT_PROPERTY = "airflow-mv.maintenance.compact-files"
EXPIRE_PROPERTY = "airflow-mv.maintenance.expire-snapshots"
_FILES = ("total-data-files", "total-delete-files")


def maintain_view(
    catalog: MaterializedViewCatalog,
    view: str | Identifier,
    *,
    older_than: timedelta = DEFAULT_GRACE,
    dry_run: bool = False,
    stager: Callable[[Script], Outcome] | None = None,
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
    stager: Callable[[Script], Outcome],
    report: Callable[[str], None] = log.info,
) -> None:
    """Do what a view's properties ask for after a refresh. It never fails the refresh.

    Args:
        catalog: Where the view is.
        view: The view.
        published: Whether the refresh has published something. Otherwise only the tags in base tables are renewed.
        stager: Runs the job of a compaction.
        report: Receives a line for what was done.
    """
    try:
        loaded = catalog.load(view)
        keep_base_snapshots(catalog, loaded)
        if published:
            _as_asked(catalog, loaded, stager, report)
    except MaterializedViewError as error:
        log.warning("%s is refreshed, but its maintenance failed; the next refresh tries again: %s", view, error)


def _as_asked(
    catalog: MaterializedViewCatalog,
    loaded: LoadedView,
    stager: Callable[[Script], Outcome],
    report: Callable[[str], None],
) -> None:
    view, properties = loaded.identifier, loaded.metadata.properties
    most_files, most_snapshots = (bound(properties, key, view=view) for key in (COMPACT_PROPERTY, EXPIRE_PROPERTY))
    if most_files is None and most_snapshots is None:
        return
    storage = catalog.load_storage(loaded)
    head = None if storage.rows_snapshot is None else storage.table.find(storage.rows_snapshot)
    if most_files is not None and head is not None and _files(head) > most_files:
        done = compact(catalog, view, stager=stager)
        report(f"{view}: compaction after the refresh: {done.outcome} ({done.why})")
    too_many = most_snapshots is not None and len(storage.table.snapshots) > most_snapshots
    # Without an old snapshot there is no reason to list the view's folder after each refresh.
    if too_many and expire(catalog, view, dry_run=True):
        found = maintain(catalog, view, report=report)
        expired, deleted = len(found.expired.snapshot_ids), len(found.collected.files)
        report(f"{view}: maintenance after the refresh: {expired} snapshots expired, {deleted} files deleted")


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
