# SPDX-License-Identifier: Apache-2.0
"""The definition of a materialized view, as it is given: to create a view, to adopt a table, or to compare it with."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from airflow_mv.checks import CHECKS_PROPERTY, Check, property_of
from airflow_mv.core.catalog import (
    STORED_LAYOUTS,
    Layout,
    LoadedView,
    MaterializedViewCatalog,
    stored_layout,
)
from airflow_mv.core.catalog.configured import LAYOUT_PROPERTY
from airflow_mv.core.catalog.layouts import supported_layouts
from airflow_mv.core.publish.new_storage import NewStorage
from airflow_mv.core.publish.protocol import Effects
from airflow_mv.core.publish.view_change import SUMMARY, ViewChange, time_of_change
from airflow_mv.core.refresh.checks import stored_checks
from airflow_mv.core.spec.choices import (
    COLUMN_PROPERTY,
    DIALECTS_PROPERTY,
    TIME_TRAVEL_PROPERTY,
    TRANSPILE_PROPERTY,
    RefreshStrategy,
)
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import (
    OWN_PROPERTIES,
    PROPERTY,
    ViewSettings,
    property_text,
    storage_table_field,
)
from airflow_mv.core.spec.properties import check_given, sort_order
from airflow_mv.core.spec.view import (
    CHANGE_ID,
    COMMENT_PROPERTY,
    DIALECT,
    ViewMetadata,
    replace_version,
    with_storage_table,
    with_view_properties,
)
from airflow_mv.core.sql.interval_columns import interval_column
from airflow_mv.core.sql.translation import known_dialects, texts
from airflow_mv.errors import ConfigurationError, UnsupportedError
from airflow_mv.foundation.words import not_one_of

#: The refresh strategy of a new view: each refresh has the cheapest mode that is possible, a full one included.
NEW_STRATEGY: Literal["full", "incremental"] = "incremental"


class AcceptQuery(Protocol):
    """Decides whether a view may have a query, before anything is made."""

    def __call__(
        self, catalog: MaterializedViewCatalog, view: Identifier, sql: str | None, *, context: Identifier | None
    ) -> None:
        """Raise to refuse a query.

        Args:
            catalog: Where the view is, or will be.
            sql: The query; ``None``: that of the existing view.
            context: A view in whose catalog and namespace short names are resolved; ``None``: this one.
        """


@dataclass(frozen=True, slots=True)
class Definition:
    """The definition of a materialized view.

    Args:
        sql: The query; ``None`` keeps the query of the existing plain view.
        refresh_strategy: The stored ``refresh-strategy``; ``None``: that of the view, or ``incremental`` for a new one.
        allow_stale_data: Whether stale rows may be read; ``None``: as the view has it, or ``False`` for a new one.
        time_travel: Whether each refresh stays in the history, with its own tagged snapshot; ``None``: likewise.
        partition_by: Partition transforms of the storage table, e.g. ``days(ts)``. A view that is replaced gets them
            with the next recomputed rows; without any it keeps its partitioning.
        properties: More view properties.
        checks: The view's own checks, which the rows of every refresh must pass before they are published; ``None``:
            those that the view has.
        layout: ``pointed``: the view names the storage table's metadata file. ``registered``: the storage table is
            a table of the catalog, for any engine to read by its name. ``table``: the view itself is a table of the
            catalog, which any engine reads by the view's name. ``None``: the catalog's preferred layout.
        columns: The names of the view's columns, in the order of the query's; ``None``: the query's own, or those of a
            view whose query stays.
        comment: The view's comment; ``None``: that of the view, if it has one.
        column_comments: Comments of columns, by column. The others keep theirs if the query stays, and otherwise
            have those of the base columns.
        dialects: The SQL dialects in which the query is stored beside Spark's, as sqlglot writes it. Without any, a
            view keeps those that it has.
        transpile: Whether the SQL for Spark may be translated from a plain view's text in another dialect.
        storage_name: The storage table's name in the view's namespace, in the layout ``registered``; ``None``: the name
            that it has, or the view's name with ``__storage``.
        accept: Called with each query before anything is made; it raises to refuse the query. It is not stored.
    """

    sql: str | None
    refresh_strategy: RefreshStrategy | None = None
    allow_stale_data: bool | None = None
    time_travel: bool | None = None
    partition_by: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    layout: Layout | None = None
    checks: Sequence[Check] | None = None
    columns: Sequence[str] | None = None
    dialects: Sequence[str] = ()
    transpile: bool = False
    storage_name: str | None = None
    accept: AcceptQuery | None = None
    comment: str | None = None
    column_comments: Mapping[str, str] = field(default_factory=dict)

    def require_accepted(
        self,
        catalog: MaterializedViewCatalog,
        view: Identifier,
        sql: str | None = None,
        *,
        context: Identifier | None = None,
    ) -> None:
        """Call :attr:`accept`, if there is one. See there for the arguments and errors."""
        if self.accept is not None:
            self.accept(catalog, view, sql, context=context)

    def view_properties(self, storage: NewStorage, kept: ViewSettings | None = None) -> dict[str, str]:
        """Return the properties of a materialized view with a new storage table."""
        return {**self._settings(storage.settings_location, kept), **storage.view_properties}

    def properties_on(self, view: LoadedView) -> dict[str, str]:
        """Return the properties of a view that is already materialized and keeps its storage table."""
        return self._settings(view.materialized.storage_table_location, view.settings)

    def _settings(self, location: str | None, kept: ViewSettings | None) -> dict[str, str]:
        named = {"allow-stale-data": self.allow_stale_data, "refresh-strategy": self.refresh_strategy}
        document = {
            # A stored view without the field is full, so a new one has it in writing.
            **(kept.document() if kept else {"refresh-strategy": NEW_STRATEGY}),
            "storage-table-location": location,
            **{key: value for key, value in named.items() if value is not None},
        }
        given = {key: value for key, value in document.items() if value is not None}
        settings = ViewSettings.read(given, source=PROPERTY)
        return {**self.given_properties, PROPERTY: property_text(settings)}

    @property
    def given_properties(self) -> dict[str, str]:
        """The requested properties, including those that have an option."""
        checks, dialects, travel = self.given_checks, self.given_dialects, self.given_time_travel
        options = {
            COMMENT_PROPERTY: self.comment,
            CHECKS_PROPERTY: None if checks is None else property_of(checks),
            DIALECTS_PROPERTY: None if dialects is None else ",".join(dialects),
            TIME_TRAVEL_PROPERTY: None if travel is None else str(travel).lower(),
        }
        return {**self.properties, **{key: text for key, text in options.items() if text is not None}}

    @property
    def given_time_travel(self) -> bool | None:
        """Whether each refresh stays in the history, by the option or the property; ``None`` if there is neither."""
        text = self.properties.get(TIME_TRAVEL_PROPERTY)
        return text.lower() == "true" if text is not None and self.time_travel is None else self.time_travel

    @property
    def given_dialects(self) -> tuple[str, ...] | None:
        """The requested dialects, by the option or the property; ``None`` if there is neither.

        Raises:
            ConfigurationError: One is unknown.
        """
        text = self.properties.get(DIALECTS_PROPERTY)
        if not self.dialects and text is None:
            return None
        return known_dialects(self.dialects or (text or "").split(","))

    @property
    def given_checks(self) -> tuple[Check, ...] | None:
        """The requested checks, as an option and as a property; ``None`` if there are neither."""
        if self.checks is None and CHECKS_PROPERTY not in self.properties:
            return None
        return (*stored_checks(self.properties, view="to be created"), *(self.checks or ()))

    def texts(self, sql: str, view: Identifier, existing: LoadedView | None = None) -> dict[str, str]:
        """Return a query in each dialect in which it is stored.

        Raises:
            UnsupportedError: A dialect cannot express it.
        """
        stored = {**(existing.metadata.properties if existing else {}), **self.given_properties}
        if DIALECTS_PROPERTY not in stored:
            return {DIALECT: sql}
        return texts(sql, known_dialects(stored[DIALECTS_PROPERTY].split(",")), view=str(view))

    def layout_for(self, catalog: MaterializedViewCatalog, existing: LoadedView | None) -> Layout:
        """Return the layout that a view gets, or has.

        Raises:
            ConfigurationError: There is no such layout.
            UnsupportedError: The catalog does not support it, or the view has another one.
        """
        support, layouts = catalog.view_support, catalog.layouts
        chosen = catalog.properties.get(LAYOUT_PROPERTY, layouts[0])
        if chosen not in STORED_LAYOUTS:
            raise ConfigurationError(
                f"catalog {catalog.name!r}, property {LAYOUT_PROPERTY}: there is no layout {chosen!r}; there are: "
                f"{', '.join(sorted(STORED_LAYOUTS))}"
            )
        has = stored_layout(existing).layout if existing and existing.settings else None
        # A plain view cannot become a table of its name.
        wanted = self.layout or has or next(iter(supported_layouts(support, chosen, existing)), layouts[0])
        if wanted not in STORED_LAYOUTS:
            raise not_one_of(wanted, STORED_LAYOUTS, field="layout")
        if lacking := STORED_LAYOUTS[wanted].lacking(support):
            raise UnsupportedError(
                f"catalog {catalog.name!r} {lacking}, which the layout {wanted!r} needs: use the layout {layouts[0]!r}"
            )
        if has not in (None, wanted):
            raise UnsupportedError(f"the view has the layout {has!r}: `airflow-mv convert` changes it")
        return wanted


# ----------- The view properties that this package reads are checked before anything is made, not by the first refresh


def check_properties(properties: Mapping[str, str], *, view: str) -> None:
    """Refuse a property that has a wrong value, or whose name begins with ``airflow-mv.`` and that nothing reads.

    Args:
        properties: Those that a user gives.

    Raises:
        ConfigurationError: Names the property, its value and what it may be.
    """
    check_given(properties, view=view, own=OWN_PROPERTIES)
    if TRANSPILE_PROPERTY in properties:
        known_dialects([properties[TRANSPILE_PROPERTY]])


def check_interval_column(fields: Sequence[Mapping[str, Any]], properties: Mapping[str, str], *, view: str) -> None:
    """Refuse an interval column that the view does not have, or whose type has no intervals.

    Args:
        fields: The view's columns, as its schema holds them.

    Raises:
        ConfigurationError: Names the columns that are suitable.
    """
    if COLUMN_PROPERTY in properties:
        interval_column(fields, properties, view=view)


# ------------------------------- The changes by which a view gets another definition: a new version, or new properties


class NewDefinition(ViewChange):
    """A new version and its properties in one commit, recognized by an id in the version's summary.

    Args:
        sql: The query, by dialect.
        context: A name in the catalog and the namespace in which the query's short names are resolved.
        definition: The view's new definition.
        storage: The new storage table; ``None`` if the view keeps its present one.
        effects: Clock, sleep and jitter.
    """

    def __init__(
        self,
        catalog: MaterializedViewCatalog,
        existing: LoadedView,
        sql: Mapping[str, str],
        context: Identifier,
        columns: NewStorage,
        definition: Definition,
        *,
        storage: NewStorage | None,
        effects: Effects,
    ) -> None:
        super().__init__(catalog, existing, "its new definition", effects, storage)
        self._sql, self._columns, self._definition, self._storage = sql, columns, definition, storage
        self._context = context
        self._settings = existing.materialized
        self._id = uuid.uuid4().hex

    def wanted(self, view: LoadedView) -> ViewMetadata | None:
        """Return the view with the new version, unless its history already has this version."""
        metadata = view.metadata
        if metadata.has_version_of(self._id):
            return None
        definition, storage, fields = self._definition, self._storage, self._columns.fields
        wanted = definition.view_properties(storage, self._settings) if storage else definition.properties_on(view)
        if (
            self._sql.items() <= metadata.current_version.texts.items()
            and _namespace(view.context) == _namespace(self._context)
            and list(metadata.schema_.fields) == fields
            and _has(view, wanted)
        ):
            return None
        changed = with_view_properties(metadata, wanted)
        return replace_version(
            changed,
            schema={"type": "struct", "fields": fields},
            sql=self._sql,
            default_catalog=self._context.catalog,
            default_namespace=self._context.namespace,
            summary={**SUMMARY, CHANGE_ID: self._id},
            now_ms=time_of_change(self._catalog, metadata.location, self.effects),
            storage_table=storage_table_field(changed.properties, view.identifier),
        )


class NewProperties(ViewChange):
    """New properties, and a new storage table if one was made. The definition stays.

    A storage table with another name gives the view a new version, because a version names its storage table. Setting
    properties is idempotent: the properties themselves show whether the change has landed.

    Args:
        definition: The view's new definition.
        effects: Clock, sleep and jitter.
        storage: The new storage table; ``None`` if the view keeps its present one.
    """

    def __init__(
        self,
        catalog: MaterializedViewCatalog,
        existing: LoadedView,
        definition: Definition,
        effects: Effects,
        storage: NewStorage | None = None,
    ) -> None:
        name = "its new properties" if storage is None else "its new storage table"
        super().__init__(catalog, existing, name, effects, storage)
        self._definition, self._storage, self._id = definition, storage, uuid.uuid4().hex

    def wanted(self, view: LoadedView) -> ViewMetadata | None:
        """Return the view with the properties, unless it has them."""
        definition, storage = self._definition, self._storage
        if storage is None or storage.is_named_by(view):
            properties = definition.properties_on(view)
        else:
            properties = definition.view_properties(storage, view.settings)
        if _has(view, properties):
            return None
        changed = with_view_properties(view.metadata, properties)
        sort_order(changed.properties, changed.schema_.names, view=str(view.identifier))  # refuses unknown columns
        dropped = view.settings is not None and changed.current_version.stored_in is None
        if storage is None or dropped:  # by a server or a writer that keeps only the fields that it knows
            return changed
        now_ms = time_of_change(self._catalog, changed.location, self.effects)
        named = storage_table_field(changed.properties, view.identifier)
        return with_storage_table(changed, named, summary={**SUMMARY, CHANGE_ID: self._id}, now_ms=now_ms)


def _namespace(name: Identifier) -> tuple[str | None, tuple[str, ...]]:
    return name.catalog, name.namespace


def _has(view: LoadedView, properties: Mapping[str, str]) -> bool:
    return all(view.metadata.properties.get(key) == value for key, value in properties.items())
