# SPDX-License-Identifier: Apache-2.0
"""Drop a materialized view together with its files."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from airflow_mv.core.catalog import LoadedView, MaterializedViewCatalog
from airflow_mv.core.catalog.sql import VIEW
from airflow_mv.core.publish.new_storage import drop_storage
from airflow_mv.core.publish.protocol import Effects
from airflow_mv.core.publish.storage_change import RestoreProperties, table_of
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.errors import (
    CatalogUnavailableError,
    InvalidMetadataError,
    MaterializedViewError,
    MetadataFileNotFoundError,
    NewerFormatError,
    NotFoundError,
    StoreUnavailableError,
    UnsupportedError,
    ViewNotFoundError,
)
from airflow_mv.extras.maintenance.evidence import Evidence, earlier_table_view, lost_view_properties
from airflow_mv.extras.maintenance.expire import release_base_snapshots
from airflow_mv.extras.maintenance.orphans import CollectionResult, delete_all
from airflow_mv.extras.maintenance.removal import drop_by_name, drop_view
from airflow_mv.extras.maintenance.view_properties import RestoreViewProperties

log = logging.getLogger(__name__)


def purge(catalog: MaterializedViewCatalog, view: str | Identifier | LoadedView) -> CollectionResult:
    """Drop a view, and delete the files below its folders that are proven its own. All other files stay.

    If the process dies in between, the row is removed and files are left at the location in the log.

    Args:
        view: Its name; or the view as it was loaded, so that no other one of this name is dropped.

    Raises:
        ViewNotFoundError: There is no such view, or it was dropped meanwhile. What was created since stays.
        NotMaterializedError: It is a plain view, which this package does not drop.
        UnsupportedError: Another table or view also uses its folder. Nothing was dropped, or only the view: then the
            message says so. No file was deleted.
    """
    loaded = view if isinstance(view, LoadedView) else catalog.load(view)
    return delete_all(catalog, loaded, lambda: drop(catalog, loaded, purges=True))


@dataclass(frozen=True, slots=True)
class DropResult:
    """The result of a drop.

    Args:
        left: What is still in the catalog, and why; ``None`` if nothing is left.
    """

    view: Identifier
    left: str | None = None


def drop(
    catalog: MaterializedViewCatalog,
    view: str | Identifier | LoadedView,
    *,
    force: bool = False,
    purges: bool = False,
    effects: Effects | None = None,
) -> DropResult:
    """Remove a materialized view from the catalog, and its storage table if that is in the catalog.

    The files stay. An adopted table stays, with its rows, as an ordinary table. A view whose files are lost or
    truncated is dropped as well, if an earlier metadata file proves that it is a materialized view.

    Args:
        view: Its name; or the view as it was loaded, so that no other one of this name is dropped.
        force: Drop it although nothing proves that it is a materialized view.
        purges: Also remove an adopted table.
        effects: Clock, sleep and jitter.

    Raises:
        ViewNotFoundError: There is no such view, or another one by now.
        NotMaterializedError: It is a plain view, which this package does not drop.
        InvalidMetadataError: Its metadata cannot be read, and no earlier file proves what it is.
        CommitStateUnknownError: The catalog gave no answer. The view may be dropped.
        CatalogUnavailableError: With ``purges``: the view is dropped, and its storage table is not.
    """
    identifier = view.identifier if isinstance(view, LoadedView) else catalog.identify(view)
    loaded = view if isinstance(view, LoadedView) else _loaded_or_proven(catalog, identifier, effects, force=force)
    if loaded is not None:
        loaded.materialized  # noqa: B018 (a plain view is refused)
        log.info("Dropping %s; its files remain at %s", identifier, loaded.metadata.location)
    if loaded is None:
        drop_by_name(catalog, identifier, known=False)
        return DropResult(identifier)
    release_base_snapshots(catalog, loaded)
    # The view first: a view without its storage table is broken, a storage table without its view is only a leftover.
    drop_view(catalog, loaded, effects or Effects(), purges=purges)
    try:
        return DropResult(identifier, drop_storage(catalog, loaded, force=force))
    except CatalogUnavailableError as error:
        if purges:
            raise  # its files are still needed
        log.warning("Could not drop the storage table of %s from the catalog: %s", identifier, error)
        return DropResult(identifier, f"its storage table: {error}. It is removed when a view of this name is created")


def _put_back(catalog: MaterializedViewCatalog, view: Identifier, effects: Effects | None) -> bool:
    """Put lost properties of a view and its table back: they prove that both are the view's, which a drop requires.

    Returns:
        Whether something was restored.
    """
    done = False
    try:
        name = table_of(catalog, view)
        if name != view and (found := lost_view_properties(catalog, loaded := catalog.load(view))) is not None:
            RestoreViewProperties(catalog, loaded, found[0], effects or Effects()).publish()
            name, done = table_of(catalog, view), True
        return (name is not None and RestoreProperties(catalog, name, view, effects).publish()) or done
    except (CatalogUnavailableError, InvalidMetadataError, NotFoundError, UnsupportedError) as error:
        log.info("The properties of the table of %s could not be checked: %s", view, error)
        return done


def _loaded(catalog: MaterializedViewCatalog, view: Identifier, effects: Effects | None) -> LoadedView:
    try:
        loaded = catalog.load(view)
    except (InvalidMetadataError, MetadataFileNotFoundError):
        if not _put_back(catalog, view, effects):
            raise
        return catalog.load(view)
    beside = loaded.was_materialized or (loaded.holder is None and loaded.settings is not None)
    return catalog.load(view) if beside and _put_back(catalog, view, effects) else loaded


def _loaded_or_proven(
    catalog: MaterializedViewCatalog, view: Identifier, effects: Effects | None, *, force: bool
) -> LoadedView | None:
    """Return a view, from an earlier file if its current one cannot be read.

    ``None``: nothing proves what it is, but ``force`` is set.
    """
    try:
        return _loaded(catalog, view, effects)
    except ViewNotFoundError as error:
        if not _is_listed(catalog, view):
            raise
        _require_force(view, error, force=force)
        return None
    except (InvalidMetadataError, MetadataFileNotFoundError) as error:
        proven = _earlier(catalog, view)
        if proven is not None and proven.settings is not None:
            return proven
        if force:
            log.warning("Dropping %s although it cannot be read: %s", view, error)
            return None
        raise InvalidMetadataError(
            f"{error}. No earlier metadata file proves that it is a materialized view either: "
            f"`airflow-mv drop {view} --force` drops it anyway, and leaves its files"
        ) from None
    except (CatalogUnavailableError, UnsupportedError) as error:
        lost = _is_view_in_lost_store(catalog, view, error)
        if (catalog.is_sql and not lost) or isinstance(error, NewerFormatError):
            raise
        _require_force_unread(view, error, force=force)
        return None


def _is_listed(catalog: MaterializedViewCatalog, view: Identifier) -> bool:
    """Whether a catalog lists a view, which a REST server may do for one that it does not find."""
    try:
        return view in catalog.list(view.namespace)
    except NotFoundError:
        return False


def _is_view_in_lost_store(catalog: MaterializedViewCatalog, view: Identifier, error: MaterializedViewError) -> bool:
    """Whether a SQL catalog says that a name is a view, and the store of its metadata file does not respond."""
    row = catalog.row(view) if isinstance(error, StoreUnavailableError) else None
    return row is not None and row.kind == VIEW


def _earlier(catalog: MaterializedViewCatalog, view: Identifier) -> LoadedView | None:
    """Return a view of a SQL catalog from an earlier metadata file, if there is proof that it is this view's.

    Raises:
        InvalidMetadataError: The name is a table, and nothing proves that it is a view. No table of others is dropped.
    """
    row = catalog.row(view)
    if row is None:
        return None
    if row.kind == VIEW:
        return Evidence.of(catalog, view).earlier_view()
    found = earlier_table_view(catalog, view)
    if found is None:
        raise InvalidMetadataError(
            f"{view} is a table whose metadata file {row.location} cannot be read, and no earlier one proves that it "
            "is a materialized view: nothing was dropped. Drop the table with the program that created it"
        )
    return found


def _require_force_unread(view: Identifier, error: MaterializedViewError, *, force: bool) -> None:
    """Allow to drop a view that cannot be loaded: a REST server, or a SQL catalog without its store, may drop it.

    Raises:
        MaterializedViewError: The error, without ``force``.
    """
    if not force:
        raise type(error)(
            f"{error}. A catalog may be able to drop a view that cannot be loaded: `airflow-mv drop {view} --force` "
            "requests it, and leaves the view's files and its storage table"
        )
    log.warning("Dropping %s, which could not be read: %s", view, error)


def _require_force(view: Identifier, error: ViewNotFoundError, *, force: bool) -> None:
    """Allow to drop a view that a REST server lists but does not find: its metadata file is missing.

    Raises:
        ViewNotFoundError: Without ``force``, because nothing proves that it is a materialized view.
    """
    if not force:
        raise ViewNotFoundError(
            f"{error}, but the server lists it: its metadata file is missing. `airflow-mv drop {view} --force` drops "
            "it, and leaves its files and its storage table"
        )
    log.warning("Dropping %s, which the server lists but cannot load; its storage table remains", view)
