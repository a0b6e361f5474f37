# SPDX-License-Identifier: Apache-2.0
"""Make an earlier version of a view's definition current again."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from typing import Any

from airflow_mv.catalog import LoadedView, MaterializedViewCatalog
from airflow_mv.errors import VersionNotFoundError
from airflow_mv.publish.protocol import Effects
from airflow_mv.publish.view_change import SUMMARY, ViewChange, time_of_change
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.materialized_view import storage_table_field
from airflow_mv.spec.view import CHANGE_ID, ViewMetadata, replace_version, roll_back

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VersionRolledBack:
    """The result of a rollback of a definition.

    Args:
        view: The view.
        version_id: The version that is current now.
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
) -> VersionRolledBack:
    """Make an earlier version of a view's definition current again. No version is removed, so it can be undone.

    The stored rows stay. If they are of another version, the view's state is ``definition-changed``: they are not
    returned, and the next refresh recomputes them.

    Args:
        catalog: Where the view is.
        view: The view.
        version_id: The version, as ``airflow-mv versions`` lists it.
        effects: Clock, sleep and jitter.

    Raises:
        VersionNotFoundError: The view does not retain the version.
        UnsupportedError: The version lacks an SQL dialect that the view has.
        NotMaterializedError: It is a plain view.
        CommitConflictError, CommitStateUnknownError: See :func:`airflow_mv.publish.protocol.commit`.
    """
    existing = catalog.load(catalog.identify(view))
    before = existing.metadata.current_version_id
    catalog.folders_of(existing)
    done = _RollBackVersion(catalog, existing, version_id, effects or Effects()).publish()
    if before != version_id:
        log.info("%s is at version %d again", existing.identifier, done.metadata.current_version_id)
    return VersionRolledBack(existing.identifier, done.metadata.current_version_id, before)


class _RollBackVersion(ViewChange):
    """Make a version current. It has landed if the version is current, or the log has the entry that was sent.

    Args:
        catalog: Where the view is.
        existing: The view.
        version_id: The version.
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
                "property version.history.num-entries says how many are kept"
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
