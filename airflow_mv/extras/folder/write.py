# SPDX-License-Identifier: Apache-2.0
"""Write the definitions of views as files, as :mod:`airflow_mv.extras.folder.files` reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from airflow_mv.checks import CHECKS_PROPERTY, Check, read_checks
from airflow_mv.core.catalog import LoadedView, MaterializedViewCatalog, stored_layout
from airflow_mv.core.define.create import comments_of
from airflow_mv.core.refresh.checks import stored_checks
from airflow_mv.core.refresh.statements import wanted_partitioning
from airflow_mv.core.spec.choices import DIALECTS_PROPERTY, TIME_TRAVEL_PROPERTY, TRANSPILE_PROPERTY
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.materialized_view import OWN_PROPERTIES, PROPERTY
from airflow_mv.core.spec.view import COMMENT_PROPERTY
from airflow_mv.core.sql.query import parse_query, spark_sql
from airflow_mv.errors import ConfigurationError
from airflow_mv.extras.folder.files import FENCE, PLAIN, PROPERTIES

#: Properties that have a key of their own, or that no user writes.
_NOT_LISTED = frozenset(
    {PROPERTY, TIME_TRAVEL_PROPERTY, CHECKS_PROPERTY, DIALECTS_PROPERTY, TRANSPILE_PROPERTY, COMMENT_PROPERTY}
    | OWN_PROPERTIES
    | set(PROPERTIES.values())
)


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
    safe = ["".join(c if PLAIN.fullmatch(c) else f"%{ord(c):x}" for c in part) for part in parts]
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
    plain = all(PLAIN.fullmatch(part) for part in (name.catalog, *name.namespace, name.name))
    listed = {key: text for key, text in properties.items() if key not in _NOT_LISTED}
    head: dict[str, Any] = {
        "name": None if plain else str(name),
        "uuid": metadata.view_uuid if uuid else None,
        "description": properties.get(COMMENT_PROPERTY),
        **{key: properties.get(property_) for key, property_ in PROPERTIES.items() if key != "tags"},
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
    return f"{FENCE}\n{text}{FENCE}\n{sql}\n"


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
