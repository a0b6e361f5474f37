# SPDX-License-Identifier: Apache-2.0
"""``drop --force`` through a REST server that cannot find the files of a view."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from requests import PreparedRequest, ReadTimeout, Response
from requests.adapters import HTTPAdapter

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.errors import CatalogUnavailableError, CommitStateUnknownError, ViewNotFoundError
from airflow_mv.extras.maintenance.drop import drop
from tests.builders import Lake, lake
from tests.contract.support import VIEW
from tests.extras.maintenance.support import local

pytestmark = pytest.mark.rest


@pytest.fixture
def home(rest_uri: str, warehouse: Path) -> Iterator[Lake]:
    """A view and another view beside it."""
    with lake(rest_uri, warehouse, layout="registered") as found:
        found.table()
        for name in ("daily", "other"):
            found.view(name)
            found.refresh(f"sales.{name}")
        yield found


@pytest.mark.parametrize("lost", ["view", "storage", "both"])
def test_a_view_with_lost_files_can_be_dropped_with_force(home: Lake, lost: str) -> None:
    """The server lists the view, but answers 404 if its metadata file is missing."""
    loaded = home.catalog.load(VIEW)
    places = {"view": loaded.metadata_location, "storage": home.catalog.load_storage(loaded).location}
    for location in places.values() if lost == "both" else [places[lost]]:
        shutil.rmtree(_path(location).parent)
    catalog = MaterializedViewCatalog(home.iceberg)
    if lost != "storage":
        with pytest.raises(ViewNotFoundError, match="--force"):
            drop(catalog, VIEW)
    drop(catalog, VIEW, force=True)
    assert [str(view) for view in catalog.list("sales")] == ["lake.sales.other"]
    assert home.read("sales.other")
    with pytest.raises(ViewNotFoundError):
        drop(catalog, VIEW, force=True)


class NoAnswer(HTTPAdapter):
    """Lets requests for one view time out, and sends all others."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.end = f"/views/{name}"
        self.requests: list[str] = []

    def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> Response:
        if not str(request.path_url).endswith(self.end):
            return super().send(request, *args, **kwargs)
        self.requests.append(str(request.method))
        raise ReadTimeout


def test_a_view_that_the_server_cannot_read_can_be_dropped_as_the_error_says(home: Lake) -> None:
    """Iceberg's server tries for 87 s to read a truncated file, longer than a client waits, and then drops nothing."""
    assert isinstance(home.iceberg, RestCatalog)
    file = _path(home.catalog.load(VIEW).metadata_location)
    file.write_bytes(file.read_bytes()[:100])
    server = NoAnswer("daily")
    home.iceberg._session.mount("http://", server)
    catalog = MaterializedViewCatalog(home.iceberg)
    with pytest.raises(CatalogUnavailableError, match="--force"):
        drop(catalog, VIEW)
    assert server.requests == ["GET"]
    with pytest.raises(CommitStateUnknownError, match=r"delete that file.*--force"):
        drop(catalog, VIEW, force=True)
    assert server.requests == ["GET", "GET", "DELETE"]  # each waits until the deadline, so the view is not read again
    home.iceberg._session.mount("http://", HTTPAdapter())
    file.unlink()
    drop(catalog, VIEW, force=True)
    assert [str(view) for view in catalog.list("sales")] == ["lake.sales.other"]


def _path(location: str) -> Path:
    return local(location if location.startswith("file://") else location.replace("file:", "file://", 1))
