# SPDX-License-Identifier: Apache-2.0
"""Make an existing table a materialized view of a query (layout ``table``).

The adoption is one commit to the table. It requires ``main`` where it was checked, and that the tag
``airflow_mv_adopted`` does not exist; it sets this tag, which stays as long as the view does. So at most one copy of an
adoption is applied, and the rows from before it can be read.
"""

from __future__ import annotations

import dataclasses
import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from airflow_mv.core.catalog import STORED_LAYOUTS, LoadedStorage, LoadedView, MaterializedViewCatalog, TableChange
from airflow_mv.core.catalog.loaded import Holder
from airflow_mv.core.catalog.locations import check_places
from airflow_mv.core.catalog.tables import definition_properties, view_in_table
from airflow_mv.core.define.create import Makers, WithoutSpark, query_columns
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.publish.new_storage import removed_template
from airflow_mv.core.publish.protocol import Change, Effects, Verdict, commit
from airflow_mv.core.publish.view_change import SUMMARY
from airflow_mv.core.script import Stager
from airflow_mv.core.spec.choices import TIME_TRAVEL_PROPERTY
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import (
    ADOPTED_PROPERTY,
    ADOPTED_TAG,
    LOG_PROPERTY,
    PROPERTY,
    STORAGE_OF_PROPERTY,
    is_own_ref,
)
from airflow_mv.core.spec.properties import history_limits
from airflow_mv.core.spec.table_metadata import TableMetadata, same_columns
from airflow_mv.core.spec.view import ViewMetadata, new_view, with_view_properties
from airflow_mv.core.sql.types import columns_of, unknown_type
from airflow_mv.errors import AlreadyExistsError, CommitConflictError, ConfigurationError, UnsupportedError

log = logging.getLogger(__name__)

_MAX_NAMED = 5
_MAIN = "main"


def adopt(
    catalog: MaterializedViewCatalog,
    view: str | Identifier,
    definition: Definition,
    *,
    stager: Stager,
    effects: Effects | None = None,
    without_spark: WithoutSpark | None = None,
) -> LoadedView:
    """Make the existing table of a name a materialized view of a query.

    One commit adds the definition. The table keeps its rows, its properties, its partitioning and its history. The view
    counts as never refreshed: its first refresh is a full one, which replaces the rows.

    Args:
        stager: Runs the script that finds the query's columns.
        effects: Clock, sleep and jitter.
        without_spark: As for :func:`airflow_mv.core.define.create.create`.

    Raises:
        AlreadyExistsError: The name is a view's.
        NotFoundError: There is no such table.
        UnsupportedError: The table does not fit. The message names everything that differs.
        InvalidQueryError: Names the place in the SQL.
    """
    name, effects = catalog.identify(view), effects or Effects()
    layout, sql = _layout_for(catalog, name, definition), _sql(name, definition)
    history_limits({**definition.properties, TIME_TRAVEL_PROPERTY: "true"}, view=str(name))
    if catalog.exists(name):
        raise AlreadyExistsError(f"{name} is a view already: replace its definition with --replace, without --adopt")
    what = f"table {name} to be adopted"
    location, table = catalog.load_table(name, what=what)
    check_places(table, catalog.folders.allowed(location, table.location), what=what)
    _require_adoptable(name, table, layout)
    definition = dataclasses.replace(definition, layout=layout.layout)
    definition.require_accepted(catalog, name, sql)
    makers, folder = Makers(stager, without_spark, effects), catalog.folders.new(name)
    template = query_columns(catalog, name, definition, sql, definition.columns, folder, makers, name)
    with removed_template(catalog, template):
        _require_columns(name, template.fields, table)
        metadata = new_view(
            view_uuid=str(uuid.uuid4()),
            location=table.location,
            schema={"type": "struct", "fields": template.fields},
            sql=definition.texts(sql, name),
            default_catalog=name.catalog,
            default_namespace=name.namespace,
            properties=definition.view_properties(template),
            summary=SUMMARY,
            now_ms=max(effects.now_ms(), table.last_updated_ms),
        )
        return AdoptTable(catalog, name, metadata, table, effects).publish()


def _layout_for(catalog: MaterializedViewCatalog, view: Identifier, definition: Definition) -> type[LoadedStorage]:
    """Return the layout in which a view is a table."""
    layout = STORED_LAYOUTS["table"]
    if definition.layout not in (None, layout.layout):
        raise ConfigurationError(f"view {view}: an adopted table has the layout {layout.layout!r}: leave out --layout")
    if definition.partition_by:
        raise ConfigurationError(f"view {view}: an adopted table keeps its partitioning: leave out --partition-by")
    if definition.storage_name is not None:
        raise ConfigurationError(f"view {view}: an adopted table keeps its name: leave out --storage-name")
    if layout.layout not in catalog.layouts:
        raise UnsupportedError(
            f"catalog {catalog.name!r} does not support the layout {layout.layout!r} of adopted tables"
        )
    return layout


def _sql(view: Identifier, definition: Definition) -> str:
    if definition.sql is None:
        raise ConfigurationError(f"view {view}: an adopted table needs the query whose rows it will hold: give --sql")
    return definition.sql.strip().rstrip(";")


def _require_adoptable(name: Identifier, table: TableMetadata, layout: type[LoadedStorage]) -> None:
    """Check the table itself.

    Raises:
        UnsupportedError: It cannot become a view.
    """
    owner = table.properties.get(STORAGE_OF_PROPERTY)
    own = sorted(ref for ref in table.refs if is_own_ref(ref))
    spark = f"ALTER TABLE {name.sql()}"
    why = None
    if owner is not None:
        why = (
            f"it is the storage table of the view {owner} (property {STORAGE_OF_PROPERTY}). If that view no longer "
            f"exists: {spark} UNSET TBLPROPERTIES ('{STORAGE_OF_PROPERTY}')"
        )
    elif table.format_version < 2:
        why = f"its format version is {table.format_version}: {spark} SET TBLPROPERTIES ('format-version' = '2')"
    elif (unwritable := layout.unwritable(table.format_version)) is not None:
        why = f"{unwritable}: create a view of another name"
    elif table.head is None:
        why = "it was never written: drop it, and create the view with --layout table"
    elif own:
        why = f"it has branches or tags of an earlier view: {', '.join(own[:_MAX_NAMED])}. Drop them first"
    elif (kind := unknown_type(table)) is not None:
        why = f"it has a column of the type {kind}, with which pyiceberg cannot read it"
    if why is not None:
        raise UnsupportedError(f"table {name} cannot be adopted: {why}")


def _require_columns(name: Identifier, fields: Sequence[Mapping[str, Any]], table: TableMetadata) -> None:
    """Check that a table has the columns of a query.

    Raises:
        UnsupportedError: Names each difference.
    """
    required = [path for field in table.current_schema.get("fields", ()) for path in _required(field)]
    found = [] if same_columns(fields, table) else list(_differences(fields, table))
    found += [f"{path} is NOT NULL in the table, and a view's columns are nullable" for path in required]
    if found:
        raise UnsupportedError(
            f"table {name} cannot be adopted: its columns are not those of the query: {'; '.join(found)}. Change the "
            "query (names, CAST, order), or the table with ALTER TABLE"
        )


def _differences(fields: Sequence[Mapping[str, Any]], table: TableMetadata) -> Iterator[str]:
    wanted, has = dict(columns_of({"fields": fields})), dict(columns_of(table.current_schema))
    yield from (f"{name} ({wanted[name]}) is not in the table" for name in wanted if name not in has)
    yield from (f"{name} ({has[name]}) is not in the query" for name in has if name not in wanted)
    both = [name for name in wanted if name in has]
    for name in both:
        if wanted[name] != has[name]:
            yield f"{name} is {has[name]} in the table and {wanted[name]} in the query"
    if both != [name for name in has if name in wanted]:
        yield f"the order is {', '.join(has)} in the table and {', '.join(wanted)} in the query"
    elif wanted == has:
        yield "two of the types differ in Iceberg, although Spark shows them alike"


def _required(field: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield the path of each field that is required."""
    path = f"{above}{field['name']}"
    if field.get("required"):
        yield path
    kind = field["type"]
    for inner in kind.get("fields", ()) if isinstance(kind, Mapping) else ():
        yield from _required(inner, f"{path}.")


class _AdoptedTable(NamedTuple):
    """A table, and the view that it is."""

    table: TableMetadata
    view: LoadedView | None


class AdoptTable(Change[_AdoptedTable]):
    """The adoption of a table. It is recognized by the view's uuid.

    Args:
        metadata: The view's first metadata.
        table: The table as it was checked.
        effects: Clock, sleep and jitter.
    """

    def __init__(
        self,
        catalog: MaterializedViewCatalog,
        view: Identifier,
        metadata: ViewMetadata,
        table: TableMetadata,
        effects: Effects,
    ) -> None:
        super().__init__(f"table {view}", "its adoption", effects)
        self._catalog, self._view, self._metadata, self._checked = catalog, view, metadata, table
        self._id = uuid.uuid4().hex
        self._base: int | None = None

    def load(self) -> _AdoptedTable:
        """Load the table."""
        location, table = self._catalog.load_table(self._view, what=self.target)
        return _AdoptedTable(table, view_in_table(self._view, location, table))

    def judge(self, state: _AdoptedTable) -> Verdict:
        """``SUPERSEDED`` if it is another view by now; ``REPLAN`` if it is another table, or its columns changed."""
        if state.view is not None:
            ours = state.view.metadata.view_uuid == self._metadata.view_uuid
            return Verdict.LANDED if ours else Verdict.SUPERSEDED
        now, then = state.table, self._checked
        same = (now.table_uuid, now.current_schema_id) == (then.table_uuid, then.current_schema_id)
        return Verdict.READY if same and now.head is not None else Verdict.REPLAN

    def send(self, state: _AdoptedTable) -> bool:
        """Commit the definition and its tag, if ``main`` has not moved since the table was loaded."""
        table, head = state.table, state.table.head
        self._base = head
        if head is None:
            return False
        earlier = {ADOPTED_PROPERTY: str(table.last_sequence_number)}
        metadata = with_view_properties(self._metadata, earlier)
        holder = Holder(table, self._id)
        change = TableChange(
            requires={_MAIN: head, ADOPTED_TAG: None, holder.tag: None},
            tags={ADOPTED_TAG: head, holder.tag: head},
            properties={
                STORAGE_OF_PROPERTY: self._view.within_catalog,
                **definition_properties(self._view, table, metadata, self._id),
            },
            unsets=tuple(name for name in (PROPERTY, LOG_PROPERTY) if name in table.properties),
        )
        return self._catalog.tables.commit(self._view, table.table_uuid or "", change) is not None

    def may_land(self, state: _AdoptedTable) -> bool:
        """Whether it is not a view, and ``main`` has not moved since the adoption was sent."""
        return state.view is None and state.table.head == self._base

    def publish(self) -> LoadedView:
        """Run the protocol.

        Raises:
            AlreadyExistsError: The table has become another view.
            CommitConflictError, CommitStateUnknownError: See :func:`airflow_mv.core.publish.protocol.commit`.
        """
        verdict = commit(self).verdict
        if verdict == Verdict.SUPERSEDED:
            raise AlreadyExistsError(
                f"{self._view} was replaced by another view meanwhile; its definition was not changed"
            )
        if verdict == Verdict.REPLAN:
            raise CommitConflictError(f"table {self._view} was replaced, or got other columns, meanwhile. Run it again")
        return self._catalog.load(self._view)
