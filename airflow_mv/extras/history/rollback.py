# SPDX-License-Identifier: Apache-2.0
"""Make an earlier refresh, or an earlier definition, of a view current again."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from typing import Any

from airflow_mv.common.snapshots import is_complete, snapshot_of, with_head
from airflow_mv.core.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog, TableChange
from airflow_mv.core.catalog.layouts import all_refreshes
from airflow_mv.core.publish.layout import ChangedMetadata
from airflow_mv.core.publish.protocol import Effects
from airflow_mv.core.publish.refresh import history_properties, keeps_history
from airflow_mv.core.publish.registered import time_of_commit
from airflow_mv.core.publish.storage_change import StorageChange
from airflow_mv.core.publish.view_change import SUMMARY, ViewChange, time_of_change
from airflow_mv.core.spec.identifiers import Identifier, id_text
from airflow_mv.core.spec.materialized_view import (
    KEPT_ROLLBACKS,
    PROPERTY,
    RefreshRecord,
    StorageState,
    refresh_tag,
    storage_table_field,
)
from airflow_mv.core.spec.table_metadata import TableShape, alterations
from airflow_mv.core.spec.view import CHANGE_ID, ViewMetadata, replace_version, roll_back
from airflow_mv.errors import RefreshNotFoundError, VersionNotFoundError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RollbackResult:
    """The result of a rollback.

    Args:
        snapshot_id: The storage snapshot with its rows.
        changed: ``False`` if it was current already.
    """

    view: Identifier
    refresh_id: str
    snapshot_id: int
    changed: bool

    def to_dict(self) -> dict[str, Any]:
        """Return what the command line prints."""
        return {
            "view": str(self.view),
            "refresh_id": self.refresh_id,
            "snapshot_id": id_text(self.snapshot_id),
            "outcome": "rolled-back" if self.changed else "already-current",
        }


def rollback(
    catalog: MaterializedViewCatalog, view: str | Identifier, refresh_id: str, *, effects: Effects | None = None
) -> RollbackResult:
    """Make the rows of an earlier recorded refresh the view's current ones.

    Later refreshes stay in the history, so a rollback can be undone. If base tables changed since that refresh, the
    view is stale afterwards and its next refresh brings it up to date. Stop the schedule first if that is not wanted.

    Args:
        refresh_id: The refresh, as the history names it.
        effects: Clock, sleep and jitter.

    Raises:
        RefreshNotFoundError: The history holds no such refresh, its rows have expired, or it is of another
            definition of the view.
        CommitConflictError, CommitStateUnknownError: See :func:`airflow_mv.core.publish.protocol.commit`.
    """
    change = _Rollback(catalog, catalog.identify(view), refresh_id, effects)
    changed = change.publish()
    if changed:
        log.info("Rolled back %s to refresh %s (snapshot %d)", view, refresh_id, change.snapshot_id)
    return RollbackResult(catalog.identify(view), refresh_id, change.snapshot_id, changed)


class _Rollback(StorageChange):
    """Make an earlier refresh current. It has landed if its rollback id is in the history.

    Args:
        effects: Clock, sleep and jitter.
    """

    def __init__(
        self, catalog: MaterializedViewCatalog, view: Identifier, refresh_id: str, effects: Effects | None
    ) -> None:
        super().__init__(catalog, view, f"the rollback to refresh {refresh_id}", effects)
        self._refresh_id, self._id = refresh_id, uuid.uuid4().hex
        self._before: StorageState | None = None
        self._loaded: LoadedView | None = None
        self._now_ms: int | None = None
        #: The snapshot with the refresh's rows.
        self.snapshot_id = 0

    def is_needed(self, view: LoadedView, storage: LoadedStorage) -> bool:
        """Whether the refresh is not current, and an earlier copy of the rollback has not landed."""
        if storage.state is not None and any(item.rollback_id == self._id for item in storage.state.rollbacks):
            return False  # even if something was published after it
        state, self.snapshot_id = _find(view, storage, self._refresh_id)
        self._before, self._loaded = state, view
        return state.current_refresh_id != self._refresh_id or storage.table.head != self.snapshot_id

    def changed_metadata(self, storage: LoadedStorage, document: dict[str, Any], now_ms: int) -> ChangedMetadata:
        """Move ``main``, and set the record."""
        properties = self._properties(storage, self._after(now_ms))
        changed = with_head(document, self.snapshot_id, now_ms=now_ms)
        schema_id = self._shape(storage).schema_id
        if schema_id is not None:
            changed["current-schema-id"] = schema_id
        return ChangedMetadata(changed, properties)

    def table_change(self, storage: LoadedStorage) -> TableChange:
        """Move ``main`` and the current tag, as publishing a refresh does, and with the same requirements."""
        if self._now_ms is None:
            self._now_ms = time_of_commit(self._catalog, storage, self.effects.now_ms())
        state, target = self._after(self._now_ms), self.snapshot_id
        before, kept = storage.state.tag if storage.state else None, refresh_tag(state.current_refresh_id)
        ref = storage.table.refs.get(kept)
        return TableChange(
            shape=self._shape(storage),
            requires={
                "main": storage.table.head,
                **({before: storage.tagged} if before else {}),
                **({kept: ref.snapshot_id} if ref else {}),
            },
            branches={"main": target},
            tags={state.tag: target},
            removes=(before,) if before in storage.table.refs else (),
            properties=self._properties(storage, state),
        )

    def _shape(self, storage: LoadedStorage) -> TableShape:
        """Return the schema of the rows, if the table has other columns now: engines read by the table's schema."""
        return alterations(storage.table, self.snapshot_id, None, None).shape

    def _after(self, now_ms: int) -> StorageState:
        if self._before is None or self._loaded is None:
            raise RefreshNotFoundError(f"view {self._view} was not loaded yet")
        state = rolled_back(self._before, self._refresh_id, self._id, now_ms)
        return state if keeps_history(self._loaded) else only_current(state)

    def _properties(self, storage: LoadedStorage, state: StorageState) -> dict[str, str]:
        if self._loaded is None:
            raise RefreshNotFoundError(f"view {self._view} was not loaded yet")
        return history_properties(self._loaded, storage, state)


def _find(view: LoadedView, storage: LoadedStorage, refresh_id: str) -> tuple[StorageState, int]:
    """Return the recorded history, including one of its refreshes, and the snapshot with that one's rows."""
    state, records = storage.state, {record.refresh_id: record for record in all_refreshes(view, storage)}
    if state is None or refresh_id not in records:
        raise RefreshNotFoundError(
            f"view {view.identifier} has no refresh with id {refresh_id} ({len(records)} recorded; `airflow-mv history "
            f"{view.identifier}` lists them)"
        )
    record = records[refresh_id]
    if record.version_id != view.metadata.current_version_id:
        raise RefreshNotFoundError(
            f"view {view.identifier}: refresh {refresh_id} is of version {record.version_id} of the view, and the "
            f"current version is {view.metadata.current_version_id}: its rows are the result of another query"
        )
    snapshot_id = snapshot_of(storage, record)
    if snapshot_id is None:
        raise RefreshNotFoundError(
            f"view {view.identifier}: the rows of refresh {refresh_id} have expired; with --time-travel each refresh "
            "keeps its rows"
        )
    if record not in state.refreshes and not is_complete(record):
        raise RefreshNotFoundError(
            f"view {view.identifier}: refresh {refresh_id} covers one interval, and the base snapshots of the other "
            "rows are recorded for the last two refreshes only; with --time-travel they are kept"
        )
    return state if record in state.refreshes else _including(state, record), snapshot_id


# -------------------------------------------------------- Make an earlier version of a view's definition current again


@dataclass(frozen=True, slots=True)
class VersionRollbackResult:
    """The result of a rollback of a definition.

    Args:
        before: The version that was current before.
    """

    view: Identifier
    version_id: int
    before: int

    def to_dict(self) -> dict[str, Any]:
        """Return what the command line prints."""
        return {
            "view": str(self.view),
            "version_id": self.version_id,
            "before": self.before,
            "outcome": "already-current" if self.before == self.version_id else "rolled-back",
        }


def rollback_version(
    catalog: MaterializedViewCatalog, view: str | Identifier, version_id: int, *, effects: Effects | None = None
) -> VersionRollbackResult:
    """Make an earlier version of a view's definition current again. No version is removed, so it can be undone.

    The stored rows stay. If they are of another version, the view's state is ``definition-changed``: they are not
    returned, and the next refresh recomputes them.

    Args:
        version_id: The version, as ``airflow-mv versions`` lists it.
        effects: Clock, sleep and jitter.

    Raises:
        VersionNotFoundError: The view does not retain the version.
        UnsupportedError: The version lacks an SQL dialect that the view has.
        NotMaterializedError: It is a plain view.
        CommitConflictError, CommitStateUnknownError: See :func:`airflow_mv.core.publish.protocol.commit`.
    """
    existing = catalog.load(catalog.identify(view))
    before = existing.metadata.current_version_id
    catalog.folders.of(existing)
    done = _RollBackVersion(catalog, existing, version_id, effects or Effects()).publish()
    if before != version_id:
        log.info("Rolled back %s to version %d", existing.identifier, done.metadata.current_version_id)
    return VersionRollbackResult(existing.identifier, done.metadata.current_version_id, before)


class _RollBackVersion(ViewChange):
    """Make a version current. It has landed if the version is current, or the log has the entry that was sent.

    Args:
        effects: Clock, sleep and jitter.
    """

    def __init__(
        self, catalog: MaterializedViewCatalog, existing: LoadedView, version_id: int, effects: Effects
    ) -> None:
        super().__init__(catalog, existing, f"the rollback to version {version_id}", effects)
        self._version_id, self._id = version_id, uuid.uuid4().hex
        self._now_ms: int | None = None
        self._sent: set[tuple[int, int]] = set()
        existing.materialized  # noqa: B018 (a plain view is refused)

    def wanted(self, view: LoadedView) -> ViewMetadata | None:
        """Return the view at the version, unless it is, or was since the change was sent."""
        metadata = view.metadata
        log = {(entry.version_id, entry.timestamp_ms) for entry in metadata.version_log}
        if metadata.current_version_id == self._version_id or metadata.has_version_of(self._id) or self._sent & log:
            return None
        version = next((item for item in metadata.versions if item.version_id == self._version_id), None)
        if version is None:
            retained = ", ".join(str(item.version_id) for item in metadata.versions)
            raise VersionNotFoundError(
                f"view {view.identifier} does not retain version {self._version_id}; it has: {retained}. The view "
                "property version.history.num-entries limits the number of retained versions"
            )
        if self._now_ms is None:
            self._now_ms = time_of_change(self._catalog, metadata.location, self.effects)
        stored_in = storage_table_field(metadata.properties, view.identifier)
        if version.stored_in in (None, stored_in):
            changed = roll_back(metadata, self._version_id, now_ms=self._now_ms)
        else:  # the view has had another storage table then, and a version never changes
            schema = next(item for item in metadata.schemas if item.schema_id == version.schema_id)
            changed = replace_version(
                metadata,
                schema=schema.document(),
                sql=version.texts,
                default_catalog=version.default_catalog,
                default_namespace=version.default_namespace,
                summary={**SUMMARY, CHANGE_ID: self._id},
                now_ms=self._now_ms,
                storage_table=stored_in,
            )
        last = changed.version_log[-1]
        self._sent.add((last.version_id, last.timestamp_ms))
        return changed


def only_current(state: StorageState) -> StorageState:
    """Return the state with the record of the current refresh only."""
    document = {**state.document(), "refreshes": [state.current.document()]}
    return StorageState.read(document, source=PROPERTY)


def rolled_back(state: StorageState, refresh_id: str, rollback_id: str, now_ms: int) -> StorageState:
    """Return the state with an earlier refresh as the current one.

    Args:
        refresh_id: It must be recorded.
        rollback_id: The unique id of this rollback.
        now_ms: The current time.
    """
    latest_ms = max(record.refreshed_at_ms or 0 for record in state.refreshes)
    rollback = {
        "rollback-id": rollback_id,
        "refresh-id": refresh_id,
        "rolled-back-at-ms": max(now_ms, latest_ms + 1),
    }
    before = state.document()
    document = {
        **before,
        "current-refresh-id": refresh_id,
        "rollback-id": rollback_id,
        "rollbacks": [*before.get("rollbacks", []), rollback][-KEPT_ROLLBACKS:],
    }
    return StorageState.read(document, source=PROPERTY)


def _including(state: StorageState, record: RefreshRecord) -> StorageState:
    """Return a state with one more refresh in the history; that one is not current.

    Args:
        record: It must not be recorded.
    """
    document = state.document()
    records = [*document["refreshes"], record.document()]
    document["refreshes"] = sorted(records, key=lambda item: int(item.get("refreshed-at-ms") or 0))
    return StorageState.read(document, source=PROPERTY)
