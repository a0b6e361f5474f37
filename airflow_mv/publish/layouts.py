# SPDX-License-Identifier: Apache-2.0
"""All layouts, for staging and publication."""

from __future__ import annotations

from airflow_mv.catalog import Layout, LoadedView, stored_layout
from airflow_mv.errors import InvalidMetadataError
from airflow_mv.publish.layout import StorageLayout
from airflow_mv.publish.pointed import PointedPublication
from airflow_mv.publish.refresh import PlannedRefresh
from airflow_mv.publish.registered import RegisteredPublication
from airflow_mv.publish.table import TablePublication

#: Layouts by name. :mod:`airflow_mv.catalog.layouts` has the same names.
LAYOUTS: dict[Layout, StorageLayout] = {
    layout.name: layout for layout in (PointedPublication(), RegisteredPublication(), TablePublication())
}


def layout_of(plan: PlannedRefresh) -> StorageLayout:
    """Return the layout of the view that a refresh is planned for.

    Raises:
        InvalidMetadataError: The plan, which may come from another version, names an unknown layout.
    """
    if plan.layout not in LAYOUTS:
        raise InvalidMetadataError(f"view {plan.view}: the plan names the layout {plan.layout!r}, which does not exist")
    return LAYOUTS[plan.layout]


def layout_of_view(view: LoadedView) -> StorageLayout:
    """Return the layout that a view has."""
    return LAYOUTS[stored_layout(view).name]
