# SPDX-License-Identifier: Apache-2.0
"""Materialized views as Airflow assets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

from airflow.sdk import Asset, AssetAlias

from airflow_mv.core.spec.identifiers import Identifier

if TYPE_CHECKING:
    from openlineage.client.event_v2 import Dataset as OpenLineageDataset

#: Scheme of the assets' URIs. A URI names a catalog entry, not a location in a store.
SCHEME = "iceberg-mv"
GROUP = "materialized-view"
_PARTS_BELOW_THE_CATALOG = 2
#: Outlet of tasks whose view is known only at run time. Their events are events of the view's own asset.
VIEWS_ALIAS = AssetAlias(name="materialized-views", group=GROUP)


def materialized_view_asset(view: str) -> Asset:
    """Return the asset of a materialized view.

    ``RefreshMaterializedViewOperator`` has it as its outlet, so a DAG with
    ``schedule=[materialized_view_asset("lake.sales.daily")]`` runs when a refresh has changed the view's rows.

    Only tasks of this Airflow emit its events. A refresh from the command line, or by another Airflow, emits none:
    ``docs/events.md`` says which trigger and which sensor find it.

    Args:
        view: ``catalog.namespace.name``.

    Raises:
        InvalidIdentifierError: The name is not complete.
    """
    identifier = Identifier.parse(view)
    path = "/".join(quote(part, safe="") for part in identifier.parts)
    return Asset(name=str(identifier), uri=f"{SCHEME}://{path}", group=GROUP)


def checked_uri(uri: SplitResult) -> SplitResult:
    """Check the URI of an asset. Airflow calls this for each asset with this scheme.

    Args:
        uri: ``iceberg-mv://catalog/namespace/name``.

    Raises:
        ValueError: The URI does not name a view. Airflow shows it as an import error of the DAG.
    """
    if not uri.netloc or len([part for part in uri.path.split("/") if part]) < _PARTS_BELOW_THE_CATALOG:
        raise ValueError(
            f"{SCHEME} URIs look like {SCHEME}://catalog/namespace/name; materialized_view_asset() makes them"
        )
    return uri


def openlineage_dataset(asset: Asset, _context: Any) -> OpenLineageDataset:
    """Return the OpenLineage dataset of an asset that a task has as inlet or outlet.

    A refresh reports its view in more detail, under the view's location. This name is a symlink of that dataset.
    """
    from openlineage.client.event_v2 import Dataset

    uri = urlsplit(asset.uri)
    names = [unquote(part) for part in uri.path.strip("/").split("/")]
    return Dataset(namespace=f"{SCHEME}://{unquote(uri.netloc)}", name=".".join(names))
