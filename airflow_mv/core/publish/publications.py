# SPDX-License-Identifier: Apache-2.0
"""All layouts, for staging and publication, and the publication of a refresh in the layout of its view."""

from __future__ import annotations

from airflow_mv.core.catalog import Layout, LoadedView, MaterializedViewCatalog, stored_layout
from airflow_mv.core.publish.layout import StorageLayout
from airflow_mv.core.publish.pointed import PointedPublication
from airflow_mv.core.publish.protocol import Effects
from airflow_mv.core.publish.refresh import PlannedRefresh, Published, RefreshChange, RefreshMetrics, Staged
from airflow_mv.core.publish.registered import RegisteredPublication
from airflow_mv.core.publish.table import TablePublication
from airflow_mv.errors import InvalidMetadataError

#: Layouts by name. :mod:`airflow_mv.core.catalog.layouts` has the same names.
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
    return LAYOUTS[stored_layout(view).layout]


def publish(
    catalog: MaterializedViewCatalog,
    plan: PlannedRefresh,
    staged: str | None,
    *,
    figures: RefreshMetrics | None = None,
    effects: Effects | None = None,
) -> Published:
    """Publish a staged refresh, see :meth:`airflow_mv.core.publish.refresh.RefreshChange.publish`.

    Args:
        plan: The plan, with the state that it was made from.
        staged: The staged storage metadata file, or in the registered layout the branch with the staged rows;
            ``None`` for a fast-forward.
        figures: The refresh in numbers, for its record.
        effects: Clock, sleep and jitter.
    """
    change = Staged(plan, staged, figures or RefreshMetrics(), effects or Effects())
    return RefreshChange(catalog, change, layout_of(plan).attempt(catalog, change)).publish()
