# SPDX-License-Identifier: Apache-2.0
"""Changes of a view itself: its creation, definition and properties."""

from __future__ import annotations

from abc import abstractmethod

from airflow_mv.core.catalog import LoadedView, MaterializedViewCatalog
from airflow_mv.core.catalog.catalog import write_first
from airflow_mv.core.catalog.files import discard
from airflow_mv.core.publish.new_storage import NewStorage
from airflow_mv.core.publish.protocol import Change, Effects, Verdict, commit
from airflow_mv.core.script import MAX_AHEAD_MS
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import CREATION_ID_PROPERTY, STORAGE_TABLE_UUID_PROPERTY
from airflow_mv.core.spec.view import ViewMetadata
from airflow_mv.errors import AlreadyExistsError, CommitConflictError, CommitStateUnknownError, ViewNotFoundError
from airflow_mv.version import __version__

#: The summary of a version that this package makes.
SUMMARY = {"engine-name": "airflow-mv", "engine-version": __version__}


class CreateView(Change[LoadedView | None]):
    """The creation of a view.

    It is recognized by its uuid, or by its creation id, because the server of a REST catalog chooses the uuid. At most
    one copy can be applied, because the name is free only once.

    Args:
        catalog: Where the view is created.
        metadata: Its first metadata.
        effects: Clock, sleep and jitter.
        template: The table with the view's columns, if the view itself becomes a table.
    """

    def __init__(
        self,
        catalog: MaterializedViewCatalog,
        view: Identifier,
        metadata: ViewMetadata,
        effects: Effects,
        template: Identifier | None = None,
    ) -> None:
        super().__init__(f"view {view}", "its creation", effects)
        self._catalog, self._view, self._metadata, self._template = catalog, view, metadata, template
        self._taken: AlreadyExistsError | None = None
        self._created: LoadedView | None = None
        self._location: str | None = None

    def load(self) -> LoadedView | None:
        """Load the view of this name, if there is one."""
        try:
            return self._catalog.load(self._view)
        except ViewNotFoundError:
            return None

    def judge(self, state: LoadedView | None) -> Verdict:
        """``SUPERSEDED`` if another view or a table has the name."""
        if state is None:
            return Verdict.READY if self._taken is None else Verdict.SUPERSEDED
        uuids = (state.metadata.view_uuid, self._metadata.view_uuid)
        ids = [item.properties.get(CREATION_ID_PROPERTY) for item in (state.metadata, self._metadata)]
        ours = uuids[0] == uuids[1] or (ids[0] is not None and ids[0] == ids[1])
        return Verdict.LANDED if ours else Verdict.SUPERSEDED

    def send(self, _state: LoadedView | None) -> bool:
        """Add the view to the catalog, which accepts it only while the name is free."""
        if self._location is None:
            self._location = write_first(self._catalog, self._metadata, self._template)
        try:
            self._created = self._catalog.create(self._view, self._metadata, self._location, template=self._template)
        except AlreadyExistsError as error:
            self._taken = error  # perhaps by an earlier copy: the next loaded state shows it
            return False
        return True

    def may_land(self, state: LoadedView | None) -> bool:
        """Whether the name is free."""
        return state is None

    def clean_up(self) -> None:
        """Delete the metadata file. After a lost answer it stays: the name may become free, and a copy be applied."""
        if self._location is not None and not self.unknown:
            discard(self._catalog.files, self._location)

    def publish(self) -> LoadedView:
        """Run the protocol.

        Raises:
            AlreadyExistsError: The name is taken, by another view or a table, and every answer of the catalog is known.
            CommitStateUnknownError: See :func:`airflow_mv.core.publish.protocol.commit`; or the name is taken, and the
                answer to an earlier copy was lost: it may have been applied.
        """
        ended = commit(self)
        if ended.verdict == Verdict.LANDED and (created := self._created or ended.state) is not None:
            return created
        if self.unknown:
            raise CommitStateUnknownError(
                f"view {self._view}: the catalog did not respond to its creation ({self.unknown[-1]}), and another "
                "view has the name now. The view may have been created before that; nothing was deleted, run it again"
            )
        raise self._taken or AlreadyExistsError(
            f"a view {self._view} exists already; choose another name or use replace"
        )


class ViewChange(Change[LoadedView]):
    """A change of a view's metadata: another definition, other properties.

    Args:
        existing: The view as it was loaded before.
        name: The change, for messages.
        effects: Clock, sleep and jitter.
        storage: The view's new storage table, if it gets another one.
    """

    def __init__(
        self,
        catalog: MaterializedViewCatalog,
        existing: LoadedView,
        name: str,
        effects: Effects,
        storage: NewStorage | None = None,
    ) -> None:
        super().__init__(f"view {existing.identifier}", name, effects)
        self._catalog, self._existing = catalog, existing
        new = storage.view_properties.get(STORAGE_TABLE_UUID_PROPERTY) if storage else None
        self._storages = {_storage_uuid(existing), new}
        self._base: str | None = None
        self._next: ViewMetadata | None = None

    @abstractmethod
    def wanted(self, view: LoadedView) -> ViewMetadata | None:
        """Return the view's new metadata; ``None`` if the change has landed or is not needed."""

    def load(self) -> LoadedView:
        """Load the view. Another view of the same name is an error."""
        loaded = self._catalog.load(self._existing.identifier)
        if loaded.metadata.view_uuid != self._existing.metadata.view_uuid:
            raise ViewNotFoundError(f"view {loaded.identifier} was dropped and created again while it was changed")
        return loaded

    def judge(self, state: LoadedView) -> Verdict:
        """``SUPERSEDED`` if the view got another storage table since, because ours would replace that one."""
        self._next = self.wanted(state)
        if self._next is None:
            return Verdict.LANDED
        uuid = _storage_uuid(state)
        return Verdict.READY if uuid in self._storages else Verdict.SUPERSEDED

    def send(self, state: LoadedView) -> bool:
        """Replace the view's metadata by the metadata that :meth:`judge` derived from this state."""
        self._base = state.base
        return self._next is None or self._catalog.replace(state, self._next)

    def may_land(self, state: LoadedView) -> bool:
        """Whether the view has not changed since the change was sent."""
        return state.base == self._base

    def publish(self) -> LoadedView:
        """Run the protocol.

        Raises:
            CommitConflictError, CommitStateUnknownError, ViewNotFoundError: See
                :func:`airflow_mv.core.publish.protocol.commit`.
        """
        ended = commit(self)
        if ended.verdict == Verdict.LANDED:
            return self._catalog.load(self._existing.identifier) if ended.confirmed else ended.state
        raise CommitConflictError(
            f"the storage table of {self.target} was replaced while the view was changed; {self.name} was not "
            "published. Run it again"
        )


def _storage_uuid(view: LoadedView) -> str | None:
    return view.metadata.properties.get(STORAGE_TABLE_UUID_PROPERTY)


def time_of_change(catalog: MaterializedViewCatalog, folder: str, effects: Effects) -> int:
    """Return the time for a view's new version: this host's, or the store's if this host's clock is ahead.

    Args:
        effects: The clock.

    Returns:
        Milliseconds since the epoch.
    """
    now_ms = effects.now_ms()
    store_ms = catalog.folders.now_ms(folder, now_ms)
    return now_ms if now_ms <= store_ms + MAX_AHEAD_MS else store_ms
