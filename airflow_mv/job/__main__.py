# SPDX-License-Identifier: Apache-2.0
"""The program that Spark's driver runs. It writes the outcome where the script specifies.

The catalog is the view's, by its name in Spark, and the table is the view's storage table if a catalog holds it. Script
and outcome are read and written with their access to the store; without a catalog, through Hadoop.
"""

from __future__ import annotations

import argparse
import sys

from airflow_mv.errors import UnsupportedError
from airflow_mv.job.versions import require_python, require_supported
from airflow_mv.version import __version__, supported

_GLUE_OPTION = "--airflow-mv-script"
# What an unsupported Python or PySpark cannot import is imported after the versions are checked.


def main(location: str, catalog: str | None = None, table: str | None = None) -> int:
    """Run the script at a location and write its outcome.

    Args:
        location: A local path, or any location that the catalog's FileIO (else Hadoop) opens.
        catalog: The name of the view's catalog in Spark.
        table: The quoted Spark name of the view's storage table, of a REST catalog or any other.

    Returns:
        The exit code: 0, or 1 with the reason as the last line on stderr (spark-submit itself passes
        a Python driver's stderr on to its own stdout).
    """
    try:
        require_python()
        return _run(location, catalog, table)
    except UnsupportedError as error:
        return _failed(str(error))


def _run(location: str, catalog: str | None, table: str | None) -> int:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        found = f"this Python ({sys.executable}) cannot import PySpark: {error}"
        raise UnsupportedError(f"{found}. The job runs in a driver of {supported()}") from None
    ours = SparkSession.getActiveSession() is None
    spark = SparkSession.builder.appName("airflow-mv").getOrCreate()
    try:
        require_supported(spark)
        from airflow_mv.job.driver import run_submitted

        refusal = run_submitted(spark, location, catalog, table, report=_say)
    finally:
        if ours:  # a platform that starts the session itself, such as Databricks, also stops it
            spark.stop()
    return 0 if refusal is None else _failed(refusal)


def _failed(line: str) -> int:
    sys.stdout.flush()
    sys.stderr.write(f"{line}\n")
    return 1


def _say(line: str) -> None:
    print(line, flush=True)


def cli() -> None:
    """Run as a program: the command ``airflow-mv-job``, ``python -m airflow_mv.job``, or spark-submit's main file."""
    parser = argparse.ArgumentParser(
        prog="airflow-mv-job",
        description="Run the script of a planned refresh in this Spark driver, and write its outcome beside it.",
        epilog=f"Runs on {supported()}. Exit code 1: the last line on stderr is the reason.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    if any(argument.partition("=")[0] == _GLUE_OPTION for argument in sys.argv[1:]):
        # AWS Glue passes options only, and adds its own.
        parser.add_argument(_GLUE_OPTION, dest="script")
        parser.add_argument("--airflow-mv-catalog", dest="catalog")
        parser.add_argument("--airflow-mv-table", dest="table")
        given, _ = parser.parse_known_args()
    else:
        parser.add_argument("script", help="the script's location: the first of the plan's application_args")
        parser.add_argument("catalog", nargs="?", help="the view's catalog in Spark: the second of them")
        parser.add_argument("table", nargs="?", help="the view's storage table in Spark: the third, if there is one")
        given = parser.parse_args()
    code = main(given.script, given.catalog, given.table)
    if code:  # some platforms take any SystemExit for a failure
        sys.exit(code)


if __name__ == "__main__":
    cli()
