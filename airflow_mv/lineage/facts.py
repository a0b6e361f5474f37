# SPDX-License-Identifier: Apache-2.0
"""The facts of a refresh for lineage: read from the catalog while the task runs, without OpenLineage's libraries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from airflow_mv.core.catalog import LoadedView, Located, MaterializedViewCatalog
    from airflow_mv.core.refresh.plan import RefreshPlan, RefreshResult
    from airflow_mv.core.spec.identifiers import Identifier


@dataclass(frozen=True, slots=True)
class Table:
    """A base table or the view, at one version.

    Args:
        name: The name by location.
        symlinks: Its other names.
        version: Snapshot id, or for a materialized view the refresh id; ``None`` for a table without any snapshot.
        fields: The columns, from Iceberg's schema.
        catalog: The catalog's ``name``, ``type``, ``uri`` and ``warehouse``, without secrets.
        is_view: Whether it is a materialized view.
    """

    name: Name
    symlinks: tuple[Name, ...]
    version: str | None
    fields: tuple[Mapping[str, Any], ...]
    catalog: Mapping[str, str]
    is_view: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a refresh.

    Args:
        inputs: The base tables at the snapshots that are read.
        result: The refresh's result; ``None`` before its end and after a failure.
    """

    plan: RefreshPlan
    sql: str
    inputs: tuple[Table, ...]
    view: Table
    result: RefreshResult | None = None


def gather(catalog: MaterializedViewCatalog, plan: RefreshPlan) -> Facts:
    """Read the facts of a plan: one catalog query, and a metadata file for each base table and for the storage table.

    Raises:
        MaterializedViewError: A table or view cannot be read.
    """
    from airflow_mv.core.spec.identifiers import Identifier
    from airflow_mv.core.sql.query import spark_sql

    loaded = catalog.load(plan.view)
    located = catalog.locate([Identifier.parse(record.identifier) for record in plan.records])
    inputs = [
        _table(catalog, identifier, place, record.snapshot_reference)
        for record in plan.records
        if (place := located.get(identifier := Identifier.parse(record.identifier))) is not None
    ]
    storage = _names_of_storage(catalog, loaded)
    metadata = loaded.metadata
    view = _of(catalog, plan.view, metadata.location, plan.refresh_id, metadata.schema_.fields, storage, is_view=True)
    return Facts(plan, spark_sql(metadata, view=str(plan.view)), tuple(inputs), view)


def _table(catalog: MaterializedViewCatalog, identifier: Identifier, place: Located, snapshot: int) -> Table:
    from airflow_mv.core.spec.identifiers import Identifier

    home = catalog.home_of(identifier)
    if place.kind == "view":
        loaded = home.load(identifier, place)
        state = home.load_storage(loaded).state
        version = state.current_refresh_id if state else None
        metadata = loaded.metadata
        return _of(home, identifier, metadata.location, version, metadata.schema_.fields, is_view=True)
    table = catalog.table_metadata(identifier, place)
    fields = table.schema_at(snapshot).get("fields", [])
    named = place.place if isinstance(place.place, Identifier) else identifier
    return _of(home, named, table.location, str(snapshot) if snapshot >= 0 else None, fields)


def _names_of_storage(catalog: MaterializedViewCatalog, view: LoadedView) -> tuple[Name, ...]:
    """Name a storage table in the catalog by its location: engines without view support read that table."""
    storage = catalog.load_storage(view)
    return (by_location(storage.table.location),) if storage.pointers else ()


def _of(
    home: MaterializedViewCatalog,
    identifier: Identifier,
    location: str,
    version: str | None,
    fields: Any,
    more: tuple[Name, ...] = (),
    *,
    is_view: bool = False,
) -> Table:
    properties = home.properties
    facet = {"name": home.name, "type": str(properties.get("type", "")), "uri": public_uri(properties.get("uri")) or ""}
    facet["warehouse"] = properties.get("warehouse", "")
    named = (*identifier.namespace, identifier.name)
    catalogued = in_catalog(properties, named) if identifier.path is None else None
    of_asset = (
        [Name(f"iceberg-mv://{home.name}", ".".join((*identifier.namespace, identifier.name)))] if is_view else []
    )
    symlinks = (*([catalogued] if catalogued else []), *of_asset, *more)
    return Table(by_location(location), symlinks, version, tuple(fields), facet, is_view)


_OBJECT_STORES = {"s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs", "wasb": "wasbs", "wasbs": "wasbs"}
_POSTGRES_PORT = 5432


@dataclass(frozen=True, slots=True)
class Name:
    """A dataset's name.

    Args:
        namespace: The namespace in which names are unique.
        name: The name there.
    """

    namespace: str
    name: str


def by_location(location: str) -> Name:
    """Name a table or view by the folder it is in."""
    parts = urlsplit(location)
    if parts.scheme in ("", "file"):
        return Name("file", parts.path.rstrip("/") or "/")
    store = _OBJECT_STORES.get(parts.scheme)
    if store is not None:
        return Name(f"{store}://{parts.netloc}", parts.path.strip("/") or "/")
    return Name(f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/") or "/")


def in_catalog(properties: Mapping[str, str], parts: tuple[str, ...]) -> Name | None:
    """Name a table or view as its catalog does; ``None`` for types of catalogs without such names.

    Args:
        parts: Namespace and name.
    """
    address = public_uri(properties.get("uri"))
    if address is None:
        return None
    dotted = ".".join(parts)
    if properties.get("type") == "rest":
        return Name(address, dotted)
    if properties.get("type") != "sql":
        return None
    url = urlsplit(address)
    if url.scheme == "postgres":
        return Name(f"postgres://{url.netloc}", f"{url.path.strip('/')}.{dotted}")
    return Name(address, dotted)


def public_uri(uri: str | None) -> str | None:
    """Return a catalog's address without login, password, driver and options; ``None`` where there is none."""
    if not uri:
        return None
    url = urlsplit(uri)
    scheme = url.scheme.partition("+")[0]
    host = url.netloc.rpartition("@")[2]
    if scheme in ("postgresql", "postgres"):
        return f"postgres://{host if ':' in host else f'{host}:{_POSTGRES_PORT}'}{url.path}"
    if not host:  # a file: SQLite
        return f"{scheme}:{url.path}"
    return f"{scheme}://{host}{url.path}"
