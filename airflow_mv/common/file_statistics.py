# SPDX-License-Identifier: Apache-2.0
"""Statistics of data files from manifests: no data file is read.

That no row matches a filter, that a column has no NULL, and how many rows were only copied into new files.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import (
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
    Or,
)
from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntryStatus,
)
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.types import (
    DateType,
    DecimalType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from airflow_mv.common.manifests import read_by_pyiceberg
from airflow_mv.core.catalog import manifest_changes
from airflow_mv.core.catalog.avro import read_entries, read_manifests
from airflow_mv.core.catalog.catalog import MaterializedViewCatalog
from airflow_mv.core.catalog.files import MetadataFiles
from airflow_mv.core.catalog.pyiceberg_compat import ColumnStatistics, may_match
from airflow_mv.core.ivm import Comparison
from airflow_mv.core.refresh.candidates import Statistics
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.times import parse_date, parse_timestamp
from airflow_mv.errors import InvalidMetadataError, MaterializedViewError, MetadataFileNotFoundError

log = logging.getLogger(__name__)

_EXPRESSIONS: Mapping[str, Callable[..., BooleanExpression]] = {
    "=": EqualTo,
    "<": LessThan,
    "<=": LessThanOrEqual,
    ">": GreaterThan,
    ">=": GreaterThanOrEqual,
}
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 (as the format counts)
#: With more data files than this the statistics of a whole table are not read.
_MAX_FILES = 1_000
#: The reserved field id of ``_last_updated_sequence_number``. A commit writes null for rows that it adds or changes;
#: copied rows keep their values. Source: Iceberg ``format/spec.md``, "Row Lineage".
_ROW_VERSION = 2147483539


@dataclass(frozen=True, slots=True)
class FileStatistics(Statistics):
    """The statistics of base tables' files, read on demand. Only those of Iceberg tables are read."""

    catalog: MaterializedViewCatalog

    def added_rows_may_match(
        self,
        table: Identifier,
        metadata_location: str,
        snapshots: Collection[int],
        filters: Sequence[Sequence[Comparison]],
    ) -> bool:
        """See the function."""
        if not table.kind.is_iceberg:
            return True
        files = self.catalog.home_of(table).files
        return added_rows_may_match(files, metadata_location, snapshots, filters)

    def fields_without_nulls(
        self, table: Identifier, metadata_location: str, snapshots: Collection[int], fields: Collection[int]
    ) -> frozenset[int]:
        """See the function. If a manifest cannot be read, none is proven."""
        if not table.kind.is_iceberg:
            return frozenset()
        try:
            return fields_without_nulls(self.catalog.home_of(table).files, metadata_location, snapshots, fields)
        except (InvalidMetadataError, MetadataFileNotFoundError) as error:
            log.warning(
                "Could not read the statistics of %s; assuming that any column may have a NULL: %s", table, error
            )
            return frozenset()

    def rows_copied(self, table: Identifier, metadata_location: str, snapshots: Collection[int]) -> int | None:
        """Return how many rows were copied, by the files' statistics.

        Files without a statistic of the rows' versions count as files without copies. Only an estimate needs it, so it
        is not known if there are too many manifests to read, or one cannot be read.
        """
        try:
            with read_by_pyiceberg(self.catalog.home_of(table).files, metadata_location) as read:
                added = added_data_files(read, snapshots)
                if added is None:
                    return None
                counts = ((file.record_count, (file.null_value_counts or {}).get(_ROW_VERSION)) for file in added)
                return sum(max(rows - changed, 0) for rows, changed in counts if changed is not None)
        except MaterializedViewError as error:
            log.warning("Could not count the changed rows of %s: %s", table, error)
            return None


def added_rows_may_match(
    files: MetadataFiles,
    location: str,
    snapshots: Collection[int],
    filters: Sequence[Sequence[Comparison]],
) -> bool:
    """Whether an appended row may match one of several filters; ``True`` if unknown.

    Args:
        location: A metadata file of the table that knows the snapshots.
        snapshots: The appending snapshots.
        filters: Filters; a row that passes one of them matters.

    Raises:
        InvalidMetadataError: The metadata file, a manifest list or a manifest cannot be read.
        MetadataFileNotFoundError: One of them does not exist.
    """
    if not all(filters):
        return True
    with read_by_pyiceberg(files, location) as table:
        tests = file_tests(table.schema(), filters)
        added = None if tests is None else added_data_files(table, snapshots)
        return added is None or any(may_pass(file, tests) for file in added)


def fields_without_nulls(
    files: MetadataFiles, location: str, snapshots: Collection[int], fields: Collection[int]
) -> frozenset[int]:
    """Return those of some fields that have no NULL in any data file of some snapshots, by the files' statistics.

    A field without a statistic in some file is left out, and so are all fields if there are too many files to read.

    Args:
        location: A metadata file of the table that knows the snapshots.
        fields: Ids of top-level columns.

    Raises:
        InvalidMetadataError: The metadata file, a manifest list or a manifest cannot be read.
        MetadataFileNotFoundError: One of them does not exist.
    """
    with read_by_pyiceberg(files, location) as table:
        lists = [item.manifest_list for item in table.snapshots() if item.snapshot_id in snapshots]
        if len(lists) < len(snapshots) or None in lists:
            return frozenset()
        manifests = {
            manifest.manifest_path: manifest
            for place in lists
            for manifest in read_manifests(table.io.new_input(str(place)))[1]
            if manifest.content == ManifestContent.DATA
        }
        counts = [count for item in manifests.values() for count in (item.added_files_count, item.existing_files_count)]
        if (
            len(manifests) > manifest_changes.MAX_MANIFESTS
            or None in counts
            or sum(map(int, filter(None, counts))) > _MAX_FILES
        ):
            return frozenset()
        found, columns = frozenset(fields), [item for item in table.schema().fields if item.field_id in fields]
        for manifest in manifests.values():
            for entry in read_entries(manifest, table.io):
                nulls = sound_statistics(entry.data_file, columns).null_value_counts
                found = frozenset(field for field in found if nulls.get(field) == 0)
        return found


def may_pass(file: DataFile, tests: Sequence[Callable[[DataFile], bool]] | None) -> bool:
    """Whether a file passes one of several tests; ``True`` if there are none."""
    return tests is None or any(test(file) for test in tests)


def added_data_files(table: StaticTable, snapshots: Collection[int]) -> list[DataFile] | None:
    """Return the data files that commits added; ``None`` if they have too many manifests."""
    manifests = [
        manifest
        for snapshot in table.snapshots()
        if snapshot.snapshot_id in snapshots and snapshot.manifest_list
        for manifest in read_manifests(table.io.new_input(snapshot.manifest_list))[1]
        if manifest.content == ManifestContent.DATA and manifest.added_snapshot_id == snapshot.snapshot_id
    ]
    if len(manifests) > manifest_changes.MAX_MANIFESTS:
        return None
    entries = (entry for manifest in manifests for entry in read_entries(manifest, table.io))
    return [entry.data_file for entry in entries if entry.status == ManifestEntryStatus.ADDED]


def file_tests(schema: Schema, filters: Sequence[Sequence[Comparison]]) -> list[Callable[[DataFile], bool]] | None:
    """Return one test of a file for each filter; ``None`` if a filter cannot be tested."""
    expressions = [_expression(comparisons, schema) for comparisons in filters]
    tests = [may_match(schema, item) for item in expressions if item is not None]
    if len(tests) < len(expressions):
        return None
    names = {comparison.column for comparisons in filters for comparison in comparisons}
    fields = [field for field in schema.fields if field.name in names]
    return [partial(_passes, test, fields) for test in tests]


def _passes(test: Callable[[ColumnStatistics], bool], fields: Sequence[NestedField], file: DataFile) -> bool:
    return test(sound_statistics(file, fields))


def sound_statistics(file: DataFile, fields: Sequence[NestedField]) -> ColumnStatistics:
    """Return the statistics of some top-level columns of a file that do not contradict each other.

    Those of a column are left out if they contradict each other, or a bound is not one of the column's type: the writer
    has made a mistake, or wrote the file before the type changed.
    """
    counts = file.value_counts or {}
    rows = -1 if file.record_count == 0 and any(counts.values()) else file.record_count
    found = ColumnStatistics(rows, {}, {}, {}, {}, {})
    for field in fields:
        number = field.field_id
        values, nulls = counts.get(number), (file.null_value_counts or {}).get(number)
        low, high = ((bounds or {}).get(number) for bounds in (file.lower_bounds, file.upper_bounds))
        if _contradicts(file.record_count, values, nulls) or not _are_bounds(field.field_type, low, high):
            continue
        if nulls is not None and nulls == values and (low is not None or high is not None):
            continue  # bounds of no value
        if values is not None and nulls is not None:
            found.value_counts[number], found.null_value_counts[number] = values, nulls
        for bounds, bound in ((found.lower_bounds, low), (found.upper_bounds, high)):
            if bound is not None:
                bounds[number] = bound
    return found


def _contradicts(rows: int, values: int | None, nulls: int | None) -> bool:
    """Whether the counts of a top-level column cannot be true: it has one value, or NULL, in each row."""
    if values is not None and values != rows:
        return True
    return nulls is not None and not 0 <= nulls <= rows


def _are_bounds(kind: IcebergType, low: bytes | None, high: bytes | None) -> bool:
    """Whether bounds can be read as values of a type, and are in order. A bound that is absent is in order."""
    if not isinstance(kind, PrimitiveType):
        return False
    try:
        ends = [from_bytes(kind, bound) for bound in (low, high) if bound is not None]
        return len(ends) < len("lh") or bool(ends[0] <= ends[1])
    except (ArithmeticError, TypeError, ValueError, struct.error):
        return False


def _expression(comparisons: Sequence[Comparison], schema: Schema) -> BooleanExpression | None:
    """Return the part of a filter that can be tested against statistics; ``None`` if there is none."""
    parts = []
    for comparison in comparisons:
        value = _value(comparison, schema)
        if value is not None:
            part = _EXPRESSIONS[comparison.operator](comparison.column, value)
            parts.append(_or_other_years(part, comparison.column, value) if comparison.only_calendar else part)
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else And(*parts)


def _or_other_years(part: BooleanExpression, column: str, value: date | int) -> BooleanExpression:
    """Return an expression that dates, or timestamps in µs, outside of the years 1 to 9999 also pass."""
    first: Any = date.min
    last: Any = date.max
    if not isinstance(value, date):
        first, last = ((datetime.combine(end, time()) - _EPOCH) // timedelta(microseconds=1) for end in (first, last))
    return Or(part, _EXPRESSIONS["<"](column, first), _EXPRESSIONS[">="](column, last))


def _value(comparison: Comparison, schema: Schema) -> Any:
    """Return a literal in the column's type; ``None`` if Spark would convert the column instead."""
    try:
        kind = schema.find_field(comparison.column).field_type
        if isinstance(kind, IntegerType | LongType) and comparison.kind == "number":
            return int(comparison.value)
        # With an exponent it is a DOUBLE, and Spark converts the column.
        if isinstance(kind, DecimalType) and comparison.kind == "number" and "e" not in comparison.value.lower():
            value = Decimal(comparison.value)
            scaled = value.quantize(Decimal(1).scaleb(-kind.scale))  # pyiceberg takes it in the column's scale only
            return scaled if scaled == value else None
        if isinstance(kind, StringType) and comparison.kind == "text":
            return comparison.value
        return _time(comparison, kind)
    except (ValueError, InvalidOperation):
        return None


def _time(comparison: Comparison, kind: IcebergType) -> Any:
    if isinstance(kind, DateType) and comparison.kind == "date":
        return parse_date(comparison.value)
    if isinstance(kind, TimestampType | TimestamptzType) and comparison.kind == "timestamp":
        moment = parse_timestamp(comparison.value)
        return None if moment.tzinfo else (moment - _EPOCH) // timedelta(microseconds=1)
    return None
