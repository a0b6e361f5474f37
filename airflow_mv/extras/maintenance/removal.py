# SPDX-License-Identifier: Apache-2.0
"""Remove a view from its catalog, in the way of its layout. Its storage table and its files stay."""

from __future__ import annotations

import logging
from dataclasses import replace

from airflow_mv.core.catalog import LoadedView, MaterializedViewCatalog, TableChange, stored_layout
from airflow_mv.core.catalog.loaded import Holder
from airflow_mv.core.catalog.sql import VIEW
from airflow_mv.core.publish.protocol import Change, Effects, LoadedState, Verdict, commit
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import (
    DEFINITION_ID_PROPERTY,
    DEFINITION_PROPERTY,
    LOG_PROPERTY,
    PROPERTY,
    STORAGE_OF_PROPERTY,
    is_own_ref,
)
from airflow_mv.errors import (
    CommitConflictError,
    InvalidMetadataError,
    MetadataFileNotFoundError,
    NotFoundError,
    NotMaterializedError,
    ViewNotFoundError,
)

log = logging.getLogger(__name__)


def drop_entry(catalog: MaterializedViewCatalog, view: LoadedView, effects: Effects) -> None:
    """Remove a view's entry. A REST server removes it by its name, so the view is loaded once more before that.

    Raises:
        ViewNotFoundError: Another view has the name by now.
        CommitStateUnknownError: The catalog gave no answer. The view may be dropped.
    """
    if catalog.is_sql:
        commit(DropView(catalog, view, effects))
        return
    try:
        now = catalog.load(view.identifier)
    except ViewNotFoundError:
        now = view  # a server may list a view that it does not find
    require_same(view, now)
    drop_by_name(catalog, view.identifier, known=True)


def require_same(view: LoadedView, now: LoadedView) -> None:
    """Raise if a view that was loaded again is another one.

    Raises:
        ViewNotFoundError: It was dropped and created again.
        CommitConflictError: It was converted to another layout.
    """
    if now.metadata.view_uuid == view.metadata.view_uuid:
        require_layout(view, now)
    if (now.metadata.view_uuid, now.metadata.location) != (view.metadata.view_uuid, view.metadata.location):
        raise ViewNotFoundError(f"view {view.identifier} was dropped and created again meanwhile; nothing was deleted")


def require_layout(view: LoadedView, now: LoadedView) -> None:
    """Raise if a view that was loaded again has another layout: the catalog has other entries for it.

    Raises:
        CommitConflictError: It was converted since.
    """
    layout = stored_layout(now).layout
    if layout != stored_layout(view).layout:
        raise CommitConflictError(
            f"view {view.identifier} was converted to the layout {layout!r} meanwhile; nothing was dropped or deleted. "
            "Run it again"
        )


class Removal(Change[LoadedState]):
    """The removal of a view from a catalog. What was created under its name since then stays.

    Args:
        effects: Clock, sleep and jitter.
    """

    def __init__(self, catalog: MaterializedViewCatalog, view: LoadedView, effects: Effects) -> None:
        super().__init__(f"view {view.identifier}", "its removal", effects)
        self._catalog, self._view = catalog, view
        #: The metadata file that the catalog named when the removal was sent.
        self._base: str | None = None


class DropView(Removal[str | None]):
    """The removal of a view from a SQL catalog, by its row."""

    def load(self) -> str | None:
        """Return the metadata file that the view's row names, "" if it names none; ``None`` if there is no row.

        Raises:
            CommitConflictError: The view is a table by now.
        """
        row = self._catalog.row(self._view.identifier)
        if row is not None and row.kind != VIEW:
            self._require_other()
        return row.location if row is not None and row.kind == VIEW else None

    def _require_other(self) -> None:
        """Refuse to take a table for another one's if it is the view in the layout ``table``."""
        try:
            now = self._catalog.load(self._view.identifier)
        except (NotFoundError, NotMaterializedError, InvalidMetadataError):
            return
        if now.metadata.view_uuid == self._view.metadata.view_uuid:
            require_layout(self._view, now)

    def judge(self, state: str | None) -> Verdict:
        """``LANDED`` if there is no view of this name, or another one."""
        if state is None:
            return Verdict.LANDED
        if state == self._view.metadata_location:
            return Verdict.READY
        try:
            found = self._catalog.load_at(self._view.identifier, state)
        except (InvalidMetadataError, MetadataFileNotFoundError):
            return Verdict.READY  # an earlier file has proven whose row it is
        if found.metadata.view_uuid != self._view.metadata.view_uuid:
            return Verdict.LANDED
        require_layout(self._view, found)
        return Verdict.READY

    def send(self, state: str | None) -> bool:
        """Remove the row, if it has not changed since it was read."""
        self._base = state
        if state:
            return self._catalog.pointers.delete(self._view.identifier, base=state)
        drop_by_name(self._catalog, self._view.identifier, known=True)
        return True

    def may_land(self, state: str | None) -> bool:
        """Whether the row is as it was when the removal was sent."""
        return state == self._base


def drop_by_name(catalog: MaterializedViewCatalog, view: Identifier, *, known: bool) -> None:
    """Drop the view of a name: a REST server takes no condition, and the row of an unknown view may name anything."""
    try:
        catalog.drop(view)
    except ViewNotFoundError:
        if not known:
            raise
        # It was dropped since it was loaded: by another client, or by us, and the answer was lost.
        log.info("%s is no longer in the catalog", view)


class DropTable(Removal[LoadedView | None]):
    """The removal of a view that is a table."""

    #: Whether the files are deleted next: then a server that drops no table without them may delete them.
    purges = False

    def load(self) -> LoadedView | None:
        """Load the view of this name; ``None`` if it no longer exists."""
        try:
            return self._catalog.load(self._view.identifier)
        except ViewNotFoundError:
            return None
        except (InvalidMetadataError, MetadataFileNotFoundError):
            # An earlier file has proven whose row it is.
            row = self._catalog.row(self._view.identifier) if self._catalog.is_sql else None
            if row is None:
                raise
            return replace(self._view, metadata_location=row.location)

    def judge(self, state: LoadedView | None) -> Verdict:
        """``LANDED`` if the name is free, or another view's."""
        if state is None or state.metadata.view_uuid != self._view.metadata.view_uuid:
            return Verdict.LANDED
        require_layout(self._view, state)
        return Verdict.READY

    def send(self, state: LoadedView | None) -> bool:
        """Remove the table from the catalog, if it is as it was loaded. A server can only require its uuid."""
        if state is None or state.holder is None:
            return False
        self._base = state.metadata_location
        table = state.holder.table
        return self._catalog.drop_table(
            state.identifier, table, state.metadata_location, owner=state.identifier, purges=self.purges
        )

    def may_land(self, state: LoadedView | None) -> bool:
        """Whether the table is as it was when the removal was sent."""
        return state is not None and state.metadata_location == self._base


class ReleaseTable(DropTable):
    """The removal of the definition from an adopted table."""

    def send(self, state: LoadedView | None) -> bool:
        """Commit the table without what belongs to the view, if the definition is as it was loaded."""
        if state is None or state.holder is None:
            return False
        self._base = state.base
        table = state.holder.table
        change = _release(state.holder)
        return self._catalog.tables.commit(state.identifier, table.table_uuid or "", change) is not None

    def may_land(self, state: LoadedView | None) -> bool:
        """Whether the definition and the rows are as they were when the removal was sent."""
        return state is not None and state.base == self._base


def _release(holder: Holder) -> TableChange:
    """Return the commit that makes an adopted view an ordinary table again, with its present rows."""
    table = holder.table
    own = (DEFINITION_PROPERTY, DEFINITION_ID_PROPERTY, STORAGE_OF_PROPERTY, PROPERTY, LOG_PROPERTY)
    return TableChange(
        requires={holder.tag: holder.tagged},
        removes=tuple(sorted(ref for ref in table.refs if is_own_ref(ref))),
        unsets=tuple(name for name in own if name in table.properties),
    )


def drop_view(catalog: MaterializedViewCatalog, view: LoadedView, effects: Effects, *, purges: bool) -> None:
    """Remove a view from the catalog, before its storage table.

    Args:
        effects: Clock, sleep and jitter.
        purges: Whether its files are deleted next: then a table that was not made for it is also removed.

    Raises:
        CommitStateUnknownError: The catalog gave no answer. The view may be dropped.
    """
    if view.holder is None:
        drop_entry(catalog, view, effects)
        return
    # An adopted table stays, without its definition.
    change = (DropTable if purges or view.adopted_at is None else ReleaseTable)(catalog, view, effects)
    change.purges = purges
    commit(change)
