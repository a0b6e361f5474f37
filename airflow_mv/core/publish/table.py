# SPDX-License-Identifier: Apache-2.0
"""The layout ``table``: the view is an ordinary table, and one commit to it publishes rows or another definition.

A refresh is staged and published as in the registered layout. The commit also requires the tag of the definition that
the refresh was computed by, and moves it to the new rows. So a refresh and a change of the definition exclude each
other, and no snapshot is kept only because the definition's tag is on it.
"""

from __future__ import annotations

from dataclasses import replace

from airflow_mv.core.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog, TableChange
from airflow_mv.core.publish.refresh import Attempt, Staged
from airflow_mv.core.publish.registered import RegisteredAttempt, RegisteredPublication
from airflow_mv.errors import InvalidMetadataError


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


class TablePublication(RegisteredPublication):
    """A refresh is staged as in the registered layout, and published by a commit to the view's table."""

    name = "table"

    def attempt(self, catalog: MaterializedViewCatalog, staged: Staged) -> Attempt:
        """Return the attempt that commits to the table."""
        return TableAttempt(catalog, staged)

    def drop_storage(self, catalog: MaterializedViewCatalog, view: LoadedView, *, force: bool) -> str | None:
        """Do nothing: the view was the table."""
        adopted = view.adopted_at is not None and self._is_table(catalog, view)
        return f"the table {view.identifier} with its rows: it was adopted; --purge also drops it" if adopted else None

    def _is_table(self, catalog: MaterializedViewCatalog, view: LoadedView) -> bool:
        located = catalog.locate([view.identifier]).get(view.identifier)
        return located is not None and located.kind == "table"
