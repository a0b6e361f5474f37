# SPDX-License-Identifier: Apache-2.0
"""How the tests start Java for Spark: many short processes, of which most time goes into loading and compiling classes.

``python -m tests.core.job.archive`` makes two files in the virtual environment: an archive of Spark's classes as Java
has them in memory, which each start reads, and a jar of ``LocalFiles.java``. Without them the tests are slower. A Java
or Spark of another version ignores the archive.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

#: The second compiler and the parallel collector are only useful after minutes; memory areas that are small by default
#: (for classes, compiled code and new objects) would be collected repeatedly while Spark starts.
_SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m -XX:ReservedCodeCacheSize=200m -Xms600m -Xmn300m"
)
_QUIET = "-Xlog:disable"
_LOCAL_FILES = Path(__file__).with_name("LocalFiles.java")
_CORE_SITE = "<configuration><property><name>fs.file.impl</name><value>LocalFiles</value></property></configuration>\n"
_STATEMENTS = (
    "CREATE TABLE lake.s.t (k INT, n BIGINT) USING iceberg",
    "INSERT INTO lake.s.t SELECT CAST(id % 3 AS INT), id FROM range(9)",
    "MERGE INTO lake.s.t t USING (SELECT 1 AS k) u ON t.k = u.k WHEN MATCHED THEN UPDATE SET n = t.n + 1",
    "INSERT OVERWRITE lake.s.t SELECT k, sum(n) FROM lake.s.t GROUP BY k",
    "SELECT t.k, u.n FROM lake.s.t t LEFT JOIN lake.s.t u ON t.k = u.n ORDER BY t.k",
)


def archive() -> Path:
    """Return the archive's path, whether the file exists or not."""
    try:
        spark = version("pyspark")
    except PackageNotFoundError:  # Spark is another environment's
        spark = "none"
    return Path(sys.prefix) / f"spark-{spark}.jsa"


def local_files() -> Path:
    """Return the path of the jar with the local file system, whether the file exists or not."""
    return Path(sys.prefix) / "local-files.jar"


def java_options() -> str:
    """Return Java's options in addition to those of Spark."""
    found = f" {_QUIET} -XX:SharedArchiveFile={archive()}" if archive().exists() else ""
    return _SHORT_LIVED + found


def class_path() -> dict[str, str]:
    """Return the variable that adds the local file system to the end of Spark's class path."""
    return {"SPARK_DIST_CLASSPATH": str(local_files())} if local_files().exists() else {}


def main() -> None:
    """Make what is missing."""
    if not local_files().exists():
        _make_local_files()
    if not archive().exists():
        _make_archive()


def _make_local_files() -> None:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    jars = os.pathsep.join(map(str, Path(spec.origin).with_name("jars").glob("hadoop-client-*.jar")))
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java") or "java"
    with tempfile.TemporaryDirectory() as folder:
        # The compiler as a module: a runtime without the program `javac` has it, too.
        compiler = [java, "-m", "jdk.compiler/com.sun.tools.javac.Main", "-proc:none", "-nowarn", "-cp", jars]
        subprocess.run([*compiler, "-d", folder, str(_LOCAL_FILES)], check=True)
        made = local_files().with_suffix(".new")
        with zipfile.ZipFile(made, "w") as jar:
            jar.writestr("core-site.xml", _CORE_SITE)
            for path in sorted(Path(folder).glob("*.class")):
                jar.write(path, path.name)
    made.rename(local_files())


def _make_archive() -> None:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyspark.core.context import SparkContext

    from airflow_mv.extras.spark.session import open_session
    from airflow_mv.extras.spark.settings import spark_settings

    made = archive().with_suffix(".new")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{_SHORT_LIVED} {_QUIET} -XX:ArchiveClassesAtExit={made}"
    os.environ.update(class_path())
    with tempfile.TemporaryDirectory() as folder:
        properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
        SqlCatalog("lake", **properties).engine.dispose()  # makes the database's tables
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
