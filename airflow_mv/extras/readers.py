# SPDX-License-Identifier: Apache-2.0
"""Write the stored rows in a form that all engines read which a view's owner names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_mv.core.spec.properties import FORMAT_VERSION, READERS_PROPERTY, STORAGE_PREFIX
from airflow_mv.errors import ConfigurationError, UnsupportedError
from airflow_mv.foundation.words import did_you_mean

if TYPE_CHECKING:
    from airflow_mv.core.catalog import MaterializedViewCatalog
    from airflow_mv.core.define.definition import Definition
    from airflow_mv.core.spec.identifiers import Identifier

#: Catalog property: the engines of views that are created without the view property.
DEFAULT_PROPERTY = "airflow-mv.default-readers"
_MODES = tuple(f"{STORAGE_PREFIX}write.{change}.mode" for change in ("delete", "update", "merge"))
_WHOLE_FILES = "copy-on-write"


@dataclass(frozen=True, slots=True)
class Reader:
    """The layouts and tables that an engine reads.

    Args:
        format_version: The newest version of Iceberg's format.
        deletes: Whether it leaves out rows that are deleted in these versions: by position deletes in version 2, and
            by deletion vectors in version 3.
    """

    format_version: int = 2
    deletes: bool = True


#: By the names that a user writes. ``docs/reading.md`` says which were run, and a test compares it with this.
READERS: Mapping[str, Reader] = {
    "arrow": Reader(3),
    "athena": Reader(),
    "clickhouse": Reader(),
    "daft": Reader(),
    "databricks": Reader(deletes=False),
    "datafusion": Reader(3),
    "duckdb": Reader(3),
    "polars": Reader(3),
    "pyiceberg": Reader(3),
    "snowflake": Reader(),
    "spark": Reader(3),
    "starrocks": Reader(),
    "trino": Reader(),
}


def for_readers(definition: Definition, catalog: MaterializedViewCatalog, view: Identifier | str) -> Definition:
    """Return a definition whose storage table is written in a form that its readers read.

    Args:
        definition: Its property ``airflow-mv.readers`` names the engines.
        catalog: Where the view is, or will be; its property says the engines of a definition without them.

    Raises:
        ConfigurationError: An engine is unknown.
        UnsupportedError: A property of the storage table is one that an engine does not read.
    """
    text = definition.properties.get(READERS_PROPERTY, catalog.properties.get(DEFAULT_PROPERTY))
    if text is None:
        return definition
    readers = known_readers(text, view=str(view))
    given = {READERS_PROPERTY: text, **definition.properties}
    _require_version(readers, given, str(view))
    blind = [name for name, reader in readers.items() if not reader.deletes]
    if blind:
        _require_whole_files(blind, given, str(view))
        given |= dict.fromkeys(_MODES, _WHOLE_FILES)
    return dataclasses.replace(definition, properties=given)


def known_readers(text: str, *, view: str) -> dict[str, Reader]:
    """Return the engines of the property ``airflow-mv.readers``, by name.

    Raises:
        ConfigurationError: An engine is unknown.
    """
    return {name: _reader(name, view) for item in text.split(",") if (name := item.strip().lower())}


def _reader(name: str, view: str) -> Reader:
    if name in READERS:
        return READERS[name]
    meant = did_you_mean(name, READERS) or f"; there are: {', '.join(READERS)}"
    raise ConfigurationError(f"view {view}, property {READERS_PROPERTY}: {name!r} is not a known engine{meant}")


def _require_version(readers: Mapping[str, Reader], given: Mapping[str, str], view: str) -> None:
    version = given.get(STORAGE_PREFIX + FORMAT_VERSION, "2")
    unable = [name for name, reader in readers.items() if str(reader.format_version) < version]
    if unable:
        raise UnsupportedError(
            f"view {view}: {', '.join(unable)} (property {READERS_PROPERTY}) cannot read format version {version}: "
            f"leave out {STORAGE_PREFIX}{FORMAT_VERSION}, or these engines"
        )


def _require_whole_files(blind: list[str], given: Mapping[str, str], view: str) -> None:
    for key in _MODES:
        if given.get(key, _WHOLE_FILES) != _WHOLE_FILES:
            raise UnsupportedError(
                f"view {view}: {', '.join(blind)} (property {READERS_PROPERTY}) would show rows that a refresh has "
                f"deleted if {key} is {given[key]}: leave it out, or these engines"
            )
