# SPDX-License-Identifier: Apache-2.0
"""Properties of a base table's files that make refreshes slow, with the maintenance that helps."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from pyiceberg.manifest import DataFile
from sqlglot import exp

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.units import counted, human
from airflow_mv.core.sql.query import ParsedQuery
from airflow_mv.errors import MaterializedViewError
from airflow_mv.extras.registry.base_tables import BaseTable, bound_of, read_base_table

log = logging.getLogger(__name__)

#: A data file below this size is small, unless its partition has few of them.
SMALL_BYTES = 32 * 2**20
#: From this number of files on a partition or a table can have too many small ones, or is clustered or not.
MIN_FILES = 8
#: A partition is much larger than the others from this factor on.
SKEW = 10
#: From this size on a partition's skew matters.
SKEW_BYTES = 2**30
#: A value is expected in this share of the files, or more: they are not clustered by the column.
UNCLUSTERED = 0.5
#: Below this share of deleted rows a few delete files cost little.
FEW_DELETES = 0.01
#: The most manifests of a table with manifests of a common size.
MAX_MANIFESTS = 100


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that makes refreshes slower than necessary.

    Args:
        code: For programs.
        message: What it is, with numbers.
        remedy: A Spark SQL statement, or what to set.
    """

    code: str
    message: str
    remedy: str

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def findings(table: BaseTable, columns: Collection[str] = ()) -> list[Finding]:
    """Return what makes refreshes from a table slow, the most usual first.

    Args:
        columns: The columns by which views join or filter it, in lower case: see :func:`filtering_columns`.
    """
    data = [item.file for item in table.files if item.is_data]
    return [
        *_small_files(table),
        *_deletes(table, data),
        *_skew(table),
        *_manifests(table),
        *_columns(table, data, columns),
    ]


def findings_of(
    catalog: MaterializedViewCatalog, queries: Collection[ParsedQuery], tables: Iterable[Identifier]
) -> dict[str, list[Finding]]:
    """Return the findings of the base tables of a view, by table. Manifests are read, and no data file.

    Tables in no catalog, and those that cannot be read, are left out.

    Args:
        catalog: The view's.
        queries: The view's query and those of nested views.
        tables: The base tables.
    """
    found: dict[str, list[Finding]] = {}
    for name in tables:
        try:
            table = read_base_table(catalog, name)
        except MaterializedViewError as error:
            log.info("The files of %s are not looked at: %s", name, error)
            continue
        found[str(name)] = findings(table, filtering_columns(queries, name))
    return found


def _call(table: BaseTable, procedure: str, options: str = "") -> str:
    """Return a call of one of Iceberg's procedures for Spark."""
    name = table.name
    catalog = name.catalog if name.catalog.isidentifier() else f"`{name.catalog.replace('`', '``')}`"
    return f"CALL {catalog}.system.{procedure}(table => {_literal('.'.join((*name.namespace, name.name)))}{options})"


def _literal(text: str) -> str:
    """Return a literal of Spark SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _small_files(table: BaseTable) -> Iterator[Finding]:
    many = small = 0
    for files in table.segments.values():
        sizes = [item.file.file_size_in_bytes for item in files if item.is_data]
        below = sum(size < SMALL_BYTES for size in sizes)
        if len(sizes) >= MIN_FILES and below > len(sizes) // 2:
            many, small = many + 1, small + below
    if many:
        size = human(sum(item.file.file_size_in_bytes for item in table.files if item.is_data))
        yield Finding(
            "SMALL_FILES",
            f"{counted(small, 'data file')} of less than {human(SMALL_BYTES)} in {counted(many, 'partition')}, of "
            f"{size} in all: each file costs requests and a part of a task",
            _call(table, "rewrite_data_files"),
        )


def _deletes(table: BaseTable, data: Collection[DataFile]) -> Iterator[Finding]:
    deletes = table.general.deletes or 0
    if not table.general.delete_files:
        return
    rows = sum(file.record_count for file in data)
    share = deletes / rows if rows else 1.0
    if share < FEW_DELETES and table.general.delete_files < MIN_FILES:
        return
    yield Finding(
        "DELETE_FILES",
        f"{counted(table.general.delete_files, 'delete file')} that delete {counted(deletes, 'row')} of {rows:,}: each "
        "read applies them",
        _call(table, "rewrite_data_files", ", options => map('delete-file-threshold', '1')"),
    )


def _skew(table: BaseTable) -> Iterator[Finding]:
    sizes = {
        name: sum(item.file.file_size_in_bytes for item in files if item.is_data)
        for name, files in table.segments.items()
    }
    if len(sizes) < MIN_FILES:
        return
    largest = max(sizes, key=lambda name: sizes[name])
    middle = median(sizes.values())
    if sizes[largest] >= SKEW_BYTES and sizes[largest] > SKEW * middle:
        yield Finding(
            "SKEW",
            f"the partition {largest} has {human(sizes[largest])}, the median partition {human(int(middle))}: a change "
            "of that partition is recomputed by few tasks",
            "add a bucket or a finer time to the partition spec: ALTER TABLE … ADD PARTITION FIELD bucket(16, …)",
        )


def _manifests(table: BaseTable) -> Iterator[Finding]:
    if table.manifests > MAX_MANIFESTS and len(table.files) < 100 * table.manifests:
        yield Finding(
            "MANIFESTS",
            f"{table.manifests:,} manifests for {counted(len(table.files), 'file')}: each plan reads them",
            _call(table, "rewrite_manifests"),
        )


def _columns(table: BaseTable, data: Collection[DataFile], columns: Collection[str]) -> Iterator[Finding]:
    """Yield what is wrong with the columns by which views join or filter: no statistics, or files not clustered."""
    for field in table.schema.fields:
        if field.name.lower() not in columns or not field.field_type.is_primitive or len(data) < MIN_FILES:
            continue
        spans = [_span(table, field.field_id, file) for file in data]
        without = sum(span is None for span in spans)
        if without > len(data) // 2:
            yield Finding(
                "NO_STATISTICS",
                f"{counted(without, 'file')} of {len(data):,} have no bounds of {field.name}, by which views join or "
                "filter: none of them is skipped",
                f"set the table property write.metadata.metrics.column.{field.name} to truncate(16), then "
                + _call(table, "rewrite_data_files", ", options => map('rewrite-all', 'true')"),
            )
        elif (share := _overlap([span for span in spans if span])) > UNCLUSTERED:
            yield Finding(
                "NOT_CLUSTERED",
                f"a value of {field.name}, by which views join or filter, may be in {share:.0%} of {len(data):,} "
                "files: few can be skipped",
                _call(table, "rewrite_data_files", f", strategy => 'sort', sort_order => {_literal(field.name)}"),
            )


def _span(table: BaseTable, field: int, file: DataFile) -> tuple[Any, Any] | None:
    """Return the bounds of a column in a file. A column that is NULL everywhere has none, and is in no other file."""
    low, high = ((bounds or {}).get(field) for bounds in (file.lower_bounds, file.upper_bounds))
    if low is None or high is None:
        return None
    ends = bound_of(table.schema, field, low), bound_of(table.schema, field, high)
    return None if None in ends else ends


def _overlap(spans: Collection[tuple[Any, Any]]) -> float:
    """Return in which share of the files the lower bound of a file is expected, on average."""
    values = sorted(low for low, _ in spans)[:: max(len(spans) // 100, 1)]
    return sum(sum(low <= value <= high for low, high in spans) for value in values) / (len(values) * len(spans))


def filtering_columns(queries: Collection[ParsedQuery], table: Identifier) -> set[str]:
    """Return the names, in lower case, of the columns by which queries join or filter a table.

    A name without a table in a query of several tables counts for each.
    """
    found: set[str] = set()
    for query in queries:
        aliases = {
            (node.alias or node.name).casefold()
            for node in query.tree.find_all(exp.Table)
            if node.name and node.name.casefold() == table.name.casefold()
        }
        if not aliases:
            continue
        for part in query.tree.find_all(exp.Join, exp.Where):
            nodes: Mapping[str, Any] = part.args
            conditions = [nodes.get("this")] if isinstance(part, exp.Where) else [nodes.get("on")]
            found |= {item.name.casefold() for item in nodes.get("using") or () if isinstance(item, exp.Expression)}
            for condition in filter(None, conditions):
                found |= {
                    column.name.casefold()
                    for column in condition.find_all(exp.Column)
                    if not column.table or column.table.casefold() in aliases
                }
    return found
