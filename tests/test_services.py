# SPDX-License-Identifier: Apache-2.0
"""The servers that other tests use."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from sqlalchemy import make_url

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
