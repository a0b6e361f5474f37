# SPDX-License-Identifier: Apache-2.0
"""The summaries of many views: what the cache knows is taken from there, the rest is observed and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from airflow_mv.common.each import ItemResult, for_each, left_out, while_answered
from airflow_mv.common.status import ViewStatus, lag, observe_each
from airflow_mv.core.catalog import LoadedView, MaterializedViewCatalog
from airflow_mv.core.freshness.observe import Observation
from airflow_mv.core.freshness.state import State
from airflow_mv.core.spec.choices import COLUMN_PROPERTY
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.properties import MAX_STALENESS_PROPERTY
from airflow_mv.core.spec.reasons import Code, Reason
from airflow_mv.errors import CatalogUnavailableError, MaterializedViewError
from airflow_mv.extras.fleet.fact_cache import FactCache
from airflow_mv.extras.fleet.known import (
    CacheLookup,
    CatalogStatuses,
    KeptStatus,
    Opener,
    PropertiesOf,
    S,
    identifier_of,
    key_of,
    key_text,
    look_up,
    with_count,
)
from airflow_mv.extras.fleet.summary import SUMMARY, Summary, encoded, listed

#: Counts the fresh intervals of a stale view; see :func:`airflow_mv.extras.fleet.coverage.count`.
Count = Callable[[MaterializedViewCatalog, Observation], dict[str, Any]]


def summary_of(seen: Observation, counted: dict[str, Any] | None = None) -> Summary:
    """Return the summary of an observation.

    Args:
        counted: How many intervals are fresh, if that was counted.
    """
    properties = seen.view.metadata.properties
    return Summary(
        None if seen.pointers is None else listed(seen.pointers),
        ViewStatus(seen).to_dict(),
        counted,
        behind=lag(seen),
        uuid=seen.view.metadata.view_uuid,
        defined_ms=_defined_ms(seen),
        max_staleness=properties.get(MAX_STALENESS_PROPERTY),
        strategy=seen.view.materialized.refresh_strategy,
        interval_column=column_of(seen),
        recorded=_recorded(seen),
    )


def _recorded(seen: Observation) -> dict[str, Any] | None:
    record, storage = seen.record, seen.storage
    if record is None:
        return None
    return {
        "mode": record.mode,
        "rows_written": record.rows_written,
        "rows": storage.table.rows_at(storage.rows_snapshot),
        "reasons": [dict(reason) for reason in record.reasons],
        "checks": [dict(check) for check in record.checks],
        "interval": record.interval.interval.to_dict() if record.interval else None,
        "seconds": record.seconds,
        "requested_by": dict(record.requested_by),
    }


def _defined_ms(seen: Observation) -> int:
    """Return the time of the definition that the rows do not have: the view's, or that of a nested view."""
    own, record = seen.view.metadata.current_version, seen.record
    known = {view.identifier: view for view in record.nested_views} if record else {}
    nested = zip(seen.dependencies.views, seen.nested_views, strict=True)
    changed = [view.version_ms for view, now in nested if record and known.get(now.identifier) != now]
    if not changed or (record and record.version_id != own.version_id):
        changed.append(own.timestamp_ms)
    return min(changed)


# -- with the cache --------------------------------------------------------------------------------


def properties_through(catalog: MaterializedViewCatalog) -> PropertiesOf:
    """Return the properties of an opened catalog and of those that its base tables are in, by name."""

    def properties_of(name: str) -> Mapping[str, Any] | None:
        try:
            return catalog.other(name).properties
        except MaterializedViewError:
            return None

    return properties_of


def look_up_opened(
    catalog: MaterializedViewCatalog, cache: FactCache, namespace: tuple[str, ...] | None = None
) -> CacheLookup[Summary]:
    """Compare the cache with the pointers of an opened catalog. Tables that it knows are not read to list views.

    Args:
        namespace: Only the views of this namespace.
    """
    lookup = look_up(catalog.name, catalog.properties, namespace, cache, properties_through(catalog), SUMMARY)
    note_ordinary(catalog, lookup)
    return lookup


def note_ordinary(catalog: MaterializedViewCatalog, lookup: CacheLookup[S]) -> None:
    """Do not read the tables to list views that the cache knows as ordinary ones."""
    known = lookup.known.ordinary
    catalog.table_views.note_ordinary({identifier_of(catalog.name, key): item for key, item in known.items()})


def summaries(
    catalog: MaterializedViewCatalog,
    views: Sequence[Identifier],
    seen: CacheLookup[S],
    cache: FactCache,
    *,
    named: bool = False,
) -> Iterator[ItemResult[Identifier, S | Summary]]:
    """Yield the summary of each view. Those that were observed are kept after the last one.

    Args:
        views: Their names.
        seen: What the cache knows of them.
        named: The views were named, not listed: a plain view is an error.
    """
    new: dict[Identifier, Summary] = {}
    known = {
        view: kept
        for view in views
        if (kept := seen.known.views.get(key_of(view))) is not None and not (named and kept.status is None)
    }
    results = observe_each(
        catalog, [view for view in views if view not in known], summary_of, plain=None if named else _plain
    )
    for view in views:
        if view in known:
            yield ItemResult(view, known[view])
            continue
        result = next(results)
        if result.value is not None:
            new[view] = result.value
        yield ItemResult(view, result.value, result.error)
    keep(catalog, seen, new, cache)


def keep(
    catalog: MaterializedViewCatalog, seen: CacheLookup[S], new: Mapping[Identifier, Summary], cache: FactCache
) -> None:
    """Keep new summaries, and the tables that a listing has found to be no views.

    Args:
        seen: What the cache knew. The tables are added to it.
        new: The summaries of observed views.
    """
    if not seen.kind:
        return
    kept: dict[Identifier, KeptStatus] = {name: item for name, item in new.items() if _is_kept(item)}
    for name, location in catalog.table_views.ordinary.items():
        if seen.known.ordinary.get(key_of(name)) != location:
            kept.setdefault(name, KeptStatus(listed({name: location})))
            seen.known.ordinary[key_of(name)] = location
    cache.put(seen.kind, {key_text(key_of(name)): encoded(item) for name, item in kept.items()}, gone=seen.gone)


def _is_kept(summary: Summary) -> bool:
    """Whether a summary is one of all rows, and follows from pointers alone."""
    return summary.pointers is not None and (summary.status is None or summary.status["interval"] is None)


def _plain(view: LoadedView) -> Summary:
    return Summary(listed({view.identifier: view.metadata_location}))


# -- the documents of `airflow-mv status` ------------------------------------------------------------


def observe_catalogs(
    found: CatalogStatuses,
    catalogs: Mapping[str, Opener],
    namespace: tuple[str, ...] | None,
    lookups: Mapping[str, CacheLookup[KeptStatus]],
    cache: FactCache,
) -> None:
    """Add the freshness of all views of catalogs, and keep it in the cache.

    Args:
        found: Receives the documents and errors.
        catalogs: Functions that open them, by name. If there are several, those that cannot hold views are left out.
        namespace: Only the views of this namespace.
        lookups: What the cache knows of them, for those that it was compared with.

    Raises:
        MaterializedViewError: There is one catalog only, and it cannot be read.
    """

    def viewed(name: str) -> tuple[MaterializedViewCatalog, CacheLookup[Any], list[Identifier]]:
        catalog = catalogs[name]()
        if not (catalog.holds_views or len(catalogs) == 1):
            return catalog, CacheLookup(), []
        lookup: CacheLookup[Any] | None = lookups.get(name)
        if lookup is None:
            lookup = look_up_opened(catalog, cache, namespace)
        else:
            note_ordinary(catalog, lookup)
        return catalog, lookup, catalog.list(namespace)

    for result in for_each(catalogs, viewed):
        if result.error is not None and len(catalogs) > 1:
            _note_catalog(found, result.item, result.error)
        else:
            catalog, lookup, views = result.get()
            _add_results(found, catalog, summaries(catalog, views, lookup, cache))
            for error in left_out(catalog, namespace):
                found.errors.append(error)
                found.documents.append(_unreadable(None, catalog.name, Code.STORE_UNREADABLE, error))


def observe_named(
    catalog: MaterializedViewCatalog,
    views: Sequence[Identifier],
    seen: CacheLookup[KeptStatus],
    cache: FactCache,
    count: Count,
) -> list[dict[str, Any]]:
    """Return the documents of named views, those that the cache knows from there, and keep the others in it.

    Args:
        views: Their names.
        seen: What the cache knows of them.
        count: Counts the fresh intervals of a stale view.

    Raises:
        MaterializedViewError: One of them cannot be read.
    """
    known = seen.known.views

    def judged(observation: Observation) -> Summary:
        return summary_of(
            observation, {} if observation.freshness.state != State.STALE else count(catalog, observation)
        )

    results = observe_each(catalog, [view for view in views if key_of(view) not in known], judged)
    found: list[KeptStatus] = [known.get(key_of(view)) or next(results).get() for view in views]
    new = {view: item for view, item in zip(views, found, strict=True) if isinstance(item, Summary)}
    keep(catalog, seen, new, cache)
    return [with_count(item.status or {}, item.counted) for item in found]


def _add_results(
    found: CatalogStatuses,
    catalog: MaterializedViewCatalog,
    results: Iterable[ItemResult[Identifier, KeptStatus]],
) -> None:
    """Add a document for each view."""
    try:
        for result in while_answered(catalog, results):
            if result.error is not None:
                found.documents.append(_unreadable(result.item, catalog.name, Code.VIEW_UNREADABLE, result.error))
            elif result.value is not None and result.value.status is not None:
                found.documents.append(result.value.status)
            if isinstance(result.error, CatalogUnavailableError):
                found.errors.append(result.error)
    except CatalogUnavailableError as away:
        _note_catalog(found, catalog.name, away)


def _note_catalog(found: CatalogStatuses, catalog: str, error: MaterializedViewError) -> None:
    found.errors.append(error)
    found.documents.append(_unreadable(None, catalog, Code.CATALOG_UNREADABLE, error))


def _unreadable(view: Identifier | None, catalog: str, code: Code, why: MaterializedViewError) -> dict[str, Any]:
    return {
        "view": None if view is None else str(view),
        "catalog": catalog,
        "state": str(State.UNKNOWN),
        "refresh_id": None,
        "refreshed_at": None,
        "version_id": None,
        "base_tables": [],
        "reasons": [Reason(code, str(why)).to_dict()],
        "interval": None,
        "intervals": [],
    }


def column_of(observation: Observation) -> str | None:
    """Return the interval column that a view's property names, or of its recorded intervals; ``None`` for neither."""
    recorded = observation.record.intervals if observation.record else ()
    named = observation.view.metadata.properties.get(COLUMN_PROPERTY)
    return named or (recorded[0].column if recorded else None)
