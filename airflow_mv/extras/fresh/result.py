# SPDX-License-Identifier: Apache-2.0
"""Fresh rows that were fetched from Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_mv.common.frames import ArrowRows
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.reasons import Reason
from airflow_mv.extras.fresh.plan import ReadMode
from airflow_mv.extras.fresh.rows import FreshRows

if TYPE_CHECKING:
    import pyarrow


class FreshResult(ArrowRows):
    """Fresh rows, which this process holds in memory: no Spark is needed any more.

    Args:
        table: The rows.
        mode: How they were computed.
        reasons: Why.
    """

    def __init__(self, view: Identifier, table: pyarrow.Table, mode: ReadMode, reasons: tuple[Reason, ...]) -> None:
        self.view = view
        self.mode = mode
        self.reasons = reasons
        self._name = view.name
        self._table = table

    @property
    def columns(self) -> list[str]:
        """Column names in order."""
        return list(self._table.column_names)

    def to_arrow(self) -> pyarrow.Table:
        """Return the rows as an Arrow table."""
        return self._table

    def to_arrow_batch_reader(self) -> pyarrow.RecordBatchReader:
        """Return the rows as Arrow batches."""
        return self._table.to_reader()

    def __repr__(self) -> str:
        return f"<fresh rows of {self.view}: {self._table.num_rows:,}, {self.mode}>"


def fetched(view: Identifier, found: FreshRows, limit: int | None = None) -> FreshResult:
    """Fetch fresh rows from Spark.

    Args:
        limit: At most this many rows.

    Raises:
        JobError: Spark failed.
    """
    import pyarrow

    from airflow_mv.common.stored_rows import spark_errors

    frame = found.frame if limit is None else found.frame.limit(limit)
    with spark_errors(f"reading fresh rows of view {view}"):
        if hasattr(frame, "toArrow"):
            table = frame.toArrow()
        else:  # Spark 3.5
            rows = [row.asDict(recursive=True) for row in frame.collect()]
            table = pyarrow.Table.from_pylist(rows) if rows else pyarrow.table({name: [] for name in frame.columns})
    return FreshResult(view, table, found.mode, found.reasons)
