# SPDX-License-Identifier: Apache-2.0
"""Good and bad answers of a REST server. The server is a stub, because a real one gives no wrong answers on demand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from airflow_mv.actions import create_view as create
from airflow_mv.core.catalog import Located, MaterializedViewCatalog
from airflow_mv.core.catalog.rest import view_updates
from airflow_mv.core.define.definition import Definition
from airflow_mv.core.freshness.observe import load_dependencies, observe_tables
from airflow_mv.core.spec.identifiers import Identifier
from airflow_mv.core.spec.view import ViewMetadata, new_view, replace_version, with_view_properties
from airflow_mv.core.sql.query import parse_query
from airflow_mv.errors import (
    AlreadyExistsError,
    CatalogUnavailableError,
    CommitStateUnknownError,
    ConfigurationError,
    InvalidMetadataError,
    MaterializedViewError,
    NewerFormatError,
    UnsupportedError,
    ViewNotFoundError,
)
from airflow_mv.extras.fleet.all_views import statuses_of_catalogs
from airflow_mv.extras.maintenance.entries import other_entries
from tests.builders import without_properties
from tests.services import http_server

CANARY = "canary-91c2-token"
VIEWS = [
    "GET /v1/{prefix}/namespaces/{namespace}/views",
    "GET /v1/{prefix}/namespaces/{namespace}/views/{view}",
    "POST /v1/{prefix}/namespaces/{namespace}/views",
    "POST /v1/{prefix}/namespaces/{namespace}/views/{view}",
    "DELETE /v1/{prefix}/namespaces/{namespace}/views/{view}",
]
TABLES = ["GET /v1/{prefix}/namespaces/{namespace}", "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}"]
MORE_TABLES = [
    "GET /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "POST /v1/{prefix}/namespaces/{namespace}/tables",
    "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "DELETE /v1/{prefix}/namespaces/{namespace}/tables/{table}",
]
COLUMNS = {"type": "struct", "fields": [{"id": 1, "name": "n", "required": False, "type": "long"}]}


def metadata(**properties: str) -> ViewMetadata:
    return new_view(
        view_uuid="uuid",
        location="s3://b/v",
        schema=COLUMNS,
        sql="SELECT 1 AS n",
        default_catalog="lake",
        default_namespace=("sales",),
        properties=properties,
        summary={},
        now_ms=1,
    )


@dataclass
class Server:
    """Answers by method and the last part of the path."""

    address: str = ""
    endpoints: list[str] = field(default_factory=lambda: [*VIEWS, *TABLES])
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def answer(self, method: str, path: str) -> tuple[int, Any]:
        self.requests.append(f"{method} {path.rsplit('/', 1)[-1]}")
        if path.startswith("/v1/config"):
            return 200, {"defaults": {}, "overrides": {}, "endpoints": self.endpoints}
        missing = {"error": {"message": "not there", "type": "NoSuchViewException", "code": 404}}
        name = f"{method} {path.rsplit('/', 1)[-1]}"
        return self.answers.get(name, self.answers.get(name.partition("?")[0], (404, missing)))

    def open(self, **properties: str) -> MaterializedViewCatalog:
        return MaterializedViewCatalog(
            load_catalog("lake", type="rest", uri=self.address, **{"token": CANARY, **properties})
        )


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            if length:
                state.bodies.append(json.loads(self.rfile.read(length)))
            status, document = state.answer(self.command, self.path)
            text = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_DELETE = do_HEAD = _answer

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with http_server(Handler) as port:
        state.address = f"http://127.0.0.1:{port}"
        yield state


def refusal(status: int, message: str = "because") -> tuple[int, Any]:
    return status, {"error": {"message": message, "type": "SomeException", "code": status}}


def table(name: str = "t") -> tuple[int, Any]:
    new = new_table_metadata(Schema(), UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, f"s3://b/{name}", {})
    location = f"s3://b/{name}/metadata/1.json"
    return 200, {"metadata-location": location, "metadata": json.loads(new.model_dump_json()), "config": {}}


def found(**properties: str) -> tuple[int, Any]:
    return 200, {"metadata-location": "s3://b/v/metadata/1.json", "metadata": metadata(**properties).document()}


def test_each_base_table_of_an_observation_is_requested_once(server: Server) -> None:
    """A server returns one table at a time, each with its complete metadata."""
    schema = Schema.model_validate({**COLUMNS, "schema-id": 0})
    table = new_table_metadata(schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "s3://b/t")
    given = {"metadata-location": "s3://b/t/metadata/1.json", "metadata": json.loads(table.model_dump_json())}
    server.answers = {"GET v": found(), "GET one": (200, given), "GET two": (200, given)}
    catalog = server.open()
    view = catalog.load("sales.v")
    server.requests.clear()
    places: dict[Identifier, Located] = {}

    query = parse_query(
        "SELECT one.n FROM one JOIN two USING (n)",
        view="v",
        default_catalog=view.default_catalog,
        default_namespace=view.default_namespace,
    )
    named = load_dependencies(catalog, query, located=places).tables
    tables, _ = observe_tables(catalog, named, None, located=places)

    assert [(table.error, table.metadata_location) for table in tables] == [(None, "s3://b/t/metadata/1.json")] * 2
    assert sorted(server.requests) == ["GET one", "GET two"]


def test_a_server_without_views_is_reported_and_still_serves_base_tables(server: Server) -> None:
    server.endpoints = TABLES
    catalog = server.open()
    assert not catalog.holds_views
    for call in (catalog.load, catalog.exists, catalog.drop):
        with pytest.raises(UnsupportedError, match=r"'lake' has no support for views.*It may hold base tables"):
            call("sales.v")
    with pytest.raises(UnsupportedError, match="has no support for views"):
        create(catalog, "sales.v", Definition("SELECT 1 AS n"), stager=lambda _: pytest.fail("a job was started"))
    assert catalog.locate([catalog.identify("sales.t")]) == {}


def test_a_table_for_which_the_server_fails_does_not_hide_the_others(server: Server) -> None:
    """It may be a view, so it is listed as one. If the server fails for all tables, it does not respond."""
    server.endpoints = [*TABLES, *MORE_TABLES]
    names = ("broken", "ordinary", "secret", "odd")
    server.answers = {
        "GET namespaces": (200, {"namespaces": [["sales"]]}),
        "GET namespaces?parent=sales": (200, {"namespaces": []}),
        "GET sales": (200, {"namespace": ["sales"], "properties": {}}),
        "GET tables": (200, {"identifiers": [{"namespace": ["sales"], "name": name} for name in names]}),
        "GET broken": refusal(500),
        "GET ordinary": table(),
        "GET secret": refusal(403),
        "GET odd": refusal(500),
    }
    catalog = server.open()
    assert [view.name for view in catalog.list()] == ["broken", "odd"]
    assert [name.name for name in catalog.table_views.unread] == ["secret"]
    assert [entry.name for entry in other_entries(catalog, frozenset(), ())] == ["lake.sales.ordinary"]
    found = statuses_of_catalogs({"lake": lambda: catalog})
    assert [(document["view"], document["state"]) for document in found.documents] == [
        ("lake.sales.broken", "unknown"),
        ("lake.sales.odd", "unknown"),
    ]
    with pytest.raises(CatalogUnavailableError):
        found.require_complete()
    server.answers["GET ordinary"] = server.answers["GET secret"] = refusal(500)
    with pytest.raises(CatalogUnavailableError):
        server.open().list()


def test_the_pointed_layout_is_refused_if_the_catalog_cannot_swap_pointers(server: Server) -> None:
    wanted = Definition("SELECT 1 AS n", layout="pointed")
    with pytest.raises(UnsupportedError, match=r"'pointed'.*use the layout 'table'"):
        create(server.open(), "sales.v", wanted, stager=lambda _: pytest.fail("a job was started"))


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (refusal(401, f"bad token {CANARY}"), ConfigurationError),
        (refusal(403), ConfigurationError),
        (refusal(400), UnsupportedError),
        (refusal(500), CatalogUnavailableError),
        (refusal(503), CatalogUnavailableError),
        ((502, b"<html>bad gateway</html>"), CatalogUnavailableError),
        ((200, b"<html>hello</html>"), InvalidMetadataError),
        ((200, {}), InvalidMetadataError),
        ((200, {"metadata-location": "s3://b/x", "metadata": {"format-version": 9}}), NewerFormatError),
    ],
)
def test_a_bad_answer_while_loading_is_a_typed_error_without_secrets(
    server: Server, answer: tuple[int, Any], error: type[MaterializedViewError]
) -> None:
    server.answers["GET v"] = answer
    catalog = server.open()
    with pytest.raises(error, match=r"sales\.v") as caught:
        catalog.load("sales.v")
    assert CANARY not in str(caught.value)


def test_a_server_that_does_not_answer_is_unavailable(server: Server) -> None:
    catalog = server.open()
    catalog._catalog.uri = "http://user:canary-91c2-token@127.0.0.1:9"  # type: ignore[attr-defined]
    with pytest.raises(CatalogUnavailableError) as caught:
        catalog.load("sales.v")
    assert CANARY not in str(caught.value)
    with pytest.raises(CatalogUnavailableError) as caught:
        catalog.locate([catalog.identify("sales.t")])
    assert CANARY not in str(caught.value)


def test_a_missing_view_is_not_found(server: Server) -> None:
    catalog = server.open()
    assert not catalog.exists("sales.v")
    for call in (catalog.load, catalog.drop):
        with pytest.raises(ViewNotFoundError, match=r"sales\.v"):
            call("sales.v")


def test_a_name_that_exists_is_refused_with_the_type_of_its_owner(server: Server) -> None:
    server.answers["POST views"] = refusal(409)
    catalog = server.open()
    with pytest.raises(AlreadyExistsError, match="a table"):
        catalog.create("sales.v", metadata())
    server.answers["GET v"] = found()
    with pytest.raises(AlreadyExistsError, match="a view"):
        catalog.create("sales.v", metadata())


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_replacement_without_an_answer_is_unknown_and_a_refused_one_is_not_applied(
    server: Server, status: int
) -> None:
    server.answers["GET v"] = found()
    catalog = server.open()
    view = catalog.load("sales.v")
    changed = with_view_properties(view.metadata, {"comment": "new"})
    server.answers["POST v"] = refusal(status)
    with pytest.raises(CommitStateUnknownError, match=r"sales\.v"):
        catalog.replace(view, changed)
    server.answers["POST v"] = refusal(409)
    assert not catalog.replace(view, changed)
    for code, expected in ((404, None), (400, UnsupportedError), (403, ConfigurationError)):
        # Only reading the view shows whether it landed; after that the answer counts.
        server.answers["POST v"] = refusal(code)
        with pytest.raises(CommitStateUnknownError) as caught:
            catalog.replace(view, changed)
        assert isinstance(caught.value.refusal, expected) if expected else caught.value.refusal is None
    server.answers["POST v"] = found(comment="new")
    assert catalog.replace(view, changed)
    assert server.bodies[-1] == {
        "requirements": [{"type": "assert-view-uuid", "uuid": "uuid"}],
        "updates": [{"action": "set-properties", "updates": {"comment": "new"}}],
    }


def test_only_differences_are_sent() -> None:
    """Other changes that are made meanwhile are preserved."""
    old = metadata(a="1", b="2")
    redefined = replace_version(
        without_properties(with_view_properties(old, {"a": "3"}), "b"),
        schema={"type": "struct", "fields": [{"id": 1, "name": "m", "required": False, "type": "string"}]},
        sql="SELECT 'x' AS m",
        default_catalog="lake",
        default_namespace=("sales",),
        summary={},
        now_ms=2,
    )
    actions = view_updates(old, redefined)
    assert [action["action"] for action in actions] == [
        "add-schema",
        "add-view-version",
        "set-current-view-version",
        "set-properties",
        "remove-properties",
    ]
    assert actions[1]["view-version"]["schema-id"] == actions[2]["view-version-id"] == -1
    assert (actions[3]["updates"], actions[4]["removals"]) == ({"a": "3"}, ["b"])
    assert view_updates(old, old) == []
