# SPDX-License-Identifier: Apache-2.0
"""Create, redefine and drop materialized views."""

from __future__ import annotations

import dataclasses
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, get_args

from airflow_mv.checks import CHECKS_PROPERTY
from airflow_mv.core.catalog import (
    STORED_LAYOUTS,
    LoadedStorage,
    LoadedView,
    MaterializedViewCatalog,
    storage_place,
    stored_layout,
)
from airflow_mv.core.catalog.locations import check_confined, join
from airflow_mv.core.define.definition import (
    Definition,
    NewDefinition,
    NewProperties,
    check_interval_column,
    check_properties,
)
from airflow_mv.core.publish.new_storage import (
    CreateStorage,
    NewStorage,
    created_storage,
    discard_unneeded,
    discarded_on_failure,
    drop_storage,
    removed_template,
)
from airflow_mv.core.publish.protocol import Effects
from airflow_mv.core.publish.view_change import SUMMARY, CreateView, ViewChange, time_of_change
from airflow_mv.core.refresh.checks import require_fitting
from airflow_mv.core.refresh.inputs import ResolvedQuery, columns_given_again, resolve_query
from airflow_mv.core.refresh.statements import (
    EmptyStorage,
    create_storage,
    partition_transforms,
    partitioning_text,
    storage_settings,
)
from airflow_mv.core.script import MAX_AHEAD_MS, METADATA_COLUMNS, Stager, job_error
from airflow_mv.core.spec.choices import TRANSPILE_PROPERTY, RefreshStrategy
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import (
    CREATION_ID_PROPERTY,
    PARTITIONING_PROPERTY,
    parse_settings,
    storage_table_field,
)
from airflow_mv.core.spec.properties import (
    FORMAT_VERSION,
    STORAGE_PREFIX,
    sort_order,
    storage_properties,
)
from airflow_mv.core.spec.reasons import Reason
from airflow_mv.core.spec.table_metadata import same_columns
from airflow_mv.core.spec.view import DIALECT, ViewMetadata, new_view, with_view_properties
from airflow_mv.core.sql.query import parse_query, spark_sql
from airflow_mv.core.sql.translation import known_dialects
from airflow_mv.errors import (
    AlreadyExistsError,
    ClockError,
    CommitConflictError,
    ConfigurationError,
    InvalidMetadataError,
    InvalidQueryError,
    MaterializedViewError,
    NotFoundError,
    NotMaterializedError,
    RefusedLocationError,
    UnsupportedError,
)
from airflow_mv.foundation.words import not_one_of

log = logging.getLogger(__name__)


#: Makes the empty table of a query without Spark; returns its metadata file, or why only Spark knows its columns.
WithoutSpark = Callable[[MaterializedViewCatalog, ResolvedQuery, EmptyStorage], str | Reason]
#: Called with a view as a change will leave it; raises to refuse the change.
BeforeChange = Callable[[LoadedView], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Makers:
    """What makes the empty tables of queries: Spark, and what is asked before it is started; and the clock."""

    stager: Stager
    without_spark: WithoutSpark | None
    effects: Effects


def create(
    catalog: MaterializedViewCatalog,
    view: str | Identifier,
    definition: Definition,
    *,
    stager: Stager,
    replace: bool = False,
    effects: Effects | None = None,
    without_spark: WithoutSpark | None = None,
    before: BeforeChange | None = None,
) -> LoadedView:
    """Create a materialized view with an empty storage table.

    The view's columns are what Spark will write. A plain view of this name is turned into a materialized one if no
    query is given. With ``replace`` an existing materialized view gets a new version, unless its query and the types of
    its columns are the same. Its rows stay those of the old version until the next refresh.

    Args:
        stager: Runs the script in which Spark analyses the query and makes the table.
        without_spark: Asked first; Spark is started only if it returns a reason.
        before: Called with a materialized view that is replaced, as it will be, before anything is changed.

    Raises:
        AlreadyExistsError: The name is taken.
        InvalidQueryError: Names the place in the SQL.
        BaseTableNotFoundError: The query reads a table that does not exist.
        UnsupportedError: The catalog does not support the layout, or drops branches or tags; or the view has another
            layout.
    """
    identifier = catalog.identify(view)
    existing = catalog.load(identifier) if catalog.exists(identifier) else None
    makers = Makers(stager, without_spark, effects or Effects())
    definition = possible(catalog, identifier, existing, definition)
    if existing is None:
        return _create_new(catalog, identifier, definition, makers)
    if existing.was_materialized:
        existing.materialized  # noqa: B018 (the error names what restores it)
    catalog.folders.of(existing)
    definition = dataclasses.replace(definition, storage_name=definition.storage_name or _kept_name(existing))
    definition = _translating(definition, existing)
    if definition.sql is None and existing.settings is None:
        if STORED_LAYOUTS[definition.layout_for(catalog, existing)].lacking(catalog.view_support, existing):
            raise UnsupportedError(
                f"{identifier} is a view, and in the layout {definition.layout!r} a materialized view is a table of "
                "its name: drop the view first and give its query with --sql, or choose another layout"
            )
        if definition.column_comments:
            raise UnsupportedError(
                f"{identifier} is a view and keeps its column comments: make it materialized first, then set them "
                "with --replace --column-comment"
            )
        if definition.given_dialects:
            raise UnsupportedError(
                f"{identifier} is a view and keeps its SQL representations: make it materialized first, then add "
                "dialects with --replace --dialect"
            )
        return _materialize(catalog, existing, definition, makers)
    if not replace:
        raise AlreadyExistsError(
            f"a view {identifier} exists already; replace it with --replace, or choose another name"
        )
    return _redefine(catalog, existing, definition, makers, before)


def possible(
    catalog: MaterializedViewCatalog, view: Identifier, existing: LoadedView | None, definition: Definition
) -> Definition:
    """Return a definition with its layout.

    Args:
        catalog: Where the view is, or will be.
        existing: The view, if it exists.

    Raises:
        ConfigurationError: A setting is wrong.
        UnsupportedError: The catalog does not support the layout, or the view has another one, or its storage table has
            another name.
    """
    if definition.refresh_strategy not in (None, *(strategies := get_args(RefreshStrategy))):
        raise not_one_of(definition.refresh_strategy, strategies, field="refresh_strategy")
    check_properties(definition.properties, view=str(view))
    _check_columns(view, definition.columns)
    layout = definition.layout_for(catalog, existing)
    definition = dataclasses.replace(definition, layout=layout)
    _check_storage_properties(view, definition.properties, STORED_LAYOUTS[layout])
    _check_storage_name(view, definition)
    if existing is not None:
        _require_storage_name(catalog, existing, definition.storage_name)
    return definition


def _check_columns(view: Identifier, columns: Sequence[str] | None) -> None:
    """Check the chosen names of a view's columns.

    Raises:
        ConfigurationError: One is empty, or two are equal. Spark ignores case.
    """
    names = [name.lower() for name in columns or ()]
    wrong = "no name is given" if columns is not None and not names else ""
    wrong = "a name is empty" if not all(names) else wrong
    wrong = "two names are equal" if len(set(names)) < len(names) else wrong
    if wrong:
        raise ConfigurationError(f"view {view}, names of its columns: {wrong}: {', '.join(map(repr, columns or ()))}")


def _check_storage_properties(view: Identifier, properties: Mapping[str, str], layout: type[LoadedStorage]) -> None:
    """Check the chosen properties of a storage table.

    Raises:
        ConfigurationError: One is not possible.
        UnsupportedError: The layout does not support it.
    """
    chosen = storage_properties(properties, view=str(view))
    if why := layout.unwritable(int(chosen.get(FORMAT_VERSION, "2"))):
        raise UnsupportedError(
            f"view {view}: a storage table of the layout {layout.layout!r} is not possible, because {why}: use the "
            f"layout 'pointed', or leave out {STORAGE_PREFIX}{FORMAT_VERSION}"
        )


def _translating(definition: Definition, existing: LoadedView) -> Definition:
    """Return the definition with the dialect that the SQL for Spark is translated from, if it may be translated.

    Raises:
        ConfigurationError: There is nothing to translate.
    """
    if not definition.transpile:
        return definition
    stored = sorted(existing.metadata.current_version.texts)
    if definition.sql is not None or DIALECT in stored or not stored:
        why = "a query is given" if definition.sql is not None else f"the view's SQL is for {stored or 'no engine'}"
        raise ConfigurationError(f"view {existing.identifier}: {why}, so there is nothing for --transpile to translate")
    known_dialects(stored[:1])
    return dataclasses.replace(definition, properties={**definition.properties, TRANSPILE_PROPERTY: stored[0]})


def _stored_sql(definition: Definition, existing: LoadedView) -> str:
    """Return the query of a view for Spark, translated if the new or the present properties of the view allow it."""
    return spark_sql(with_view_properties(existing.metadata, definition.properties), view=str(existing.identifier))


def _create_new(
    catalog: MaterializedViewCatalog, view: Identifier, definition: Definition, makers: Makers
) -> LoadedView:
    if definition.sql is None:
        raise NotMaterializedError(
            f"there is no view {view} to turn into a materialized one; give its query with --sql"
        )
    sql = definition.texts(definition.sql.strip().rstrip(";"), view)
    definition.require_accepted(catalog, view, definition.sql)
    location = catalog.folders.new(view)
    columns = query_columns(catalog, view, definition, definition.sql, definition.columns, location, makers, view)
    with _new_storage(catalog, columns, definition, location, makers.effects) as storage:
        properties = {**definition.view_properties(storage), CREATION_ID_PROPERTY: uuid.uuid4().hex}
        metadata = new_view(
            view_uuid=str(uuid.uuid4()),
            location=location,
            schema={"type": "struct", "fields": storage.fields},
            sql=sql,
            default_catalog=view.catalog,
            default_namespace=view.namespace,
            properties=properties,
            summary=SUMMARY,
            now_ms=time_of_change(catalog, location, makers.effects),
            storage_table=storage_table_field(properties, view),
        )
        created = CreateView(catalog, view, metadata, makers.effects, storage.template).publish()
    if _has_storage(catalog, created):
        return created
    # Another creation of the view has taken its storage table for one that was left over.
    try:
        return _materialize(catalog, created, definition, makers)
    except CommitConflictError:
        if _has_storage(catalog, now := catalog.load(view)):
            return now  # the other one has put it back
        raise


def _materialize(
    catalog: MaterializedViewCatalog, existing: LoadedView, definition: Definition, makers: Makers
) -> LoadedView:
    """Give a view a new storage table; its definition and columns stay."""
    sql, context = _stored_sql(definition, existing), existing.context
    definition.require_accepted(catalog, existing.identifier, sql, context=context)
    location, names = existing.metadata.location, existing.metadata.schema_.names
    columns = query_columns(catalog, existing.identifier, definition, sql, names, location, makers, context, existing)
    with _new_storage(catalog, columns, definition, location, makers.effects) as storage:
        if TRANSPILE_PROPERTY in definition.properties:
            _require_types(existing, storage)
        return NewProperties(catalog, existing, definition, makers.effects, storage).publish()


def _require_types(view: LoadedView, storage: NewStorage) -> None:
    """Refuse a translated query that Spark computes with other types: the view's readers expect those of the view.

    Raises:
        UnsupportedError: Names the types.
    """
    if not same_columns(view.metadata.schema_.fields, storage.loaded.table):
        expected, found = (_types(fields) for fields in (view.metadata.schema_.fields, storage.fields))
        raise UnsupportedError(
            f"view {view.identifier}: its columns are {expected}, and the translated query gives {found} in Spark: "
            "cast them in the view's query"
        )


def _types(fields: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{field['name']} {field['type']}" for field in fields)


def _redefine(
    catalog: MaterializedViewCatalog,
    existing: LoadedView,
    definition: Definition,
    makers: Makers,
    before_change: BeforeChange | None = None,
) -> LoadedView:
    existing.materialized  # noqa: B018 (a plain view is refused, before anything is made)
    view = existing.identifier
    before = _stored_sql(definition, existing).strip().rstrip(";").strip()
    sql = before if definition.sql is None else definition.sql.strip().rstrip(";").strip()
    # A query that stays keeps the namespace of its short names, which another engine may have chosen.
    context = existing.context if definition.sql is None else view
    same = sql == before and names_the_same(sql, existing.context, context)
    wanted = definition.texts(sql, view, existing)
    definition.require_accepted(catalog, view, sql, context=context)
    names, location = definition.columns, existing.metadata.location
    if names is None and same:
        names = existing.metadata.schema_.names
        if definition.sql is not None:
            names = columns_given_again(catalog, sql, names, context, view=str(view))
    if same and names is not None:
        stored = comments_of(existing.metadata.schema_.fields)
        kept = {name: stored[name] for name in names if stored.get(name)}
        definition = dataclasses.replace(definition, column_comments={**kept, **definition.column_comments})
    columns = query_columns(catalog, view, definition, sql, names, location, makers, context, existing)
    same = (
        same and _has_texts(existing, wanted) and same_columns(existing.metadata.schema_.fields, columns.loaded.table)
    )
    same = same and definition.column_comments.items() <= comments_of(existing.metadata.schema_.fields).items()
    if same:
        log.info("The query of %s is unchanged; its version is still %d", view, existing.metadata.current_version_id)

    def change(definition: Definition, storage: NewStorage | None) -> ViewChange:
        if same:
            return NewProperties(catalog, existing, definition, makers.effects, storage)
        return NewDefinition(
            catalog, existing, wanted, context, columns, definition, storage=storage, effects=makers.effects
        )

    if _keeps_storage(catalog, existing, columns):
        new = change(_with_partitioning(catalog, existing, definition, columns), None)
        (before_change or _accept)(as_changed(existing, new.wanted(existing)))
        return new.publish()
    drop_storage(catalog, existing)  # it can no longer be used, and has the new one's name
    with _new_storage(catalog, columns, definition, location, makers.effects) as storage:
        return change(definition, storage).publish()


def _accept(_view: LoadedView) -> None:
    """Refuse nothing."""


def as_changed(view: LoadedView, metadata: ViewMetadata | None) -> LoadedView:
    """Return a view as it will be with other metadata; ``None``: nothing changes."""
    if metadata is None:
        return view
    settings = parse_settings(metadata.properties, view=str(view.identifier), location=view.metadata_location)
    return dataclasses.replace(view, metadata=metadata, settings=settings)


def names_the_same(sql: str, one: Identifier, other: Identifier) -> bool:
    """Whether a query names the same tables and views in two contexts.

    Args:
        one: A view in whose catalog and namespace short names are resolved.
        other: Another one.
    """
    queries = (
        parse_query(sql, view=str(view), default_catalog=view.catalog, default_namespace=view.namespace)
        for view in (one, other)
    )
    first, second = ([item.identifier for item in query.references] for query in queries)
    return first == second


def same_meaning(one: tuple[str, Identifier], other: tuple[str, Identifier]) -> bool:
    """Whether two queries differ at most in white space, comments and the case of keywords, and read the same tables.

    Args:
        one: A query, and a view in whose catalog and namespace its short names are resolved.
        other: Another one.
    """
    if one == other:
        return True
    try:
        queries = [
            parse_query(sql, view=str(at), default_catalog=at.catalog, default_namespace=at.namespace)
            for sql, at in (one, other)
        ]
    except MaterializedViewError:
        return False
    texts = {query.tree.sql(dialect="spark", comments=False) for query in queries}
    reads = [[item.identifier for item in query.references] for query in queries]
    return len(texts) == 1 and reads[0] == reads[1]


def comments_of(fields: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the comment of each column, by column; an empty one if it has none.

    Args:
        fields: The fields of a schema.
    """
    return {str(item["name"]): str(item.get("doc") or "") for item in fields}


def _has_texts(view: LoadedView, wanted: Mapping[str, str]) -> bool:
    """Whether a view has the wanted texts in other dialects than Spark's."""
    stored = view.metadata.current_version.texts
    return all(stored.get(dialect) == text for dialect, text in wanted.items() if dialect != DIALECT)


def _keeps_storage(catalog: MaterializedViewCatalog, view: LoadedView, columns: NewStorage) -> bool:
    """Whether a view keeps its storage table, whose columns the next refresh changes. Then the new table is deleted."""
    try:
        keeps = _has_storage(catalog, view)
    except MaterializedViewError:
        discard_unneeded(catalog, columns)
        raise
    if keeps:
        discard_unneeded(catalog, columns)
    return keeps


def _has_storage(catalog: MaterializedViewCatalog, view: LoadedView) -> bool:
    """Whether a view's storage table exists and can be read."""
    try:
        catalog.load_storage(view)
    except RefusedLocationError:
        raise  # it may be intact
    except (NotFoundError, InvalidMetadataError) as error:
        log.warning("%s gets a new storage table: %s", view.identifier, error)
        return False
    return True


def _kept_name(view: LoadedView) -> str | None:
    """Return the name that a view's storage table has, or had."""
    try:
        place = storage_place(view) if view.settings is not None else None
    except InvalidMetadataError as error:
        log.warning("The earlier storage table of %s may still be in the catalog: %s", view.identifier, error)
        return None
    return place.name if isinstance(place, Identifier) else None


def _check_storage_name(view: Identifier, definition: Definition) -> None:
    """Check the chosen name of a storage table.

    Raises:
        ConfigurationError: The layout has no storage table beside the view.
        InvalidIdentifierError: It is not a name.
    """
    if definition.storage_name is None or definition.layout is None:
        return
    if STORED_LAYOUTS[definition.layout].storage_name(view, definition.storage_name) is None:
        raise ConfigurationError(
            f"view {view}: in the layout {definition.layout!r} there is no storage table beside the view, so it has no "
            "name to choose: leave out --storage-name, or choose another --layout"
        )


def _require_storage_name(catalog: MaterializedViewCatalog, view: LoadedView, name: str | None) -> None:
    """Check that a view's storage table has the chosen name, unless there is no storage table.

    Raises:
        UnsupportedError: It has another one.
    """
    if name is None or view.settings is None:
        return
    layout = stored_layout(view)
    wanted = layout.storage_name(view.identifier, name)
    if wanted is not None and wanted != storage_place(view) and _has_storage(catalog, view):
        raise UnsupportedError(
            f"view {view.identifier}: its storage table is {storage_place(view)} and keeps its name: leave out the "
            f"name {name!r}, or drop the view and create it again"
        )


def _with_partitioning(
    catalog: MaterializedViewCatalog, existing: LoadedView, definition: Definition, new: NewStorage
) -> Definition:
    """Return the definition with the property by which the view's storage table gets the requested partitioning.

    Args:
        existing: The view, which keeps its storage table.
        definition: Its new definition.
        new: A table with the requested partitioning.
    """
    if not definition.partition_by:
        return definition
    storage = catalog.load_storage(existing)
    wanted = partition_transforms(new.loaded.table, new.columns)
    text = partitioning_text(wanted, storage.table)
    return dataclasses.replace(definition, properties={**definition.properties, PARTITIONING_PROPERTY: text})


@contextmanager
def _new_storage(
    catalog: MaterializedViewCatalog,
    columns: NewStorage,
    definition: Definition,
    location: str,
    effects: Effects,
) -> Iterator[NewStorage]:
    """Make the storage table that a view will name, and remove it again if the view does not.

    Args:
        catalog: Where the view is, or will be.
        columns: A table with its columns: the storage table itself, or a template.
        location: The view's folder.
        effects: Clock, sleep and jitter.
    """
    with removed_template(catalog, columns):
        layout = STORED_LAYOUTS[definition.layout_for(catalog, None)]
        name, storage = layout.storage_name(columns.owner, definition.storage_name), columns
        if name is not None:
            folder = join(location, f"storage-{uuid.uuid4().hex[:12]}")
            storage = CreateStorage(catalog, layout, columns, name, folder, effects).publish()
        with discarded_on_failure(catalog, storage):
            yield storage


def query_columns(
    catalog: MaterializedViewCatalog,
    view: Identifier,
    definition: Definition,
    sql: str,
    columns: Sequence[str] | None,
    location: str,
    makers: Makers,
    context: Identifier,
    existing: LoadedView | None = None,
) -> NewStorage:
    """Make an empty table with a query's columns: the new storage table, or a template for it.

    It is below the view's location, and no view names it yet. The properties of an existing view that stay must also
    fit the columns.
    """
    token = uuid.uuid4().hex
    properties = {**(existing.metadata.properties if existing else {}), **definition.given_properties}
    layout = STORED_LAYOUTS[definition.layout_for(catalog, None)]
    name = layout.template_name(view, token)
    folder = catalog.folders.below(location, f"storage-{token[:12]}")
    resolved = resolve_query(catalog, sql, columns, context, view=str(view))
    settings = storage_settings(name, owner=view.within_catalog)
    new = EmptyStorage(name, folder, columns, definition.partition_by, definition.column_comments, settings)
    made = makers.without_spark(catalog, resolved, new) if makers.without_spark else None
    if isinstance(made, Reason):
        log.info("Starting Spark to find the columns of %s: %s", view, made.message)
    file = made if isinstance(made, str) else _made_by_spark(view, resolved, new, token, makers.stager)
    what = f"view {view}, storage table"
    storage = NewStorage(created_storage(layout, catalog, name, file, what=what), view, is_template=name is not None)
    try:
        _require_clock(catalog, storage, "this host" if isinstance(made, str) else "Spark's driver")
        if name is not None:
            catalog.tables.require_refs(name)
        catalog.folders.flush_new(storage.loaded.location)
        names = columns or storage.columns
        _require_readable(view, names)
        if CHECKS_PROPERTY in properties:
            require_fitting(properties, view=str(view), columns=names)
        renamed = [{**field, "name": name} for field, name in zip(storage.fields, names, strict=True)]
        check_interval_column(renamed, properties, view=str(view))
        _require_columns(view, definition.column_comments, storage.columns)
        sort_order(properties, names, view=str(view))
    except MaterializedViewError:
        discard_unneeded(catalog, storage)
        raise
    return storage


def _made_by_spark(view: Identifier, resolved: ResolvedQuery, new: EmptyStorage, token: str, stager: Stager) -> str:
    """Let Spark analyse the query and create the table; return its metadata file."""
    script = create_storage(view=view, pinned=resolved.pinned, token=token, new=new)
    outcome = stager(script)
    if outcome.error is not None or outcome.metadata_location is None:
        text = f"view {view}: {outcome.error or 'the job ended without a storage table'}"
        raise InvalidQueryError(text) if outcome.query_error else job_error(text, new.location or "")
    if new.location is not None:
        # The job's location is untrusted: it is read, and deleted if the view is refused.
        check_confined(outcome.metadata_location, (new.location,), what=f"view {view}, file of its new storage table")
    return outcome.metadata_location


def _require_readable(view: Identifier, columns: Sequence[str]) -> None:
    """Check that Iceberg can read a table with these columns.

    Raises:
        InvalidQueryError: One has the name of a metadata column.
    """
    if reserved := [name for name in columns if name.lower() in METADATA_COLUMNS]:
        raise InvalidQueryError(
            f"view {view}: Iceberg cannot read a table with a column {reserved[0]!r}, the name of a metadata column: "
            "give it another name with AS"
        )


def _require_columns(view: Identifier, comments: Mapping[str, str], columns: Sequence[str]) -> None:
    """Check that each comment is that of a column.

    Raises:
        ConfigurationError: There is no such column.
    """
    if unknown := [name for name in comments if name not in columns]:
        raise ConfigurationError(
            f"view {view}, comments of its columns: there is no column {unknown[0]!r}; there are: {', '.join(columns)}"
        )


def _require_clock(catalog: MaterializedViewCatalog, storage: NewStorage, writer: str) -> None:
    """Refuse a storage table with a time ahead of the store's clock: the writer's time would become the view's.

    Args:
        catalog: Where the view will be.
        writer: Whose time it has, for the message.

    Raises:
        ClockError: The time is ahead.
    """
    ahead_ms = catalog.folders.ahead_ms(storage.loaded.location, storage.loaded.table.last_updated_ms)
    if ahead_ms > MAX_AHEAD_MS:
        raise ClockError(
            f"view {storage.owner}: the clock of {writer} is {ahead_ms / 1000:.0f} s ahead of the store's clock. "
            "Nothing was created. Set it right, then try again"
        )
