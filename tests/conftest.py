# SPDX-License-Identifier: Apache-2.0
"""Fixtures of all tests: an isolated environment, a warehouse folder, a database."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import settings
from sqlalchemy import URL, Engine, event
from xdist.remote import Producer

import tests.pairs  # noqa: F401 (before anything reads the versions)
from tests.core.job.archive import class_path, java_options
from tests.rest.java import java_process
from tests.scheduling import FromBothEnds, place, room_of
from tests.services import (
    RestServers,
    ServiceUnavailableError,
    conditional_glue,
    empty_database,
    empty_glue,
    postgres_database,
    postgres_server,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.faults import Clock
    from tests.rest.reference import Reference

#: A file system in memory, and how many free bytes it must have. On a disk the tests would wait, mostly for deletions.
_MEMORY, _ENOUGH = Path("/dev/shm"), 6 * 2**30


def _temporary_folder() -> str:
    """Return the folder for all temporary files of the tests and of the processes that they start."""
    if "TMPDIR" not in os.environ and os.access(_MEMORY, os.W_OK):
        found = os.statvfs(_MEMORY)
        if found.f_bavail * found.f_frsize >= _ENOUGH and not found.f_flag & os.ST_NOEXEC:
            return str(_MEMORY)
    return tempfile.gettempdir()


#: Airflow and pyiceberg read these when they are imported, so they are set before any test module is imported.
tempfile.tempdir = _temporary_folder()
_HOME = Path(tempfile.mkdtemp(prefix="airflow-mv-tests-"))
_FOREIGN = ("AIRFLOW", "PYICEBERG_", "SPARK_", "PYSPARK_")
#: Those of the tests themselves.
_KEPT = ("AIRFLOW_MV_TEST_", "AIRFLOW_MV_FUZZ_")
_OURS = {
    "AIRFLOW_HOME": str(_HOME / "airflow"),
    "AIRFLOW__CORE__DAGS_FOLDER": str(_HOME / "airflow" / "dags"),
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{_HOME}/airflow/airflow.db",
    "AIRFLOW_MV_CACHE": str(_HOME / "cache"),
    "PYICEBERG_HOME": str(_HOME),
    "SPARK_LOCAL_DIRS": tempfile.gettempdir(),
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_SUBMIT_OPTS": java_options(),
    **class_path(),
    "TMPDIR": tempfile.gettempdir(),
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
}

for _name in [name for name in os.environ if name.startswith(_FOREIGN) and not name.startswith(_KEPT)]:
    del os.environ[_name]
os.environ.update(_OURS)
if _spark := os.environ.get("AIRFLOW_MV_TEST_SPARK_HOME"):  # this environment has no Spark of its own
    os.environ["PATH"] = f"{_spark}/bin{os.pathsep}{os.environ['PATH']}"
(_HOME / "airflow" / "dags").mkdir(parents=True)
# Hides the user's own file. If there is none, none is written: pyiceberg parses it for each catalog and each commit.
if any((folder / ".pyiceberg.yaml").exists() for folder in (Path.home(), Path.cwd())):
    (_HOME / ".pyiceberg.yaml").write_text("legacy-current-snapshot-id: False\n")  # the default

# The tests' own catalogs have tables as Spark and newer versions of pyiceberg create them.
if version("pyiceberg").startswith("0.11."):
    from tests.older import create_tables_with_kinds

    create_tables_with_kinds()

from tests.repeated import compute_once  # noqa: E402 (it imports pyiceberg)

compute_once()

# Flushing to disk only costs time: no test cuts the power, and the tests of durability record the flushes.
os.fsync = lambda descriptor: None


@event.listens_for(Engine, "connect")
def _without_flushes(connection: Any, _: object) -> None:
    """Let SQLite not wait for the disk: a commit takes 0.2 ms instead of 8 ms."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous=OFF")


# A busy machine makes single examples slow; each test has its own time limit.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")

# py4j logs its sockets when the interpreter ends, when the log stream is already closed.
logging.getLogger("py4j").setLevel(logging.ERROR)

Service = TypeVar("Service")

_missing_services: list[str] = []


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Let the garbage collector skip what lives as long as this process: the modules and the tests.

    It would look at these millions of objects again and again, for a seventh of the time of this process.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def pytest_unconfigure() -> None:
    """Delete the temporary folders."""
    gc.unfreeze()  # what the interpreter finds at its end
    shutil.rmtree(_HOME, ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FromBothEnds:
    """Distribute files over several test processes."""
    return FromBothEnds(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that need a server, give slow tests an hour, and order folders by the services that they start."""
    from tests.homes import take_turns as take_turns_of_homes  # it imports the package

    items.sort(key=place)
    _take_turns(items)
    take_turns_of_homes(items)
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "_postgres" in fixtures:
            item.add_marker(pytest.mark.postgres)
        if "rest_jvm" in fixtures or "reference" in fixtures:
            item.add_marker(pytest.mark.rest)
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(3600))


#: Folders whose subject is above the layouts, and a file whose subject they are. Other tests run in each layout always.
_ABOVE_LAYOUTS = ("airflow", "cli", "engine", "core/catalog", "core/refresh/checks", "core/refresh/intervals")
_OF_LAYOUTS = "test_interoperability.py"


def _take_turns(items: list[pytest.Item]) -> None:
    """Let a test that exists for each layout run in one of them; the long run has the others."""
    from airflow_mv.core.catalog import STORED_LAYOUTS

    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        words = item.name.rstrip("]").replace("[", "-").split("-")
        above = room_of(item.path, _ABOVE_LAYOUTS) is not None and item.path.name != _OF_LAYOUTS
        if above and STORED_LAYOUTS.keys() & set(words):
            same = "-".join(word for word in words if word not in STORED_LAYOUTS)
            groups.setdefault(f"{item.path.name}::{same}", []).append(item)
    for name, group in groups.items():
        for item in group:
            if item is not group[zlib.crc32(name.encode()) % len(group)]:
                item.add_marker(pytest.mark.slow)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print which tests were skipped because a service is missing."""
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


@pytest.fixture
def unchecked_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let views be created with wrong properties, which another program or an earlier version may have written."""
    monkeypatch.setattr("airflow_mv.core.define.create.check_properties", lambda *_, **__: None)


@pytest.fixture
def clock() -> Clock:
    """A clock that only the test moves, which records waits."""
    from tests.faults import Clock  # it imports pyiceberg

    return Clock()


@contextmanager
def or_skip(service: AbstractContextManager[Service]) -> Iterator[Service]:
    with ExitStack() as stack:
        try:
            server = stack.enter_context(service)
        except ServiceUnavailableError as error:
            if str(error) not in _missing_services:
                _missing_services.append(str(error))
            if os.environ.get("CI"):
                pytest.fail(str(error))  # in continuous integration a missing server is a failure
            pytest.skip(str(error))
        yield server


@pytest.fixture(scope="session")
def _postgres() -> Iterator[URL]:
    with or_skip(postgres_server()) as server:
        yield server


@pytest.fixture(scope="session")
def _database(_postgres: URL) -> Iterator[str]:
    with postgres_database(_postgres) as uri:
        yield uri


@pytest.fixture
def postgres_uri(_database: str) -> Iterator[str]:
    """The SQLAlchemy URI (with its password) of an empty PostgreSQL database for this test alone."""
    yield _database
    empty_database(_database)


@pytest.fixture(scope="session")
def rest_jvm() -> Iterator[RestServers]:
    """A JVM that serves REST catalogs over SQL catalogs: ``with rest_jvm.serve(uri, warehouse) as address``."""
    from tests.rest.strict import chosen_servers  # it imports pyiceberg

    with or_skip(chosen_servers()) as servers:
        yield servers


@pytest.fixture
def rest_uri(rest_jvm: RestServers, sqlite_uri: str, warehouse: Path) -> Iterator[str]:
    """The address of an empty REST catalog, over the SQL catalog `lake` of `sqlite_uri` and `warehouse`."""
    with rest_jvm.serve(sqlite_uri, warehouse) as address:
        yield address


@pytest.fixture
def rest_postgres_uri(rest_jvm: RestServers, postgres_uri: str, warehouse: Path) -> Iterator[str]:
    """The address of an empty REST catalog, over the SQL catalog `lake` of `postgres_uri` and `warehouse`."""
    with rest_jvm.serve(postgres_uri, warehouse) as address:
        yield address


@pytest.fixture(scope="session")
def tpcds_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TPC-DS's tables without rows, and its queries."""
    from tests.core.ivm import tpcds

    folder = tmp_path_factory.mktemp("tpcds")
    tpcds.generate(folder, scale=0)
    return folder


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of an S3 server on the loopback, without any bucket."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="session")
def _glue(s3_server: str) -> Iterator[str]:
    with conditional_glue():
        yield f"glue+{s3_server}"


@pytest.fixture
def glue_uri(_glue: str) -> Iterator[str]:
    """The address of an empty AWS Glue; files are in a local warehouse."""
    yield _glue
    empty_glue()


@pytest.fixture(scope="session")
def _hive() -> Iterator[str]:
    from tests.hive.metastore import hive_metastore

    with or_skip(hive_metastore()) as address:
        yield address


@pytest.fixture
def hive_uri(_hive: str) -> Iterator[str]:
    """The address of an empty Hive Metastore; files are in a local warehouse."""
    from tests.hive.metastore import empty_metastore

    yield _hive
    empty_metastore(_hive)


@pytest.fixture(scope="session")
def _nessie(s3_server: str) -> Iterator[dict[str, str]]:
    from tests.protocol.foreign import BucketStore
    from tests.rest.nessie import nessie_server

    bucket = BucketStore(s3_server, "nessie")
    with or_skip(nessie_server(bucket)) as address:
        yield {"type": "rest", "uri": address, **bucket.access}


@pytest.fixture
def nessie(_nessie: dict[str, str]) -> Iterator[dict[str, str]]:
    """The properties of an empty REST catalog of Nessie, with keys of its store."""
    from tests.rest.nessie import empty_nessie

    yield _nessie
    empty_nessie(_nessie)


@pytest.fixture(scope="session")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Spark Connect server with Iceberg; each test's client configures its own catalog."""
    from airflow_mv.extras.spark.settings import spark_settings
    from tests.core.job.processes import connect_server

    settings = spark_settings("unused", {"type": "sql", "uri": "sqlite:////nowhere/x.db"})
    with connect_server(tmp_path_factory.mktemp("connect"), settings.session_confs()) as remote:
        yield remote


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The system's Chromium, closed after each module, because no other event loop can run in this thread meanwhile."""
    from tests.plugin.served import chromium  # it imports Playwright

    with or_skip(chromium()) as found:
        yield found


@pytest.fixture(scope="session")
def reference() -> Iterator[Reference]:
    """Iceberg's Java implementation, which reads files of this package and writes files for it."""
    from tests.rest.reference import Reference  # it imports pyiceberg

    with or_skip(java_process("Reference")) as jvm:
        yield Reference(jvm)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The metadata files that are read from now on."""
    from airflow_mv.core.catalog.files import MetadataFiles

    found: list[str] = []

    def read(files: MetadataFiles, location: str, *, what: str) -> bytes:
        found.append(location)
        return inner(files, location, what=what)

    inner = MetadataFiles.read
    monkeypatch.setattr(MetadataFiles, "read", read)
    return found
