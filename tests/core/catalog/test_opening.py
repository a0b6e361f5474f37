# SPDX-License-Identifier: Apache-2.0
"""A configured catalog: its properties, and how one that does not open fails."""

from __future__ import annotations

from pathlib import Path

import pyiceberg.catalog
import pytest
from pyiceberg.utils.config import Config

from airflow_mv.core.catalog.catalog import open_configured
from airflow_mv.errors import CatalogUnavailableError, ConfigurationError


@pytest.mark.parametrize(
    ("kind", "uri", "wanted", "message"),
    [
        ("sql", "postgresql+psycopg2://me:4711@127.0.0.1:1/x", CatalogUnavailableError, "'far' does not respond"),
        ("rest", "http://me:4711@127.0.0.1:1/", CatalogUnavailableError, "'far' does not respond"),
        ("sql", "nonsense://me:4711@127.0.0.1:1/x", ConfigurationError, "'far' cannot be opened"),
        ("sql", "sqlite:////no/such/folder/x.db", ConfigurationError, "there is no folder /no/such/folder"),
        ("nonsense", "http://me:4711@127.0.0.1:1/", ConfigurationError, "'far' cannot be opened"),
        ("sql", "postgresql+psycopg2://me:p@ss4711@127.0.0.1:1/x", ConfigurationError, "holds an '@'. Write it as %40"),
        ("sql", "postgresql+psycopg2://127.0.0.1:1/x?user=me&password=a4711", CatalogUnavailableError, "not respond"),
        ("rest", "http://me:p@ss4711@127.0.0.1:1/", CatalogUnavailableError, "'far' does not respond"),
    ],
)
def test_an_outage_is_distinguished_from_a_wrong_configuration(
    monkeypatch: pytest.MonkeyPatch, kind: str, uri: str, wanted: type[Exception], message: str
) -> None:
    """A task retries after an outage, as it does for the same catalog behind a connection."""
    for key, value in {"TYPE": kind, "URI": uri, "WAREHOUSE": "file:///nowhere"}.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__FAR__{key}", value)
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())
    with pytest.raises(wanted, match=message) as raised:
        open_configured("far")
    assert "4711" not in str(raised.value)


def test_settings_of_spark_keep_their_capital_letters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """pyiceberg reads all keys in lower case, but Spark's settings are case-sensitive."""
    (tmp_path / ".pyiceberg.yaml").write_text(
        f"catalog:\n  My-Lake:\n    URI: sqlite:///{tmp_path}/c.db\n    spark.executor.memoryOverhead: 1g\n"
    )
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setenv("PYICEBERG_CATALOG__MY_LAKE__spark__driver__extraJavaOptions", "-XX:+UseG1GC")
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())
    found = open_configured("my-lake").properties
    assert found["uri"] == f"sqlite:///{tmp_path}/c.db"
    assert found["spark.executor.memoryOverhead"] == "1g"
    assert found["spark.driver.extraJavaOptions"] == "-XX:+UseG1GC"
