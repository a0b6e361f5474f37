# SPDX-License-Identifier: Apache-2.0
"""Read-only queries on views: freshness of many views, history, stored metadata."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_mv.catalog import LoadedStorage, LoadedView, MaterializedViewCatalog, stored_layout
from airflow_mv.catalog.fact_cache import FactCache
from airflow_mv.catalog.loaded import all_refreshes
from airflow_mv.catalog.pointer_list import Key
from airflow_mv.errors import CatalogUnavailableError, InvalidMetadataError, MaterializedViewError
from airflow_mv.freshness.expiry import expiries
from airflow_mv.freshness.known import CatalogStatuses, Look, Opener, key_of, key_text, look_at, with_count
from airflow_mv.freshness.observe import ItemResult, Observation, for_each, observe, observe_each
from airflow_mv.freshness.state import State
from airflow_mv.freshness.summary import Summary, encoded, summary_of, summary_of_plain, summary_of_table
from airflow_mv.spec.identifiers import Identifier
from airflow_mv.spec.interval import Span
from airflow_mv.spec.reasons import Code, Reason
from airflow_mv.spec.refresh_state import REFRESH_STATE_KEY, parse
from airflow_mv.spec.snapshots import held_bytes
from airflow_mv.spec.times import from_ms
from airflow_mv.sql.translation import texts_of

log = logging.getLogger(__name__)

#: Counts the fresh intervals of a stale view; see :func:`airflow_mv.refresh.coverage.count`.
Count = Callable[[MaterializedViewCatalog, Observation], dict[str, Any]]


def status(catalog: MaterializedViewCatalog, view: str | Identifier, *, interval: Span | None = None) -> ViewStatus:
    """Return the freshness of a view. Reads metadata only.

    Args:
        catalog: Where it is.
        view: The view.
        interval: Consider only the rows of this interval.

    Raises:
        ViewNotFoundError, NotMaterializedError, InvalidMetadataError, MetadataFileNotFoundError: The
            view cannot be read.
    """
    return ViewStatus(observe(catalog, view, span=interval))


def statuses(
    catalog: MaterializedViewCatalog,
    views: Iterable[Identifier],
    *,
    interval: Span | None = None,
) -> list[dict[str, Any]]:
    """Return the freshness documents of several views; a base table that they share is read once.

    Args:
        catalog: Where they are.
        views: Their names.
        interval: Consider only the rows of this interval.

    Raises:
        MaterializedViewError: One of them cannot be read.
    """
    results = observe_each(catalog, views, lambda seen: ViewStatus(seen).to_dict(), span=interval)
    return [result.get() for result in results]


def observe_catalogs(
    found: CatalogStatuses,
    catalogs: Mapping[str, Opener],
    namespace: tuple[str, ...] | None,
    looks: Mapping[str, Look],
    cache: FactCache,
) -> None:
    """Add the freshness of all views of catalogs, and keep it in the cache.

    Args:
        found: Receives the documents and errors.
        catalogs: Functions that open them, by name. If there are several, those that cannot hold views are left out.
        namespace: Only the views of this namespace.
        looks: What the cache knows of them, for those that it was compared with.
        cache: The cache.

    Raises:
        MaterializedViewError: There is one catalog only, and it cannot be read.
    """

    def listed(name: str) -> tuple[MaterializedViewCatalog, Look, list[Identifier]]:
        catalog = catalogs[name]()
        if not (catalog.holds_views or len(catalogs) == 1):
            return catalog, Look(), []
        seen = looks.get(name) or look_at(name, catalog.properties, namespace, cache, lambda _: None)
        catalog.note_ordinary_tables({_identifier(name, key): item for key, item in seen.known.ordinary.items()})
        return catalog, seen, catalog.list(namespace)

    for result in for_each(catalogs, listed):
        if result.error is not None and len(catalogs) > 1:
            _note_catalog(found, result.item, result.error)
        else:
            _observe_all(found, *result.get(), cache)


def observe_named(
    catalog: MaterializedViewCatalog, views: Sequence[Identifier], seen: Look, cache: FactCache, count: Count
) -> list[dict[str, Any]]:
    """Return the documents of named views, those that the cache knows from there, and keep the others in it.

    Args:
        catalog: Where they are.
        views: Their names.
        seen: What the cache knows of them.
        cache: The cache.
        count: Counts the fresh intervals of a stale view.

    Raises:
        MaterializedViewError: One of them cannot be read.
    """
    new: dict[Identifier, Summary] = {}
    known = seen.known

    def judged(observation: Observation) -> dict[str, Any]:
        found = {} if observation.freshness.state != State.STALE else count(catalog, observation)
        return with_count(_judged(new, observation, found), found)

    results = observe_each(catalog, [view for view in views if key_of(view) not in known.documents], judged)
    documents = [
        with_count(known.documents[key], known.counts.get(key)) if key in known.documents else next(results).get()
        for key in map(key_of, views)
    ]
    if seen.kind and catalog.locates_at_once:
        cache.put(seen.kind, {key_text(key_of(name)): encoded(item) for name, item in new.items()})
    return documents


def _judged(
    new: dict[Identifier, Summary], observation: Observation, counted: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return a view's document, and add its summary to ``new``."""
    document = ViewStatus(observation).to_dict()
    summary = summary_of(observation, document, counted)
    if summary is not None:
        new[observation.view.identifier] = summary
    return document


def _identifier(catalog: str, key: Key) -> Identifier:
    return Identifier(catalog, tuple(key[0].split(".")), key[1])


def _observe_all(
    found: CatalogStatuses, catalog: MaterializedViewCatalog, seen: Look, views: list[Identifier], cache: FactCache
) -> None:
    """Add the documents of a catalog's views, those that the cache knows from there."""
    new: dict[Identifier, Summary] = {}
    results = _observed(catalog, [view for view in views if not seen.known.has(key_of(view))], new)
    for view in views:
        if seen.known.has(key_of(view)):
            found.add(seen.known.documents.get(key_of(view)))
        elif not _add_result(found, catalog, next(results)):
            return
    if seen.kind and catalog.locates_at_once:
        ordinary, known = catalog.ordinary_tables, seen.known.ordinary
        new |= {name: summary_of_table(name, at) for name, at in ordinary.items() if known.get(key_of(name)) != at}
        cache.put(seen.kind, {key_text(key_of(name)): encoded(item) for name, item in new.items()}, gone=seen.gone)


def _observed(
    catalog: MaterializedViewCatalog, views: Iterable[Identifier], new: dict[Identifier, Summary]
) -> Iterator[ItemResult[Identifier, dict[str, Any] | None]]:
    """Observe views; their summaries are added to ``new``."""

    def judge(observation: Observation) -> dict[str, Any] | None:
        return _judged(new, observation)

    def leave_out(view: LoadedView) -> None:
        new[view.identifier] = summary_of_plain(view)

    return observe_each(catalog, views, judge, plain=leave_out)


def _add_result(
    found: CatalogStatuses, catalog: MaterializedViewCatalog, result: ItemResult[Identifier, dict[str, Any] | None]
) -> bool:
    """Add a document or an error, and return whether the catalog still answers."""
    if isinstance(result.error, CatalogUnavailableError):
        away = _own_error(catalog, result.item)
        if away is not None:
            _note_catalog(found, catalog.name, away)
            return False
        found.errors.append(result.error)
    if result.error is not None:
        found.documents.append(_unreadable(result.item, catalog.name, Code.VIEW_UNREADABLE, result.error))
    else:
        found.add(result.value)
    return True


def _own_error(catalog: MaterializedViewCatalog, view: Identifier) -> CatalogUnavailableError | None:
    """Return the error of the view's own catalog; ``None`` if only the catalog of a base table does not answer."""
    (result,) = for_each([view], catalog.load)
    return result.error if isinstance(result.error, CatalogUnavailableError) else None


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


def history(catalog: MaterializedViewCatalog, view: str | Identifier) -> list[dict[str, Any]]:
    """Return the recorded refreshes of a view, oldest first.

    ``bytes`` is the size of the view's files after the refresh. ``bytes_held`` is the size of those that are not
    the view's any more, and are kept for this refresh and earlier ones. Both are ``None`` if its rows have expired.
    """
    loaded = catalog.load(view)
    storage = catalog.load_storage(loaded)
    state = storage.state
    if state is None:
        return []
    records = all_refreshes(loaded, storage)
    heads = storage.snapshots_of(records)
    held = held_bytes(storage.table, [head for head in heads.values() if head is not None])
    return [
        {
            "refresh_id": record.refresh_id,
            "version_id": record.version_id,
            "sequence_number": record.sequence_number,
            "mode": record.mode,
            "reasons": [dict(reason) for reason in record.reasons],
            "base_tables": [
                {
                    "identifier": table.identifier,
                    "type": table.type,
                    "snapshot_reference": table.snapshot_reference,
                }
                for table in record.base_tables
            ],
            "refreshed_at": timestamp(record.refreshed_at_ms),
            "rows_written": record.rows_written,
            "rows_deleted": record.rows_deleted,
            "rows_changed": record.rows_changed,
            "rows_read": record.rows_read,
            "bytes_read": record.bytes_read,
            "snapshot_id": head,
            "bytes": None if head is None else storage.table.bytes_at(head),
            "bytes_held": None if head is None else held.get(head),
            "checks": [dict(check) for check in record.checks],
            "current": record.refresh_id == state.current_refresh_id,
            "interval": record.interval.interval.to_dict() if record.interval else None,
        }
        for record in records
        for head in [heads[record.refresh_id]]
    ]


def stored_metadata(catalog: MaterializedViewCatalog, view: str | Identifier) -> dict[str, Any]:
    """Return the metadata of a view and of its storage table, as stored."""
    loaded = catalog.load(view)
    storage = catalog.load_storage(loaded)
    return {
        "view": str(loaded.identifier),
        "layout": stored_layout(loaded).name,
        "metadata_location": loaded.metadata_location,
        "metadata": catalog.stored_view(loaded),
        "storage_table": str(storage.name) if storage.name else None,
        "storage_table_location": storage.location,
        "how_to_read": how_to_read(loaded, storage),
        "texts": texts_of(loaded.metadata, view=str(loaded.identifier)),
        "storage_table_metadata": catalog.stored_table(loaded, storage),
        "refresh_state": _refresh_state(storage),
    }


def how_to_read(view: LoadedView, storage: LoadedStorage) -> str:
    """Return where people read a view's stored rows, and what a query by the view's name does."""
    return f"stored rows of {view.identifier}: {storage.how_to_read(view.identifier)}"


def _refresh_state(storage: LoadedStorage) -> dict[str, Any] | None:
    """Return the refresh state in the current snapshot's summary, in any version of the draft specification."""
    snapshot = None if storage.table.head is None else storage.table.find(storage.table.head)
    text = snapshot.summary.get(REFRESH_STATE_KEY) if snapshot else None
    if text is None:
        return None
    try:
        return parse(text, source=f"storage table {storage.name}, summary key {REFRESH_STATE_KEY}").document()
    except InvalidMetadataError as error:
        log.warning("%s", error)
        return None


@dataclass(frozen=True, slots=True)
class ViewStatus:
    """The freshness of a view; :meth:`to_dict` is the document of ``airflow-mv status``."""

    observation: Observation

    @property
    def state(self) -> State:
        """The view's freshness."""
        return self.observation.freshness.state

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The reasons."""
        return self.observation.freshness.reasons

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document."""
        record, expiring = self.observation.record, expiries(self.observation)
        return {
            "view": str(self.observation.view.identifier),
            "catalog": self.observation.view.identifier.catalog,
            "state": str(self.state),
            "refresh_id": record.refresh_id if record else None,
            "refreshed_at": timestamp(record.refreshed_at_ms) if record else None,
            "version_id": self.observation.view.metadata.current_version_id,
            "base_tables": [
                {**change.to_dict(), "expires_at": _text(expiring.get(change.identifier))}
                for change in self.observation.freshness.base_tables
            ],
            "reasons": [reason.to_dict() for reason in self.reasons],
            "interval": self.observation.interval.to_dict() if self.observation.interval else None,
            "intervals": [
                {
                    **item.part.interval.to_dict(),
                    "refresh_id": item.part.refresh_id,
                    "refreshed_at": timestamp(item.part.refreshed_at_ms),
                    "fresh": item.is_fresh,
                }
                for item in self.observation.freshness.parts
                if item.part.interval is not None
            ],
        }


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def timestamp(milliseconds: int | None) -> str | None:
    """Return ms since the epoch as ISO 8601 in UTC."""
    return None if milliseconds is None else from_ms(milliseconds).isoformat()
