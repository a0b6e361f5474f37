# SPDX-License-Identifier: Apache-2.0
"""The freshness of all views of catalogs. What the cache knows is taken from there; the rest is observed.

If nothing has moved, no catalog is opened and none of its libraries is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_mv.catalog.fact_cache import FactCache
from airflow_mv.freshness.known import CatalogStatuses, Look, Opener, PropertiesOf, key_of, look_at, with_count
from airflow_mv.spec.identifiers import Identifier

if TYPE_CHECKING:
    from airflow_mv.catalog import MaterializedViewCatalog
    from airflow_mv.freshness.status import Count


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
    count: Count,
) -> list[dict[str, Any]]:
    """Return the freshness documents of named views of one catalog.

    A stale view whose intervals are refreshed one by one has ``coverage``: ``unit``, ``intervals``, ``up_to_date``.

    Args:
        views: Their names.
        opener: Opens their catalog.
        cache: What metadata files say.
        properties_of: The properties of configured catalogs, to look at their pointers without opening them.
        count: Counts the fresh intervals of a stale view.

    Raises:
        MaterializedViewError: One of them cannot be read.
    """
    name, wanted = views[0].catalog, [key_of(view) for view in views]
    properties = properties_of(name)
    look = Look() if properties is None else look_at(name, properties, None, cache, properties_of, wanted=wanted)
    known, now = look.known, datetime.now(UTC).isoformat()
    for key in [key for key, document in known.documents.items() if document["state"] == "stale"]:
        counted = known.counts[key]
        if counted is None or (counted.get("until") or now) < now:
            del known.documents[key]  # it was not counted, or another unit of time has begun since
    if all(key in known.documents for key in wanted):
        return [with_count(known.documents[key], known.counts[key]) for key in wanted]
    from airflow_mv.freshness.status import observe_named

    catalog, _ = opener()
    return observe_named(catalog, views, look, cache, count)


def _is_complete(look: Look, namespace: tuple[str, ...] | None) -> bool:
    """Whether nothing has to be read. A namespace without views may not exist, which the catalog knows."""
    return look.whole and not look.known.left and (namespace is None or bool(look.known.documents))
