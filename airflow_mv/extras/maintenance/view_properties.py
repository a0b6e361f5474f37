# SPDX-License-Identifier: Apache-2.0
"""Set the properties of a view that another program has removed or changed."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_mv.core.catalog import LoadedView, MaterializedViewCatalog
from airflow_mv.core.publish.protocol import Effects
from airflow_mv.core.publish.view_change import ViewChange
from airflow_mv.core.spec.view import ViewMetadata, with_view_properties


class RestoreViewProperties(ViewChange):
    """Set the properties of a view that another program has removed or changed.

    Args:
        properties: The properties as they were.
        effects: Clock, sleep and jitter.
    """

    def __init__(
        self, catalog: MaterializedViewCatalog, existing: LoadedView, properties: Mapping[str, str], effects: Effects
    ) -> None:
        super().__init__(catalog, existing, "the restoration of its properties", effects)
        self._properties = properties

    def wanted(self, view: LoadedView) -> ViewMetadata | None:
        """Return the view with the properties, unless it has them."""
        has = self._properties.items() <= view.metadata.properties.items()
        return None if has else with_view_properties(view.metadata, dict(self._properties))
