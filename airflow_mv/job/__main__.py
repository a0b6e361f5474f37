# SPDX-License-Identifier: Apache-2.0
"""The main file for spark-submit: ``__main__.py <script location>``. Writes the outcome where the script specifies."""

from __future__ import annotations

import sys
import uuid
from typing import Any

from pyspark.sql import SparkSession

from airflow_mv.job.run import reason, run
from airflow_mv.job.session import hide_secrets
from airflow_mv.script import Outcome, Script


def main(location: str) -> int:
    """Run the script at a location and write its outcome.

    Args:
        location: A local path, or any path that Hadoop opens (``file:/``, ``s3a://``, ``hdfs://``…).

    Returns:
        The exit code: 0, or 1 with the reason as the last line on stderr (spark-submit itself passes
        a Python driver's stderr on to its own stdout).
    """
    spark = SparkSession.builder.appName("airflow-mv").getOrCreate()
    try:
        hide_secrets(spark)
        script = Script.from_json(read_text(spark, location))
        folder = script.outcome_location
        outcome = run(spark, script, report=_say, store_ms=(lambda: store_ms(spark, folder)) if folder else None)
        if script.outcome_location is not None:
            write_text(spark, script.outcome_location, outcome.to_json())
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


def read_text(spark: SparkSession, location: str) -> str:
    """Return a file's text, through Hadoop."""
    path, files = _hadoop(spark, location)
    stream = files.open(path)
    try:
        return str(_jvm(spark).org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def write_text(spark: SparkSession, location: str, text: str) -> None:
    """Write a file through Hadoop, atomically: a temporary file is renamed over an older one."""
    path, files = _hadoop(spark, location)
    beside = path.suffix(f".{uuid.uuid4().hex}.tmp")
    stream = files.create(beside, True)  # noqa: FBT003 (Java's overwrite)
    try:
        stream.write(bytearray(text, "utf-8"))
    finally:
        stream.close()
    if files.exists(path):
        files.delete(path, False)  # noqa: FBT003 (Java's recursive)
    if not files.rename(beside, path):
        raise OSError(f"{location}: cannot be written")


def store_ms(spark: SparkSession, location: str) -> int:
    """Return the store's clock, milliseconds since the epoch: the modification time of a small file written for it.

    Args:
        spark: A classic session.
        location: The file is written beside this one, and deleted again.
    """
    path, files = _hadoop(spark, location)
    beside = path.suffix(f".{uuid.uuid4().hex}.tmp")
    files.create(beside, True).close()  # noqa: FBT003 (Java's overwrite)
    try:
        return int(files.getFileStatus(beside).getModificationTime())
    finally:
        files.delete(beside, False)  # noqa: FBT003 (Java's recursive)


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm


def _hadoop(spark: SparkSession, location: str) -> tuple[Any, Any]:
    path = _jvm(spark).org.apache.hadoop.fs.Path(location)
    if path.toUri().getScheme() is None:
        # Without a scheme Hadoop would use its default file system, but a local path is meant.
        path = _jvm(spark).org.apache.hadoop.fs.Path(_jvm(spark).java.io.File(location).getAbsoluteFile().toURI())
    configuration = spark._jsparkSession.sessionState().newHadoopConf()
    return path, path.getFileSystem(configuration)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: __main__.py <script location>")
    sys.exit(main(sys.argv[1]))
