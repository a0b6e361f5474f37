# SPDX-License-Identifier: Apache-2.0
"""Publish changes of views: one protocol for all changes, and three layouts of the storage table."""

from __future__ import annotations

from airflow_mv.catalog import MaterializedViewCatalog
from airflow_mv.publish.layouts import layout_of
from airflow_mv.publish.protocol import Effects as Effects
from airflow_mv.publish.refresh import PlannedRefresh, RefreshChange, Staged
from airflow_mv.publish.refresh import Published as Published
from airflow_mv.publish.refresh import PublishOutcome as PublishOutcome
from airflow_mv.publish.refresh import RefreshMetrics as RefreshMetrics


def publish(
    catalog: MaterializedViewCatalog,
    plan: PlannedRefresh,
    staged: str | None,
    *,
    figures: RefreshMetrics | None = None,
    effects: Effects | None = None,
) -> Published:
    """Publish a staged refresh, see :meth:`airflow_mv.publish.refresh.RefreshChange.publish`.

    Args:
        catalog: Where the view is.
        plan: The plan, with the state that it was made from.
        staged: The staged storage metadata file, or in the registered layout the branch with the staged rows;
            ``None`` for a fast-forward.
        figures: The refresh in numbers, for its record.
        effects: Clock, sleep and jitter.
    """
    change = Staged(plan, staged, figures or RefreshMetrics(), effects or Effects())
    return RefreshChange(catalog, change, layout_of(plan).attempt(catalog, change)).publish()
