# SPDX-License-Identifier: Apache-2.0
"""The main file for spark-submit. It writes the outcome where the script specifies.

``__main__.py <script location> [<catalog>]``: the catalog is the view's, by its name in Spark. Script and outcome are
read and written with its access to the store; without a catalog, through Hadoop.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from airflow_mv.job.files import open_files
from airflow_mv.job.run import reason, run
from airflow_mv.job.session import hide_secrets
from airflow_mv.script import Outcome, Script


def main(location: str, catalog: str | None = None) -> int:
    """Run the script at a location and write its outcome.

    Args:
        location: A local path, or any location that the catalog's FileIO (else Hadoop) opens.
        catalog: The name of the view's catalog in Spark.

    Returns:
        The exit code: 0, or 1 with the reason as the last line on stderr (spark-submit itself passes
        a Python driver's stderr on to its own stdout).
    """
    spark = SparkSession.builder.appName("airflow-mv").getOrCreate()
    try:
        hide_secrets(spark)
        files = open_files(spark, catalog)
        script = Script.from_json(files.read_text(location))
        place = script.outcome_location
        outcome = run(spark, script, report=_say, store_ms=(lambda: files.store_ms(place)) if place else None)
        if place is not None:
            files.write_text(place, outcome.to_json())
    except Exception as error:  # noqa: BLE001 (the last line on stderr is what an operator shows)
        outcome = Outcome("", None, error=f"{location}: {reason(error)}")
    finally:
        spark.stop()
    if outcome.error is None:
        _say(f"{outcome.rows_written} rows written, staged at {outcome.metadata_location}")
        return 0
    sys.stdout.flush()
    sys.stderr.write(f"{outcome.error}\n")
    return 1


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: __main__.py <script location> [<catalog>]")
    sys.exit(main(*sys.argv[1:]))
