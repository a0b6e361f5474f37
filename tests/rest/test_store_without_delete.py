# SPDX-License-Identifier: Apache-2.0
"""A store on which this user may not delete, or not write, files: views live on it, and what needs more is refused."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from airflow_mv.actions import create_view as create
from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.define.definition import Definition
from airflow_mv.errors import AccessDeniedError
from airflow_mv.extras.history.rollback import rollback
from airflow_mv.extras.maintenance.drop import drop, purge
from airflow_mv.extras.maintenance.orphans import maintain
from tests.builders import QUERY, Lake
from tests.contract.support import EAST, NORTH, SOUTH, VIEW
from tests.duck import DuckStager
from tests.protocol.foreign import BucketStore
from tests.rest.keeping import Keeping, keeping

#: Now, because nothing is deleted before its time.
NOW = timedelta(0)


@pytest.fixture
def store(s3_server: str) -> Keeping:
    return Keeping(BucketStore(s3_server, f"kept-{uuid.uuid4().hex[:8]}"))


@pytest.fixture(params=["pointed", "table"])
def home(request: pytest.FixtureRequest, store: Keeping, sqlite_uri: str) -> Iterator[Lake]:
    with keeping(store) as address:
        access = {**store.bucket.access, "s3.endpoint": address}
        iceberg = SqlCatalog("lake", uri=sqlite_uri, warehouse=store.bucket.warehouse, **access)
        iceberg.create_namespace("sales")
        catalog = MaterializedViewCatalog(iceberg)
        yield Lake(iceberg, catalog, DuckStager(catalog, iceberg), request.param)
        iceberg.engine.dispose()


def test_a_view_lives_where_nothing_can_be_deleted(
    home: Lake, store: Keeping, caplog: pytest.LogCaptureFixture
) -> None:
    """Files that are no longer needed stay, each with a warning; none is tried twice."""
    home.table()
    home.view(time_travel=True)
    home.refresh()
    first = home.storage().record
    home.append()
    home.refresh()
    assert home.read() == [EAST, NORTH, SOUTH]
    assert first is not None
    rollback(home.catalog, VIEW, first.refresh_id)
    assert home.read() == [NORTH, SOUTH]
    other = Definition(QUERY.replace("sum", "max"), layout=home.layout)
    create(home.catalog, VIEW, other, stager=home.stager, replace=True)
    home.refresh()
    assert 0 < len(store.refused) == len(set(store.refused)) < 10
    warned = [text for text in caplog.messages if "no permission to delete s3://" in text and "s3:DeleteObject" in text]
    assert len(warned) == len(store.refused)


def test_what_deletes_files_is_refused_with_the_permission_and_loses_nothing(home: Lake, store: Keeping) -> None:
    home.table()
    home.view()
    home.refresh()
    home.append()
    home.refresh()
    maintain(home.catalog, VIEW, older_than=timedelta(days=1))  # nothing is old enough
    with pytest.raises(AccessDeniedError, match=r"no permission to delete s3://kept.* \(s3:DeleteObject\)"):
        maintain(home.catalog, VIEW, older_than=NOW)
    before = store.bucket.files()
    with pytest.raises(AccessDeniedError, match=r"no permission to delete s3://kept.* \(s3:DeleteObject\)"):
        purge(home.catalog, VIEW)
    assert before.items() <= store.bucket.files().items()
    assert home.catalog.exists(VIEW), "nothing was dropped whose files would stay for ever"
    assert home.read() == [EAST, NORTH, SOUTH]
    store.denies = ""
    assert maintain(home.catalog, VIEW, older_than=NOW).collected.files
    assert home.read() == [EAST, NORTH, SOUTH]
    store.denies = "DELETE"
    drop(home.catalog, VIEW)
    home.view()
    assert home.refresh().outcome == "refreshed"


@pytest.mark.parametrize(("method", "act"), [("PUT", "write"), ("HEAD", "read")])
def test_a_refusal_names_the_file_is_not_tried_again_and_publishes_nothing(
    home: Lake, store: Keeping, method: str, act: str
) -> None:
    store.denies = ""
    home.table()
    home.view()
    before = home.catalog.load(VIEW).metadata_location
    store.denies = method
    definition = Definition(QUERY.replace("sum", "max"), layout=home.layout)
    with pytest.raises(
        AccessDeniedError, match=f"no permission (to {act} s3://kept|for a file of the table)"
    ) as caught:
        create(home.catalog, VIEW, definition, stager=home.stager, replace=True)
    assert not caught.value.retryable
    assert len(store.refused) == 1
    store.denies = ""
    assert home.catalog.load(VIEW).metadata_location == before
