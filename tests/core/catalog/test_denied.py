# SPDX-License-Identifier: Apache-2.0
"""A store that refuses an account: the error names the file and the permission, and nothing is tried again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from pyiceberg.io import FileIO, load_file_io

from airflow_mv.core.catalog.answers import answered, is_denial
from airflow_mv.core.catalog.files import Act, MetadataFiles
from airflow_mv.errors import AccessDeniedError, StoreUnavailableError
from tests.services import http_server

#: What each store answers, with the status 403.
_ANSWERS = {
    "s3": b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>",
    "gs": b'{"error": {"code": 403, "message": "me@example.com does not have storage.objects.get access"}}',
    "abfss": b"<?xml version='1.0'?><Error><Code>AuthorizationPermissionMismatch</Code></Error>",
}
_FILES = {
    "s3": "s3://lake/wh/v/1.metadata.json",
    "gs": "gs://lake/wh/v/1.metadata.json",
    "abfss": "abfss://lake@account.dfs.core.windows.net/wh/v/1.metadata.json",
}
_ACTS: dict[Act, Callable[[MetadataFiles, str], object]] = {
    "read": lambda files, location: files.read(location, what="view v, metadata file"),
    "write": lambda files, location: files.write(location, b"{}"),
    "list": lambda files, location: list(files.list(location.rpartition("/")[0])),
    "delete": lambda files, location: files.delete(location),
}
_NEEDED = {
    "s3": {"read": "s3:GetObject", "write": "s3:PutObject", "list": "s3:ListBucket", "delete": "s3:DeleteObject"},
    "gs": {
        act: f"storage.objects.{word}" for act, word in zip(_ACTS, ("get", "create", "list", "delete"), strict=True)
    },
    "abfss": dict.fromkeys(_ACTS, "Storage Blob Data ") | {"write": "Contributor", "delete": "Contributor"},
}


class Closed(BaseHTTPRequestHandler):
    """A store that refuses each request."""

    protocol_version = "HTTP/1.1"
    scheme = ""
    asked: list[str]

    def refuse(self) -> None:
        """Answer with the status 403; to HEAD without a text."""
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.asked.append(self.path)
        text = b"" if self.command == "HEAD" else _ANSWERS[self.scheme]
        self.send_response(403)
        if text:
            self.send_header("Content-Type", "application/json" if self.scheme == "gs" else "application/xml")
        self.send_header("x-ms-error-code", "AuthorizationPermissionMismatch")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_DELETE = do_GET = do_HEAD = do_POST = do_PUT = refuse

    def log_message(self, *_: object) -> None:
        """Write nothing."""


def properties(scheme: str, port: int) -> dict[str, str]:
    """Return those of a catalog whose store is a server of this host."""
    if scheme == "s3":
        keys = {"s3.access-key-id": "a", "s3.secret-access-key": "b", "s3.region": "eu-central-1"}
        return {"s3.endpoint": f"http://127.0.0.1:{port}", **keys}
    if scheme == "gs":
        token = {"gcs.oauth2.token": "t", "gcs.oauth2.token-expires-at": "4102444800000"}
        return {"gcs.service.host": f"http://127.0.0.1:{port}", **token}
    servers = {f"adls.{kind}-storage-authority": f"127.0.0.1:{port}" for kind in ("blob", "dfs")}
    schemes = {f"adls.{kind}-storage-scheme": "http" for kind in ("blob", "dfs")}
    own = {
        "adls.account-name": "account",
        "adls.account-key": "a2V5",
        "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
    }
    return {**own, **servers, **schemes}


@pytest.fixture(params=sorted(_ANSWERS))
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def handler(scheme: str) -> type[Closed]:
    return type("Handler", (Closed,), {"scheme": scheme, "asked": []})


@pytest.fixture
def files(handler: type[Closed]) -> Iterator[MetadataFiles]:
    with http_server(handler) as port:
        yield MetadataFiles(properties(handler.scheme, port))


@pytest.mark.parametrize("act", _ACTS)
def test_the_error_names_the_file_and_the_permission(
    files: MetadataFiles, handler: type[Closed], scheme: str, act: Act
) -> None:
    location = _FILES[scheme]
    place = location.rpartition("/")[0] if act == "list" else location
    with pytest.raises(AccessDeniedError, match=f"no permission to {act} {place} .*{_NEEDED[scheme][act]}") as found:
        _ACTS[act](files, location)
    assert not found.value.retryable
    assert found.value.location == place
    assert len(handler.asked) <= (2 if act == "list" else 1), "a refusal is not tried again"


def written(io: FileIO, location: str) -> None:
    with io.new_output(location).create(overwrite=True) as stream:
        stream.write(b"{}")


def test_files_that_pyiceberg_opens_are_named_too(files: MetadataFiles, scheme: str) -> None:
    location = _FILES[scheme]
    io = files.io(location, what="manifest")
    with (
        pytest.raises(AccessDeniedError, match=f"'lake', reading: no permission to read {location}"),
        answered("lake", "reading"),
    ):
        io.new_input(location).open().read()
    with (
        pytest.raises(AccessDeniedError, match=f"'lake', committing: no permission to write {location}"),
        answered("lake", "committing"),
    ):
        written(io, location)


def test_a_file_that_pyiceberg_opens_by_itself(files: MetadataFiles, handler: type[Closed], scheme: str) -> None:
    properties = dict(files.io(_FILES[scheme], what="file").properties)
    with (
        pytest.raises(AccessDeniedError, match="'lake', creating table: no permission for a file of the table"),
        answered("lake", "creating table"),
    ):
        written(load_file_io(properties, _FILES[scheme]), _FILES[scheme])


def test_a_closed_folder_of_this_host(tmp_path: Path) -> None:
    files, folder = MetadataFiles({}), tmp_path / "closed"
    folder.mkdir()
    (folder / "1.metadata.json").write_text("{}")
    location = f"file://{folder}/1.metadata.json"
    folder.chmod(0)
    user = os.geteuid()
    os.seteuid(user or 65534)  # root may enter every folder
    try:
        for act in _ACTS:
            with pytest.raises(AccessDeniedError, match=rf"no permission to {act} file://\S+: Permission denied"):
                _ACTS[act](files, location)
    finally:
        os.seteuid(user)
        with suppress(OSError):
            folder.chmod(0o700)


@pytest.mark.parametrize(
    ("text", "denied"),
    [
        ("When reading wh/forbidden/1: AWS Error NETWORK_CONNECTION: curlCode: 28, Timeout was reached", False),
        ("When reading wh/forbidden/1: AWS Error ACCESS_DENIED during HeadObject operation", True),
        ("Forbidden: https://storage.googleapis.com/b/o", True),
        ("AWS Error UNKNOWN (HTTP status 400) during HeadObject operation: No response body.", False),
        ("AWS Error UNKNOWN (HTTP status 503) during PutObject operation", False),
    ],
)
def test_the_name_of_a_file_is_no_refusal(text: str, denied: bool) -> None:
    assert is_denial(OSError(text), "s3://lake/wh/forbidden/1") is denied
    assert issubclass(AccessDeniedError, StoreUnavailableError), "a view in such a store hides no other view"
