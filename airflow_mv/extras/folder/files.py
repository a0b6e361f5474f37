# SPDX-License-Identifier: Apache-2.0
"""Definitions of views as files: a query, and above it what else defines the view, in YAML between lines of ``---``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from airflow_mv.checks import CHECKS_PROPERTY, Check, read_checks
from airflow_mv.core.catalog import LoadedView, MaterializedViewCatalog, stored_layout
from airflow_mv.core.define.create import comments_of
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.refresh.checks import stored_checks
from airflow_mv.core.refresh.statements import wanted_partitioning
from airflow_mv.core.spec.choices import (
    COLUMN_PROPERTY,
    DIALECTS_PROPERTY,
    TIME_TRAVEL_PROPERTY,
    TRANSPILE_PROPERTY,
)
from airflow_mv.core.spec.identifiers import Identifier, quote, split
from airflow_mv.core.spec.materialized_view import OWN_PROPERTIES, PROPERTY
from airflow_mv.core.spec.properties import (
    MAX_STALENESS_PROPERTY,
    ON_DIFF_PROPERTY,
    READERS_PROPERTY,
    SORT_PROPERTY,
    TARGET_LAG_PROPERTY,
)
from airflow_mv.core.spec.view import COMMENT_PROPERTY
from airflow_mv.core.sql.query import parse_query, spark_sql
from airflow_mv.errors import ConfigurationError, InvalidQueryError, MaterializedViewError
from airflow_mv.foundation.documents import utf8_text
from airflow_mv.foundation.words import did_you_mean

#: The most bytes of a file.
MAX_BYTES = 2**20
#: The deepest nesting of lists and mappings.
MAX_DEPTH = 20
_FENCE = "---"
#: Keys that stand for a property.
_PROPERTIES = {
    "sort_by": SORT_PROPERTY,
    "interval_column": COLUMN_PROPERTY,
    "max_staleness": MAX_STALENESS_PROPERTY,
    "target_lag": TARGET_LAG_PROPERTY,
    "readers": READERS_PROPERTY,
    "on_diff": ON_DIFF_PROPERTY,
    "owner": "owner",
    "tags": "tags",
}
#: Properties that have a key of their own, or that no user writes.
_NOT_LISTED = frozenset(
    {PROPERTY, TIME_TRAVEL_PROPERTY, CHECKS_PROPERTY, DIALECTS_PROPERTY, TRANSPILE_PROPERTY, COMMENT_PROPERTY}
    | OWN_PROPERTIES
    | set(_PROPERTIES.values())
)
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
#: Catalog, namespace and name.
_PARTS = 3


@dataclass(frozen=True, slots=True)
class ViewFile:
    """The definition of one view.

    Args:
        path: The file, for messages.
        view: The view's full name.
        definition: What the view should be.
        renamed_from: The name that the view has had before, if the file says it.
        uuid: The view's uuid, if the file says it: a view with this uuid and another name is renamed.
    """

    path: Path
    view: Identifier
    definition: Definition
    renamed_from: Identifier | None = None
    uuid: str | None = None

    @property
    def sql(self) -> str:
        """The query."""
        return self.definition.sql or ""


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
        return ViewFile(path, view, _definition(sql, values), renamed_from, values.get("uuid"))
    except MaterializedViewError as error:
        raise type(error)(f"{path}: {error}") from None


def split_file(text: str, path: Path) -> tuple[str, str]:
    """Return the YAML above the query of a file, and the query.

    Raises:
        ConfigurationError: The part in YAML does not end.
    """
    lines = text.split("\n")
    if lines[0].rstrip() != _FENCE:
        return "", text
    ends = [number for number, line in enumerate(lines[1:], 1) if line.rstrip() == _FENCE]
    if not ends:
        raise ConfigurationError(f"{path}, line 1: a line with --- must also end the part in YAML")
    return "\n".join(lines[1 : ends[0]]), "\n".join(lines[ends[0] + 1 :])


def _mapping(text: str, path: Path) -> dict[str, tuple[int, Any]]:
    """Return the values in YAML with their lines. Aliases, tags and repeated keys are refused."""
    try:
        _refuse_aliases(text, path)
        loader = yaml.SafeLoader(text)
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
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
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


def _definition(sql: str, values: dict[str, Any]) -> Definition:
    properties = dict(values.get("properties") or {})
    for key, property_ in _PROPERTIES.items():
        if key in values:
            if property_ in properties:
                raise ConfigurationError(f"{key} and the property {property_} are the same: give one")
            value = values[key]
            properties[property_] = ", ".join(value) if isinstance(value, list) else value
    checks = read_checks(values["checks"], source="checks") if "checks" in values else None
    return Definition(
        sql=sql.strip().rstrip(";").strip(),
        refresh_strategy=values.get("strategy"),
        allow_stale_data=values.get("allow_stale_data"),
        time_travel=values.get("time_travel"),
        partition_by=tuple(values.get("partition_by", ())),
        properties=properties,
        layout=values.get("layout"),
        checks=checks,
        columns=tuple(values["columns"]) if "columns" in values else None,
        dialects=tuple(values.get("dialects", ())),
        storage_name=values.get("storage_name"),
        comment=values.get("description"),
        column_comments=values.get("column_comments", {}),
    )


# -- write ---------------------------------------------------------------------------------------


def write_file(
    folder: Path, catalog: MaterializedViewCatalog, view: LoadedView, *, overwrite: bool = False, uuid: bool = False
) -> tuple[Path, bool]:
    """Write the definition of a materialized view into a file of its name.

    Args:
        overwrite: Whether a file with another content is replaced.
        uuid: Whether the file names the view's uuid, by which a file with another name is a rename.

    Returns:
        The file, and whether it was written.

    Raises:
        ConfigurationError: The file exists with another content.
    """
    path, text = folder / _path_of(view.identifier), text_of(catalog, view, uuid=uuid)
    if path.exists():
        if path.read_text(encoding="utf-8") == text:
            return path, False
        if not overwrite:
            raise ConfigurationError(f"{path} exists with another content, and is kept: --overwrite replaces it")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
    return path, True


def _path_of(view: Identifier) -> Path:
    """Return a view's path. Characters that are not plain are written as codes, and the file has a name."""
    parts = (view.catalog, *view.namespace, view.name)
    safe = ["".join(c if _PLAIN.fullmatch(c) else f"%{ord(c):x}" for c in part) for part in parts]
    return Path(*safe[:-1], f"{safe[-1]}.sql")


def text_of(catalog: MaterializedViewCatalog, view: LoadedView, *, uuid: bool = False) -> str:
    """Return the text of the file that defines a materialized view as it is.

    Args:
        uuid: See :func:`write_file`.
    """
    metadata, settings = view.metadata, view.materialized
    properties = metadata.properties
    storage = catalog.load_storage(view)
    checks = stored_checks(properties, view=str(view.identifier))
    name = view.identifier
    sql = spark_sql(metadata, view=str(name)).strip()
    plain = all(_PLAIN.fullmatch(part) for part in (name.catalog, *name.namespace, name.name))
    listed = {key: text for key, text in properties.items() if key not in _NOT_LISTED}
    head: dict[str, Any] = {
        "name": None if plain else str(name),
        "uuid": metadata.view_uuid if uuid else None,
        "description": properties.get(COMMENT_PROPERTY),
        **{key: properties.get(property_) for key, property_ in _PROPERTIES.items() if key != "tags"},
        "tags": [tag.strip() for tag in properties["tags"].split(",")] if "tags" in properties else None,
        "layout": stored_layout(view).layout,
        "strategy": settings.refresh_strategy,
        "allow_stale_data": settings.allow_stale_data or None,
        "time_travel": properties.get(TIME_TRAVEL_PROPERTY, "").lower() == "true" or None,
        "partition_by": list(wanted_partitioning(view.identifier, metadata, storage.table)) or None,
        "dialects": [item for item in properties.get(DIALECTS_PROPERTY, "").split(",") if item] or None,
        "columns": _renamed(sql, metadata.schema_.names, view=name),
        "column_comments": {key: text for key, text in comments_of(metadata.schema_.fields).items() if text} or None,
        "checks": [_brief(check) for check in checks] or None,
        "properties": listed or None,
    }
    given = {key: value for key, value in head.items() if value is not None}
    text = yaml.safe_dump(given, sort_keys=False, allow_unicode=True, width=120)
    return f"{_FENCE}\n{text}{_FENCE}\n{sql}\n"


def _renamed(sql: str, names: Sequence[str], *, view: Identifier) -> list[str] | None:
    """Return a view's column names; ``None`` if they are those that the query has itself."""
    tree = parse_query(sql, default_catalog=view.catalog, default_namespace=view.namespace, view=str(view)).tree
    return None if list(names) == list(getattr(tree, "named_selects", ())) else list(names)


def _brief(check: Check) -> dict[str, Any]:
    """Return a check's document without what it has by default."""
    document = check.document()
    for key, default in (("severity", "error"), ("name", None)):
        shorter = {name: value for name, value in document.items() if name != key}
        if key in document and default in (None, document[key]) and read_checks([shorter], source="checks") == (check,):
            document = shorter
    return document


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
