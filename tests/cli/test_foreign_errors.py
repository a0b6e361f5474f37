# SPDX-License-Identifier: Apache-2.0
"""Errors of other libraries: one line that names the catalog and what to do, no trace, no secret."""

from __future__ import annotations

import json
import re
import socket
import socketserver
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Thread

import pytest
from moto.core.exceptions import JsonRESTError
from moto.glue.responses import GlueResponse
from sqlalchemy.engine import make_url

from airflow_mv.core.catalog import MaterializedViewCatalog
from airflow_mv.core.publish.protocol import Effects
from airflow_mv.foundation.redaction import hide
from tests.cli.support import call
from tests.engine.support import reload_configuration, without_catalogs
from tests.services import http_server

Configure = Callable[..., None]

VIEW = "far.sales.daily"
SECRET = "kjh4711hjk"
KEYS = {"CLIENT__ACCESS_KEY_ID": "AK", "CLIENT__SECRET_ACCESS_KEY": SECRET, "CLIENT__REGION": "us-east-1"}


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Configure]:
    """Configures the catalog ``far``, and no other one."""
    without_catalogs(monkeypatch)

    def configure(**properties: str) -> None:
        for key, value in {"WAREHOUSE": "s3://bucket/wh", **properties}.items():
            monkeypatch.setenv(f"PYICEBERG_CATALOG__FAR__{key}", value)
        reload_configuration()

    yield configure
    monkeypatch.undo()
    reload_configuration()


def said(*arguments: str) -> str:
    """The error of a command."""
    ended = call(*arguments)
    assert SECRET not in ended.stderr
    return ended.error


class _WithoutGetTable(socketserver.BaseRequestHandler):
    """Answers to each call as Hive 4 does to one that it has dropped."""

    def handle(self) -> None:
        self.request.recv(4096)
        name, text = b"get_table", b"Invalid method name: 'get_table'"
        head = struct.pack("!II", 0x80010003, len(name)) + name + struct.pack("!I", 0)
        body = struct.pack("!BHI", 11, 1, len(text)) + text + struct.pack("!BHI", 8, 2, 1) + b"\0"
        self.request.sendall(head + body)


@contextmanager
def hive_4() -> Iterator[str]:
    with socketserver.TCPServer(("127.0.0.1", 0), _WithoutGetTable) as server:
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"thrift://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_dead_endpoint_is_named_and_retryable(configured: Configure) -> None:
    configured(TYPE="glue", GLUE__ENDPOINT=f"http://127.0.0.1:{closed_port()}", GLUE__MAX_RETRIES="0", **KEYS)
    assert "'far' did not respond (loading table far.sales.daily): EndpointConnectionError" in said("status", VIEW)
    assert json.loads(call("status", VIEW, "--json").stderr)["error"]["retryable"]
    configured(TYPE="hive", URI=f"thrift://127.0.0.1:{closed_port()}")
    assert "'far' did not respond (loading table far.sales.daily): TTransportException" in said("status", VIEW)


def test_wrong_or_missing_credentials_are_a_configuration_error(
    configured: Configure, s3_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: GlueResponse) -> None:
        raise JsonRESTError("UnrecognizedClientException", f"The security token {SECRET} is invalid.")

    configured(TYPE="glue", GLUE__ENDPOINT=s3_server, **KEYS)
    with monkeypatch.context() as patch:
        patch.setattr(GlueResponse, "get_table", refuse)
        assert "refused the credentials (UnrecognizedClientException)" in said("status", VIEW)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for key in ("CLIENT__ACCESS_KEY_ID", "CLIENT__SECRET_ACCESS_KEY"):
        monkeypatch.delenv(f"PYICEBERG_CATALOG__FAR__{key}")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    configured(TYPE="glue")
    assert "Unable to locate credentials; check the AWS credentials" in said("status", VIEW)


@pytest.mark.parametrize(("kind", "module"), [("glue", "boto3"), ("hive", "thrift")])
def test_a_missing_client_names_the_extra_that_installs_it(
    configured: Configure, monkeypatch: pytest.MonkeyPatch, kind: str, module: str
) -> None:
    configured(TYPE=kind, URI="thrift://127.0.0.1:1", **KEYS)
    for catalogs in ("pyiceberg.catalog", "airflow_mv.extras.metastores"):
        monkeypatch.delitem(sys.modules, f"{catalogs}.{kind}", raising=False)
    for name in [name for name in sys.modules if name.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    assert f"pip install 'airflow-mv[{kind}]'" in said("status", VIEW)


class _Answers(BaseHTTPRequestHandler):
    """Answers to everything but the configuration with one status, and a text with a secret."""

    status, body, also_config = 200, b"<html>Welcome</html>", False

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        config = self.path.partition("?")[0].endswith("/v1/config") and not self.also_config
        body = json.dumps({"defaults": {}, "overrides": {}, "endpoints": _ENDPOINTS}).encode() if config else self.body
        self.send_response(200 if config else self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        pass


_OF_NAMESPACE = "/v1/{prefix}/namespaces/{namespace}"
_ENDPOINTS = [
    "GET /v1/{prefix}/namespaces",
    *(f"{verb} {_OF_NAMESPACE}/{kind}" for verb in ("GET", "POST") for kind in ("tables", "views")),
    *(f"{verb} {_OF_NAMESPACE}/tables/{{table}}" for verb in ("GET", "POST", "DELETE")),
    *(f"{verb} {_OF_NAMESPACE}/views/{{view}}" for verb in ("GET", "POST", "DELETE")),
]
_REFUSAL = json.dumps({"error": {"message": f"{SECRET}\n\tat x.Y.z(Y.java:1)", "type": "No", "code": 4}}).encode()
#: Every command that needs a catalog and no Spark.
_COMMANDS = (
    *(
        (name, VIEW)
        for name in (
            *("status", "show", "history", "plan", "refresh", "read", "verify", "maintain", "repair", "versions"),
            "doctor",
        )
    ),
    ("rollback", VIEW, "--to", "0" * 32),
    ("rollback", VIEW, "--to-version", "1"),
    ("drop", VIEW, "--yes"),
    ("drop", VIEW, "--purge", "--yes"),
    ("convert", VIEW, "--layout", "table"),
    ("create", VIEW, "--sql", "SELECT 1 AS one", "--adopt"),
    ("status", "--all"),
    ("registry", "query", "--catalog", "far", "SELECT count(*) FROM refreshes"),
    ("registry", "sync", "--catalog", "far"),
    ("registry", "rebuild", "--catalog", "far"),
)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"status": 401, "body": _REFUSAL}, "refused the credentials"),
        ({"status": 419, "body": _REFUSAL}, "refused the credentials"),
        ({"status": 403, "body": _REFUSAL}, "forbids"),
        ({"status": 400, "body": _REFUSAL}, "cannot do"),
        ({"status": 500, "body": _REFUSAL}, "failed at|did not respond"),
        ({"status": 404}, r"no (view|table) far\.sales|did not respond|cannot do"),
        ({"status": 200}, "response|is a view already"),
        ({"status": 401, "body": _REFUSAL, "also_config": True}, "server refused the credentials .* check token"),
        ({"status": 200, "also_config": True}, "does not implement Iceberg's REST catalog API; check the uri"),
    ],
)
def test_every_command_has_one_line_for_each_answer_of_a_rest_server(
    configured: Configure, answer: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide([SECRET])
    monkeypatch.setattr(Effects, "wait", lambda *_: None)  # between tries
    with http_server(type("Answers", (_Answers,), answer)) as port:
        configured(TYPE="rest", URI=f"http://127.0.0.1:{port}", TOKEN=SECRET, AIRFLOW_MV__REGISTRY="meta")
        for command in _COMMANDS:
            if command[:2] == ("registry", "query") and answer["status"] == 404:
                continue  # a registry without tables is empty
            error = said(*command)
            assert re.search(message, error), command
            assert "far" in error
            assert not re.search(r"unexpected|Y\.java|pydantic|RESTError", error), command


@pytest.mark.postgres
def test_a_database_that_refuses_is_not_an_outage(configured: Configure, postgres_uri: str, tmp_path: Path) -> None:
    """No later try can help."""
    url = make_url(postgres_uri)
    (tmp_path / "text.db").write_text("not a database" * 100)
    for uri, message in (
        (url.set(username="nobody", password=SECRET).render_as_string(hide_password=False), "authentication failed"),
        (url.set(database="nowhere").render_as_string(hide_password=False), '"nowhere" does not exist'),
        (f"sqlite:///{tmp_path}/text.db", "file is not a database"),
    ):
        configured(TYPE="sql", URI=uri)
        error = json.loads(call("status", VIEW, "--json").stderr)["error"]
        assert re.search(f"'far' cannot be opened: .*{message}.*; check its uri, user and password", error["message"])
        assert (error["retryable"], SECRET in error["message"]) == (False, False)


def test_hive_4_gets_a_sentence_with_a_way_out(configured: Configure) -> None:
    with hive_4() as address:
        configured(TYPE="hive", URI=address)
        error = said("status", VIEW)
    assert "Invalid method name: 'get_table'" in error
    assert "supports the Thrift API of Hive 2 and 3" in error
    assert "type=rest" in error


def test_an_error_that_nobody_expected_is_one_line(configured: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its trace is shown on request, without secrets."""
    configured(TYPE="sql", URI="sqlite:///:memory:")

    def fail(*_: object) -> None:
        raise RuntimeError(f"An error occurred while calling o1.sql: x.Failure: me:{SECRET}@h\n\tat x.Y.z(Y.java:1)")

    hide([SECRET])
    monkeypatch.setattr(MaterializedViewCatalog, "load", fail)
    error = said("history", VIEW)
    assert "unexpected RuntimeError: An error occurred while calling o1.sql: x.Failure: me:***@h" in error
    assert "Y.java" not in error
    trace = call("history", VIEW, "--verbose").stderr
    assert "Traceback" in trace
    assert SECRET not in trace
    assert SECRET not in call("status", VIEW).stderr, (
        "a view that fails does not stop the others, and its trace is logged"
    )
