# SPDX-License-Identifier: Apache-2.0
"""Move a view to another layout, or to another name. Rows, refresh records, settings, history and uuid stay."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from airflow_mv.common.snapshots import with_head
from airflow_mv.core.catalog import (
    STORED_LAYOUTS,
    Layout,
    LoadedStorage,
    LoadedView,
    MaterializedViewCatalog,
    stored_layout,
    stored_table,
)
from airflow_mv.core.catalog.catalog import next_number
from airflow_mv.core.catalog.files import discard
from airflow_mv.core.catalog.layouts import storage_place
from airflow_mv.core.catalog.locations import lies_in
from airflow_mv.core.catalog.sql import TABLE, VIEW, Entry, RowSwap
from airflow_mv.core.catalog.tables import definition_properties
from airflow_mv.core.publish.pointed import write_next
from airflow_mv.core.publish.protocol import Change, Effects, Verdict, commit
from airflow_mv.core.publish.refresh import Current, load_current
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import (
    DEFINITION_ID_PROPERTY,
    DEFINITION_PROPERTY,
    PROPERTY,
    STORAGE_FOLDER_PROPERTY,
    STORAGE_OF_PROPERTY,
    STORAGE_TABLE_PROPERTY,
    STORAGE_TABLE_UUID_PROPERTY,
    definition_tag,
    is_layout_ref,
    property_text,
    storage_table_field,
)
from airflow_mv.core.spec.properties import FORMAT_VERSION, storage_properties
from airflow_mv.core.spec.view import ViewMetadata, with_view_properties
from airflow_mv.core.sql.types import unknown_type
from airflow_mv.errors import (
    AlreadyExistsError,
    CommitStateUnknownError,
    InvalidMetadataError,
    UnsupportedError,
    ViewNotFoundError,
)
from airflow_mv.foundation.words import one_of

log = logging.getLogger(__name__)

#: Properties of a storage table that belong to a layout.
_OF_LAYOUTS = (STORAGE_OF_PROPERTY, DEFINITION_PROPERTY, DEFINITION_ID_PROPERTY)


@dataclass(frozen=True, slots=True)
class Conversion:
    """The result of a conversion."""

    view: Identifier
    layout: Layout
    before: Layout

    @property
    def changed(self) -> bool:
        """Whether it had another layout."""
        return self.layout != self.before

    def to_dict(self) -> dict[str, Any]:
        """Return what the command line prints."""
        return {"view": str(self.view), "layout": self.layout, "before": self.before}


def convert(
    catalog: MaterializedViewCatalog, view: str | Identifier, layout: Layout, *, effects: Effects | None = None
) -> Conversion:
    """Move a view to another layout, in one transaction of the catalog's database. No row is computed or copied.

    A refresh that was planned before is planned again. If the view has the layout already, nothing is changed; so a
    conversion can be repeated if its outcome is unknown.

    Args:
        layout: The layout that it gets.

    Raises:
        ConfigurationError: There is no such layout.
        UnsupportedError: The catalog cannot do it, or the view cannot have the layout.
        AlreadyExistsError: The name of the new storage table is taken.
        CommitConflictError, CommitStateUnknownError: See :func:`airflow_mv.core.publish.protocol.commit`.
    """
    identifier = catalog.identify(view)
    one_of(layout, STORED_LAYOUTS, field="layout")
    loaded = catalog.load(identifier)
    catalog.load_storage(loaded)
    before = stored_layout(loaded).layout
    if before != layout:
        _ConvertView(catalog, loaded, layout, effects).publish()
        log.info("Converted %s to the layout %s; it had %s before", identifier, layout, before)
    return Conversion(identifier, layout, before)


#: The rows of a view and its storage table in a SQL catalog.
Entries = dict[Identifier, Entry]


@dataclass(frozen=True, slots=True)
class _Source:
    """A view that gets another layout or name.

    Args:
        view: The view in its present layout, with the name that it gets.
        storage: Its storage table.
        document: The storage table's metadata without what belongs to the present layout.
        now_ms: The current time.
        storage_name: The name that its storage table keeps; ``None``: the one that the layout gives it.
    """

    view: LoadedView
    storage: LoadedStorage
    document: dict[str, Any]
    now_ms: int
    storage_name: Identifier | None = None

    @property
    def tags(self) -> list[str]:
        """The tag of the current refresh, if there is one."""
        return [self.storage.state.tag] if self.storage.state is not None else []


@dataclass(frozen=True, slots=True)
class _Converted:
    """A view in another layout, as it was written.

    Args:
        entries: Its rows in the catalog.
        files: The metadata files that were written for it.
    """

    entries: Entries
    files: tuple[str, ...]


def entries(view: LoadedView, storage: LoadedStorage) -> Entries:
    """Return the rows of a view and its storage table. A view that is a table has the table's row only."""
    tables: Entries = {name: (TABLE, location) for name, location in storage.pointers.items()}
    return {view.identifier: (VIEW, view.metadata_location), **tables}


def _released(document: dict[str, Any]) -> dict[str, Any]:
    """Return a storage table's metadata without the properties, tags and branches of any layout."""
    properties = {key: value for key, value in document.get("properties", {}).items() if key not in _OF_LAYOUTS}
    refs = {name: ref for name, ref in document.get("refs", {}).items() if not is_layout_ref(name)}
    return {**document, "properties": properties, **({"refs": refs} if "refs" in document else {})}


def _to_pointed(catalog: MaterializedViewCatalog, source: _Source) -> _Converted:
    """Write both metadata files. The current snapshot becomes the one with the rows."""
    view, rows = source.view, source.storage.rows_snapshot
    if rows is not None and rows != source.storage.table.head:
        source = replace(source, document=with_head(source.document, rows, now_ms=source.now_ms))
    table = _write_table(catalog, source)
    return _with_view(catalog, source, table, {PROPERTY: property_text(view.materialized.repointed(table))})


def _to_registered(catalog: MaterializedViewCatalog, source: _Source) -> _Converted:
    """Write both metadata files. The table gets the name of a new storage table."""
    view, storage = source.view, source.storage
    name = source.storage_name or STORED_LAYOUTS["registered"].storage_name(view.identifier, None)
    if name is None:
        raise InvalidMetadataError(f"view {view.identifier}: the layout has no name for its storage table")
    updates = {STORAGE_OF_PROPERTY: view.identifier.within_catalog}
    table = _write_table(catalog, source, updates=updates, tags=source.tags)
    properties = {
        PROPERTY: property_text(view.materialized.repointed(None)),
        STORAGE_TABLE_PROPERTY: name.within_catalog,
        STORAGE_TABLE_UUID_PROPERTY: storage.table.table_uuid or "",
        STORAGE_FOLDER_PROPERTY: table.rpartition("/")[0],
    }
    return _with_view(catalog, source, table, properties, name)


def _to_table(catalog: MaterializedViewCatalog, source: _Source) -> _Converted:
    """Write the table's metadata file, with the definition. The table gets the view's name."""
    view, storage = source.view, source.storage
    own = uuid.uuid4().hex
    updates = {
        STORAGE_OF_PROPERTY: view.identifier.within_catalog,
        **definition_properties(view.identifier, storage.table, stored_elsewhere(view.metadata, None), own),
    }
    table = _write_table(catalog, source, updates=updates, tags=[*source.tags, definition_tag(own)])
    return _Converted({view.identifier: (TABLE, table)}, (table,))


#: How a view of another layout is written, by layout. The files have no effect until the catalog's rows name them.
WRITERS: dict[Layout, Callable[[MaterializedViewCatalog, _Source], _Converted]] = {
    "pointed": _to_pointed,
    "registered": _to_registered,
    "table": _to_table,
}


def _write_table(
    catalog: MaterializedViewCatalog,
    source: _Source,
    *,
    updates: Mapping[str, str] = MappingProxyType({}),
    tags: Collection[str] = (),
) -> str:
    """Write a storage table's next metadata file, and return its location.

    Args:
        updates: Properties to set.
        tags: Tags to set on the rows.
    """
    storage = source.storage
    return write_next(
        catalog,
        storage.table.location,
        source.document,
        previous_location=storage.location,
        updates=dict(updates),
        tags=dict.fromkeys(tags, storage.rows_snapshot) if storage.rows_snapshot is not None else {},
        now_ms=source.now_ms,
    )


def _with_view(
    catalog: MaterializedViewCatalog,
    source: _Source,
    table: str,
    properties: dict[str, str],
    name: Identifier | None = None,
) -> _Converted:
    """Write a view's metadata file.

    The view keeps its folder. If the storage table has used it for itself, the view gets a new one: another program may
    delete unknown files from a table's folder.

    Args:
        table: The storage table's new metadata file.
        name: The storage table's name in the catalog, if it gets one.
    """
    view = source.view
    document, own = view.metadata.document(), view.metadata.location
    if lies_in(own, (source.storage.table.location,)):
        document["location"] = catalog.folders.new(view.identifier)
    dropped = (STORAGE_TABLE_PROPERTY, STORAGE_TABLE_UUID_PROPERTY, STORAGE_FOLDER_PROPERTY)
    document["properties"] = {key: text for key, text in view.metadata.properties.items() if key not in dropped}
    bare = ViewMetadata.read(document, source=f"view {view.identifier} in another layout")
    metadata = with_view_properties(stored_elsewhere(bare, None), properties)
    metadata = stored_elsewhere(metadata, storage_table_field(metadata.properties, view.identifier))
    written = catalog.write_metadata(metadata, number=next_number(view.metadata_location))
    tables: Entries = {name: (TABLE, table)} if name is not None else {}
    return _Converted({view.identifier: (VIEW, written), **tables}, (table, written))


class _ConvertView(Change[Current]):
    """The conversion of a view. It has landed if the view has the layout.

    Args:
        layout: The layout that it gets.
    """

    def __init__(
        self, catalog: MaterializedViewCatalog, view: LoadedView, layout: Layout, effects: Effects | None
    ) -> None:
        super().__init__(f"view {view.identifier}", f"its conversion to the layout {layout!r}", effects)
        self._catalog, self._view, self._uuid = catalog, view.identifier, view.metadata.view_uuid
        self._layout = layout
        self._base: Entries | None = None
        self._converted: _Converted | None = None
        self._taken: AlreadyExistsError | None = None

    def load(self) -> Current:
        """Load the view and its storage table."""
        return load_current(self._catalog, self._view, self._uuid)

    def judge(self, state: Current) -> Verdict:
        """``SUPERSEDED`` if the name of the new storage table is taken."""
        if stored_layout(state.view).layout == self._layout:
            return Verdict.LANDED
        if self._taken is not None:
            return Verdict.SUPERSEDED
        self._require_possible(state)
        return Verdict.READY

    def _require_possible(self, state: Current) -> None:
        """Refuse what cannot be converted.

        Raises:
            UnsupportedError: With the reason.
        """
        who = f"view {self._view} cannot get the layout {self._layout!r}"
        if not self._catalog.is_sql:
            raise UnsupportedError(
                f"{who}: the server of catalog {self._catalog.name!r} cannot swap a view and a table of one name in "
                "one step, and readers would find neither in between. Drop the view and create it with this layout, "
                "or create one of another name"
            )
        if self._layout not in self._catalog.layouts:
            raise UnsupportedError(f"{who}: catalog {self._catalog.name!r} does not support it")
        if state.view.adopted_at is not None:
            raise UnsupportedError(f"{who}: its table was adopted, and other programs use it by this name")
        if state.storage.record is None or state.storage.rows_snapshot is None:
            raise UnsupportedError(f"{who} before its first refresh: refresh it, or drop it and create it again")
        chosen = storage_properties(state.view.metadata.properties, view=str(self._view)).get(FORMAT_VERSION, "2")
        version = max(state.storage.table.format_version, int(chosen))
        why = STORED_LAYOUTS[self._layout].unwritable(version, unknown_type(state.storage.table))
        if why is not None:
            raise UnsupportedError(f"{who}: its storage table would be a table of the catalog, and {why}")

    def send(self, state: Current) -> bool:
        """Write the new metadata files, once for each base, and swap the catalog's rows in one transaction."""
        base = entries(state.view, state.storage)
        if self._converted is None or self._base != base:
            # The old base has changed: a swap from it can never be applied, so its files can be deleted.
            self._discard()
            self._converted, self._base = self._written(state), base
        after = self._converted.entries
        names = sorted({*base, *after})
        try:
            return self._catalog.pointers.swap_rows([RowSwap(name, base.get(name), after.get(name)) for name in names])
        except AlreadyExistsError as error:
            self._taken = error  # perhaps by an earlier copy: the next loaded state shows it
            return False

    def _written(self, state: Current) -> _Converted:
        return WRITERS[self._layout](self._catalog, self._source(state))

    def _source(self, state: Current) -> _Source:
        document = _released(stored_table(self._catalog, state.view, state.storage))
        return _Source(state.view, state.storage, document, self.effects.now_ms())

    def may_land(self, state: Current) -> bool:
        """Whether the catalog's rows are as they were when the conversion was sent."""
        return entries(state.view, state.storage) == self._base

    def clean_up(self) -> None:
        """Delete the written files. After a lost answer they stay: the taken name may become free, and a copy land."""
        if not self.unknown:
            self._discard()

    def _discard(self) -> None:
        converted, self._converted = self._converted, None
        for location in converted.files if converted is not None else ():
            discard(self._catalog.files, location)

    def publish(self) -> None:
        """Run the protocol."""
        if commit(self).verdict == Verdict.SUPERSEDED and self._taken is not None:
            if self.unknown:
                raise CommitStateUnknownError(
                    f"{self._taken}. Before that the catalog did not respond to {self.name} ({self.unknown[-1]}), "
                    f"so {self._view} may still be changed; nothing was deleted, run it again to settle it"
                )
            raise self._taken


def rename(
    catalog: MaterializedViewCatalog, view: str | Identifier, name: str | Identifier, *, effects: Effects | None = None
) -> LoadedView:
    """Give a view another name, in one transaction of the catalog's database. No row is computed or copied.

    Its uuid, rows, history, settings and folder stay. A storage table with the name that its layout gives it is renamed
    too. Views that read the view by its earlier name are not changed. A refresh that was planned before is planned
    again. If the view has the name already, nothing is changed; so a rename can be repeated if its outcome is unknown.

    Args:
        name: The view's new name, in the same catalog.

    Raises:
        UnsupportedError: The catalog cannot do it, or the table of the view was adopted.
        AlreadyExistsError: The name, or that of the storage table, is taken.
        NotFoundError: The namespace does not exist.
        CommitConflictError, CommitStateUnknownError: See :func:`airflow_mv.core.publish.protocol.commit`.
    """
    before, after = catalog.identify(view), catalog.identify(name)
    loaded = catalog.load(before)
    loaded.materialized  # noqa: B018 (a plain view is refused)
    require_renamable(catalog, loaded, after)
    catalog.folders.new(after)  # the namespace exists
    if before != after:
        _RenameView(catalog, loaded, after, effects).publish()
        log.info("Renamed %s to %s", before, after)
    return catalog.load(after)


def require_renamable(catalog: MaterializedViewCatalog, view: LoadedView, name: Identifier) -> None:
    """Refuse a rename that is not possible.

    Raises:
        UnsupportedError: With the reason.
    """
    who = f"view {view.identifier} cannot be renamed to {name}"
    if not catalog.is_sql:
        raise UnsupportedError(
            f"{who}: the server of catalog {catalog.name!r} cannot rename a view and its storage table in one step. "
            "Create it under the new name, and drop this one"
        )
    if view.identifier.catalog != name.catalog:
        raise UnsupportedError(f"{who}: that is another catalog")
    if view.adopted_at is not None:
        raise UnsupportedError(f"{who}: its table was adopted, and other programs use it by this name")


class _RenameView(_ConvertView):
    """A view gets another name: it is written in its layout again. It has landed if the view has the name.

    Args:
        name: The name that it gets.
    """

    def __init__(
        self, catalog: MaterializedViewCatalog, view: LoadedView, name: Identifier, effects: Effects | None
    ) -> None:
        super().__init__(catalog, view, stored_layout(view).layout, effects)
        self.name, self._name = f"its rename to {name}", name

    def load(self) -> Current:
        """Load the view by its new name, or by its earlier one."""
        try:
            return load_current(self._catalog, self._name, self._uuid)
        except ViewNotFoundError:
            return load_current(self._catalog, self._view, self._uuid)

    def judge(self, state: Current) -> Verdict:
        """``SUPERSEDED`` if a name is taken."""
        if state.view.identifier == self._name:
            return Verdict.LANDED
        self._layout = stored_layout(state.view).layout
        return Verdict.READY if self._taken is None else Verdict.SUPERSEDED

    def _source(self, state: Current) -> _Source:
        source, place = super()._source(state), storage_place(state.view)
        default = STORED_LAYOUTS[self._layout].storage_name(self._view, None)
        chosen = default is not None and place != default
        kept = place if chosen and isinstance(place, Identifier) else None
        return replace(source, view=replace(state.view, identifier=self._name), storage_name=kept)


def stored_elsewhere(view: ViewMetadata, storage_table: Mapping[str, Any] | None) -> ViewMetadata:
    """Return the view after its rows got another place: its current version names the storage table, the others none.

    No version is added, because the rows and the definition stay. See :func:`new_view` for the argument.
    """
    document = view.document()
    for version in document["versions"]:
        version.pop("storage-table", None)
        if storage_table is not None and version["version-id"] == view.current_version_id:
            version["storage-table"] = dict(storage_table)
    return ViewMetadata.read(document, source="view with another storage table")
