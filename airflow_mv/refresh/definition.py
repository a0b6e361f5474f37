# SPDX-License-Identifier: Apache-2.0
"""The definition of a materialized view, as it is given: to create a view, to adopt a table, or to compare it with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from airflow_mv.catalog import STORED_LAYOUTS, Layout, LoadedView, MaterializedViewCatalog, StoredLayout, stored_layout
from airflow_mv.catalog.configured import LAYOUT_PROPERTY
from airflow_mv.catalog.rest import NAMES_NO_VIEWS
from airflow_mv.checks import CHECKS_PROPERTY, Check, property_of, stored_checks
from airflow_mv.errors import ConfigurationError, UnsupportedError
from airflow_mv.publish.new_storage import NewStorage
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.materialized_view import PROPERTY, TIME_TRAVEL_PROPERTY, ViewSettings, property_text
from airflow_mv.spec.view import COMMENT_PROPERTY, DIALECTS_PROPERTY
from airflow_mv.sql.translation import known_dialects, texts

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
            view: Its name.
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
    refresh_strategy: Literal["full", "incremental"] | None = None
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
        return {**self._settings(storage.location, kept), **storage.view_properties}

    def properties_on(self, view: LoadedView) -> dict[str, str]:
        """Return the properties of a view that is already materialized and keeps its storage table."""
        return self._settings(view.materialized.storage_table_location, view.settings)

    def _settings(self, storage_table_location: str, kept: ViewSettings | None) -> dict[str, str]:
        named = {"allow-stale-data": self.allow_stale_data, "refresh-strategy": self.refresh_strategy}
        document = {
            # A stored view without the field is full, so a new one has it in writing.
            **(kept.document() if kept else {"refresh-strategy": NEW_STRATEGY}),
            "storage-table-location": storage_table_location,
            **{key: value for key, value in named.items() if value is not None},
        }
        settings = ViewSettings.read(document, source=PROPERTY)
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
            ConfigurationError: One is not known.
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
        return texts(sql, known_dialects(stored.get(DIALECTS_PROPERTY, "").split(",")), view=str(view))

    def layout_for(self, catalog: MaterializedViewCatalog, existing: LoadedView | None) -> Layout:
        """Return the layout that a view gets, or has.

        Raises:
            ConfigurationError: There is no such layout.
            UnsupportedError: The catalog does not support it, or the view has another one.
        """
        chosen = catalog.properties.get(LAYOUT_PROPERTY, catalog.layouts[0])
        if chosen not in STORED_LAYOUTS:
            raise ConfigurationError(
                f"catalog {catalog.name!r}, property {LAYOUT_PROPERTY}: there is no layout {chosen!r}; there are: "
                f"{', '.join(sorted(STORED_LAYOUTS))}"
            )
        has = stored_layout(existing).name if existing and existing.settings else None
        # A plain view cannot become a table of its name.
        possible = [name for name in catalog.layouts if existing is None or STORED_LAYOUTS[name].needs_views]
        wanted = self.layout or has or next(iter(possible), catalog.layouts[0])
        if wanted not in STORED_LAYOUTS:
            raise ConfigurationError(f"there is no layout {wanted!r}; there are: {', '.join(sorted(STORED_LAYOUTS))}")
        if wanted not in catalog.layouts:
            raise UnsupportedError(
                f"catalog {catalog.name!r} {_lacking(catalog, STORED_LAYOUTS[wanted])}, which the layout {wanted!r} "
                f"needs: use the layout {catalog.layouts[0]!r}"
            )
        if has not in (None, wanted):
            raise UnsupportedError(f"the view has the layout {has!r}: `airflow-mv convert` moves it to another one")
        return wanted


def _lacking(catalog: MaterializedViewCatalog, layout: StoredLayout) -> str:
    """Return what a catalog lacks that does not support a layout."""
    if layout.swaps_pointers:
        return "cannot compare and swap the pointer of a view"
    return "has no views" if catalog.tells_locations else f"has no views {NAMES_NO_VIEWS}"
