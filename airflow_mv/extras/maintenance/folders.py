# SPDX-License-Identifier: Apache-2.0
"""Find which folders are a view's own, and what other tables and views have in them.

The locations of a view and its storage table are read from their metadata, and both can be wrong. A folder that holds
the warehouse, a namespace or a whole other table is refused. Within an accepted folder, files of another table or view
are not touched.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from airflow_mv.core.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog
from airflow_mv.core.catalog.layouts import PointedStorage
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.errors import NoCredentialsError, UnsupportedError
from airflow_mv.extras.maintenance.entries import CatalogEntry, other_entries
from airflow_mv.extras.maintenance.matcher import LocationMatcher
from airflow_mv.extras.maintenance.reachable_files import FilesOf

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OtherTables:
    """Files of other tables and views in a view's folders.

    Args:
        places: Name and folder of each.
        reached: The forms of the files that they reach.
    """

    compare: LocationMatcher
    places: tuple[tuple[str, str], ...] = ()
    reached: frozenset[str] = frozenset()

    def owner(self, location: str) -> str | None:
        """Return the other table or view that a file may belong to, or ``None``."""
        for name, place in self.places:
            if self.compare.may_lie_in(location, place):
                return name
        return "another table" if self.reached & self.compare.forms(location) else None


def own_folders(catalog: MaterializedViewCatalog, view: LoadedView, storage: LoadedStorage) -> tuple[str, ...]:
    """Return the folders that are the view's own. A registered storage table may have a folder of its own.

    Where it has, the view's folder is left out if no credentials for it are known.

    Raises:
        UnsupportedError: One of them holds the warehouse, the folder of a namespace, or the view's own folder.
        NoCredentialsError: No credentials are known for the storage table's folder.
    """
    base, compare = view.metadata.location, LocationMatcher()
    shared = catalog.folders.shared(view.identifier)
    for folder in storage.folders(view):
        for place in (*shared, *((base,) if folder != base else ())):
            if compare.may_lie_in(place, folder):
                raise not_alone(view.identifier, folder, place)
    return _accessible_folders(catalog, view, storage)


def _accessible_folders(catalog: MaterializedViewCatalog, view: LoadedView, storage: LoadedStorage) -> tuple[str, ...]:
    """Return the folders of a view for which credentials are known. The deletion log is in the first one.

    Raises:
        NoCredentialsError: No credentials are known for the storage table's folder.
    """
    bases = storage.folders(view)
    return tuple(folder for folder in bases if len(bases) == 1 or _is_accessible(catalog, view, folder))


def _is_accessible(catalog: MaterializedViewCatalog, view: LoadedView, folder: str) -> bool:
    """Whether there are credentials for one of several folders: a REST server may vend some for tables only."""
    try:
        catalog.files.require_access(folder)
    except NoCredentialsError as error:
        if folder != view.metadata.location:
            raise
        log.warning("%s: not collecting orphan files in the view's own folder: %s", view.identifier, error)
        return False
    return True


def others_in(
    catalog: MaterializedViewCatalog,
    view: LoadedView,
    storage: LoadedStorage,
    bases: tuple[str, ...],
    *,
    compare: LocationMatcher,
    files_of: FilesOf,
    found: Iterable[CatalogEntry] = (),
    dropped: bool = False,
) -> OtherTables:
    """Find the files of other tables and views in the view's folders.

    Args:
        bases: The view's folders.
        files_of: Lists the files of a table.
        found: Tables whose metadata files lie in the folders, in whichever catalog they are.
        dropped: Whether the view was dropped: what its names stand for now is another's, or stays.

    Raises:
        UnsupportedError: One of the folders is another table's, or lies in one that is.
    """
    names = () if dropped else (view.identifier, *storage.pointers)
    own = frozenset(".".join(name.parts) for name in names)
    inside: list[tuple[str, str]] = []
    reached: set[str] = set()
    listed = other_entries(catalog, own, bases)
    for other in (*listed, *found):
        wide = _wide(compare, bases, other) if other in listed else frozenset()
        inner = [place for place in other.places if place not in wide]
        touching = [place for place in inner if _touches(compare, view.identifier, bases, other, place)]
        inside += [(other.name, place) for place in touching]
        if other.uuid is not None and other.uuid == storage.table.table_uuid:
            raise not_alone(view.identifier, bases[-1], f"{other.name}, which has the storage table's uuid")
        if (touching or wide) and other.is_table and other.uuid is not None and other in listed:
            files = files_of(catalog, PointedStorage(other.metadata_location, storage.table, None))
            reached.update(form for file in files for form in compare.forms(file))
    return OtherTables(compare, tuple(inside), frozenset(reached))


def _wide(compare: LocationMatcher, bases: tuple[str, ...], other: CatalogEntry) -> frozenset[str]:
    """Return the write paths of another table or view that are above the view's folders, such as a bucket's root.

    Such a path says where it may write, not that all files there are its own. The files that it reaches are known
    one by one.
    """
    return frozenset(
        place
        for place in other.write_paths
        if any(compare.may_lie_in(base, place) for base in bases)
        and not any(compare.may_lie_in(place, base) for base in bases)
    )


def _touches(
    compare: LocationMatcher, view: Identifier, bases: tuple[str, ...], other: CatalogEntry, place: str
) -> bool:
    """Whether another table's folder is inside one of the view's; refuse one that is the view's, or holds it."""
    for base in bases:
        if compare.may_lie_in(base, place):
            raise not_alone(view, base, f"{other.name} (its folder is {place})")
    return any(compare.may_lie_in(place, base) for base in bases)


def not_alone(view: Identifier, folder: str, others: str) -> UnsupportedError:
    """Return the error for a folder that is shared with others."""
    return UnsupportedError(
        f"view {view}: its folder {folder} also holds {others}: nothing is deleted from a folder that is "
        "not the view's alone"
    )
