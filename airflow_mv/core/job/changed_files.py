# SPDX-License-Identifier: Apache-2.0
"""The rows in which two snapshots differ, by metadata tables, for sessions that cannot list scan tasks.

Files that both snapshots read with the same delete files have the same rows in both. Of a file that only one has, all
rows are read. Of a file that both have with other delete files, the rows are read that one snapshot has and the other
one has deleted: all that are marked as deleted if the first one has no deletes of the file, else by the positions in
the delete files.

The files are named in a filter on ``_file``. Iceberg (1.12) skips no file by such a filter, so the filter also has the
range of values in these files.

Iceberg's changelog scan reads the data files that each commit between the snapshots has added or removed, and no
others. So it finds the change of a table that is *copy-on-write*. It refuses snapshots with delete files (in Iceberg
1.12).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql import types as T

from airflow_mv.core.job.context import MAX_LOCAL_ROWS, JobContext, as_frame
from airflow_mv.core.job.gather import DELETED, PLACE
from airflow_mv.core.job.history import LoggedFile, history
from airflow_mv.core.script import DeltaStep
from airflow_mv.core.spec.identifiers import quote, string_literal

#: With more files than this, all rows are compared.
MAX_FILES = 2_000
_DATA, _POSITIONS = 0, 1
#: The status of a manifest's entry for a file that its commit has removed.
_REMOVED = 2
#: Iceberg's id of the column of a delete file that names the data file.
_PATH_ID = 2147483546
#: Fields by which two snapshots have the same file with the same deletes, and the other fields that are read.
_KEY = ("content", "file_path", "content_offset", "sequence_number")
_OTHERS = ("referenced_data_file", "record_count", "low", "high", "side")
_FILE_ITEMS = (
    "data_file.content, data_file.file_path, data_file.content_offset, sequence_number, "
    "data_file.referenced_data_file, data_file.record_count, "
    f"IF(data_file.content = {_DATA}, NULL, data_file.lower_bounds[{_PATH_ID}]) AS low, "
    f"IF(data_file.content = {_DATA}, NULL, data_file.upper_bounds[{_PATH_ID}]) AS high"
)
#: The client reads the entries of all files if they and their bounds are at most so many values.
_MAX_VALUES = 20_000
#: Types whose bounds in the statistics are exact, and between which Spark's SQL and Python's values may be compared.
#: Not TIMESTAMP_NTZ: Iceberg 1.12 shows no bounds of it, and a client turns its literals into times of its own zone.
_EXACT = (T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.DateType, T.TimestampType)
_FILE, _POSITION = PLACE
#: Positions are read from all delete files of a snapshot, which may be so many times those that matter, and these more.
_TIMES, _MORE = 10, 100


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """Rows that may differ between the two snapshots.

    Args:
        frame: The table's columns, and more.
        sign: -1 for rows of the first snapshot, 1 for rows of the second.
        files: The number of files that are read.
        bytes: Their bytes.
        rows: Their rows, deleted ones included.
        most: An upper bound of the rows of ``frame``.
        certain: Whether each row is in one snapshot only, as a row of its file.
    """

    frame: DataFrame
    sign: int
    files: int
    bytes: int
    rows: int
    most: int
    certain: bool = False


@dataclass(slots=True)
class _Own:
    """The files that only one of the snapshots has.

    Args:
        partly: Data files of both snapshots, with rows that only the other one may have deleted.
    """

    snapshot: int
    data: set[str] = field(default_factory=set)
    deletes: list[Row] = field(default_factory=list)
    partly: set[str] = field(default_factory=set)


def changed_files(context: JobContext, entries: Entries) -> list[ChangedRows] | None:
    """Return the rows that may differ between two snapshots; ``None`` if they are uncertain, or in too many files.

    Args:
        entries: The entries of both.
    """
    if _FILE in entries.taken or (own := entries.own()) is None:
        return None
    touched = _touch(context, entries.table, own)
    if any(len(item.data) + len(touched) > MAX_FILES for item in own):
        return None
    # The entries of files of both snapshots are read on the first side.
    statistics = entries.statistics((own[0].data | own[0].partly | own[1].partly, own[1].data))
    if statistics is None:
        return None
    files = _Files(context, own, entries, statistics)
    if touched and not files.can_read_deleted_rows():
        for item in own:
            item.data, item.partly = item.data | touched, set()
    found = [files.whole(0), files.whole(1), files.partly(0), files.partly(1)]
    return [item for item in found if item is not None]


class Entries:
    """The entries of the manifests of two snapshots.

    If they are few, they are all read here, at once: over Spark Connect a query takes longer than they do. This may be
    in a thread of its own, since it changes nothing in the session.

    Args:
        step: Names the table, and columns that are known to be the same ones at both, and when the refresh was planned.
        snapshots: The two.
    """

    def __init__(self, context: JobContext, step: DeltaStep, snapshots: tuple[int, int]) -> None:
        self._context, self.table, self._snapshots = context, step.table, snapshots
        now = context.spark.table(step.table).schema
        #: The names of the columns, in lower case.
        self.taken = {name.lower() for name in now.names}
        #: The columns whose bounds are read.
        self.exact = {item.name: item.dataType for item in now if isinstance(item.dataType, _EXACT)}
        files = self._count() if step.merge_on_read_files is None else step.merge_on_read_files
        few = files is not None and files * (1 + len(self.exact)) <= _MAX_VALUES
        self._all = self._read([(side, "") for side in (0, 1)]) if few else None
        #: Those of them whose bounds may skip files. This is last, because it waits for the history.
        self.bounded = _bounded(context, step.table, snapshots, now, step.columns) & self.exact.keys()

    def _count(self) -> int | None:
        """Return the number of all entries, by the snapshots' summaries."""
        known = history(self._context, self.table).snapshots
        summaries = [known[snapshot].summary for snapshot in self._snapshots if snapshot in known]
        counts = [summary.get(f"total-{kind}-files", "") for summary in summaries for kind in ("data", "delete")]
        if len(summaries) < len(self._snapshots) or not all(map(str.isdecimal, counts)):
            return None
        return sum(map(int, counts))

    def own(self) -> tuple[_Own, _Own] | None:
        """Return the files that only one snapshot has, or has with another sequence number, on which deletes depend.

        Several deletion vectors may be in one file. ``None``: files are too many, or there are equality deletes.
        """
        rows = self._compared() if self._all is None else _of_one_side(self._all)
        if len(rows) > 4 * MAX_FILES or any(row.content not in (_DATA, _POSITIONS) for row in rows):
            return None  # equality deletes may hide rows of any file
        own = _Own(self._snapshots[0]), _Own(self._snapshots[1])
        for row in rows:
            if row.content == _DATA:
                own[row.side].data.add(row.file_path)
            else:
                own[row.side].deletes.append(row)
        return own

    def has_no_deletes(self, side: int, paths: Collection[str]) -> bool:
        """Whether it is known that a snapshot has no deletes that may be about some data files."""
        if self._all is None:
            return False
        deletes = [row for row in self._all if row.side == side and row.content != _DATA]
        return all(row.content == _POSITIONS and _about(row) not in {None, *paths} for row in deletes)

    def statistics(self, wanted: Sequence[Collection[str]]) -> dict[tuple[int, str], Row] | None:
        """Return the entries of data files with their statistics, by the side and the path.

        ``None``: a snapshot has one of the files twice. By its name both are read, also if only one of them is wanted.

        Args:
            wanted: The paths of each side.
        """
        rows = self._all
        if rows is None:
            of_data = f"data_file.content = {_DATA} AND data_file.file_path IN"
            rows = self._read([(side, f" AND {of_data} {_list(paths)}") for side, paths in enumerate(wanted) if paths])
        found = [row for row in rows if row.content == _DATA and row.file_path in wanted[row.side]]
        by_path = {(row.side, row.file_path): row for row in found}
        return by_path if len(by_path) == len(found) else None

    def _read(self, parts: Sequence[tuple[int, str]]) -> list[Row]:
        """Return entries with their statistics, of each part those of a side that fulfil a condition."""
        items = [_FILE_ITEMS, "data_file.file_size_in_bytes"]
        for number, (name, kind) in enumerate(self.exact.items()):
            column = f"readable_metrics.{quote(name)}"
            bounds = (_as_number(f"{column}.{bound}_bound", kind) for bound in ("lower", "upper"))
            items += [f"{text} AS {what}{number}" for what, text in zip(("low", "high"), bounds, strict=True)]
            items.append(f"{column}.null_value_count AS nulls{number}")
        selected = " UNION ALL ".join(self._select(", ".join(items), side, condition) for side, condition in parts)
        return as_frame(self._context.spark, selected).collect() if parts else []

    def _compared(self) -> list[Row]:
        """Return the entries that only one snapshot has, without statistics; one more than there may be."""
        both = " UNION ALL ".join(self._select(_FILE_ITEMS, side, "") for side in (0, 1))
        key = ", ".join(_KEY)
        firsts = ", ".join(f"any_value({name}) AS {name}" for name in _OTHERS)
        with self._context.sized_for(0):  # a few rows of manifests
            return self._context.query(
                f"SELECT {key}, {firsts} FROM ({both}) GROUP BY {key} HAVING min(side) = max(side) "
                f"LIMIT {4 * MAX_FILES + 1}"
            ).collect()

    def _select(self, items: str, side: int, condition: str) -> str:
        return (
            f"SELECT {items}, {side} AS side FROM {self.table}.entries VERSION AS OF {self._snapshots[side]} "
            f"WHERE status <> {_REMOVED}{condition}"
        )


def _of_one_side(rows: Sequence[Row]) -> list[Row]:
    """Return the entries that only one of two snapshots has."""
    sides: dict[tuple[Any, ...], dict[int, Row]] = {}
    for row in rows:
        sides.setdefault(tuple(row[name] for name in _KEY), {})[row.side] = row
    return [row for found in sides.values() if len(found) == 1 for row in found.values()]


def _touch(context: JobContext, table: str, own: tuple[_Own, _Own]) -> set[str]:
    """Set the files with rows that only the other snapshot may have deleted, and return all files."""
    unique = own[0].data | own[1].data
    for one, other in ((own[0], own[1]), (own[1], own[0])):
        named = {_about(row) for row in other.deletes}
        if None in named:
            files = _list(row.file_path for row in other.deletes if _about(row) is None)
            rows = context.query(
                f"SELECT DISTINCT file_path FROM {table}.position_deletes VERSION AS OF {other.snapshot} "
                f"WHERE delete_file_path IN {files}"
            ).collect()
            named |= {row[0] for row in rows}
        one.partly = {path for path in named if path is not None} - unique
    return own[0].partly | own[1].partly


def _about(deletes: Row) -> str | None:
    """Return the one data file that a delete file is about; ``None`` if there may be several."""
    if deletes.referenced_data_file is not None:
        return str(deletes.referenced_data_file)
    # Iceberg does not shorten these bounds, and also reads them in this way.
    same = deletes.low is not None and deletes.low == deletes.high
    return bytes(deletes.low).decode() if same else None


def _bounded(
    context: JobContext, table: str, snapshots: tuple[int, int], now: T.StructType, columns: Collection[str]
) -> set[str]:
    """Return the columns whose bounds may skip files. Iceberg takes the names in a filter as those of present columns.

    The table's log has the ids of the schemas of snapshots. It shows a change of columns after the last commit only as
    one more metadata file.

    Args:
        table: Quoted Spark name.
        snapshots: The two.
        columns: Columns that are known to be the same ones at both snapshots, and when the refresh was planned.
    """
    log = history(context, table).log
    first: dict[int | None, int] = {}
    for place, file in enumerate(log):
        first.setdefault(file.snapshot, place)
    places = [first[snapshot] for snapshot in snapshots if snapshot in first]
    if not places or len(_schemas(log[max(places) :])) > 1 or context.at(table, log[-1].snapshot).schema != now:
        return set()
    same = (
        len(places) == len(snapshots)
        and len(_schemas(log[min(places) :])) == 1
        and first[log[-1].snapshot] == len(log) - 1
    )
    return {name for name in now.names if same or name in columns}


def _schemas(log: Iterable[LoggedFile]) -> set[int | None]:
    return {file.schema for file in log}


class _Files:
    """The changed files with their statistics, and their rows."""

    def __init__(
        self, context: JobContext, own: tuple[_Own, _Own], entries: Entries, statistics: Mapping[tuple[int, str], Row]
    ) -> None:
        self.context, self.table, self.own, self._entries, self._rows = context, entries.table, own, entries, statistics
        #: Whether a snapshot has all rows of its ``partly``. Then they are those that the other one has as deleted.
        self._has_all = [
            DELETED not in entries.taken and entries.has_no_deletes(side, own[side].partly) for side in (0, 1)
        ]

    def can_read_deleted_rows(self) -> bool:
        """Whether the rows of ``partly`` can be read, at a reasonable cost."""
        known = history(self.context, self.table).snapshots
        for side, one in enumerate(self.own):
            other = self.own[1 - side]
            if not one.partly or self._has_all[side]:
                continue
            if _POSITION in self._entries.taken:
                return False
            total = known[other.snapshot].summary.get("total-delete-files", "") if other.snapshot in known else ""
            if not total.isdecimal() or int(total) > _TIMES * len(other.deletes) + _MORE:
                return False
            newest = max((row.sequence_number for row in self._of(0, one.partly)), default=0)
            # A file that was removed and added again is not affected by older deletes of its path.
            if any(row.sequence_number < self._sequence(_about(row), newest) for row in other.deletes):
                return False
        return True

    def _sequence(self, path: str | None, newest: int) -> int:
        row = self._rows.get((0, path)) if path is not None else None
        return newest if path is None else row.sequence_number if row is not None else 0

    def _of(self, side: int, paths: Iterable[str]) -> list[Row]:
        return [row for path in paths if (row := self._rows.get((side, path))) is not None]

    def whole(self, side: int) -> ChangedRows | None:
        """Return all rows of the files that only one snapshot has."""
        own = self.own[side]
        # The statistics of the files of both are on the first side.
        rows = [self._rows.get((side, path)) or self._rows.get((0, path)) for path in own.data]
        return self._read(side, [row for row in rows if row is not None], self.own[side].snapshot)

    def partly(self, side: int) -> ChangedRows | None:
        """Return the rows of the files of both snapshots that the other snapshot has deleted."""
        one, other = self.own[side], self.own[1 - side]
        has_all = self._has_all[side]
        files, snapshot, extra = self._of(0, one.partly), one.snapshot, _POSITION
        if has_all:
            snapshot, extra = other.snapshot, DELETED  # with this column deleted rows are also read
        found = self._read(side, files, snapshot, extra)
        if found is None:
            return None
        most = sum(row.record_count for row in other.deletes)
        if has_all:
            frame = found.frame.where(F.col(DELETED))
        else:
            frame = found.frame.join(self._places(side, most), on=[_FILE, _POSITION], how="left_semi")
        return replace(found, frame=frame, most=most, certain=True)

    def _places(self, side: int, most: int) -> DataFrame:
        """Return the files and positions of a snapshot's rows that the other snapshot has deleted.

        Args:
            side: The snapshot that has the rows.
            most: An upper bound of their number.
        """
        one, other = self.own[side], self.own[1 - side]
        # Deletes of rows that this snapshot does not have either match no row.
        where = F.col("delete_file_path").isin(sorted({row.file_path for row in other.deletes}))
        where &= F.col("file_path").isin(sorted(one.partly))
        deleted = self.context.at(f"{self.table}.position_deletes", other.snapshot).where(where)
        places = deleted.select(F.col("file_path").alias(_FILE), F.col("pos").alias(_POSITION))
        return F.broadcast(places) if most <= MAX_LOCAL_ROWS else places

    def _read(self, side: int, files: Sequence[Row], snapshot: int, *extra: str) -> ChangedRows | None:
        """Return all rows of some files.

        Args:
            side: The side that they count for.
            files: The entries of the files, which have their statistics.
            snapshot: The snapshot at which they are read.
            extra: Metadata columns of Iceberg that are also wanted.
        """
        if not files:
            return None
        pinned = self.context.at(self.table, snapshot)
        named = F.col(_FILE).isin(sorted(row.file_path for row in files))
        condition = reduce(Column.__and__, self._within(files), named)
        size, rows = sum(row.file_size_in_bytes for row in files), sum(row.record_count for row in files)
        frame = pinned.select("*", *map(F.col, (_FILE, *extra))).where(condition)
        return ChangedRows(frame, 2 * side - 1, len(files), size, rows, rows)

    def _within(self, files: Sequence[Row]) -> list[Column]:
        """Return conditions that all rows of some files fulfil, by which Iceberg skips other files."""
        found = []
        for number, (name, kind) in enumerate(self._entries.exact.items()):
            if name not in self._entries.bounded:
                continue
            lows, highs, nulls = ([row[f"{what}{number}"] for row in files] for what in ("low", "high", "nulls"))
            if None not in (*lows, *highs, *nulls) and not any(nulls):
                found.append(F.col(quote(name)).between(_literal(min(lows), kind), _literal(max(highs), kind)))
        return found


def _as_number(column: str, kind: T.DataType) -> str:
    """Return the SQL of a value that Python can compare: its times may be ambiguous, and end with the year 9999."""
    if isinstance(kind, T.TimestampType):
        return f"unix_micros({column})"
    return f"unix_date({column})" if isinstance(kind, T.DateType) else column


def _literal(value: Any, kind: T.DataType) -> Column:
    if isinstance(kind, T.TimestampType):
        return F.timestamp_micros(F.lit(value))
    return F.date_from_unix_date(F.lit(value)) if isinstance(kind, T.DateType) else F.lit(value)


def _list(texts: Iterable[str]) -> str:
    return f"({', '.join(map(string_literal, sorted(set(texts))))})"


# --------------------------------------------------- copy-on-write tables: Iceberg's changelog scan


_TYPE = "_change_type"
#: The columns that the scan adds to those of the table.
_OWN = frozenset({_TYPE, "_change_ordinal", "_commit_snapshot_id"})
_REPLACE = "replace"
#: The scan reads rows one by one, and so takes this many times what a read of whole snapshots takes for a byte.
_SLOWER = 2


@dataclass(frozen=True, slots=True)
class Changelog:
    """The rows of changed files: one for each time that a commit has added or removed it.

    Args:
        frame: The table's columns, and those of the scan.
        removed: Files, bytes and rows of the removed files.
        added: The same of the added ones.
    """

    frame: DataFrame
    removed: tuple[int, int, int]
    added: tuple[int, int, int]

    @property
    def weight(self) -> Column:
        """The signed count of a row."""
        return F.when(F.col(_TYPE) == "INSERT", 1).otherwise(-1)


def changelog(context: JobContext, table: str, start: int, end: int) -> Changelog | None:
    """Return the changelog between two snapshots, or ``None`` if it does not have the change, or comparing is cheaper.

    Args:
        table: Quoted Spark name.
        start: The first snapshot. Its rows are not part of the change.
        end: The last snapshot.
    """
    past = history(context, table)
    known, line = past.snapshots, past.line(start, end)
    every = [known[item].summary for item in (start, *(line or ())) if item in known]
    if line is None or any(summary.get("total-delete-files") != "0" for summary in every):
        return None  # a rollback, an expired snapshot, or delete files: the scan would return rows that they hide
    # The scan leaves out commits that only copy rows into other files.
    changing = [known[item].summary for item in line if known[item].operation != _REPLACE]
    removed = _sum(changing, "deleted-data-files", "removed-files-size", "deleted-records")
    added = _sum(changing, "added-data-files", "added-files-size", "added-records")
    whole = sum(_number(known[item].summary.get("total-files-size")) for item in (start, end) if item in known)
    if _SLOWER * (removed[1] + added[1]) > whole or not _has_same_columns(context, table, (start, end)):
        return None
    reader = context.spark.read.option("start-snapshot-id", str(start)).option("end-snapshot-id", str(end))
    return Changelog(reader.table(f"{table}.changes"), removed, added)


def _has_same_columns(context: JobContext, table: str, snapshots: Sequence[int]) -> bool:
    """Whether snapshots have the present columns, by which the scan reads, and none has a name of the scan's own."""
    now = context.spark.table(table).schema
    then = [context.at(table, snapshot).schema for snapshot in snapshots]
    return all(schema == now for schema in then) and not _OWN.intersection(name.lower() for name in now.names)


def _sum(summaries: Sequence[Mapping[str, str]], *keys: str) -> tuple[int, int, int]:
    files, size, rows = (sum(_number(item.get(key)) for item in summaries) for key in keys)
    return files, size, rows


def _number(text: Any) -> int:
    """Return a number of a summary. A writer leaves out a zero."""
    return int(text) if isinstance(text, str) and text.isdecimal() else 0
