# SPDX-License-Identifier: Apache-2.0
"""The properties of its storage table that a view's owner chooses: file format, compression, distribution, version.

They are properties of the view, with a prefix. A refresh writes those that differ into the storage table, so they hold
for storage tables that are made later, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from airflow_mv.errors import ConfigurationError
from airflow_mv.spec.table import TableMetadata

#: View properties ``airflow-mv.storage.<table property>``.
STORAGE_PREFIX = "airflow-mv.storage."
_FORMAT_VERSION = "format-version"
#: What concerns how rows are written and read. Paths, classes and the retention of metadata files are not the owner's.
_ALLOWED = re.compile(
    r"format-version"
    r"|write\.format\.default|write\.delete\.format\.default"
    r"|write\.(delete\.)?target-file-size-bytes"
    r"|write\.(parquet|avro|orc)\.[a-z0-9._-]{1,200}"
    r"|write\.delete\.(parquet|avro|orc)\.[a-z0-9._-]{1,200}"
    r"|write\.(delete\.|update\.|merge\.)?distribution-mode"
    r"|write\.(delete|update|merge)\.(mode|isolation-level)"
    r"|write\.metadata\.(compression-codec|metrics\.[^\x00-\x1f]{1,200})"
    r"|write\.spark\.[a-z0-9._-]{1,200}"
    r"|read\.[a-z0-9._-]{1,200}"
    r"|commit\.(retry|manifest|manifest-merge)[a-z0-9._-]{0,200}",
    re.ASCII,
)


def storage_properties(properties: Mapping[str, str], *, view: str) -> dict[str, str]:
    """Return the table properties that a view's properties choose for its storage table.

    Args:
        properties: The view's properties.
        view: For messages.

    Raises:
        ConfigurationError: A property is not one that an owner may choose, or its value is not possible.
    """
    chosen = {
        key.removeprefix(STORAGE_PREFIX): value for key, value in properties.items() if key.startswith(STORAGE_PREFIX)
    }
    for key, value in chosen.items():
        if _ALLOWED.fullmatch(key) is None:
            raise ConfigurationError(
                f"view {view}, property {STORAGE_PREFIX}{key}: a storage table does not take {key!r}. Possible are "
                "format-version and what begins with write.parquet, write.avro, write.orc, write.format, "
                "write.distribution-mode, write.target-file-size-bytes, write.metadata.metrics, read. and commit."
            )
        if key == _FORMAT_VERSION and value not in ("2", "3"):
            raise ConfigurationError(f"view {view}, property {STORAGE_PREFIX}{key} is {value!r}; possible are 2 and 3")
    return chosen


def possible_properties(chosen: Mapping[str, str], table: TableMetadata) -> dict[str, str]:
    """Return the chosen properties without a format version below the table's: it never goes back.

    Args:
        chosen: From :func:`storage_properties`.
        table: The storage table.
    """
    return {key: value for key, value in chosen.items() if key != _FORMAT_VERSION or int(value) >= table.format_version}


def missing_properties(chosen: Mapping[str, str], table: TableMetadata) -> dict[str, str]:
    """Return the chosen properties that a storage table does not have yet.

    Args:
        chosen: From :func:`storage_properties`.
        table: The storage table.
    """
    has = {**table.properties, _FORMAT_VERSION: str(table.format_version)}
    return {key: value for key, value in possible_properties(chosen, table).items() if has.get(key) != value}
