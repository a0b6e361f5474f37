# SPDX-License-Identifier: Apache-2.0
"""The view properties that this package reads are checked before anything is made, not by the first refresh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from airflow_mv.checks import CHECKS_PROPERTY
from airflow_mv.errors import ConfigurationError
from airflow_mv.freshness.drift import ON_SCHEMA_CHANGE_PROPERTY, on_schema_change
from airflow_mv.freshness.lag import MAX_STALENESS_PROPERTY, max_staleness_of
from airflow_mv.publish.refresh import MAX_AGE_PROPERTY, MAX_COUNT_PROPERTY, history_limits
from airflow_mv.refresh.choose import MAX_FULL_BYTES_PROPERTY, ON_FALLBACK_PROPERTY, UP_TO_PROPERTY, Policy
from airflow_mv.spec.maintenance_settings import (
    COMPACT_PROPERTY,
    EXPIRE_PROPERTY,
    KEEP_PROPERTY,
    kept_for,
    most_files,
    most_old_snapshots,
)
from airflow_mv.spec.materialized_view import OWN_PROPERTIES, TIME_TRAVEL_PROPERTY
from airflow_mv.spec.refresh_state import DEFAULT_DIALECT, REFRESH_STATE_PROPERTY, require_dialect
from airflow_mv.spec.storage_settings import SORT_PROPERTY, STORAGE_PREFIX
from airflow_mv.spec.view import DIALECTS_PROPERTY, TRANSPILE_PROPERTY
from airflow_mv.sql.intervals import COLUMN_PROPERTY, interval_column
from airflow_mv.sql.translation import known_dialects

_PREFIX = "airflow-mv."
#: All that a user may set, besides those that begin with :data:`STORAGE_PREFIX`.
SETTABLE = frozenset(
    {
        CHECKS_PROPERTY,
        COLUMN_PROPERTY,
        COMPACT_PROPERTY,
        DIALECTS_PROPERTY,
        EXPIRE_PROPERTY,
        KEEP_PROPERTY,
        MAX_AGE_PROPERTY,
        MAX_COUNT_PROPERTY,
        MAX_FULL_BYTES_PROPERTY,
        MAX_STALENESS_PROPERTY,
        ON_FALLBACK_PROPERTY,
        ON_SCHEMA_CHANGE_PROPERTY,
        REFRESH_STATE_PROPERTY,
        SORT_PROPERTY,
        TIME_TRAVEL_PROPERTY,
        TRANSPILE_PROPERTY,
        UP_TO_PROPERTY,
    }
)


def check_properties(properties: Mapping[str, str], *, view: str) -> None:
    """Refuse a property that has a wrong value, or whose name begins with ``airflow-mv.`` and that nothing reads.

    Args:
        properties: Those that a user gives.
        view: For messages.

    Raises:
        ConfigurationError: Names the property, its value and what it may be.
    """
    for key in properties:
        _check_name(key, view)
    if (text := properties.get(TIME_TRAVEL_PROPERTY, "true")).lower() not in ("true", "false"):
        raise ConfigurationError(f"view {view}, property {TIME_TRAVEL_PROPERTY}: {text!r} is not true or false")
    history_limits({**properties, TIME_TRAVEL_PROPERTY: "true"}, view=view)
    on_schema_change(properties, view=view)
    Policy.of(properties, view=view)
    max_staleness_of(properties.get(MAX_STALENESS_PROPERTY), view=view)
    kept_for(properties, view=view)
    most_files(properties, view=view)
    most_old_snapshots(properties, view=view, default=None)
    known_dialects([properties[TRANSPILE_PROPERTY]] if TRANSPILE_PROPERTY in properties else [])
    require_dialect(properties.get(REFRESH_STATE_PROPERTY, DEFAULT_DIALECT), view=view)


def _check_name(key: str, view: str) -> None:
    known = key in SETTABLE or key in OWN_PROPERTIES or key.startswith(STORAGE_PREFIX)
    if key.startswith(_PREFIX) and not known:
        close = get_close_matches(key, SETTABLE, 1)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise ConfigurationError(f"view {view}: there is no property {key}{meant}")


def check_interval_column(fields: Sequence[Mapping[str, Any]], properties: Mapping[str, str], *, view: str) -> None:
    """Refuse an interval column that the view does not have, or whose type has no intervals.

    Args:
        fields: The view's columns, as its schema holds them.
        properties: The view's.
        view: For messages.

    Raises:
        ConfigurationError: Names the columns that are suitable.
    """
    if COLUMN_PROPERTY in properties:
        interval_column(fields, properties, view=view)
