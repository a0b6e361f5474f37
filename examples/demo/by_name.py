# SPDX-License-Identifier: Apache-2.0
"""Read a view of the layout ``table`` by its name, as people do who do not have this package."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from airflow_mv.errors import JobError
from examples.demo.home import CATALOG, NAMESPACE, DemoHome

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Rows and flights of the view.
QUERY = "SELECT count(*) AS view_rows, sum(flights) AS flights FROM {table}"


class SparkProcess:
    """A process with a session of Spark SQL, which starts while other work is done. The base tables are loaded.

    Args:
        home: The demo's folder.
    """

    def __init__(self, home: DemoHome) -> None:
        self._log_file = home.folder / "spark.log"
        with self._log_file.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "examples.demo.by_name"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def ask(self, view: str) -> tuple[Any, ...]:
        """Return the query's row.

        Raises:
            JobError: Spark gave none; the message names its log.
        """
        output, _ = self._process.communicate(f"{view}\n")
        if self._process.returncode != 0:
            raise JobError(f"Spark has not read {view}; its log is {self._log_file}")
        return tuple(json.loads(output.splitlines()[-1]))

    def close(self) -> None:
        """End the process, if it still runs."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()


def main(home: DemoHome) -> None:
    """Open a session, wait for a view's name on stdin, and print the query's row."""
    spark = _session(home)
    # The first query of a session takes seconds, for any table. They pass while Airflow runs the DAG.
    spark.table(f"{CATALOG}.{NAMESPACE}.airlines").count()
    view = sys.stdin.readline().strip()
    if view:
        print(json.dumps(spark.sql(QUERY.format(table=f"{CATALOG}.{NAMESPACE}.{view}")).collect()[0]))
    spark.stop()


def _session(home: DemoHome) -> SparkSession:
    """Open a session with the settings of any Iceberg catalog in a database."""
    from pyspark.sql import SparkSession

    from airflow_mv.extras.spark.settings import spark_settings
    from airflow_mv.extras.spark.submit import jar_confs

    properties, catalog = home.catalog_properties, f"spark.sql.catalog.{CATALOG}"
    settings: dict[str, bool | float | int | str | None] = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Iceberg's runtime and the database's driver, in the versions that the demo has fetched.
        **jar_confs({"spark.jars.packages": ",".join(spark_settings(CATALOG, properties).packages)}),
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        f"{catalog}.uri": properties["uri"].replace("sqlite:///", "jdbc:sqlite:"),
        f"{catalog}.warehouse": properties["warehouse"],
        f"{catalog}.jdbc.schema-version": "V1",
    }
    return SparkSession.builder.config(map=settings).getOrCreate()


def with_duckdb(home: DemoHome, view: str) -> tuple[Any, ...]:
    """Return the query's row from DuckDB, for which pyiceberg reads the table."""
    from pyiceberg.catalog import load_catalog

    table = load_catalog(CATALOG, **home.catalog_properties).load_table((NAMESPACE, view))
    (row,) = table.scan().to_duckdb(view).sql(QUERY.format(table=view)).fetchall()
    return tuple(row)


if __name__ == "__main__":
    main(DemoHome.default())
