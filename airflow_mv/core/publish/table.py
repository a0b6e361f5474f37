# SPDX-License-Identifier: Apache-2.0
"""The layout ``table``: the view is an ordinary table, and one commit to it publishes rows or another definition.

A refresh is staged and published as in the registered layout. The commit also requires the tag of the definition that
the refresh was computed by, and moves it to the new rows. So a refresh and a change of the definition exclude each
other, and no snapshot is kept only because the definition's tag is on it.
"""

from __future__ import annotations

from dataclasses import replace

from airflow_mv.core.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog, TableChange
from airflow_mv.core.catalog.loaded import Holder
from airflow_mv.core.publish.protocol import Effects, Verdict, commit
from airflow_mv.core.publish.refresh import Attempt, Staged
from airflow_mv.core.publish.registered import RegisteredAttempt, RegisteredPublication
from airflow_mv.core.publish.removal import Removal, require_layout
from airflow_mv.core.spec.materialized_view import (
    DEFINITION_ID_PROPERTY,
    DEFINITION_PROPERTY,
    LOG_PROPERTY,
    PROPERTY,
    STORAGE_OF_PROPERTY,
    is_own_ref,
)
from airflow_mv.errors import InvalidMetadataError, MetadataFileNotFoundError, ViewNotFoundError


class TableAttempt(RegisteredAttempt):
    """One publication by a commit to the table that is the view."""

    def is_read(self, view: LoadedView) -> bool:
        """Yes: the commit required the view's definition, and readers read the table itself."""
        return True

    def change(self, view: LoadedView, storage: LoadedStorage) -> TableChange:
        """Return the commit. It also requires the definition."""
        change, holder = super().change(view, storage), view.holder
        if holder is None:
            raise InvalidMetadataError(f"view {view.identifier}: its definition is not in the table of its name")
        rows = next(iter(change.tags.values()))
        return replace(
            change,
            requires={**change.requires, holder.tag: holder.tagged},
            tags={**change.tags, holder.tag: rows},
        )


class DropTable(Removal[LoadedView | None]):
    """The removal of a view that is a table."""

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
        return self._catalog.drop_table(state.identifier, table, state.metadata_location, owner=state.identifier)

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


class TablePublication(RegisteredPublication):
    """A refresh is staged as in the registered layout, and published by a commit to the view's table."""

    name = "table"

    def attempt(self, catalog: MaterializedViewCatalog, staged: Staged) -> Attempt:
        """Return the attempt that commits to the table."""
        return TableAttempt(catalog, staged)

    def drop_view(self, catalog: MaterializedViewCatalog, view: LoadedView, effects: Effects, *, purges: bool) -> None:
        """Remove the table, and with it the definition; or only the definition, if the table was adopted and stays."""
        commit((DropTable if purges or view.adopted_at is None else ReleaseTable)(catalog, view, effects))

    def drop_storage(self, catalog: MaterializedViewCatalog, view: LoadedView, *, force: bool) -> str | None:
        """Do nothing: the view was the table."""
        adopted = view.adopted_at is not None and self._is_table(catalog, view)
        return f"the table {view.identifier} with its rows: it was adopted; --purge also drops it" if adopted else None

    def _is_table(self, catalog: MaterializedViewCatalog, view: LoadedView) -> bool:
        located = catalog.locate([view.identifier]).get(view.identifier)
        return located is not None and located.kind == "table"


def _release(holder: Holder) -> TableChange:
    """Return the commit that makes an adopted view an ordinary table again, with its present rows."""
    table = holder.table
    own = (DEFINITION_PROPERTY, DEFINITION_ID_PROPERTY, STORAGE_OF_PROPERTY, PROPERTY, LOG_PROPERTY)
    return TableChange(
        requires={holder.tag: holder.tagged},
        removes=tuple(sorted(ref for ref in table.refs if is_own_ref(ref))),
        unsets=tuple(name for name in own if name in table.properties),
    )
