# SPDX-License-Identifier: Apache-2.0
"""The driver's part of a shared application. Standard library and PySpark only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(spark: SparkSession, arguments: Sequence[str], report: Callable[[str], None]) -> str | None:
    """Run the scripts that are requested in a folder, until its end file, or without work for a time.

    Args:
        spark: A classic session.
        arguments: The folder; the name of the catalog in Spark by whose access to files it is read and written; and the
            seconds without work after which the driver ends.
        report: Called with progress messages.

    Returns:
        Why the driver ended, in one line, if it was not asked to.
    """
    from airflow_mv.extras.shared_application.job.serve import serve

    folder, catalog, idle_seconds = arguments
    return serve(spark, folder, catalog, report=report, idle_seconds=float(idle_seconds))
