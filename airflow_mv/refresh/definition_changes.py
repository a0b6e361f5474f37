# SPDX-License-Identifier: Apache-2.0
"""The changes by which a view gets another definition: a new version, or new properties."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from airflow_mv.catalog import LoadedView, MaterializedViewCatalog
from airflow_mv.publish.new_storage import NewStorage
from airflow_mv.publish.protocol import Effects
from airflow_mv.publish.view_change import SUMMARY, ViewChange, time_of_change
from airflow_mv.refresh.definition import Definition
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.materialized_view import storage_table_field
from airflow_mv.spec.storage_settings import sort_order
from airflow_mv.spec.view import CHANGE_ID, ViewMetadata, replace_version, with_storage_table, with_view_properties


class NewDefinition(ViewChange):
    """A new version and its properties in one commit, recognized by an id in the version's summary.

    Args:
        catalog: Where the view is.
        existing: The view.
        sql: The query, by dialect.
        context: A name in the catalog and the namespace in which the query's short names are resolved.
        columns: A table with the query's columns.
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
        catalog: Where the view is.
        existing: The view.
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
