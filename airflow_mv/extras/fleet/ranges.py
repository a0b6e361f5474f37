# SPDX-License-Identifier: Apache-2.0
"""Which values of a column the data files of base tables have, by their statistics and partitions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.types import (
    DateType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    TimestampType,
    TimestamptzType,
)

from airflow_mv.common.file_statistics import (
    added_data_files,
    file_tests,
    may_pass,
    sound_statistics,
)
from airflow_mv.common.manifests import read_by_pyiceberg
from airflow_mv.core.catalog import manifest_changes
from airflow_mv.core.catalog.avro import read_entries, read_manifests
from airflow_mv.core.catalog.files import MetadataFiles
from airflow_mv.core.ivm import Comparison

_COUNTED = (DateType, TimestampType, TimestamptzType, IntegerType, LongType)
_DAY_US = 86_400_000_000


def ranges_of(
    files: MetadataFiles, location: str, snapshot: int, column: str, filters: Sequence[Sequence[Comparison]]
) -> list[tuple[int, int]] | None:
    """Return the bounds of a whole number, date or time in each data file of a snapshot: days or µs since the epoch.

    Args:
        location: A metadata file of the table that knows the snapshot.
        filters: Filters; files without a row that passes one of them are left out, and files without a value.

    Returns:
        ``None`` if a file has no bounds. If there are too many manifests to read, the bounds are those of the
        partitions in each manifest, and ``None`` if the table has no partitions by the column.

    Raises:
        InvalidMetadataError: The metadata file, a manifest list or a manifest cannot be read.
        MetadataFileNotFoundError: One of them does not exist.
    """
    with read_by_pyiceberg(files, location) as table:
        field, found = table.schema().find_field(column), table.snapshot_by_id(snapshot)
        if found is None or not isinstance(field.field_type, _COUNTED):
            return None
        listed = read_manifests(table.io.new_input(found.manifest_list))[1]
        manifests = [item for item in listed if item.content == ManifestContent.DATA]
        if len(manifests) > manifest_changes.MAX_MANIFESTS:
            return _ranges_of_partitions(table, manifests, field)
        tests = file_tests(table.schema(), filters) if all(filters) else None
        ranges = []
        for entry in (entry for manifest in manifests for entry in read_entries(manifest, table.io)):
            file = sound_statistics(entry.data_file, [field])
            nulls = file.null_value_counts.get(field.field_id)
            if file.record_count == 0 or nulls == file.record_count or not may_pass(entry.data_file, tests):
                continue
            ends = [bounds.get(field.field_id) for bounds in (file.lower_bounds, file.upper_bounds)]
            if ends[0] is None or ends[1] is None:
                return None
            low, high = (int(from_bytes(field.field_type, end)) for end in ends if end is not None)
            ranges.append((low, high))
        return ranges


def _ranges_of_partitions(
    table: StaticTable, manifests: Sequence[ManifestFile], field: NestedField
) -> list[tuple[int, int]] | None:
    """Return the bounds of a column by the partitions in each manifest; ``None`` if unknown."""
    specs, ranges = table.specs(), []
    for manifest in manifests:
        fields = specs[manifest.partition_spec_id].fields
        known = zip(fields, manifest.partitions or (), strict=False)
        found = next(((part, item) for part, item in known if part.source_id == field.field_id), None)
        if found is None or found[1].lower_bound is None or found[1].upper_bound is None:
            return None
        transform, bounds = found[0].transform, (found[1].lower_bound, found[1].upper_bound)
        kind = transform.result_type(field.field_type)
        if not isinstance(kind, PrimitiveType):
            return None
        low, high = (int(from_bytes(kind, bound)) for bound in bounds)
        name, is_date = str(transform), isinstance(field.field_type, DateType)
        unit = _DAYS_OF.get(name) if is_date or name != "identity" else None
        if unit is None:
            return None
        first, after = unit(low), max(unit(high) + 1, unit(high + 1))
        ranges.append((first, after - 1) if is_date else (first * _DAY_US, after * _DAY_US - 1))
    return ranges


#: The day in which a partition begins, counted from 1970, by its transform and its number.
_DAYS_OF: Mapping[str, Callable[[int], int]] = {
    **dict.fromkeys(("identity", "day"), lambda number: number),
    "hour": lambda number: number // 24,
    "month": lambda number: (date(1970 + number // 12, number % 12 + 1, 1) - date(1970, 1, 1)).days,
    "year": lambda number: (date(1970 + number, 1, 1) - date(1970, 1, 1)).days,
}


@dataclass(frozen=True, slots=True)
class AddedFiles:
    """The data files that a commit added to a table, for many questions about their statistics.

    Args:
        files: The files, as manifests list them.
    """

    schema: Schema
    files: tuple[DataFile, ...]

    def may_match(self, filters: Sequence[Sequence[Comparison]]) -> bool:
        """Whether a row of them may match one of several filters; ``True`` if unknown."""
        tests = file_tests(self.schema, filters) if all(filters) else None
        return tests is None or any(may_pass(file, tests) for file in self.files)


def added_files(files: MetadataFiles, location: str, snapshots: Collection[int]) -> dict[int, AddedFiles | None]:
    """Read the data files that each of several commits added; ``None`` for a commit of too many manifests.

    Args:
        location: A metadata file of the table that knows the snapshots.
        snapshots: The appending snapshots.

    Raises:
        InvalidMetadataError: The metadata file, a manifest list or a manifest cannot be read.
        MetadataFileNotFoundError: One of them does not exist.
    """
    with read_by_pyiceberg(files, location) as table:
        found = {snapshot: added_data_files(table, {snapshot}) for snapshot in snapshots}
        return {
            snapshot: None if added is None else AddedFiles(table.schema(), tuple(added))
            for snapshot, added in found.items()
        }
