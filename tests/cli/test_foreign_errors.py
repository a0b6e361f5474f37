# SPDX-License-Identifier: Apache-2.0
"""Errors of other libraries: one line that names the catalog and what to do, no trace, no secret."""

from __future__ import annotations

import json
import socket
import socketserver
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

import pytest
from moto.core.exceptions import JsonRESTError
from moto.glue.responses import GlueResponse

from airflow_mv.catalog import MaterializedViewCatalog
from airflow_mv.redaction import hide
from tests.cli.support import call
from tests.engine.support import reload_configuration

Configure = Callable[..., None]

VIEW = "far.sales.daily"
SECRET = "kjh4711hjk"
KEYS = {"CLIENT__ACCESS_KEY_ID": "AK", "CLIENT__SECRET_ACCESS_KEY": SECRET, "CLIENT__REGION": "us-east-1"}


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Configure]:
    """Configures the catalog ``far``."""

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
    assert "'far' did not answer to loading table far.sales.daily: EndpointConnectionError" in said("status", VIEW)
    assert json.loads(call("status", VIEW, "--json").stderr)["error"]["retryable"]
    configured(TYPE="hive", URI=f"thrift://127.0.0.1:{closed_port()}")
    assert "'far' did not answer to loading table far.sales.daily: TTransportException" in said("status", VIEW)


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
    monkeypatch.delitem(sys.modules, f"pyiceberg.catalog.{kind}", raising=False)
    for name in [name for name in sys.modules if name.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    assert f"pip install 'airflow-mv[{kind}]'" in said("status", VIEW)


def test_hive_4_gets_a_sentence_with_a_way_out(configured: Configure) -> None:
    with hive_4() as address:
        configured(TYPE="hive", URI=address)
        error = said("status", VIEW)
    assert "Invalid method name: 'get_table'" in error
    assert "speaks the protocol of Hive 2 and 3" in error
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
