# SPDX-License-Identifier: Apache-2.0
"""All steps over Spark Connect, without access to Java: create, refresh, become stale, read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pyiceberg.catalog.sql import SqlCatalog

from airflow_mv.common.status import status
from airflow_mv.core.catalog import MaterializedViewCatalog
from tests.core.job.conftest import make_lake
from tests.core.job.processes import ROOT, environment

READER = """
import json, logging, sys
from pyspark.sql import SparkSession
import airflow_mv
from tests.cli.support import call
remote, view, sql = sys.argv[1:]
made = call("create", view, "--sql", sql, "--remote", remote, "--json")
assert made.code == 0, made.stderr
logging.basicConfig(level=logging.INFO, format="%(message)s")
logging.getLogger("airflow_mv").setLevel(logging.NOTSET)  # as it was before the command
spark = SparkSession.builder.remote(remote).getOrCreate()
for _ in range(2):
    frame = airflow_mv.read(spark, view)
    print(json.dumps(sorted([list(row) for row in frame.collect()])))
    print("-- read", file=sys.stderr, flush=True)
spark.stop()
"""


@pytest.mark.cluster
def test_a_stale_view_is_refreshed_before_a_connect_session_reads_it(tmp_path: Path, connect: str) -> None:
    """A reader in a Spark job gets the same rules as one in a task; the refresh that it reads is logged."""
    lake = make_lake(tmp_path)
    # In environment variables pyiceberg replaces the `_` of a catalog's name by `-`; in its file a name is not changed.
    (tmp_path / ".pyiceberg.yaml").write_text(yaml.safe_dump({"catalog": {lake.name: lake.properties}}))
    variables = environment(PYICEBERG_HOME=str(tmp_path))
    view = f"{lake.name}.sales.daily"
    command = [sys.executable, "-c", READER, connect, view, lake.query()]
    read = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=500)
    assert read.returncode == 0, read.stderr[-3000:]
    catalog = SqlCatalog(lake.name, **lake.properties)
    found = status(MaterializedViewCatalog(catalog), view)
    catalog.engine.dispose()

    rows = [json.loads(line) for line in read.stdout.splitlines()[-2:]]
    first, again, _ = read.stderr.split("-- read")
    assert rows == [[["a", 10], ["b", 25]]] * 2
    assert found.state == "fresh"
    assert "refreshing it" in first
    assert found.to_dict()["refresh_id"] in first, "the refresh that is read is logged"
    assert "refreshing it" not in again
