# SPDX-License-Identifier: Apache-2.0
"""The creation of a view's storage table, before a view names it, and its removal."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from airflow_mv.core.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog
from airflow_mv.core.catalog.locations import lies_in
from airflow_mv.core.catalog.tables import NewTable
from airflow_mv.core.publish.protocol import Change, Effects, Verdict, commit
from airflow_mv.core.publish.publications import layout_of_view
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import (
    PROPERTY,
    STORAGE_OF_PROPERTY,
    STORAGE_TABLE_PROPERTY,
    STORAGE_TABLE_UUID_PROPERTY,
)
from airflow_mv.core.spec.table_metadata import TableMetadata, same_columns, same_partitioning
from airflow_mv.errors import (
    AlreadyExistsError,
    CatalogUnavailableError,
    CommitConflictError,
    CommitStateUnknownError,
    InvalidMetadataError,
    MaterializedViewError,
    MetadataFileNotFoundError,
    NotFoundError,
    ViewNotFoundError,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NewStorage:
    """A new table for a view that no view names yet.

    Args:
        owner: The view for which it is created.
        is_template: Whether it only shows the columns of the query: the storage table is created like it.
    """

    loaded: LoadedStorage
    owner: Identifier
    is_template: bool = False

    @property
    def template(self) -> Identifier | None:
        """Its name, if it is a template."""
        return self.loaded.name if self.is_template else None

    @property
    def view_properties(self) -> dict[str, str]:
        """The properties by which a view names it in the catalog; none for a template."""
        return {} if self.is_template else self.loaded.view_properties

    @property
    def settings_location(self) -> str | None:
        """What ``storage-table-location`` of the view's settings is: its metadata file, if no catalog holds it."""
        return None if self.loaded.view_properties else self.loaded.location

    @property
    def fields(self) -> list[dict[str, Any]]:
        """Its columns."""
        return list(self.loaded.table.current_schema["fields"])

    @property
    def columns(self) -> list[str]:
        """The names of its columns."""
        return [str(field["name"]) for field in self.fields]

    def is_named_by(self, view: LoadedView) -> bool:
        """Whether a view names it as its storage table."""
        if view.settings is None:
            return False
        if not self.view_properties:  # a refresh may have published to it already
            location = view.settings.storage_table_location
            return location is not None and lies_in(location, (self.loaded.table.location,))
        return all(view.metadata.properties.get(key) == value for key, value in self.view_properties.items())

    def discard(self, catalog: MaterializedViewCatalog) -> None:
        """Delete it: no view ever named it."""
        if self.loaded.remove(catalog.tables, self.owner):
            catalog.folders.discard(self.loaded.location)


class Name(NamedTuple):
    """The table that has the name of a storage table, if there is one.

    Args:
        table: The table; ``None`` if the name is free.
        named: The uuid of the table of this name that the view names; ``None`` if there is no view, or it names none.
    """

    table: TableMetadata | None
    location: str = ""
    named: str | None = None


class CreateStorage(Change[Name]):
    """The creation of a storage table under its name in the catalog, like a template.

    It has landed if the name has an empty table that was created for this view and has the template's columns and
    partitioning. It does not matter who created it: perhaps an earlier copy, or another creation of the same view, of
    which only one can succeed. Any other table that was created for the view, but that no view names, was left by a
    view that was dropped or by a creation that was killed. It is removed from the catalog; its files stay. If a view
    names it by then, another creation came first: the table is restored. A view that is created later finds out itself.
    A creation that is killed in between leaves that view without a storage table; the next command says what to do.

    Args:
        catalog: Where the view is, or will be.
        location: Its folder, where the client chooses it.
        effects: Clock, sleep and jitter.
    """

    def __init__(
        self,
        catalog: MaterializedViewCatalog,
        layout: type[LoadedStorage],
        template: NewStorage,
        name: Identifier,
        location: str,
        effects: Effects,
    ) -> None:
        super().__init__(f"view {template.owner}", f"the creation of its storage table {name}", effects)
        self._catalog, self._layout, self._template, self._name = catalog, layout, template, name
        like = template.loaded.name
        if like is None:
            raise InvalidMetadataError(f"{self.target}: the template of its storage table has no name")
        self._new = NewTable(like, template.owner, location, uuid.uuid4())
        #: The uuid and the metadata file of a table that this creation has removed.
        self._removed: tuple[str, str] | None = None

    def load(self) -> Name:
        """Load the table of the name, and then the view."""
        located = self._catalog.locate([self._name]).get(self._name)
        if located is None:
            return Name(None, named=self._named())
        if located.kind != "table":
            raise self._taken("a view")
        try:
            table = self._catalog.table_metadata(self._name, located)
        except MetadataFileNotFoundError:
            if self._catalog.locate([self._name]).get(self._name) == located:
                raise
            return self.load()  # another creation has just discarded its table
        return Name(table, located.metadata_location, self._named())

    def _named(self) -> str | None:
        """Return the uuid of the table of this name that the view names."""
        try:
            properties = self._catalog.load(self._template.owner).metadata.properties
        except ViewNotFoundError:
            return None
        same = properties.get(STORAGE_TABLE_PROPERTY) == self._name.within_catalog
        return properties.get(STORAGE_TABLE_UUID_PROPERTY) if same else None

    def judge(self, state: Name) -> Verdict:
        """``SUPERSEDED`` if the view was given the table meanwhile.

        Raises:
            AlreadyExistsError: The name has a table that was not created for this view.
        """
        if state.table is None:
            return Verdict.READY
        owner = state.table.properties.get(STORAGE_OF_PROPERTY)
        if owner != self._template.owner.within_catalog:
            raise self._taken(f"the storage table of {owner}" if owner else "a table that is no storage table")
        if state.named == state.table.table_uuid:
            return Verdict.SUPERSEDED
        return Verdict.LANDED if _is_like(state.table, self._template.loaded.table) else Verdict.READY

    def _taken(self, holder: str) -> AlreadyExistsError:
        return AlreadyExistsError(
            f"{self.target}: the name {self._name} of its storage table is taken by {holder}: choose another one with "
            "--storage-name"
        )

    def send(self, state: Name) -> bool:
        """Create the table, after the removal of one that was left."""
        if state.table is None and self._put_back(state.named):
            return False
        if state.table is not None:
            log.warning(
                "%s: removing the table %s from the catalog, which an earlier view of this name, or a killed creation, "
                "left there; its files remain at %s",
                self.target,
                self._name,
                state.table.location,
            )
            self._removed = state.table.table_uuid or "", state.location
            self._catalog.drop_table(self._name, state.table, state.location, owner=self._template.owner)
            if self._put_back(self._named()):
                return False
        try:
            self._catalog.tables.create(self._name, self._new)
        except AlreadyExistsError:
            return False  # the next loaded state shows by what
        return True

    def _put_back(self, named: str | None) -> bool:
        """Put the table back that was removed, if it is the one that the view names by now; return whether it is."""
        if self._removed is None or named != self._removed[0]:
            return False
        self._catalog.tables.register(self._name, self._removed[1])
        return True

    def may_land(self, state: Name) -> bool:
        """Whether the name is free."""
        return state.table is None

    def publish(self) -> NewStorage:
        """Run the protocol.

        Raises:
            AlreadyExistsError: The name is taken.
            CommitConflictError, CommitStateUnknownError: See :func:`airflow_mv.core.publish.protocol.commit`; or
                another
                process has given the view the table.
        """
        if commit(self).verdict != Verdict.LANDED:
            raise CommitConflictError(f"the storage table of {self.target} was replaced meanwhile. Run it again")
        what = f"{self.target}, storage table"
        try:
            storage = created_storage(self._layout, self._catalog, self._name, "", what=what)
            return NewStorage(storage, self._template.owner)
        except NotFoundError:
            raise CommitConflictError(
                f"{self.target}: another creation of the view has removed its storage table {self._name}. Run it again"
            ) from None


def _is_like(table: TableMetadata, template: TableMetadata) -> bool:
    """Whether a table is empty and has the columns and partitioning of a template."""
    empty = not table.snapshots and not table.refs and PROPERTY not in table.properties
    if not empty or table.format_version != template.format_version:
        return False
    return same_columns(template.current_schema.get("fields", ()), table) and same_partitioning(table, template)


@contextmanager
def removed_template(catalog: MaterializedViewCatalog, storage: NewStorage) -> Iterator[None]:
    """Remove a template at the end. If that fails, an empty table stays in the catalog."""
    try:
        yield
    except (CommitStateUnknownError, CatalogUnavailableError):
        if storage.is_template:  # nothing is deleted
            _quietly(storage, lambda: storage.loaded.remove(catalog.tables, storage.owner))
        raise
    except BaseException:
        if storage.is_template:
            discard_unneeded(catalog, storage)
        raise
    if storage.is_template:
        discard_unneeded(catalog, storage)


def discard_unneeded(catalog: MaterializedViewCatalog, storage: NewStorage) -> None:
    """Delete a new table that no view named. A failure is only logged."""
    _quietly(storage, lambda: storage.discard(catalog))


def _quietly(storage: NewStorage, remove: Callable[[], object]) -> None:
    try:
        remove()
    except MaterializedViewError as error:
        log.warning("Could not drop the unneeded table %s: %s", storage.loaded.place, error)


@contextmanager
def discarded_on_failure(catalog: MaterializedViewCatalog, storage: NewStorage) -> Iterator[None]:
    """Remove a new storage table from the catalog, if it is certain that its view does not name it."""
    try:
        yield
    except (CommitStateUnknownError, CatalogUnavailableError):
        raise
    except MaterializedViewError:
        if not storage.is_template and storage.loaded.pointers and _is_needless(catalog, storage):
            discard_unneeded(catalog, storage)
        raise


def _is_needless(catalog: MaterializedViewCatalog, storage: NewStorage) -> bool:
    """Whether the view does not exist, or names another storage table. An error alone does not prove a failure."""
    try:
        return not storage.is_named_by(catalog.load(storage.owner))
    except ViewNotFoundError:
        return True
    except MaterializedViewError as error:
        log.warning("Could not drop the storage table %s, which may be orphaned: %s", storage.loaded.place, error)
        return False


def drop_storage(catalog: MaterializedViewCatalog, view: LoadedView, *, force: bool = False) -> str | None:
    """Remove a view's storage table from the catalog. Return what could not be removed, and why."""
    return layout_of_view(view).drop_storage(catalog, view, force=force)


def created_storage(
    layout: type[LoadedStorage], catalog: MaterializedViewCatalog, name: Identifier | None, location: str, *, what: str
) -> LoadedStorage:
    """Load a template or storage table that was just created, and that no view names yet.

    Args:
        layout: The layout of the view that it is created for.
        name: Its name in the catalog, if it has one.
        location: Its metadata file; only needed if it has no name.
    """
    if name is None:
        return layout(location, catalog.files.read_table(location, what=f"{what} file"), None)
    return layout(*catalog.load_table(name, what=what), None, name)
