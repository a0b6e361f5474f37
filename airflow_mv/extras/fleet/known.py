# SPDX-License-Identifier: Apache-2.0
"""Which views have the freshness that the cache knows: those whose pointers are the same.

This module decides for ten thousand views in a fraction of a second, so it imports no catalog and no parser.
"""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.reasons import Code, Reason
from airflow_mv.errors import CatalogUnavailableError, MaterializedViewError
from airflow_mv.extras.fleet.fact_cache import FactCache
from airflow_mv.version import __version__

if TYPE_CHECKING:
    from airflow_mv.core.catalog import MaterializedViewCatalog

#: A catalog, a namespace with its parts joined by dots, a name, and the metadata file that the catalog named.
Pointer = tuple[str, str, str, str]
#: Opens a catalog.
Opener = Callable[[], "MaterializedViewCatalog"]
#: Returns the properties of a configured catalog; ``None`` if there is none of the name.
PropertiesOf = Callable[[str], Mapping[str, Any] | None]


class KeptStatus(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The part of a :class:`airflow_mv.extras.fleet.summary.Summary` that ``airflow-mv status`` needs.

    Args:
        pointers: The pointers that it follows from. ``None``: it depends on more, and is not kept.
        status: The document of ``airflow-mv status``; ``None`` for a plain view, and for a table that is no view.
        counted: How many intervals are fresh; empty if there is nothing to count, ``None`` if it was not counted.
    """

    pointers: list[Pointer] | None
    status: dict[str, Any] | None = None
    counted: dict[str, Any] | None = None


#: The part of a summary that a lookup decodes.
S = TypeVar("S", bound=KeptStatus)

STATUS = msgspec.json.Decoder(KeptStatus)


@dataclass(frozen=True, slots=True)
class CachedSummaries(Generic[S]):
    """The cached summaries of a catalog's views at its present pointers.

    Args:
        views: The views' summaries, by namespace and name, plain views included.
        ordinary: The tables that are no views, with their metadata files.
        left: The views and tables that have to be read.
    """

    views: dict[Key, S] = field(default_factory=dict)
    ordinary: dict[Key, str] = field(default_factory=dict)
    left: set[Key] = field(default_factory=set)

    def materialized(self) -> list[S]:
        """Return the summaries of materialized views, in the order of their names."""
        found = [key for key, summary in self.views.items() if summary.status is not None]
        return [self.views[key] for key in sorted(found, key=lambda key: (key[0].split("."), key[1]))]


@dataclass(frozen=True, slots=True)
class CatalogStatuses:
    """The freshness of all views of catalogs.

    Args:
        documents: One for each materialized view. One that cannot be read is ``unknown``, and so is a catalog that
            cannot be read: there ``view`` is ``None``.
        errors: The errors of the catalogs that did not respond.
    """

    documents: list[dict[str, Any]] = field(default_factory=list)
    errors: list[MaterializedViewError] = field(default_factory=list)

    def add(self, document: dict[str, Any] | None) -> None:
        """Add the document of a view; ``None`` stands for a plain view, which has none."""
        if document is not None:
            self.documents.append(document)

    def require_complete(self) -> None:
        """Raise if catalogs did not respond.

        Raises:
            MaterializedViewError: The error, or one that lists all of them.
        """
        messages = dict.fromkeys(str(error) for error in self.errors)
        if len(messages) == 1:
            raise self.errors[0]
        if messages:
            raise CatalogUnavailableError("; ".join(messages))


@dataclass(frozen=True, slots=True)
class CacheLookup(Generic[S]):
    """The cached summaries of a catalog's views, compared with the catalog's present pointers.

    Args:
        kind: The kind of the catalog's summaries in the cache; empty if they are not kept.
        known: What the cache knows.
        gone: The keys of summaries whose views and tables no longer exist.
        whole: Whether the pointers were listed.
    """

    kind: str = ""
    known: CachedSummaries[S] = field(default_factory=CachedSummaries)
    gone: tuple[str, ...] = ()
    whole: bool = False

    def is_complete(self, namespace: tuple[str, ...] | None) -> bool:
        """Whether nothing has to be read. A namespace without views may not exist, which the catalog knows."""
        return self.whole and not self.known.left and (namespace is None or bool(self.known.materialized()))


def kind_of(name: str, properties: Mapping[str, Any]) -> str:
    """Return the cache's kind of the summaries of a catalog.

    Another database, warehouse or setting is another kind, and so is another version of this package. No secret is part
    of it.
    """
    uri = re.sub(r"//[^/@]*@", "//", str(properties.get("uri", "")).partition("?")[0])
    own = sorted((key, str(value)) for key, value in properties.items() if key.startswith("airflow-mv."))
    text = json.dumps([__version__, name, uri, str(properties.get("warehouse", "")), own])
    return f"summary {hashlib.sha256(text.encode()).hexdigest()[:32]}"


def key_of(name: Identifier) -> Key:
    """Return how a SQL catalog names a view or table."""
    return ".".join(name.namespace), name.name


def identifier_of(catalog: str, key: Key) -> Identifier:
    """Return the name of a view or table."""
    return Identifier(catalog, tuple(key[0].split(".")), key[1])


def key_text(key: Key) -> str:
    """Return the cache's key of a view or table."""
    return "\n".join(key)


def known_views(
    name: str,
    pointers: PointerList,
    kept: Mapping[str, bytes],
    namespace: tuple[str, ...] | None,
    properties_of: PropertiesOf,
    decoder: msgspec.json.Decoder[S],
    wanted: Collection[Key] | None = None,
) -> CachedSummaries[S]:
    """Compare the pointers of a catalog with those of the summaries in the cache.

    Args:
        kept: The summaries.
        namespace: Only the views of this namespace.
        properties_of: Returns the properties of another catalog that base tables are in; ``None`` if it has none.
        decoder: Decodes what is needed of a summary.
        wanted: Only these views; by default all, and the tables.
    """
    lists: dict[str, PointerList | None] = {name: pointers}

    def is_current(pointer: Pointer) -> bool:
        catalog, *key, location = pointer
        if catalog not in lists:
            lists[catalog] = list_pointers(catalog, properties_of(catalog) or {})
        listed = lists[catalog]
        return listed is not None and listed.location((key[0], key[1])) == location

    space = None if namespace is None else ".".join(namespace)
    own = {(name, *key, at) for listed in (pointers.views, pointers.tables) for key, at in listed.items()}
    found: CachedSummaries[S] = CachedSummaries()
    for key in (*pointers.views, *pointers.tables) if wanted is None else wanted:
        if space is not None and key[0] != space:
            continue
        summary = decoded(kept.get(key_text(key)), decoder)
        pointed = summary.pointers if summary is not None else None
        if summary is None or not pointed or not (own.issuperset(pointed) or all(map(is_current, pointed))):
            found.left.add(key)
        elif summary.status is not None or key in pointers.views:
            found.views[key] = summary
        else:
            found.ordinary[key] = pointers.tables[key]
    return found


def with_count(document: dict[str, Any], counted: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the document of a view with the number of its fresh intervals as ``coverage``, if they were counted.

    How many are not fresh is its first reason.
    """
    if not counted:
        return document
    shown = {key: value for key, value in counted.items() if key not in ("until", "behind")}
    behind = [Reason(Code.INTERVALS, counted["behind"]).to_dict()] if counted.get("behind") else []
    return {**document, "reasons": [*behind, *document["reasons"]], "coverage": shown}


def decoded(data: bytes | None, decoder: msgspec.json.Decoder[S]) -> S | None:
    """Return a summary of the cache; ``None`` if there is none, or something else stands there."""
    try:
        return None if data is None else decoder.decode(data)
    except msgspec.MsgspecError:
        return None


@contextmanager
def without_collections() -> Iterator[None]:
    """Let Python search for no garbage. Where many objects are made that all stay, the searches take half of the time.

    Two threads may overlap: the searches begin again when the first of them ends.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@without_collections()
def look_up(
    name: str,
    properties: Mapping[str, Any],
    namespace: tuple[str, ...] | None,
    cache: FactCache,
    properties_of: PropertiesOf,
    decoder: msgspec.json.Decoder[S],
    *,
    wanted: Collection[Key] | None = None,
) -> CacheLookup[S]:
    """Compare the cache with a catalog's pointers. For a catalog without a list of pointers nothing is known.

    Args:
        namespace: Only the views of this namespace.
        properties_of: Returns the properties of another catalog that base tables are in.
        decoder: Decodes what is needed of a summary.
        wanted: Only these views.
    """
    pointers = list_pointers(name, properties) if cache.path is not None else None
    if pointers is None:
        return CacheLookup()
    kind = kind_of(name, properties)
    if wanted is not None:
        kept = cache.get(kind, map(key_text, wanted))
        return CacheLookup(
            kind, known_views(name, pointers, kept, namespace, properties_of, decoder, wanted), whole=True
        )
    kept = cache.all(kind)
    cache.used(kind)
    present = {key_text(key) for key in (*pointers.views, *pointers.tables)}
    known = known_views(name, pointers, kept, namespace, properties_of, decoder)
    return CacheLookup(kind, known, tuple(kept.keys() - present), whole=True)


# ----------------------- All pointers of a SQL catalog in one query, without opening the catalog and without pyiceberg
# For looks at many views: opening a catalog takes longer than the query. What is listed here decides which views
# have to be observed, and those are observed through the catalog.


log = logging.getLogger(__name__)

_QUERY = (
    "SELECT table_namespace, table_name, metadata_location, iceberg_type FROM iceberg_tables "
    "WHERE catalog_name = :name AND metadata_location IS NOT NULL"
)
_SCHEMES = ("sqlite", "postgresql", "mysql", "mariadb")
VIEW = "VIEW"

#: A namespace, its parts joined by dots, and a name.
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class PointerList:
    """The pointers of a catalog at one time: the metadata file of each name."""

    views: Mapping[Key, str]
    tables: Mapping[Key, str]

    def location(self, key: Key) -> str | None:
        """Return the metadata file of a view or table."""
        return self.views.get(key) or self.tables.get(key)


def list_pointers(name: str, properties: Mapping[str, Any]) -> PointerList | None:
    """Return a SQL catalog's pointers.

    Returns:
        ``None`` if it is not a SQL catalog, or they cannot be read: opening the catalog raises the error.
    """
    uri = str(properties.get("uri", ""))
    kind = properties.get("type") or ("sql" if uri.partition("://")[0].partition("+")[0] in _SCHEMES else None)
    if kind != "sql" or not uri or "py-catalog-impl" in properties:
        return None
    from airflow_mv.core.catalog.database_limits import in_memory, one_connection, require_locks

    try:
        engine = one_connection(uri, properties)
        if in_memory(engine):
            return None  # each connection has its own database
        require_locks(engine, properties)
        return _read(engine, name)
    except Exception as error:  # noqa: BLE001 (of any driver; the catalog is opened next, and raises a better one)
        log.debug("Could not list the metadata pointers of catalog %r: %s", name, type(error).__name__)
        return None


def _read(engine: Any, name: str) -> PointerList:
    from sqlalchemy import text

    views: dict[Key, str] = {}
    tables: dict[Key, str] = {}
    with engine.connect() as connection:
        for space, item, location, kind in connection.execute(text(_QUERY), {"name": name}):
            (views if kind == VIEW else tables)[space, item] = location
    engine.dispose()
    return PointerList(views, tables)
