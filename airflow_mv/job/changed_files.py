# SPDX-License-Identifier: Apache-2.0
"""The rows of the files in which two snapshots differ, by metadata tables, for sessions that cannot list scan tasks.

Files that both snapshots read with the same delete files have the same rows in both. The others are named in a filter
on ``_file``. Iceberg (1.12) skips no file by such a filter, so the filter also has the range of values in these files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql import types as T

from airflow_mv.job.context import JobContext
from airflow_mv.quoting import quote, string_literal

#: With more files than this, all rows are compared.
MOST_FILES = 2_000
_DATA, _POSITIONS = 0, 1
#: The status of a manifest's entry for a file that its commit has removed.
_REMOVED = 2
#: Types whose bounds in the statistics are exact.
_EXACT = (T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.DateType, T.TimestampType, T.TimestampNTZType)
_FILE = "_file"


@dataclass(frozen=True, slots=True)
class ChangedFiles:
    """The rows of the files of one snapshot that differ from those of the other.

    Args:
        frame: The table's columns, and ``_file``.
        files: How many there are.
        bytes: Their bytes.
        rows: Their rows, deleted ones included.
    """

    frame: DataFrame
    files: int
    bytes: int
    rows: int


def changed_files(
    context: JobContext, table: str, snapshots: tuple[int, int], columns: Sequence[str]
) -> tuple[ChangedFiles, ...] | None:
    """Return the rows of the changed files of two snapshots; ``None`` if they cannot be told, or are too many.

    Args:
        context: The run.
        table: Quoted Spark name.
        snapshots: The two.
        columns: Columns that are known to be the same ones at both, and now.
    """
    now = context.query(f"SELECT * FROM {table}").schema
    if any(name.lower() == _FILE for name in now.names):
        return None
    own = [_only_in(context, table, one, other) for one, other in (snapshots, snapshots[::-1])]
    deletes = [row for rows in own for row in rows if row.content != _DATA]
    if any(row.content != _POSITIONS for row in deletes):
        return None  # equality deletes may hide rows of any file
    touched = _touched(context, table, snapshots, deletes)
    bounded = [field.name for field in now if isinstance(field.dataType, _EXACT)]
    if not _has_one_schema(context, table, snapshots):
        bounded = [name for name in bounded if name in columns]
    found = []
    for snapshot, rows in zip(snapshots, own, strict=True):
        paths = {row.file_path for row in rows if row.content == _DATA} | touched
        if len(paths) > MOST_FILES:
            return None
        found.append(_rows_of(context, table, snapshot, paths, bounded))
    return tuple(found)


def _only_in(context: JobContext, table: str, one: int, other: int) -> list[Row]:
    """Return the files that only one snapshot has, or has with another sequence number, on which deletes depend.

    Several deletion vectors may be in one file.
    """
    key = ("content", "file_path", "content_offset", "sequence_number")
    items = "data_file.content, data_file.file_path, data_file.content_offset, sequence_number"
    here, there = (
        context.query(
            f"SELECT {items}, data_file.referenced_data_file FROM {table}.entries VERSION AS OF {snapshot} "
            f"WHERE status <> {_REMOVED}"
        )
        for snapshot in (one, other)
    )
    path, *rest = [here[name].eqNullSafe(there[name]) for name in key]
    for same in rest:
        path &= same
    return here.join(there, on=path, how="left_anti").limit(2 * MOST_FILES + 1).collect()


def _has_one_schema(context: JobContext, table: str, snapshots: Iterable[int]) -> bool:
    """Whether the table's columns have not been changed since the earlier snapshot, as far as its log goes back."""
    log = f"SELECT latest_snapshot_id, latest_schema_id FROM {table}.metadata_log_entries ORDER BY timestamp"
    rows = [tuple(row) for row in context.query(log).collect()]
    first = [next((place for place, row in enumerate(rows) if row[0] == snapshot), None) for snapshot in snapshots]
    places = [place for place in first if place is not None]
    return len(places) == len(first) and len({schema for _, schema in rows[min(places) :]}) == 1


def _touched(context: JobContext, table: str, snapshots: Iterable[int], deletes: Sequence[Row]) -> set[str]:
    """Return the data files that delete files are about."""
    found = {row.referenced_data_file for row in deletes if row.referenced_data_file is not None}
    unknown = {row.file_path for row in deletes if row.referenced_data_file is None}
    for snapshot in snapshots if unknown else ():
        deleted = f"SELECT DISTINCT file_path FROM {table}.position_deletes VERSION AS OF {snapshot}"
        found |= {row[0] for row in context.query(f"{deleted} WHERE delete_file_path IN {_list(unknown)}").collect()}
    return found


def _rows_of(context: JobContext, table: str, snapshot: int, paths: set[str], bounded: Sequence[str]) -> ChangedFiles:
    pinned = f"SELECT *, {_FILE} FROM {table} VERSION AS OF {snapshot}"
    if not paths:
        return ChangedFiles(context.query(f"{pinned} WHERE false"), 0, 0, 0)
    items = ["count(*)", "sum(file_size_in_bytes)", "sum(record_count)"]
    for name in bounded:
        column = f"readable_metrics.{quote(name)}"
        items += [f"min({column}.lower_bound)", f"max({column}.upper_bound)"]
        items += [f"count({column}.lower_bound)", f"sum({column}.null_value_count)"]
    of_files = f"{table}.files VERSION AS OF {snapshot} WHERE content = {_DATA} AND file_path IN {_list(paths)}"
    files, size, rows, *numbers = context.query(f"SELECT {', '.join(items)} FROM {of_files}").collect()[0]
    condition = F.col(_FILE).isin(*sorted(paths))
    for number, name in enumerate(bounded):
        low, high, known, nulls = numbers[4 * number : 4 * number + 4]
        if known == files and nulls == 0:
            condition &= F.col(quote(name)).between(F.lit(low), F.lit(high))
    return ChangedFiles(context.query(pinned).where(condition), files, size or 0, rows or 0)


def _list(texts: Iterable[str]) -> str:
    return f"({', '.join(map(string_literal, sorted(texts)))})"
