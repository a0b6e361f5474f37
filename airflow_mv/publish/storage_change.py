# SPDX-License-Identifier: Apache-2.0
"""Changes of a storage table that no Spark job computed: an expiry, a rollback, a correction of times.

Each is a subclass of :class:`StorageChange`, which is given to the loop of :mod:`airflow_mv.publish.protocol`. After a
conflict the change is adapted to the current state. A refresh that was planned before such a change finds a different
storage state, and plans again.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any

from airflow_mv.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog, TableChange
from airflow_mv.catalog.files import discard
from airflow_mv.publish.pointed import write_next
from airflow_mv.publish.protocol import Change, Effects, Verdict, commit
from airflow_mv.publish.refresh import Current, load_current
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.materialized_view import PROPERTY, property_text
from airflow_mv.spec.stored import decode
from airflow_mv.spec.view import with_view_properties


@dataclass(frozen=True, slots=True)
class ChangedMetadata:
    """A changed storage table.

    Args:
        document: Its metadata, as the next metadata file.
        properties: Additional table properties to set.
    """

    document: dict[str, Any]
    properties: dict[str, str] = field(default_factory=dict)


class StorageChange(Change[Current]):
    """A change of a view's storage table: one method for each layout, and one that returns whether it is needed.

    A commit to a table of the catalog is recognized by its result: the change is not needed any more. In the pointed
    layout the storage metadata file that was written for it is recognized, too.

    Args:
        catalog: Where the view is.
        view: The view.
        name: The change, for messages.
        effects: Clock, sleep and jitter.
    """

    def __init__(
        self, catalog: MaterializedViewCatalog, view: Identifier, name: str, effects: Effects | None = None
    ) -> None:
        super().__init__(f"view {view}", name, effects)
        self._catalog, self._view = catalog, view
        self._uuid: str | None = None
        self._base: str | None = None
        self._location: str | None = None
        self._sent: TableChange | None = None

    @abstractmethod
    def is_needed(self, view: LoadedView, storage: LoadedStorage) -> bool:
        """Whether there is something to change in a state of the view; ``False`` after the change has landed."""

    @abstractmethod
    def changed_metadata(self, storage: LoadedStorage, document: dict[str, Any], now_ms: int) -> ChangedMetadata:
        """Change the decoded metadata file of a storage table (pointed layout)."""

    @abstractmethod
    def table_change(self, storage: LoadedStorage) -> TableChange:
        """Return the commit that makes the change in a storage table of the catalog (registered layout)."""

    def look(self) -> Current:
        """Load the view and its storage table."""
        current = load_current(self._catalog, self._view, self._uuid)
        self._uuid = current.view.metadata.view_uuid
        return current

    def judge(self, state: Current) -> Verdict:
        """``LANDED`` also if there is nothing to change."""
        if self._location in state.storage.published_files or not self.is_needed(state.view, state.storage):
            return Verdict.LANDED
        return Verdict.READY

    def send(self, state: Current) -> bool:
        """Commit to the table, or write its next metadata file and swap the view's pointer."""
        view, storage = state
        if storage.name is not None:
            self._sent = self.table_change(storage)
            return self._catalog.commit_table(storage.name, storage.table.table_uuid or "", self._sent) is not None
        if self._base != view.metadata_location:
            # The old base has moved: a swap from it can never be applied any more, so its file can be deleted.
            self.clean_up()
            self._location, self._base = self._write(storage), view.metadata_location
        settings = view.materialized.repointed(self._location or "")
        metadata = with_view_properties(view.metadata, {PROPERTY: property_text(settings)})
        # Two swaps from the same base name the same storage file, and at most one of them matches, so a resend is safe.
        return self._catalog.replace(view, metadata)

    def _write(self, storage: LoadedStorage) -> str:
        now_ms = self.effects.now_ms()
        data = self._catalog.files.read(storage.location, what="storage table file")
        changed = self.changed_metadata(storage, decode(data, source=storage.location), now_ms)
        return write_next(
            self._catalog,
            storage.table.location,
            changed.document,
            previous_location=storage.location,
            updates=changed.properties,
            tags={},
            now_ms=now_ms,
        )

    def may_land(self, state: Current) -> bool:
        """Whether the view, or the required state of the table, has not changed since the change was sent."""
        if state.storage.name is None:
            return state.view.metadata_location == self._base
        return self._sent is not None and self.table_change(state.storage).requires == self._sent.requires

    def clean_up(self) -> None:
        """Delete the storage metadata file that was written."""
        location, self._location = self._location, None
        if location is not None:
            discard(self._catalog.files, location)

    def publish(self) -> bool:
        """Run the protocol.

        Returns:
            Whether something was published; ``False`` if there was nothing to change.

        Raises:
            CommitConflictError, CommitStateUnknownError, ViewNotFoundError: See
                :func:`airflow_mv.publish.protocol.commit`.
        """
        commit(self)
        return self._sent is not None or self._base is not None
