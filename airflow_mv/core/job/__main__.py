# SPDX-License-Identifier: Apache-2.0
"""The program that Spark's driver runs. It writes the outcome where the script specifies.

The catalog is the view's, by its name in Spark, and the table is the view's storage table if a catalog holds it. Script
and outcome are read and written with their access to the store; without a catalog, through Hadoop.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from airflow_mv.core.job.versions import require_python, require_supported
from airflow_mv.errors import UnsupportedError
from airflow_mv.version import __version__, supported

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GLUE_OPTION = "--airflow-mv-script"
# What an unsupported Python or PySpark cannot import is imported after the versions are checked.


def main(submitted: str, catalog: str | None = None, table: str | None = None) -> int:
    """Run the script at a location and write its outcome.

    Args:
        submitted: A local path, or any location that the catalog's FileIO (else Hadoop) opens, and the script's digest.
        catalog: The name of the view's catalog in Spark.
        table: The quoted Spark name of the view's storage table, of a REST catalog or any other.

    Returns:
        The exit code: 0, or 1 with the reason as the last line on stderr (spark-submit itself passes
        a Python driver's stderr on to its own stdout).
    """

    def run(spark: SparkSession) -> str | None:
        from airflow_mv.core.job.driver import run_submitted

        return run_submitted(spark, submitted, catalog, table, report=_say)

    return _in_driver(run)


def run_extra(name: str, arguments: Sequence[str]) -> int:
    """Run the driver's part of an extra.

    Args:
        name: The extra: its package ``airflow_mv.extras.<name>.job`` has a function ``run``.

    Returns:
        The exit code: 0, or 1 with the reason as the last line on stderr.
    """

    def run(spark: SparkSession) -> str | None:
        refusal: str | None = import_module(f"airflow_mv.extras.{name}.job").run(spark, arguments, _say)
        return refusal

    return _in_driver(run)


def _in_driver(act: Callable[[SparkSession], str | None]) -> int:
    try:
        require_python()
        refusal = _with_session(act)
    except UnsupportedError as error:
        refusal = str(error)
    return 0 if refusal is None else _failed(refusal)


def _with_session(act: Callable[[SparkSession], str | None]) -> str | None:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        found = f"this Python ({sys.executable}) cannot import PySpark: {error}"
        raise UnsupportedError(f"{found}. The job runs in a driver of {supported()}") from None
    ours = SparkSession.getActiveSession() is None
    spark = SparkSession.builder.appName("airflow-mv").getOrCreate()
    try:
        require_supported(spark)
        return act(spark)
    finally:
        if ours:  # a platform that starts the session itself, such as Databricks, also stops it
            spark.stop()


def _failed(line: str) -> int:
    sys.stdout.flush()
    sys.stderr.write(f"{line}\n")
    return 1


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")  # at once: the lines of several threads must not mix
    sys.stdout.flush()


def cli() -> None:
    """Run as a program: ``airflow-mv-job``, ``python -m airflow_mv.core.job``, or spark-submit's main file."""
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
        parser.add_argument("script", help="the script's location and digest: the first of the plan's application_args")
        parser.add_argument("catalog", nargs="?", help="the view's catalog in Spark: the second of them")
        parser.add_argument("table", nargs="?", help="the view's storage table in Spark: the third, if there is one")
        parser.add_argument("--extra", metavar="NAME", help="run the driver's part of an extra with these arguments")
        given = parser.parse_args()
    if getattr(given, "extra", None) is not None:
        code = run_extra(given.extra, [item for item in (given.script, given.catalog, given.table) if item])
        # At once: Python would wait for each thread, and one may wait for a server that does not respond.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    code = main(given.script, given.catalog, given.table)
    if code:  # some platforms take any SystemExit for a failure
        sys.exit(code)


if __name__ == "__main__":
    cli()
