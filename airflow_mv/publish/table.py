# SPDX-License-Identifier: Apache-2.0
"""The layout ``table``: the view is an ordinary table, and one commit to it publishes rows or another definition.

A refresh is staged and published as in the registered layout. The commit also requires the tag of the definition that
the refresh was computed by, and moves it to the new rows. So a refresh and a change of the definition exclude each
other, and no snapshot is kept only because the definition's tag is on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from airflow_mv.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog, TableChange
from airflow_mv.errors import InvalidMetadataError, MetadataFileNotFoundError, ViewNotFoundError
from airflow_mv.publish.pointed import PointedPublication, check_staged, require_inside, staged_snapshot
from airflow_mv.publish.protocol import Effects, Verdict, commit
from airflow_mv.publish.refresh import Attempt, PlannedRefresh, Staged
from airflow_mv.publish.registered import RegisteredAttempt, RegisteredPublication
from airflow_mv.publish.removal import Removal
from airflow_mv.script import MAX_AHEAD_MS, Outcome, Script
from airflow_mv.spec.clock import corrected, is_ahead
from airflow_mv.spec.new_columns import NewColumns, new_columns
from airflow_mv.spec.stored import decode
from airflow_mv.spec.table import Snapshot, parse_table


class TableAttempt(RegisteredAttempt):
    """One publication by a commit to the table that is the view."""

    def is_read(self, view: LoadedView) -> bool:
        """Yes: the commit required the view's definition, and readers read the table itself."""
        return True

    def change(self, view: LoadedView, storage: LoadedStorage) -> TableChange:
        """Return the commit. It requires the definition, too."""
        change, holder = super().change(view, storage), view.holder
        if holder is None:
            raise InvalidMetadataError(f"view {view.identifier}: its definition is not in the table of its name")
        rows = next(iter(change.tags.values()))
        return replace(
            change,
            requires={**change.requires, holder.tag: holder.tagged},
            tags={**change.tags, holder.tag: rows},
        )


class NewColumnsAttempt(TableAttempt):
    """One publication of rows with other columns, which were staged in a metadata file of the table.

    One commit adds the schema, the partition spec and the snapshot of that file to the table. It requires the columns
    that the job started from, because the job has assigned the ids of the new ones.

    Args:
        catalog: Where the view is.
        staged: The staged refresh.
    """

    def __init__(self, catalog: MaterializedViewCatalog, staged: Staged) -> None:
        super().__init__(catalog, replace(staged, where=None))
        self._files, self._flush, self._plan = catalog.files, catalog.flush, staged.plan
        self._location = staged.where or ""
        self._found: tuple[Snapshot, NewColumns] | None = None

    def snapshot(self, view: LoadedView, storage: LoadedStorage) -> Snapshot:
        """Return the staged snapshot."""
        return self._read(view, storage)[0]

    def change(self, view: LoadedView, storage: LoadedStorage) -> TableChange:
        """Return the commit, with the new columns."""
        return replace(super().change(view, storage), columns=self._read(view, storage)[1])

    def _read(self, view: LoadedView, storage: LoadedStorage) -> tuple[Snapshot, NewColumns]:
        if self._found is None:
            self._found = self._read_file(view, storage)
        return self._found

    def _read_file(self, view: LoadedView, storage: LoadedStorage) -> tuple[Snapshot, NewColumns]:
        plan, location = self._plan, self._location
        what = f"view {plan.view}, staged storage table file"
        require_inside(location, storage, what=what)
        data = self._files.read(location, what=what)
        table = parse_table(data, source=f"{what} {location}")
        check_staged(plan, storage, table, location)
        head = staged_snapshot(plan, table, location)
        self._flush(view, [item for item in table.snapshots if item.snapshot_id not in storage.table.by_id])
        document = decode(data, source=f"{what} {location}")
        store_ms = self._files.modified_ms(location)
        if is_ahead(document, store_ms + MAX_AHEAD_MS):  # the driver's clock is
            document = corrected(document, store_ms)
        before = self._files.read(plan.storage_table_location, what=f"view {plan.view}, storage table file")
        return head, new_columns(decode(before, source=what), document, source=f"{what} {location}")


class DropTable(Removal[LoadedView | None]):
    """The removal of a view that is a table."""

    def load(self) -> LoadedView | None:
        """Load the view of this name; ``None`` if there is none any more."""
        try:
            return self._catalog.load(self._view.identifier)
        except ViewNotFoundError:
            return None
        except (InvalidMetadataError, MetadataFileNotFoundError):
            # An earlier file has proven whose row it is.
            row = self._catalog.row(self._view.identifier) if self._catalog.has_rows else None
            if row is None:
                raise
            return replace(self._view, metadata_location=row.location)

    def judge(self, state: LoadedView | None) -> Verdict:
        """``LANDED`` if the name is free, or another view's."""
        gone = state is None or state.metadata.view_uuid != self._view.metadata.view_uuid
        return Verdict.LANDED if gone else Verdict.READY

    def send(self, state: LoadedView | None) -> bool:
        """Remove the table from the catalog, if it is as it was loaded. A server can only require its uuid."""
        if state is None or state.holder is None:
            return False
        self._base = state.metadata_location
        if self._catalog.has_rows:
            return self._catalog.drop_table_row(state.identifier, state.metadata_location)
        uuid = state.holder.table.table_uuid
        return self._catalog.tables.drop(state.identifier, uuid=uuid, owner=state.identifier)

    def may_land(self, state: LoadedView | None) -> bool:
        """Whether the table is as it was when the removal was sent."""
        return state is not None and state.metadata_location == self._base


class TablePublication(RegisteredPublication):
    """A refresh is staged on a branch of the view's table, and published by a commit to it."""

    name = "table"

    def attempt(self, catalog: MaterializedViewCatalog, staged: Staged) -> Attempt:
        """Return the attempt that commits to the table."""
        if staged.where is not None and "/" in staged.where:  # a metadata file, not a branch
            return NewColumnsAttempt(catalog, staged)
        return TableAttempt(catalog, staged)

    def staged_before(
        self, catalog: MaterializedViewCatalog, plan: PlannedRefresh, script: Script
    ) -> Iterator[Outcome]:
        """Yield the complete branches or, for other columns, the metadata file that follows from the present one."""
        if script.branch is not None:
            yield from super().staged_before(catalog, plan, script)
            return
        for outcome in PointedPublication().staged_before(catalog, plan, script):
            location = outcome.metadata_location or ""
            what = f"view {plan.view}, staged storage table file"
            table = parse_table(catalog.files.read(location, what=what), source=f"{what} {location}")
            if plan.storage_table_location in {entry.metadata_file for entry in table.metadata_log}:
                yield outcome

    def drop_view(self, catalog: MaterializedViewCatalog, view: LoadedView, effects: Effects) -> None:
        """Remove the table, and with it the definition."""
        commit(DropTable(catalog, view, effects))
