# SPDX-License-Identifier: Apache-2.0
"""Fixtures with one Spark session; a folder uses them by importing them in its conftest."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_mv.core.catalog import MaterializedViewCatalog
from tests.engine.support import LAKE, OTHER, Lake, configure, open_spark


def pytest_configure(config: pytest.Config) -> None:
    """py4j leaves idle sockets to the garbage collector, which may run during any later test."""
    config.addinivalue_line("filterwarnings", "ignore:unclosed <socket.socket:ResourceWarning")


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="airflow-mv-lake-"))


@pytest.fixture(scope="session")
def lake_folder() -> Iterator[Path]:
    """The folder of the two catalogs of all tests that start Spark."""
    yield _folder()
    shutil.rmtree(_folder(), ignore_errors=True)


@pytest.fixture
def lake(lake_folder: Path) -> Lake:
    """An empty namespace for this test."""
    return new_lake(lake_folder)


@pytest.fixture
def spark(lake: Lake) -> SparkSession:
    """The only session of the process."""
    return lake.spark


def new_lake(folder: Path) -> Lake:
    """Return an empty namespace, in a session with both catalogs."""
    configure(folder, LAKE, OTHER)
    catalog = MaterializedViewCatalog(LAKE)
    catalog.other(OTHER)
    session = open_spark(catalog)
    session.catalog.setCurrentCatalog("spark_catalog")
    found = Lake(session, catalog, f"n{uuid.uuid4().hex[:8]}")
    found.files.create_namespace(found.namespace)
    return found
