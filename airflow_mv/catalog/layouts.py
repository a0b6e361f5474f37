# SPDX-License-Identifier: Apache-2.0
"""The list of all layouts. A new one is added here and in :mod:`airflow_mv.publish.layouts`."""

from __future__ import annotations

from airflow_mv.catalog.layout import Layout, StoredLayout
from airflow_mv.catalog.loaded import LoadedView
from airflow_mv.catalog.pointed import PointedLayout
from airflow_mv.catalog.registered import RegisteredLayout
from airflow_mv.catalog.table import TableLayout

#: Layouts by name. A view has the first layout that claims it; the last one claims every view.
STORED_LAYOUTS: dict[Layout, StoredLayout] = {
    layout.name: layout for layout in (TableLayout(), RegisteredLayout(), PointedLayout())
}


def stored_layout(view: LoadedView) -> StoredLayout:
    """Return the layout that a view has."""
    return next(layout for layout in STORED_LAYOUTS.values() if layout.claims(view))
