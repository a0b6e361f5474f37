# SPDX-License-Identifier: Apache-2.0
"""Run the script of a file in a driver, and write its outcome."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

from airflow_mv.documents import json_object
from airflow_mv.job.files import open_files
from airflow_mv.job.run import reason, run
from airflow_mv.job.session import hide_secrets
from airflow_mv.script import Script
from airflow_mv.version import __version__


def run_submitted(
    spark: SparkSession, location: str, catalog: str | None, table: str | None, *, report: Callable[[str], None]
) -> str | None:
    """Run the script at a location, and write its outcome.

    Args:
        spark: A classic session.
        location: The script.
        catalog: The name of the view's catalog in Spark; ``None`` for access through Hadoop.
        table: The quoted Spark name of the view's storage table, if a catalog holds it.
        report: Called with progress messages.

    Returns:
        Why nothing was staged, in one line; ``None`` for a success.
    """
    try:
        hide_secrets(spark)
        files = open_files(spark, catalog, table)
        text = files.read_text(location)
        package = json_object(text, "script").get("package")
        if package != __version__:  # its script may have other fields
            found = f"airflow-mv {package} wrote the script, and this job is of version {__version__}"
            return f"{location}: {found}: install airflow-mv-job=={package} in the driver"
        script = Script.from_json(text)
        place = script.outcome_location
        clock = (lambda: files.store_ms(place)) if place else None
        outcome = run(spark, script, report=report, store_ms=clock, access=files.vended(location))
        if place is not None:
            files.write_text(place, outcome.to_json())
    except Exception as error:  # noqa: BLE001 (the last line on stderr is what an operator shows)
        return f"{location}: {reason(error)}"
    if outcome.error is None:
        report(f"{outcome.rows_written} rows written, staged at {outcome.metadata_location}")
    return outcome.error
