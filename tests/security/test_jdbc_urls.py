# SPDX-License-Identifier: Apache-2.0
"""The parts of a database URI that reach a JDBC driver, by an allow-list: drivers load classes and files."""

from __future__ import annotations

import pytest

from airflow_mv.errors import ConfigurationError
from airflow_mv.extras.spark.settings import spark_settings

LOADS_CLASSES_OR_FILES = (
    "socketFactory",
    "socketfactory",
    "socketFactoryArg",
    "sslfactory",
    "sslfactoryarg",
    "sslhostnameverifier",
    "sslpasswordcallback",
    "authenticationPluginClassName",
    "xmlFactoryFactory",
    "jaasLogin",
    "loggerFile",
    "loggerLevel",
    "service",
    "enable_load_extension",
    "enable_shared_cache",
    "vfs",
    "mode",
)


@pytest.mark.parametrize("option", LOADS_CLASSES_OR_FILES)
@pytest.mark.parametrize("uri", ["postgresql://me:pw4711@h/d?{}=evil.Class", "sqlite:////x.db?{}=evil.Class"])
def test_an_option_of_a_uri_that_is_not_allowed_is_refused(uri: str, option: str) -> None:
    """The error has its name and what to do, and not the password."""
    with pytest.raises(ConfigurationError, match=rf"the option '{option}' .* is not handed to Spark") as caught:
        spark_settings("lake", {"type": "sql", "uri": uri.format(option)})
    assert "pw4711" not in str(caught.value)
    assert "'spark.sql.catalog.lake.uri'" in str(caught.value)


@pytest.mark.parametrize("option", LOADS_CLASSES_OR_FILES)
def test_a_property_for_the_driver_that_is_not_allowed_is_refused(option: str) -> None:
    """Iceberg passes on every property that begins with ``jdbc.``."""
    with pytest.raises(ConfigurationError, match=rf"'jdbc.{option}' is not passed to the JDBC driver"):
        spark_settings("lake", {"type": "sql", "uri": "postgresql://h/d", f"jdbc.{option}": "evil.Class"})


@pytest.mark.parametrize(
    "uri", ["postgresql://h/d?socketFactory=x&sslmode=require", "postgresql://h/d?sslmode=a&%73ocketFactory=x"]
)
def test_an_option_is_found_beside_allowed_ones_and_escaped(uri: str) -> None:
    """pgjdbc decodes names, too."""
    with pytest.raises(ConfigurationError, match="socketFactory"):
        spark_settings("lake", {"type": "sql", "uri": uri})


@pytest.mark.parametrize(
    ("uri", "jdbc"),
    [
        ("postgresql://h/d?application_name=a%26socketFactory%3Dx", "?ApplicationName=a%26socketFactory%3Dx"),
        ("postgresql://h/d%3FsocketFactory=x", "/d%253FsocketFactory%3Dx"),
        ("postgresql://h/a/../b", "/a%2F..%2Fb"),
    ],
)
def test_a_value_never_becomes_an_option(uri: str, jdbc: str) -> None:
    """Escaped characters stay escaped; SQLAlchemy does not decode a database's name."""
    address = spark_settings("lake", {"type": "sql", "uri": uri}).confs["spark.sql.catalog.lake.uri"]
    assert address == f"jdbc:postgresql://h:5432{'' if jdbc.startswith('/') else '/d'}{jdbc}"


@pytest.mark.parametrize(
    "uri", ["jdbc:postgresql://h/d", "jdbc:sqlite:/x", "derby:memory:x", "h2:mem:x;INIT=RUNSCRIPT", ""]
)
def test_a_uri_of_another_database_is_refused(uri: str) -> None:
    """Only URIs that are known to be harmless are translated."""
    with pytest.raises(ConfigurationError, match="'uri' does not fit Spark"):
        spark_settings("lake", {"type": "sql", "uri": uri})


def test_an_explicit_spark_setting_is_allowed() -> None:
    """It is set by the catalog's owner."""
    settings = spark_settings(
        "lake",
        {"type": "sql", "uri": "postgresql://h/d", "spark.sql.catalog.lake.jdbc.socketFactory": "mine.Factory"},
    )
    assert settings.confs["spark.sql.catalog.lake.jdbc.socketFactory"] == "mine.Factory"
