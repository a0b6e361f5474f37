# SPDX-License-Identifier: Apache-2.0
"""A real Airflow (SQLite, no scheduler), a real lake behind connections, and runs of DAG files with their logs."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL

from airflow_mv.triggers.connected import forget
from airflow_mv.triggers.freshness import FreshnessPoll, MaterializedViewFreshTrigger
from examples.demo.home import DemoHome
from tests.airflow.deployment import Shared
from tests.airflow.runner import ANSWER
from tests.builders import Lake, lake
from tests.services import postgres_database

#: The URL of Spark applications, as configured in Airflow.
HISTORY = "http://history.example.com/"
VIEW = "lake.sales.daily"
#: Small data needs small settings; they also show that a user's ``conf`` is preserved.
SMALL = '{"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}'
_HEADER = """\
from datetime import timedelta
from airflow_mv.operators import *
from airflow_mv.sensors import *
from airflow_mv.assets import materialized_view_asset
from airflow.sdk import DAG, chain, task
"""


def seen_by(trigger: MaterializedViewFreshTrigger) -> FreshnessPoll:
    """Poll once, and take no result of an earlier poll."""
    trigger.poke_interval = 0.0
    return asyncio.run(trigger.poll())


@dataclass(frozen=True)
class Run:
    """A finished DAG run, and its results in Airflow's database."""

    log: str
    state: str = ""
    seconds: float = 0.0
    import_error: str = ""
    states: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    xcoms: list[list[Any]] = field(default_factory=list)
    rendered: dict[str, dict[str, Any]] = field(default_factory=dict)
    events: list[list[Any]] = field(default_factory=list)

    def task_log(self, task_id: str) -> str:
        """The part of the log that a task wrote."""
        return self.log.partition(f"starting task_id={task_id} ")[2].partition(f"end task task_id={task_id} ")[0]


@dataclass
class Airflow:
    """Runs DAGs; its process starts with the first run, with this environment. Settings may change between runs."""

    folder: Path
    connections: dict[str, dict[str, Any]] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None

    def connect(self, conn_id: str, **fields: Any) -> None:
        """Add a connection for the runs and for this process."""
        forget()
        self.connections[conn_id] = fields
        os.environ[f"AIRFLOW_CONN_{conn_id.upper()}"] = json.dumps(fields)

    def disconnect(self) -> None:
        """Remove all connections and settings."""
        forget()
        for conn_id in self.connections:
            os.environ.pop(f"AIRFLOW_CONN_{conn_id.upper()}", None)
        self.connections.clear()
        self.settings.clear()

    def run(self, tasks: str, meanwhile: tuple[str, Callable[[], object]] | None = None, **arguments: Any) -> Run:
        """Run a DAG with these tasks; ``meanwhile`` is called once, when the log contains its text."""
        file = self.folder / f"dag_{uuid.uuid4().hex[:8]}.py"
        body = textwrap.indent(textwrap.dedent(tasks), "    ")
        file.write_text(f'{_HEADER}\nwith DAG("{file.stem}", schedule=None):\n{body}\n')
        return self.run_file(file, meanwhile, **arguments)

    def run_file(self, file: Path, meanwhile: tuple[str, Callable[[], object]] | None = None, **arguments: Any) -> Run:
        """Run the DAG of a file."""
        process = self._started()
        connections = {f"AIRFLOW_CONN_{key.upper()}": json.dumps(value) for key, value in self.connections.items()}
        environment = {"AIRFLOW__AIRFLOW_MV__SPARK_APPLICATION_URL": f"{HISTORY}{{application_id}}"}
        environment |= connections | self.settings
        answer = self.folder / f"{file.stem}.answer.json"
        request = {"file": str(file), "arguments": arguments, "environment": environment, "answer": str(answer)}
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        lines: list[str] = []
        for line in process.stdout:
            if line.startswith(ANSWER):
                print("".join(lines))  # pytest shows it if the test fails
                return Run("".join(lines), **json.loads(answer.read_text()))
            lines.append(line)
            if meanwhile and meanwhile[0] in line:
                meanwhile[1]()
                meanwhile = None
        pytest.fail(f"Airflow's process ended: {''.join(lines[-40:])}")

    def _started(self) -> subprocess.Popen[str]:
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.airflow.runner"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=Path(__file__).parents[2],
                env={
                    **_without_connections(),
                    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                    **self.environment,
                },
            )
        return self.process

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            assert self.process.stdin
            assert self.process.stdout
            self.process.stdin.close()
            self.process.wait(120)
            self.process.stdout.close()


def _without_connections() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_CONN_")}


@pytest.fixture(scope="session")
def shared_airflow(_postgres: URL, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """A complete Airflow with a scheduler, for all modules that need one."""
    with postgres_database(_postgres) as database:
        found = Shared(DemoHome(tmp_path_factory.mktemp("shared")), database)
        yield found
        found.stop()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop Airflow's processes before tests that do not use them."""
    shared = getattr(item, "funcargs", {}).get("shared_airflow")
    if shared and "shared_airflow" not in getattr(nextitem, "fixturenames", ()):
        shared.stop()


_RUNNING = pytest.StashKey[Airflow]()


@pytest.fixture(scope="session")
def _airflow(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Airflow:
    """One process, also for modules of other folders, which import this fixture and would get one of their own."""
    stash = request.config.stash
    if _RUNNING not in stash:
        stash[_RUNNING] = Airflow(tmp_path_factory.mktemp("dags"))
        request.config.add_cleanup(stash[_RUNNING].close)
    return stash[_RUNNING]


@pytest.fixture(scope="module")
def module_airflow(_airflow: Airflow) -> Iterator[Airflow]:
    """Airflow without connections, for a story that several tests read."""
    _airflow.disconnect()
    yield _airflow
    _airflow.disconnect()


@pytest.fixture
def airflow(_airflow: Airflow) -> Iterator[Airflow]:
    """Airflow without connections."""
    before = dict(_airflow.connections)
    _airflow.disconnect()
    yield _airflow
    _airflow.disconnect()
    for conn_id, fields in before.items():
        _airflow.connect(conn_id, **fields)


@contextmanager
def lake_behind(airflow: Airflow, folder: Path, **extra: str) -> Iterator[Lake]:
    """A lake with a base table in a folder, behind Airflow's default connections."""
    (folder / "warehouse").mkdir()
    uri, warehouse = f"sqlite:///{folder}/catalog.db", folder / "warehouse"
    properties = {"type": "sql", "uri": uri, "warehouse": f"file://{warehouse}", **extra}
    airflow.connect("iceberg_default", conn_type="iceberg", extra=properties)
    airflow.connect("spark_default", conn_type="spark", host="local[2]")
    with lake(uri, warehouse) as found:
        found.table()
        yield found


@pytest.fixture
def sales(airflow: Airflow, tmp_path: Path) -> Iterator[Lake]:
    """A lake with a base table, behind the default connections."""
    with lake_behind(airflow, tmp_path) as found:
        yield found


@pytest.fixture
def daily(sales: Lake) -> Lake:
    """The lake with a view of the base table, refreshed."""
    sales.view()
    sales.refresh()
    return sales
