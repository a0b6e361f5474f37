# SPDX-License-Identifier: Apache-2.0
"""The private parts of pyiceberg that are used. A release that changed one fails here."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import Capability, RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo, GreaterThan
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from requests import Session

from airflow_mv.core.catalog import pyiceberg_compat as compat
from airflow_mv.core.catalog.rest_session import bound_session
from tests.services import http_server

SCHEMA = Schema(NestedField(1, "id", LongType(), required=True))


class _Answers(BaseHTTPRequestHandler):
    """Serve the configuration of a REST catalog, and an unusual answer in gzip."""

    def do_GET(self) -> None:
        listed = [
            "GET /v1/{prefix}/namespaces/{namespace}/views",
            "GET /v1/{prefix}/namespaces/{namespace}/views/{view}",
        ]
        body = json.dumps({"defaults": {}, "overrides": {}, "endpoints": listed}).encode()
        self.send_response(200)
        if self.path.endswith("/zipped"):
            body = gzip.compress(body)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with http_server(_Answers) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def sql(sqlite_uri: str, warehouse: Path) -> SqlCatalog:
    catalog = SqlCatalog("lake", uri=sqlite_uri, warehouse=f"file://{warehouse}")
    catalog.create_namespace("sales")
    return catalog


def test_a_sql_catalog_is_prepared_before_its_first_query(sqlite_uri: str) -> None:
    seen: list[bool] = []

    class Prepared(compat.PreparedSqlCatalog):
        def prepare(self) -> None:
            seen.append(Path(str(self.engine.url.database)).exists())

    Prepared("lake", uri=sqlite_uri)
    assert seen == [False]


def test_a_rest_catalog_is_prepared_before_its_first_request(server: str) -> None:
    """Its session, its endpoints and the format of its namespaces are found in the expected attributes."""
    sent: list[Any] = []

    class Prepared(compat.PreparedRestCatalog):
        def prepare(self, session: Session) -> None:
            send = session.send
            session.send = lambda request, **options: sent.append(request.url) or send(request, **options)  # type: ignore[method-assign]

    catalog = Prepared("lake", uri=server)
    assert sent == [f"{server}/v1/config"]
    assert compat.endpoints_of(catalog) == {Capability.V1_LIST_VIEWS, compat.LOAD_VIEW}
    assert compat.encoded_namespace(catalog, ("a b", "c")) == "a%20b\x1fc"
    compat.session_of(catalog).get(f"{server}/v1/more")
    assert sent[1:] == [f"{server}/v1/more"]
    assert isinstance(catalog, RestCatalog)


def test_the_body_of_a_bounded_answer_is_complete(server: str) -> None:
    """The body is read within a limit and is returned as requests itself would return it."""
    session = Session()
    bound_session(session, 30)
    plain, zipped = (session.get(f"{server}/{name}") for name in ("plain", "zipped"))
    assert zipped.content == plain.content
    assert zipped.json() == plain.json()
    assert zipped.text == plain.text


def test_the_loader_of_a_table_s_file_io_is_replaced(sql: SqlCatalog) -> None:
    """For loading and for creating a table, with the table's own properties."""
    given: list[dict[str, str]] = []

    def wrap(load: compat.LoadFileIO) -> compat.LoadFileIO:
        def noting(properties: Any, location: str | None) -> Any:
            given.append(dict(properties))
            return load({}, location)

        return noting

    compat.wrap_file_io(sql, wrap)
    sql.create_table("sales.orders", SCHEMA, properties={"write.data.path": "x"})
    count = len(given)
    sql.load_table("sales.orders")
    assert 0 < count < len(given)
    assert any(item.get("write.data.path") == "x" for item in given[count:])


def test_the_writer_of_metadata_files_is_replaced(sql: SqlCatalog) -> None:
    """It is called for each commit, before the pointer moves."""
    written: list[str] = []

    def wrap(write: compat.WriteMetadata) -> compat.WriteMetadata:
        def noting(metadata: Any, io: Any, path: str) -> None:
            write(metadata, io, path)
            written.append(path)

        return noting

    compat.wrap_metadata_writer(sql, wrap)
    table = sql.create_table("sales.orders", SCHEMA)
    with table.transaction() as change:
        change.set_properties(a="b")
    assert written[-1] == sql.load_table("sales.orders").metadata_location


def test_file_statistics_show_whether_a_row_may_match() -> None:
    """They are evaluated as in pyiceberg's own scans."""
    bounds = {1: (5).to_bytes(8, "little")}
    upper = {1: (9).to_bytes(8, "little")}
    counts = {"record_count": 3, "value_counts": {1: 3}, "null_value_counts": {1: 0}, "nan_value_counts": {}}
    file = DataFile.from_args(lower_bounds=bounds, upper_bounds=upper, **counts)
    assert compat.may_match(SCHEMA, EqualTo("id", 7))(file)
    assert not compat.may_match(SCHEMA, GreaterThan("id", 9))(file)


def test_the_file_system_of_an_fsspec_io_is_found(tmp_path: Path) -> None:
    """It is needed to list files, for which pyiceberg has no method."""
    (tmp_path / "a.txt").write_text("x")
    system = compat.file_system_of(FsspecFileIO({}), f"file://{tmp_path}")
    assert system.find(f"file://{tmp_path}") == [f"{compat.path_in(system, f'file://{tmp_path}')}/a.txt"]
