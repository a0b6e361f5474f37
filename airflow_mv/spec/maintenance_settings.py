# SPDX-License-Identifier: Apache-2.0
"""The view properties that say what follows a refresh: maintenance, and tags that keep base snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from airflow_mv.errors import ConfigurationError
from airflow_mv.spec.stored import whole_number
from airflow_mv.spec.times import duration

#: With how many files, or old snapshots, of its storage table a refresh is followed by maintenance.
COMPACT_PROPERTY = "airflow-mv.maintenance.compact-files"
EXPIRE_PROPERTY = "airflow-mv.maintenance.expire-snapshots"
#: The value of :data:`EXPIRE_PROPERTY` of a view that only commands and tasks maintain.
NEVER = "never"
#: For how long after a refresh the base tables keep the snapshots that the rows were computed from.
KEEP_PROPERTY = "airflow-mv.keep-base-snapshots"


def most_files(properties: Mapping[str, str], *, view: str) -> int | None:
    """Return how many files may stay without a compaction; ``None``: any number.

    Raises:
        ConfigurationError: It is not a whole number of at least 1.
    """
    return _bound(properties, COMPACT_PROPERTY, view)


def most_old_snapshots(properties: Mapping[str, str], *, view: str, default: int | None) -> int | None:
    """Return how many old snapshots may stay; ``None``: any number.

    Raises:
        ConfigurationError: It is neither ``never`` nor a whole number of at least 1.
    """
    if properties.get(EXPIRE_PROPERTY, "").strip() == NEVER:
        return None
    return _bound(properties, EXPIRE_PROPERTY, view) or default


def kept_for(properties: Mapping[str, str], *, view: str) -> timedelta | None:
    """Return for how long base snapshots are kept; ``None``: they are not.

    Raises:
        ConfigurationError: It is not a length of time.
    """
    return duration(properties.get(KEEP_PROPERTY), what=f"view {view}, property {KEEP_PROPERTY}")


def _bound(properties: Mapping[str, str], key: str, view: str) -> int | None:
    text = properties.get(key)
    if text is None:
        return None
    if (number := whole_number(text.strip(), 0)) < 1:
        raise ConfigurationError(f"view {view}, property {key}: {text!r} is not a whole number of at least 1")
    return number
