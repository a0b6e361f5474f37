# SPDX-License-Identifier: Apache-2.0
"""What manifests tell without a read of data files.

That no row matches a filter, that two snapshots have the same files, and how many rows were only copied into new files.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Protocol

from pyiceberg.expressions import (
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
)
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntryStatus
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.types import (
    DateType,
    DecimalType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from airflow_mv.catalog.avro import read_entries, read_manifests
from airflow_mv.catalog.catalog import MaterializedViewCatalog
from airflow_mv.catalog.files import MetadataFiles
from airflow_mv.catalog.pyiceberg_compat import may_match
from airflow_mv.catalog.stores import parsed
from airflow_mv.catalog.untrusted_input import static_table
from airflow_mv.errors import MaterializedViewError
from airflow_mv.spec.identifiers import DELTA_BY_PATH, Identifier
from airflow_mv.spec.table import Snapshot
from airflow_mv.spec.times import parse_date, parse_timestamp

log = logging.getLogger(__name__)

_EXPRESSIONS: Mapping[str, Callable[..., BooleanExpression]] = {
    "=": EqualTo,
    "<": LessThan,
    "<=": LessThanOrEqual,
    ">": GreaterThan,
    ">=": GreaterThanOrEqual,
}
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 (as the format counts)
#: With more manifests than this they are not read: a Spark job is cheaper.
_MOST_MANIFESTS = 50
#: With more data files than this the statistics of a whole table are not read.
_MOST_FILES = 1_000
#: The reserved field id of ``_last_updated_sequence_number``. A commit writes null for rows that it adds or changes;
#: copied rows keep their values. Source: Iceberg ``format/spec.md``, "Row Lineage".
_ROW_VERSION = 2147483539
#: Digests of manifest lists that this process has read, by location: they never change.
_digests: dict[str, bytes] = {}
_MOST_DIGESTS = 10_000
_lock = threading.Lock()


class ColumnBound(Protocol):
    """A comparison of a column with a literal."""

    @property
    def column(self) -> str:
        """The column."""

    @property
    def operator(self) -> str:
        """``=``, ``<``, ``<=``, ``>`` or ``>=``."""

    @property
    def value(self) -> str:
        """The literal's text."""

    @property
    def kind(self) -> str:
        """``number``, ``text``, ``date`` or ``timestamp`` (without a zone, in UTC)."""


@dataclass(frozen=True, slots=True)
class FileStatistics:
    """The statistics of base tables' files, read on demand. Those of Delta tables are not read.

    Args:
        catalog: The view's catalog.
    """

    catalog: MaterializedViewCatalog

    def added_rows_may_match(
        self,
        table: Identifier,
        metadata_location: str,
        snapshots: Collection[int],
        filters: Sequence[Sequence[ColumnBound]],
    ) -> bool:
        """Whether a row that was appended to a table may match one of several filters; see the function.

        Args:
            table: The table.
            metadata_location: A metadata file of the table that knows the snapshots.
            snapshots: The appending snapshots.
            filters: Filters; a row that passes one of them matters.
        """
        if table.kind is DELTA_BY_PATH:
            return True
        files = self.catalog.home_of(table).files
        return added_rows_may_match(files, metadata_location, snapshots, filters)

    def fields_without_nulls(
        self, table: Identifier, metadata_location: str, snapshots: Collection[int], fields: Collection[int]
    ) -> frozenset[int]:
        """Return those of some fields that have no NULL in any data file of some snapshots; see the function.

        Args:
            table: The table.
            metadata_location: A metadata file of the table that knows the snapshots.
            snapshots: The snapshots.
            fields: Ids of top-level columns.
        """
        if table.kind is DELTA_BY_PATH:
            return frozenset()
        return fields_without_nulls(self.catalog.home_of(table).files, metadata_location, snapshots, fields)

    def rows_copied(self, table: Identifier, metadata_location: str, snapshots: Collection[int]) -> int | None:
        """Return how many rows some commits copied unchanged into new data files; see the function.

        Only an estimate needs it, so it is not known if a manifest cannot be read.

        Args:
            table: The table, whose rows have ids.
            metadata_location: A metadata file of the table that knows the snapshots.
            snapshots: The commits.
        """
        try:
            return rows_copied(self.catalog.home_of(table).files, metadata_location, snapshots)
        except MaterializedViewError as error:
            log.warning("How many rows of %s have changed is not known: %s", table, error)
            return None

    def added_files(
        self, table: Identifier, metadata_location: str, snapshots: Collection[int]
    ) -> dict[int, AddedFiles | None]:
        """Read the data files that each of several commits added; ``None`` for a commit of too many manifests.

        Args:
            table: The table.
            metadata_location: A metadata file of the table that knows the snapshots.
            snapshots: The appending snapshots.

        Raises:
            InvalidMetadataError: The metadata file, a manifest list or a manifest cannot be read.
            MetadataFileNotFoundError: One of them does not exist.
        """
        if table.kind is DELTA_BY_PATH:
            return dict.fromkeys(snapshots)
        what = "table metadata file"
        with parsed(metadata_location, what):
            read = static_table(self.catalog.home_of(table).files, metadata_location, what=what)
            found = {snapshot: _added(read, {snapshot}) for snapshot in snapshots}
            return {
                snapshot: None if files is None else AddedFiles(read.schema(), tuple(files))
                for snapshot, files in found.items()
            }


def added_rows_may_match(
    files: MetadataFiles,
    location: str,
    snapshots: Collection[int],
    filters: Sequence[Sequence[ColumnBound]],
) -> bool:
    """Whether an appended row may match one of several filters; ``True`` if this is not known.

    Args:
        files: The table's store.
        location: A metadata file of the table that knows the snapshots.
        snapshots: The appending snapshots.
        filters: Filters; a row that passes one of them matters.

    Raises:
        InvalidMetadataError: The metadata file, a manifest list or a manifest cannot be read.
        MetadataFileNotFoundError: One of them does not exist.
    """
    if not all(filters):
        return True
    what = "table metadata file"
    with parsed(location, what):
        table = static_table(files, location, what=what)
        tests = _tests(table.schema(), filters)
        added = None if tests is None else _added(table, snapshots)
        return added is None or tests is None or any(test(file) for file in added for test in tests)


def fields_without_nulls(
    files: MetadataFiles, location: str, snapshots: Collection[int], fields: Collection[int]
) -> frozenset[int]:
    """Return those of some fields that have no NULL in any data file of some snapshots, by the files' statistics.

    A field without a statistic in some file is left out, and so are all fields if there are too many files to read.

    Args:
        files: The table's store.
        location: A metadata file of the table that knows the snapshots.
        snapshots: The snapshots.
        fields: Ids of top-level columns.

    Raises:
        InvalidMetadataError: The metadata file, a manifest list or a manifest cannot be read.
        MetadataFileNotFoundError: One of them does not exist.
    """
    what = "table metadata file"
    with parsed(location, what):
        table = static_table(files, location, what=what)
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
        if len(manifests) > _MOST_MANIFESTS or None in counts or sum(map(int, filter(None, counts))) > _MOST_FILES:
            return frozenset()
        found = frozenset(fields)
        for manifest in manifests.values():
            for entry in read_entries(manifest, table.io):
                nulls = entry.data_file.null_value_counts or {}
                found = frozenset(field for field in found if nulls.get(field) == 0)
        return found


def rows_copied(files: MetadataFiles, location: str, snapshots: Collection[int]) -> int | None:
    """Return how many rows some commits copied unchanged into new data files, by the files' statistics.

    Files without a statistic of the rows' versions count as files without copies.

    Args:
        files: The table's store.
        location: A metadata file of the table that knows the snapshots.
        snapshots: The commits.

    Returns:
        ``None`` if there are too many manifests to read.

    Raises:
        InvalidMetadataError: The metadata file, a manifest list or a manifest cannot be read.
        MetadataFileNotFoundError: One of them does not exist.
    """
    what = "table metadata file"
    with parsed(location, what):
        added = _added(static_table(files, location, what=what), snapshots)
        if added is None:
            return None
        counts = ((file.record_count, (file.null_value_counts or {}).get(_ROW_VERSION)) for file in added)
        return sum(max(rows - changed, 0) for rows, changed in counts if changed is not None)


@dataclass(frozen=True, slots=True)
class AddedFiles:
    """The data files that a commit added to a table, for many questions about their statistics.

    Args:
        schema: The table's columns.
        files: The files, as manifests list them.
    """

    schema: Schema
    files: tuple[DataFile, ...]

    def may_match(self, filters: Sequence[Sequence[ColumnBound]]) -> bool:
        """Whether a row of them may match one of several filters; ``True`` if this is not known."""
        tests = _tests(self.schema, filters) if all(filters) else None
        return tests is None or any(test(file) for file in self.files for test in tests)


def _added(table: StaticTable, snapshots: Collection[int]) -> list[DataFile] | None:
    """Return the data files that commits added; ``None`` if they have too many manifests."""
    manifests = [
        manifest
        for snapshot in table.snapshots()
        if snapshot.snapshot_id in snapshots and snapshot.manifest_list
        for manifest in read_manifests(table.io.new_input(snapshot.manifest_list))[1]
        if manifest.content == ManifestContent.DATA and manifest.added_snapshot_id == snapshot.snapshot_id
    ]
    if len(manifests) > _MOST_MANIFESTS:
        return None
    entries = (entry for manifest in manifests for entry in read_entries(manifest, table.io))
    return [entry.data_file for entry in entries if entry.status == ManifestEntryStatus.ADDED]


def _tests(schema: Schema, filters: Sequence[Sequence[ColumnBound]]) -> list[Callable[[DataFile], bool]] | None:
    """Return one test of a file for each filter; ``None`` if a filter cannot be tested."""
    expressions = [_expression(comparisons, schema) for comparisons in filters]
    tests = [may_match(schema, item) for item in expressions if item is not None]
    return tests if len(tests) == len(expressions) else None


def _expression(comparisons: Sequence[ColumnBound], schema: Schema) -> BooleanExpression | None:
    """Return the part of a filter that can be tested against statistics; ``None`` if there is none."""
    parts = []
    for comparison in comparisons:
        value = _value(comparison, schema)
        if value is not None:
            parts.append(_EXPRESSIONS[comparison.operator](comparison.column, value))
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else And(*parts)


def _value(comparison: ColumnBound, schema: Schema) -> Any:
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


def _time(comparison: ColumnBound, kind: IcebergType) -> Any:
    if isinstance(kind, DateType) and comparison.kind == "date":
        return parse_date(comparison.value)
    if isinstance(kind, TimestampType | TimestamptzType) and comparison.kind == "timestamp":
        moment = parse_timestamp(comparison.value)
        return None if moment.tzinfo else (moment - _EPOCH) // timedelta(microseconds=1)
    return None


def have_same_files(files: MetadataFiles, one: Snapshot, other: Snapshot) -> bool:
    """Whether two snapshots have the same manifests, and so the same data and delete files.

    Args:
        files: The table's store.
        one: A snapshot.
        other: Another one of the same table.

    Returns:
        ``False`` also where a manifest list cannot be read.
    """
    if one.manifest_list is None or other.manifest_list is None:
        return False
    try:
        return _digest(files, one.manifest_list) == _digest(files, other.manifest_list)
    except MaterializedViewError as error:
        log.warning("Snapshot %d counts as a change of rows: %s", one.snapshot_id, error)
        return False


def _digest(files: MetadataFiles, location: str) -> bytes:
    known = _digests.get(location)
    if known is not None:
        return known
    _, listed = read_manifests(files.io(location, what="manifest list").new_input(location))
    entries = sorted(
        (item.manifest_path, int(item.content), item.partition_spec_id, item.sequence_number or 0) for item in listed
    )
    digest = hashlib.sha256(repr(entries).encode()).digest()
    with _lock:
        if len(_digests) >= _MOST_DIGESTS:
            _digests.clear()
        _digests[location] = digest
    return digest
