# SPDX-License-Identifier: Apache-2.0
"""Materialized views as Airflow assets."""

from __future__ import annotations

from urllib.parse import quote

from airflow.sdk import Asset

from airflow_mv.spec.identifiers import Identifier

#: Scheme of the assets' URIs. It names a catalog entry, not a place in a store.
SCHEME = "iceberg-mv"
GROUP = "materialized-view"


def materialized_view_asset(view: str) -> Asset:
    """Return the asset that stands for a materialized view, the same one wherever it is named.

    ``RefreshMaterializedViewOperator`` has it as its outlet, so a DAG with
    ``schedule=[materialized_view_asset("lake.sales.daily")]`` runs when the view has got new rows.

    Args:
        view: ``catalog.namespace.name``.

    Raises:
        InvalidIdentifierError: It is no full name.
    """
    identifier = Identifier.parse(view)
    path = "/".join(quote(part, safe="") for part in identifier.parts)
    return Asset(name=str(identifier), uri=f"{SCHEME}://{path}", group=GROUP)
