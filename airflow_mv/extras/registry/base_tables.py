# SPDX-License-Identifier: Apache-2.0
"""Partitions and files of a base table, from its metadata: a row for each.

The rows are those of Apache Drill's component ``tables``: general information, segments (here the table's partitions),
files and row groups. Manifests have all but the row groups, which are in the footers of Parquet files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import pyarrow as pa
from pyarrow import parquet
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.types import PrimitiveType

from airflow_mv.common.manifests import read_by_pyiceberg
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.catalog.avro import read_entries, read_manifests
from airflow_mv.core.catalog.files import parsed
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.errors import MaterializedViewError, NotFoundError, UnsupportedError
from airflow_mv.extras.registry.filters import both, equal, one_of
from airflow_mv.extras.registry.model import TableRow
from airflow_mv.extras.registry.registry import Registry
from airflow_mv.foundation.redaction import shortened

Detail = Literal["segments", "files", "row-groups"]
#: The segments of the table itself, and of a table without partitions.
GENERAL, DEFAULT = "GENERAL_INFO", "DEFAULT_SEGMENT"
#: The most characters of a bound.
MAX_BOUND = 64
#: The most files of a table whose files are registered.
MAX_FILES = 100_000
#: How many footers are read at once.
_READERS = 8
_CONTENTS = {
    DataFileContent.DATA: "data",
    DataFileContent.POSITION_DELETES: "position-deletes",
    DataFileContent.EQUALITY_DELETES: "equality-deletes",
}


@dataclass(frozen=True, slots=True)
class TableFile:
    """A live file of a table's current snapshot.

    Args:
        segment: Its partition, as in Iceberg's paths.
        snapshot_id: The snapshot that added it.
    """

    segment: str
    snapshot_id: int | None
    file: DataFile

    @property
    def is_data(self) -> bool:
        """Whether it has rows and no deletes."""
        return self.file.content == DataFileContent.DATA


@dataclass(frozen=True, slots=True)
class BaseTable:
    """A base table and the files of its current snapshot."""

    name: Identifier
    snapshot_id: int | None
    properties: Mapping[str, str]
    schema: Schema
    manifests: int
    files: tuple[TableFile, ...]
    general: TableRow

    @property
    def segments(self) -> dict[str, list[TableFile]]:
        """The files of each partition."""
        found: defaultdict[str, list[TableFile]] = defaultdict(list)
        for item in self.files:
            found[item.segment].append(item)
        return dict(sorted(found.items()))

    def rows(self, detail: Detail, segments: Collection[str] | None = None) -> Iterator[TableRow]:
        """Yield the table's row, and those of its segments and files.

        Args:
            detail: How much: ``segments``, ``files`` or ``row-groups``.
            segments: Only of these; ``None``: of all.
        """
        if segments is None or GENERAL in segments:
            yield self.general
        for name, files in self.segments.items():
            if segments is None or name in segments:
                yield self._totals(name, "segment", f"{self.name}/{name}", files)
                if detail != "segments":
                    yield from (self._file_row(item) for item in files)

    def _totals(self, segment: str, unit: str, row_id: str, files: Iterable[TableFile]) -> TableRow:
        data = [item.file for item in files if item.is_data]
        deletes = [item.file for item in files if not item.is_data]
        return self.general.model_copy(
            update={
                "segment": segment,
                "unit": unit,
                "row_id": row_id,
                "location": None,
                "format": None,
                **_counts(data, deletes),
            }
        )

    def _file_row(self, item: TableFile) -> TableRow:
        file = item.file
        data, deletes = ([file], []) if item.is_data else ([], [file])
        return self.general.model_copy(
            update={
                "segment": item.segment,
                "unit": "file",
                "row_id": file.file_path,
                "location": file.file_path,
                "format": str(file.file_format.value).lower(),
                "content": _CONTENTS.get(file.content),
                "snapshot_id": item.snapshot_id,
                "partition_spec_id": file.spec_id,
                "sort_order_id": file.sort_order_id or None,
                **_counts(data, deletes),
                **_statistics(self.schema, file),
            }
        )


def read_base_table(catalog: MaterializedViewCatalog, name: Identifier, *, now: datetime | None = None) -> BaseTable:
    """Read the manifests of a table's current snapshot.

    Args:
        catalog: A catalog through which the table's own catalog can be opened.
        now: When that is; for the rows.

    Raises:
        NotFoundError: There is no such table.
        UnsupportedError: It is not an Iceberg table of a catalog.
        InvalidMetadataError: A metadata file, manifest list or manifest cannot be read.
    """
    if not name.kind.is_iceberg or name.path is not None:
        raise UnsupportedError(f"{name}: only the files of Iceberg tables in a catalog are read")
    located = catalog.locate([name]).get(name)
    if located is None or located.kind != "table":
        raise NotFoundError(f"there is no table {name}")
    with read_by_pyiceberg(catalog.home_of(name).files, located.metadata_location) as table:
        return _base_table(name, table, now or datetime.now(UTC))


def _base_table(name: Identifier, table: StaticTable, now: datetime) -> BaseTable:
    metadata, snapshot = table.metadata, table.current_snapshot()
    place = snapshot.manifest_list if snapshot else None
    manifests = read_manifests(table.io.new_input(place))[1] if place else []
    files = []
    for manifest in manifests:
        spec = table.specs()[manifest.partition_spec_id]
        for entry in read_entries(manifest, table.io):
            path = spec.partition_to_path(entry.data_file.partition, table.schema()) if spec.fields else DEFAULT
            files.append(TableFile(path, entry.snapshot_id, entry.data_file))
    data, deletes = ([item.file for item in files if item.is_data is wanted] for wanted in (True, False))
    snapshot_id = snapshot.snapshot_id if snapshot else None
    general = TableRow(
        catalog=name.catalog,
        namespace=".".join(name.namespace),
        table_name=str(name),
        segment=GENERAL,
        unit="table",
        row_id=str(name),
        checked_at=now,
        snapshot_id=snapshot_id,
        location=metadata.location,
        format=str(metadata.format_version),
        partition_spec_id=metadata.default_spec_id,
        sort_order_id=metadata.default_sort_order_id or None,
        **_counts(data, deletes),
    )
    return BaseTable(name, snapshot_id, metadata.properties, table.schema(), len(manifests), tuple(files), general)


def _counts(data: Collection[DataFile], deletes: Collection[DataFile]) -> dict[str, Any]:
    return {
        "data_files": len(data),
        "delete_files": len(deletes),
        "rows": sum(file.record_count for file in data),
        "deletes": sum(file.record_count for file in deletes),
        "bytes": sum(file.file_size_in_bytes for file in data),
        "delete_bytes": sum(file.file_size_in_bytes for file in deletes),
    }


def _statistics(schema: Schema, file: DataFile) -> dict[str, dict[str, Any]]:
    """Return the statistics of the columns that still exist, by their names."""
    names = {field: schema.find_column_name(field) for field in (file.null_value_counts or {})}
    found: dict[str, dict[str, Any]] = {
        "null_counts": {str(name): (file.null_value_counts or {})[field] for field, name in names.items() if name}
    }
    for key, bounds in (("lower_bounds", file.lower_bounds), ("upper_bounds", file.upper_bounds)):
        texts = {schema.find_column_name(field): bound_text(schema, field, at) for field, at in (bounds or {}).items()}
        found[key] = {str(name): text for name, text in texts.items() if name and text is not None}
    return found


def bound_of(schema: Schema, field: int, bound: bytes) -> Any:
    """Return a bound as a value; ``None`` if the column is gone, or its type has changed since."""
    try:
        kind = schema.find_type(field)
        return from_bytes(kind, bound) if isinstance(kind, PrimitiveType) else None
    except (ArithmeticError, TypeError, ValueError, NotImplementedError):
        return None


def bound_text(schema: Schema, field: int, bound: bytes) -> str | None:
    """Return a bound as text, at most :data:`MAX_BOUND` characters."""
    value = bound_of(schema, field, bound)
    return None if value is None else shortened(str(value), MAX_BOUND)


def row_groups(catalog: MaterializedViewCatalog, table: BaseTable, files: Collection[TableFile]) -> list[TableRow]:
    """Return the rows of the row groups of data files. Each footer is read; files of other formats have none.

    Raises:
        InvalidMetadataError: A footer cannot be read.
    """
    io = catalog.home_of(table.name).files
    wanted = [item for item in files if item.is_data and item.file.file_format == FileFormat.PARQUET]

    def footer(item: TableFile) -> Any:
        path = item.file.file_path
        with parsed(path, "data file"), io.io(path, what="data file").new_input(path).open() as stream:
            return parquet.read_metadata(pa.PythonFile(stream, mode="r"))

    with ThreadPoolExecutor(_READERS) as readers:
        footers = list(readers.map(footer, wanted))
    return [
        table._file_row(item).model_copy(
            update={
                "unit": "row-group",
                "row_id": f"{item.file.file_path}#{number}",
                "data_files": None,
                "delete_files": None,
                "rows": found.row_group(number).num_rows,
                "bytes": found.row_group(number).total_byte_size,
                **_group_statistics(found.row_group(number)),
            }
        )
        for item, found in zip(wanted, footers, strict=True)
        for number in range(found.num_row_groups)
    ]


def _group_statistics(group: Any) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {"null_counts": {}, "lower_bounds": {}, "upper_bounds": {}}
    for at in range(group.num_columns):
        column = group.column(at)
        statistics = column.statistics
        if statistics is None:
            continue
        name = column.path_in_schema
        if statistics.has_null_count:
            found["null_counts"][name] = statistics.null_count
        if statistics.has_min_max:
            found["lower_bounds"][name] = shortened(str(statistics.min), MAX_BOUND)
            found["upper_bounds"][name] = shortened(str(statistics.max), MAX_BOUND)
    return found


# -- the component ------------------------------------------------------------------------------


def register_tables(
    registry: Registry, heads: Mapping[Identifier, int | None], faults: MutableMapping[str, str]
) -> int:
    """Bring the rows of base tables up to date, of each in one commit. Tables that have not changed are not read.

    Args:
        heads: The current snapshot of each base table of the catalog's views.
        faults: Receives why a table could not be read, by name. If there are any, no table's rows are removed.

    Returns:
        How many tables had changed.
    """
    detail: Any = registry.settings.detail
    if detail == "none":
        return 0
    own = equal(catalog=registry.catalog.name)
    general = registry.tables.read(both(own, equal(segment=GENERAL)), ["table_name", "snapshot_id", "content"])
    known = {row["table_name"]: (row["snapshot_id"], row["content"]) for row in general.to_pylist()}
    tables = {name: head for name, head in heads.items() if _is_registered(registry, name)}
    changed = {name for name, head in tables.items() if known.get(str(name)) != (head, detail)}
    for name in sorted(changed, key=str):
        try:
            _register(registry, read_base_table(registry.catalog, name), detail)
        except MaterializedViewError as error:
            faults[str(name)] = str(error)
    gone = known.keys() - {str(name) for name in tables}
    if gone and not faults:
        registry.tables.delete(both(own, one_of("table_name", gone)))
    return len(changed)


def _is_registered(registry: Registry, name: Identifier) -> bool:
    """Whether a base table has rows in the registry: it is an Iceberg table in the registry's catalog."""
    return (
        name.kind.is_iceberg and name.path is None and name.selector is None and name.catalog == registry.catalog.name
    )


def _register(registry: Registry, table: BaseTable, detail: Detail) -> None:
    """Replace the rows of the segments that have changed. Files of other segments are not rewritten.

    Raises:
        UnsupportedError: The table has more files than :data:`MAX_FILES`, and a row is wanted for each.
    """
    if detail != "segments" and len(table.files) > MAX_FILES:
        raise UnsupportedError(
            f"{table.name} has {len(table.files):,} files, and at most {MAX_FILES:,} are registered: set "
            "airflow-mv.registry.tables.detail to segments"
        )
    own = equal(catalog=table.name.catalog, namespace=table.general.namespace, table_name=str(table.name))
    before = registry.tables.rows(own)
    general = table.general.model_copy(update={"content": detail})
    new = [general, *(row for row in table.rows(detail) if row.segment != GENERAL)]
    changed = {GENERAL} | _differing(before, new)
    rows = [row for row in new if row.segment in changed]
    if detail == "row-groups":
        rows += _groups(registry, table, [row for row in before if row.segment in changed], changed)
    registry.tables.replace(rows, both(own, one_of("segment", changed)))


def _differing(before: Iterable[TableRow], new: Iterable[TableRow]) -> set[str]:
    """Return the segments whose rows are not the same, but for the time at which they were read."""
    held: list[defaultdict[str, set[str]]] = [defaultdict(set), defaultdict(set)]
    for rows, found in zip((before, new), held, strict=True):
        for row in rows:
            if row.unit != "row-group":
                snapshot = row.snapshot_id if row.unit == "file" else None
                found[row.segment].add(f"{row.row_id} {snapshot} {row.rows} {row.data_files} {row.delete_files}")
    return {name for name in {*held[0], *held[1]} if held[0][name] != held[1][name]}


def _groups(
    registry: Registry, table: BaseTable, before: Collection[TableRow], segments: Collection[str]
) -> Iterator[TableRow]:
    """Yield the rows of row groups. Only footers of new files are read."""
    files = {item.file.file_path: item for item in table.files if item.segment in segments}
    kept = [row for row in before if row.unit == "row-group" and row.location in files]
    yield from kept
    read = {row.location for row in kept}
    yield from row_groups(registry.catalog, table, [item for path, item in files.items() if path not in read])
