# SPDX-License-Identifier: Apache-2.0
"""Read a view of the layout ``table`` by its name, as people do who do not have this package."""

from __future__ import annotations

from typing import Any

from airflow_mv.catalog.spark import spark_settings
from examples.demo.home import CATALOG, NAMESPACE, DemoHome

#: Rows and flights of the view.
QUERY = "SELECT count(*) AS view_rows, sum(flights) AS flights FROM {table}"


def with_spark(home: DemoHome, view: str) -> tuple[Any, ...]:
    """Return the query's row from Spark SQL. The settings are those of any Iceberg catalog in a database."""
    from pyspark.sql import SparkSession

    properties, catalog = home.catalog_properties, f"spark.sql.catalog.{CATALOG}"
    settings: dict[str, bool | float | int | str | None] = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Iceberg's runtime and the database's driver, in the versions that the demo has fetched.
        "spark.jars.packages": ",".join(spark_settings(CATALOG, properties).packages),
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        f"{catalog}.uri": properties["uri"].replace("sqlite:///", "jdbc:sqlite:"),
        f"{catalog}.warehouse": properties["warehouse"],
        f"{catalog}.jdbc.schema-version": "V1",
    }
    spark = SparkSession.builder.config(map=settings).getOrCreate()
    try:
        spark.sparkContext.setLogLevel("ERROR")
        return tuple(spark.sql(QUERY.format(table=f"{CATALOG}.{NAMESPACE}.{view}")).collect()[0])
    finally:
        spark.stop()


def with_duckdb(home: DemoHome, view: str) -> tuple[Any, ...]:
    """Return the query's row from DuckDB, for which pyiceberg reads the table."""
    from pyiceberg.catalog import load_catalog

    table = load_catalog(CATALOG, **home.catalog_properties).load_table((NAMESPACE, view))
    (row,) = table.scan().to_duckdb(view).sql(QUERY.format(table=view)).fetchall()
    return tuple(row)
