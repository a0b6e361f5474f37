# SPDX-License-Identifier: Apache-2.0
"""The freshness of all views of catalogs. What the cache knows is taken from there; the rest is observed.

If nothing has moved, no catalog is opened and none of its libraries is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.extras.fleet.fact_cache import FactCache
from airflow_mv.extras.fleet.known import (
    STATUS,
    CacheLookup,
    CatalogStatuses,
    KeptStatus,
    Opener,
    PropertiesOf,
    key_of,
    look_up,
    with_count,
)

if TYPE_CHECKING:
    from airflow_mv.core.catalog import MaterializedViewCatalog
    from airflow_mv.extras.fleet.summaries import Count


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
    lookups = {
        name: look_up(name, properties, namespace, kept, properties_of, STATUS)
        for name in catalogs
        if (properties := properties_of(name)) is not None
    }
    found = CatalogStatuses()
    if len(lookups) == len(catalogs) and all(lookup.is_complete(namespace) for lookup in lookups.values()):
        for lookup in lookups.values():
            found.documents.extend(kept.status for kept in lookup.known.materialized() if kept.status is not None)
        return found
    from airflow_mv.extras.fleet.summaries import observe_catalogs

    observe_catalogs(found, catalogs, namespace, lookups, kept)
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
    lookup: CacheLookup[KeptStatus] = CacheLookup()
    if properties is not None:
        lookup = look_up(name, properties, None, cache, properties_of, STATUS, wanted=wanted)
    known = lookup.known.views
    for key in [key for key, kept in known.items() if not _is_whole(kept)]:
        del known[key]
    if all(key in known for key in wanted):
        return [with_count(known[key].status or {}, known[key].counted) for key in wanted]
    from airflow_mv.extras.fleet.summaries import observe_named

    catalog, _ = opener()
    return observe_named(catalog, views, lookup, cache, count)


def _is_whole(kept: KeptStatus) -> bool:
    """Whether a summary has all that is shown of a named view, and its count is one until now."""
    if kept.status is None:
        return False
    if kept.status["state"] != "stale":
        return True
    now = datetime.now(UTC).isoformat()
    return kept.counted is not None and (kept.counted.get("until") or now) >= now
