# SPDX-License-Identifier: Apache-2.0
"""The rows that have changed in rewritten files, by their ids and versions (Iceberg ``format/spec.md``, "Row Lineage").

A row that was copied into a new file keeps its id and the sequence number of the commit that last changed it. So the
changed rows of the new files are those with a later number than the first snapshot's, and those of the old files are
the rows whose ids no copied row has. Each file is read once, no row is shuffled, and only changed rows leave the scan.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType

from airflow_mv.core.job.context import JobContext, list_of, matching, unlike
from airflow_mv.core.script import DeltaStep
from airflow_mv.core.spec.identifiers import quote

_ROW_ID, _ROW_VERSION = "_row_id", "_last_updated_sequence_number"
_WITH_ROW_IDS = 3
#: The ids of so many kept rows are merged by one task.
_ROWS_MERGED = 20_000_000
#: Types of the columns whose values the scan can look for.
_WHOLE_NUMBERS = (IntegerType, LongType)


@dataclass(frozen=True, slots=True)
class CountedRows:
    """Rows that are held.

    Args:
        frame: The columns of the step, and one more.
        copies: Its name: how many copies of the row the change has, 0 for a row of both snapshots.
        count: How many rows they are.
    """

    frame: DataFrame
    copies: str
    count: int


class RewrittenFiles:
    """The files that only one of two snapshots has, whose rows have ids.

    Args:
        diff: The Java helper with the tasks of both snapshots.
        table: The Java table that has been loaded for it.
        version: The table's format version.
    """

    def __init__(self, context: JobContext, step: DeltaStep, diff: Any, table: Any, version: int) -> None:
        self._context, self._step, self._diff, self._table, self._version = context, step, diff, table, version
        #: Whether the change does not follow from the ids, which only a first try shows.
        self._failed = False

    def changed(self, wanted: Sequence[tuple[str, DataFrame]] = ()) -> CountedRows | None:
        """Return the rows that have changed, and more rows of the new files.

        Args:
            wanted: Columns, and frames with one column of the values for which other rows are also returned.

        Returns:
            ``None`` if it does not follow from the ids: rows have none, or rows with the same ids and versions are not
            in both snapshots. They are not after a rollback, or where another writer has not kept the ids.
        """
        sides = self._diff.removed(), self._diff.added()
        have_ids = self._version >= _WITH_ROW_IDS and all(side.size() and self._diff.lineage(side) for side in sides)
        if self._failed or not have_ids:
            return None
        reading = self._diff.reading(self._version)
        old, new = (self._context.java.staged(reading, side) for side in sides)
        own = any(reading.schema().caseInsensitiveFindField(name) is not None for name in (_ROW_ID, _ROW_VERSION))
        types = [kind for name, frame in wanted for kind in (new.schema[name].dataType, frame.schema[0].dataType)]
        if own or not all(isinstance(kind, _WHOLE_NUMBERS) for kind in types):
            return None
        found = self._scanned(old, new, wanted)
        self._failed = found is None
        return found

    def _scanned(self, old: DataFrame, new: DataFrame, wanted: Sequence[tuple[str, DataFrame]]) -> CountedRows | None:
        context, step = self._context, self._step
        source = (pkgutil.get_data("airflow_mv.core.job", "RowLineageScan.java") or b"").decode()
        if not context.java.compiles("RowLineage", self._table):
            return None
        snapshots = (context.java.long(number) for number in (step.start or 0, step.end or 0))
        scan = context.java.helper("RowLineage", self._table, context.spark._jsparkSession, source, *snapshots)
        if not scan.startIsAncestor():
            return None
        if not wanted:
            old, new = matching(old, step.where), matching(new, step.where)  # both, so that both keep the same rows
        name = f"{unlike(old.columns)}row"
        values = [item for column, frame in wanted for item in (column, _numbers(frame)._jdf)]
        added = self._held(scan, new, None, values, name)
        here = scan.summary(_numbers_of(added, name)._jdf, self._blocks(added, name)._jdf)
        kept = here.kept()
        removed = self._held(scan, old, kept, (), name)
        there = scan.summary(_numbers_of(removed, name)._jdf, None)
        kept.destroy()
        if not here.equals(there):
            return None
        columns = [*(F.col(quote(column)) for column in step.columns), F.col(f"{name}.copies").alias(name)]
        parts = [side.where(f"{name}.copies IS NOT NULL").select(*columns) for side in (removed, added)]
        count = int(here.found()) + int(there.found())
        # The ids need not be held any longer.
        rows = context.in_few_partitions(parts[0].unionAll(parts[1]), count).localCheckpoint(eager=True)
        return CountedRows(context.held(rows), name, count)

    def _held(self, scan: Any, side: DataFrame, kept: Any, wanted: Iterable[Any], name: str) -> DataFrame:
        """Return the rows of one side that matter, which are read here."""
        context, columns = self._context, dict.fromkeys((*self._step.columns, _ROW_ID, _ROW_VERSION))
        rows = side.select(*map(quote, columns))._jdf
        found = DataFrame(scan.scan(rows, kept, list_of(context, wanted), name), context.spark)
        return found.localCheckpoint(eager=True)

    def _blocks(self, rows: DataFrame, name: str) -> DataFrame:
        """Return the blocks of kept ids, with all parts of a block in one partition."""
        blocks = rows.where(f"{name}.ids IS NOT NULL").select(f"{name}.block", f"{name}.ids")
        partitions = -(-int(self._diff.rows(self._diff.added())) // _ROWS_MERGED)
        return blocks.coalesce(1) if partitions <= 1 else blocks.repartition(partitions, "block")


def _numbers_of(rows: DataFrame, name: str) -> DataFrame:
    """Return the summary in the last row of each partition."""
    return rows.where(f"{name}.found IS NOT NULL").select(*(f"{name}.{item}" for item in ("found", "kept", "sum")))


def _numbers(frame: DataFrame) -> DataFrame:
    return frame.select(F.col(quote(frame.columns[0])).cast("bigint")).dropna()
