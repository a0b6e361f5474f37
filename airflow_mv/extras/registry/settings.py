# SPDX-License-Identifier: Apache-2.0
"""The registry's settings, in layers.

A catalog property overrides the package's default, and a property of a component overrides the common one. The
properties of a catalog are merged from pyiceberg's file, the environment and the Airflow connection.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

from airflow_mv.core.spec.identifiers import split
from airflow_mv.core.spec.stored import whole_number
from airflow_mv.core.spec.times import duration
from airflow_mv.errors import ConfigurationError
from airflow_mv.foundation.words import one_of

#: Catalog property: the namespace, or the folder, of the registry. Without it there is none.
PLACE = "airflow-mv.registry"
#: Catalog property: the folder below which the registry's folder is, if that is a relative path.
BASE_PATH = "airflow-mv.registry.base-path"
#: Catalog property: how long snapshots and files that are not current are kept. Empty, zero or negative: for ever.
EXPIRE_AFTER = "airflow-mv.registry.expire-after"
#: Catalog property: the most files of a partition. Then they are rewritten as one.
MAX_FILES = "airflow-mv.registry.max-files"
#: Catalog property: how much of base tables a sync registers: ``none``, ``segments``, ``files`` or ``row-groups``.
DETAIL = "airflow-mv.registry.tables.detail"
#: Catalog property: after how many refreshes a refresh also brings them into the table; 0: only a sync does.
SYNC_AFTER = "airflow-mv.registry.sync-after"

DEFAULTS = {PLACE: "", BASE_PATH: "", EXPIRE_AFTER: "3 days", MAX_FILES: "8", SYNC_AFTER: "0", DETAIL: "none"}
#: What :data:`DETAIL` may be.
DETAILS = ("none", "segments", "files", "row-groups")
#: Table properties of all components. ``airflow-mv.registry.table.KEY`` overrides one.
TABLE_PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "8",
}


@dataclass(frozen=True, slots=True)
class ComponentSettings:
    """The settings of one component.

    Args:
        location: The table's folder; ``None``: chosen by the catalog, or below the registry's folder.
        expire_after: How long what is no longer current is kept; ``None``: for ever.
        max_files: The most files of a partition.
        properties: The table's properties when it is created.
    """

    location: str | None
    expire_after: timedelta | None
    max_files: int
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """The settings of a catalog's registry.

    Args:
        place: The namespace, or the folder; empty if there is no registry.
        sync_after: After how many refreshes one of them also brings them into the table; 0: none does.
        detail: How much of base tables a sync registers.
    """

    place: str
    sync_after: int
    detail: str
    components: Mapping[str, ComponentSettings]

    @property
    def is_folder(self) -> bool:
        """Whether the registry is in a folder and not in the view's catalog."""
        return "/" in self.place

    @property
    def namespace(self) -> tuple[str, ...]:
        """The namespace of the tables."""
        return split(self.place)


def registry_settings(
    properties: Mapping[str, str], components: tuple[str, ...] = ("views", "refreshes", "tables")
) -> RegistrySettings:
    """Return the settings in a catalog's properties.

    Raises:
        ConfigurationError: A setting is invalid. The message names it.
    """
    return RegistrySettings(
        place=_place(properties),
        sync_after=_number(properties, SYNC_AFTER, least=0),
        detail=one_of(_text(properties, DETAIL), DETAILS, field=f"catalog property {DETAIL}"),
        components={name: _component(properties, name) for name in components},
    )


def _place(properties: Mapping[str, str]) -> str:
    place, base = (_text(properties, key).strip() for key in (PLACE, BASE_PATH))
    is_relative = place and not place.startswith("/") and "://" not in place
    return f"{base.rstrip('/')}/{place}" if base and is_relative else place


def _component(properties: Mapping[str, str], name: str) -> ComponentSettings:
    own = f"{PLACE}.{name}."
    table = {**TABLE_PROPERTIES, **_below(properties, f"{PLACE}.table."), **_below(properties, f"{own}table.")}
    layered = {**properties}
    for key in (EXPIRE_AFTER, MAX_FILES):
        option = key.removeprefix(f"{PLACE}.")
        if own + option in properties:
            layered[key] = properties[own + option]
    return ComponentSettings(
        location=properties.get(f"{own}location") or None,
        expire_after=_period(layered),
        max_files=_number(layered, MAX_FILES, least=1),
        properties=table,
    )


def _below(properties: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {key.removeprefix(prefix): str(text) for key, text in properties.items() if key.startswith(prefix)}


def _text(properties: Mapping[str, str], key: str) -> str:
    return str(properties.get(key, DEFAULTS[key]))


def _period(properties: Mapping[str, str]) -> timedelta | None:
    text = _text(properties, EXPIRE_AFTER).strip()
    if text.startswith("-"):
        return None
    return duration(text, what=f"catalog property {EXPIRE_AFTER}") or None


def _number(properties: Mapping[str, str], key: str, *, least: int) -> int:
    text = _text(properties, key).strip()
    number = whole_number(text, -1)
    if number < least:
        raise ConfigurationError(f"catalog property {key}: {text!r} is not a whole number of at least {least}")
    return number


def effective(
    name: str, properties: Mapping[str, str], given: Mapping[str, str] | None = None
) -> Iterator[tuple[str, str, str]]:
    """Yield each setting of the registry with its value and the layer that it comes from.

    Args:
        given: The layer of each property that a connection gives, which overrides the environment and the file.
    """
    keys = {*DEFAULTS, *(key for key in properties if key.startswith(f"{PLACE}."))}
    variables = {_property(variable, name) for variable in os.environ}
    for key in sorted(keys):
        if key not in properties:
            yield key, DEFAULTS[key], "default"
        else:
            layer = (given or {}).get(key) or ("environment" if key in variables else "file")
            yield key, str(properties[key]), layer


def _property(variable: str, catalog: str) -> str | None:
    """Return the catalog property that an environment variable of pyiceberg sets, if it sets one."""
    head = f"PYICEBERG_CATALOG__{catalog.upper()}__"
    if not variable.upper().startswith(head):
        return None
    return variable[len(head) :].lower().replace("__", ".").replace("_", "-")
