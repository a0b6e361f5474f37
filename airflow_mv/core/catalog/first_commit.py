# SPDX-License-Identifier: Apache-2.0
"""The first commit to the table of a new view behind a REST server.

Servers refuse ``stage-create``, ignore it, or support it. So a view's table is created by a plain request, with the
view's name and the id of its definition among the properties, and one commit adds the definition. The commit requires
the table's uuid, and that there is no ``main``, which it sets. So of all commits to one table at most one is applied,
whoever has sent them. A table that a killed process has left so is not dropped: a server's drop takes no condition, and
the process may only be slow. The next creation commits its own definition to it, and its own columns if they differ.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table

from airflow_mv.core.catalog.files import first_folder, flush
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import DEFINITION_ID_PROPERTY, DEFINITION_PROPERTY, STORAGE_OF_PROPERTY
from airflow_mv.core.spec.new_columns import NewColumns

#: The schema or partition spec that the same commit adds.
_LAST_ADDED = -1
_FIRST_FIELD = 1000


def is_unfinished(view: Identifier, properties: Mapping[str, str], refs: Collection[str]) -> bool:
    """Whether a table was created for a view of its name, and has neither a definition nor a snapshot yet.

    Args:
        view: The view.
        properties: The properties of the table of its name.
        refs: The table's branches and tags.
    """
    own = properties.get(STORAGE_OF_PROPERTY) == view.within_catalog and DEFINITION_ID_PROPERTY in properties
    return own and DEFINITION_PROPERTY not in properties and not refs


def first_content(table: Table, like: Table) -> tuple[int, NewColumns]:
    """Write an empty snapshot for a table without snapshots; return its id, and what the commit adds to the table.

    Args:
        table: The table.
        like: The table with the columns and the partitioning that it has, or gets.
    """
    change = table.transaction()  # it is not sent: the commit has requirements of its own
    with change.update_snapshot().fast_append():
        pass
    snapshot, metadata = change.table_metadata.snapshots[-1], table.metadata
    flush(snapshot.manifest_list, first_folder(table.location()))
    schemas: list[Schema] = []
    specs: list[PartitionSpec] = []
    if (table.schema().as_struct(), table.spec().fields) != (like.schema().as_struct(), like.spec().fields):
        ids = itertools.count(metadata.last_column_id + 1)  # no id of a column is given twice
        schemas = [assign_fresh_schema_ids(like.schema(), lambda: next(ids))]
        specs = [_spec(like, schemas[0], (metadata.last_partition_id or _FIRST_FIELD - 1) + 1)]
        snapshot = snapshot.model_copy(update={"schema_id": max(item.schema_id for item in metadata.schemas) + 1})
    bare = [item.spec_id for item in metadata.partition_specs if item.is_unpartitioned()]
    known = bare if specs and specs[0].is_unpartitioned() else []  # a server doesn't add it again
    return snapshot.snapshot_id, NewColumns(
        schemas=_documents(schemas),
        schema_id=_LAST_ADDED if schemas else metadata.current_schema_id,
        specs=() if known else _documents(specs),
        spec_id=known[0] if known else _LAST_ADDED if specs else metadata.default_spec_id,
        snapshots=_documents([snapshot]),
        required={
            "current-schema-id": metadata.current_schema_id,
            "last-column-id": metadata.last_column_id,
            "default-spec-id": metadata.default_spec_id,
        },
    )


def _spec(like: Table, schema: Schema, first: int) -> PartitionSpec:
    """Return the partition spec of a table for a schema with the same columns and other ids."""
    names = like.schema()
    return PartitionSpec(
        *(
            PartitionField(
                schema.find_field(names.find_field(item.source_id).name).field_id, number, item.transform, item.name
            )
            for number, item in enumerate(like.spec().fields, first)
        )
    )


def _documents(items: Sequence[BaseModel]) -> tuple[dict[str, Any], ...]:
    return tuple(item.model_dump(mode="json", by_alias=True, exclude_none=True) for item in items)
