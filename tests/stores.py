# SPDX-License-Identifier: Apache-2.0
"""Lakes in object stores that give less than all rights. Without Spark."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog

from airflow_mv.core.catalog import Layout, MaterializedViewCatalog
from tests.builders import Lake
from tests.duck import DuckStager
from tests.homes import NO_DELETE
from tests.protocol.foreign import BucketStore
from tests.rest.keeping import Keeping, keeping
from tests.rest.vending import vending

#: Of credentials.
_SECONDS = 60


@contextmanager
def _without_delete(request: pytest.FixtureRequest, layout: Layout) -> Iterator[Lake]:
    """A SQL catalog; the store refuses to delete."""
    store = Keeping(_bucket(request))
    with keeping(store) as address:
        access = {**store.bucket.access, "s3.endpoint": address}
        uri = request.getfixturevalue("sqlite_uri")
        iceberg = SqlCatalog("lake", uri=uri, warehouse=store.bucket.warehouse, **access)
        iceberg.create_namespace("sales")
        catalog = MaterializedViewCatalog(iceberg)
        yield Lake(iceberg, catalog, DuckStager(catalog, iceberg), layout)
        iceberg.engine.dispose()


@contextmanager
def _of_a_minute(request: pytest.FixtureRequest, layout: Layout) -> Iterator[Lake]:
    """A REST server, whose credentials end after a minute."""
    servers, database = request.getfixturevalue("rest_jvm"), request.getfixturevalue("sqlite_uri")
    with vending(servers, database, _bucket(request)) as server:
        server.seconds = _SECONDS
        iceberg = load_catalog("lake", type="rest", uri=server.catalog)
        iceberg.create_namespace("sales")
        catalog = MaterializedViewCatalog(iceberg)
        yield Lake(iceberg, catalog, DuckStager(catalog, iceberg), layout)
        iceberg.close()


def _bucket(request: pytest.FixtureRequest) -> BucketStore:
    return BucketStore(request.getfixturevalue("s3_server"), f"lake-{uuid.uuid4().hex[:8]}")


#: The stores by name.
STORES: dict[str, Callable[[pytest.FixtureRequest, Layout], AbstractContextManager[Lake]]] = {
    NO_DELETE: _without_delete,
    "minute": _of_a_minute,
}
