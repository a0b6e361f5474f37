# SPDX-License-Identifier: Apache-2.0
"""Run the script of an incremental refresh, and read what its last step would write."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack, closing

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_mv.core.job.context import JobContext
from airflow_mv.core.job.driver import quiet
from airflow_mv.core.job.foreign import formats_of
from airflow_mv.core.job.session import temporary_settings
from airflow_mv.core.job.steps import run_steps
from airflow_mv.core.job.versions import require_supported
from airflow_mv.core.script import STAGING, Script
from airflow_mv.core.spec.identifiers import quote

log = logging.getLogger(__name__)


class ReadingContext(JobContext):
    """A run whose last statement is not run: its rows become :attr:`rows`.

    Args:
        table: The quoted name of the stored rows in the script.
    """

    def __init__(self, spark: SparkSession, staging: str, table: str) -> None:
        super().__init__(spark, staging)
        self.rows: DataFrame | None = None
        self._table = table

    @property
    def stored(self) -> DataFrame:
        """The stored rows."""
        return self.query(f"SELECT * FROM {self._table}")

    def write(self, sql: str) -> None:
        """Take the rows of a statement that writes to the storage table; run any other one."""
        inserts, recomputes = f"INSERT INTO {self._table}\n", f"INSERT OVERWRITE {self._table}\n"
        if sql.startswith(recomputes):
            self.rows = self.query(sql.removeprefix(recomputes))
        elif sql.startswith(inserts):
            self.rows = self.stored.unionAll(self._computed(sql.removeprefix(inserts)))
        else:
            super().write(sql)

    def overwrite(self, table: str, rows: str, others: str = "") -> None:  # noqa: ARG002
        """Take the rows of the changed keys, and those that stay."""
        new = self._computed(rows)
        self.rows = self.query(others).unionAll(new) if others else new

    def _computed(self, rows: str) -> DataFrame:
        """Run a query now: later the staged files and temporary views that it reads are gone."""
        return self.kept(self.query(rows), self.keys).frame


def read_script(
    spark: SparkSession, script: Script, staging: str, inputs: Mapping[str, DataFrame]
) -> tuple[DataFrame, str | None]:
    """Run a script, and return the rows that it would leave in the storage table.

    Args:
        spark: A session that knows the base tables' catalogs, classic or Connect. Its settings are as before when this
            returns.
        script: A script that writes to no branch.
        staging: The staging catalog in which it registers tables. The frame reads them whenever it is used.
        inputs: The rows of temporary views that it reads, by their names in the script.

    Returns:
        The rows, and why they are those of the whole query although the script has incremental steps, if they are.
        Over Spark Connect they are computed, and the server holds them.
    """
    require_supported(spark)
    bound = script.bound(staging, None)
    with (
        quiet(),
        temporary_settings(spark, dict(bound.confs)),
        closing(ReadingContext(spark, staging, bound.table)) as context,
        ExitStack() as blocks,
    ):
        context.reads = bound.reads
        for tables, table in formats_of(bound.reads).items():
            tables.require(context, table)
            blocks.enter_context(tables.reading(context))
        for name, frame in inputs.items():
            context.view(name.replace(STAGING, staging), frame)
        refused = run_steps(context, bound, [], log.debug)
        frame = _as_the_view(context.stored if context.rows is None else context.rows, script)
        if context.jvm is None:
            frame = frame.localCheckpoint(eager=True)
        return frame, context.found(refused)["fallback_reason"]


def _as_the_view(rows: DataFrame, script: Script) -> DataFrame:
    """Return rows with the view's columns, which they have by position."""
    named = rows.toDF(*(name for name, _ in script.types))
    return named.select(*(F.col(quote(name)).cast(kind).alias(name) for name, kind in script.types))
