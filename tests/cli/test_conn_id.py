# SPDX-License-Identifier: Apache-2.0
"""``--conn-id``: the catalog of a command comes from an Airflow connection."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import lake
from tests.cli.support import call

AIRFLOW_MV = str(Path(sys.executable).parent / "airflow-mv")


#: Adds a connection to Airflow's database.
STORE = """
import sys
from airflow.models import Connection, import_all_models
from airflow.models.base import Base
from airflow.utils.session import create_session
from airflow_mv.tasks.older_airflow import engine_of_database

import_all_models()
Base.metadata.create_all(engine_of_database())
with create_session() as session:
    session.add(Connection(conn_id="my_lake", conn_type="iceberg", extra=sys.argv[1]))
"""


def test_a_command_opens_the_catalog_of_an_airflow_connection(sqlite_uri: str, warehouse: Path, tmp_path: Path) -> None:
    """An operator and a command find the same connection in Airflow's database; stdout is one document."""
    with lake(sqlite_uri, warehouse) as home:
        home.table()
        home.view()
        extra = {"type": "sql", "uri": sqlite_uri, "warehouse": str(warehouse)}
        database = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow.db"}
        variables = {**os.environ, **database}
        subprocess.run([sys.executable, "-c", STORE, json.dumps(extra)], env=variables, check=True, timeout=500)

        def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
            command = [AIRFLOW_MV, *arguments, "--json"]
            return subprocess.run(command, env={**variables, **more}, capture_output=True, text=True, timeout=500)

        found = run("status", "lake.sales.daily", "--conn-id", "my_lake")
        assert found.returncode == 0, found.stderr
        assert [item["state"] for item in json.loads(found.stdout)] == ["never-refreshed"]
        assert "Skipping masking" not in found.stderr

        missing = run("status", "lake.sales.daily", "--conn-id", "nowhere")
        assert (missing.returncode, missing.stdout) == (1, "")
        assert "there is no connection 'nowhere' (iceberg_conn_id). Add it: airflow connections add" in missing.stderr

        program = "from airflow_mv.hooks import MaterializedViewHook; MaterializedViewHook('my_lake').get_conn()"
        plain = subprocess.run(
            [sys.executable, "-c", program], env=variables, capture_output=True, text=True, timeout=500
        )
        assert "it did not search Airflow's database. Set the variable AIRFLOW_CONN_MY_LAKE" in plain.stderr


@pytest.mark.parametrize(
    ("url", "reason", "command"),
    [
        # A database for which Airflow would also load a driver that is not installed: asyncpg.
        ("postgresql+psycopg2://me:hunter22secret@127.0.0.1:1/nothing", "(postgresql, 127.0.0.1, nothing)", "status"),
        ("sqlite:////tmp/no-such-folder/airflow.db", "unable to open database file", "doctor"),
        ("hunter22secret", "Airflow cannot be loaded", "status"),
    ],
)
def test_airflows_database_cannot_be_read(url: str, reason: str, command: str) -> None:
    """Whether it has the connection is not known then. The setting is named, and no password is shown."""
    environment = {**os.environ, "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url}
    what = ["lake.sales.daily"] if command == "status" else []
    arguments = [AIRFLOW_MV, command, *what, "--conn-id", "my_lake", "--json"]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=500)
    said = done.stdout + done.stderr
    assert done.returncode == 1
    assert reason in said
    assert "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN" in said
    assert "there is no connection" not in said
    assert "hunter22secret" not in said


def test_warnings_after_airflow_was_loaded_go_to_stderr() -> None:
    """Airflow writes warnings to stdout, which is for the document of --json."""
    code = "from airflow_mv.cli.context import airflow_connections\nwith airflow_connections(): import warnings\n"
    done = subprocess.run([sys.executable, "-c", f"{code}warnings.warn('odd')"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, "UserWarning: odd" in done.stderr) == (0, "", True)


def test_doctor_checks_the_catalog_of_a_connection(
    sqlite_uri: str, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that is for no particular catalog needs its name."""
    extra = {"type": "sql", "uri": sqlite_uri, "warehouse": str(warehouse)}
    bound = {"catalog_name": "lake", "airflow-mv.registry": f"{warehouse}/registry"}
    for conn_id, more in (("ANY", {}), ("BOUND", bound)):
        value = json.dumps({"conn_type": "iceberg", "extra": {**extra, **more}})
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id}", value)
    with lake(sqlite_uri, warehouse) as home:
        home.table()
        home.view()
        found = {item["check"]: item for item in call("doctor", "--conn-id", "bound", "--json").json}
        assert found["connection bound"]["found"] == "type iceberg, for the catalog lake"
        assert found["catalog lake"]["found"].startswith("1 view, ")
        assert "iceberg-spark-runtime" in found["jars for lake"]["found"]
        registry = found["registry of lake"]["found"]
        assert f"airflow-mv.registry = '{warehouse}/registry' (connection bound)" in registry
        assert "airflow-mv.registry.max-files = '8' (default)" in registry

        nameless = call("doctor", "--conn-id", "any", "--json")
        assert nameless.code == 1
        assert "airflow-mv doctor CATALOG --conn-id any" in nameless.json[-1]["fix"]
