# SPDX-License-Identifier: Apache-2.0
"""Rows with other columns, staged in a metadata file of a storage table that is a table of the catalog.

A branch has the table's columns. So Spark replaces the columns in its staging catalog, which writes a metadata file
that no reader sees. One commit then adds the schema, the partition spec and the snapshots of that file to the table.
It requires the columns that the job started from, because the job has assigned the ids of the new ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from airflow_mv.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog
from airflow_mv.publish.pointed import PointedPublication, check_staged, require_inside, staged_snapshot
from airflow_mv.publish.refresh import PlannedRefresh
from airflow_mv.script import MAX_AHEAD_MS, Outcome, Script
from airflow_mv.spec.clock import corrected, is_ahead
from airflow_mv.spec.new_columns import NewColumns, new_columns
from airflow_mv.spec.stored import decode
from airflow_mv.spec.table import Snapshot, parse_table


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The content of a staged file.

    Args:
        snapshot: The snapshot with the rows.
        columns: What the job has added to the table's metadata.
    """

    snapshot: Snapshot
    columns: NewColumns


class StagedFile:
    """A metadata file with a refresh's rows. It is read once.

    Args:
        catalog: Where the view is.
        plan: The refresh.
        location: The file.
    """

    def __init__(self, catalog: MaterializedViewCatalog, plan: PlannedRefresh, location: str) -> None:
        self._files, self._flush, self._plan, self._location = catalog.files, catalog.flush, plan, location
        self._found: StagedRows | None = None

    def read(self, view: LoadedView, storage: LoadedStorage) -> StagedRows:
        """Return the content, after a check that the refresh wrote it.

        Raises:
            InvalidMetadataError: It belongs to another refresh or table, or does not follow from the planned state.
        """
        if self._found is None:
            self._found = self._read(view, storage)
        return self._found

    def _read(self, view: LoadedView, storage: LoadedStorage) -> StagedRows:
        plan, location, what = self._plan, self._location, _what(self._plan)
        require_inside(location, storage, what=what)
        data = self._files.read(location, what=what)
        table = parse_table(data, source=f"{what} {location}")
        check_staged(plan.view, plan.storage_table_location, storage, table, location)
        head = staged_snapshot(plan, table, location)
        self._flush(view, [item for item in table.snapshots if item.snapshot_id not in storage.table.by_id])
        document = decode(data, source=f"{what} {location}")
        store_ms = self._files.modified_ms(location)
        if is_ahead(document, store_ms + MAX_AHEAD_MS):  # the driver's clock is
            document = corrected(document, store_ms)
        before = self._files.read(plan.storage_table_location, what=f"view {plan.view}, storage table file")
        added = new_columns(decode(before, source=what), document, source=f"{what} {location}")
        return StagedRows(head, added)


def is_file(where: str) -> bool:
    """Whether rows are staged in a metadata file, not on a branch."""
    return "/" in where


def staged_files(catalog: MaterializedViewCatalog, plan: PlannedRefresh, script: Script) -> Iterator[Outcome]:
    """Yield the outcome of an earlier try, if its metadata file follows from the table's present one."""
    for outcome in PointedPublication().staged_before(catalog, plan, script):
        location = outcome.metadata_location or ""
        table = parse_table(catalog.files.read(location, what=_what(plan)), source=f"{_what(plan)} {location}")
        if plan.storage_table_location in {entry.metadata_file for entry in table.metadata_log}:
            yield outcome


def _what(plan: PlannedRefresh) -> str:
    return f"view {plan.view}, staged storage table file"
