# SPDX-License-Identifier: Apache-2.0
"""The snapshots of a table, or of a view's storage table, with the manifests and the refreshes of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_mv.common.manifests import read_by_pyiceberg
from airflow_mv.common.snapshots import tables_read
from airflow_mv.common.status import readers_of
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.catalog.avro import read_manifests
from airflow_mv.core.catalog.layouts import readable_refreshes
from airflow_mv.core.freshness.observe import Observation
from airflow_mv.core.spec.identifiers import Identifier, id_text
from airflow_mv.core.spec.times import from_ms
from airflow_mv.errors import NotFoundError, ViewNotFoundError

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import StaticTable
    from pyiceberg.table.snapshots import Snapshot

#: A view and one of its refreshes.
_Refresh = dict[str, str]
_COUNTS = {
    "added_files": "added-data-files",
    "deleted_files": "deleted-data-files",
    "added_delete_files": "added-delete-files",
    "added_rows": "added-records",
    "deleted_rows": "deleted-records",
    "rows": "total-records",
}


def timeline(catalog: MaterializedViewCatalog, name: str | Identifier, *, limit: int | None = None) -> dict[str, Any]:
    """Return the snapshots of a table or of a materialized view's rows, oldest first, as a JSON document.

    Of a view each snapshot has the refresh that wrote it. Of a base table it has the refreshes of the catalog's views
    that read it.

    Args:
        limit: Only this number of snapshots, the newest ones; ``None``: all.

    Raises:
        NotFoundError: There is no such table or view.
        NotMaterializedError: It is a plain view.
        InvalidMetadataError: A metadata file or a manifest list cannot be read.
    """
    identifier = catalog.identify(name)
    try:
        view = catalog.load(identifier)
    except ViewNotFoundError:
        located = catalog.locate([identifier]).get(identifier)
        if located is None:
            raise NotFoundError(f"there is no table or view {identifier}") from None
        location, readers = located.metadata_location, _readers(catalog, identifier)
        kind = "table"
    else:
        storage = catalog.load_storage(view)
        location, kind = storage.location, "materialized view"
        written = {item.sequence_number: item.refresh_id for item in readable_refreshes(view, storage)}
        readers = {
            snapshot.snapshot_id: [{"view": str(identifier), "refresh_id": written[snapshot.sequence_number]}]
            for snapshot in storage.table.snapshots
            if snapshot.sequence_number in written
        }
    with read_by_pyiceberg(catalog.home_of(identifier).files, location) as table:
        shown = sorted(table.snapshots(), key=lambda item: (item.sequence_number or 0, item.timestamp_ms))
        return {
            "name": str(identifier),
            "kind": kind,
            "metadata_location": location,
            "snapshots": [_document(table, item, readers) for item in shown[-(limit or len(shown)) :]],
        }


def _readers(catalog: MaterializedViewCatalog, name: Identifier) -> Mapping[int, list[_Refresh]]:
    """Return the refreshes of the catalog's views that read each snapshot of a base table."""

    def of(seen: Observation) -> list[tuple[int, _Refresh]]:
        return [
            (base.snapshot_reference, {"view": str(seen.view.identifier), "refresh_id": record.refresh_id})
            for record in readable_refreshes(seen.view, seen.storage)
            for base in tables_read(record)
            if base.identifier == str(name)
        ]

    found: defaultdict[int, list[_Refresh]] = defaultdict(list)
    for refreshes in readers_of(catalog, [name], of).values():
        for snapshot_id, refresh in refreshes:
            found[snapshot_id].append(refresh)
    return found


def _document(table: StaticTable, snapshot: Snapshot, refreshes: Mapping[int, list[_Refresh]]) -> dict[str, Any]:
    summary = snapshot.summary.additional_properties if snapshot.summary else {}
    current = table.current_snapshot()
    manifests = read_manifests(table.io.new_input(snapshot.manifest_list))[1] if snapshot.manifest_list else []
    return {
        "snapshot_id": id_text(snapshot.snapshot_id),
        "parent_snapshot_id": id_text(snapshot.parent_snapshot_id),
        "sequence_number": snapshot.sequence_number,
        "committed_at": from_ms(snapshot.timestamp_ms).isoformat(),
        "operation": snapshot.summary.operation.value if snapshot.summary else None,
        "current": current is not None and current.snapshot_id == snapshot.snapshot_id,
        "refs": sorted(name for name, ref in table.metadata.refs.items() if ref.snapshot_id == snapshot.snapshot_id),
        **{name: _number(summary.get(key)) for name, key in _COUNTS.items()},
        "refreshes": refreshes.get(snapshot.snapshot_id, []),
        "manifest_list": snapshot.manifest_list,
        "manifests": [_manifest(item) for item in manifests],
    }


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _manifest(manifest: ManifestFile) -> dict[str, Any]:
    return {
        "location": manifest.manifest_path,
        "content": manifest.content.name.lower(),
        "added_snapshot_id": id_text(manifest.added_snapshot_id),
        "added_files": manifest.added_files_count,
        "existing_files": manifest.existing_files_count,
        "deleted_files": manifest.deleted_files_count,
    }
