# SPDX-License-Identifier: Apache-2.0
"""Changes of a storage table that no Spark job computed: an expiry, a rollback, a restoration of its columns.

Each is a subclass of :class:`StorageChange`, which is given to the loop of :mod:`airflow_mv.core.publish.protocol`.
After a conflict the change is adapted to the current state. A refresh that was planned before such a change finds a
different storage state, and plans again.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from typing import Any

from airflow_mv.core.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog, TableChange
from airflow_mv.core.catalog.catalog import lost_properties_of
from airflow_mv.core.catalog.lost_properties import LostProperties
from airflow_mv.core.publish.layout import ChangedMetadata, StorageLayout
from airflow_mv.core.publish.protocol import Change, Effects, Verdict, commit
from airflow_mv.core.publish.publications import layout_of_view
from airflow_mv.core.publish.refresh import Attempt, Current, load_current
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.table_metadata import Alterations, TableShape
from airflow_mv.errors import InvalidMetadataError, MetadataFileNotFoundError, NotFoundError, UnsupportedError

log = logging.getLogger(__name__)


class StorageChange(Change[Current]):
    """A change of a view's storage table, in the forms in which layouts send it, and whether it is needed.

    It is recognized by the state that it leaves: it is no longer needed. Where a metadata file was written for it,
    that file is also recognized.

    Args:
        name: The change, for messages.
        effects: Clock, sleep and jitter.
    """

    def __init__(
        self, catalog: MaterializedViewCatalog, view: Identifier, name: str, effects: Effects | None = None
    ) -> None:
        super().__init__(f"view {view}", name, effects)
        self._catalog, self._view = catalog, view
        self._uuid: str | None = None
        self._attempt: Attempt | None = None
        self._layout: StorageLayout | None = None

    @abstractmethod
    def is_needed(self, view: LoadedView, storage: LoadedStorage) -> bool:
        """Whether there is something to change in a state of the view; ``False`` after the change has landed."""

    @abstractmethod
    def changed_metadata(self, storage: LoadedStorage, document: dict[str, Any], now_ms: int) -> ChangedMetadata:
        """Change the decoded metadata file of a storage table."""

    def table_change(self, _storage: LoadedStorage) -> TableChange:
        """Return the table commit that makes the change.

        Raises:
            UnsupportedError: No table commit can make it.
        """
        raise UnsupportedError(f"{self.target}: a catalog's table commit cannot make this change: {self.name}")

    def attempt(self, layout: StorageLayout) -> Attempt:
        """Return how the view's layout sends the change."""
        return layout.edit(self._catalog, self, self.effects)

    def load(self) -> Current:
        """Load the view and its storage table."""
        current = load_current(self._catalog, self._view, self._uuid)
        self._uuid = current.view.metadata.view_uuid
        return current

    def judge(self, state: Current) -> Verdict:
        """``LANDED`` also if there is nothing to change."""
        landed = self._attempt is not None and self._attempt.has_landed(state.storage)
        return Verdict.LANDED if landed or not self.is_needed(state.view, state.storage) else Verdict.READY

    def send(self, state: Current) -> bool:
        """Send it in the way of the layout that the view has now."""
        layout = layout_of_view(state.view)
        if self._attempt is None or self._layout is not layout:
            # The view was converted meanwhile: what was sent in the old layout can never be applied.
            self.clean_up()
            self._attempt, self._layout = self.attempt(layout), layout
        return self._attempt.send(state.view, state.storage) is not None

    def may_land(self, state: Current) -> bool:
        """Whether what the change was sent from is as it was."""
        same = self._layout is layout_of_view(state.view)
        return same and self._attempt is not None and self._attempt.may_land(state.view, state.storage)

    def clean_up(self) -> None:
        """Delete what was written."""
        if self._attempt is not None:
            self._attempt.clean_up()

    def publish(self) -> bool:
        """Run the protocol.

        Returns:
            Whether something was published; ``False`` if there was nothing to change.

        Raises:
            CommitConflictError, CommitStateUnknownError, ViewNotFoundError: See
                :func:`airflow_mv.core.publish.protocol.commit`.
        """
        commit(self)
        return self._attempt is not None


class RestoreStorage(StorageChange):
    """Make the published columns, partitioning and sort order of a storage table current again.

    Only the table's metadata change: its files have the columns by id, so that all engines read the view's rows again.

    Args:
        effects: Clock, sleep and jitter.
    """

    def __init__(self, catalog: MaterializedViewCatalog, view: Identifier, effects: Effects | None = None) -> None:
        super().__init__(catalog, view, "the restoration of its storage table", effects)
        self._altered = Alterations()

    def is_needed(self, view: LoadedView, storage: LoadedStorage) -> bool:
        """Whether another program has changed the table."""
        self._altered = storage.altered(view)
        return self._altered.shape != TableShape()

    def changed_metadata(self, _storage: LoadedStorage, document: dict[str, Any], _now_ms: int) -> ChangedMetadata:
        """Change nothing: no other program finds a table that is in no catalog."""
        return ChangedMetadata(document, {})

    def table_change(self, storage: LoadedStorage) -> TableChange:
        """Set the ids. The rows must be those that were loaded."""
        tag = {storage.state.tag: storage.tagged} if storage.state else {}
        return TableChange(requires={"main": storage.table.head, **tag}, shape=self._altered.shape)

    def publish(self) -> bool:
        """Run the protocol; see :meth:`StorageChange.publish`. The log says what was restored."""
        done = super().publish()
        if done:
            found = "; ".join((*self._altered.columns, *self._altered.settings))
            log.warning("%s: another program had changed its storage table; restored: %s", self._view, found)
        return done


class RestoreProperties(Change[LostProperties | None]):
    """Set the properties of a view's table that another program has removed or changed.

    It requires the tags that prove whose properties they are. It has landed if none are lost.

    Args:
        name: The table: the view itself, or its storage table.
        effects: Clock, sleep and jitter.
    """

    def __init__(
        self, catalog: MaterializedViewCatalog, name: Identifier, view: Identifier, effects: Effects | None = None
    ) -> None:
        super().__init__(f"table {name}", "the restoration of its properties", effects)
        self._catalog, self._name, self._view = catalog, name, view
        self._lost: LostProperties | None = None

    def load(self) -> LostProperties | None:
        """Compare the table with its earlier metadata files."""
        return lost_properties_of(self._catalog, self._name, self._view)

    def judge(self, state: LostProperties | None) -> Verdict:
        """``LANDED`` if nothing is lost."""
        return Verdict.LANDED if state is None else Verdict.READY

    def send(self, state: LostProperties | None) -> bool:
        """Commit to the table."""
        if state is None:
            return False
        self._lost = state
        uuid = self._catalog.load_table(self._name, what=self.target)[1].table_uuid or ""
        change = TableChange(requires=dict(state.requires), properties=dict(state.properties))
        return self._catalog.tables.commit(self._name, uuid, change) is not None

    def may_land(self, state: LostProperties | None) -> bool:
        """Whether the properties are lost yet."""
        return state is not None

    def publish(self) -> bool:
        """Run the protocol; return whether something was restored. The log says what.

        Raises:
            CommitConflictError, CommitStateUnknownError: See :func:`airflow_mv.core.publish.protocol.commit`.
        """
        commit(self)
        if self._lost is None:
            return False
        where = f"{self._lost.names}, as {self._lost.location} has them"
        log.warning("%s: another program had removed or changed its properties; restored: %s", self._name, where)
        return True


def put_back(catalog: MaterializedViewCatalog, view: Identifier, effects: Effects | None = None) -> bool:
    """Put the properties, columns, partitioning and sort order of a view's table back that others have changed.

    Args:
        effects: Clock, sleep and jitter.

    Returns:
        Whether something was restored.

    Raises:
        CommitConflictError, CommitStateUnknownError: See :func:`airflow_mv.core.publish.protocol.commit`.
    """
    name = table_of(catalog, view)
    done = name is not None and RestoreProperties(catalog, name, view, effects).publish()
    try:
        return RestoreStorage(catalog, view, effects).publish() or done
    except (InvalidMetadataError, NotFoundError):
        if done:
            return True
        raise


def table_of(catalog: MaterializedViewCatalog, view: Identifier) -> Identifier | None:
    """Return the table of the catalog with a view's rows: the view itself, or its storage table, if it has one.

    Raises:
        ViewNotFoundError: There is no such view.
    """
    try:
        loaded = catalog.load(view)
    except (InvalidMetadataError, MetadataFileNotFoundError):
        return view
    return loaded.storage_table if loaded.settings is not None else None
