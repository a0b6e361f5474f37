# SPDX-License-Identifier: Apache-2.0
"""The views of a folder of SQL files as a DAG's views, and what the folder says of the DAG. No catalog is opened."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from airflow_mv.dags.chain import ChainedView
from airflow_mv.errors import ConfigurationError
from airflow_mv.extras.folder.files import ViewFile, read_folder
from airflow_mv.foundation.documents import utf8_text
from airflow_mv.foundation.words import did_you_mean

#: The file in a folder that says what its DAG is.
DAG_FILE = "dag.yaml"
_KEYS = {"namespace": str, "schedule": str, "description": str, "tags": list}
#: Arguments of the task that creates a view are named like those of its definition, but for a strategy that is not set.
_UNSET: tuple[Any, ...] = (None, (), {})


def views_of(folder: str | Path, *, namespace: str | None = None) -> tuple[list[ChainedView], dict[str, Any]]:
    """Return the views of a folder with the arguments of their tasks, and the arguments of the DAG.

    A view's task gets its whole definition, checks included. The DAG gets the tags of all views, and ``schedule``,
    ``description`` and further ``tags`` of the file ``dag.yaml`` in the folder.

    Args:
        namespace: ``catalog.namespace`` of files whose names have fewer parts.

    Raises:
        ConfigurationError, InvalidQueryError: See :func:`airflow_mv.extras.folder.files.read_folder`.
    """
    own = _dag_file(Path(folder) / DAG_FILE)
    files = read_folder(Path(folder), namespace=namespace or own.pop("namespace", None))
    own.pop("namespace", None)
    tags = {tag.strip() for file in files for tag in file.arguments["properties"].get("tags", "").split(",")}
    tags = {*tags, *own.get("tags", ())} - {""}
    return [_chained(file) for file in files], {**own, **({"tags": sorted(tags)} if tags else {})}


def _chained(file: ViewFile) -> ChainedView:
    given = {key: value for key, value in file.arguments.items() if value not in _UNSET}
    if "checks" in given:
        given["checks"] = [check.document() for check in given["checks"]]
    return ChainedView(str(file.view), sql=file.sql, create=given)  # type: ignore[arg-type]


def _dag_file(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        found = yaml.safe_load(utf8_text(path.read_bytes(), source=str(path))) or {}
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path} cannot be read: {getattr(error, 'problem', None) or error}") from None
    if not isinstance(found, Mapping):
        raise ConfigurationError(f"{path} must be a list of `key: value`")
    for key, value in found.items():
        if key not in _KEYS:
            raise ConfigurationError(f"{path}: there is no key {key!r}{did_you_mean(str(key), _KEYS)}")
        if not isinstance(value, _KEYS[key]):
            raise ConfigurationError(f"{path}: {key} must be {'a list of texts' if _KEYS[key] is list else 'text'}")
    return dict(found)
