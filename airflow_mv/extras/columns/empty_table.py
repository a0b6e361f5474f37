# SPDX-License-Identifier: Apache-2.0
"""Make the empty storage table of a query without Spark, where its columns are certain without it.

The table is as Spark's CREATE TABLE would make it.

Source: Iceberg's Spark type conversion, and the names that Iceberg's ``PartitionSpec.Builder`` gives partition fields.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyiceberg import partitioning
from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import Transform, parse_transform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.catalog.answers import answered
from airflow_mv.core.catalog.locations import join
from airflow_mv.core.catalog.tables import taken
from airflow_mv.core.ivm import BaseRelation
from airflow_mv.core.refresh.inputs import ResolvedQuery
from airflow_mv.core.refresh.statements import EmptyStorage
from airflow_mv.core.script import with_row_groups
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.properties import PartitionField, partition_field
from airflow_mv.core.spec.reasons import Code, Reason
from airflow_mv.core.spec.table_metadata import TableMetadata
from airflow_mv.core.sql.types import columns_of, required_columns
from airflow_mv.errors import NotFoundError
from airflow_mv.extras.columns.certain import certain_output

#: Iceberg's type of each of Spark's, but the decimals.
_TYPES: Mapping[str, IcebergType] = {
    "tinyint": IntegerType(),
    "smallint": IntegerType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
    "string": StringType(),
    "binary": BinaryType(),
    "date": DateType(),
    "timestamp": TimestamptzType(),
    "timestamp_ntz": TimestampType(),
}
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")
#: Iceberg writes this property into each new table. Without it files would have another compression.
_PERSISTED = {"write.parquet.compression-codec": "zstd"}
_FIRST_FIELD = 1000


@dataclass(frozen=True, slots=True)
class NewColumn:
    """A column of a table to be made.

    Args:
        type: Its Spark type: one without parts.
    """

    name: str
    type: str
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class EmptyTable:
    """An empty table to be made.

    Args:
        columns: Its columns, in order.
    """

    columns: Sequence[NewColumn]
    partitions: Sequence[PartitionField] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def schema(self) -> Schema:
        """Its columns; all of them may be NULL."""
        return Schema(
            *(
                NestedField(number, item.name, _iceberg_type(item.type), required=False, doc=item.comment or None)
                for number, item in enumerate(self.columns, 1)
            )
        )

    @property
    def spec(self) -> partitioning.PartitionSpec:
        """Its partitioning."""
        schema = self.schema
        return partitioning.PartitionSpec(
            *(
                partitioning.PartitionField(
                    schema.find_field(item.column).field_id, _FIRST_FIELD + number, _transform(item), _name(item)
                )
                for number, item in enumerate(self.partitions)
            )
        )

    @property
    def all_properties(self) -> dict[str, str]:
        """Its properties, with those that Iceberg adds."""
        return {**_PERSISTED, **self.properties}

    @property
    def is_possible(self) -> bool:
        """Whether Iceberg surely accepts the partitioning."""
        names = {item.name: item for item in self.columns}
        columns = [item.column for item in self.partitions]
        if len(set(columns)) < len(columns) or not names.keys() >= set(columns):
            return False
        return all(
            _transform(item).can_transform(_iceberg_type(names[item.column].type))
            and (not item.transform or _name(item) not in names)
            for item in self.partitions
        )

    def create(self, catalog: MaterializedViewCatalog, name: Identifier, location: str | None) -> str:
        """Create the table in a catalog, and return its metadata file.

        Args:
            location: Its folder; ``None``: the catalog chooses it.

        Raises:
            AlreadyExistsError: The name is taken.
            NotFoundError: The namespace does not exist.
            CatalogUnavailableError: No answer. The table may be created, even later.
        """
        with taken(f"a table or view {name} exists already"), answered(catalog.name, f"creating table {name}"):
            try:
                made = catalog.iceberg.create_table(
                    (*name.namespace, name.name),
                    self.schema,
                    location=location,
                    partition_spec=self.spec,
                    properties=self.all_properties,
                )
            except NoSuchNamespaceError:
                raise NotFoundError(f"there is no namespace {'.'.join(name.namespace)} for table {name}") from None
        return made.metadata_location

    def metadata_file(self, location: str) -> bytes:
        """Return the content of its first metadata file.

        Args:
            location: Its folder.
        """
        made = new_table_metadata(
            self.schema, self.spec, UNSORTED_SORT_ORDER, location, self.all_properties, uuid.uuid4()
        )
        return made.model_dump_json(exclude_none=True).encode()


def _iceberg_type(kind: str) -> IcebergType:
    found = _DECIMAL.fullmatch(kind)
    return DecimalType(int(found[1]), int(found[2])) if found else _TYPES[kind]


def _transform(item: PartitionField) -> Transform[Any, Any]:
    if item.width:
        return parse_transform(f"{item.transform}[{item.width}]")
    return parse_transform(item.transform.removesuffix("s") or "identity")


def _name(item: PartitionField) -> str:
    suffix = {"": "", "bucket": "_bucket", "truncate": "_trunc"}.get(item.transform, f"_{item.transform[:-1]}")
    return f"{item.column}{suffix}"


def make_without_spark(catalog: MaterializedViewCatalog, resolved: ResolvedQuery, new: EmptyStorage) -> str | Reason:
    """Make the empty table that Spark would create for a query, and return its metadata file.

    Args:
        catalog: Where the view is, or will be.
        resolved: The query.

    Returns:
        The metadata file; or why only Spark knows the columns. Then nothing was made.

    Raises:
        AlreadyExistsError: The name is taken.
        CatalogUnavailableError: The catalog or the store did not answer.
    """
    table = known_table(resolved, new)
    if isinstance(table, Reason):
        return table
    if new.name is not None:
        return table.create(catalog, new.name, new.location)
    if new.location is None:
        raise ValueError("a table in no catalog has a folder")
    file = join(new.location, f"metadata/00000-{uuid.uuid4()}.metadata.json")
    catalog.files.write(file, table.metadata_file(new.location))
    return file


def known_table(resolved: ResolvedQuery, new: EmptyStorage) -> EmptyTable | Reason:
    """Return the empty table that Spark would create for a query; or why only Spark knows it."""
    for identifier, observed in zip(resolved.dependencies.tables, resolved.tables, strict=True):
        table = resolved.metadata[identifier]
        if not identifier.kind.is_iceberg:
            return Reason(
                Code.UNSUPPORTED_OPERATOR,
                f"only Spark can resolve the column types of the {identifier.kind.data_source} table {identifier}",
            )
        if table.schema_at(observed.head).get("fields") != table.current_schema.get("fields"):
            return Reason(
                Code.SCHEMA_CHANGED, f"the current schema of {identifier} differs from that of its newest snapshot"
            )
    relations = [
        BaseRelation(name, f"t{number}", columns_of(schema), changed=True, not_null=required_columns(schema))
        for number, name in enumerate(resolved.dependencies.tables)
        for schema in [resolved.metadata[name].current_schema]
    ]
    found = certain_output(resolved.query, relations, resolved.dependencies.nested, new.columns)
    if isinstance(found, Reason):
        return found
    inherited = {name: _comments(table) for name, table in resolved.metadata.items()}
    columns = []
    for item, base in found:
        own = inherited[base].get(item.origin[1], "") if base is not None and item.origin is not None else ""
        columns.append(NewColumn(item.name, item.type, new.comments.get(item.name, own)))
    made = EmptyTable(
        columns, list(map(partition_field, new.partition_by)), with_row_groups(new.properties, len(columns))
    )
    if not made.is_possible:
        return Reason(Code.UNSUPPORTED_OPERATOR, "only Spark can validate this partitioning")
    return made


def _comments(table: TableMetadata) -> dict[str, str]:
    return {str(item["name"]): str(item.get("doc") or "") for item in table.current_schema.get("fields", ())}
