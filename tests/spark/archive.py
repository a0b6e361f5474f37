# SPDX-License-Identifier: Apache-2.0
"""How the tests start Java for Spark: dozens of short lives, of which most goes into loading and compiling classes.

``python -m tests.spark.archive`` keeps Spark's classes as Java has them in memory, in a file in the virtual
environment; each start reads them from there. A Java or Spark that the file is not of ignores it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

#: The second compiler and the parallel collector pay for themselves after minutes only; and what is small by default,
#: the space for classes, compiled code and new objects, is tidied up again and again while Spark starts.
_SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m -XX:ReservedCodeCacheSize=200m -Xms600m -Xmn300m"
)
_QUIET = "-Xlog:disable"
_STATEMENTS = (
    "CREATE TABLE lake.s.t (k INT, n BIGINT) USING iceberg",
    "INSERT INTO lake.s.t SELECT CAST(id % 3 AS INT), id FROM range(9)",
    "MERGE INTO lake.s.t t USING (SELECT 1 AS k) u ON t.k = u.k WHEN MATCHED THEN UPDATE SET n = t.n + 1",
    "INSERT OVERWRITE lake.s.t SELECT k, sum(n) FROM lake.s.t GROUP BY k",
    "SELECT t.k, u.n FROM lake.s.t t LEFT JOIN lake.s.t u ON t.k = u.n ORDER BY t.k",
)


def archive() -> Path:
    """The file, whether it is there or not."""
    return Path(sys.prefix) / f"spark-{version('pyspark')}.jsa"


def java_options() -> str:
    """What Java is given beside what Spark gives it."""
    found = f" {_QUIET} -XX:SharedArchiveFile={archive()}" if archive().exists() else ""
    return _SHORT_LIVED + found


def main() -> None:
    """Make the file, unless it is there."""
    if archive().exists():
        return
    from pyspark.core.context import SparkContext

    from airflow_mv.catalog.spark import spark_settings
    from airflow_mv.job.session import open_session

    made = archive().with_suffix(".new")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{_SHORT_LIVED} {_QUIET} -XX:ArchiveClassesAtExit={made}"
    with tempfile.TemporaryDirectory() as folder:
        properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
        spark = open_session(spark_settings("lake", properties).session_confs(), master="local[2]")
        spark.sql("CREATE NAMESPACE lake.s").collect()
        for statement in _STATEMENTS:
            spark.sql(statement).collect()
        java = SparkContext._gateway.proc  # type: ignore[union-attr]
        spark.stop()
        SparkContext._gateway.shutdown()  # type: ignore[union-attr]
        java.stdin.close()
        java.wait(300)
    if made.exists():
        made.rename(archive())


if __name__ == "__main__":
    main()
