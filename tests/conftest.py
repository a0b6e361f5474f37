# SPDX-License-Identifier: Apache-2.0
"""What every test may ask for: an environment of our own, a warehouse folder, a database."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import URL

from tests.services import POSTGRES_URL_VARIABLE, ServiceUnavailableError, postgres_database, postgres_server

#: Airflow and pyiceberg read these once, when they are imported: so they are set before any test module is.
_HOME = Path(tempfile.mkdtemp(prefix="airflow-mv-tests-"))
_FOREIGN = ("AIRFLOW", "PYICEBERG_", "SPARK_", "PYSPARK_")
_KEPT = (POSTGRES_URL_VARIABLE,)
_OURS = {
    "AIRFLOW_HOME": str(_HOME / "airflow"),
    "AIRFLOW__CORE__DAGS_FOLDER": str(_HOME / "airflow" / "dags"),
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{_HOME}/airflow/airflow.db",
    "PYICEBERG_HOME": str(_HOME),
    "SPARK_LOCAL_IP": "127.0.0.1",
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
}

for _name in [name for name in os.environ if name.startswith(_FOREIGN) and name not in _KEPT]:
    del os.environ[_name]
os.environ.update(_OURS)
(_HOME / "airflow" / "dags").mkdir(parents=True)
(_HOME / ".pyiceberg.yaml").write_text("legacy-current-snapshot-id: False\n")  # the default; hides the user's file

# py4j speaks of its sockets even while the interpreter ends, when there is no stream to write to any more.
logging.getLogger("py4j").setLevel(logging.ERROR)

_missing_services: list[str] = []


def pytest_unconfigure() -> None:
    """Leave nothing behind."""
    shutil.rmtree(_HOME, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that asks for PostgreSQL need not say so twice."""
    for item in items:
        if "postgres_uri" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.postgres)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly what was not tested."""
    for reason in _missing_services:
        terminalreporter.write_sep("!", "NOT TESTED", red=True, bold=True)
        terminalreporter.write_line(reason)


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """An empty folder for tables."""
    folder = tmp_path / "warehouse"
    folder.mkdir()
    return folder


@pytest.fixture
def sqlite_uri(tmp_path: Path) -> str:
    """The URI of a catalog database that does not exist yet."""
    return f"sqlite:///{tmp_path}/catalog.db"


@pytest.fixture(scope="session")
def _postgres() -> Iterator[URL]:
    with ExitStack() as stack:
        try:
            server = stack.enter_context(postgres_server())
        except ServiceUnavailableError as error:
            _missing_services.append(str(error))
            if os.environ.get("CI"):
                pytest.fail(str(error))  # where the answer counts, a missing server is a failure
            pytest.skip(str(error))
        yield server


@pytest.fixture
def postgres_uri(_postgres: URL) -> Iterator[str]:
    """The SQLAlchemy URI (with its password) of an empty PostgreSQL database of this test's own."""
    with postgres_database(_postgres) as uri:
        yield uri
