# SPDX-License-Identifier: Apache-2.0
"""Keep the stored rows of a view whose new version gives the same: only comments, dialects or the text have changed."""

from __future__ import annotations

import logging
from typing import Any

from airflow_mv.core.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog, TableChange
from airflow_mv.core.define.create import same_meaning
from airflow_mv.core.publish.layout import ChangedMetadata
from airflow_mv.core.publish.protocol import Effects
from airflow_mv.core.publish.refresh import history_properties
from airflow_mv.core.publish.storage_change import StorageChange
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import PROPERTY, StorageState
from airflow_mv.core.spec.table_metadata import same_columns
from airflow_mv.core.spec.view import DIALECT

log = logging.getLogger(__name__)


def keep_rows(catalog: MaterializedViewCatalog, view: str | Identifier, *, effects: Effects | None = None) -> bool:
    """Record the stored rows of an earlier version as those of the present one, if both give the same rows.

    Both have the same columns, by name and type, and the same query, whatever its text. Only the refresh record
    changes. If the view is refreshed meanwhile, its new rows count.

    Args:
        effects: Clock, sleep and jitter.

    Returns:
        Whether something was published.

    Raises:
        CommitConflictError, CommitStateUnknownError: See :func:`airflow_mv.core.publish.protocol.commit`.
    """
    done = _KeepRows(catalog, catalog.identify(view), "the version of its rows", effects).publish()
    if done:
        log.info("%s keeps its rows: its new version gives the same", view)
    return done


def are_kept(view: LoadedView, storage: LoadedStorage) -> bool:
    """Whether a view's stored rows are of an earlier version that gives the same rows as the present one."""
    record, metadata = storage.record, view.metadata
    if record is None or record.version_id == metadata.current_version_id:
        return False
    then = next((item for item in metadata.versions if item.version_id == record.version_id), None)
    if then is None or not same_columns(metadata.schema_.fields, storage.table):
        return False
    now, name = metadata.current_version, view.identifier
    return all(DIALECT in version.texts for version in (then, now)) and same_meaning(
        (then.texts[DIALECT], Identifier(then.default_catalog or name.catalog, then.default_namespace, name.name)),
        (now.texts[DIALECT], Identifier(now.default_catalog or name.catalog, now.default_namespace, name.name)),
    )


class _KeepRows(StorageChange):
    """The present rows become those of the view's present version. It has landed if the record names the version."""

    def __init__(self, catalog: MaterializedViewCatalog, view: Identifier, name: str, effects: Effects | None) -> None:
        super().__init__(catalog, view, name, effects)
        self._loaded: LoadedView | None = None

    def is_needed(self, view: LoadedView, storage: LoadedStorage) -> bool:
        """Whether the rows are of an earlier version that gives the same."""
        self._loaded = view
        return are_kept(view, storage)

    def changed_metadata(self, storage: LoadedStorage, document: dict[str, Any], now_ms: int) -> ChangedMetadata:  # noqa: ARG002
        """Change the record."""
        return ChangedMetadata(document, self._properties(storage))

    def table_change(self, storage: LoadedStorage) -> TableChange:
        """Change the record, if the rows are still those that were loaded."""
        tag = {storage.state.tag: storage.tagged} if storage.state else {}
        return TableChange(requires={"main": storage.table.head, **tag}, properties=self._properties(storage))

    def _properties(self, storage: LoadedStorage) -> dict[str, str]:
        state, view = storage.state, self._loaded
        if state is None or view is None:
            return {}
        document = state.document()
        for refresh in document["refreshes"]:
            if refresh["refresh-id"] == state.current_refresh_id:
                refresh["version-id"] = view.metadata.current_version_id
        return history_properties(view, storage, StorageState.read(document, source=PROPERTY))
