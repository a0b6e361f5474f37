# SPDX-License-Identifier: Apache-2.0
"""docs/spark.md: the Spark Connect server's command and packages are those that a catalog needs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_mv.extras.spark.settings import RUNTIME, spark_settings
from tests.core.job.processes import SPARK_HOME, command_line, serving
from tests.services import free_port

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8").partition("## Spark Connect")[2]
S3, GS, ABFSS, FILE = (
    "s3://bucket/lake",
    "gs://bucket/lake",
    "abfss://c@account.dfs.core.windows.net/lake",
    "file:///lake",
)


@pytest.mark.parametrize(
    ("catalog", "properties"),
    [
        ("SQLite", {"type": "sql", "uri": "sqlite:////catalog.db", "warehouse": FILE}),
        ("PostgreSQL", {"type": "sql", "uri": "postgresql+psycopg2://host/catalog", "warehouse": FILE}),
        ("REST, Hive", {"type": "rest", "uri": "https://host", "warehouse": FILE}),
        ("REST, Hive", {"type": "hive", "uri": "thrift://host:9083", "warehouse": FILE}),
        ("s3://", {"type": "glue", "warehouse": S3}),
        ("s3://", {"type": "rest", "uri": "https://host", "warehouse": S3}),
        ("gs://", {"type": "rest", "uri": "https://host", "warehouse": GS}),
        ("abfss://", {"type": "rest", "uri": "https://host", "warehouse": ABFSS}),
    ],
)
def test_the_packages_of_a_connect_server_are_those_that_a_catalog_needs(
    catalog: str, properties: dict[str, str]
) -> None:
    (row,) = [line for line in PAGE.splitlines() if line.startswith("|") and catalog in line.split("|")[1]]
    shown = {f"`{package}`" for package in spark_settings("lake", properties).packages if package != RUNTIME}
    assert shown <= set(re.findall(r"`[\w.]+:[\w.-]+:[\w.]+`", row))
    assert shown or "none" in row


@pytest.mark.slow
@pytest.mark.cluster
def test_the_command_of_the_connect_server_works_as_pasted(tmp_path: Path) -> None:
    """PyPI's PySpark has the program, and the session reaches a catalog that the server was not started with."""
    (pasted,) = re.findall(r"<!-- connect-server -->\n```\n(.*?)```", PAGE, re.DOTALL)
    port = free_port()
    local = f"--conf spark.connect.grpc.binding.port={port} --conf spark.log.level=INFO spark-internal"
    command = ["bash", "-c", f"PATH={SPARK_HOME}/bin:$PATH; " + pasted.replace("spark-internal", local)]
    uri = f"sqlite:///{tmp_path}/catalog.db"
    named = {"TYPE": "sql", "URI": uri, "WAREHOUSE": f"file://{tmp_path}/warehouse"}
    with (
        serving(command, tmp_path / "server.log", "Spark Connect server started at"),
        command_line(**{f"PYICEBERG_CATALOG__LAKE__{key}": value for key, value in named.items()}) as call,
    ):
        done = call("doctor", "lake", "--spark", "--remote", f"sc://127.0.0.1:{port}")
        assert "✓ Spark with lake: Spark 4" in done.stdout, done
