# SPDX-License-Identifier: Apache-2.0
"""The configured catalogs, as :class:`pyiceberg.utils.config.Config` reads them, and the timeouts that they set.

This imports no pyiceberg, which takes a quarter of a second: most of what a look at unchanged views takes. A test
compares what the two read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from airflow_mv.errors import ConfigurationError

#: Catalog property: the layout of views that are created without one.
LAYOUT_PROPERTY = "airflow-mv.layout"
#: The timeout in seconds for a connection to a REST server or an object store.
CONNECT_SECONDS = 10.0
#: Properties of pyiceberg's FileIO for S3: seconds for a connection, and for one answer. The store's client tries a
#: few times.
STORE_LIMITS = {"s3.connect-timeout": f"{CONNECT_SECONDS:g}", "s3.request-timeout": "20"}
#: Catalog property: the seconds for one call of a store, such as the read of a metadata file.
STORE_TIMEOUT = "airflow-mv.store-timeout-seconds"
#: Its default.
STORE_SECONDS = 60.0
#: Catalog property: the timeout in seconds for one transaction of a database, or one answer of a REST server.
RESPONSE_TIMEOUT = "airflow-mv.response-timeout-seconds"
#: Its default. It is longer than the database's own timeout for a statement, whose error is more specific.
DEFAULT_TIMEOUT = 70.0
_FILE = ".pyiceberg.yaml"
_PREFIX = "pyiceberg_"


def configured() -> dict[str, dict[str, Any]]:
    """Return the properties of each configured catalog, by its name in lower case.

    Raises:
        ValueError: The configuration is not one that pyiceberg reads.
    """
    found = _lowered(_of_files())
    for path, value in _of_variables():
        _set(found, [part.lower() for part in path], value)
    catalogs = found.get("catalog") or {}
    return {name: value for name, value in catalogs.items() if isinstance(value, dict)}


def spark_settings_of(name: str) -> dict[str, str]:
    """Return a catalog's keys that start with ``spark.``, as they are written, by their lower case.

    pyiceberg reads all keys in lower case, and Spark ignores ``spark.driver.extrajavaoptions``.
    """
    catalogs = {key.lower(): value for key, value in _of_files().items()}.get("catalog") or {}
    paths = [(catalog, key) for catalog, keys in catalogs.items() for key in keys]
    paths += [(path[1], path[-1]) for path, _ in _of_variables() if path[0].lower() == "catalog" and path[2:]]
    return {key.lower(): key for catalog, key in paths if catalog.lower() == name.lower() and key.startswith("spark.")}


def _of_variables() -> Iterator[tuple[list[str], str]]:
    """Yield the path and the value of each variable of pyiceberg."""
    for variable, value in os.environ.items():
        if variable.lower().startswith(_PREFIX):
            path = variable[len(_PREFIX) :].split("__", maxsplit=2)
            yield [part.replace("__", ".").replace("_", "-") for part in path], value


def _of_files() -> dict[str, Any]:
    for folder in (os.environ.get("PYICEBERG_HOME"), os.path.expanduser("~"), Path.cwd()):  # noqa: PTH111 (never raises)
        file = Path(folder or "", _FILE)
        if folder and file.is_file():
            import strictyaml  # type: ignore[import-untyped]  # only where there is a file

            if data := strictyaml.load(file.read_text(encoding="utf-8")).data:
                return dict(data)
    return {}


def _lowered(found: Mapping[str, Any]) -> dict[str, Any]:
    return {key.lower(): _lowered(value) if isinstance(value, dict) else value for key, value in found.items()}


def _set(found: dict[str, Any], path: list[str], value: str) -> None:
    for part in path[:-1]:
        found = found.setdefault(part, {})
        if not isinstance(found, dict):
            raise ValueError(f"{'.'.join(path)} is a value and has parts")
    found[path[-1]] = value


def with_store_limits(properties: Mapping[str, str]) -> dict[str, str]:
    """Return a catalog's properties with default timeouts for its object store."""
    return {**STORE_LIMITS, **properties}


def store_timeout(properties: Mapping[str, Any]) -> float:
    """Return the seconds for one call of a catalog's stores.

    Raises:
        ConfigurationError: The property is not a number of seconds.
    """
    return seconds_of(properties, STORE_TIMEOUT, STORE_SECONDS)


def response_timeout(properties: Mapping[str, Any]) -> float:
    """Return the timeout for one answer of a catalog.

    Raises:
        ConfigurationError: The property is not a number of seconds.
    """
    return seconds_of(properties, RESPONSE_TIMEOUT, DEFAULT_TIMEOUT)


def seconds_of(properties: Mapping[str, Any], key: str, default: float) -> float:
    """Return the seconds that a catalog property sets.

    Raises:
        ConfigurationError: It is not a number of seconds.
    """
    text = properties.get(key)
    if text is None:
        return default
    with suppress(ValueError):
        seconds = float(text)
        if 0 < seconds < math.inf:
            return seconds
    raise ConfigurationError(f"the catalog property {key} is {text!r}; it must be a number of seconds")
