# SPDX-License-Identifier: Apache-2.0
"""The configured catalogs, as :class:`pyiceberg.utils.config.Config` reads them, without importing pyiceberg.

That import takes a quarter of a second, which is most of what a look at unchanged views takes. A test compares the two.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Catalog property: the layout of views that are created without one.
LAYOUT_PROPERTY = "airflow-mv.layout"
_FILE = ".pyiceberg.yaml"
_PREFIX = "pyiceberg_"


def configured() -> dict[str, dict[str, Any]]:
    """Return the properties of each configured catalog, by its name in lower case.

    Raises:
        ValueError: The configuration is not one that pyiceberg reads.
    """
    found = _of_files()
    for variable, value in os.environ.items():
        name = variable.lower()
        if name.startswith(_PREFIX):
            path = name.removeprefix(_PREFIX).split("__", maxsplit=2)
            _set(found, [part.replace("__", ".").replace("_", "-") for part in path], value)
    catalogs = found.get("catalog") or {}
    return {name: value for name, value in catalogs.items() if isinstance(value, dict)}


def _of_files() -> dict[str, Any]:
    for folder in (os.environ.get("PYICEBERG_HOME"), os.path.expanduser("~"), Path.cwd()):  # noqa: PTH111 (never raises)
        file = Path(folder or "", _FILE)
        if folder and file.is_file():
            import strictyaml  # type: ignore[import-untyped]  # only where there is a file

            if data := strictyaml.load(file.read_text(encoding="utf-8")).data:
                return _lowered(data)
    return {}


def _lowered(found: Mapping[str, Any]) -> dict[str, Any]:
    return {key.lower(): _lowered(value) if isinstance(value, dict) else value for key, value in found.items()}


def _set(found: dict[str, Any], path: list[str], value: str) -> None:
    for part in path[:-1]:
        found = found.setdefault(part, {})
        if not isinstance(found, dict):
            raise ValueError(f"{'.'.join(path)} is a value and has parts")
    found[path[-1]] = value
