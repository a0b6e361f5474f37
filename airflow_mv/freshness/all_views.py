# SPDX-License-Identifier: Apache-2.0
"""The freshness of all views of catalogs. What the cache knows is taken from there; the rest is observed.

If nothing has moved, no catalog is opened and none of its libraries is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_mv.catalog.fact_cache import FactCache
from airflow_mv.freshness.known import CatalogStatuses, Look, Opener, PropertiesOf, key_of, look_at
from airflow_mv.spec.identifiers import Identifier

if TYPE_CHECKING:
    from airflow_mv.catalog import MaterializedViewCatalog


def statuses_of_catalogs(
    catalogs: Mapping[str, Opener],
    namespace: tuple[str, ...] | None = None,
    *,
    cache: FactCache | None = None,
    properties_of: PropertiesOf = lambda _: None,
) -> CatalogStatuses:
    """Return the freshness of all materialized views in several catalogs. A failing catalog does not affect the others.

    Args:
        catalogs: Functions that open them, by name. If there are several, those that cannot hold views are left out.
        namespace: Only the views of this namespace.
        cache: What metadata files say; by default nothing is kept.
        properties_of: The properties of configured catalogs, to look at their pointers without opening them.

    Raises:
        MaterializedViewError: There is one catalog only, and it cannot be read.
    """
    kept = cache or FactCache(None)
    looks = {
        name: look_at(name, properties, namespace, kept, properties_of)
        for name in catalogs
        if (properties := properties_of(name)) is not None
    }
    found = CatalogStatuses()
    if len(looks) == len(catalogs) and all(_is_complete(look, namespace) for look in looks.values()):
        for look in looks.values():
            found.documents.extend(look.known.sorted_documents())
        return found
    from airflow_mv.freshness.status import observe_catalogs

    observe_catalogs(found, catalogs, namespace, looks, kept)
    return found


def statuses_of_views(
    views: Sequence[Identifier],
    opener: Callable[[], tuple[MaterializedViewCatalog, Sequence[Identifier]]],
    *,
    cache: FactCache,
    properties_of: PropertiesOf,
) -> list[dict[str, Any]]:
    """Return the freshness documents of named views of one catalog.

    Args:
        views: Their names.
        opener: Opens their catalog.
        cache: What metadata files say.
        properties_of: The properties of configured catalogs, to look at their pointers without opening them.

    Raises:
        MaterializedViewError: One of them cannot be read.
    """
    name, wanted = views[0].catalog, [key_of(view) for view in views]
    properties = properties_of(name)
    look = Look() if properties is None else look_at(name, properties, None, cache, properties_of, wanted=wanted)
    if all(key in look.known.documents for key in wanted):
        return [look.known.documents[key] for key in wanted]
    from airflow_mv.freshness.status import observe_named

    catalog, _ = opener()
    return observe_named(catalog, views, look, cache)


def _is_complete(look: Look, namespace: tuple[str, ...] | None) -> bool:
    """Whether nothing has to be read. A namespace without views may not exist, which the catalog knows."""
    return look.whole and not look.known.left and (namespace is None or bool(look.known.documents))
