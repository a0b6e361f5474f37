# SPDX-License-Identifier: Apache-2.0
"""The change of a base table by Iceberg's changelog scan, for sessions that cannot list scan tasks (Spark Connect).

The scan reads the data files that each commit between two snapshots has added or removed, and no others. So it finds
the change of a table that is *copy-on-write*. It refuses snapshots with delete files (Iceberg 1.12).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from airflow_mv.job.context import JobContext
from airflow_mv.job.history import history

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
        context: The run.
        table: Quoted Spark name.
        start: The first snapshot. Its rows are not part of the change.
        end: The last snapshot.
    """
    past = history(context, table)
    known, line = past.snapshots, past.line(start, end)
    every = [known[item].summary for item in (start, *(line or ())) if item in known]
    if line is None or any(summary.get("total-delete-files") != "0" for summary in every):
        return None  # a rollback, an expired snapshot, or delete files: the scan would return rows that they hide
    # The scan leaves out commits that only write rows into other files, too.
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
