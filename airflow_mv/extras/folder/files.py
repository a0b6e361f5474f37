# SPDX-License-Identifier: Apache-2.0
"""Definitions of views as files: a query, and above it what else defines the view, in YAML between lines of ``---``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from airflow_mv.checks import read_checks
from airflow_mv.core.spec.choices import COLUMN_PROPERTY
from airflow_mv.core.spec.identifiers import Identifier, quote, split
from airflow_mv.core.spec.properties import (
    MAX_STALENESS_PROPERTY,
    ON_DIFF_PROPERTY,
    READERS_PROPERTY,
    SORT_PROPERTY,
    TARGET_LAG_PROPERTY,
)
from airflow_mv.errors import ConfigurationError, InvalidQueryError, MaterializedViewError
from airflow_mv.foundation.documents import utf8_text
from airflow_mv.foundation.words import did_you_mean

if TYPE_CHECKING:
    from airflow_mv.core.define.definition import Definition

#: Parses YAML in C where the library has it: in a fifth of the time.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: The most bytes of a file.
MAX_BYTES = 2**20
#: The deepest nesting of lists and mappings.
MAX_DEPTH = 20
#: The line above and below the part in YAML.
FENCE = "---"
#: Keys that stand for a property.
PROPERTIES = {
    "sort_by": SORT_PROPERTY,
    "interval_column": COLUMN_PROPERTY,
    "max_staleness": MAX_STALENESS_PROPERTY,
    "target_lag": TARGET_LAG_PROPERTY,
    "readers": READERS_PROPERTY,
    "on_diff": ON_DIFF_PROPERTY,
    "owner": "owner",
    "tags": "tags",
}
#: A part of a name that is also a file's name.
PLAIN = re.compile(r"[A-Za-z0-9_-]+")
#: Catalog, namespace and name.
_PARTS = 3


@dataclass(frozen=True)
class ViewFile:
    """The definition of one view.

    Args:
        path: The file, for messages.
        view: The view's full name.
        sql: The query.
        arguments: What else defines it: arguments of :class:`airflow_mv.core.define.definition.Definition`.
        renamed_from: The name that the view has had before, if the file says it.
        uuid: The view's uuid, if the file says it: a view with this uuid and another name is renamed.
    """

    path: Path
    view: Identifier
    sql: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    renamed_from: Identifier | None = None
    uuid: str | None = None

    @cached_property
    def definition(self) -> Definition:
        """What the view should be."""
        from airflow_mv.core.define.definition import Definition  # a DAG file that is parsed needs no catalog

        return Definition(sql=self.sql, **self.arguments)


def read_folder(folder: Path, *, namespace: str | None = None) -> list[ViewFile]:
    """Read the definitions in all ``.sql`` files of a folder, in the order of their paths.

    Args:
        namespace: ``catalog.namespace`` for names with fewer parts.

    Raises:
        ConfigurationError: A file is not valid, or two define one view. The message names the file, the line and the
            nearest valid key.
        InvalidQueryError: A file has no query, or is not text in UTF-8.
    """
    if not folder.is_dir():
        raise ConfigurationError(f"{folder} is not a folder")
    paths = sorted(path for path in folder.rglob("*.sql") if path.is_file())
    if not paths:
        raise ConfigurationError(f"{folder} has no .sql files")
    found: dict[Identifier, ViewFile] = {}
    for path in paths:
        file = read_file(path, folder, namespace=namespace)
        if file.view in found:
            raise ConfigurationError(f"{path} and {found[file.view].path} both define {file.view}")
        found[file.view] = file
    return list(found.values())


def read_file(path: Path, folder: Path, *, namespace: str | None = None) -> ViewFile:
    """Read one file. See :func:`read_folder`."""
    content = path.read_bytes()
    if len(content) > MAX_BYTES:
        raise ConfigurationError(f"{path} has {len(content):,} bytes; at most {MAX_BYTES:,} are read")
    head, sql = split_file(utf8_text(content, source=str(path)).replace("\r\n", "\n"), path)
    given = _mapping(head, path)
    for key, (line, value) in given.items():
        if key not in KEYS:
            raise ConfigurationError(f"{path}, line {line}: there is no key {key!r}{did_you_mean(key, KEYS)}")
        if not KEYS[key].accepts(value):
            raise ConfigurationError(f"{path}, line {line}: {key} must be {KEYS[key].what}")
    if not sql.strip():
        raise InvalidQueryError(f"{path} has no query")
    values = {key: value for key, (_, value) in given.items()}
    try:
        view = _name(values.pop("name", None), path, folder, namespace)
        before = values.pop("renamed_from", None)
        renamed_from = None if before is None else _name(before, path, folder, ".".join(_space(view)))
        text = sql.strip().rstrip(";").strip()
        return ViewFile(path, view, text, _arguments(values), renamed_from, values.get("uuid"))
    except MaterializedViewError as error:
        raise type(error)(f"{path}: {error}") from None


def split_file(text: str, path: Path) -> tuple[str, str]:
    """Return the YAML above the query of a file, and the query.

    Raises:
        ConfigurationError: The part in YAML does not end.
    """
    lines = text.split("\n")
    if lines[0].rstrip() != FENCE:
        return "", text
    ends = [number for number, line in enumerate(lines[1:], 1) if line.rstrip() == FENCE]
    if not ends:
        raise ConfigurationError(f"{path}, line 1: a line with --- must also end the part in YAML")
    return "\n".join(lines[1 : ends[0]]), "\n".join(lines[ends[0] + 1 :])


def _mapping(text: str, path: Path) -> dict[str, tuple[int, Any]]:
    """Return the values in YAML with their lines. Aliases, tags and repeated keys are refused."""
    try:
        _refuse_aliases(text, path)
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return {}
            if not isinstance(node, yaml.MappingNode):
                raise ConfigurationError(f"{path}, line 2: the part in YAML must be a list of `key: value`")
            found: dict[str, tuple[int, Any]] = {}
            for name, value in node.value:
                key, line = str(name.value), name.start_mark.line + 2
                if key in found:
                    raise ConfigurationError(f"{path}, line {line}: the key {key!r} is there twice")
                found[key] = line, loader.construct_object(value, deep=True)
            return found
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 2}" if mark else ""
        problem = getattr(error, "problem", None) or "it is not valid"
        raise ConfigurationError(f"{path}{place}: the part in YAML cannot be read: {problem}") from None


def _refuse_aliases(text: str, path: Path) -> None:
    """Refuse YAML whose values are much larger than its text, or nested too deeply."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            raise ConfigurationError(f"{path}: YAML aliases (*name) are not read; write the value twice")
        if depth > MAX_DEPTH:
            raise ConfigurationError(f"{path}: the part in YAML is nested too deeply")


@dataclass(frozen=True, slots=True)
class _Key:
    """The type and the allowed values of a key."""

    what: str
    accepts: Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_map(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(part, str) for item in value.items() for part in item)


_TEXT = _Key("text", _is_text)
_LIST = _Key("a list of texts", _is_list)
_MAP = _Key("a mapping of texts; quote numbers and true", _is_map)
_FLAG = _Key("true or false", lambda value: isinstance(value, bool))
#: The keys above a query.
KEYS: Mapping[str, _Key] = {
    **dict.fromkeys(("name", "layout", "strategy", "description", "storage_name", "renamed_from", "uuid"), _TEXT),
    **dict.fromkeys(("sort_by", "interval_column", "max_staleness", "target_lag", "readers"), _TEXT),
    **dict.fromkeys(("owner", "on_diff"), _TEXT),
    **dict.fromkeys(("partition_by", "columns", "dialects", "tags"), _LIST),
    **dict.fromkeys(("properties", "column_comments"), _MAP),
    **dict.fromkeys(("allow_stale_data", "time_travel"), _FLAG),
    "checks": _Key("a list of checks", lambda value: isinstance(value, list)),
}


def _name(name: str | None, path: Path, folder: Path, namespace: str | None) -> Identifier:
    parts = path.relative_to(folder).with_suffix("").parts if name is None else split(name)
    if len(parts) < _PARTS and namespace is None:
        raise ConfigurationError(f"its view is {'.'.join(parts)}, without a catalog or a namespace: give --namespace")
    return Identifier.of((*(split(namespace or "") if len(parts) < _PARTS else ()), *parts))


def _space(view: Identifier) -> tuple[str, ...]:
    """Return the parts of the view's name before the last one, quoted where they must be."""
    return tuple(quote(part) for part in (view.catalog, *view.namespace))


def _arguments(values: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a definition, besides its query."""
    properties = dict(values.get("properties") or {})
    for key, property_ in PROPERTIES.items():
        if key in values:
            if property_ in properties:
                raise ConfigurationError(f"{key} and the property {property_} are the same: give one")
            value = values[key]
            properties[property_] = ", ".join(value) if isinstance(value, list) else value
    return {
        "refresh_strategy": values.get("strategy"),
        "allow_stale_data": values.get("allow_stale_data"),
        "time_travel": values.get("time_travel"),
        "partition_by": tuple(values.get("partition_by", ())),
        "properties": properties,
        "layout": values.get("layout"),
        "checks": read_checks(values["checks"], source="checks") if "checks" in values else None,
        "columns": tuple(values["columns"]) if "columns" in values else None,
        "dialects": tuple(values.get("dialects", ())),
        "storage_name": values.get("storage_name"),
        "comment": values.get("description"),
        "column_comments": values.get("column_comments", {}),
    }


def queries(folder: str | Path, *, namespace: str | None = None) -> dict[str, str]:
    """Return the query of each view of a folder by its full name, as ``materialized_views_dag`` takes them.

    No catalog is opened. See :func:`read_folder` for the errors.
    """
    return {str(file.view): file.sql for file in read_folder(Path(folder), namespace=namespace)}


def in_order(files: Sequence[ViewFile], references: Callable[[ViewFile], Sequence[Identifier]]) -> list[ViewFile]:
    """Return files so that each comes after those whose views it reads.

    Args:
        references: Returns the tables and views that a file's query names.

    Raises:
        ConfigurationError: Views read each other in a circle; the message names them.
    """
    from graphlib import CycleError, TopologicalSorter

    by_name = {file.view: file for file in files}
    graph = {file.view: {name for name in references(file) if name in by_name} for file in files}
    try:
        return [by_name[name] for name in TopologicalSorter(graph).static_order()]
    except CycleError as error:
        circle = " → ".join(str(name) for name in error.args[1])
        raise ConfigurationError(f"the views read each other in a circle: {circle}") from None
