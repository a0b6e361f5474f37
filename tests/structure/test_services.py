# SPDX-License-Identifier: Apache-2.0
"""The servers that other tests use."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from sqlalchemy import create_engine, make_url, text

from examples.demo.postgres import airflow_database
from tests.services import ServiceUnavailableError, postgres_server


def test_a_catalog_on_the_tests_postgresql_keeps_its_tables(postgres_uri: str, warehouse: Path) -> None:
    """The server is real: another connection reads what one connection has committed."""
    properties = {"type": "sql", "uri": postgres_uri, "warehouse": warehouse.as_uri()}
    with load_catalog("first", **properties) as first:
        first.create_namespace("sales")
    with load_catalog("first", **properties) as second:
        assert second.list_namespaces() == [("sales",)]


def test_each_test_gets_its_own_database(postgres_uri: str, warehouse: Path) -> None:
    """No test sees data of another one."""
    with load_catalog("first", type="sql", uri=postgres_uri, warehouse=warehouse.as_uri()) as catalog:
        assert catalog.list_namespaces() == []


def test_the_server_listens_on_the_loopback_address_only(postgres_uri: str) -> None:
    """No other host may connect, and a password protects it from other users of this host."""
    url = make_url(postgres_uri)
    assert url.host == "127.0.0.1"
    assert url.password


def test_the_error_on_a_machine_without_postgresql_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests are skipped there, and the reason says what to install."""
    monkeypatch.delenv("AIRFLOW_MV_TEST_POSTGRES_URL", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(Path, "glob", lambda *_: iter(()))
    with pytest.raises(ServiceUnavailableError, match="apt-get install postgresql"), postgres_server():
        pass


@pytest.mark.postgres
def test_a_local_airflow_keeps_its_database_in_postgresql(postgres_uri: str) -> None:
    """From one start to the next, with a driver for each kind of Airflow's calls."""
    folder = Path(tempfile.mkdtemp(prefix="airflow-mv-demo-"))
    try:
        for statement in ("CREATE TABLE runs (n int)", "INSERT INTO runs VALUES (1)"):
            with airflow_database(folder) as (settings, said):
                assert said.startswith("Airflow's database is PostgreSQL, in ")
                for name in ("", "_ASYNC"):
                    engine = create_engine(settings[f"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN{name}"])
                    with engine.begin() as connection:
                        connection.execute(text(statement if name else "SELECT 1"))
                    engine.dispose()
        assert (folder / "password").stat().st_mode & 0o077 == 0
    finally:
        shutil.rmtree(folder)


def test_a_local_airflow_uses_sqlite_without_postgresql_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The sentence names what SQLite cannot do, and what to install."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(Path, "glob", lambda *_: iter(()))
    with airflow_database(tmp_path / "postgres") as (settings, said):
        assert settings == {}
    assert "SQLite, on which backfills may fail" in said
    assert "apt-get install postgresql" in said
