# SPDX-License-Identifier: Apache-2.0
"""The remaining files of a view that only a repair reads."""

from __future__ import annotations

from airflow_mv.core.catalog import LoadedView, storage_place, stored_table
from airflow_mv.core.catalog.catalog import next_number
from airflow_mv.core.catalog.evidence import MAX_EARLIER, Evidence, TableFile, earlier_table_view, table_at
from airflow_mv.core.catalog.sql import TABLE, Row
from airflow_mv.core.catalog.tables import view_in_table
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import STORAGE_TABLE_UUID_PROPERTY
from airflow_mv.errors import (
    InvalidMetadataError,
    MetadataFileNotFoundError,
    NotMaterializedError,
    RefusedLocationError,
    ViewNotFoundError,
)


class RepairEvidence(Evidence):
    """The files of one view, with those of its storage table."""

    def table_row(self, view: LoadedView) -> Row | None:
        """Return the row of a storage table in a SQL catalog."""
        place = storage_place(view)
        row = self.catalog.row(place) if isinstance(place, Identifier) else None
        return row if row is not None and row.kind == TABLE else None

    def table_files(self, folder: str, view: LoadedView) -> list[TableFile]:
        """Read the newest :data:`MAX_EARLIER` complete metadata files of a storage table in a folder."""
        newest = sorted(self.files_in(folder), key=next_number, reverse=True)[:MAX_EARLIER]
        found = [self.table_file(location, view) for location in newest]
        uuid = view.metadata.properties.get(STORAGE_TABLE_UUID_PROPERTY)
        return [item for item in found if item.table is not None and uuid in (None, item.table.table_uuid)]

    def view_of_table(self) -> LoadedView | None:
        """Return a view without a row of its own; one that is a table from an earlier file, if its current one is lost.

        ``None``: the current file is lost, and no earlier one proves that the table is a view.

        Raises:
            ViewNotFoundError: There is no such view.
        """
        try:
            return self.catalog.load(self.view)
        except RefusedLocationError:
            raise
        except (InvalidMetadataError, MetadataFileNotFoundError):
            if self.catalog.row(self.view) is None:
                raise
            return earlier_table_view(self.catalog, self.view)
        except ViewNotFoundError:
            before = self._replaced_view()
            if before is None:
                raise
            return before

    def _replaced_view(self) -> LoadedView | None:
        """Return the view that the row named before, if it names the file of another table now.

        A table keeps its uuid for as long as it has its row.
        """
        row = self.catalog.row(self.view)
        if row is None or row.kind != TABLE or not row.previous:
            return None
        now, before = table_at(self.catalog, row.location), table_at(self.catalog, row.previous)
        if now is None or before is None or now.table_uuid == before.table_uuid:
            return None
        return view_in_table(self.view, row.previous, before)

    def served_table(self, view: LoadedView) -> TableFile:
        """Return the storage table as a REST server returns it."""
        storage = self.catalog.load_storage(view)
        return TableFile(storage.location, stored_table(self.catalog, view, storage), storage)


def require_materialized(view: LoadedView) -> None:
    """Refuse a plain view.

    Raises:
        NotMaterializedError: It is one.
    """
    if view.settings is None:
        raise NotMaterializedError(f"view {view.identifier} is a plain view: there is nothing here to repair")
