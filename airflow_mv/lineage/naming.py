# SPDX-License-Identifier: Apache-2.0
"""What OpenLineage calls an Iceberg table or view, so that its graph is one with that of other producers.

OpenLineage's Spark integration names an Iceberg table by its location, and gives the name in the catalog as a symlink;
so do we. The rules: https://openlineage.io/docs/spec/naming/.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

_OBJECT_STORES = {"s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs", "wasb": "wasbs", "wasbs": "wasbs"}
_POSTGRES_PORT = 5432


@dataclass(frozen=True, slots=True)
class Name:
    """A dataset's name.

    Args:
        namespace: Where names are unique.
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
    """Name a table or view as its catalog does; ``None`` for a kind of catalog that has no such name.

    Args:
        properties: The catalog's.
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
