# SPDX-License-Identifier: Apache-2.0
"""Which folders are a view's alone: only files in them are ever listed to be deleted.

Where a view lies is a word in its metadata, and where its storage table lies is one in that table's. Both are data
from strangers: a folder that holds others' files, too, is refused before anything is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from airflow_mv.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog
from airflow_mv.catalog.confinement import lies_in
from airflow_mv.catalog.listing import StoredFile
from airflow_mv.errors import MetadataFileNotFoundError, UnsupportedError
from airflow_mv.spec.materialized_view import STORAGE_OF_PROPERTY
from airflow_mv.spec.stored import unpacked

_METADATA = (".metadata.json", ".metadata.json.gz")


def own_folders(catalog: MaterializedViewCatalog, view: LoadedView, storage: LoadedStorage) -> tuple[str, ...]:
    """Return the folders that are the view's own: a registered storage table may have one beside the view's.

    Raises:
        UnsupportedError: One of them holds the warehouse, the folder of a namespace, or the view's own folder.
    """
    base, beside = view.metadata.location, storage.table.location
    bases = (base,) if storage.name is None or lies_in(beside, (base,)) else (base, beside)
    shared = catalog.shared_folders(view.identifier)
    for folder in bases:
        for place in (*shared, *((base,) if folder != base else ())):
            if lies_in(place, (folder,)):
                raise _not_alone(view, folder, place)
    return bases


def strangers(
    catalog: MaterializedViewCatalog,
    view: LoadedView,
    storage: LoadedStorage,
    bases: tuple[str, ...],
    files: Iterable[StoredFile],
) -> frozenset[str]:
    """Refuse folders that other tables or views have their metadata in.

    A SQL catalog knows where all of them are. A REST catalog may hide some, and tells of the others one by one:
    there the metadata files that were listed are read.

    Args:
        catalog: Where the view is.
        view: The view.
        storage: Its storage table.
        bases: The view's folders.
        files: What was listed there.

    Returns:
        The locations of files that stay: of views that had this one's name, and so its folder, before.

    Raises:
        UnsupportedError: There are others.
    """
    own = {".".join(name.parts) for name in (view.identifier, view.storage_table) if name is not None}
    for base in bases:
        others = sorted(name for name in catalog.within(base) if name not in own)
        if others:
            raise _not_alone(view, base, ", ".join(others[:5]))
    return _by_their_files(catalog, view, storage, files) if not catalog.chooses_locations else frozenset()


def _by_their_files(
    catalog: MaterializedViewCatalog, view: LoadedView, storage: LoadedStorage, files: Iterable[StoredFile]
) -> frozenset[str]:
    stay = set()
    for file in files:
        document = _metadata(catalog, view, file.location) if file.location.endswith(_METADATA) else None
        if document is None or _is_own(document, view, storage):
            continue
        if "view-uuid" not in document or not lies_in(file.location, (view.metadata.metadata_folder,)):
            uuid = document.get("view-uuid") or document.get("table-uuid")
            raise _not_alone(view, file.location.rpartition("/")[0], f"the table or view of uuid {uuid}")
        stay.add(file.location)
    return frozenset(stay)


def _metadata(catalog: MaterializedViewCatalog, view: LoadedView, location: str) -> dict[str, Any] | None:
    """Return a metadata file's content; ``None`` for what nobody can read, as a writer that died leaves it."""
    what = f"view {view.identifier}, metadata file in its folder"
    try:
        document = msgspec.json.decode(unpacked(catalog.files.read(location, what=what), f"{what} {location}"))
    except (MetadataFileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return document if isinstance(document, dict) else None


def _is_own(document: dict[str, Any], view: LoadedView, storage: LoadedStorage) -> bool:
    if "view-uuid" in document:
        return bool(document["view-uuid"] == view.metadata.view_uuid)
    properties = document.get("properties")
    named = properties.get(STORAGE_OF_PROPERTY) if isinstance(properties, dict) else None
    # A redefined view may have left earlier storage tables.
    return document.get("table-uuid") == storage.table.table_uuid or named == view.identifier.within_catalog


def _not_alone(view: LoadedView, folder: str, others: str) -> UnsupportedError:
    return UnsupportedError(
        f"view {view.identifier}: its folder {folder} also holds {others}: nothing is deleted from a folder that is "
        "not the view's alone"
    )
