# SPDX-License-Identifier: Apache-2.0
"""The whole path over Spark Connect, where there is no Java to reach: create, refresh, go stale, read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.spark.conftest import make_lake
from tests.spark.processes import ROOT, connect_server, environment

AIRFLOW_MV = str(Path(sys.executable).parent / "airflow-mv")
READER = """
import json, logging, sys
logging.basicConfig(level=logging.INFO, format="%(message)s")
from pyspark.sql import SparkSession
import airflow_mv
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
frame = airflow_mv.read(spark, sys.argv[2])
print(json.dumps(sorted([list(row) for row in frame.collect()])))
spark.stop()
"""


@pytest.mark.cluster
def test_a_stale_view_is_refreshed_before_a_connect_session_reads_it(tmp_path: Path) -> None:
    """A reader in a Spark job gets the same rules as one in a task, and is told which refresh it reads."""
    lake = make_lake(tmp_path)
    # In variables pyiceberg makes `-` of the `_` in a catalog's name; in its file a name stays as it is.
    (tmp_path / ".pyiceberg.yaml").write_text(yaml.safe_dump({"catalog": {lake.name: lake.properties}}))
    variables = environment(PYICEBERG_HOME=str(tmp_path))
    view = f"{lake.name}.sales.daily"

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stderr[-3000:]
        return done

    def rows_of_reader(remote: str) -> tuple[Any, str]:
        done = run(sys.executable, "-c", READER, remote, view)
        return json.loads(done.stdout.splitlines()[-1]), done.stderr

    with connect_server(tmp_path, lake.settings.session_confs()) as remote:
        run(AIRFLOW_MV, "create", view, "--sql", lake.query(), "--remote", remote, "--json")
        rows, log = rows_of_reader(remote)
        (status,) = json.loads(run(AIRFLOW_MV, "status", view, "--json").stdout)
        assert rows == [["a", 10], ["b", 25]]
        assert status["state"] == "fresh"
        assert status["refresh_id"] in log, "the reader is told which refresh it reads"
        again, log = rows_of_reader(remote)
        assert again == rows
        assert "refreshing it" not in log
