# SPDX-License-Identifier: Apache-2.0
"""``--conn-id``: the catalog of a command comes from an Airflow connection."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.builders import lake

AIRFLOW_MV = str(Path(sys.executable).parent / "airflow-mv")


def test_a_command_opens_the_catalog_of_an_airflow_connection(sqlite_uri: str, warehouse: Path) -> None:
    """An operator's connection and a command see the same views; stdout is one document."""
    with lake(sqlite_uri, warehouse) as home:
        home.table()
        home.view()
        extra = {"type": "sql", "uri": sqlite_uri, "warehouse": str(warehouse)}
        connection = json.dumps({"conn_type": "iceberg", "extra": extra})
        variables = {**os.environ, "AIRFLOW_CONN_MY_LAKE": connection}

        def status(conn_id: str) -> subprocess.CompletedProcess[str]:
            command = [AIRFLOW_MV, "status", "lake.sales.daily", "--conn-id", conn_id, "--json"]
            return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=500)

        found = status("my_lake")
        assert found.returncode == 0, found.stderr
        assert [item["state"] for item in json.loads(found.stdout)] == ["never-refreshed"]
        missing = status("nowhere")
        assert (missing.returncode, missing.stdout) == (1, "")
        assert "there is no connection 'nowhere'" in missing.stderr
